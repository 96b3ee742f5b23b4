//! Who waits for what inside the process: parked claims, followers of runs and logs.
//!
//! The writer tells it what changed after the commit (I10). A waiter is registered *before* it looks, so that what
//! changes between its look and its wait still wakes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::domain::ids::{NodeId, RunId};

/// What somebody can wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The node may have a step to claim, or lost the one it works on.
    Node(NodeId),
    /// Something about the run changed.
    Run(RunId),
    /// A log of the run grew or ended.
    Log(RunId),
    /// An event was written.
    Events,
    /// A notification is to be sent.
    Outbox,
    /// A run ended: its record is to be sealed.
    Ended,
}

/// The waiters, by topic.
#[derive(Clone, Debug, Default)]
pub struct Hub(Arc<Mutex<HashMap<Topic, Vec<oneshot::Sender<()>>>>>);

/// Resolves at the first [`Hub::tell`] of its topic since it was made.
#[derive(Debug)]
pub struct Waiter(oneshot::Receiver<()>);

impl Hub {
    /// Registers a waiter: from now on nothing told of `topic` is missed.
    pub fn wait_for(&self, topic: Topic) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.0.lock().expect("no holder panics");
        // Nobody may ever tell of a topic whose waiters have all given up: cleared whenever the map would grow.
        if waiters.len() == waiters.capacity() {
            waiters.retain(|_, list| list.iter().any(|sender| !sender.is_closed()));
        }
        let list = waiters.entry(topic).or_default();
        // Waiters that gave up leave their sender behind; clear them whenever the list would grow.
        if list.len() == list.capacity() {
            list.retain(|sender| !sender.is_closed());
        }
        list.push(sender);
        Waiter(receiver)
    }

    /// Wakes everybody who waits for one of `topics`.
    pub fn tell(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut waiters = self.0.lock().expect("no holder panics");
        for topic in topics {
            for sender in waiters.remove(&topic).unwrap_or_default() {
                // Nobody listens any more: fine.
                let _ = sender.send(());
            }
        }
    }

    /// Wakes everybody: the daemon stops.
    pub fn tell_all(&self) {
        self.0.lock().expect("no holder panics").clear();
    }
}

impl Waiter {
    /// Waits until the topic is told of, or the daemon stops.
    pub async fn told(self) {
        let _ = self.0.await;
    }
}
