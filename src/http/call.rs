//! One request that has passed the checks of its head: its query, its path, its body as it comes, and how what it does is
//! done once for each key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Uri};
use tokio::time::Instant;

use super::App;
use super::problem::Problem;
use super::reply::{self, Reply};
use crate::domain::ids::{NodeId, RunId};
use crate::domain::json::{self, Json};
use crate::store::request::{self, Answered, Effect, Keyed};
use crate::store::token::Principal;
use crate::store::{Error, Tx};

/// How long a JSON body may take, and how long a long body may pause.
pub const BODY_LIMIT: Duration = Duration::from_secs(30);

/// The least that a body must come at after [`BODY_LIMIT`], in bytes a second from its beginning on.
const LEAST_RATE: u64 = 1 << 10;

/// The most that is kept in memory of all JSON bodies that are not whole yet.
const BUFFERED_BYTES: usize = 64 << 20;

/// A request that has passed the checks that need no body.
pub struct Call {
    /// The daemon.
    pub app: App,
    /// Who calls; of a route without a token nobody in particular.
    pub caller: Principal,
    /// The variable parts of the path, decoded.
    pub params: Vec<String>,
    /// The query.
    pub query: Query,
    /// The headers as received.
    pub headers: HeaderMap,
    /// What is still to be read.
    pub body: Body,
    /// The method and the path as received, for the fingerprint.
    pub target: (Method, String),
    /// The idempotency key, if one was sent.
    pub key: Option<String>,
    /// By which the log and the client speak of this request.
    pub request_id: String,
}

/// The body of a request, and whether it was read to its end: an answer that is given earlier ends the connection.
pub struct Body {
    incoming: Incoming,
    is_read: Arc<AtomicBool>,
    began: Instant,
    received: u64,
}

/// The parameters of a query, each once.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Call {
    /// Reads a JSON body.
    ///
    /// # Errors
    /// `too-large`, `invalid-request`.
    pub async fn json(&mut self) -> Result<Json, Problem> {
        self.json_or("invalid-request").await
    }

    /// Reads a JSON body; `code` is for one that is there and is no JSON.
    ///
    /// # Errors
    /// `too-large`, `invalid-request`, `code`.
    pub async fn json_or(&mut self, code: &'static str) -> Result<Json, Problem> {
        let bytes = self.bytes(self.app.store.settings().max_body_bytes).await?;
        json::parse(&bytes).map_err(|invalid| Problem::invalid(code, invalid))
    }

    /// Does `effect` in one write; with a key, once for all equal requests (I5).
    ///
    /// # Errors
    /// What `effect` refuses; `idempotency-payload-conflict`, `idempotency-key-expired`.
    pub async fn once(
        &self,
        body: &Json,
        mut effect: impl FnMut(&Tx) -> Result<Effect, Error> + Send + 'static,
    ) -> Result<Reply, Problem> {
        let keyed = self.key.as_ref().map(|key| Keyed {
            scope: self.caller.name.clone(),
            key: key.clone(),
            fingerprint: self.fingerprint(body),
        });
        let answered = self.app.store.write(move |tx| request::once(tx, keyed.as_ref(), &mut effect)).await?;
        Ok(match answered {
            Answered::New(answer, kept) => reply::of(answer, kept, false),
            Answered::Replay(answer, kept) => reply::of(answer, Some(kept), true),
        })
    }

    fn fingerprint(&self, body: &Json) -> [u8; 32] {
        let query: Vec<_> = self.query.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        request::fingerprint(self.target.0.as_str(), &self.target.1, &query, &body.canonical())
    }

    /// Reads a whole body of at most `most` bytes.
    async fn bytes(&mut self, most: usize) -> Result<Bytes, Problem> {
        let read = async {
            let mut whole = Vec::new();
            let mut kept = Kept { app: self.app.clone(), bytes: 0 };
            while let Some(chunk) = self.body.next().await? {
                if whole.len() + chunk.len() > most {
                    return Err(too_large(most as u64));
                }
                kept.more(chunk.len())?;
                whole.extend_from_slice(&chunk);
            }
            Ok(Bytes::from(whole))
        };
        tokio::time::timeout(BODY_LIMIT, read).await.unwrap_or_else(|_| Err(too_slow()))
    }

    /// Returns the size of the body, if it was announced.
    pub fn announced(&self) -> Option<u64> {
        self.body.incoming.size_hint().exact()
    }

    /// Returns the run that the path names.
    ///
    /// # Errors
    /// `not-found` for what cannot be a run's id.
    pub fn run(&self) -> Result<RunId, Problem> {
        let text = &self.params[0];
        RunId::new(text.as_str()).ok_or_else(|| Problem::new("not-found", format!("there is no run {text}")))
    }

    /// Returns the node that the path names.
    ///
    /// # Errors
    /// `not-found` for what cannot be a node's id.
    pub fn node(&self) -> Result<NodeId, Problem> {
        let text = &self.params[0];
        NodeId::new(text.as_str()).ok_or_else(|| Problem::new("not-found", format!("there is no node {text}")))
    }

    /// Returns the step's number that the path names behind the run.
    ///
    /// # Errors
    /// `not-found` for what is no number.
    pub fn seq(&self) -> Result<i64, Problem> {
        let text = &self.params[1];
        // One address for one step: neither `+1` nor `01`.
        let is_plain = !text.starts_with(['+', '0']);
        let seq = text.parse().ok().filter(|seq| is_plain && (1..=500).contains(seq));
        seq.ok_or_else(|| Problem::new("not-found", format!("there is no step {text} in run {}", self.params[0])))
    }
}

