//! The store: everything that is kept, on one SQLite file, and the one writer that changes it.
//!
//! One module a family of transactions; its SQL stands inside the function that runs it. `writer` takes writes
//! together and wakes the queue; `tx` is one write while it runs; `live`, `begin` and `progress` move running runs on;
//! `submit`, `sweep`, `advert`, `claim`, `clean`, `result`, `ask`, `cancel`, `drain`, `renew` and `reaper` are what can happen;
//! `request` does it once, `outbox` tells of it, `seal` and `record` keep it, `history` prunes it; `views` answers questions without changing
//! anything; `invariants` finds rows that should not be.
//!
//! Whoever opens a [`Store`] gets: the folder locked, the schema of this version, the boot write committed, time
//! granted for the downtime, the queue woken once.

pub mod advert;
mod alarm;
pub mod artifacts;
pub mod ask;
pub mod backup;
mod begin;
pub mod cancel;
mod checkpoint;
pub mod claim;
pub mod clean;
mod connection;
pub mod doctor;
pub mod drain;
mod error;
mod fleet;
mod folder;
mod health;
mod history;
pub mod hub;
pub mod invariants;
mod lease;
mod live;
pub mod logs;
mod migrate;
pub mod outbox;
mod pace;
mod progress;
mod queue;
mod reaper;
pub mod record;
pub mod renew;
pub mod request;
pub mod result;
mod run_ids;
mod runs;
mod seal;
#[cfg(debug_assertions)]
pub mod statements;
pub mod submit;
mod sweep;
pub mod token;
mod tx;
pub mod views;
mod waiting;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use error::not_found;
pub use error::{Error, Refusal};
pub use folder::{DATABASE, Folder};
pub(crate) use folder::{Files, sync_tree};
use health::Health;
use hub::Hub;
pub use runs::{Assigned, AssignedNode};
pub use tx::Tx;
use waiting::{Patient, Pending, Waiting};
use writer::Writer;

use crate::clock::{Clock, Ms};
use crate::config::Settings;
use crate::failpoint;
use crate::random;

/// The deadline of what has none: 2^53 - 1, so that it is a number everywhere.
pub const NEVER: Ms = 9_007_199_254_740_991;

/// How many reads may go on at once.
const READERS: u32 = 4;

/// The open store. Cheap to clone; ends when [`Store::close`] is called.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    waiting: Arc<Waiting>,
    health: Arc<Health>,
    readers: r2d2::Pool<connection::Readers>,
    /// One permit a reader: a read that waits for its turn must not keep a thread that others need.
    reading: tokio::sync::Semaphore,
    hub: Hub,
    clock: Clock,
    settings: Arc<Settings>,
    folder: Arc<Folder>,
    tokens: token::Tokens,
    logs: logs::Logs,
    /// Held while a record is sealed: true after a mark of which it is not known whether it was kept.
    sealing: tokio::sync::Mutex<bool>,
    /// How many backups are being made: until then no file of theirs is removed.
    backups: std::sync::atomic::AtomicUsize,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A write that waits for a change.
#[derive(Debug)]
pub struct Parked<T> {
    outcome: oneshot::Receiver<Result<T, Error>>,
    _place: hub::Place,
}

impl<T> Parked<T> {
    /// Waits until it is done and committed; `None`: the daemon stops.
    ///
    /// # Errors
    /// As of [`Store::write`]; [`Error::WakeFirst`] when it could not be done there, and its caller is to look again.
    pub async fn done(self) -> Option<Result<T, Error>> {
        self.outcome.await.ok()
    }
}

