//! The reaper: what happens because a time has come. It works at each deadline, on no fixed tick, and always in the
//! writer, after the writes that were waiting when the deadline passed (a heartbeat among them counts).
//!
//! One pass handles what is due, at most 256 of a kind (the next pass follows at once, and writes get in between), each
//! item in a savepoint of its own; the queue is woken once at its end, and only if something was freed.
//!
//! `INDEXED BY` is a guard: without statistics SQLite prefers the index of lists, whose cost grows with the queue; and
//! should an index disappear, the statement fails instead of becoming slow.

use rusqlite::{Connection, OptionalExtension as _, Row};
use serde_json::json;

use super::live::Live;
use super::progress;
use super::tx::{About, Tx};
use super::{Error, NEVER, history, lease, runs};
use crate::clock::Ms;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::{RunState, Verdict, VerdictKind};

/// No step time-out and no time limit of a run is enforced so soon after a start: an agent must be able to hand in
/// what it finished meanwhile.
pub(super) const START_GRACE_MS: i64 = 90_000;

/// How often in a row a start may move a deadline without a sign of whoever it is for: in a restart loop, leases must
/// still end.
const START_GRACES: i64 = 3;

/// The furthest a deadline may lie ahead at a start: beyond that the clock was set back while nobody looked.
const LONGEST_GRACE_MS: i64 = 86_400_000;

