//! How a running run moves on: what begins when something ended, what is given back, when the run is over.
//!
//! Every write that changes a step of a running run loads a [`Live`], moves steps through `Live::step`, and ends with
//! [`advance`]. The decisions are `domain::plan`'s; here they become rows.
//!
//! Step moves and where they are made: claim, open -> CLAIMED (`claim`, `open_hold`); raise -> ASKED (`raise`);
//! acquire -> DONE (`acquire`); skip (`advance`); finish, fail, roll back (`finish`, `fail`); cancel (`runs::end`).

use rusqlite::named_params;
use serde_json::{Value, json};

use super::error::Refusal;
use super::hub::Topic;
use super::runs::{self, Assigned, AssignedNode, RunRow};
use super::tx::{About, Tx};
use super::{Error, NEVER, lease};
use crate::clock::Ms;
use crate::domain::contract::{Acquire, Contract, Kind};
use crate::domain::ids::{NodeId, RunId};
use crate::domain::matching::{self, Requirement};
use crate::domain::plan::{self, Progress};
use crate::domain::run::{RunState, Verdict, VerdictKind};
use crate::domain::step::{StepEvent, StepState};
use crate::failpoint;

/// A running run in the hands of a write.
pub(super) struct Live {
    pub(super) run: RunRow,
    pub(super) contract: Contract,
    pub(super) steps: Vec<StepRow>,
}

/// One of its steps.
#[derive(Clone, Debug)]
pub(super) struct StepRow {
    pub(super) state: StepState,
    pub(super) ready: bool,
    pub(super) attempt: i64,
    pub(super) node_id: Option<NodeId>,
    pub(super) instance: Option<String>,
    had: Option<bool>,
}

impl Live {
    /// Loads a run with its contract and steps.
    pub(super) fn load(tx: &Tx, run: RunRow) -> Result<Self, Error> {
        let contract = runs::contract(&run.run_id, &run.contract)?;
        let mut statement = tx.conn.prepare_cached(
            "SELECT state, ready, attempt, node_id, instance, result ->> 'acquired' FROM steps WHERE run_id = ?1
             ORDER BY seq",
        )?;
        let mut rows = statement.query([run.run_id.as_str()])?;
        let mut steps = Vec::with_capacity(contract.steps.len());
        while let Some(row) = rows.next()? {
            let state: String = row.get(0)?;
            steps.push(StepRow {
                state: StepState::parse(&state).ok_or_else(|| Error::Broken(format!("a step's state is {state:?}")))?,
                ready: row.get(1)?,
                attempt: row.get(2)?,
                node_id: row.get::<_, Option<String>>(3)?.map(NodeId::from_stored),
                instance: row.get(4)?,
                had: row.get(5)?,
            });
        }
        if steps.len() != contract.steps.len() {
            return Err(Error::Broken(format!(
                "run {} has {} steps in {} rows",
                run.run_id,
                contract.steps.len(),
                steps.len()
            )));
        }
        Ok(Self { run, contract, steps })
    }

    /// Loads a run that is RUNNING, by its id; `None` when it is not.
    pub(super) fn running(tx: &Tx, run: &RunId) -> Result<Option<Self>, Error> {
        match runs::find(tx, run)? {
            Some(row) if row.state == RunState::Running => Self::load(tx, row).map(Some),
            _ => Ok(None),
        }
    }

    fn progress(&self) -> Vec<Progress> {
        self.steps.iter().map(|step| Progress { state: step.state, had: step.had }).collect()
    }

