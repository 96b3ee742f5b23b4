//! Submission: one write that matches, checks for repeats, and stores the run placed, queued or rejected.
//!
//! Keeps I3 (all nodes or none), I4 (a queued run holds nothing), I7 (what an earlier write freed goes to the queue
//! first). Steps are inserted by one routine for every path, so that `needs` is normalised alike.

use std::cmp::Reverse;
use std::sync::Arc;

use rusqlite::params;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::begin::assign;
use super::error::Refusal;
use super::fleet::Entry;
use super::hub::Topic;
use super::live::{Live, seq};
use super::progress;
use super::queue::Place;
use super::runs::{self, Assigned, RunRow};
use super::tx::{About, Tx};
use super::{Error, NEVER, history, lease};
use crate::clock::Ms;
use crate::domain::contract::{Contract, Kind, Step};
use crate::domain::ids::RunId;
use crate::domain::json::Json;
use crate::domain::matching::{self, Reject, Requirement};
use crate::domain::run::{RunState, VerdictKind};
use crate::failpoint;

/// A submission as it came in.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Who submits.
    pub principal: String,
    /// The checked contract.
    pub contract: Arc<Contract>,
    /// The canonical form of the body as received: what "same contract" compares, and what is stored.
    pub canonical: String,
    /// Of that, what it requires.
    pub requires: String,
    /// The shape of that.
    shape: i64,
    /// What its first events say of it. Made here, as is all that the writer need not do itself.
    about: Value,
    /// Whether only to say what would be.
    pub dry_run: bool,
}

impl Submission {
    /// Makes a submission of a body that was checked.
    pub fn new(principal: &str, contract: Contract, body: &Json, dry_run: bool) -> Self {
        let requires = match body {
            Json::Object(fields) => fields.get("requires").map(Json::canonical),
            _ => None,
        };
        Self {
            principal: principal.to_owned(),
            shape: shape(&contract.requires),
            about: json!({"name": contract.name, "work": contract.work, "by": principal}),
            contract: Arc::new(contract),
            canonical: body.canonical(),
            requires: requires.unwrap_or_else(|| "[]".to_owned()),
            dry_run,
        }
    }
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// A dry run would have these nodes.
    DryRun(Vec<Assigned>),
    /// The same contract is there already under this id.
    Existing(RunId),
    /// The run has its nodes.
    Placed(RunId),
    /// The run waits, at this position (counted from 1).
    Queued(RunId, i64),
    /// No known nodes can ever do it: the run is stored FAILED. A dry run has no id.
    Rejected(Option<RunId>, Reject),
}

