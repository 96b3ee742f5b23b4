//! How a running run moves on: what begins when something ended, what is given back, when the run is over.
//!
//! Every write that changes a step of a running run loads a [`Live`], moves steps through `Live::step`, and ends with
//! [`advance`]. The decisions are `domain::plan`'s; here they become rows.
//!
//! Step moves and where they are made: claim, open -> CLAIMED, raise -> ASKED, acquire -> DONE (`begin`); skip
//! (`advance`); finish, fail, roll back (`finish`, `fail`); cancel (`runs::end`).

use serde_json::{Value, json};

use super::begin::{acquire_node, offer, open_hold, place_steps, raise};
use super::hub::Topic;
use super::live::{Live, Set, StepRow};
use super::runs::{self, RunRow};
use super::tx::{About, Tx};
use super::{Error, NEVER, lease};
use crate::clock::Ms;
use crate::domain::contract::Kind;
use crate::domain::ids::NodeId;
use crate::domain::plan;
use crate::domain::run::{Verdict, VerdictKind};
use crate::domain::step::{StepEvent, StepState};
use crate::failpoint;

/// Grants a run its nodes and begins it: the one way from nothing held to RUNNING, for a submission that fits and for
/// a promotion alike. The run's row is RUNNING with its `assigned` already. (I3: within the caller's savepoint.)
///
/// # Errors
/// The inner [`lease::Taken`]: another run has one of the nodes; the caller undoes its savepoint.
pub(super) fn start(tx: &Tx, live: &mut Live) -> Result<Result<(), lease::Taken>, Error> {
    let mut nodes: Vec<NodeId> = Vec::new();
    for node in live.run.assigned.iter().flat_map(|role| &role.nodes) {
        let node = NodeId::from_stored(&node.node_id);
        // A node that serves two roles is leased once.
        if !nodes.contains(&node) {
            if let Err(taken) = lease::grant(tx, &live.run, &node)? {
                return Ok(Err(taken));
            }
            nodes.push(node);
        }
    }
    failpoint!("start.after_leases");
    place_steps(tx, live)?;
    tx.event("run.started", About::run(&live.run.run_id), &json!({"assigned": live.run.assigned}))?;
    advance(tx, live)?;
    Ok(Ok(()))
}

/// Lets begin what may begin, in the order acquisitions, then questions and holds; then looks whether the run is
/// over. Runs in the transaction of whatever changed, and changes nothing when nothing may begin.
pub(super) fn advance(tx: &Tx, live: &mut Live) -> Result<(), Error> {
    let stopping_by = drained_at_boundary(tx, &live.run)?;
    loop {
        for at in plan::to_skip(&live.contract, &live.progress()) {
            live.step(tx, at, StepEvent::Skip, &Set::nothing())?;
            tx.event("step.skipped", live.about(at), &json!({"id": live.contract.steps[at].id}))?;
        }
        if stopping_by.is_some() {
            break;
        }
        let ready = plan::ready(&live.contract, &live.progress());
        for &at in &ready {
            if matches!(live.contract.steps[at].kind, Kind::Run(_)) {
                offer(tx, live, at)?;
            }
        }
        // One acquisition at a time: what it skips may decide the next.
        let acquire = ready.iter().find_map(|&at| match &live.contract.steps[at].kind {
            Kind::Acquire(acquire) => Some((at, acquire.clone())),
            _ => None,
        });
        if let Some((at, wanted)) = acquire {
            acquire_node(tx, live, at, &wanted)?;
            continue;
        }
        for at in ready {
            match live.contract.steps[at].kind.clone() {
                Kind::Ask(question) => raise(tx, live, at, question.timeout_ms)?,
                Kind::Hold { timeout_ms } => open_hold(tx, live, at, timeout_ms)?,
                Kind::Run(_) | Kind::Acquire(_) => {}
            }
        }
        break;
    }
    conclude(tx, live, stopping_by)
}

pub(super) fn set_holder(tx: &Tx, live: &mut Live, until: Ms) -> Result<(), Error> {
    if live.run.holder_until != until {
        tx.conn
            .prepare_cached("UPDATE runs SET holder_until = ?2, holder_grace = 0 WHERE run_id = ?1")?
            .execute((live.run.run_id.as_str(), until))?;
        live.run.holder_until = until;
    }
    Ok(())
}

