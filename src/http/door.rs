//! How many connections there may be, and which one goes when there is one too many.
//!
//! Each connection is a descriptor, and so is each file that the daemon opens: some are kept back for those. A
//! connection that waits for the head of a request, be it the first or the next, is *idle*, and takes a place from
//! nobody: when all places are taken one of them goes, first who never asked for anything, then who is idle for the
//! longest. While nobody is idle nobody new is let in; who comes waits in the kernel's queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Descriptors that are not for connections: the database with its readers, files of runs, receivers of notifications.
const KEPT_BACK: usize = 48;

/// The places for connections.
#[derive(Clone, Debug)]
pub struct Door(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: usize,
    taken: Mutex<Taken>,
    /// Told when a place has become free, or somebody idle.
    moved: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    next: u64,
    /// Idle connections, in the order in which they have to go.
    idle: BTreeMap<Number, Arc<Notify>>,
}

/// Whether a connection has asked for something before, and since when it is idle, as a number that grows.
type Number = (bool, u64);

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Seat>);

#[derive(Debug)]
struct Seat {
    door: Door,
    /// Told when the connection has to go.
    shed: Arc<Notify>,
    is_busy: AtomicBool,
    idle: Mutex<(Number, Instant)>,
}

/// A request that is being answered: until it is dropped its connection is not idle.
#[derive(Debug)]
pub struct Busy(Arc<Seat>);

impl Door {
    /// Makes a door for as many connections as the limit on descriptors leaves room for.
    pub fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Self::with(limit.saturating_sub(KEPT_BACK.min(limit / 2)).max(1))
    }

    fn with(places: usize) -> Self {
        Self(Arc::new(Inner { places, taken: Mutex::default(), moved: Notify::new() }))
    }

    /// Waits until somebody may be let in: there is a place, or somebody idle who can give theirs.
    pub async fn opens(&self) {
        loop {
            let moved = self.0.moved.notified();
            {
                let taken = self.lock();
                if taken.count < self.0.places || !taken.idle.is_empty() {
                    return;
                }
            }
            moved.await;
        }
    }

    /// Takes a place; if there is none, from somebody who is idle.
    pub fn enter(&self) -> Place {
        let mut taken = self.lock();
        if taken.count >= self.0.places
            && let Some((_, shed)) = taken.idle.pop_first()
        {
            shed.notify_one();
        }
        taken.count += 1;
        let shed = Arc::new(Notify::new());
        let idle = Mutex::new((taken.wait(false, &shed), Instant::now()));
        drop(taken);
        Place(Arc::new(Seat { door: self.clone(), shed, is_busy: AtomicBool::new(false), idle }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.0.taken.lock().expect("no holder panics")
    }
}

impl Taken {
    fn wait(&mut self, has_asked: bool, shed: &Arc<Notify>) -> Number {
        self.next += 1;
        let number = (has_asked, self.next);
        self.idle.insert(number, Arc::clone(shed));
        number
    }
}

impl Place {
    /// Returns another hold on the same place.
    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// The head of a request is there: the connection is busy until the answer was handed over.
    pub fn answer(&self) -> Busy {
        let seat = &self.0;
        seat.is_busy.store(true, Ordering::Relaxed);
        let (number, _) = *seat.idle.lock().expect("no holder panics");
        seat.door.lock().idle.remove(&number);
        Busy(Arc::clone(seat))
    }

    /// Returns since when the connection waits for a head; `None` while it is busy.
    pub fn idle_since(&self) -> Option<Instant> {
        let is_busy = self.0.is_busy.load(Ordering::Relaxed);
        (!is_busy).then(|| self.0.idle.lock().expect("no holder panics").1)
    }

    /// Resolves when the connection has to give its place to another.
    pub async fn shed(&self) {
        self.0.shed.notified().await;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let number = self.0.door.lock().wait(true, &self.0.shed);
        *self.0.idle.lock().expect("no holder panics") = (number, Instant::now());
        self.0.is_busy.store(false, Ordering::Relaxed);
        self.0.door.0.moved.notify_one();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (number, _) = *self.idle.lock().expect("no holder panics");
        let mut taken = self.door.lock();
        taken.idle.remove(&number);
        taken.count -= 1;
        drop(taken);
        self.door.0.moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(test);
    }

    async fn is_shed(place: &Place) -> bool {
        tokio::select! {
            biased;
            () = place.shed() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[test]
    fn who_never_asked_goes_first_and_then_who_is_idle_for_the_longest() {
        run(async {
            let door = Door::with(3);
            let (first, second, third) = (door.enter(), door.enter(), door.enter());
            drop(first.answer());
            let working = third.answer();
            let fourth = door.enter();
            assert!(is_shed(&second).await);
            assert!(!is_shed(&first).await && !is_shed(&third).await && !is_shed(&fourth).await);
            drop((second, fourth, working));
            drop(first.answer());
            let _fifth = door.enter().answer();
            let _sixth = door.enter().answer();
            assert!(is_shed(&third).await && !is_shed(&first).await);
        });
    }

    #[test]
    fn nobody_is_let_in_while_all_are_busy() {
        run(async {
            let door = Door::with(1);
            let place = door.enter();
            let busy = place.answer();
            let opens = async {
                tokio::select! {
                    biased;
                    () = door.opens() => true,
                    () = std::future::ready(()) => false,
                }
            };
            assert!(!opens.await);
            drop(busy);
            door.opens().await;
            drop(place);
            door.opens().await;
            assert_eq!(door.lock().idle.len(), 0);
        });
    }
}
