//! Answers: bodies and the headers that all of them have.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use super::door::Busy;
use crate::store::request::{Answer, Kept};

/// A body: whole, or as it comes.
pub struct Body {
    inner: UnsyncBoxBody<Bytes, io::Error>,
    /// Held until the body was handed over.
    _busy: Option<Busy>,
}

impl Body {
    fn of(body: impl hyper::body::Body<Data = Bytes, Error = io::Error> + Send + 'static) -> Self {
        Self { inner: body.boxed_unsync(), _busy: None }
    }

    /// Keeps its connection busy until it was handed over.
    pub fn keeping(self, busy: Busy) -> Self {
        Self { _busy: Some(busy), ..self }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.inner.size_hint()
    }
}

/// An answer.
pub type Reply = Response<Body>;

/// Makes a whole body.
fn full(bytes: impl Into<Bytes>) -> Body {
    Body::of(Full::new(bytes.into()).map_err(|never| match never {}))
}

/// A body that comes piece by piece, as fast as the client reads, and the end that feeds it. An error cuts it off: nobody
/// takes it for whole.
///
/// One queue carries pieces and errors alike. (With a queue of each, a piece that is put in just before its sender goes
/// can be overtaken by the end.)
pub fn pieces(waiting: usize) -> (mpsc::Sender<io::Result<Bytes>>, Body) {
    let (sender, receiver) = mpsc::channel(waiting);
    (sender, Body::of(Pieces(receiver)))
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Makes a JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("our own types are JSON");
    bytes(status, "application/json", body)
}

/// Makes a JSON answer that can be kept with an idempotency key; `location` is the address of what it is about.
pub fn kept(status: StatusCode, value: &impl Serialize, location: Option<String>) -> Answer {
    let mut headers = vec![(CONTENT_TYPE.to_string(), "application/json".to_owned())];
    headers.extend(location.map(|location| (LOCATION.to_string(), location)));
    Answer { status: status.as_u16(), headers, body: serde_json::to_vec(value).expect("our own types are JSON") }
}

/// Makes an answer of one that may have been kept.
pub fn of(answer: Answer, kept: Option<Kept>, is_replay: bool) -> Reply {
    let mut reply = Response::new(full(answer.body));
    *reply.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let headers = reply.headers_mut();
    for (name, value) in answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value)) {
            headers.insert(name, value);
        }
    }
    if let Some(expires) = kept.and_then(|kept| HeaderValue::from_str(&kept.expires).ok()) {
        headers.insert("idempotency-expires", expires);
    }
    if is_replay {
        headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    reply
}

/// Makes an answer of some type.
pub fn bytes(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Makes an answer without a body.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(full(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// Adds what every answer has: it is never to be kept by a cache, nor taken for another type.
pub fn finish(reply: &mut Reply) {
    let headers = reply.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
