//! The one HTTP client: the commands and the agent both speak to the daemon through it.
//!
//! It knows addresses, tokens, time limits and problems; it does not retry. Whoever calls knows whether asking
//! again is right.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::config::login::Login;
use crate::tls::Trust;

/// A request's body: whole, or read from a file while it is sent.
type Body = BoxBody<Bytes, std::io::Error>;

/// How long a call may take when its caller has no reason to wait longer.
pub const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A token: never printed, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps the text of a token; surrounding white space (a file's last newline) is dropped.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Speaks to one daemon. Cheap to clone; connections are kept and shared.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    token: Token,
    key: Option<String>,
    pool: Pool<HttpsConnector<HttpConnector>, Body>,
}

/// A 2xx answer.
#[derive(Debug)]
pub struct Answer {
    /// The status: a caller may care for 200, 201, 202 or 204.
    pub status: StatusCode,
    /// The headers as received.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// A 2xx answer whose body comes in pieces: a large file, or a stream without end.
#[derive(Debug)]
pub struct Opened {
    url: String,
    headers: HeaderMap,
    body: Incoming,
}

/// Why a call has no 2xx answer.
#[derive(Debug)]
pub enum Error {
    /// There is no address, no token, or they make no sense: nothing was sent.
    Setup(String),
    /// No answer: the daemon is not there, or went away, or took too long. Whether it acted is unknown.
    Unreachable {
        /// The address that was tried.
        url: String,
        /// What the connection said.
        cause: String,
        /// Whether the request may have reached it.
        sent: bool,
    },
    /// The daemon answered with a problem.
    Refused(Box<Problem>),
    /// The answer was not what this client understands.
    Garbled(String),
}

/// A problem, as the daemon tells it (`application/problem+json`).
#[derive(Clone, Debug)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code, e.g. `no-candidate`; empty when the body was no problem document.
    pub code: String,
    /// The sentence for people.
    pub detail: String,
    /// JSON pointer to the field that is wrong, if one is.
    pub path: Option<String>,
    /// The whole document.
    pub body: Value,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup(what) => f.write_str(what),
            Self::Unreachable { url, cause, .. } => {
                write!(f, "cannot reach the daemon at {url}: is `mediator serve` running? ({cause})")
            }
            Self::Refused(problem) => problem.fmt(f),
            Self::Garbled(what) => write!(f, "the daemon's answer makes no sense: {what}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        if let Some(path) = &self.path {
            write!(f, " (at {path})")?;
        }
        if self.code.is_empty() {
            write!(f, " [{}]", self.status.as_u16())
        } else {
            write!(f, " [{} {}]", self.status.as_u16(), self.code)
        }
    }
}

impl std::error::Error for Error {}

impl Answer {
    /// Returns the body as JSON.
    pub fn json(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body).map_err(|error| Error::Garbled(error.to_string()))
    }
}

impl Client {
    /// Makes a client for the daemon at `url`, e.g. `http://127.0.0.1:7340`. Of an `https://` address it trusts whom
    /// `MEDIATOR_CA_FILE` allows.
    ///
    /// # Errors
    /// [`Error::Setup`] when `url` is not an `http://` or `https://` address.
    pub fn new(url: &str, token: Token) -> Result<Self, Error> {
        Self::trusting(url, token, &Trust::of_environment())
    }

