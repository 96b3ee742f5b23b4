//! Where writes wait for the writer: in order of arrival, unbounded (connections are what is bounded).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Error;
use super::tx::Tx;
use crate::failpoint;

/// The most writes that share a commit: more would only make the first of them wait longer.
pub(super) const GROUP: usize = 256;

/// A write that waits for its turn.
pub(super) trait Write: Send {
    fn run(&mut self, tx: &Tx) -> Result<(), Error>;
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
    /// Says whether anybody still waits for the answer.
    fn is_wanted(&self) -> bool;
    /// Says, once it was run, whether it has found nothing to do and is to wait on.
    fn waits_on(&self) -> bool {
        false
    }
}

/// A write as a closure, and where its outcome goes.
pub(super) struct Pending<F, T> {
    pub(super) write: F,
    pub(super) value: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T, Error>>,
}

impl<F, T> Write for Pending<F, T>
where
    F: FnMut(&Tx) -> Result<T, Error> + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx) -> Result<(), Error> {
        self.value = Some((self.write)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { value, reply, .. } = *self;
        let outcome = outcome.map(|()| value.expect("a write that succeeded has left its value"));
        // The client may have hung up: the write stands all the same.
        let _ = reply.send(outcome);
    }

    fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }
}

/// A write that waits until it finds something to do.
pub(super) struct Patient<F, T>(pub(super) Pending<F, T>);

impl<F, T> Write for Patient<F, T>
where
    F: FnMut(&Tx) -> Result<Option<T>, Error> + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx) -> Result<(), Error> {
        self.0.value = (self.0.write)(tx)?;
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let Pending { value, reply, .. } = self.0;
        // Without a value it was not done.
        let _ = reply.send(outcome.and_then(|()| value.ok_or(Error::WakeFirst)));
    }

    fn is_wanted(&self) -> bool {
        !self.0.reply.is_closed()
    }

    fn waits_on(&self) -> bool {
        self.0.value.is_none()
    }
}

/// Where writes wait.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<WaitingState>,
    arrived: Condvar,
    /// Turns true when no further writes are taken.
    pub(super) closed: Arc<AtomicBool>,
}

#[derive(Default)]
struct WaitingState {
    writes: VecDeque<Box<dyn Write>>,
    poked: bool,
    closed: bool,
    /// Whether the writer waits for the next: to wake one that does not is a system call for nothing.
    asleep: bool,
}

impl Waiting {
    /// Adds a write; it fails at once when the writer has stopped.
    pub(super) fn push(&self, write: Box<dyn Write>) {
        let mut state = self.state.lock().expect("no holder panics");
        if state.closed {
            drop(state);
            write.answer(Err(Error::Stopping));
            return;
        }
        state.writes.push_back(write);
        failpoint!("write.waits");
        if state.asleep {
            self.arrived.notify_one();
        }
    }

    /// Makes the writer look at its deadlines.
    pub(super) fn poke(&self) {
        self.state.lock().expect("no holder panics").poked = true;
        self.arrived.notify_one();
    }

    /// Takes no further writes; the writer ends after those that wait.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.state.lock().expect("no holder panics").closed = true;
        self.arrived.notify_one();
    }

    /// Returns the writes that wait as soon as there is one, or a poke; `None` when the writer is to end.
    pub(super) fn take(&self) -> Option<VecDeque<Box<dyn Write>>> {
        let mut state = self.state.lock().expect("no holder panics");
        while state.writes.is_empty() && !state.poked && !state.closed {
            state.asleep = true;
            state = self.arrived.wait(state).expect("no holder panics");
        }
        state.asleep = false;
        state.poked = false;
        if state.writes.is_empty() && state.closed {
            return None;
        }
        let most = state.writes.len().min(GROUP);
        Some(state.writes.drain(..most).collect())
    }

    /// Returns `wanted` more writes at most: those that wait, else the first that arrives within `patience`.
    pub(super) fn more(&self, wanted: usize, patience: Duration) -> VecDeque<Box<dyn Write>> {
        let mut state = self.state.lock().expect("no holder panics");
        state.asleep = true;
        let is_empty = |state: &mut WaitingState| state.writes.is_empty() && !state.poked && !state.closed;
        let mut state = self.arrived.wait_timeout_while(state, patience, is_empty).expect("no holder panics").0;
        state.asleep = false;
        let most = state.writes.len().min(wanted);
        state.writes.drain(..most).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().expect("no holder panics").writes.len()
    }
}
