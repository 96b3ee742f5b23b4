//! Rows of runs: how they are read, and the two functions that change a run's state.
//!
//! `move_run` is the only one that writes `runs.state` after the insert; `end` is the only way out of QUEUED and
//! RUNNING to a terminal state, and takes the run's leases and unfinished steps with it (I2).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{OptionalExtension as _, ToSql, named_params};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::hub::Topic;
use super::queue::Place;
use super::tx::{About, Tx};
use super::{Error, history, lease, request};
use crate::clock::Ms;
use crate::domain::contract::Contract;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::json;
use crate::domain::run::{RunEvent, RunState, Verdict, VerdictKind};
use crate::failpoint;

/// A role with the nodes it was given, as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assigned {
    /// The role.
    #[serde(rename = "as")]
    pub role: String,
    /// Its nodes, in order: the first is `role.0`.
    pub nodes: Vec<AssignedNode>,
}

/// A node as it was when it was assigned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssignedNode {
    /// The node.
    pub node_id: String,
    /// What people call it.
    pub label: Option<String>,
    /// The attributes of the capability it serves with.
    pub attrs: std::collections::BTreeMap<String, String>,
}

/// What a write needs to know of a run.
#[derive(Clone, Debug)]
pub(super) struct RunRow {
    pub(super) run_id: RunId,
    pub(super) arrival: i64,
    pub(super) priority: i64,
    pub(super) shape: i64,
    pub(super) state: RunState,
    pub(super) principal: String,
    pub(super) contract: String,
    pub(super) assigned: Vec<Assigned>,
    pub(super) holder_until: Ms,
}

impl RunRow {
    /// Where it waits, or waited.
    fn place(&self) -> Place {
        Place { priority: Reverse(self.priority), arrival: self.arrival }
    }
}

macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT run_id, arrival, priority, shape, state, principal, contract, assigned, holder_until FROM runs WHERE ",
            $which
        )
    };
}

/// Reads a run, if it exists.
pub(super) fn find(tx: &Tx, run: &RunId) -> Result<Option<RunRow>, Error> {
    read(tx, select!("run_id = ?1"), run.as_str())
}

/// Reads the run that arrived at this number.
pub(super) fn at(tx: &Tx, arrival: i64) -> Result<RunRow, Error> {
    let row = read(tx, select!("arrival = ?1"), arrival)?;
    row.ok_or_else(|| Error::Broken(format!("there is no run number {arrival}")))
}

