//! Idempotency keys: "did it happen?" without a POST.

use hyper::StatusCode;

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use crate::store::request;
use crate::store::views::At;

/// `GET /v1/idempotency/{key}`: of the caller's own keys.
pub async fn show(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (scope, key, at) = (call.caller.name.clone(), call.params[0].clone(), At::of(call.app.store.clock()));
    let retention = call.app.store.settings().idempotency_retention_ms;
    let view = call.app.store.read(move |conn| request::request(conn, &scope, &key, retention, at)).await?;
    Ok(reply::json(StatusCode::OK, &view))
}