impl Store {
    /// Opens the store in `data`: lock, open, migrate, boot write, grace for leases, one wake of the queue.
    ///
    /// # Errors
    /// A sentence for people: the folder or the database cannot be used.
    pub fn open(data: &Path, settings: Settings, clock: Clock) -> Result<Self, String> {
        let folder = Arc::new(Folder::open(data, settings.network_filesystem)?);
        let path = folder.database();
        let (conn, wal_bytes) = connection::open_writer(&path, settings.synchronous)?;
        let shown = |error: Error| format!("cannot start on {}: {error}", path.display());
        let prepare = || {
            migrate::migrate(&conn, &path)?;
            let boot = boot(&conn, &clock)?;
            Ok((boot, token::load(&conn, &folder, clock.now())?))
        };
        let (boot, tokens) = match prepare() {
            Ok(prepared) => prepared,
            // Ended at once, the next start could take for durable what this one could not sync.
            Err(error @ Error::Disk(_)) => checkpoint::empty_wal(&conn, &error, || {}),
            Err(error) => return Err(shown(error)),
        };
        let (waiting, hub, settings) = (Arc::new(Waiting::default()), Hub::default(), Arc::new(settings));
        let health = Arc::new(Health::default());
        let alarm = alarm::Alarm::new(Arc::clone(&waiting)).map_err(|error| format!("cannot make a timer: {error}"))?;
        let mut writer = Writer {
            conn,
            waiting: Arc::clone(&waiting),
            health: Arc::clone(&health),
            hub: hub.clone(),
            clock: clock.clone(),
            settings: Arc::clone(&settings),
            boot,
            started: clock.now(),
            memory: tx::Memory { stopping: Arc::clone(&waiting.closed), ..tx::Memory::default() },
            wal_bytes,
            data_version: -1,
            owes_wake: true,
            wake_error: Error::Busy,
            alarm,
            checkpoint_at: NEVER,
            pace: pace::Pace::default(),
            due_at: 0,
            not_before: 0,
        };
        match writer.start() {
            Ok(()) => {}
            Err(error @ Error::Disk(_)) => checkpoint::empty_wal(&writer.conn, &error, || {}),
            Err(error) => return Err(shown(error)),
        }
        // Only now: a connection that goes before the writer's must not be the last, whose close checkpoints.
        let readers = r2d2::Pool::builder()
            .max_size(READERS)
            .min_idle(Some(1))
            .build(connection::Readers::new(path.clone()))
            .map_err(|error| format!("cannot open {} for reading: {error}", path.display()))?;
        let handle = std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || {
                // Being killed is safe, being deaf is not.
                if catch_unwind(AssertUnwindSafe(|| writer.run())).is_err() {
                    log::error!("the writer panicked: ending");
                    std::process::abort();
                }
            })
            .map_err(|error| format!("cannot start the writer: {error}"))?;
        let logs = logs::Logs::new(Arc::clone(&folder), settings.log_max_bytes);
        let writer = Mutex::new(Some(handle));
        let sealing = tokio::sync::Mutex::default();
        let backups = std::sync::atomic::AtomicUsize::new(0);
        let reading = tokio::sync::Semaphore::new(READERS as usize);
        let inner = Inner {
            waiting,
            health,
            readers,
            reading,
            hub,
            clock,
            settings,
            folder,
            tokens,
            logs,
            sealing,
            backups,
            writer,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Runs one write, with those that wait at the same time, and answers after its commit and the wake that follows.
    /// The write happens even if the caller is dropped. `write` may be run again if the queue had to come first.
    ///
    /// # Errors
    /// [`Error`]: nothing of the write is kept, except after [`Error::Disk`], when it is unknown.
    pub async fn write<T: Send + 'static>(
        &self,
        write: impl FnMut(&Tx) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, outcome) = oneshot::channel();
        self.0.waiting.push(Box::new(Pending { write, value: None, reply }));
        outcome.await.unwrap_or(Err(Error::Stopping))
    }

    /// Leaves `write` to be done in the commit of a change of `topic`, the first at which it finds something to do; not any
    /// more once the [`Parked`] is dropped.
    pub fn park<T: Send + 'static>(
        &self,
        topic: hub::Topic,
        write: impl FnMut(&Tx) -> Result<Option<T>, Error> + Send + 'static,
    ) -> Parked<T> {
        let (reply, outcome) = oneshot::channel();
        let write = Patient(Pending { write, value: None, reply });
        Parked { outcome, _place: self.0.hub.park(topic, Box::new(write)) }
    }

    /// Hands the writer an error of the disk that was met outside of it: it ends the process as if it were its own.
    pub async fn fail(&self, error: Error) -> Error {
        let own = error.clone();
        let outcome = self.write(move |_| Err::<(), Error>(own.clone())).await;
        outcome.err().unwrap_or(error)
    }

    /// Reads in one snapshot, beside the writer.
    ///
    /// # Errors
    /// [`Error::Busy`] when all readers are taken for too long, or the read takes too long itself.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.0.reading.acquire().await;
        let readers = self.0.readers.clone();
        let task = tokio::task::spawn_blocking(move || {
            let mut conn = readers.get().map_err(|error| {
                log::warn!("no reader is free cause={error}");
                Error::Busy
            })?;
            connection::read(&mut conn, read)
        });
        let outcome = task.await.unwrap_or_else(|error| Err(Error::Broken(format!("a read ended early: {error}"))));
        drop(turn);
        outcome
    }

    /// Returns who waits for what.
    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Returns the data folder.
    pub fn folder(&self) -> &Folder {
        &self.0.folder
    }

    /// Returns the tokens in force.
    pub fn tokens(&self) -> &token::Tokens {
        &self.0.tokens
    }

    /// Returns the log files.
    pub fn logs(&self) -> &logs::Logs {
        &self.0.logs
    }

    /// Makes the writer look at its deadlines: a test has moved the clock.
    pub fn poke(&self) {
        self.0.waiting.poke();
    }

    /// Takes no further writes, finishes those that wait, and ends the writer.
    pub fn close(&self) {
        self.0.waiting.close();
        self.0.hub.tell_all();
        let handle = self.0.writer.lock().expect("no holder panics").take();
        if let Some(handle) = handle {
            // A writer that panicked has ended the process.
            let _ = handle.join();
        }
    }
}

/// Commits the first write of this life; returns its number. Until it is committed nothing may be answered: what
/// SQLite recovered after a kill is only synced by a later commit.
fn boot(conn: &Connection, clock: &Clock) -> Result<i64, Error> {
    use rusqlite::OptionalExtension as _;
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let earlier = conn
        .query_row("SELECT number, started_at, clock_offset FROM boot", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Ms>(1)?, row.get::<_, i64>(2)?))
        })
        .optional()?;
    let latest: Option<Ms> =
        conn.query_row("SELECT at FROM events ORDER BY id DESC LIMIT 1", [], |row| row.get(0)).optional()?;
    if let Some((_, started, offset)) = earlier {
        clock.resume(offset, started.max(latest.unwrap_or(0)));
    }
    let number = earlier.map_or(1, |(number, ..)| number + 1);
    conn.execute(
        "INSERT INTO boot (one, number, started_at, clock_offset) VALUES (1, ?1, ?2, ?3)
         ON CONFLICT (one) DO UPDATE SET number = ?1, started_at = ?2, clock_offset = ?3",
        (number, clock.now(), clock.offset()),
    )?;
    failpoint!("boot.before_commit");
    conn.execute_batch("COMMIT")?;
    failpoint!("boot.after_commit");
    Ok(number)
}

/// Makes a fencing token: 130 random bits, so that none is ever used twice.
fn nonce() -> String {
    random::text(26)
}
