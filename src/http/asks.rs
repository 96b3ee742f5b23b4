//! Questions: the inbox, and answering.

use hyper::StatusCode;
use serde_json::json;

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use super::runs::invalid;
use crate::domain::Invalid;
use crate::domain::field::Field;
use crate::store::ask::{Answer, answer as store_answer};
use crate::store::request::Effect;
use crate::store::views::{self, At};

/// `GET /v1/asks`.
pub async fn list(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["limit", "cursor"])?;
    let (page, at) = (call.query.page()?, At::of(call.app.store.clock()));
    let (asks, next) = call.app.store.read(move |conn| views::asks(conn, &page, at)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"asks": asks, "next": next})))
}

/// `POST /v1/runs/{id}/steps/{seq}/answer`.
pub async fn answer(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (run, seq) = (call.run()?, call.seq()?);
    let body = call.json().await?;
    let read = || -> Result<(String, Option<i64>), Invalid> {
        let fields = Field::root(&body).object()?;
        let answer = fields.req("answer")?.long_text()?.to_owned();
        let attempt = fields.opt("attempt").map(|field| field.integer(1..=1000)).transpose()?;
        fields.finish()?;
        Ok((answer, attempt))
    };
    let (text, attempt) = read().map_err(invalid)?;
    let caller = call.caller.clone();
    let given = Answer { run, seq, answer: text, attempt, by: caller.name, operator: caller.operator };
    call.once(&body, move |tx| {
        let changed = store_answer(tx, &given)?;
        let view = views::run(tx.rows(), &given.run, tx.at())?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed, run: Some(given.run.clone()) })
    })
    .await
}
