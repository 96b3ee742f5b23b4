//! History: what is old is pruned, in small steps that stall nobody.
//!
//! A run goes `history.retention_days` after its record was sealed, an event `events.retention_days` after it happened.
//! One step takes apart at most [`ROWS`] rows in a pass of the reaper, then lets others write; a run with more than that
//! goes in several, its own row last. Its files are removed after the commit, outside of the writer: until then
//! `pruned_runs.has_files` says that they are still to go, so a kill in between forgets nothing.

use std::fs;
use std::io;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OptionalExtension as _};
use sha2::{Digest as _, Sha256};

use super::hub::Topic;
use super::tx::Tx;
use super::{Error, Refusal, Store, not_found};
use crate::clock::Ms;
use crate::domain::ids::RunId;
use crate::failpoint;

/// How many rows one step removes: some milliseconds of work.
const ROWS: usize = 1000;

/// How long a step that had more to do leaves the writer to others. A step takes less: pruning is a fraction of the time.
const PAUSE_MS: i64 = 20;

/// How long what is due may wait for more to come due: a step for each single event would be a sync for each.
const GATHER_MS: i64 = 1000;

/// After how long a run that could not be pruned is tried again.
const RETRY_MS: i64 = 60_000;

/// How many runs' files are removed between two marks.
const FOLDERS: usize = 100;

/// Removes a small step of what is due, and sets when to look again.
pub(super) fn prune(tx: &Tx) -> Result<(), Error> {
    if tx.now < tx.memory.prune_at.get() {
        return Ok(());
    }
    // Should something below fail, the rest of the daemon is not kept busy with it.
    tx.memory.prune_at.set(tx.after(RETRY_MS));
    let mut left = ROWS;
    let is_whole = runs(tx, &mut left)?;
    events(tx, &mut left)?;
    notifications(tx, "delivered", tx.settings.events_retention_ms, &mut left)?;
    notifications(tx, "failed", tx.settings.history_retention_ms, &mut left)?;
    let at = match (left, is_whole) {
        (0, _) => tx.after(PAUSE_MS),
        (_, true) => next(tx)?.max(tx.after(GATHER_MS)),
        (_, false) => tx.after(RETRY_MS),
    };
    tx.memory.prune_at.set(at);
    Ok(())
}