    fn about(&self, at: usize) -> About<'_> {
        let about = About::step(&self.run.run_id, seq(at));
        match &self.steps[at].node_id {
            Some(node) => about.on(node),
            None => about,
        }
    }

    /// The one function that moves a step of a running run: asks `StepState::next`, then updates the row where it
    /// still has the state and attempt it was found in.
    fn step(&mut self, tx: &Tx, at: usize, event: StepEvent, set: &Set) -> Result<(), Error> {
        let step = &mut self.steps[at];
        let to = step.state.next(event)?;
        let attempt = step.attempt + i64::from(event == StepEvent::RollBack);
        let rows = tx
            .conn
            .prepare_cached(
                "UPDATE steps SET state = :to, attempt = :attempt, ready = 0, instance = :instance, deadline = :deadline,
                     started_at = CASE WHEN :begins THEN :now WHEN :to = 'PENDING' THEN NULL ELSE started_at END,
                     ended_at = CASE WHEN :ends THEN :now ELSE NULL END,
                     result = :result
                 WHERE run_id = :run AND seq = :seq AND state = :from AND attempt = :was",
            )?
            .execute(named_params! {
                ":to": to.as_str(), ":attempt": attempt, ":instance": set.instance, ":deadline": set.deadline,
                ":begins": matches!(event, StepEvent::Claim | StepEvent::Ask | StepEvent::Acquire), ":now": tx.now,
                ":ends": to.is_over(), ":result": set.result.as_ref().map(Value::to_string),
                ":run": self.run.run_id.as_str(), ":seq": seq(at), ":from": step.state.as_str(), ":was": step.attempt,
            })?;
        if rows != 1 {
            return Err(Error::Broken(format!("step {} of run {} is not {}", seq(at), self.run.run_id, step.state)));
        }
        step.state = to;
        step.attempt = attempt;
        step.ready = false;
        step.instance.clone_from(&set.instance);
        Ok(())
    }

    /// Begins an attempt: the step's move and the row that will keep its report.
    fn begin(&mut self, tx: &Tx, at: usize, event: StepEvent, set: &Set, nonce: Option<&str>) -> Result<(), Error> {
        self.step(tx, at, event, set)?;
        let step = &self.steps[at];
        tx.conn
            .prepare_cached(
                "INSERT INTO attempts (run_id, seq, attempt, node_id, nonce, started_at)
                 VALUES (:run, :seq, :attempt, :node, :nonce, :now)",
            )?
            .execute(named_params! {
                ":run": self.run.run_id.as_str(), ":seq": seq(at), ":attempt": step.attempt,
                ":node": step.node_id.as_ref().map(NodeId::as_str), ":nonce": nonce, ":now": tx.now,
            })?;
        Ok(())
    }

    /// Ends an attempt's row.
    fn close_attempt(&self, tx: &Tx, at: usize, attempt: i64, result: &Value) -> Result<(), Error> {
        tx.conn
            .prepare_cached(
                "UPDATE attempts SET ended_at = ?4, result = ?5 WHERE run_id = ?1 AND seq = ?2 AND attempt = ?3",
            )?
            .execute((self.run.run_id.as_str(), seq(at), attempt, tx.now, result.to_string()))?;
        Ok(())
    }
}

/// What a move sets besides the state.
struct Set {
    instance: Option<String>,
    deadline: Ms,
    result: Option<Value>,
}

impl Set {
    fn nothing() -> Self {
        Self { instance: None, deadline: NEVER, result: None }
    }

    fn result(result: &Value) -> Self {
        Self { result: Some(result.clone()), ..Self::nothing() }
    }
}

/// A step's number on the wire.
pub(super) fn seq(at: usize) -> i64 {
    i64::try_from(at).expect("at most 500 steps") + 1
}

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
    tx.event("run.started", About::run(&live.run.run_id), json!({"assigned": live.run.assigned}))?;
    advance(tx, live)?;
    Ok(Ok(()))
}

/// Writes to each run step the node that its role was given.
fn place_steps(tx: &Tx, live: &mut Live) -> Result<(), Error> {
    for (at, own) in live.contract.steps.iter().enumerate() {
        let Kind::Run(command) = &own.kind else { continue };
        let nodes = runs::nodes_of(&live.run.assigned, &command.uses.role);
        let Some(node) = nodes.get(command.uses.index.unwrap_or(0)) else { continue };
        if live.steps[at].node_id.is_none() {
            tx.conn.prepare_cached("UPDATE steps SET node_id = ?3 WHERE run_id = ?1 AND seq = ?2")?.execute((
                live.run.run_id.as_str(),
                seq(at),
                &node.node_id,
            ))?;
            live.steps[at].node_id = Some(NodeId::from_stored(&node.node_id));
        }
    }
    Ok(())
}