fn read(tx: &Tx, query: &str, key: impl ToSql) -> Result<Option<RunRow>, Error> {
    let mut statement = tx.conn.prepare_cached(query)?;
    let mut rows = statement.query([key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let assigned: Option<String> = row.get(7)?;
    Ok(Some(RunRow {
        run_id: RunId::from_stored(row.get::<_, String>(0)?),
        arrival: row.get(1)?,
        priority: row.get(2)?,
        shape: row.get(3)?,
        state: parse_state(&row.get::<_, String>(4)?)?,
        principal: row.get(5)?,
        contract: row.get(6)?,
        assigned: assigned.map_or(Ok(Vec::new()), |text| serde_json::from_str(&text))?,
        holder_until: row.get(8)?,
    }))
}

/// Reads a run that must exist.
pub(super) fn get(tx: &Tx, run: &RunId) -> Result<RunRow, Error> {
    find(tx, run)?.ok_or_else(|| history::missing(tx.conn, run))
}

/// Parses a stored contract. It was checked when it came in, so whatever is wrong is the row's fault.
pub(super) fn contract(run: &RunId, text: &str) -> Result<Contract, Error> {
    json::parse(text.as_bytes())
        .and_then(|body| Contract::parse(&body))
        .map_err(|invalid| Error::Broken(format!("the stored contract of run {run}: {invalid}")))
}

/// Contracts that were parsed lately, by run: each event of a run needs its contract, which never changes.
#[derive(Default)]
pub(super) struct Contracts {
    known: HashMap<RunId, (String, Arc<Contract>)>,
    bytes: usize,
}

impl Contracts {
    /// How much text is kept: more than the runs at work in a lab have, and little for the daemon.
    const BYTES: usize = 1 << 20;

    /// Returns the contract that `text` is. It is compared with what is known, so nothing has to be forgotten when a
    /// write is undone.
    pub(super) fn get(&mut self, run: &RunId, text: &str) -> Result<Arc<Contract>, Error> {
        if let Some((known, contract)) = self.known.get(run)
            && known == text
        {
            return Ok(Arc::clone(contract));
        }
        let contract = Arc::new(contract(run, text)?);
        self.keep(run, text, &contract);
        Ok(contract)
    }

    /// Keeps the contract of a run that waits, for its promotion. A long queue leaves room for what runs.
    pub(super) fn keep_waiting(&mut self, run: &RunId, text: &str, contract: &Arc<Contract>) {
        if self.bytes + text.len() <= Self::BYTES / 2 {
            self.keep(run, text, contract);
        }
    }

    /// Keeps a contract that was parsed from `text` already.
    pub(super) fn keep(&mut self, run: &RunId, text: &str, contract: &Arc<Contract>) {
        if self.bytes + text.len() > Self::BYTES {
            *self = Self::default();
        }
        self.bytes += text.len();
        self.known.insert(run.clone(), (text.to_owned(), Arc::clone(contract)));
    }
}

pub(super) fn parse_state(word: &str) -> Result<RunState, Error> {
    RunState::parse(word).ok_or_else(|| Error::Broken(format!("a run's state is {word:?}")))
}

/// Moves a run by `event`. Returns `false` when it is not in the state that `run` says any more: someone else moved it.
///
/// # Errors
/// An illegal move is an error, not an update.
fn move_run(tx: &Tx, run: &RunRow, event: RunEvent, verdict: Option<&Verdict>) -> Result<bool, Error> {
    let to = run.state.next(event)?;
    let verdict = verdict.map(|verdict| verdict_json(verdict).to_string());
    let rows = tx
        .conn
        .prepare_cached(
            "UPDATE runs SET state = :to, verdict = :verdict, ended_at = CASE WHEN :verdict IS NULL THEN NULL ELSE :now END
             WHERE arrival = :arrival AND state = :from",
        )?
        .execute(named_params! {
            ":to": to.as_str(), ":verdict": verdict, ":now": tx.now, ":arrival": run.arrival,
            ":from": run.state.as_str(),
        })?;
    if rows == 1 && run.state == RunState::Queued {
        leave_queue(tx, run);
    }
    Ok(rows == 1)
}

/// Moves a QUEUED run to RUNNING with what `run` says that it is assigned. Returns `false` when it is not QUEUED any more.
pub(super) fn promote(tx: &Tx, run: &RunRow, limit_ms: i64) -> Result<bool, Error> {
    // The state is guarded by the same statement that writes what goes with it.
    RunState::Queued.next(RunEvent::Promote)?;
    let rows = tx
        .conn
        .prepare_cached(
            "UPDATE runs SET state = 'RUNNING', assigned = ?2, started_at = ?3, ends_by = ?4
             WHERE arrival = ?1 AND state = 'QUEUED'",
        )?
        .execute((run.arrival, serde_json::to_string(&run.assigned)?, tx.now, tx.after(limit_ms)))?;
    if rows == 1 {
        leave_queue(tx, run);
    }
    Ok(rows == 1)
}

/// Notes that a run waits no longer.
fn leave_queue(tx: &Tx, run: &RunRow) {
    tx.memory.queue.borrow_mut().leave(&run.principal, run.shape, run.place());
}

/// Stores what a run is assigned: acquired roles are added, released ones stay.
pub(super) fn store_assigned(tx: &Tx, run: &RunId, assigned: &[Assigned]) -> Result<(), Error> {
    tx.conn
        .prepare_cached("UPDATE runs SET assigned = ?2 WHERE run_id = ?1 AND state = 'RUNNING'")?
        .execute((run.as_str(), serde_json::to_string(assigned)?))?;
    Ok(())
}

/// Ends a run: its state and verdict, its unfinished steps, its leases (which wakes the queue).
///
/// # Errors
/// [`Error::Broken`] when it is not in the state that `run` says: within one write nobody else can have moved it.
pub(super) fn end(tx: &Tx, run: &RunRow, verdict: &Verdict) -> Result<(), Error> {
    let id = &run.run_id;
    let event = verdict.kind.event(run.state);
    if !move_run(tx, run, event, Some(verdict))? {
        return Err(Error::Broken(format!("run {id} is not {} any more", run.state)));
    }
    failpoint!("run.after_state");
    // Which nodes have a step in hand is asked before the steps are ended: they have to settle.
    lease::end_all(tx, run, verdict.kind.as_str())?;
    failpoint!("run.after_leases");
    cancel_steps(tx, id)?;
    failpoint!("run.after_steps");
    request::release(tx, id)?;
    let to = run.state.next(event)?;
    if verdict.kind == VerdictKind::NodeLost {
        let node = verdict.node.as_deref().map(NodeId::from_stored);
        let about = node.as_ref().map_or(About::run(id), |node| About::run(id).on(node));
        tx.event("node.lost", about, &json!({"detail": verdict.detail}))?;
    }
    tx.event("run.ended", About::run(id), &json!({"state": to.as_str(), "verdict": verdict_json(verdict)}))?;
    tx.tell(Topic::Log(id.clone()));
    tx.tell(Topic::Records);
    tx.log(|| format!("run ended run={id} state={to} verdict={} detail={:?}", verdict.kind.as_str(), verdict.detail));
    Ok(())
}

/// Ends the steps of a run that are not over.
fn cancel_steps(tx: &Tx, run: &RunId) -> Result<(), Error> {
    let unfinished = "run_id = :run AND (state = 'PENDING' OR state = 'CLAIMED' OR state = 'ASKED')";
    let steps: Vec<(i64, Option<String>, String, i64)> = {
        let mut statement = tx
            .conn
            .prepare_cached(&format!("SELECT seq, node_id, id, attempt FROM steps WHERE {unfinished} ORDER BY seq"))?;
        let rows = statement.query_map(named_params! { ":run": run.as_str() }, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
        rows.collect::<Result<_, _>>()?
    };
    if steps.is_empty() {
        return Ok(());
    }
    tx.conn
        .prepare_cached(&format!(
            "UPDATE attempts SET ended_at = :now WHERE run_id = :run AND ended_at IS NULL
             AND seq IN (SELECT seq FROM steps WHERE {unfinished})"
        ))?
        .execute(named_params! { ":run": run.as_str(), ":now": tx.now })?;
    tx.conn
        .prepare_cached(&format!(
            "UPDATE steps SET state = 'CANCELLED', ready = 0, ended_at = :now, deadline = 9007199254740991
             WHERE {unfinished}"
        ))?
        .execute(named_params! { ":run": run.as_str(), ":now": tx.now })?;
    for (seq, node, id, attempt) in steps {
        let node = node.map(NodeId::from_stored);
        let about = About { run: Some(run), seq: Some(seq), node: node.as_ref() };
        tx.event("step.cancelled", about, &json!({"id": id, "attempt": attempt}))?;
    }
    Ok(())
}

/// Returns a verdict as it is stored and shown.
pub(super) fn verdict_json(verdict: &Verdict) -> Value {
    json!({
        "kind": verdict.kind.as_str(), "detail": verdict.detail, "step": verdict.step, "node": verdict.node,
    })
}

/// Makes a verdict that no step and no node brought about.
pub(super) fn verdict(kind: VerdictKind, detail: impl Into<String>) -> Verdict {
    Verdict { kind, detail: detail.into(), step: None, node: None }
}

/// Returns the nodes that serve a role, in order.
pub(super) fn nodes_of<'a>(assigned: &'a [Assigned], role: &str) -> &'a [AssignedNode] {
    assigned.iter().find(|own| own.role == role).map_or(&[], |own| &own.nodes)
}

/// Returns the run that holds `node`, if one does.
pub(super) fn holding(tx: &Tx, node: &NodeId) -> Result<Option<RunId>, Error> {
    let mut statement = tx.conn.prepare_cached("SELECT run_id FROM leases WHERE node_id = ?1")?;
    Ok(statement.query_row([node.as_str()], |row| row.get(0)).optional()?.map(|run: String| RunId::from_stored(run)))
}