/// Takes a submission.
///
/// # Errors
/// [`Error::Refused`] with `run-exists` or `queue-limit`: nothing is stored.
pub fn submit(tx: &Tx, submission: &Submission) -> Result<Submitted, Error> {
    let contract = &submission.contract;
    let fleet = tx.fleet()?;
    let known = fleet.known(tx.now);
    let ever = judge(tx, contract, &known);
    if submission.dry_run {
        return Ok(match ever {
            Ok(chosen) => Submitted::DryRun(assign(&contract.requires, &chosen, &known)),
            Err(reject) => Submitted::Rejected(None, reject),
        });
    }
    if let Some(id) = &contract.run_id
        && let Some(existing) = runs::find(tx, id)?
    {
        if existing.principal == submission.principal && existing.contract == submission.canonical {
            return Ok(Submitted::Existing(id.clone()));
        }
        let detail = format!("run {id} exists, and it is not this contract of yours");
        return Err(Error::Refused(Refusal::new("run-exists", detail).with("run_id", id.as_str()).at("/run_id")));
    }
    if let Some(id) = &contract.run_id
        && history::is_pruned(tx.conn, id)?
    {
        let detail = format!("run {id} has been, and is not kept any more (history.retention_days)");
        return Err(Error::Refused(Refusal::new("run-exists", detail).with("run_id", id.as_str()).at("/run_id")));
    }
    let id = contract.run_id.clone().unwrap_or_else(|| tx.memory.run_ids.next(tx.now));
    if let Err(reject) = ever {
        insert(tx, submission, &id, &New::Rejected(&reject))?;
        return Ok(Submitted::Rejected(Some(id), reject));
    }
    // From here on a node may be taken: what an earlier write freed belongs to the queue first.
    tx.before_taking()?;
    let available = fleet.available();
    let chosen = matching::fit(&contract.requires, available)
        .filter(|chosen| matching::width(chosen) <= tx.settings.lease_max_per_run);
    let assigned = chosen.map(|chosen| assign(&contract.requires, &chosen, available));
    drop(fleet);
    if let Some(assigned) = assigned {
        let placed = tx.attempt(|| {
            let arrival = insert(tx, submission, &id, &New::Placed(&assigned))?;
            tx.memory.contracts.borrow_mut().keep(&id, &submission.canonical, contract);
            let run = RunRow {
                run_id: id.clone(),
                arrival,
                priority: contract.priority,
                shape: submission.shape,
                state: RunState::Running,
                principal: submission.principal.clone(),
                contract: submission.canonical.clone(),
                assigned: assigned.clone(),
                holder_until: holder_until(tx, contract),
            };
            let mut live = Live::fresh(run, Arc::clone(contract));
            match progress::start(tx, &mut live)? {
                Ok(()) => Ok(()),
                Err(lease::Taken) => Err(Error::Refused(Refusal::new(COLLISION, "a lease's key is taken"))),
            }
        });
        match placed {
            Ok(()) => return Ok(Submitted::Placed(id)),
            Err(Error::Refused(refusal)) if refusal.code == COLLISION => {
                log::warn!("a node was leased after all: the run is queued run={id}");
                // The rows know better than what was remembered of them.
                tx.memory.fleet.borrow_mut().forget();
                // It was judged on a wrong picture: other nodes may be free for it.
                tx.owe_wake();
            }
            Err(error) => return Err(error),
        }
    }
    let most = tx.settings.queued_per_principal;
    if most > 0 && tx.queue()?.of(&submission.principal) >= most {
        let detail =
            format!("{most} runs of {} are waiting already (limits.queued_per_principal)", submission.principal);
        return Err(Error::Refused(Refusal::new("queue-limit", detail)));
    }
    insert(tx, submission, &id, &New::Queued)?;
    // Nobody of its priority has come later.
    let position = tx.queue()?.down_to(contract.priority);
    Ok(Submitted::Queued(id, position))
}

/// Marks, inside this module only, that placing was undone for a key collision.
const COLLISION: &str = "lease-collision";

/// Judges a contract on all known nodes: can it ever be done, and is it narrow enough?
fn judge(tx: &Tx, contract: &Contract, known: &[&Arc<Entry>]) -> Result<Vec<Vec<usize>>, Reject> {
    let chosen = matching::judge(&contract.requires, known)?;
    let width = matching::width(&chosen);
    let most = tx.settings.lease_max_per_run;
    if width > most { Err(matching::too_wide(width, most)) } else { Ok(chosen) }
}

