//! Results: the report on a step, fenced by node, nonce and attempt (I8), kept with its answer, so that an equal
//! report gets the same answer for ever.

use rusqlite::{OptionalExtension as _, named_params};
use serde_json::{Value, json};

use super::error::Refusal;
use super::live::{Live, StepRow};
use super::progress;
use super::runs;
use super::tx::{About, Tx};
use super::{Error, not_found};
use crate::domain::contract::Kind;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::{RunState, Verdict, VerdictKind};
use crate::domain::step::{StepEvent, StepState};
use crate::failpoint;

/// A report as it came in.
#[derive(Clone, Debug)]
pub struct Report {
    /// The run.
    pub run: RunId,
    /// The step's number.
    pub seq: i64,
    /// The attempt it is about.
    pub attempt: i64,
    /// Who reports.
    pub reporter: Reporter,
    /// What happened.
    pub outcome: Outcome,
}

/// Who reports on a step.
#[derive(Clone, Debug)]
pub enum Reporter {
    /// A node, with the nonce of its lease.
    Node {
        /// The node.
        node: NodeId,
        /// The fencing token.
        nonce: String,
    },
    /// Whoever holds the run's nodes, by principal; an operator may report for anyone.
    Holder {
        /// The caller.
        principal: String,
        /// Whether the caller is an operator.
        operator: bool,
    },
}

/// How a step's work ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The command ended.
    Exit(i64),
    /// It could not be started, or ran over its time.
    Error(String),
    /// The agent gave the work up.
    Lost,
}

/// What a report led to. A stale one changes nothing but a note in the run's events, which is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// It counts, or an equal one did: the answer, without the next claim.
    Taken(Value),
    /// It does not count.
    Stale(Refusal),
}

/// Takes a report.
///
/// # Errors
/// [`Error::Refused`] with `not-found`; `invalid-request` for `lost` of a hold; `forbidden` for another's hold.
pub fn report(tx: &Tx, report: &Report) -> Result<Reported, Error> {
    let mut live = Live::load(tx, runs::get(tx, &report.run)?)?;
    let at = report.seq.checked_sub(1).and_then(|at| usize::try_from(at).ok()).filter(|at| *at < live.steps.len());
    let at = at.ok_or_else(|| not_found(format_args!("step {} in run {}", report.seq, report.run)))?;
    let is_hold = matches!(live.contract.steps[at].kind, Kind::Hold { .. });
    let by_kind = match (&live.contract.steps[at].kind, &report.reporter) {
        (Kind::Run(_), Reporter::Node { .. }) | (Kind::Hold { .. }, Reporter::Holder { .. }) => true,
        (Kind::Run(_), Reporter::Holder { .. }) => {
            let refusal = Refusal::new("invalid-request", "the result of a command needs `node_id` and `nonce`");
            return Err(Error::Refused(refusal.at("/node_id")));
        }
        _ => false,
    };
    if report.outcome == Outcome::Lost && is_hold {
        return Err(Error::Refused(Refusal::new("invalid-request", "a hold is not lost, it is let go").at("/lost")));
    }
    if let Reporter::Holder { principal, operator } = &report.reporter
        && by_kind
        && !operator
        && *principal != live.run.principal
    {
        return Err(Error::Refused(Refusal::new("forbidden", "only the run's principal or an operator holds it")));
    }
    let canonical = canonical(report);
    if by_kind && let Some(answer) = kept(tx, report, &canonical)? {
        return Ok(Reported::Taken(answer));
    }
    // Asked only now: a node that was removed since has its reports answered as before.
    if let Reporter::Node { node, .. } = &report.reporter
        && tx.fleet()?.find(node).is_none()
    {
        return Err(not_found(format_args!("node {node}")));
    }
    let step = &live.steps[at];
    let current = by_kind
        && live.run.state == RunState::Running
        && step.state == StepState::Claimed
        && step.attempt == report.attempt
        && holds(tx, report, step)?;
    if !current {
        return stale(tx, report, step);
    }
    apply(tx, &mut live, at, &report.outcome)?;
    let state = live.steps[at].state.as_str();
    let answer = json!({
        "run_id": report.run.as_str(), "seq": report.seq, "attempt": report.attempt, "state": state, "claim": null,
    });
    tx.conn
        .prepare_cached(
            "UPDATE attempts SET report = :report, answer = :answer, ended_at = coalesce(ended_at, :now)
             WHERE run_id = :run AND seq = :seq AND attempt = :attempt",
        )?
        .execute(named_params! {
            ":report": canonical, ":answer": answer.to_string(), ":now": tx.now, ":run": report.run.as_str(),
            ":seq": report.seq, ":attempt": report.attempt,
        })?;
    failpoint!("result.after_report");
    Ok(Reported::Taken(answer))
}

