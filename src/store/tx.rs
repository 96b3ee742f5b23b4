//! One write, while it runs: the connection inside its transaction, the time, and what the write does besides rows.
//!
//! Only the writer makes a [`Tx`], so a write outside a transaction does not compile. What a write frees is noted
//! where it is freed (`lease::end`, a lifted drain, room that appears), not by its caller: a wake cannot be forgotten
//! (I6).

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rusqlite::Connection;
use serde_json::Value;

use super::fleet::Fleet;
use super::hub::Topic;
use super::queue::Queue;
use super::run_ids::RunIds;
use super::runs::Contracts;
use super::{Error, NEVER};
use crate::clock::Ms;
use crate::config::Settings;
use crate::domain::contract::Contract;
use crate::domain::ids::{NodeId, RunId};

/// A write in its transaction.
pub struct Tx<'a> {
    pub(super) conn: &'a Connection,
    /// The time of this write.
    pub(super) now: Ms,
    /// What is added to times that are shown.
    pub(super) offset: i64,
    pub(super) settings: &'a Settings,
    pub(super) memory: &'a Memory,
    /// Whether an earlier write of this group may let a waiting run start.
    pub(super) owes_wake: bool,
    effects: RefCell<Effects>,
}

/// What the writer keeps between transactions, to spare itself reading it again. All of it follows from the rows.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) fleet: RefCell<Fleet>,
    pub(super) queue: RefCell<Queue>,
    pub(super) contracts: RefCell<Contracts>,
    /// When to look next whether something of history is to be pruned: at once after a start.
    pub(super) prune_at: Cell<Ms>,
    pub(super) run_ids: RunIds,
    pub(super) numbers: Cell<Option<Numbers>>,
    /// Whether the daemon is stopping: a sweep is not begun further.
    pub(super) stopping: Arc<AtomicBool>,
}

/// The numbers that were given last. They follow from the rows, and from what `pruned` keeps of rows that are gone: so none
/// is given twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    event: i64,
    arrival: i64,
}

impl Memory {
    /// Forgets everything that somebody else may have changed.
    pub(super) fn forget(&self) {
        self.fleet.borrow_mut().forget();
        self.queue.borrow_mut().forget();
        self.numbers.set(None);
    }

    /// Gives the next number that `of` points to.
    fn next_number(&self, conn: &Connection, of: fn(&mut Numbers) -> &mut i64) -> Result<i64, Error> {
        let mut numbers = match self.numbers.get() {
            Some(numbers) => numbers,
            None => conn
                .prepare_cached(
                    "SELECT max(last_event, coalesce((SELECT max(id) FROM events), 0)),
                         max(last_arrival, coalesce((SELECT max(arrival) FROM runs), 0)) FROM pruned",
                )?
                .query_row([], |row| Ok(Numbers { event: row.get(0)?, arrival: row.get(1)? }))?,
        };
        let number = of(&mut numbers);
        *number += 1;
        let given = *number;
        self.numbers.set(Some(numbers));
        Ok(given)
    }
}

/// What a write does besides its rows; it counts once the write is kept.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Whether a waiting run may now be able to start.
    pub(super) wake: bool,
    /// What is to be told after the commit.
    pub(super) news: News,
    /// Nodes that became free here: an acquire of the same transaction must not take them.
    freed: Vec<NodeId>,
    /// Nodes whose rows changed.
    touched: Vec<NodeId>,
}

/// What is told after a commit.
#[derive(Debug, Default)]
pub(super) struct News {
    /// To whoever waits for one of these.
    pub(super) topics: Vec<Topic>,
    /// To the log.
    pub(super) lines: Vec<String>,
}

impl<'a> Tx<'a> {
    pub(super) fn new(
        conn: &'a Connection,
        now: Ms,
        offset: i64,
        settings: &'a Settings,
        memory: &'a Memory,
        owes_wake: bool,
    ) -> Self {
        Self { conn, now, offset, settings, memory, owes_wake, effects: RefCell::default() }
    }

    /// Runs a part of the write that stands or falls alone: on an error its rows and effects are undone.
    pub(super) fn attempt<T>(&self, part: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let (wake, topics, lines, freed, touched) = {
            let Effects { wake, news, freed, touched } = &*self.effects.borrow();
            (*wake, news.topics.len(), news.lines.len(), freed.len(), touched.len())
        };
        let numbers = self.memory.numbers.get();
        let moves = self.memory.queue.borrow().changes();
        self.conn.prepare_cached("SAVEPOINT part")?.execute([])?;
        let outcome = part();
        if outcome.is_err() {
            self.memory.numbers.set(numbers);
            let mut queue = self.memory.queue.borrow_mut();
            if queue.changes() != moves {
                queue.forget();
            }
            drop(queue);
            let mut effects = self.effects.borrow_mut();
            effects.wake = wake;
            effects.news.topics.truncate(topics);
            effects.news.lines.truncate(lines);
            effects.freed.truncate(freed);
            // What was read back since may be gone with the rollback: it is read again.
            self.memory.fleet.borrow_mut().touch(effects.touched.drain(touched..));
            if self.conn.is_autocommit() {
                // SQLite has undone the whole transaction by itself. Nothing may go on as if it were still open.
                return outcome.map_err(|error| match error {
                    error if error.is_of_the_group() => error,
                    other => Error::Unusable(format!("the transaction was undone: {other}")),
                });
            }
            self.conn.prepare_cached("ROLLBACK TO part")?.execute([])?;
        }
        self.conn.prepare_cached("RELEASE part")?.execute([])?;
        outcome
    }