/// Lets begin what may begin, in the order acquisitions, then questions and holds; then looks whether the run is
/// over. Runs in the transaction of whatever changed, and changes nothing when nothing may begin.
pub(super) fn advance(tx: &Tx, live: &mut Live) -> Result<(), Error> {
    let stopping_by = drained_at_boundary(tx, &live.run.run_id)?;
    loop {
        for at in plan::to_skip(&live.contract, &live.progress()) {
            live.step(tx, at, StepEvent::Skip, &Set::nothing())?;
            tx.event("step.skipped", live.about(at), json!({"id": live.contract.steps[at].id}))?;
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

/// Marks a run step as claimable and tells its node.
fn offer(tx: &Tx, live: &mut Live, at: usize) -> Result<(), Error> {
    let step = &mut live.steps[at];
    if step.ready {
        return Ok(());
    }
    tx.conn
        .prepare_cached("UPDATE steps SET ready = 1 WHERE run_id = ?1 AND seq = ?2 AND state = 'PENDING'")?
        .execute((live.run.run_id.as_str(), seq(at)))?;
    step.ready = true;
    if let Some(node) = &step.node_id {
        tx.tell(Topic::Node(node.clone()));
    }
    tx.event("step.ready", live.about(at), json!({"id": live.contract.steps[at].id}))
}

/// Decides an acquisition: a value, never a failure, never waiting.
fn acquire_node(tx: &Tx, live: &mut Live, at: usize, acquire: &Acquire) -> Result<(), Error> {
    tx.before_taking()?;
    let held = lease::held(tx, &live.run.run_id)?;
    let wanted = Requirement { roles: vec![acquire.want.clone()], distinct_nodes: None };
    let found = if held.len() < tx.settings.lease_max_per_run {
        let fleet = tx.fleet()?;
        // A node that became free in this very transaction belongs to the queue first.
        let available: Vec<_> =
            fleet.available(tx.now).into_iter().filter(|entry| !tx.was_freed_here(&entry.node.id)).collect();
        let nodes: Vec<_> = available.iter().map(|entry| &entry.node).collect();
        matching::fit(&wanted, &nodes).map(|chosen| assign(&wanted, &chosen, &available))
    } else {
        None
    };
    let mut result = json!({"acquired": false, "node_id": null});
    if let Some(mut role) = found {
        let node = NodeId::from_stored(&role[0].nodes[0].node_id);
        let granted = tx.attempt(|| match lease::grant(tx, &live.run, &node)? {
            Ok(()) => Ok(()),
            Err(lease::Taken) => Err(Error::Refused(Refusal::new("lease-collision", "another run has the node"))),
        });
        match granted {
            Ok(()) => {
                result = json!({"acquired": true, "node_id": node.as_str()});
                live.run.assigned.append(&mut role);
                runs::store_assigned(tx, &live.run.run_id, &live.run.assigned)?;
                tx.conn.prepare_cached("UPDATE steps SET node_id = ?3 WHERE run_id = ?1 AND seq = ?2")?.execute((
                    live.run.run_id.as_str(),
                    seq(at),
                    node.as_str(),
                ))?;
                live.steps[at].node_id = Some(node);
            }
            // Someone has it after all: it was not had, and the rows know better than what was remembered.
            Err(Error::Refused(_)) => {
                log::error!("a node to be acquired was leased after all run={} node={node}", live.run.run_id);
                tx.memory.fleet.borrow_mut().forget();
            }
            Err(error) => return Err(error),
        }
    }
    let had = result["acquired"] == true;
    live.steps[at].had = Some(had);
    live.step(tx, at, StepEvent::Acquire, &Set::result(&result))?;
    failpoint!("acquire.after");
    place_steps(tx, live)?;
    let id = live.contract.steps[at].id.clone();
    tx.event("step.acquired", live.about(at), json!({"id": id, "acquired": had}))
}

fn raise(tx: &Tx, live: &mut Live, at: usize, timeout_ms: Option<i64>) -> Result<(), Error> {
    let deadline = tx.after(timeout_ms.unwrap_or(tx.settings.ask_timeout_ms));
    live.begin(tx, at, StepEvent::Ask, &Set { deadline, ..Set::nothing() }, None)?;
    failpoint!("ask.after_raise");
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt});
    tx.event("ask.raised", live.about(at), data)
}

/// Opens a hold, unless one of the run's nodes is settling: then its agent may still be at work there.
fn open_hold(tx: &Tx, live: &mut Live, at: usize, timeout_ms: Option<i64>) -> Result<(), Error> {
    let settling: bool = tx
        .conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1 AND settling_until > ?2)",
        )?
        .query_row((live.run.run_id.as_str(), tx.now), |row| row.get(0))?;
    if settling {
        return Ok(());
    }
    let deadline = timeout_ms.map_or(NEVER, |ms| tx.after(ms));
    live.begin(tx, at, StepEvent::Claim, &Set { deadline, ..Set::nothing() }, None)?;
    failpoint!("hold.after_open");
    if !live.contract.attended {
        set_holder(tx, live, tx.after(tx.settings.hold_ttl_ms))?;
    }
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt, "by": live.run.principal});
    tx.event("hold.opened", live.about(at), data)
}

