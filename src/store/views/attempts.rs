//! Attempts: whose they are now, and whether they are over.

use rusqlite::{Connection, OptionalExtension as _};

use crate::domain::ids::RunId;
use crate::store::logs::LogKey;
use crate::store::{Error, Refusal, not_found};

/// What is known of an attempt whose log is read.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Its number: the one asked for, or the current one.
    pub number: i64,
    /// Whether nothing more will be written to its log.
    pub has_ended: bool,
}

/// Lets only the holder of the current attempt pass (I8): what it sends besides its result.
///
/// # Errors
/// `not-found`, `stale-lease`; `gone` once the record is sealed.
pub fn check_holder(conn: &Connection, key: &LogKey, nonce: &str) -> Result<(), Error> {
    super::runs::state(conn, &key.run)?;
    let step = conn
        .prepare_cached("SELECT node_id, attempt, state FROM steps WHERE run_id = ?1 AND seq = ?2")?
        .query_row((key.run.as_str(), key.seq), |row| {
            Ok((row.get::<_, Option<String>>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
        })
        .optional()?;
    let Some((node, attempt, state)) = step else {
        return Err(not_found(format_args!("step {} in run {}", key.seq, key.run)));
    };
    let sealed = conn
        .prepare_cached("SELECT 1 FROM runs WHERE run_id = ?1 AND sealed_at IS NOT NULL")?
        .exists([key.run.as_str()])?;
    if sealed {
        return Err(Error::Refused(Refusal::new("gone", format!("the record of run {} is sealed", key.run))));
    }
    let held = conn
        .prepare_cached("SELECT 1 FROM leases WHERE node_id = ?1 AND run_id = ?2 AND nonce = ?3")?
        .exists((node, key.run.as_str(), nonce))?;
    if held && attempt == key.attempt && state == "CLAIMED" {
        return Ok(());
    }
    let detail = format!("attempt {} of step {} of run {} is not in your hands", key.attempt, key.seq, key.run);
    Err(Error::Refused(Refusal::new("stale-lease", detail)))
}

/// Returns the attempt of a step whose log is wanted.
///
/// # Errors
/// `not-found`.
pub fn attempt(conn: &Connection, run: &RunId, seq: i64, wanted: Option<i64>) -> Result<Attempt, Error> {
    let run_ended = super::runs::state(conn, run)?.is_terminal();
    let current: Option<i64> = conn
        .prepare_cached("SELECT attempt FROM steps WHERE run_id = ?1 AND seq = ?2")?
        .query_row((run.as_str(), seq), |row| row.get(0))
        .optional()?;
    let Some(current) = current else { return Err(not_found(format_args!("step {seq} in run {run}"))) };
    let number = wanted.unwrap_or(current);
    let ended: Option<Option<i64>> = conn
        .prepare_cached("SELECT ended_at FROM attempts WHERE run_id = ?1 AND seq = ?2 AND attempt = ?3")?
        .query_row((run.as_str(), seq, number), |row| row.get(0))
        .optional()?;
    // An attempt that was never begun has nothing to say; whether it will, depends on the run.
    let has_ended = ended.map_or(run_ended || number < current, |ended| ended.is_some());
    Ok(Attempt { number, has_ended })
}
