//! The table of everything that can be called.

use std::pin::Pin;

use hyper::Method;

use super::call::{Call, decode};
use super::problem::Problem;
use super::reply::{self, Reply};
use super::{asks, kept, nodes, outbox, requests, runs, steps};
use crate::store::token::Principal;

type Answer = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;

/// What a route takes as its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// Nothing; an empty JSON body does no harm.
    None,
    /// JSON.
    Json,
    /// Bytes of any type.
    Raw,
}

/// One thing that can be called.
pub struct Route {
    method: Method,
    /// Segments; `*` stands for one that is handed to the handler, `**` at the end for one or more, joined.
    pattern: &'static str,
    /// Whether only operators may call it.
    pub operators_only: bool,
    /// What it takes.
    pub body: BodyKind,
    /// Whether it is done once for each idempotency key. Others are repeatable by nature, or change nothing.
    pub once: bool,
    /// What answers it.
    pub handler: fn(Call) -> Answer,
}

macro_rules! routes {
    ($($method:ident $pattern:literal $body:ident $who:ident $often:ident $handler:path;)*) => {
        /// Every route.
        pub static ROUTES: &[Route] = &[$(Route {
            method: Method::$method,
            pattern: $pattern,
            operators_only: routes!(@ $who),
            body: BodyKind::$body,
            once: routes!(@ $often),
            handler: |call| Box::pin($handler(call)),
        }),*];
    };
    (@ once) => { true };
    (@ often) => { false };
    (@ anyone) => { false };
    (@ operators) => { true };
}

routes! {
    GET    "healthz"                              None anyone    often healthz;
    GET    "readyz"                               None anyone    often readyz;
    POST   "v1/runs"                              Json anyone    once  runs::submit;
    GET    "v1/runs"                              None anyone    often runs::list;
    GET    "v1/runs/*"                            None anyone    often runs::show;
    POST   "v1/runs/*/cancel"                     Json anyone    once  runs::cancel;
    POST   "v1/runs/*/renew"                      Json anyone    often runs::renew;
    GET    "v1/runs/*/steps/*/log"                None anyone    often steps::read_log;
    PUT    "v1/runs/*/steps/*/log"                Raw  anyone    often steps::write_log;
    PUT    "v1/runs/*/steps/*/artifacts/**"       Raw  anyone    often kept::write_artifact;
    GET    "v1/runs/*/artifacts"                  None anyone    often kept::list_artifacts;
    GET    "v1/runs/*/artifacts/**"               None anyone    often kept::read_artifact;
    GET    "v1/runs/*/record"                     None anyone    often kept::read_record;
    GET    "v1/runs/*/why"                        None anyone    often runs::why;
    POST   "v1/runs/*/steps/*/result"             Json anyone    often steps::result;
    POST   "v1/runs/*/steps/*/answer"             Json anyone    once  asks::answer;
    POST   "v1/nodes"                             Json anyone    often nodes::advertise;
    GET    "v1/nodes"                             None anyone    often nodes::list;
    GET    "v1/nodes/*"                           None anyone    often nodes::show;
    DELETE "v1/nodes/*"                           Json operators once  nodes::remove;
    POST   "v1/nodes/*/claim"                     Json anyone    often nodes::claim;
    POST   "v1/nodes/*/cleaned"                   Json anyone    often nodes::cleaned;
    POST   "v1/nodes/*/clean"                     Json operators once  nodes::clean;
    POST   "v1/nodes/*/drain"                     Json operators once  nodes::drain;
    DELETE "v1/nodes/*/drain"                     Json operators once  nodes::undrain;
    GET    "v1/capabilities"                      None anyone    often nodes::capabilities;
    GET    "v1/asks"                              None anyone    often asks::list;
    GET    "v1/backup"                            None operators often kept::backup;
    GET    "v1/doctor"                            None operators often outbox::doctor;
    GET    "v1/outbox"                            None operators often outbox::list;
    POST   "v1/outbox/*/resend"                   Json operators once  outbox::resend;
    GET    "v1/idempotency/*"                     None anyone    often requests::show;
    GET    "v1/events"                            None anyone    often kept::events;
}

/// Says whether a path asks for no token.
pub fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz")
}

/// Who calls a route that asks for no token.
pub fn nobody() -> Principal {
    Principal { name: String::new(), operator: false }
}

/// Finds the route of a request, and the variable segments of its path.
///
/// # Errors
/// `not-found`; `method-not-allowed` with the methods that the path knows.
pub fn find(method: &Method, path: &str) -> Result<(&'static Route, Vec<String>), Problem> {
    let unknown = || Problem::new("not-found", "there is nothing at this address");
    let mut segments = Vec::new();
    // Matched on the path as received, decoded once by segment: what decodes to a separator is not one.
    for segment in path.strip_prefix('/').ok_or_else(unknown)?.split('/') {
        let decoded = decode(segment).ok_or_else(unknown)?;
        let is_key = segments == ["v1", "idempotency"];
        let splits = |c| matches!(c, '/' | '\\' | '\0');
        if decoded.is_empty() || (!is_key && (matches!(decoded.as_str(), "." | "..") || decoded.contains(splits))) {
            return Err(unknown());
        }
        segments.push(decoded);
    }
    let mut allowed = Vec::new();
    for route in ROUTES {
        if let Some(params) = match_segments(route.pattern, &segments) {
            if route.method == *method {
                return Ok((route, params));
            }
            allowed.push(route.method.as_str());
        }
    }
    if allowed.is_empty() {
        return Err(unknown());
    }
    let detail = format!("this address knows {}", allowed.join(", "));
    Err(Problem::new("method-not-allowed", detail).allow(allowed.join(", ")))
}

fn match_segments(pattern: &str, segments: &[String]) -> Option<Vec<String>> {
    let mut wanted: Vec<&str> = pattern.split('/').collect();
    let mut params = Vec::new();
    let mut tail = None;
    if wanted.last() == Some(&"**") && segments.len() >= wanted.len() {
        wanted.pop();
        tail = Some(segments[wanted.len()..].join("/"));
    } else if wanted.len() != segments.len() {
        return None;
    }
    for (wanted, own) in wanted.into_iter().zip(segments) {
        if wanted == "*" {
            params.push(own.clone());
        } else if wanted != own {
            return None;
        }
    }
    params.extend(tail);
    Some(params)
}

/// `GET /healthz`: the process answers.
async fn healthz(_: Call) -> Result<Reply, Problem> {
    Ok(reply::json(hyper::StatusCode::OK, &serde_json::json!({"status": "ok"})))
}

/// `GET /readyz`: the database answers, reading and writing; if not, why.
async fn readyz(call: Call) -> Result<Reply, Problem> {
    let is_stopping = *call.app.stop.borrow();
    let ready = if is_stopping { Err("the daemon is stopping".to_owned()) } else { call.app.store.is_ready().await };
    ready.map_err(|why| Problem::new("unavailable", why))?;
    Ok(reply::json(hyper::StatusCode::OK, &serde_json::json!({"status": "ready"})))
}
