//! The operator's side of a node: draining, and removing it. (The owner's side comes with its adverts.)

use rusqlite::OptionalExtension as _;
use serde_json::json;

use super::advert::DrainMode;
use super::error::Refusal;
use super::hub::Topic;
use super::tx::{About, Tx};
use super::{Error, not_found, progress};
use crate::domain::ids::NodeId;
use crate::failpoint;

/// Lets no new lease onto a node, on an operator's behalf. Kept over restarts of the daemon and the agent. Returns
/// whether anything changed.
///
/// # Errors
/// `not-found`.
pub fn drain(tx: &Tx, node: &NodeId, mode: DrainMode, reason: Option<&str>, by: &str) -> Result<bool, Error> {
    must_exist(tx, node)?;
    // Saying the same again changes nothing; with another reason it keeps since when it drains.
    let changed = tx
        .conn
        .prepare_cached(
            "UPDATE nodes SET operator_since = CASE WHEN operator_mode IS ?2 THEN operator_since ELSE ?5 END,
                 operator_mode = ?2, operator_reason = ?3, operator_by = ?4
             WHERE node_id = ?1
               AND (operator_mode IS NOT ?2 OR operator_reason IS NOT ?3 OR operator_by IS NOT ?4)",
        )?
        .execute((node.as_str(), mode.as_str(), reason, by, tx.now))?;
    if changed == 0 {
        return Ok(false);
    }
    tx.touch(node);
    tx.event("node.drained", About::node(node), &json!({"by": by, "mode": mode.as_str(), "reason": reason}))?;
    tx.log(|| format!("node drained node={node} mode={} by={by:?}", mode.as_str()));
    progress::resume(tx, node)?;
    failpoint!("drain.after");
    Ok(true)
}

/// Lifts the operator's drain; the owner's remains. Wakes the queue, and lets begin what the drain kept from it.
/// Returns whether anything changed.
///
/// # Errors
/// `not-found`.
pub fn undrain(tx: &Tx, node: &NodeId, by: &str) -> Result<bool, Error> {
    must_exist(tx, node)?;
    let lifted = tx
        .conn
        .prepare_cached(
            "UPDATE nodes SET operator_mode = NULL, operator_reason = NULL, operator_by = NULL, operator_since = NULL
             WHERE node_id = ?1 AND operator_mode IS NOT NULL",
        )?
        .execute([node.as_str()])?;
    if lifted == 0 {
        return Ok(false);
    }
    tx.touch(node);
    tx.event("node.undrained", About::node(node), &json!({"by": by}))?;
    tx.log(|| format!("node undrained node={node} by={by:?}"));
    tx.owe_wake();
    progress::resume(tx, node)?;
    failpoint!("undrain.after");
    Ok(true)
}

/// Forgets a node: it is no candidate any more. An agent that still speaks for it makes it anew.
///
/// # Errors
/// `not-found`; `node-leased` while a run holds it, its agent may be at work, or it is not clean.
pub fn remove(tx: &Tx, node: &NodeId, by: &str) -> Result<(), Error> {
    must_exist(tx, node)?;
    if let Some(run) = super::runs::holding(tx, node)? {
        let detail = format!("run {run} holds node {node}: drain it and wait, or cancel the run");
        return Err(Error::Refused(Refusal::new("node-leased", detail).with("run_id", run.as_str())));
    }
    let settling: bool = tx
        .conn
        .prepare_cached("SELECT settling_until > ?2 FROM nodes WHERE node_id = ?1")?
        .query_row((node.as_str(), tx.now), |row| row.get(0))?;
    if settling {
        let detail =
            format!("the agent of node {node} may still be at work for a run that ended: wait, or stop the agent");
        return Err(Error::Refused(Refusal::new("node-leased", detail)));
    }
    if tx.conn.prepare_cached("SELECT 1 FROM cleanings WHERE node_id = ?1")?.exists([node.as_str()])? {
        let detail = format!("node {node} is not clean yet: wait, or say that it is (`mediator node clean --done`)");
        return Err(Error::Refused(Refusal::new("node-leased", detail)));
    }
    tx.conn.prepare_cached("DELETE FROM nodes WHERE node_id = ?1")?.execute([node.as_str()])?;
    tx.touch(node);
    tx.tell(Topic::Node(node.clone()));
    tx.event("node.removed", About::node(node), &json!({"by": by}))?;
    failpoint!("remove.after");
    tx.log(|| format!("node removed node={node} by={by:?}"));
    Ok(())
}

pub(super) fn must_exist(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    let mut statement = tx.conn.prepare_cached("SELECT 1 FROM nodes WHERE node_id = ?1")?;
    match statement.query_row([node.as_str()], |_| Ok(())).optional()? {
        Some(()) => Ok(()),
        None => Err(not_found(format_args!("node {node}"))),
    }
}
