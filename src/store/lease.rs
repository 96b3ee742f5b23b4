//! Leases: granted, renewed, ended. Nothing else writes the table.
//!
//! - `grant` inserts; the primary key on the node is I1, and a collision undoes whatever wanted the node.
//! - `renew_node`, `renew_statics`, `protect` move `not_after`, never back.
//! - `end` deletes, closes the history row, and owes the queue a wake (I6), or makes the node one to be cleaned. A
//!   lease ends only here, so whoever frees a node can forget neither.

use rusqlite::OptionalExtension as _;
use serde_json::json;

use super::error::is_collision;
use super::hub::Topic;
use super::runs::RunRow;
use super::tx::{About, Tx};
use super::{Error, clean, nonce};
use crate::domain::ids::{NodeId, RunId};
use crate::failpoint;

/// The node that could not be leased because another run has it (I1).
#[derive(Debug)]
pub(super) struct Taken;

/// Grants `node` to `run` for one lifetime.
///
/// # Errors
/// The inner [`Taken`] when the primary key collides; the caller undoes its savepoint.
pub(super) fn grant(tx: &Tx, run: &RunRow, node: &NodeId) -> Result<Result<(), Taken>, Error> {
    if tx.settings.lease_ttl_ms <= 0 {
        return Err(Error::Broken("lease.ttl_seconds is 0: no endless lease is granted by accident".into()));
    }
    let inserted = tx
        .conn
        .prepare_cached(
            "INSERT INTO leases (node_id, run_id, nonce, granted_at, not_after)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((node.as_str(), run.run_id.as_str(), nonce(), tx.now, tx.after(tx.settings.lease_ttl_ms)));
    match inserted {
        Err(error) if is_collision(&error) => return Ok(Err(Taken)),
        other => other?,
    };
    tx.conn
        .prepare_cached(
            r#"INSERT INTO lease_history (node_id, run_id, arrival, principal, work, "from")
               SELECT ?2, run_id, arrival, principal, work, ?3 FROM runs WHERE arrival = ?1"#,
        )?
        .execute((run.arrival, node.as_str(), tx.now))?;
    failpoint!("lease.after_grant");
    tx.touch(node);
    tx.event("node.leased", About::run(&run.run_id).on(node), &json!({}))?;
    Ok(Ok(()))
}

/// Ends the lease of `run` on `node`. A step in its agent's hands makes the node settle until the agent must have
/// stopped.
pub(super) fn end(tx: &Tx, run: &RunId, node: &NodeId, why: &str) -> Result<(), Error> {
    let mut statement =
        tx.conn.prepare_cached("DELETE FROM leases WHERE node_id = ?1 AND run_id = ?2 RETURNING not_after")?;
    let Some(not_after) = statement.query_row([node.as_str(), run.as_str()], |row| row.get(0)).optional()? else {
        return Err(Error::Broken(format!("run {run} has no lease on node {node} to end")));
    };
    let in_hand: bool = tx
        .conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM steps WHERE node_id = ?1 AND state = 'CLAIMED')")?
        .query_row([node.as_str()], |row| row.get(0))?;
    if in_hand {
        settle(tx, node, not_after)?;
    }
    tx.conn
        .prepare_cached(
            r#"UPDATE lease_history SET "to" = ?3, why = ?4 WHERE run_id = ?1 AND node_id = ?2 AND "to" IS NULL"#,
        )?
        .execute((run.as_str(), node.as_str(), tx.now, why))?;
    failpoint!("lease.after_end");
    tx.touch(node);
    tx.tell(Topic::Node(node.clone()));
    tx.event("node.freed", About::run(run).on(node), &json!({"why": why}))?;
    // Nobody can have it before it is clean: then that is what wakes the queue.
    if !clean::begin(tx, node, run)? {
        tx.freed(node);
    }
    Ok(())
}

/// Makes `node` settle until `until`: its agent may still be at work under a lease that was good that long.
pub(super) fn settle(tx: &Tx, node: &NodeId, until: i64) -> Result<(), Error> {
    tx.conn
        .prepare_cached("UPDATE nodes SET settling_until = max(settling_until, ?2) WHERE node_id = ?1 AND ?2 > ?3")?
        .execute((node.as_str(), until, tx.now))?;
    tx.touch(node);
    Ok(())
}

/// Ends all leases of a run.
pub(super) fn end_all(tx: &Tx, run: &RunRow, why: &str) -> Result<(), Error> {
    for node in held(tx, &run.run_id)? {
        end(tx, &run.run_id, &node, why)?;
    }
    Ok(())
}

/// Returns the nodes that a run holds.
pub(super) fn held(tx: &Tx, run: &RunId) -> Result<Vec<NodeId>, Error> {
    let mut statement = tx.conn.prepare_cached("SELECT node_id FROM leases WHERE run_id = ?1 ORDER BY node_id")?;
    let nodes = statement.query_map([run.as_str()], |row| Ok(NodeId::from_stored(row.get::<_, String>(0)?)))?;
    Ok(nodes.collect::<Result<_, _>>()?)
}

/// Renews the lease on `node`, if there is one, by the sign its agent just gave; and those of the same run on static
/// nodes, which have nobody to speak for them.
pub(super) fn renew_node(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    let not_after = tx.after(tx.settings.lease_ttl_ms);
    let run: Option<String> = tx
        .conn
        .prepare_cached(
            "UPDATE leases SET not_after = max(not_after, ?2), grace = 0 WHERE node_id = ?1 RETURNING run_id",
        )?
        .query_row((node.as_str(), not_after), |row| row.get(0))
        .optional()?;
    if let Some(run) = run {
        tx.conn
            .prepare_cached(
                "UPDATE leases SET not_after = max(not_after, ?2), grace = 0
                 WHERE run_id = ?1 AND node_id <> ?3 AND node_id IN (SELECT node_id FROM nodes WHERE static = 1)",
            )?
            .execute((run, not_after, node.as_str()))?;
    }
    Ok(())
}

/// Gives each lease of a run a full lifetime.
pub(super) fn renew_run(tx: &Tx, run: &RunId) -> Result<(), Error> {
    tx.conn
        .prepare_cached("UPDATE leases SET not_after = max(not_after, ?2) WHERE run_id = ?1")?
        .execute((run.as_str(), tx.after(tx.settings.lease_ttl_ms)))?;
    Ok(())
}

/// Decides whether the reaper may end the run's leases. When it may again, each gets a full lifetime.
pub(super) fn protect(tx: &Tx, run: &RunId, protected: bool) -> Result<(), Error> {
    if protected {
        tx.conn
            .prepare_cached("UPDATE leases SET reapable = 0 WHERE run_id = ?1 AND reapable = 1")?
            .execute([run.as_str()])?;
    } else {
        tx.conn
            .prepare_cached(
                "UPDATE leases SET reapable = 1, not_after = max(not_after, ?2) WHERE run_id = ?1 AND reapable = 0",
            )?
            .execute((run.as_str(), tx.after(tx.settings.lease_ttl_ms)))?;
    }
    Ok(())
}
