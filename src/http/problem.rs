//! Problems (RFC 9457): the one shape of an error, and the one place that knows the status of each code.

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Map, Value, json};

use super::reply::{self, Reply};
use crate::domain::Invalid;
use crate::store::request::Answer;
use crate::store::{Error, Refusal};

/// An answer that is not what was asked for.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

/// Boxed, because every handler returns it in a `Result` that is rarely an error.
#[derive(Debug)]
struct Parts {
    code: &'static str,
    detail: String,
    path: Option<String>,
    more: Map<String, Value>,
    allow: Option<String>,
    location: Option<String>,
    /// For the log alone: what a client must not read.
    inside: Option<String>,
}

/// What whoever asked may do with the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    /// Send it again as it is: it may have had an effect, and will have at most one.
    SameKey,
    /// It had no effect; mended, it is a new request.
    NewKey,
    /// It will be answered the same.
    Never,
}

/// Every code: its status, its title, and whether to try again.
const CODES: &[(&str, u16, &str, Retry)] = &[
    ("invalid-request", 400, "The request is not understood", Retry::NewKey),
    ("invalid-contract", 400, "The contract breaks the grammar", Retry::NewKey),
    ("idempotency-key-missing", 400, "An idempotency key is needed", Retry::NewKey),
    ("unauthorized", 401, "A token is needed", Retry::NewKey),
    ("forbidden", 403, "Not yours to do", Retry::Never),
    ("not-found", 404, "Not there", Retry::Never),
    ("method-not-allowed", 405, "Not to be done with this address", Retry::Never),
    ("run-exists", 409, "The run's id is taken", Retry::Never),
    ("static-node", 409, "The node has no agent, or has one", Retry::Never),
    ("stale-instance", 409, "Another agent has taken over", Retry::Never),
    ("unknown-instance", 409, "This agent has not advertised", Retry::NewKey),
    ("stale-lease", 409, "Not in your hands any more", Retry::Never),
    ("node-leased", 409, "A run holds the node", Retry::NewKey),
    ("already-answered", 409, "The question was answered", Retry::Never),
    ("not-asked", 409, "The question is not open", Retry::NewKey),
    ("log-gap", 409, "The log is shorter than that", Retry::NewKey),
    ("not-sealed", 409, "The record is not sealed yet", Retry::NewKey),
    ("idempotency-key-expired", 409, "Done long ago", Retry::Never),
    ("gone", 410, "Not there any more", Retry::Never),
    ("too-large", 413, "Too large", Retry::NewKey),
    ("unsupported-media-type", 415, "JSON is needed", Retry::NewKey),
    ("wrong-host", 421, "Called by a name that is not ours", Retry::NewKey),
    ("no-candidate", 422, "No known nodes can ever do it", Retry::Never),
    ("too-wide", 422, "It needs more nodes than one run may hold", Retry::Never),
    ("idempotency-payload-conflict", 422, "The key was used for another request", Retry::NewKey),
    ("not-an-option", 422, "Not among the answers to choose from", Retry::NewKey),
    ("queue-limit", 429, "Too many runs wait already", Retry::SameKey),
    ("internal", 500, "A mistake of ours", Retry::SameKey),
    ("unavailable", 503, "Not now", Retry::SameKey),
    ("storage-full", 507, "The disk is full", Retry::SameKey),
];

