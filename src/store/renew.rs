//! Renewing: whoever holds or attends a run says that it is still there.

use serde::Serialize;

use super::advert::ttl_seconds;
use super::error::Refusal;
use super::tx::Tx;
use super::{Error, NEVER, runs};
use crate::clock::rfc3339;
use crate::domain::ids::RunId;
use crate::failpoint;

/// What a renewal is answered with.
#[derive(Clone, Debug, Serialize)]
pub struct Renewed {
    /// The run's state.
    pub state: &'static str,
    /// The holder's deadline; null when none runs.
    pub not_after: Option<String>,
    /// What is left, rounded down; null when none runs.
    pub ttl_seconds: Option<i64>,
}

/// Moves the holder's deadline one lifetime from now, if one runs.
///
/// # Errors
/// `not-found`; `forbidden` for another's run; `stale-lease` of an ended run.
pub fn renew(tx: &Tx, run: &RunId, principal: &str, operator: bool) -> Result<Renewed, Error> {
    let row = runs::get(tx, run)?;
    if !operator && row.principal != principal {
        return Err(Error::Refused(Refusal::new("forbidden", "only the run's principal or an operator renews it")));
    }
    if row.state.is_terminal() {
        return Err(Error::Refused(Refusal::new("stale-lease", format!("run {run} has ended: {}", row.state))));
    }
    let state = row.state.as_str();
    if row.holder_until == NEVER {
        return Ok(Renewed { state, not_after: None, ttl_seconds: None });
    }
    // A renewal never shortens.
    let until = tx.after(tx.settings.hold_ttl_ms).max(row.holder_until);
    tx.conn
        .prepare_cached("UPDATE runs SET holder_until = ?2, holder_grace = 0 WHERE run_id = ?1")?
        .execute((run.as_str(), until))?;
    failpoint!("renew.after");
    Ok(Renewed { state, not_after: Some(rfc3339(until, tx.offset)), ttl_seconds: Some(ttl_seconds(until, tx.now)) })
}