/// How a run comes into being.
enum New<'a> {
    Placed(&'a [Assigned]),
    Queued,
    Rejected(&'a Reject),
}

/// Inserts the run and its steps; returns its arrival. Queued differs from placed in what `start` does afterwards: no
/// lease, no acquisition, no question, no hold (I4).
fn insert(tx: &Tx, submission: &Submission, id: &RunId, new: &New) -> Result<i64, Error> {
    let contract = &submission.contract;
    let (state, assigned, reject) = match new {
        New::Placed(assigned) => (RunState::Running, Some(serde_json::to_string(assigned)?), None),
        New::Queued => (RunState::Queued, None, None),
        New::Rejected(reject) => (RunState::Failed, None, Some(reject)),
    };
    let verdict = reject
        .map(|reject| runs::verdict_json(&runs::verdict(VerdictKind::Rejected, reject.detail.clone())).to_string());
    let limit = contract.limit_ms.unwrap_or(tx.settings.run_limit_ms);
    let (arrival, shape) = (tx.next_arrival()?, submission.shape);
    tx.conn
        .prepare_cached(
            "INSERT INTO runs (arrival, run_id, state, principal, name, work, priority, contract, shape, assigned, reject,
                 verdict, created_at, started_at, ended_at, queue_until, ends_by, holder_until)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
        )?
        .execute(params![
            arrival,
            id.as_str(),
            state.as_str(),
            submission.principal,
            contract.name,
            contract.work,
            contract.priority,
            submission.canonical,
            shape,
            assigned,
            reject.map(serde_json::to_string).transpose()?,
            verdict,
            tx.now,
            (state == RunState::Running).then_some(tx.now),
            state.is_terminal().then_some(tx.now),
            contract.queue_timeout_ms.map_or(NEVER, |ms| tx.after(ms)),
            if state == RunState::Running { tx.after(limit) } else { NEVER },
            holder_until(tx, contract),
        ])?;
    failpoint!("submit.after_run");
    insert_steps(tx, contract, id, state)?;
    failpoint!("submit.after_steps");
    tx.event("run.submitted", About::run(id), &submission.about)?;
    match new {
        New::Placed(_) => {}
        New::Queued => {
            let place = Place { priority: Reverse(contract.priority), arrival };
            tx.memory.queue.borrow_mut().join(&submission.principal, shape, &contract.requires, place)?;
            tx.memory.contracts.borrow_mut().keep_waiting(id, &submission.canonical, contract);
            tx.event("run.queued", About::run(id), &submission.about)?;
            failpoint!("queue.after_rows");
            tx.log(|| format!("run queued run={id} principal={}", submission.principal));
        }
        New::Rejected(reject) => {
            let verdict = runs::verdict(VerdictKind::Rejected, reject.detail.clone());
            let data = json!({"state": state.as_str(), "verdict": runs::verdict_json(&verdict)});
            tx.event("run.ended", About::run(id), &data)?;
            tx.tell(Topic::Records);
            failpoint!("reject.after_rows");
            tx.log(|| format!("run rejected run={id} code={} detail={:?}", reject.code, reject.detail));
        }
    }
    tx.tell(Topic::Run(id.clone()));
    Ok(arrival)
}

/// Returns until when a new run waits for a sign of whoever attends it.
fn holder_until(tx: &Tx, contract: &Contract) -> Ms {
    if contract.attended { tx.after(tx.settings.hold_ttl_ms) } else { NEVER }
}

/// Inserts a run's steps, `needs` as ids and normalised: the one routine for every path.
fn insert_steps(tx: &Tx, contract: &Contract, id: &RunId, state: RunState) -> Result<(), Error> {
    // A rejected run's steps are stored CANCELLED: nothing of it will ever begin.
    let (step_state, ended) = if state.is_terminal() { ("CANCELLED", Some(tx.now)) } else { ("PENDING", None) };
    let mut statement = tx.conn.prepare_cached(
        "INSERT INTO steps (run_id, seq, id, kind, uses, needs, state, ended_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for (at, step) in contract.steps.iter().enumerate() {
        let needs = serde_json::to_string(&needs(contract, step))?;
        statement.execute((id.as_str(), seq(at), &step.id, step.kind.name(), role(step), needs, step_state, ended))?;
    }
    Ok(())
}

/// Returns the ids of the steps that `step` waits for.
pub(super) fn needs<'a>(contract: &'a Contract, step: &Step) -> Vec<&'a str> {
    step.needs.iter().map(|&need| contract.steps[need].id.as_str()).collect()
}

/// Returns the role that a command runs on.
pub(super) fn role(step: &Step) -> Option<String> {
    match &step.kind {
        Kind::Run(command) => Some(command.uses.to_string()),
        Kind::Ask(_) | Kind::Acquire(_) | Kind::Hold { .. } => None,
    }
}

/// Returns the shape of a requirement: runs of one shape fit, or do not fit, the same nodes. Role names do not
/// matter to that; whether a role needs an agent does.
pub(super) fn shape(requirement: &Requirement) -> i64 {
    let roles: Vec<_> =
        requirement.roles.iter().map(|role| (&role.capability, &role.attrs, role.count, role.agent)).collect();
    let text = serde_json::to_vec(&(requirement.distinct_nodes, roles)).expect("texts and numbers are JSON");
    let hash = Sha256::digest(&text);
    i64::from_be_bytes(hash[..8].try_into().expect("a SHA-256 has 32 bytes"))
}
