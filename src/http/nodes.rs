//! Nodes: adverts, claims, draining, and looking at them.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use super::runs::{MAX_WAIT, invalid};
use crate::domain::Invalid;
use crate::domain::contract::attributes;
use crate::domain::field::{Field, Fields};
use crate::domain::json::Json;
use crate::domain::matching::Capability;
use crate::store::Error;
use crate::store::advert::{Advert, DrainMode, advertise as store_advertise};
use crate::store::claim::{Claim, Working, claim as store_claim};
use crate::store::clean::{self as store_clean, Cleaned};
use crate::store::drain as store_drain;
use crate::store::hub::Topic;
use crate::store::request::Effect;
use crate::store::views::{self, At};

/// The most capabilities one advert may list.
const MAX_CAPABILITIES: usize = 256;

/// `POST /v1/nodes`.
pub async fn advertise(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let body = call.json().await?;
    let advert = read_advert(&body).map_err(invalid)?;
    if advert.instance.is_none() && !call.caller.operator {
        return Err(Problem::new("forbidden", "only an operator declares a static node").at("/static"));
    }
    let answer = call.app.store.write(move |tx| store_advertise(tx, &advert)).await?;
    Ok(reply::json(StatusCode::OK, &answer))
}

fn read_advert(body: &Json) -> Result<Advert, Invalid> {
    let fields = Field::root(body).object()?;
    let node = fields.req("node_id")?.node_id()?;
    let text = |fields: &Fields, name| -> Result<Option<String>, Invalid> {
        let text = fields.opt(name).map(|field| field.text().map(str::to_owned)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    };
    let label = text(&fields, "label")?;
    let is_static = fields.opt("static").map_or(Ok(false), |field| field.boolean())?;
    let instance = match (is_static, fields.opt("instance")) {
        (false, Some(field)) => Some(field.word()?.to_owned()),
        (false, None) => return Err(fields.invalid_at("instance", "missing: the life of the node's agent")),
        (true, None) => None,
        (true, Some(field)) => return Err(field.invalid("a static node has no agent, so no instance")),
    };
    let mut capabilities = Vec::new();
    for field in fields.req("capabilities")?.list(0..=MAX_CAPABILITIES)? {
        let own = field.object()?;
        let capability = own.req("capability")?.word()?.to_owned();
        let attrs_field = own.opt("attrs");
        let attrs = attrs_field.as_ref().map(attributes).transpose()?.unwrap_or_default();
        if attrs.get("node").is_some_and(|own| own != node.as_str()) {
            return Err(own.invalid_at("attrs", "the attribute `node` is the node's id"));
        }
        own.finish()?;
        capabilities.push(Capability { capability, attrs });
    }
    let drain = match fields.opt("policy") {
        None => None,
        Some(policy) => {
            let policy = policy.object()?;
            let reason = text(&policy, "reason")?;
            let mode = match policy.opt("drain") {
                None => None,
                Some(field) => match field.text()? {
                    "" => None,
                    word => Some(DrainMode::parse(word).ok_or_else(|| field.invalid(MODES))?),
                },
            };
            policy.finish()?;
            mode.map(|mode| (mode, reason))
        }
    };
    let cleans = fields.opt("cleans").map_or(Ok(false), |field| field.boolean())?;
    if cleans && is_static {
        return Err(fields.invalid_at("cleans", "a static node has no agent that could clean it"));
    }
    let agent_version = text(&fields, "agent_version")?;
    let host = text(&fields, "host")?;
    fields.finish()?;
    Ok(Advert { node, label, instance, capabilities, drain, cleans, agent_version, host })
}

const MODES: &str = "expected `graceful` or `at-boundary`";

/// `POST /v1/nodes/{id}/claim`: parked until there is a step to claim, or the one at work is taken away.
pub async fn claim(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&["wait_seconds"])?;
    let third = u64::try_from(call.app.store.settings().lease_ttl_ms / 3).unwrap_or(0);
    let wait = call.query.wait(MAX_WAIT.min(Duration::from_millis(third)))?;
    let node = call.node()?;
    let body = call.json().await?;
    let read = || -> Result<Claim, Invalid> {
        let fields = Field::root(&body).object()?;
        let instance = fields.req("instance")?.word()?.to_owned();
        let working = match fields.opt("working") {
            None => None,
            Some(working) => {
                let working = working.object()?;
                let run = working.req("run_id")?.run_id()?;
                let seq = working.req("seq")?.integer(1..=500)?;
                let attempt = working.req("attempt")?.integer(1..=1000)?;
                working.finish()?;
                Some(Working { run, seq, attempt })
            }
        };
        fields.finish()?;
        Ok(Claim { node: node.clone(), instance, working })
    };
    let claim = read().map_err(invalid)?;
    let store = &call.app.store;
    let until = tokio::time::Instant::now() + wait;
    loop {
        // Left before the look, so that nothing falls between: should both find the step, both are told of it, as
        // whoever asks again is.
        let (own, next) = (claim.clone(), claim.clone());
        let parked = (!wait.is_zero()).then(|| store.park(Topic::Node(node.clone()), move |tx| store_claim(tx, &next)));
        let mut claimed = store.write(move |tx| store_claim(tx, &own)).await?;
        if claimed.is_none()
            && let Some(parked) = parked
        {
            claimed = match call.app.unless_over(parked.done(), until).await.flatten() {
                None => None,
                // The queue came first.
                Some(Err(Error::WakeFirst)) => continue,
                Some(outcome) => Some(outcome?),
            };
        }
        return Ok(match claimed {
            Some(claimed) => reply::json(StatusCode::OK, &claimed),
            None => reply::empty(StatusCode::NO_CONTENT),
        });
    }
}