    pub(super) fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Notes that something was freed: the queue is woken after the commit, before any other write.
    pub(super) fn owe_wake(&self) {
        self.effects.borrow_mut().wake = true;
    }

    /// Must come before anything that takes a node: what an earlier write of the group freed belongs to the queue
    /// first (I7).
    ///
    /// # Errors
    /// [`Error::WakeFirst`], which the writer handles.
    pub(super) fn before_taking(&self) -> Result<(), Error> {
        if self.owes_wake { Err(Error::WakeFirst) } else { Ok(()) }
    }

    /// Notes that `node` is free from here on.
    pub(super) fn freed(&self, node: &NodeId) {
        self.effects.borrow_mut().freed.push(node.clone());
        self.owe_wake();
    }

    /// Says whether `node` became free in this write.
    pub(super) fn was_freed_here(&self, node: &NodeId) -> bool {
        self.effects.borrow().freed.contains(node)
    }

    /// Must follow every change of a node's row, its lease or its draining.
    pub(super) fn touch(&self, node: &NodeId) {
        self.memory.fleet.borrow_mut().touch([node.clone()]);
        self.effects.borrow_mut().touched.push(node.clone());
    }

    /// Returns the nodes as they are now.
    pub(super) fn fleet(&self) -> Result<Ref<'a, Fleet>, Error> {
        self.memory.fleet.borrow_mut().refresh(self.conn, self.settings, self.now)?;
        Ok(self.memory.fleet.borrow())
    }

    /// Returns what waits.
    pub(super) fn queue(&self) -> Result<RefMut<'a, Queue>, Error> {
        let mut queue = self.memory.queue.borrow_mut();
        queue.load(self.conn)?;
        Ok(queue)
    }

    /// Gives a new run its place in the order of arrival (I7).
    pub(super) fn next_arrival(&self) -> Result<i64, Error> {
        self.memory.next_number(self.conn, |numbers| &mut numbers.arrival)
    }

    /// Returns the contract of a run, of which `text` was read.
    pub(super) fn contract(&self, run: &RunId, text: &str) -> Result<Arc<Contract>, Error> {
        self.memory.contracts.borrow_mut().get(run, text)
    }

    /// Tells whoever waits for `topic`, after the commit.
    pub(super) fn tell(&self, topic: Topic) {
        let topics = &mut self.effects.borrow_mut().news.topics;
        // Only a short look for repeats: to be told twice does no harm.
        if !topics.iter().rev().take(4).any(|other| *other == topic) {
            topics.push(topic);
        }
    }

    /// Has the log tell `line`, after the commit: nothing is told that did not happen.
    pub(super) fn log(&self, line: impl FnOnce() -> String) {
        if log::log_enabled!(log::Level::Info) {
            self.effects.borrow_mut().news.lines.push(line());
        }
    }

    /// Writes an event in this transaction; its followers see it after the commit. What happens to a node is part of
    /// the story of the run that holds it: so a drain of it is in that run's record.
    pub(super) fn event(&self, event: &str, about: About, data: &Value) -> Result<(), Error> {
        let holder = match (about.run, about.node) {
            (None, Some(node)) => super::runs::holding(self, node)?,
            _ => None,
        };
        let about = About { run: about.run.or(holder.as_ref()), ..about };
        let run = about.run.map(RunId::as_str);
        let node = about.node.map(NodeId::as_str);
        let id = self.memory.next_number(self.conn, |numbers| &mut numbers.event)?;
        self.conn
            .prepare_cached(
                "INSERT INTO events (id, at, event, run_id, seq, node_id, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute((id, self.now, event, run, about.seq, node, serde_json::to_string(data)?))?;
        if let Some(run) = about.run {
            self.tell(Topic::Run(run.clone()));
        }
        self.tell(Topic::Events);
        super::outbox::enqueue(self, event, about, data)
    }

    /// Returns `now + ms`, at most [`NEVER`].
    pub(super) fn after(&self, ms: i64) -> Ms {
        self.now.saturating_add(ms).min(NEVER)
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About<'a> {
    pub(super) run: Option<&'a RunId>,
    pub(super) seq: Option<i64>,
    pub(super) node: Option<&'a NodeId>,
}

impl<'a> About<'a> {
    pub(super) fn run(run: &'a RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    pub(super) fn step(run: &'a RunId, seq: i64) -> Self {
        Self { run: Some(run), seq: Some(seq), ..Self::default() }
    }

    pub(super) fn node(node: &'a NodeId) -> Self {
        Self { node: Some(node), ..Self::default() }
    }

    pub(super) fn on(self, node: &'a NodeId) -> Self {
        Self { node: Some(node), ..self }
    }
}