impl Body {
    /// Takes a body; the flag turns true when it has been read to its end.
    pub fn new(incoming: Incoming) -> (Self, Arc<AtomicBool>) {
        let is_read = Arc::new(AtomicBool::new(incoming.is_end_stream()));
        let body = Self { incoming, is_read: Arc::clone(&is_read), began: Instant::now(), received: 0 };
        (body, is_read)
    }

    /// Waits for the next piece; `None` at the end.
    ///
    /// # Errors
    /// `invalid-request` when it breaks off, is malformed, pauses for longer than [`BODY_LIMIT`], or comes more slowly
    /// than [`LEAST_RATE`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let owed = Duration::from_secs(self.received / LEAST_RATE);
        let until = self.began + BODY_LIMIT + owed;
        let next = async {
            while let Some(frame) = self.incoming.frame().await {
                let broke = |error| Problem::new("invalid-request", format!("the body broke off: {error}"));
                if let Ok(data) = frame.map_err(broke)?.into_data() {
                    self.received += data.len() as u64;
                    return Ok(Some(data));
                }
            }
            self.is_read.store(true, Ordering::Relaxed);
            Ok(None)
        };
        let until = until.min(Instant::now() + BODY_LIMIT);
        tokio::time::timeout_at(until, next).await.unwrap_or_else(|_| Err(too_slow()))
    }
}

/// What is kept in memory of a body that is not whole yet.
struct Kept {
    app: App,
    bytes: usize,
}

impl Kept {
    fn more(&mut self, bytes: usize) -> Result<(), Problem> {
        self.bytes += bytes;
        if self.app.buffered.fetch_add(bytes, Ordering::Relaxed) + bytes > BUFFERED_BYTES {
            return Err(Problem::new("unavailable", "too many requests are on their way: nothing was changed"));
        }
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.app.buffered.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The body came too slowly.
fn too_slow() -> Problem {
    Problem::new("invalid-request", format!("the body did not come within {} s", BODY_LIMIT.as_secs()))
}

/// The body is larger than `most` bytes.
pub fn too_large(most: u64) -> Problem {
    Problem::new("too-large", format!("the body has more than {most} bytes"))
}

impl Query {
    /// Reads the query of `uri`; a parameter may be there once.
    ///
    /// # Errors
    /// `invalid-request`, naming the parameter.
    pub fn read(uri: &Uri) -> Result<Self, Problem> {
        let mut parameters = BTreeMap::new();
        for pair in uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| {
                decode(&text.replace('+', " ")).ok_or_else(|| {
                    Problem::new("invalid-request", format!("`{pair}` in the query is not percent-encoded UTF-8"))
                })
            };
            let (name, value) = (decode(name)?, decode(value)?);
            if parameters.insert(name.clone(), value).is_some() {
                return Err(Problem::new("invalid-request", format!("`{name}` is in the query twice")));
            }
        }
        Ok(Self(parameters))
    }

    /// Refuses parameters that are not among `known`, so that a typo is seen.
    ///
    /// # Errors
    /// `invalid-request`.
    pub fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(Problem::new(
                "invalid-request",
                format!("unknown query parameter `{name}`; known here: {}", known.join(", ")),
            )),
        }
    }

    /// Returns a parameter that is there and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Reads a number.
    ///
    /// # Errors
    /// `invalid-request`, naming the parameter.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        // A parser takes `+5` too.
        let number: Option<T> = if text.starts_with('+') { None } else { text.parse().ok() };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Problem::new(
                "invalid-request",
                format!("query parameter `{name}`: expected a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// Reads `true` or `false`; absent is false.
    ///
    /// # Errors
    /// `invalid-request`, naming the parameter.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => {
                Err(Problem::new("invalid-request", format!("query parameter `{name}`: expected true or false")))
            }
        }
    }

    /// Reads `limit` and `cursor`.
    ///
    /// # Errors
    /// `invalid-request`.
    pub fn page(&self) -> Result<crate::store::views::Page, Problem> {
        let limit = self.number("limit", 1..=500usize)?.unwrap_or(50);
        Ok(crate::store::views::Page { limit, cursor: self.get("cursor").map(str::to_owned) })
    }

    /// Reads how long a call may wait: `wait_seconds`, fractions allowed, cut to `most`.
    ///
    /// # Errors
    /// `invalid-request`.
    pub fn wait(&self, most: Duration) -> Result<Duration, Problem> {
        let seconds = self.number("wait_seconds", 0.0..=86_400.0f64)?.unwrap_or(0.0);
        Ok(Duration::from_secs_f64(seconds).min(most))
    }
}

/// Decodes percent-encoding once; `None` when it is malformed or not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}