    /// Makes a client that takes only those for the daemon whom `trust` allows.
    ///
    /// # Errors
    /// As [`Client::new`]; also when `trust` names a file that cannot be used.
    pub fn trusting(url: &str, token: Token, trust: &Trust) -> Result<Self, Error> {
        let base = url.trim().trim_end_matches('/').to_owned();
        let fits = base.parse::<Uri>().is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.authority().is_some()
                && uri.path() == "/"
                && uri.query().is_none()
        });
        if !fits {
            return Err(Error::Setup(format!(
                "'{base}' is not the address of a daemon: expected http://HOST:PORT or https://HOST:PORT"
            )));
        }
        let connector = trust.connector(base.starts_with("https:")).map_err(Error::Setup)?;
        let pool = Pool::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(30)).build(connector);
        Ok(Self { base, token, key: None, pool })
    }

    /// Makes a client from `MEDIATOR_URL` and `MEDIATOR_TOKEN`; what is not there is what `mediator login` has kept, else
    /// what `url` and `operator.token` in the data folder on this machine say. `data` is that folder if it was named:
    /// then it comes before the login.
    ///
    /// # Errors
    /// [`Error::Setup`], telling what is missing and how to get it.
    pub fn discover(data: Option<&Path>) -> Result<Self, Error> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (url, token) = (set("MEDIATOR_URL"), set("MEDIATOR_TOKEN"));
        let login = if data.is_none() { Login::read().map_err(Error::Setup)? } else { None };
        if let (None, Some(login)) = (&url, login) {
            let token = token.unwrap_or(login.token);
            let trust = match (Trust::of_environment(), login.ca_file) {
                (Trust::Public, Some(file)) => Trust::File(file),
                (given, _) => given,
            };
            return Self::trusting(&login.url, Token::new(&token), &trust);
        }
        let data = data.map_or_else(crate::config::default_data_dir, Path::to_owned);
        let trust = if url.is_some() { Trust::of_environment() } else { Trust::of_folder(&data) };
        let from_folder = |name: &str| {
            let path: PathBuf = data.join(name);
            std::fs::read_to_string(&path).map_err(|error| {
                Error::Setup(format!(
                    "cannot find the daemon: {} is not readable ({error}). Start one here with `mediator serve`, say where it \
                     is with `mediator login URL`, or set MEDIATOR_URL and MEDIATOR_TOKEN",
                    path.display()
                ))
            })
        };
        let url = url.map_or_else(|| from_folder("url"), Ok)?;
        let token = token.map_or_else(|| from_folder("operator.token"), Ok)?;
        Self::trusting(&url, Token::new(&token), &trust)
    }

    /// Returns a client whose requests carry this idempotency key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Returns the daemon's address.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Asks `path` (with its query); waits at most [`CALL_LIMIT`].
    pub async fn get(&self, path: &str) -> Result<Answer, Error> {
        self.call(Method::GET, path, None, Bytes::new(), CALL_LIMIT).await
    }

    /// Posts JSON; waits at most [`CALL_LIMIT`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, Error> {
        self.call(Method::POST, path, Some("application/json"), Bytes::from(body.to_string()), CALL_LIMIT).await
    }

    /// Sends one request and returns its 2xx answer. `path` starts with `/` and may have a query; `limit` bounds
    /// the whole exchange.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when there was no answer (whether the daemon acted is unknown),
    /// [`Error::Refused`] for any status that is not 2xx.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: Bytes,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let mut request = self.request(method, path);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        self.exchange(whole(request, body)?, limit).await
    }

    /// Puts `size` bytes of `from` to `path` without holding them in memory; `limit` bounds the whole exchange.
    ///
    /// # Errors
    /// As [`Client::call`]; [`Error::Unreachable`] also when `from` fails or ends before `size` bytes.
    pub async fn upload(
        &self,
        path: &str,
        size: u64,
        from: impl AsyncRead + Unpin,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let (mut body, channel) = Channel::new(2);
        let request = self
            .request(Method::PUT, path)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, size)
            .body(channel.boxed())
            .map_err(|error| Error::Setup(error.to_string()))?;
        let feed = async move {
            let mut from = from.take(size);
            loop {
                let mut chunk = bytes::BytesMut::with_capacity(64 * 1024);
                match from.read_buf(&mut chunk).await {
                    Ok(0) => return,
                    Err(error) => return body.abort(error),
                    // A body that nobody reads any more: the answer came early.
                    Ok(_) if body.send_data(chunk.freeze()).await.is_err() => return,
                    Ok(_) => {}
                }
            }
        };
        let exchange = self.exchange(request, limit);
        tokio::pin!(exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            () = feed => exchange.await,
        }
    }

    /// Asks `path` and returns once a 2xx answer begins, at most [`CALL_LIMIT`] later; its body is read by
    /// [`Opened::next`].
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn open(&self, path: &str, header: Option<(HeaderName, &str)>) -> Result<Opened, Error> {
        let mut request = self.request(Method::GET, path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = whole(request, Bytes::new())?;
        let response = in_time(&self.base, CALL_LIMIT, self.send(request)).await?;
        let (head, body) = response.into_parts();
        Ok(Opened { url: self.base.clone(), headers: head.headers, body })
    }

    fn request(&self, method: Method, path: &str) -> hyper::http::request::Builder {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(AUTHORIZATION, format!("Bearer {}", self.token.0));
        match &self.key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        }
    }

    /// Sends a request and reads its whole answer, within `limit`.
    async fn exchange(&self, request: Request<Body>, limit: Duration) -> Result<Answer, Error> {
        let exchange = async {
            let (head, body) = self.send(request).await?.into_parts();
            let body = body.collect().await.map_err(|error| unreachable(&self.base, chain(&error)))?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        in_time(&self.base, limit, exchange).await
    }

    /// Sends a request; returns a 2xx answer once it begins, and reads any other whole.
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let failed = |cause: String| unreachable(&self.base, cause);
        let response = self.pool.request(request).await.map_err(|error| Error::Unreachable {
            url: self.base.clone(),
            cause: chain(&error),
            sent: !error.is_connect(),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| failed(chain(&error)))?.to_bytes();
        Err(Error::Refused(Box::new(Problem::read(head.status, &body))))
    }
}

/// Gives a request a body that is at hand.
fn whole(request: hyper::http::request::Builder, body: Bytes) -> Result<Request<Body>, Error> {
    let body = Full::new(body).map_err(|never| match never {}).boxed();
    request.body(body).map_err(|error| Error::Setup(error.to_string()))
}

impl Opened {
    /// Returns a header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when the connection broke, or nothing came within `limit`.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Bytes>, Error> {
        let Self { url, body, .. } = self;
        let next = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| unreachable(url, chain(&error)))?;
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
            Ok(None)
        };
        in_time(url, limit, next).await
    }
}

async fn in_time<T>(url: &str, limit: Duration, exchange: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| unreachable(url, format!("no answer within {} s", limit.as_secs_f32()));
    tokio::time::timeout(limit, exchange).await.map_err(late)?
}

fn unreachable(url: &str, cause: String) -> Error {
    Error::Unreachable { url: url.to_owned(), cause, sent: true }
}

impl Problem {
    fn read(status: StatusCode, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        Self {
            status,
            code: text("code").unwrap_or_default(),
            detail: text("detail").unwrap_or_else(|| format!("the daemon answered {status}")),
            path: text("path"),
            body,
        }
    }
}

/// Returns an error with all its causes, as one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// Percent-encodes one path segment or query value.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