/// Ends the run if it is over; else sees to the deadlines that follow from where it stands.
fn conclude(tx: &Tx, live: &mut Live, stopping_by: Option<Stopping>) -> Result<(), Error> {
    if plan::is_finished(&live.progress()) {
        return runs::end(tx, &live.run, &runs::verdict(VerdictKind::Succeeded, "every step ended well"));
    }
    if let Some(stopping) = stopping_by
        && !live.steps.iter().any(|step| step.state == StepState::Claimed)
    {
        let detail =
            format!("node {} is drained at the step boundary by {}: {}", stopping.node, stopping.by, stopping.reason);
        let verdict = Verdict { node: Some(stopping.node), ..runs::verdict(VerdictKind::Drained, detail) };
        return runs::end(tx, &live.run, &verdict);
    }
    let of = |wanted: fn(&Kind) -> bool| -> Vec<&StepRow> {
        let steps = live.contract.steps.iter().zip(&live.steps);
        steps.filter(|(own, _)| wanted(&own.kind)).map(|(_, step)| step).collect()
    };
    let holds = of(|kind| matches!(kind, Kind::Hold { .. }));
    let hold_open = holds.iter().any(|step| step.state == StepState::Claimed);
    let holds_over = holds.iter().all(|step| step.state.is_over());
    let asked = of(|kind| matches!(kind, Kind::Ask(_))).iter().any(|step| step.state == StepState::Asked);
    let working =
        of(|kind| matches!(kind, Kind::Run(_))).iter().any(|step| step.ready || step.state == StepState::Claimed);
    // Who attends a run has a deadline until the last hold has closed; who holds one, while a hold is open.
    let holder = if live.contract.attended { !holds_over } else { hold_open };
    if !holder {
        set_holder(tx, live, NEVER)?;
    } else if live.run.holder_until == NEVER {
        set_holder(tx, live, tx.after(tx.settings.hold_ttl_ms))?;
    }
    let only_static = !tx.fleet()?.held_by(&live.run).any(|entry| entry.node.agent);
    lease::protect(tx, &live.run.run_id, hold_open || (asked && !working) || only_static)
}

/// An at-boundary drain that stops a run.
struct Stopping {
    node: String,
    by: String,
    reason: String,
}

/// Returns the at-boundary drain of one of the run's nodes, if there is one: from then on nothing of it begins.
fn drained_at_boundary(tx: &Tx, run: &RunRow) -> Result<Option<Stopping>, Error> {
    use rusqlite::OptionalExtension as _;
    if !tx.fleet()?.held_by(run).any(|entry| entry.is_draining) {
        return Ok(None);
    }
    let mut statement = tx.conn.prepare_cached(
        "SELECT node_id, CASE WHEN operator_mode = 'at-boundary' THEN operator_by ELSE 'node' END,
                CASE WHEN operator_mode = 'at-boundary' THEN operator_reason ELSE owner_reason END
         FROM leases JOIN nodes USING (node_id)
         WHERE run_id = ?1 AND (operator_mode = 'at-boundary' OR owner_mode = 'at-boundary') ORDER BY node_id LIMIT 1",
    )?;
    let row = statement.query_row([run.run_id.as_str()], |row| {
        let reason: Option<String> = row.get(2)?;
        Ok(Stopping { node: row.get(0)?, by: row.get(1)?, reason: reason.unwrap_or_default() })
    });
    Ok(row.optional()?)
}

/// Says whether nothing of the run may begin any more.
pub(super) fn is_stopping(tx: &Tx, run: &RunRow) -> Result<bool, Error> {
    Ok(drained_at_boundary(tx, run)?.is_some())
}

/// Ends a step well and lets the run go on.
pub(super) fn finish(tx: &Tx, live: &mut Live, at: usize, result: &Value) -> Result<(), Error> {
    let attempt = live.steps[at].attempt;
    live.step(tx, at, StepEvent::Finish, &Set::result(result))?;
    live.close_attempt(tx, at, attempt, result)?;
    close_hold(tx, live, at)?;
    failpoint!("result.after_step");
    tell_end(tx, live, at, "done", attempt, result)?;
    give_back(tx, live)?;
    advance(tx, live)
}

