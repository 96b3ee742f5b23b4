//! Runs, one by one and in lists.

use rusqlite::{Connection, OptionalExtension as _, Row, ToSql};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{At, Page, cut};
use crate::clock::Ms;
use crate::domain::ids::RunId;
use crate::domain::run::RunState;
use crate::domain::step::StepState;
use crate::store::live::seq;
use crate::store::submit::{Submission, needs, role};
use crate::store::{Error, history};

/// A run as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct RunView {
    /// Its id.
    pub run_id: String,
    /// What people call it.
    pub name: Option<String>,
    /// `QUEUED`, `RUNNING`, `SUCCEEDED`, `FAILED`, `CANCELLED`.
    pub state: String,
    /// Who submitted it.
    pub principal: String,
    /// What it is for.
    pub work: Option<String>,
    /// From -10 to 10.
    pub priority: i64,
    /// When it was submitted.
    pub created_at: String,
    /// When it got its nodes.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// When its time limit ends it; null while it waits.
    pub ends_by: Option<String>,
    /// What the contract requires, as received.
    pub requires: Box<RawValue>,
    /// The roles with the nodes they were given; released ones stay.
    pub assigned: Box<RawValue>,
    /// Why no known nodes could ever do it.
    pub reject: Option<Box<RawValue>>,
    /// How it ended.
    pub verdict: Option<Box<RawValue>>,
    /// Its place in the queue, counted from 1; null when it does not wait.
    pub queue: Option<QueueView>,
    /// Its steps, in order.
    pub steps: Vec<StepView>,
    /// Its place in lists; not of one that was queued just now.
    #[serde(skip)]
    pub(super) arrival: i64,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueueView {
    /// Counted from 1, by priority and arrival.
    pub position: i64,
}

/// A step as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct StepView {
    /// Counted from 1.
    pub seq: i64,
    /// Its id in the contract.
    pub id: String,
    /// `run`, `ask`, `acquire`, `hold`.
    pub kind: String,
    /// The role of a command.
    pub uses: Option<String>,
    /// Where it stands.
    pub state: String,
    /// The node it is for, or had.
    pub node_id: Option<String>,
    /// Counted from 1; a loop adds to it.
    pub attempt: i64,
    /// The ids of the steps it waits for.
    pub needs: Box<RawValue>,
    /// When the attempt began.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// What came of it.
    pub result: Option<Box<RawValue>>,
}

/// Which runs a list is to hold.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// In this state.
    pub state: Option<RunState>,
    /// Of this principal.
    pub principal: Option<String>,
    /// For this work.
    pub work: Option<String>,
    /// That held this node at some time.
    pub node: Option<String>,
    /// Submitted at this time or later, in Unix milliseconds.
    pub since: Option<Ms>,
}

const COLUMNS: &str =
    "runs.arrival, runs.run_id, name, state, runs.principal, runs.work, priority, created_at, started_at, ended_at, ends_by,
    contract -> '$.requires', coalesce(assigned, '[]'), reject, verdict";

/// Returns one run.
///
/// # Errors
/// `not-found`.
pub fn run(conn: &Connection, id: &RunId, at: At) -> Result<RunView, Error> {
    let mut statement = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM runs WHERE run_id = ?1"))?;
    let view = statement.query_row([id.as_str()], |row| read(row, at)).optional()?;
    let mut view = view.ok_or_else(|| history::missing(conn, id))?;
    view.steps = steps(conn, &view.run_id, at)?;
    place(conn, std::slice::from_mut(&mut view))?;
    Ok(view)
}

/// Returns a run that was queued in this transaction, as [`run`] would: what has only just been written is not read back.
///
/// # Errors
/// None that is expected: only what cannot be JSON.
pub fn queued(submission: &Submission, id: &RunId, position: i64, at: At) -> Result<RunView, Error> {
    let contract = &submission.contract;
    let steps = contract.steps.iter().enumerate().map(|(index, step)| {
        Ok(StepView {
            seq: seq(index),
            id: step.id.clone(),
            kind: step.kind.name().to_owned(),
            uses: role(step),
            state: StepState::Pending.as_str().to_owned(),
            node_id: None,
            attempt: 1,
            needs: to_raw_value(&needs(contract, step))?,
            started_at: None,
            ended_at: None,
            result: None,
        })
    });
    Ok(RunView {
        arrival: 0,
        run_id: id.as_str().to_owned(),
        name: contract.name.clone(),
        state: RunState::Queued.as_str().to_owned(),
        principal: submission.principal.clone(),
        work: contract.work.clone(),
        priority: contract.priority,
        created_at: at.show(at.now),
        started_at: None,
        ended_at: None,
        ends_by: None,
        requires: RawValue::from_string(submission.requires.clone())?,
        assigned: empty_list(),
        reject: None,
        verdict: None,
        queue: Some(QueueView { position }),
        steps: steps.collect::<Result<_, Error>>()?,
    })
}