/// `POST /v1/nodes/{id}/cleaned`: an agent says how a cleaning ended.
pub async fn cleaned(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let node = call.node()?;
    let body = call.json().await?;
    let read = || -> Result<Cleaned, Invalid> {
        let fields = Field::root(&body).object()?;
        let instance = fields.req("instance")?.word()?.to_owned();
        let cleaning = fields.req("cleaning")?.word()?.to_owned();
        let exit_code = fields.opt("exit_code").map(|field| field.integer(-1024..=1024)).transpose()?;
        let error = fields.opt("error").map(|field| field.text().map(str::to_owned)).transpose()?;
        let failure = match (exit_code, error) {
            (Some(0), None) => None,
            (Some(code), None) => Some(format!("cleanup ended with exit code {code}")),
            (None, Some(error)) => Some(format!("cleanup: {error}")),
            _ => return Err(fields.invalid_at("exit_code", "expected one of `exit_code`, `error`")),
        };
        fields.finish()?;
        Ok(Cleaned { node: node.clone(), instance, cleaning, failure })
    };
    let report = read().map_err(invalid)?;
    let view = call.app.store.write(move |tx| {
        store_clean::report(tx, &report)?;
        views::node(tx.rows(), &report.node, tx.at())
    });
    Ok(reply::json(StatusCode::OK, &view.await?))
}

/// `POST /v1/nodes/{id}/clean`: an operator says that it is clean (`done`), or that its agent shall try again.
pub async fn clean(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, by) = (call.node()?, call.caller.name.clone());
    let body = call.json().await?;
    let read = || -> Result<bool, Invalid> {
        let fields = Field::root(&body).object()?;
        let done = fields.opt("done").map_or(Ok(false), |field| field.boolean())?;
        fields.finish()?;
        Ok(done)
    };
    let is_clean = read().map_err(invalid)?;
    call.once(&body, move |tx| {
        let changed = store_clean::settle(tx, &id, is_clean, &by)?;
        let view = views::node(tx.rows(), &id, tx.at())?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed, run: None })
    })
    .await
}

/// `GET /v1/nodes`.
pub async fn list(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["limit", "cursor"])?;
    let (page, at) = (call.query.page()?, At::of(call.app.store.clock()));
    let (nodes, next) = call.app.store.read(move |conn| views::nodes(conn, &page, at)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"nodes": nodes, "next": next})))
}

/// `GET /v1/nodes/{id}`.
pub async fn show(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, at) = (call.node()?, At::of(call.app.store.clock()));
    let view = call.app.store.read(move |conn| views::node_story(conn, &id, at)).await?;
    Ok(reply::json(StatusCode::OK, &view))
}

/// `DELETE /v1/nodes/{id}`: answers with the node as it was.
pub async fn remove(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, by) = (call.node()?, call.caller.name.clone());
    let body = nothing(&mut call).await?;
    call.once(&body, move |tx| {
        let view = views::node(tx.rows(), &id, tx.at())?;
        store_drain::remove(tx, &id, &by)?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed: true, run: None })
    })
    .await
}

/// Reads the body of a request that needs none: it may be an empty object.
async fn nothing(call: &mut Call) -> Result<Json, Problem> {
    let body = call.json().await?;
    Field::root(&body).object().and_then(|fields| fields.finish()).map_err(invalid)?;
    Ok(body)
}

/// `POST /v1/nodes/{id}/drain`.
pub async fn drain(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, by) = (call.node()?, call.caller.name.clone());
    let body = call.json().await?;
    let read = || -> Result<(DrainMode, Option<String>), Invalid> {
        let fields = Field::root(&body).object()?;
        let field = fields.req("mode")?;
        let mode = DrainMode::parse(field.text()?).ok_or_else(|| field.invalid(MODES))?;
        let reason = fields.opt("reason").map(|field| field.text().map(str::to_owned)).transpose()?;
        fields.finish()?;
        Ok((mode, reason.filter(|reason| !reason.is_empty())))
    };
    let (mode, reason) = read().map_err(invalid)?;
    call.once(&body, move |tx| {
        let changed = store_drain::drain(tx, &id, mode, reason.as_deref(), &by)?;
        let view = views::node(tx.rows(), &id, tx.at())?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed, run: None })
    })
    .await
}

/// `DELETE /v1/nodes/{id}/drain`: lifts the operator's side; `drains` shows whether the owner's remains.
pub async fn undrain(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (id, by) = (call.node()?, call.caller.name.clone());
    let body = nothing(&mut call).await?;
    call.once(&body, move |tx| {
        let changed = store_drain::undrain(tx, &id, &by)?;
        let view = views::node(tx.rows(), &id, tx.at())?;
        Ok(Effect { answer: reply::kept(StatusCode::OK, &view, None), changed, run: None })
    })
    .await
}

/// `GET /v1/capabilities`.
pub async fn capabilities(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let (at, forget) = (At::of(call.app.store.clock()), call.app.store.settings().node_forget_ms);
    let list = call.app.store.read(move |conn| views::capabilities(conn, at, forget)).await?;
    Ok(reply::json(StatusCode::OK, &json!({"capabilities": list})))
}