/// Ends a step badly: a loop goes back if it may, then `allow_failure` counts, else the run ends.
pub(super) fn fail(tx: &Tx, live: &mut Live, at: usize, result: &Value, why: &str) -> Result<(), Error> {
    let attempt = live.steps[at].attempt;
    live.close_attempt(tx, at, attempt, result)?;
    if let Some(range) = plan::rolled_back(&live.contract, &live.progress(), at, attempt) {
        for back in range {
            live.step(tx, back, StepEvent::RollBack, &Set::nothing())?;
        }
        close_hold(tx, live, at)?;
        failpoint!("rollback.after");
        let data = json!({"id": live.contract.steps[at].id, "attempt": attempt, "result": result});
        tx.event("step.rolled-back", live.about(at), &data)?;
        if let Some(node) = &live.steps[at].node_id {
            // If the reaper took it away, its agent has to hear it.
            tx.tell(Topic::Node(node.clone()));
        }
        tx.tell(Topic::Log(live.run.run_id.clone()));
        return advance(tx, live);
    }
    live.step(tx, at, StepEvent::Fail, &Set::result(result))?;
    close_hold(tx, live, at)?;
    tell_end(tx, live, at, "failed", attempt, result)?;
    let own = &live.contract.steps[at];
    if own.allow_failure {
        give_back(tx, live)?;
        return advance(tx, live);
    }
    let verdict = Verdict {
        kind: VerdictKind::StepFailed,
        detail: format!("step `{}` {why}", own.id),
        step: Some(own.id.clone()),
        node: live.steps[at].node_id.as_ref().map(|node| node.as_str().to_owned()),
    };
    runs::end(tx, &live.run, &verdict)
}

/// While a hold was open the run's leases were not reaped for it: when it closes each gets a full lifetime, also if
/// something else protects them still.
fn close_hold(tx: &Tx, live: &Live, at: usize) -> Result<(), Error> {
    match live.contract.steps[at].kind {
        Kind::Hold { .. } => lease::renew_run(tx, &live.run.run_id),
        _ => Ok(()),
    }
}

fn tell_end(tx: &Tx, live: &Live, at: usize, how: &str, attempt: i64, result: &Value) -> Result<(), Error> {
    let own = &live.contract.steps[at];
    let event = match &own.kind {
        Kind::Ask(_) => format!("ask.{how}"),
        Kind::Hold { .. } => format!("hold.{how}"),
        Kind::Run(_) | Kind::Acquire(_) => format!("step.{how}"),
    };
    tx.tell(Topic::Log(live.run.run_id.clone()));
    if let Some(node) = &live.steps[at].node_id {
        tx.tell(Topic::Node(node.clone()));
    }
    tx.event(&event, live.about(at), &json!({"id": own.id, "attempt": attempt, "result": result}))
}

/// Gives back the nodes whose roles have all been released.
fn give_back(tx: &Tx, live: &Live) -> Result<(), Error> {
    if live.contract.steps.iter().all(|step| step.release.is_empty()) {
        return Ok(());
    }
    let progress = live.progress();
    let slots = || {
        let roles = live.run.assigned.iter();
        roles.flat_map(|role| role.nodes.iter().enumerate().map(|(index, node)| (role.role.as_str(), index, node)))
    };
    let kept = plan::kept(&live.contract, &progress, slots().map(|(role, index, _)| (role, index)));
    let needed: Vec<&str> = slots()
        .filter(|(role, index, _)| kept.contains(&(*role, *index)))
        .map(|(_, _, node)| node.node_id.as_str())
        .collect();
    for node in lease::held(tx, &live.run.run_id)? {
        if !needed.contains(&node.as_str()) {
            lease::end(tx, &live.run.run_id, &node, "released")?;
            failpoint!("release.after");
        }
    }
    Ok(())
}

/// Lets holds open, and what else waited, on the run that holds `node`: after a settling, or a lifted drain.
pub(super) fn resume(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    if let Some(run) = runs::holding(tx, node)?
        && let Some(mut live) = Live::running(tx, &run)?
    {
        // What was ready before the drain is offered already; who waits for it was told that there is nothing.
        for node in live.steps.iter().filter(|step| step.ready).filter_map(|step| step.node_id.clone()) {
            tx.tell(Topic::Node(node));
        }
        advance(tx, &mut live)?;
    }
    Ok(())
}
