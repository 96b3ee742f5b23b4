//! The writer: one thread with the only writing connection.
//!
//! Writes that wait are taken together, in order of arrival: one `BEGIN IMMEDIATE`, a savepoint each, one commit, and
//! only then the answers (I10). A group ends before the first write that could take a node if an earlier one freed
//! something; then the queue is woken, in the next transaction, before any other write, and before anyone of the
//! group is answered (I6, I7). Between groups it does what is due: the reaper, checkpoints.
//!
//! What a failing disk leads to is decided here, too: see [`empty_wal`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rusqlite::Connection;

use super::alarm::Alarm;
use super::checkpoint::{checkpoint, empty_wal};
use super::connection::WalBytes;
use super::health::Health;
use super::hub::Hub;
use super::pace::Pace;
use super::tx::{Effects, Memory, News, Tx};
use super::waiting::{GROUP, Waiting, Write};
use super::{Error, NEVER, backup, reaper, sweep};
use crate::clock::{Clock, Ms, stopwatch};
use crate::config::Settings;
use crate::failpoint;

/// WAL size from which the writer checkpoints, and from which it also insists on shrinking the file.
const CHECKPOINT_BYTES: u64 = 4 << 20;
const SHRINK_BYTES: u64 = 16 << 20;

/// How soon a checkpoint that a reader kept from finishing is tried again.
const RETRY_MS: i64 = 1000;

/// The writer's own state.
pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) waiting: Arc<Waiting>,
    pub(super) health: Arc<Health>,
    pub(super) hub: Hub,
    pub(super) clock: Clock,
    pub(super) settings: Arc<Settings>,
    /// This life's number, and when it began.
    pub(super) boot: i64,
    pub(super) started: Ms,
    pub(super) memory: Memory,
    pub(super) wal_bytes: WalBytes,
    pub(super) data_version: i64,
    /// A wake that failed, or was not yet done: the next write of any kind repeats it first.
    pub(super) owes_wake: bool,
    /// Why the last wake failed: what a write is told that must not come before it.
    pub(super) wake_error: Error,
    pub(super) alarm: Alarm,
    /// When a checkpoint is to be tried again.
    pub(super) checkpoint_at: Ms,
    pub(super) pace: Pace,
    /// When the rows have something due, and, after a failure, when not to look before.
    pub(super) due_at: Ms,
    pub(super) not_before: Ms,
}

