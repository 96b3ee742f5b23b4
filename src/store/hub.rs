//! Who waits for what inside the process: parked claims, followers of runs and logs.
//!
//! The writer tells it what changed after the commit (I10). A waiter is registered *before* it looks, so that what
//! changes between its look and its wait still wakes it.
//!
//! A waiter may leave a write: the writer does it in the very commit that changes the topic. So a step that becomes
//! ready is claimed with that, and the claim that was parked for it costs neither a commit nor a turn of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::waiting::Write;
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

/// A waiter as the hub knows it: its number, and what its topic brings about.
#[derive(Debug)]
struct Registered(u64, Then);

enum Then {
    /// It is woken after the commit.
    Tell(oneshot::Sender<()>),
    /// Its write is done before the commit, and answered after it.
    Do(Box<dyn Write>),
}

impl std::fmt::Debug for Then {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Tell(_)) { "Tell" } else { "Do" })
    }
}

/// Resolves at the first [`Hub::tell`] of its topic since it was made.
#[derive(Debug)]
pub struct Waiter {
    receiver: oneshot::Receiver<()>,
    _place: Place,
}

/// A waiter's place in the hub, given up with it.
#[derive(Debug)]
pub(super) struct Place {
    hub: Hub,
    topic: Topic,
    id: u64,
}

impl Hub {
    /// Registers a waiter: from now on nothing told of `topic` is missed.
    pub fn wait_for(&self, topic: Topic) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        Waiter { receiver, _place: self.register(topic, Then::Tell(sender)) }
    }

    /// Registers a write that is to be done with the next change of `topic`; not any more once the place is dropped.
    pub(super) fn park(&self, topic: Topic, write: Box<dyn Write>) -> Place {
        self.register(topic, Then::Do(write))
    }

    fn register(&self, topic: Topic, then: Then) -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut waiters = self.0.lock().expect("no holder panics");
        waiters.entry(topic.clone()).or_default().push(Registered(id, then));
        Place { hub: self.clone(), topic, id }
    }

    /// Hands out the writes that were left for `topic`, with their numbers.
    pub(super) fn parked(&self, topic: &Topic) -> Vec<(u64, Box<dyn Write>)> {
        let mut waiters = self.0.lock().expect("no holder panics");
        let Some(list) = waiters.get_mut(topic) else { return Vec::new() };
        let parked = list.extract_if(.., |waiter| matches!(waiter.1, Then::Do(_)));
        let writes = parked
            .filter_map(|waiter| if let Then::Do(write) = waiter.1 { Some((waiter.0, write)) } else { None })
            .collect();
        if list.is_empty() {
            waiters.remove(topic);
        }
        writes
    }

    /// Takes back a write that has found nothing to do. Should whoever left it have gone meanwhile, the next change of its
    /// topic drops it.
    pub(super) fn put_back(&self, topic: Topic, id: u64, write: Box<dyn Write>) {
        let mut waiters = self.0.lock().expect("no holder panics");
        waiters.entry(topic).or_default().push(Registered(id, Then::Do(write)));
    }

    /// Wakes everybody who waits for one of `topics`. A write that was left since the commit for one of them has looked
    /// at what was committed, or will.
    pub fn tell(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut woken = Vec::new();
        {
            let mut waiters = self.0.lock().expect("no holder panics");
            for topic in topics {
                let Some(list) = waiters.get_mut(&topic) else { continue };
                woken.extend(list.extract_if(.., |waiter| matches!(waiter.1, Then::Tell(_))));
                if list.is_empty() {
                    waiters.remove(&topic);
                }
            }
        }
        for waiter in woken {
            if let Then::Tell(sender) = waiter.1 {
                // Nobody listens any more: fine.
                let _ = sender.send(());
            }
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiters = self.hub.0.lock().expect("no holder panics");
        if let Some(list) = waiters.get_mut(&self.topic) {
            list.retain(|waiter| waiter.0 != self.id);
            if list.is_empty() {
                waiters.remove(&self.topic);
            }
        }
    }
}