/// Returns a run's state alone.
///
/// # Errors
/// `not-found`.
pub fn state(conn: &Connection, id: &RunId) -> Result<RunState, Error> {
    let mut statement = conn.prepare_cached("SELECT state FROM runs WHERE run_id = ?1")?;
    let word: Option<String> = statement.query_row([id.as_str()], |row| row.get(0)).optional()?;
    let word = word.ok_or_else(|| history::missing(conn, id))?;
    RunState::parse(&word).ok_or_else(|| Error::Broken(format!("a run's state is {word:?}")))
}

/// Returns a page of runs, newest first, and the cursor of the next.
pub fn runs(
    conn: &Connection,
    filter: &RunFilter,
    page: &Page,
    at: At,
) -> Result<(Vec<RunView>, Option<String>), Error> {
    let from = filter.since.map_or(Ok(0), |since| first_since(conn, since - at.offset))?;
    let before = match &page.cursor {
        None => i64::MAX,
        Some(cursor) => cursor.parse().map_err(|_| bad_cursor())?,
    };
    let limit = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
    let query = format!("SELECT {COLUMNS} FROM {}", walk(filter));
    let mut statement = conn.prepare_cached(&query)?;
    // Each walk names those that it needs.
    let values: [(&str, &dyn ToSql); 7] = [
        (":from", &from),
        (":before", &before),
        (":limit", &limit),
        (":state", &filter.state.map(RunState::as_str)),
        (":principal", &filter.principal),
        (":work", &filter.work),
        (":node", &filter.node),
    ];
    for (name, value) in values {
        if let Some(at) = statement.parameter_index(name)? {
            statement.raw_bind_parameter(at, value)?;
        }
    }
    let rows = statement.raw_query().mapped(|row| read(row, at));
    let mut list: Vec<RunView> = rows.collect::<Result<_, _>>()?;
    let next = cut(&mut list, page.limit, |run| run.arrival.to_string());
    for view in &mut list {
        view.steps = steps(conn, &view.run_id, at)?;
    }
    place(conn, &mut list)?;
    Ok((list, next))
}

/// Returns what follows FROM in the list of runs: the walk, newest first, that has the least to pass over.
fn walk(filter: &RunFilter) -> String {
    let given = |is_given: bool, condition: &'static str| if is_given { condition } else { "" };
    let principal = given(filter.principal.is_some(), "AND runs.principal = :principal");
    let work = given(filter.work.is_some(), "AND runs.work = :work");
    let state = given(filter.state.is_some(), "AND state = :state");
    if filter.node.is_some() {
        // A node's runs are walked by its leases: those of all its years are not listed to show a page. A run may have
        // held the node twice.
        return format!(
            "lease_history AS held INDEXED BY lease_history_arrival CROSS JOIN runs ON runs.arrival = held.arrival
             WHERE held.node_id = :node AND held.arrival >= :from AND held.arrival < :before {state} {principal} {work}
             GROUP BY held.arrival ORDER BY held.arrival DESC LIMIT :limit"
        );
    }
    if filter.work.is_some() || (filter.principal.is_none() && filter.state.is_none()) {
        let index = given(filter.work.is_some(), "INDEXED BY runs_work");
        return format!(
            "runs {index} WHERE arrival >= :from AND arrival < :before {state} {principal} {work}
             ORDER BY arrival DESC LIMIT :limit"
        );
    }
    // Each state has an index of its own: the walks of all of them are merged.
    let states = RunState::ALL.into_iter().filter(|state| filter.state.is_none_or(|wanted| wanted == *state));
    let walks = states.map(|state| {
        let index = match state {
            RunState::Queued => "runs_waiting WHERE",
            // As many as there are nodes, at most.
            RunState::Running => "runs_ends_by WHERE",
            _ if principal.is_empty() => "runs_ended WHERE ended_at IS NOT NULL AND",
            _ => "runs_principal_ended WHERE ended_at IS NOT NULL AND",
        };
        format!(
            "SELECT arrival AS own FROM runs INDEXED BY {index} state = '{state}' {principal}
                 AND arrival >= :from AND arrival < :before"
        )
    });
    format!(
        "({} ORDER BY own DESC LIMIT :limit) CROSS JOIN runs ON runs.arrival = own ORDER BY own DESC",
        walks.collect::<Vec<_>>().join(" UNION ALL ")
    )
}