impl Writer {
    /// What comes after the boot write and before anything is answered: grace for leases, one wake of the queue.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.begin()?;
        let tx = self.tx(false);
        reaper::grant_start_grace(&tx)?;
        backup::end_restored(&tx)?;
        self.commit()?;
        failpoint!("start.after_grace");
        self.owes_wake = true;
        self.wake();
        Ok(())
    }

    /// Works until [`Waiting::close`].
    pub(super) fn run(mut self) {
        // How many of the writes that were waiting when something fell due are still to be taken first: heartbeats
        // that wait must count before leases are judged.
        let mut ahead: Option<usize> = None;
        loop {
            self.set_alarm();
            let Some(mut group) = self.waiting.take() else { break };
            if let Some(offset) = self.clock.follow_wall_clock() {
                self.keep_offset(offset);
            }
            if ahead.is_none() && self.is_due() {
                ahead = Some(group.len() + self.waiting.len());
            }
            let mut taken = group.len();
            while !group.is_empty() {
                taken += self.group(&mut group);
            }
            if let Some(left) = &mut ahead {
                *left = left.saturating_sub(taken);
                if *left == 0 {
                    ahead = None;
                    self.reap();
                }
            }
            self.checkpoint_if_large();
        }
        // A tidy end leaves an empty WAL; nothing depends on it.
        let _ = checkpoint(&self.conn, "TRUNCATE");
    }

    /// Has the writer woken when something is due. A manual clock is moved by a test, which then pokes.
    fn set_alarm(&mut self) {
        let next = self.due_at.min(self.checkpoint_at);
        // A millisecond later, so that the deadline has passed when the alarm goes.
        let at = self.clock.boottime_at(next + 1).filter(|_| next < NEVER);
        self.alarm.set(at);
    }

    fn is_due(&self) -> bool {
        self.due_at <= self.clock.now()
    }

    /// Takes writes from the front of `group` into one commit, with those that join them meanwhile, and answers them;
    /// leaves those that must come after a wake. Returns how many joined.
    fn group(&mut self, group: &mut VecDeque<Box<dyn Write>>) -> usize {
        if self.owes_wake {
            self.wake();
        }
        let (mut done, mut parked) = (Done::new(), Done::new());
        let mut joined = 0;
        let outcome = self.begin().and_then(|()| {
            failpoint!("group.after_begin");
            let mut kept = Effects::default();
            let began = stopwatch();
            loop {
                let Some(mut write) = group.pop_front() else {
                    *group = self.join(done.len(), began);
                    joined += group.len();
                    if group.is_empty() { break } else { continue }
                };
                let tx = self.tx(self.owes_wake || kept.wake);
                let mut result = tx.attempt(|| write.run(&tx));
                match result {
                    // The queue comes first and could not be woken: this one cannot be done now.
                    Err(Error::WakeFirst) if self.owes_wake => result = Err(self.wake_error.clone()),
                    Err(Error::WakeFirst) => {
                        group.push_front(write);
                        break;
                    }
                    Err(error) if self.conn.is_autocommit() || error.is_of_the_group() => {
                        done.push((write, Ok(())));
                        return Err(error);
                    }
                    Ok(()) => kept.merge(tx.into_effects()),
                    Err(_) => {}
                }
                done.push((write, result));
            }
            self.do_parked(&mut kept, &mut parked)?;
            #[cfg(debug_assertions)]
            super::invariants::assert_held(&self.conn);
            failpoint!("group.before_commit");
            let began = stopwatch();
            self.commit()?;
            self.pace.committed(done.len(), began.elapsed());
            failpoint!("group.after_commit");
            Ok(kept)
        });
        match outcome {
            Ok(kept) => {
                let failed = if kept.wake { self.try_wake().err() } else { None };
                failpoint!("group.before_answer");
                // They have waited longest.
                answer_all(parked, None);
                answer_all(done, None);
                self.tell(kept.news);
                if let Some(error) = failed {
                    self.wake_failed(error);
                }
            }
            Err(error) => {
                done.extend(parked);
                log::warn!("a group of writes failed writes={} cause={error}", done.len());
                // When the transaction could not even begin, none was tried and all are told.
                done.extend(group.drain(..).map(|write| (write, Ok(()))));
                self.rolled_back(&error, done.into_iter().map(|(write, _)| write));
            }
        }
        joined
    }

    /// Returns the writes that are to share the commit of a group which has `done` so many: see [`Pace`].
    fn join(&self, done: usize, began: Instant) -> VecDeque<Box<dyn Write>> {
        let (wanted, patience) = self.pace.patience(began.elapsed());
        let wanted = wanted.min(GROUP).saturating_sub(done);
        if wanted == 0 { VecDeque::new() } else { self.waiting.more(wanted, patience) }
    }

    /// Does the writes that were left for what this transaction changes, as part of it. One that cannot be done here
    /// looks again after the commit.
    fn do_parked(&self, effects: &mut Effects, done: &mut Done) -> Result<(), Error> {
        let mut at = 0;
        // What they change may bring others about.
        while let Some(topic) = effects.news.topics.get(at).cloned() {
            at += 1;
            for (id, mut write) in self.hub.parked(&topic).into_iter().filter(|(_, write)| write.is_wanted()) {
                let tx = self.tx(self.owes_wake || effects.wake);
                let result = tx.attempt(|| write.run(&tx));
                match result {
                    Err(error) if self.conn.is_autocommit() || error.is_of_the_group() => {
                        done.push((write, Ok(())));
                        return Err(error);
                    }
                    Ok(()) => effects.merge(tx.into_effects()),
                    Err(_) => {}
                }
                if result.is_ok() && write.waits_on() {
                    self.hub.put_back(topic.clone(), id, write);
                } else {
                    done.push((write, result));
                }
            }
        }
        Ok(())
    }

    /// Tells whoever follows, and the log, what was committed.
    fn tell(&self, news: News) {
        self.hub.tell(news.topics);
        for line in news.lines {
            log::info!("{line}");
        }
    }

    /// Wakes the queue. A failure is nobody's error: the wake stays owed.
    pub(super) fn wake(&mut self) {
        if let Err(error) = self.try_wake() {
            self.wake_failed(error);
        }
    }

    /// Wakes the queue in a transaction of its own; it is owed until that is committed.
    fn try_wake(&mut self) -> Result<(), Error> {
        self.owes_wake = true;
        failpoint!("wake.before");
        for _ in 0..SWEEPS {
            self.begin()?;
            failpoint!("wake.after_begin");
            let tx = self.tx(false);
            sweep::sweep(&tx)?;
            let mut effects = tx.into_effects();
            let mut done = Done::new();
            let outcome = self.do_parked(&mut effects, &mut done).and_then(|()| {
                #[cfg(debug_assertions)]
                super::invariants::assert_held(&self.conn);
                failpoint!("wake.before_commit");
                self.commit()
            });
            if let Err(error) = outcome {
                answer_all(done, Some(&error));
                return Err(error);
            }
            failpoint!("wake.after_commit");
            self.owes_wake = effects.wake;
            answer_all(done, None);
            self.tell(effects.news);
            if !self.owes_wake {
                break;
            }
        }
        Ok(())
    }

    fn wake_failed(&mut self, error: Error) {
        log::error!("cannot promote queued runs cause={error}");
        self.rolled_back(&error, std::iter::empty());
        self.wake_error = error;
    }

    /// One pass over everything that is due; one wake at its end, if it changed a row.
    fn reap(&mut self) {
        if self.owes_wake {
            self.wake();
        }
        let mut done = Done::new();
        let outcome = self.begin().and_then(|()| {
            failpoint!("reap.after_begin");
            let tx = self.tx(false);
            let failed = reaper::pass(&tx, self.started)?;
            let mut effects = tx.into_effects();
            self.do_parked(&mut effects, &mut done)?;
            #[cfg(debug_assertions)]
            super::invariants::assert_held(&self.conn);
            failpoint!("reap.before_commit");
            self.commit()?;
            failpoint!("reap.after_commit");
            Ok((effects, failed))
        });
        match outcome {
            Ok((effects, failed)) => {
                if failed {
                    self.not_before = self.clock.now() + RETRY_MS;
                    self.due_at = self.due_at.max(self.not_before);
                }
                if effects.wake {
                    self.owes_wake = true;
                    self.wake();
                }
                answer_all(done, None);
                self.tell(effects.news);
            }
            Err(error) => {
                log::error!("cannot reap what is due cause={error}");
                self.rolled_back(&error, done.into_iter().map(|(write, _)| write));
                self.not_before = self.clock.now() + RETRY_MS;
                self.due_at = self.not_before;
            }
        }
    }

    pub(super) fn tx(&self, owes_wake: bool) -> Tx<'_> {
        Tx::new(&self.conn, self.clock.now(), self.clock.offset(), &self.settings, &self.memory, owes_wake)
    }

    /// Begins a write transaction, in which this boot is known to be the current one.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let (number, version) = {
            let mut statement = self.conn.prepare_cached("SELECT number FROM boot")?;
            let number: i64 = statement.query_row([], |row| row.get(0))?;
            let mut statement = self.conn.prepare_cached("PRAGMA data_version")?;
            (number, statement.query_row([], |row| row.get::<_, i64>(0))?)
        };
        if number != self.boot {
            log::error!("another mediator has started on this database: ending boot={} current={number}", self.boot);
            std::process::exit(1);
        }
        if version != self.data_version {
            // Another connection has written: nothing that was remembered is trusted.
            self.data_version = version;
            self.memory.forget();
        }
        Ok(())
    }

    /// Commits, and knows then when something is due next. That is read within the transaction: a read of its own would
    /// take and give back locks once more.
    fn commit(&mut self) -> Result<(), Error> {
        let next = reaper::next_deadline(&self.conn, self.started);
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        let next = next.unwrap_or_else(|error| {
            log::error!("cannot read the next deadline cause={error}");
            self.clock.now() + RETRY_MS
        });
        self.due_at = next.min(self.memory.prune_at.get()).max(self.not_before);
        Ok(())
    }

    /// Undoes a transaction that failed, tells its writes, and does what the error asks for.
    fn rolled_back(&mut self, error: &Error, writes: impl Iterator<Item = Box<dyn Write>>) {
        if !self.conn.is_autocommit() {
            // One that fails leaves the transaction open: the next begins with an error, and the disk is drained.
            if let Err(error) = self.conn.execute_batch("ROLLBACK") {
                log::error!("cannot roll back cause={error}");
            }
        }
        self.memory.forget();
        self.health.note(error);
        for write in writes {
            write.answer(Err(error.clone()));
        }
        if matches!(error, Error::Disk(_)) {
            self.drain(error);
        }
    }

    /// After a failed sync or another error of the disk: see [`empty_wal`]. Meanwhile everybody is told 503.
    fn drain(&mut self, error: &Error) -> ! {
        empty_wal(&self.conn, error, || {
            self.waiting.poke();
            for write in self.waiting.take().unwrap_or_default() {
                write.answer(Err(error.clone()));
            }
        })
    }

    /// Writes down how far the wall clock has moved, so that the next start goes on with the same scale.
    fn keep_offset(&mut self, offset: i64) {
        log::warn!("the wall clock was stepped: deadlines are not affected offset_ms={offset}");
        let outcome = self.begin().and_then(|()| {
            self.conn.execute("UPDATE boot SET clock_offset = ?1", [offset])?;
            self.commit()
        });
        if let Err(error) = outcome {
            log::error!("cannot keep the clock's offset cause={error}");
            self.rolled_back(&error, std::iter::empty());
        }
    }

    /// Checkpoints when the WAL has grown; insists on shrinking it when it is large, but never for long.
    fn checkpoint_if_large(&mut self) {
        let size = self.wal_bytes.load(Ordering::Relaxed);
        let now = self.clock.now();
        if size < CHECKPOINT_BYTES || (self.checkpoint_at < NEVER && now < self.checkpoint_at) {
            if size < CHECKPOINT_BYTES {
                self.checkpoint_at = NEVER;
            }
            return;
        }
        let mode = if size >= SHRINK_BYTES { "TRUNCATE" } else { "PASSIVE" };
        self.checkpoint_at = now + RETRY_MS;
        match checkpoint(&self.conn, mode) {
            // Everything is copied: the next commit starts the file over, and cuts it if it is long
            // (journal_size_limit).
            Ok((0, log, copied)) if log == copied => {
                self.wal_bytes.store(0, Ordering::Relaxed);
                self.checkpoint_at = NEVER;
            }
            Ok((_, log, copied)) => log::debug!("checkpoint mode={mode} pages={log} copied={copied}"),
            Err(error) => {
                log::error!("a checkpoint failed cause={error}");
                let error = Error::from(error);
                if matches!(error, Error::Disk(_)) {
                    self.health.note(&error);
                    self.drain(&error);
                }
            }
        }
    }
}

/// The writes of a transaction with what came of each.
type Done = Vec<(Box<dyn Write>, Result<(), Error>)>;

/// Answers the writes of a transaction that is committed, or of one that failed as a whole.
fn answer_all(done: Done, failed: Option<&Error>) {
    for (write, result) in done {
        write.answer(failed.map_or(result, |error| Err(error.clone())));
    }
}

/// How many sweeps may follow each other when each frees something: promotions free nothing, so one is enough.
const SWEEPS: usize = 3;

impl Effects {
    fn merge(&mut self, other: Self) {
        self.wake |= other.wake;
        self.news.topics.extend(other.news.topics);
        self.news.lines.extend(other.news.lines);
    }
}
