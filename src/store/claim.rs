//! Claims: a node takes the next ready step of the run that holds it.

use rusqlite::OptionalExtension as _;
use serde::Serialize;

use super::advert::ttl_seconds;
use super::clean::{self, Cleaning};
use super::error::Refusal;
use super::live::{Live, seq};
use super::runs::Assigned;
use super::tx::Tx;
use super::{Error, not_found};
use super::{begin, progress};
use crate::clock::rfc3339;
use crate::domain::contract::Kind;
use crate::domain::ids::{NodeId, RunId};

/// A claim as it came in.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who claims.
    pub node: NodeId,
    /// Which life of its agent.
    pub instance: String,
    /// What it works on; then nothing is claimed, and the call only waits for that to be taken away.
    pub working: Option<Working>,
}

/// A step that an agent has in hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Working {
    /// The run.
    pub run: RunId,
    /// The step's number.
    pub seq: i64,
    /// The attempt.
    pub attempt: i64,
}

/// A step that was claimed, as the agent is told.
#[derive(Clone, Debug, Serialize)]
pub struct Claimed {
    /// The run.
    pub run_id: String,
    /// The step's number.
    pub seq: i64,
    /// The step's id.
    pub id: String,
    /// Always `run`.
    pub kind: &'static str,
    /// The attempt: never begun twice (I11).
    pub attempt: i64,
    /// The role it runs on.
    pub uses: String,
    /// The argument vector.
    pub run: Vec<String>,
    /// Plain values for its environment.
    pub env: std::collections::BTreeMap<String, String>,
    /// Names to pass through from the agent's own environment.
    pub pass_env: Vec<String>,
    /// From the claim on; null: until the run's limit.
    pub timeout_seconds: Option<f64>,
    /// Relative paths to keep.
    pub artifacts: Vec<String>,
    /// All roles of the run with their nodes.
    pub assigned: Vec<Assigned>,
    /// What the node's work stands on.
    pub lease: ClaimedLease,
}

/// The lease under which a step was claimed.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimedLease {
    /// The fencing token.
    pub nonce: String,
    /// When it may be given away.
    pub not_after: String,
    /// What is left, rounded down.
    pub ttl_seconds: i64,
}

/// What a claim gives.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Work {
    /// A step.
    Step(Box<Claimed>),
    /// The node is to be cleaned after its last user.
    Cleanup(Cleaning),
}