/// Handles what is due. Returns whether something failed, and is to be tried again.
pub(super) fn pass(tx: &Tx, started: Ms) -> Result<bool, Error> {
    let strict = tx.now >= started.saturating_add(START_GRACE_MS);
    let mut failed = false;
    let mut each = |what: &str, item: &str, part: &dyn Fn() -> Result<(), Error>| match tx.attempt(part) {
        Err(error) if error.is_of_the_group() => Err(error),
        Err(error) => {
            log::error!("cannot reap {what}={item} cause={error}");
            failed = true;
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    for node in due(tx, "SELECT node_id FROM nodes WHERE silent = 0 AND static = 0 AND live_until <= ?1 LIMIT 256")? {
        each("node", &node, &|| fall_silent(tx, &NodeId::from_stored(node.clone())))?;
    }
    for node in due(tx, "SELECT node_id FROM nodes WHERE settling_until > 0 AND settling_until <= ?1 LIMIT 256")? {
        each("node", &node, &|| settle(tx, &NodeId::from_stored(node.clone())))?;
    }
    // Leases of runs that have ended: nothing of ours leaves any, but nothing of theirs may keep a node either.
    for run in due(
        tx,
        // CROSS JOIN keeps the few leases outside: the other way round every ended run would be looked at.
        "SELECT DISTINCT run_id FROM leases CROSS JOIN runs USING (run_id)
         WHERE ended_at IS NOT NULL AND ?1 > 0 LIMIT 256",
    )? {
        each("run", &run, &|| lease::end_all(tx, &runs::get(tx, &RunId::from_stored(run.clone()))?, "run-ended"))?;
    }
    let steps = due_steps(tx, strict)?;
    for (run, seq) in steps {
        each("run", &run, &|| end_step(tx, &RunId::from_stored(run.clone()), seq))?;
    }
    let verdicts: [(&str, bool, Maker); 4] = [
        (
            "SELECT run_id FROM runs INDEXED BY runs_queue_until WHERE state = 'QUEUED' AND queue_until < 9007199254740991
              AND queue_until <= ?1 LIMIT 256",
            true,
            |tx, run| {
                let seconds = seconds(tx, run, "queue_until - created_at")?;
                let detail = format!("its nodes did not become free within {seconds} s (queue_timeout_seconds)");
                Ok(Some(runs::verdict(VerdictKind::QueueTimeout, detail)))
            },
        ),
        (
            "SELECT run_id FROM runs INDEXED BY runs_ends_by WHERE state = 'RUNNING' AND ends_by <= ?1 LIMIT 256",
            strict,
            |tx, run| {
                let seconds = seconds(tx, run, "ends_by - started_at")?;
                let detail = format!("it had not ended within {seconds} s of its start (its time limit)");
                Ok(Some(runs::verdict(VerdictKind::TimeLimit, detail)))
            },
        ),
        (
            "SELECT run_id FROM runs INDEXED BY runs_holder_until
              WHERE ended_at IS NULL AND holder_until < 9007199254740991 AND holder_until <= ?1 LIMIT 256",
            true,
            |_, run| {
                let detail = format!("{}, who was to hold it, was not heard of any more", run.principal);
                Ok(Some(runs::verdict(VerdictKind::HolderGone, detail)))
            },
        ),
        ("SELECT DISTINCT run_id FROM leases WHERE reapable = 1 AND not_after <= ?1 LIMIT 256", true, lost),
    ];
    for (query, now, maker) in verdicts {
        if !now {
            continue;
        }
        for run in due(tx, query)? {
            each("run", &run, &|| {
                let row = runs::get(tx, &RunId::from_stored(run.clone()))?;
                match maker(tx, &row)? {
                    // An earlier part of this pass may have ended it.
                    Some(verdict) if !row.state.is_terminal() => runs::end(tx, &row, &verdict),
                    _ => Ok(()),
                }
            })?;
        }
    }
    each("keys", "due", &|| super::request::prune(tx))?;
    each("history", "due", &|| history::prune(tx))?;
    Ok(failed)
}

type Maker = fn(&Tx, &runs::RunRow) -> Result<Option<Verdict>, Error>;

/// Returns a time that a run was given, in seconds.
fn seconds(tx: &Tx, run: &runs::RunRow, column: &str) -> Result<f64, Error> {
    let query = format!("SELECT ({column}) / 1000.0 FROM runs WHERE run_id = ?1");
    Ok(tx.conn.prepare_cached(&query)?.query_row([run.run_id.as_str()], |row| row.get(0))?)
}

/// Makes the verdict on a run one of whose leases ran out.
fn lost(tx: &Tx, run: &runs::RunRow) -> Result<Option<Verdict>, Error> {
    if run.state != RunState::Running {
        return Err(Error::Broken(format!("run {} is {} and has a lease (I2)", run.run_id, run.state)));
    }
    let node: Option<String> = tx
        .conn
        .prepare_cached(
            "SELECT node_id FROM leases WHERE run_id = ?1 AND reapable = 1 AND not_after <= ?2
             ORDER BY not_after, node_id LIMIT 1",
        )?
        .query_row((run.run_id.as_str(), tx.now), |row| row.get(0))
        .optional()?;
    Ok(node.map(|node| Verdict {
        kind: VerdictKind::NodeLost,
        detail: format!("node {node} was not heard of for the lifetime of its lease"),
        step: None,
        node: Some(node),
    }))
}

fn due(tx: &Tx, query: &str) -> Result<Vec<String>, Error> {
    let mut statement = tx.conn.prepare_cached(query)?;
    let rows = statement.query_map([tx.now], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn due_steps(tx: &Tx, strict: bool) -> Result<Vec<(String, i64)>, Error> {
    let read = |row: &Row| Ok((row.get(0)?, row.get(1)?));
    let mut asked =
        tx.conn.prepare_cached("SELECT run_id, seq FROM steps WHERE state = 'ASKED' AND deadline <= ?1 LIMIT 256")?;
    let mut steps: Vec<(String, i64)> = asked.query_map([tx.now], read)?.collect::<Result<_, _>>()?;
    if strict {
        let mut claimed = tx.conn.prepare_cached(
            "SELECT run_id, seq FROM steps WHERE state = 'CLAIMED' AND deadline < 9007199254740991 AND deadline <= ?1
                 LIMIT 256",
        )?;
        for step in claimed.query_map([tx.now], read)? {
            steps.push(step?);
        }
    }
    Ok(steps)
}

fn fall_silent(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    tx.conn.prepare_cached("UPDATE nodes SET silent = 1 WHERE node_id = ?1")?.execute([node.as_str()])?;
    tx.touch(node);
    log::warn!("node silent node={node}");
    tx.event("node.silent", About::node(node), &json!({}))
}

fn settle(tx: &Tx, node: &NodeId) -> Result<(), Error> {
    tx.conn.prepare_cached("UPDATE nodes SET settling_until = 0 WHERE node_id = ?1")?.execute([node.as_str()])?;
    tx.touch(node);
    progress::resume(tx, node)
}

/// Ends a step whose time is over: a question that nobody answered, a command whose agent did not report its
/// time-out, a hold that was kept too long.
fn end_step(tx: &Tx, run: &RunId, seq: i64) -> Result<(), Error> {
    let row = runs::get(tx, run)?;
    if row.state != RunState::Running {
        // Left as it is, its deadline would come back at once, for ever: an error is tried again after a pause.
        return Err(Error::Broken(format!("step {seq} of run {run} is open, and the run is {}", row.state)));
    }
    let mut live = Live::load(tx, row)?;
    let at = usize::try_from(seq - 1).map_err(|_| Error::Broken("a step's number below 1".into()))?;
    // An earlier part of this pass may have ended it.
    let Some(step) = live.steps.get(at).filter(|step| step.state.is_open()) else { return Ok(()) };
    let (error, why) = match (&live.contract.steps[at].kind, &step.node_id) {
        (crate::domain::contract::Kind::Ask(_), _) => ("nobody answered in time", "was not answered in time"),
        (crate::domain::contract::Kind::Hold { .. }, _) => ("held over its time", "was held over its time"),
        (_, node) => {
            // Its agent has not stopped it, or cannot say so: no hold may open there before it must have.
            if let Some(node) = node.clone() {
                let until: Option<Ms> = tx
                    .conn
                    .prepare_cached("SELECT not_after FROM leases WHERE node_id = ?1")?
                    .query_row([node.as_str()], |row| row.get(0))
                    .optional()?;
                lease::settle(tx, &node, until.unwrap_or(0))?;
            }
            ("ran over its time, and its agent did not say so", "ran over its time")
        }
    };
    progress::fail(tx, &mut live, at, &json!({"error": error}), why)
}

/// Returns when something is due next: [`NEVER`] if nothing ever is. One statement, since it follows every commit.
pub(super) fn next_deadline(conn: &Connection, started: Ms) -> Result<Ms, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT min(at) FROM (
             SELECT min(live_until) AS at FROM nodes WHERE silent = 0 AND static = 0
             UNION ALL SELECT min(settling_until) FROM nodes WHERE settling_until > 0
             UNION ALL SELECT min(deadline) FROM steps WHERE state = 'ASKED'
             UNION ALL SELECT max(?1, min(deadline)) FROM steps WHERE state = 'CLAIMED' AND deadline < 9007199254740991
             UNION ALL SELECT min(queue_until) FROM runs INDEXED BY runs_queue_until
                 WHERE state = 'QUEUED' AND queue_until < 9007199254740991
             UNION ALL SELECT max(?1, min(ends_by)) FROM runs INDEXED BY runs_ends_by WHERE state = 'RUNNING'
             UNION ALL SELECT min(holder_until) FROM runs INDEXED BY runs_holder_until
                 WHERE ended_at IS NULL AND holder_until < 9007199254740991
             UNION ALL SELECT min(not_after) FROM leases WHERE reapable = 1
             UNION ALL SELECT min(due_at) FROM requests)",
    )?;
    let strict = started.saturating_add(START_GRACE_MS);
    let next: Option<Ms> = statement.query_row([strict], |row| row.get(0))?;
    Ok(next.unwrap_or(NEVER))
}

/// Gives time at a start: the daemon's downtime counts against nobody, but not for ever.
pub(super) fn grant_start_grace(tx: &Tx) -> Result<(), Error> {
    let moves = [
        ("leases", "not_after", "grace", tx.settings.lease_ttl_ms),
        ("runs", "holder_until", "holder_grace", tx.settings.hold_ttl_ms),
    ];
    for (table, deadline, grace, ttl_ms) in moves {
        let until = tx.after(ttl_ms.max(START_GRACE_MS));
        let running = if table == "runs" { "ended_at IS NULL AND holder_until < 9007199254740991" } else { "true" };
        tx.conn.execute(
            // Never further than one lifetime: a clock that was set back while nobody looked makes nothing immortal.
            // (What was granted before stays granted, also when the lifetime was made shorter since.)
            &format!(
                "UPDATE {table} SET {deadline} = CASE WHEN {grace} < ?2 THEN min(max({deadline}, ?1), ?3)
                     ELSE min({deadline}, ?3) END, {grace} = {grace} + 1 WHERE {running}"
            ),
            (until, START_GRACES, tx.after(LONGEST_GRACE_MS.max(ttl_ms))),
        )?;
    }
    // Who was not silent counts as live for one lifetime; who was, stays silent until it speaks.
    tx.conn.execute(
        "UPDATE nodes SET live_until = ?1 WHERE silent = 0 AND static = 0",
        [tx.after(tx.settings.advert_ttl_ms)],
    )?;
    tx.memory.fleet.borrow_mut().forget();
    Ok(())
}
