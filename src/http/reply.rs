//! Answers: bodies and the headers that all of them have.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// A body: whole, or as it comes.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;
/// An answer.
pub type Reply = Response<Body>;

/// Makes a whole body.
pub fn full(bytes: impl Into<Bytes>) -> impl hyper::body::Body<Data = Bytes, Error = io::Error> + Send + 'static {
    Full::new(bytes.into()).map_err(|never| match never {})
}

/// Makes a JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("our own types are JSON");
    bytes(status, "application/json", body)
}

/// Makes a JSON answer with the address of the run it is about.
pub fn json_at(status: StatusCode, value: &impl Serialize, location: &str) -> Reply {
    let mut reply = json(status, value);
    if let Ok(location) = HeaderValue::from_str(location) {
        reply.headers_mut().insert(LOCATION, location);
    }
    reply
}

/// Makes an answer of some type.
pub fn bytes(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(full(body).boxed_unsync());
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Makes an answer without a body.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(full(Bytes::new()).boxed_unsync());
    *reply.status_mut() = status;
    reply
}

/// Adds what every answer has: it is never to be kept by a cache, nor taken for another type.
pub fn finish(reply: &mut Reply) {
    let headers = reply.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