impl Problem {
    /// Makes a problem. `code` is one of [`CODES`]; one that is not there is a mistake of ours, and shown as such.
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        let (path, more, allow, location, inside) = (None, Map::new(), None, None, None);
        Self(Box::new(Parts { code, detail: detail.into(), path, more, allow, location, inside }))
    }

    /// Says which field is wrong, as a JSON pointer.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    /// Adds a member.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(name.to_owned(), value.into());
        self
    }

    /// Says which methods the address knows.
    #[must_use]
    pub fn allow(mut self, methods: String) -> Self {
        self.0.allow = Some(methods);
        self
    }

    /// Says where what it is about can be found.
    #[must_use]
    pub fn location(mut self, address: String) -> Self {
        self.0.location = Some(address);
        self
    }

    /// Makes the problem of a body that breaks the grammar; `code` tells whose grammar.
    pub fn invalid(code: &'static str, invalid: Invalid) -> Self {
        Self::new(code, invalid.what).at(invalid.path)
    }

    fn entry(&self) -> (&'static str, u16, &'static str, Retry) {
        let known = CODES.iter().find(|(code, ..)| *code == self.0.code).copied();
        debug_assert!(known.is_some(), "{} has no status", self.0.code);
        known.unwrap_or(("internal", 500, "A mistake of ours", Retry::SameKey))
    }

    /// Makes the answer. What a client must not read goes to the log, under the same `request_id`.
    pub fn into_reply(self, request_id: &str) -> Reply {
        let (code, status, ..) = self.entry();
        if let Some(inside) = &self.0.inside {
            log::error!("request failed request={request_id} code={code} cause={inside:?}");
        }
        let allow = self.0.allow.as_ref().and_then(|allow| HeaderValue::from_str(allow).ok());
        let mut reply = reply::of(self.into_answer(request_id), None, false);
        let headers = reply.headers_mut();
        if matches!(status, 429 | 503 | 507) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"mediator\""));
        }
        if let Some(allow) = allow {
            headers.insert(ALLOW, allow);
        }
        reply
    }

    /// Makes an answer that can be kept with an idempotency key.
    pub fn into_answer(self, request_id: &str) -> Answer {
        let (code, status, title, retry) = self.entry();
        let retry = match retry {
            Retry::SameKey => "same-key",
            Retry::NewKey => "new-key",
            Retry::Never => "never",
        };
        // What was sent may be told back, but not what a terminal obeys: JSON escapes the first 32 only.
        let shown = |c: char| if c.is_control() && !"\n\t".contains(c) { char::REPLACEMENT_CHARACTER } else { c };
        let detail: String = self.0.detail.chars().map(shown).collect();
        let mut body = json!({
            "type": format!("urn:mediator:problem:{code}"), "title": title, "status": status, "code": code,
            "detail": detail, "request_id": request_id, "path": self.0.path, "retry": retry,
        });
        for (name, value) in self.0.more {
            body[name] = value;
        }
        let mut headers = vec![(CONTENT_TYPE.to_string(), "application/problem+json".to_owned())];
        headers.extend(self.0.location.map(|location| (LOCATION.to_string(), location)));
        Answer { status, headers, body: body.to_string().into_bytes() }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        // A refusal that names a run tells where it is, too.
        let location = refusal.more.get("run_id").and_then(Value::as_str).map(|run| format!("/v1/runs/{run}"));
        let mut problem = Self::new(refusal.code, refusal.detail);
        (problem.0.path, problem.0.more, problem.0.location) = (refusal.path, refusal.more, location);
        problem
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let inside = error.to_string();
        let (code, detail) = match error {
            Error::Refused(refusal) => return refusal.into(),
            Error::Full => ("storage-full", "the daemon's disk is full: nothing was changed"),
            Error::Busy => ("unavailable", "the database is in use by another program: nothing was changed"),
            Error::Disk(_) => {
                ("unavailable", "the daemon's disk failed: whether this had an effect is not known until it is back")
            }
            Error::Short(_) => ("unavailable", "too many files and connections are open: nothing was changed"),
            Error::Unusable(_) => ("unavailable", "the daemon's database cannot be used: nothing was changed"),
            Error::Stopping => return Self::new("unavailable", "the daemon is stopping"),
            Error::Broken(_) | Error::WakeFirst => ("internal", "a mistake of ours: the daemon's log tells more"),
        };
        let mut problem = Self::new(code, detail);
        problem.0.inside = Some(inside);
        problem
    }
}