/// Prunes the runs whose records were sealed long enough ago; returns false if one of them could not be.
fn runs(tx: &Tx, left: &mut usize) -> Result<bool, Error> {
    let due: Vec<String> = {
        let mut statement = tx.conn.prepare_cached(
            "SELECT run_id FROM runs INDEXED BY runs_sealed WHERE sealed_at IS NOT NULL AND sealed_at <= ?1
             ORDER BY sealed_at LIMIT ?2",
        )?;
        let before = tx.now.saturating_sub(tx.settings.history_retention_ms);
        let rows = statement.query_map((before, limit(*left)), |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    let mut is_whole = true;
    for id in due {
        if *left == 0 {
            break;
        }
        let before = *left;
        match tx.attempt(|| run(tx, &id, left)) {
            Err(error) if error.is_of_the_group() => return Err(error),
            Err(error) => {
                log::error!("cannot prune run={id} cause={error}");
                *left = before;
                is_whole = false;
            }
            Ok(()) => {}
        }
    }
    Ok(is_whole)
}

/// Takes one run apart, as far as there is room in this step; what its row refers to goes last.
fn run(tx: &Tx, id: &str, left: &mut usize) -> Result<(), Error> {
    let parts = [
        "DELETE FROM attempts WHERE (run_id, seq, attempt) IN
             (SELECT run_id, seq, attempt FROM attempts WHERE run_id = ?1 LIMIT ?2)",
        "DELETE FROM artifacts WHERE id IN (SELECT id FROM artifacts WHERE run_id = ?1 LIMIT ?2)",
        "DELETE FROM lease_history WHERE id IN (SELECT id FROM lease_history WHERE run_id = ?1 LIMIT ?2)",
        // Those that were kept for its record, while it was open, after their time.
        "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE run_id = ?1
             AND id <= (SELECT last_event FROM pruned) LIMIT ?2)",
    ];
    for part in parts {
        let gone = tx.conn.prepare_cached(part)?.execute((id, limit(*left)))?;
        *left -= gone;
        if *left == 0 {
            return Ok(());
        }
    }
    // At most 500 steps: together with the row that says that the run is gone.
    let (arrival, contract, ended_at): (i64, String, Ms) = tx
        .conn
        .prepare_cached("SELECT arrival, contract, ended_at FROM runs WHERE run_id = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut gone = 0;
    for part in ["DELETE FROM steps WHERE run_id = ?1", "DELETE FROM runs WHERE run_id = ?1"] {
        gone += tx.conn.prepare_cached(part)?.execute([id])?;
    }
    *left = left.saturating_sub(gone);
    tx.conn.prepare_cached("UPDATE pruned SET last_arrival = max(last_arrival, ?1)")?.execute([arrival])?;
    tx.conn
        .prepare_cached(
            "INSERT INTO pruned_runs (run_id, contract_sha256, ended_at, pruned_at, has_files) VALUES (?1, ?2, ?3, ?4, 1)",
        )?
        .execute((id, Sha256::digest(contract.as_bytes()).as_slice(), ended_at, tx.now))?;
    failpoint!("history.after_rows");
    tx.tell(Topic::Records);
    Ok(())
}

/// Prunes events from the oldest on. Those of a run whose record is still open are kept for it: they go with the run.
fn events(tx: &Tx, left: &mut usize) -> Result<(), Error> {
    let before = tx.now.saturating_sub(tx.settings.events_retention_ms);
    let from = pruned_to(tx.conn)?;
    let due: Vec<i64> = {
        // Their order is that of time, so the first that is young enough ends the step.
        let mut statement = tx.conn.prepare_cached("SELECT id, at FROM events WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let rows = statement.query_map((from, limit(*left)), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let old = rows.take_while(|row| !matches!(row, Ok((_, at)) if *at > before));
        old.map(|row: rusqlite::Result<(i64, Ms)>| row.map(|(id, _)| id)).collect::<Result<_, _>>()?
    };
    let Some(last) = due.last() else { return Ok(()) };
    tx.conn
        .prepare_cached(
            "DELETE FROM events WHERE id > ?1 AND id <= ?2 AND NOT EXISTS
                 (SELECT 1 FROM runs WHERE runs.run_id = events.run_id AND sealed_at IS NULL)",
        )?
        .execute((from, last))?;
    tx.conn.prepare_cached("UPDATE pruned SET last_event = ?1")?.execute([last])?;
    *left -= due.len();
    Ok(())
}

/// Prunes notifications that are over, from the oldest on.
fn notifications(tx: &Tx, state: &str, retention_ms: i64, left: &mut usize) -> Result<(), Error> {
    let before = tx.now.saturating_sub(retention_ms);
    let due: Vec<i64> = {
        let mut statement = tx.conn.prepare_cached(
            "SELECT id, created_at FROM outbox INDEXED BY outbox_state WHERE state = ?1 ORDER BY id LIMIT ?2",
        )?;
        let rows = statement.query_map((state, limit(*left)), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let old = rows.take_while(|row| !matches!(row, Ok((_, at)) if *at > before));
        old.map(|row: rusqlite::Result<(i64, Ms)>| row.map(|(id, _)| id)).collect::<Result<_, _>>()?
    };
    let Some(last) = due.last() else { return Ok(()) };
    tx.conn
        .prepare_cached("DELETE FROM outbox INDEXED BY outbox_state WHERE state = ?1 AND id <= ?2")?
        .execute((state, last))?;
    *left -= due.len();
    Ok(())
}

/// Returns when something of history is due next. Whatever is still to come is due later than a retention from now.
fn next(tx: &Tx) -> Result<Ms, Error> {
    let settings = tx.settings;
    let first = |query: &str, retention_ms: i64| -> Result<Ms, Error> {
        let at: Option<Ms> = tx.conn.prepare_cached(query)?.query_row([], |row| row.get(0)).optional()?;
        Ok(at.unwrap_or(tx.now).saturating_add(retention_ms))
    };
    Ok([
        first(
            "SELECT sealed_at FROM runs INDEXED BY runs_sealed WHERE sealed_at IS NOT NULL ORDER BY sealed_at LIMIT 1",
            settings.history_retention_ms,
        )?,
        first(
            "SELECT at FROM events WHERE id > (SELECT last_event FROM pruned) ORDER BY id LIMIT 1",
            settings.events_retention_ms,
        )?,
        first(
            "SELECT created_at FROM outbox INDEXED BY outbox_state WHERE state = 'delivered' ORDER BY id LIMIT 1",
            settings.events_retention_ms,
        )?,
        first(
            "SELECT created_at FROM outbox INDEXED BY outbox_state WHERE state = 'failed' ORDER BY id LIMIT 1",
            settings.history_retention_ms,
        )?,
    ]
    .into_iter()
    .min()
    .expect("four of them"))
}

fn limit(left: usize) -> i64 {
    i64::try_from(left).unwrap_or(i64::MAX)
}

/// Returns up to which event the list may have gaps.
pub(super) fn pruned_to(conn: &Connection) -> Result<i64, Error> {
    Ok(conn.prepare_cached("SELECT last_event FROM pruned")?.query_row([], |row| row.get(0))?)
}

/// Says whether there was a run of this id that was pruned.
pub(super) fn is_pruned(conn: &Connection, run: &RunId) -> Result<bool, Error> {
    Ok(conn.prepare_cached("SELECT 1 FROM pruned_runs WHERE run_id = ?1")?.exists([run.as_str()])?)
}

/// Makes the refusal for a run that is not there: `gone` if it was once, else `not-found`.
pub(super) fn missing(conn: &Connection, run: &RunId) -> Error {
    match is_pruned(conn, run) {
        Ok(false) => not_found(format_args!("run {run}")),
        Ok(true) => {
            let detail = format!("run {run} ended long ago and is not kept any more (history.retention_days)");
            Error::Refused(Refusal::new("gone", detail).with("run_id", run.as_str()))
        }
        Err(error) => error,
    }
}

impl Store {
    /// Removes the files of runs that were pruned. Failures are logged and tried again by the next call.
    pub async fn remove_pruned_files(&self) {
        // A backup that is being made may need them; its end tells.
        while self.0.backups.load(Ordering::SeqCst) == 0 {
            let runs = self.read(|conn| {
                let mut statement = conn.prepare_cached(
                    "SELECT run_id FROM pruned_runs INDEXED BY pruned_runs_files WHERE has_files = 1 LIMIT ?1",
                )?;
                let runs =
                    statement.query_map([limit(FOLDERS)], |row| Ok(RunId::from_stored(row.get::<_, String>(0)?)))?;
                Ok(runs.collect::<Result<Vec<_>, _>>()?)
            });
            let runs = match runs.await {
                Ok(runs) if runs.is_empty() => return,
                Ok(runs) => runs,
                Err(error) => return log::error!("cannot look for files to remove cause={error}"),
            };
            let (store, own) = (self.clone(), runs.clone());
            let removed = tokio::task::spawn_blocking(move || store.remove_files(&own)).await;
            match removed {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return log::error!("cannot remove the files of a pruned run cause={error}"),
                Err(error) => return log::error!("removing files ended early cause={error}"),
            }
            failpoint!("history.after_files");
            let marked = self.write(move |tx| {
                for run in &runs {
                    tx.conn
                        .prepare_cached("UPDATE pruned_runs SET has_files = 0 WHERE run_id = ?1")?
                        .execute([run.as_str()])?;
                }
                Ok(())
            });
            if let Err(error) = marked.await {
                return log::error!("cannot mark files as removed cause={error}");
            }
            failpoint!("history.after_mark");
        }
    }

    fn remove_files(&self, runs: &[RunId]) -> io::Result<()> {
        for run in runs {
            for folder in [self.folder().records().join(run.as_str()), self.folder().run(run)] {
                match fs::remove_dir_all(folder) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        // The mark must not outlive what it tells of.
        match fs::File::open(self.folder().records()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.sync_all(),
        }
    }
}
