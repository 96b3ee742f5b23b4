//! Who waits for what inside the process: parked claims, followers of runs and logs.
//!
//! The writer tells it what changed after the commit (I10). A waiter is registered *before* it looks, so that what
//! changes between its look and its wait still wakes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// A run ended, or was pruned: its record is to be sealed, or removed.
    Records,
}

/// The waiters, by topic. A topic is there only while somebody waits for it.
#[derive(Clone, Debug, Default)]
pub struct Hub(Arc<Mutex<HashMap<Topic, Vec<Registered>>>>);

/// A waiter as the hub knows it: its number, and how it is woken.
type Registered = (u64, oneshot::Sender<()>);

/// Resolves at the first [`Hub::tell`] of its topic since it was made.
#[derive(Debug)]
pub struct Waiter {
    receiver: oneshot::Receiver<()>,
    hub: Hub,
    topic: Topic,
    id: u64,
}

impl Hub {
    /// Registers a waiter: from now on nothing told of `topic` is missed.
    pub fn wait_for(&self, topic: Topic) -> Waiter {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.0.lock().expect("no holder panics").entry(topic.clone()).or_default().push((id, sender));
        Waiter { receiver, hub: self.clone(), topic, id }
    }

    /// Wakes everybody who waits for one of `topics`.
    pub fn tell(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut woken = Vec::new();
        {
            let mut waiters = self.0.lock().expect("no holder panics");
            for topic in topics {
                woken.extend(waiters.remove(&topic).unwrap_or_default());
            }
        }
        for (_, sender) in woken {
            // Nobody listens any more: fine.
            let _ = sender.send(());
        }
    }

    /// Wakes everybody: the daemon stops.
    pub fn tell_all(&self) {
        let all = std::mem::take(&mut *self.0.lock().expect("no holder panics"));
        drop(all);
    }
}

impl Waiter {
    /// Waits until the topic is told of, or the daemon stops.
    pub async fn told(mut self) {
        let _ = (&mut self.receiver).await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiters = self.hub.0.lock().expect("no holder panics");
        if let Some(list) = waiters.get_mut(&self.topic) {
            list.retain(|(id, _)| *id != self.id);
            if list.is_empty() {
                waiters.remove(&self.topic);
            }
        }
    }
}
