//! For whoever operates a daemon: the outbox, and how it is.

use hyper::StatusCode;
use serde_json::json;

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use super::runs::invalid;
use crate::domain::field::Field;
use crate::store::outbox as store_outbox;
use crate::store::request::Effect;
use crate::store::views::At;

/// `GET /v1/outbox`.
pub async fn list(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["state", "limit", "cursor"])?;
    let state = match call.query.get("state") {
        None => None,
        Some(word @ ("pending" | "delivered" | "failed")) => Some(word.to_owned()),
        Some(_) => {
            let detail = "query parameter `state`: expected pending, delivered or failed";
            return Err(Problem::new("invalid-request", detail));
        }
    };
    let (page, at) = (call.query.page()?, At::of(call.app.store.clock()));
    let (list, next) = call.app.store.read(move |conn| store_outbox::list(conn, state.as_deref(), &page, at)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"outbox": list, "next": next})))
}

/// `GET /v1/doctor`.
pub async fn doctor(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let view = call.app.store.doctor().await?;
    Ok(reply::json(StatusCode::OK, &view))
}

/// `POST /v1/outbox/{id}/resend`.
pub async fn resend(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let text = &call.params[0];
    let id = text.parse().map_err(|_| Problem::new("not-found", format!("there is no notification {text}")))?;
    let body = call.json().await?;
    Field::root(&body).object().and_then(|fields| fields.finish()).map_err(invalid)?;
    call.once(&body, move |tx| {
        let view = store_outbox::resend(tx, id)?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed: true, run: None })
    })
    .await
}
