//! Runs: submit, look at, follow, cancel, renew.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use crate::clock;
use crate::domain::Invalid;
use crate::domain::contract::Contract;
use crate::domain::field::Field;
use crate::domain::ids::RunId;
use crate::domain::matching::Reject;
use crate::domain::run::RunState;
use crate::store::hub::Topic;
use crate::store::request::Effect;
use crate::store::submit::{Submission, Submitted, submit as store_submit};
use crate::store::views::{self, At, RunFilter};
use crate::store::{cancel as store_cancel, renew as store_renew};

/// The longest a follower is parked.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// `POST /v1/runs`.
pub async fn submit(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&["dry_run"])?;
    let dry_run = call.query.flag("dry_run")?;
    let body = call.json_or("invalid-contract").await?;
    let contract = Contract::parse(&body).map_err(|invalid| Problem::invalid("invalid-contract", invalid))?;
    if contract.priority > 0 && !call.caller.operator {
        let detail = "a priority above 0 is for operators";
        return Err(Problem::new("forbidden", detail).at("/priority"));
    }
    let submission = Submission::new(&call.caller.name, contract, &body, dry_run);
    let request_id = call.request_id.clone();
    call.once(&body, move |tx| {
        let (status, id, position) = match store_submit(tx, &submission)? {
            Submitted::DryRun(assigned) => {
                let body = json!({"state": "DRY_RUN", "assigned": assigned});
                return Ok(Effect { answer: reply::kept(StatusCode::OK, &body, None), changed: false, run: None });
            }
            Submitted::Rejected(id, reject) => return Ok(rejected(id, &reject, &request_id)),
            Submitted::Existing(id) => (StatusCode::OK, id, None),
            Submitted::Placed(id) => (StatusCode::CREATED, id, None),
            Submitted::Queued(id, position) => (StatusCode::ACCEPTED, id, Some(position)),
        };
        let view = match position {
            Some(position) => views::queued(&submission, &id, position, tx.at())?,
            None => views::run(tx.rows(), &id, tx.at())?,
        };
        let answer = reply::kept(status, &view, Some(address(id.as_str())));
        Ok(Effect { answer, changed: status != StatusCode::OK, run: Some(id) })
    })
    .await
}

/// A rejection is a problem, and still an effect: the run is stored FAILED, unless it was a dry run.
fn rejected(id: Option<RunId>, reject: &Reject, request_id: &str) -> Effect {
    let shown = id.as_ref().map(RunId::as_str);
    let mut problem = Problem::new(reject.code, reject.detail.clone()).with("run_id", shown);
    problem = problem.with("reject", serde_json::to_value(reject).unwrap_or_default());
    if let Some(id) = shown {
        problem = problem.location(address(id));
    }
    Effect { answer: problem.into_answer(request_id), changed: id.is_some(), run: id }
}

fn address(run: &str) -> String {
    format!("/v1/runs/{run}")
}

/// `GET /v1/runs`.
pub async fn list(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["state", "principal", "work", "node", "since", "limit", "cursor"])?;
    let text = |name| call.query.get(name).map(str::to_owned);
    let state = match call.query.get("state") {
        None => None,
        Some(word) => Some(RunState::parse(word).ok_or_else(|| {
            let known = RunState::ALL.map(RunState::as_str).join(", ");
            Problem::new("invalid-request", format!("query parameter `state`: expected one of {known}"))
        })?),
    };
    let since = match call.query.get("since") {
        None => None,
        Some(time) => Some(clock::parse_rfc3339(time).ok_or_else(|| {
            Problem::new("invalid-request", "query parameter `since`: expected a time such as 2026-01-31T12:00:00Z")
        })?),
    };
    let filter = RunFilter { state, principal: text("principal"), work: text("work"), node: text("node"), since };
    let (page, at) = (call.query.page()?, At::of(call.app.store.clock()));
    let (runs, next) = call.app.store.read(move |conn| views::runs(conn, &filter, &page, at)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"runs": runs, "next": next})))
}

/// `GET /v1/runs/{id}`; with `wait_seconds` and `while` it answers when the state is another, or the time is over.
pub async fn show(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["wait_seconds", "while"])?;
    let id = call.run()?;
    let wait = call.query.wait(MAX_WAIT)?;
    let state = match call.query.get("while") {
        None => None,
        Some(word) => Some(RunState::parse(word).ok_or_else(|| {
            Problem::new("invalid-request", "query parameter `while`: expected a state of a run, e.g. QUEUED")
        })?),
    };
    let store = &call.app.store;
    let until = tokio::time::Instant::now() + wait;
    while let Some(state) = state.filter(|_| !wait.is_zero()) {
        let waiter = store.hub().wait_for(Topic::Run(id.clone()));
        let own = id.clone();
        if store.read(move |conn| views::state(conn, &own)).await? != state || !call.app.parked(waiter, until).await {
            break;
        }
    }
    let at = At::of(store.clock());
    let view = store.read(move |conn| views::run(conn, &id, at)).await?;
    Ok(reply::json(StatusCode::OK, &view))
}

/// `GET /v1/runs/{id}/why`.
pub async fn why(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, at, settings) = (call.run()?, At::of(call.app.store.clock()), call.app.store.settings().clone());
    let view = call.app.store.read(move |conn| views::why(conn, &id, &settings, at)).await?;
    Ok(reply::json(StatusCode::OK, &view))
}

/// `POST /v1/runs/{id}/cancel`.
pub async fn cancel(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let id = call.run()?;
    let body = call.json().await?;
    let fields = Field::root(&body).object().map_err(invalid)?;
    let reason = fields.opt("reason").map(|field| field.text().map(str::to_owned)).transpose().map_err(invalid)?;
    let reason = reason.filter(|reason| !reason.is_empty());
    let only_while = fields.opt("while").map(|field| state_of(&field)).transpose().map_err(invalid)?;
    fields.finish().map_err(invalid)?;
    let by = call.caller.name.clone();
    call.once(&body, move |tx| {
        let changed = store_cancel::cancel(tx, &id, &by, reason.as_deref(), only_while)?;
        let view = views::run(tx.rows(), &id, tx.at())?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed, run: Some(id.clone()) })
    })
    .await
}

/// Reads the state in which a run must be to be cancelled.
fn state_of(field: &Field) -> Result<RunState, Invalid> {
    let live = RunState::parse(field.text()?).filter(|state| !state.is_terminal());
    live.ok_or_else(|| field.invalid("expected QUEUED or RUNNING"))
}

/// `POST /v1/runs/{id}/renew`.
pub async fn renew(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let id = call.run()?;
    let body = call.json().await?;
    Field::root(&body).object().and_then(|fields| fields.finish()).map_err(invalid)?;
    let caller = call.caller.clone();
    let renewed = call.app.store.write(move |tx| store_renew::renew(tx, &id, &caller.name, caller.operator)).await?;
    Ok(reply::json(StatusCode::OK, &renewed))
}

/// Makes the problem of a body that breaks its route's grammar.
pub fn invalid(invalid: Invalid) -> Problem {
    Problem::invalid("invalid-request", invalid)
}