/// Claims what a node is to do next, a step or its cleaning; `None`: there is nothing, or the agent is at work and still
/// has its step.
///
/// The same instance that holds a step and says it is not working gets the same step again: its answer was lost.
///
/// # Errors
/// [`Error::Refused`]: `not-found`, `static-node`, `stale-instance`, `unknown-instance`; `stale-lease` when the step
/// it works on is not its own any more.
pub fn claim(tx: &Tx, claim: &Claim) -> Result<Option<Work>, Error> {
    let node = &claim.node;
    check_instance(tx, node, &claim.instance)?;
    let in_hand = in_hand(tx, node, &claim.instance)?;
    if let Some(working) = &claim.working {
        return match in_hand {
            Some(own) if own == *working => Ok(None),
            _ => Err(Error::Refused(Refusal::new(
                "stale-lease",
                format!("step {} of run {} is not in the hands of node {node} any more", working.seq, working.run),
            ))),
        };
    }
    let (is_settling, is_cleaning) = {
        let fleet = tx.fleet()?;
        fleet.find(node).map_or((false, false), |own| (own.settling_until > 0, own.is_cleaning))
    };
    if is_settling {
        settled(tx, node)?;
    }
    if let Some(own) = in_hand {
        let live = Live::running(tx, &own.run)?;
        let live =
            live.ok_or_else(|| Error::Broken(format!("run {} has a step in hand and is not RUNNING", own.run)))?;
        let lease = lease_of(tx, node, &own.run)?;
        return told(&live, index(own.seq), lease).map(Some);
    }
    // It does not work: what it had in hand is gone. Nothing new comes before the node is clean.
    if is_cleaning && let Some(order) = clean::order(tx, node, &claim.instance)? {
        return Ok(Some(Work::Cleanup(order)));
    }
    let mut statement = tx.conn.prepare_cached(
        "SELECT run_id, seq FROM steps WHERE node_id = ?1 AND state = 'PENDING' AND ready = 1 ORDER BY seq LIMIT 1",
    )?;
    let next = statement
        .query_row([node.as_str()], |row| Ok((RunId::from_stored(row.get::<_, String>(0)?), row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((run, next)) = next else { return Ok(None) };
    let mut live = Live::running(tx, &run)?
        .ok_or_else(|| Error::Broken(format!("run {run} has a ready step and is not RUNNING")))?;
    if progress::is_stopping(tx, &live.run)? {
        return Ok(None);
    }
    let lease = lease_of(tx, node, &run)?;
    begin::claim(tx, &mut live, index(next), &claim.instance, &lease.nonce)?;
    told(&live, index(next), lease).map(Some)
}

/// Claims for a node that has just reported: a claim that is refused is no error of the report.
///
/// # Errors
/// Everything but a refusal.
pub fn claim_if_allowed(tx: &Tx, next: &Claim) -> Result<Option<Work>, Error> {
    match tx.attempt(|| claim(tx, next)) {
        Err(Error::Refused(_)) => Ok(None),
        other => other,
    }
}

fn index(seq: i64) -> usize {
    usize::try_from(seq - 1).expect("stored numbers count from 1")
}

pub(super) fn check_instance(tx: &Tx, node: &NodeId, instance: &str) -> Result<(), Error> {
    let fleet = tx.fleet()?;
    let (code, detail) = match fleet.find(node).map(|own| own.instance.as_deref()) {
        None => return Err(not_found(format_args!("node {node}"))),
        Some(None) => ("static-node", format!("node {node} is static: no agent claims for it")),
        Some(Some(current)) if current == instance => return Ok(()),
        Some(Some(_)) => {
            let mut statement =
                tx.conn.prepare_cached("SELECT 1 FROM replaced_instances WHERE node_id = ?1 AND instance = ?2")?;
            if statement.exists((node.as_str(), instance))? {
                ("stale-instance", format!("another agent has taken node {node} over"))
            } else {
                ("unknown-instance", format!("this instance has not advertised node {node}"))
            }
        }
    };
    Err(Error::Refused(Refusal::new(code, detail)))
}

fn in_hand(tx: &Tx, node: &NodeId, instance: &str) -> Result<Option<Working>, Error> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT run_id, seq, attempt FROM steps
         WHERE node_id = ?1 AND state = 'CLAIMED' AND kind = 'run' AND instance = ?2",
    )?;
    let own = statement.query_row((node.as_str(), instance), |row| {
        Ok(Working { run: RunId::from_stored(row.get::<_, String>(0)?), seq: row.get(1)?, attempt: row.get(2)? })
    });
    Ok(own.optional()?)
}

/// The agent claims and does not work: whatever it had in hand before has stopped.
fn settled(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    tx.conn.prepare_cached("UPDATE nodes SET settling_until = 0 WHERE node_id = ?1")?.execute([node.as_str()])?;
    tx.touch(node);
    progress::resume(tx, node)
}

fn lease_of(tx: &Tx, node: &NodeId, run: &RunId) -> Result<ClaimedLease, Error> {
    let mut statement =
        tx.conn.prepare_cached("SELECT nonce, not_after FROM leases WHERE node_id = ?1 AND run_id = ?2")?;
    let lease = statement.query_row((node.as_str(), run.as_str()), |row| {
        let not_after = row.get(1)?;
        Ok(ClaimedLease {
            nonce: row.get(0)?,
            not_after: rfc3339(not_after, tx.offset),
            ttl_seconds: ttl_seconds(not_after, tx.now),
        })
    });
    lease.optional()?.ok_or_else(|| Error::Broken(format!("run {run} has a step on node {node} and no lease on it")))
}

fn told(live: &Live, at: usize, lease: ClaimedLease) -> Result<Work, Error> {
    let own = &live.contract.steps[at];
    let Kind::Run(command) = &own.kind else {
        return Err(Error::Broken(format!("step {} of run {} is not a command", seq(at), live.run.run_id)));
    };
    #[allow(clippy::cast_precision_loss, reason = "a time-out is far below 2^53 ms")]
    let timeout_seconds = command.timeout_ms.map(|ms| ms as f64 / 1000.0);
    Ok(Work::Step(Box::new(Claimed {
        run_id: live.run.run_id.as_str().to_owned(),
        seq: seq(at),
        id: own.id.clone(),
        kind: own.kind.name(),
        attempt: live.steps[at].attempt,
        uses: command.uses.to_string(),
        run: command.argv.clone(),
        env: command.env.clone(),
        pass_env: command.pass_env.clone(),
        timeout_seconds,
        artifacts: command.artifacts.clone(),
        assigned: live.run.assigned.clone(),
        lease,
    })))
}