fn apply(tx: &Tx, live: &mut Live, at: usize, outcome: &Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Exit(0) => progress::finish(tx, live, at, &json!({"exit_code": 0})),
        Outcome::Exit(code) => {
            let on = on_node(live, at);
            progress::fail(tx, live, at, &json!({"exit_code": code}), &format!("ended with exit code {code}{on}"))
        }
        Outcome::Error(error) => {
            let on = on_node(live, at);
            progress::fail(tx, live, at, &json!({"error": error}), &format!("failed{on}: {error}"))
        }
        Outcome::Lost => {
            let node = live.steps[at].node_id.as_ref().map(|node| node.as_str().to_owned());
            let on = on_node(live, at);
            let verdict = Verdict {
                kind: VerdictKind::NodeLost,
                detail: format!("the agent gave step `{}` up{on}", live.contract.steps[at].id),
                step: Some(live.contract.steps[at].id.clone()),
                node,
            };
            runs::end(tx, &live.run, &verdict)?;
            live.steps[at].state = live.steps[at].state.next(StepEvent::Cancel)?;
            Ok(())
        }
    }
}

fn on_node(live: &Live, at: usize) -> String {
    live.steps[at].node_id.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default()
}

/// Says whether the reporter holds the step now: the node's lease with this nonce, for this run (I8).
fn holds(tx: &Tx, report: &Report, step: &StepRow) -> Result<bool, Error> {
    let Reporter::Node { node, nonce } = &report.reporter else { return Ok(true) };
    let mut statement =
        tx.conn.prepare_cached("SELECT 1 FROM leases WHERE node_id = ?1 AND run_id = ?2 AND nonce = ?3")?;
    Ok(step.node_id.as_ref() == Some(node) && statement.exists((node.as_str(), report.run.as_str(), nonce))?)
}

/// Returns the answer that an equal report on this attempt was given.
fn kept(tx: &Tx, report: &Report, canonical: &str) -> Result<Option<Value>, Error> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT answer FROM attempts WHERE run_id = ?1 AND seq = ?2 AND attempt = ?3 AND report = ?4",
    )?;
    let key = (report.run.as_str(), report.seq, report.attempt, canonical);
    let answer: Option<String> = statement.query_row(key, |row| row.get(0)).optional()?;
    Ok(answer.map(|text| serde_json::from_str(&text)).transpose()?)
}

/// Returns what two reports must have in common to be equal.
fn canonical(report: &Report) -> String {
    let outcome = match &report.outcome {
        Outcome::Exit(code) => json!({"exit_code": code}),
        Outcome::Error(error) => json!({"error": error}),
        Outcome::Lost => json!({"lost": true}),
    };
    match &report.reporter {
        Reporter::Node { node, nonce } => json!({"node_id": node.as_str(), "nonce": nonce, "outcome": outcome}),
        // Whoever holds may report again after a new token: the run's holder is one.
        Reporter::Holder { .. } => json!({"outcome": outcome}),
    }
    .to_string()
}

/// Notes a report that does not count.
fn stale(tx: &Tx, report: &Report, step: &StepRow) -> Result<Reported, Error> {
    let who = match &report.reporter {
        Reporter::Node { node, .. } => node.as_str(),
        Reporter::Holder { principal, .. } => principal,
    };
    let outcome: Value = serde_json::from_str(&canonical(report)).map(|mut v: Value| v["outcome"].take())?;
    let data = json!({"by": who, "attempt": report.attempt, "report": outcome});
    tx.event("step.late-report", About::step(&report.run, report.seq), &data)?;
    tx.log(|| format!("late report run={} step={} by={who:?} attempt={}", report.run, report.seq, report.attempt));
    let detail = format!(
        "step {} of run {} is {} in attempt {}, and not in the hands of who reports attempt {} of it",
        report.seq, report.run, step.state, step.attempt, report.attempt
    );
    Ok(Reported::Stale(Refusal::new("stale-lease", detail)))
}
