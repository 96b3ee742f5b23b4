//! Cancelling a run: by a person, kept with who and why.

use super::Error;
use super::runs;
use super::tx::Tx;
use crate::domain::ids::RunId;
use crate::domain::run::{RunState, VerdictKind};
use crate::failpoint;

/// Cancels a run; a run that has ended stays as it is, and so does one that is not in the state `only_while`. Returns
/// whether anything changed.
///
/// The queue is woken even if the run held nothing: a cancel is one of the events that wake it.
///
/// # Errors
/// `not-found`.
pub fn cancel(
    tx: &Tx,
    run: &RunId,
    by: &str,
    reason: Option<&str>,
    only_while: Option<RunState>,
) -> Result<bool, Error> {
    let row = runs::get(tx, run)?;
    if row.state.is_terminal() || only_while.is_some_and(|state| state != row.state) {
        return Ok(false);
    }
    let detail = match reason {
        Some(reason) => format!("cancelled by {by}: {reason}"),
        None => format!("cancelled by {by}"),
    };
    runs::end(tx, &row, &runs::verdict(VerdictKind::Cancelled, detail))?;
    tx.owe_wake();
    failpoint!("cancel.after");
    Ok(true)
}
