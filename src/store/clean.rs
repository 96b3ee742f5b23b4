//! Cleaning: between two users of a node whose agent declares that it cleans up.
//!
//! The lease's end makes the row, in the same commit: from then on the node is unavailable, whatever is killed. Only the
//! agent's word that the old work is gone and the cleaning ended well removes it, or an operator's; that wakes the queue.
//! A cleaning that failed stays, drains the node with its reason, and is not begun again by the same life of the agent:
//! another life, or an operator, may try again.

use rusqlite::{OptionalExtension as _, named_params};
use serde::Serialize;
use serde_json::json;

use super::error::Refusal;
use super::hub::Topic;
use super::tx::{About, Tx};
use super::{Error, nonce};
use crate::domain::ids::{NodeId, RunId};
use crate::failpoint;

/// What an agent is told to clean.
#[derive(Clone, Debug, Serialize)]
pub struct Cleaning {
    /// Always `cleanup`: what tells it from a step.
    pub kind: &'static str,
    /// Which cleaning: it goes with the report.
    pub cleaning: String,
    /// The run whose lease ended.
    pub run_id: String,
}

/// How a cleaning ended, as its agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// Whose.
    pub node: NodeId,
    /// The life of the agent.
    pub instance: String,
    /// Which cleaning.
    pub cleaning: String,
    /// Why it failed; `None`: it ended well.
    pub failure: Option<String>,
}

/// Makes the node unavailable until it was cleaned after `run`, if its agent does that. Returns whether it does.
pub(super) fn begin(tx: &Tx, node: &NodeId, run: &RunId) -> Result<bool, Error> {
    let begun = tx
        .conn
        .prepare_cached(
            "INSERT INTO cleanings (node_id, cleaning, run_id, since)
             SELECT node_id, :cleaning, :run, :now FROM nodes WHERE node_id = :node AND cleans = 1",
        )?
        .execute(named_params! {
            ":cleaning": nonce(), ":run": run.as_str(), ":now": tx.now, ":node": node.as_str(),
        })?;
    if begun == 0 {
        return Ok(false);
    }
    failpoint!("clean.after_begin");
    tx.event("node.cleaning", About::run(run).on(node), &json!({}))?;
    Ok(true)
}

/// Returns what this life of the agent is to clean; nothing if it has failed at it.
pub(super) fn order(tx: &Tx, node: &NodeId, instance: &str) -> Result<Option<Cleaning>, Error> {
    let mut statement =
        tx.conn.prepare_cached("SELECT cleaning, run_id FROM cleanings WHERE node_id = ?1 AND failed_by IS NOT ?2")?;
    let order = statement.query_row((node.as_str(), instance), |row| {
        Ok(Cleaning { kind: "cleanup", cleaning: row.get(0)?, run_id: row.get(1)? })
    });
    Ok(order.optional()?)
}

/// Takes an agent's report on a cleaning.
///
/// # Errors
/// `not-found`, `static-node`, `stale-instance`, `unknown-instance`; `stale-lease` when it is not the cleaning that is
/// due: a repeated report whose answer was lost, or an operator was first.
pub fn report(tx: &Tx, report: &Cleaned) -> Result<(), Error> {
    let node = &report.node;
    super::claim::check_instance(tx, node, &report.instance)?;
    let is_due = tx
        .conn
        .prepare_cached("SELECT 1 FROM cleanings WHERE node_id = ?1 AND cleaning = ?2 AND failed_by IS NOT ?3")?
        .exists((node.as_str(), &report.cleaning, &report.instance))?;
    if !is_due {
        let detail = format!("this is not the cleaning that node {node} waits for");
        return Err(Error::Refused(Refusal::new("stale-lease", detail)));
    }
    let Some(failure) = &report.failure else { return end(tx, node, "node") };
    tx.conn
        .prepare_cached("UPDATE cleanings SET failure = ?2, failed_by = ?3, failed_at = ?4 WHERE node_id = ?1")?
        .execute((node.as_str(), failure, &report.instance, tx.now))?;
    failpoint!("clean.after_failure");
    log::warn!("node not cleaned node={node} cause={failure:?}");
    tx.touch(node);
    tx.event("node.drained", About::node(node), &json!({"by": "node", "mode": "graceful", "reason": failure}))
}

/// An operator says that the node is clean, or that the agent shall try again. Returns whether anything changed.
///
/// # Errors
/// `not-found`.
pub fn settle(tx: &Tx, node: &NodeId, is_clean: bool, by: &str) -> Result<bool, Error> {
    super::drain::must_exist(tx, node)?;
    let failed: Option<bool> = tx
        .conn
        .prepare_cached("SELECT failure IS NOT NULL FROM cleanings WHERE node_id = ?1")?
        .query_row([node.as_str()], |row| row.get(0))
        .optional()?;
    match failed {
        None => return Ok(false),
        Some(_) if is_clean => end(tx, node, by)?,
        Some(false) => return Ok(false),
        Some(true) => {
            tx.conn
                .prepare_cached(
                    "UPDATE cleanings SET failure = NULL, failed_by = NULL, failed_at = NULL WHERE node_id = ?1",
                )?
                .execute([node.as_str()])?;
            tx.touch(node);
            tx.tell(Topic::Node(node.clone()));
            tx.event("node.undrained", About::node(node), &json!({"by": by}))?;
        }
    }
    Ok(true)
}

/// The agent declares no cleanup any more: nothing is left to wait for.
pub(super) fn forget(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    let waits = tx.conn.prepare_cached("SELECT 1 FROM cleanings WHERE node_id = ?1")?.exists([node.as_str()])?;
    if waits { end(tx, node, "node") } else { Ok(()) }
}

fn end(tx: &Tx, node: &NodeId, by: &str) -> Result<(), Error> {
    tx.conn.prepare_cached("DELETE FROM cleanings WHERE node_id = ?1")?.execute([node.as_str()])?;
    failpoint!("clean.after_end");
    tx.touch(node);
    tx.owe_wake();
    tx.event("node.cleaned", About::node(node), &json!({"by": by}))
}