/// Finds the first run that was submitted at `time` or later, by its arrival: times grow with arrivals, so a search by
/// halves needs no index.
fn first_since(conn: &Connection, time: Ms) -> Result<i64, Error> {
    let mut next =
        conn.prepare_cached("SELECT arrival, created_at FROM runs WHERE arrival >= ?1 ORDER BY arrival LIMIT 1")?;
    let last: Option<i64> = conn.prepare_cached("SELECT max(arrival) FROM runs")?.query_row([], |row| row.get(0))?;
    let (mut low, mut high) = (0, last.map_or(0, |last| last + 1));
    while low < high {
        let middle = low + (high - low) / 2;
        let (arrival, created_at): (i64, Ms) = next.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if created_at < time { low = arrival + 1 } else { high = middle }
    }
    Ok(low)
}

pub(super) fn bad_cursor() -> Error {
    let refusal = crate::store::Refusal::new("invalid-request", "not a cursor that a list gave as `next`");
    Error::Refused(refusal.at("/cursor"))
}

fn read(row: &Row, at: At) -> rusqlite::Result<RunView> {
    let show = |at: At, column: Option<Ms>| column.map(|time| at.show(time));
    let ends_by: Ms = row.get(10)?;
    Ok(RunView {
        arrival: row.get(0)?,
        run_id: row.get(1)?,
        name: row.get(2)?,
        state: row.get(3)?,
        principal: row.get(4)?,
        work: row.get(5)?,
        priority: row.get(6)?,
        created_at: at.show(row.get(7)?),
        started_at: show(at, row.get(8)?),
        ended_at: show(at, row.get(9)?),
        ends_by: at.show_deadline(ends_by),
        requires: stored(row.get(11)?).unwrap_or_else(empty_list),
        assigned: RawValue::from_string(row.get(12)?).unwrap_or_else(|_| empty_list()),
        reject: stored(row.get(13)?),
        verdict: stored(row.get(14)?),
        queue: None,
        steps: Vec::new(),
    })
}

fn empty_list() -> Box<RawValue> {
    RawValue::from_string("[]".to_owned()).expect("a list")
}

/// Reads a JSON column. One that is not JSON any more is shown as a text: looking must not fail for it.
fn stored(text: Option<String>) -> Option<Box<RawValue>> {
    text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| to_raw_value(&text).expect("a text is JSON")))
}

/// Finds the places of those that wait: one walk of the index for those of a priority, and one for what goes before it.
fn place(conn: &Connection, views: &mut [RunView]) -> Result<(), Error> {
    let mut queued: Vec<&mut RunView> =
        views.iter_mut().filter(|view| view.state == RunState::Queued.as_str()).collect();
    queued.sort_by_key(|view| (view.priority, view.arrival));
    let mut last: Option<(i64, i64, i64)> = None;
    for view in queued {
        let (priority, arrival) = (view.priority, view.arrival);
        let position = match last {
            Some((same, before, position)) if same == priority => position + between(conn, priority, before, arrival)?,
            _ => above(conn, priority)? + between(conn, priority, 0, arrival)?,
        };
        view.queue = Some(QueueView { position });
        last = Some((priority, arrival, position));
    }
    Ok(())
}

/// Counts the waiting runs of a higher priority.
fn above(conn: &Connection, priority: i64) -> Result<i64, Error> {
    let mut statement = conn
        .prepare_cached("SELECT count(*) FROM runs INDEXED BY runs_waiting WHERE state = 'QUEUED' AND priority > ?1")?;
    Ok(statement.query_row([priority], |row| row.get(0))?)
}

/// Counts the waiting runs of one priority that arrived after `after`, up to `upto`.
fn between(conn: &Connection, priority: i64, after: i64, upto: i64) -> Result<i64, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT count(*) FROM runs INDEXED BY runs_waiting
         WHERE state = 'QUEUED' AND priority = ?1 AND arrival > ?2 AND arrival <= ?3",
    )?;
    Ok(statement.query_row((priority, after, upto), |row| row.get(0))?)
}

fn steps(conn: &Connection, run: &str, at: At) -> Result<Vec<StepView>, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT seq, id, kind, uses, state, node_id, attempt, needs, started_at, ended_at, result FROM steps
         WHERE run_id = ?1 ORDER BY seq",
    )?;
    let steps = statement.query_map([run], |row| {
        Ok(StepView {
            seq: row.get(0)?,
            id: row.get(1)?,
            kind: row.get(2)?,
            uses: row.get(3)?,
            state: row.get(4)?,
            node_id: row.get(5)?,
            attempt: row.get(6)?,
            needs: stored(row.get(7)?).unwrap_or_else(empty_list),
            started_at: row.get::<_, Option<Ms>>(8)?.map(|time| at.show(time)),
            ended_at: row.get::<_, Option<Ms>>(9)?.map(|time| at.show(time)),
            result: stored(row.get(10)?),
        })
    })?;
    Ok(steps.collect::<Result<_, _>>()?)
}