fn set_holder(tx: &Tx, live: &mut Live, until: Ms) -> Result<(), Error> {
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
    let only_static: bool = tx
        .conn
        .prepare_cached(
            "SELECT NOT EXISTS (SELECT 1 FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1 AND static = 0)",
        )?
        .query_row([live.run.run_id.as_str()], |row| row.get(0))?;
    lease::protect(tx, &live.run.run_id, hold_open || (asked && !working) || only_static)
}

/// An at-boundary drain that stops a run.
struct Stopping {
    node: String,
    by: String,
    reason: String,
}

/// Returns the at-boundary drain of one of the run's nodes, if there is one: from then on nothing of it begins.
fn drained_at_boundary(tx: &Tx, run: &RunId) -> Result<Option<Stopping>, Error> {
    use rusqlite::OptionalExtension as _;
    let mut statement = tx.conn.prepare_cached(
        "SELECT node_id, CASE WHEN operator_mode = 'at-boundary' THEN operator_by ELSE 'node' END,
                CASE WHEN operator_mode = 'at-boundary' THEN operator_reason ELSE owner_reason END
         FROM leases JOIN nodes USING (node_id)
         WHERE run_id = ?1 AND (operator_mode = 'at-boundary' OR owner_mode = 'at-boundary') ORDER BY node_id LIMIT 1",
    )?;
    let row = statement.query_row([run.as_str()], |row| {
        let reason: Option<String> = row.get(2)?;
        Ok(Stopping { node: row.get(0)?, by: row.get(1)?, reason: reason.unwrap_or_default() })
    });
    Ok(row.optional()?)
}

/// Says whether nothing of the run may begin any more.
pub(super) fn is_stopping(tx: &Tx, run: &RunId) -> Result<bool, Error> {
    Ok(drained_at_boundary(tx, run)?.is_some())
}

/// Puts a step into the hands of one life of its node (I11).
pub(super) fn claim(tx: &Tx, live: &mut Live, at: usize, instance: &str, nonce: &str) -> Result<(), Error> {
    let Kind::Run(command) = &live.contract.steps[at].kind else {
        return Err(Error::Broken(format!("step {} of run {} cannot be claimed", seq(at), live.run.run_id)));
    };
    // The agent counts the time-out itself; it has half a minute to say so before the reaper does.
    let deadline = command.timeout_ms.map_or(NEVER, |ms| tx.after(ms.saturating_add(STEP_GRACE_MS)));
    let set = Set { instance: Some(instance.to_owned()), deadline, result: None };
    live.begin(tx, at, StepEvent::Claim, &set, Some(nonce))?;
    failpoint!("claim.after_step");
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt});
    tx.event("step.claimed", live.about(at), data)
}

/// How long after a step's time-out the reaper waits for its agent to report it.
pub(super) const STEP_GRACE_MS: i64 = 30_000;

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
        tx.event("step.rolled-back", live.about(at), data)?;
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
    tx.event(&event, live.about(at), json!({"id": own.id, "attempt": attempt, "result": result}))
}

/// Gives back the nodes whose roles have all been released.
fn give_back(tx: &Tx, live: &Live) -> Result<(), Error> {
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

/// Names the chosen nodes of each role, with the attributes they serve with.
pub(super) fn assign(
    requirement: &Requirement,
    chosen: &[Vec<usize>],
    nodes: &[&super::fleet::Entry],
) -> Vec<Assigned> {
    let named = |role: &matching::Role, &at: &usize| AssignedNode {
        node_id: nodes[at].node.id.as_str().to_owned(),
        label: nodes[at].label.clone(),
        attrs: nodes[at].node.serves(role).map(|own| own.attrs.clone()).unwrap_or_default(),
    };
    let roles = requirement.roles.iter().zip(chosen);
    roles
        .map(|(role, own)| Assigned { role: role.name.clone(), nodes: own.iter().map(|at| named(role, at)).collect() })
        .collect()
}
