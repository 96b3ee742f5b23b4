//! What is refused by its head alone, before a byte of the body is read: codings that could be read differently, names that
//! are not ours, pages of other origins, unknown tokens, bodies that are too large or of another type, keys that are none.
//!
//! Each is a function of the head; `super::handle` calls them in the order that is promised.

use hyper::Uri;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, ORIGIN, TRANSFER_ENCODING,
};

use super::App;
use super::call::too_large;
use super::problem::Problem;
use crate::store::token::Principal;

/// Checks by which name the daemon is called: a page in a browser must not reach it under a name of its own.
///
/// # Errors
/// `invalid-request` for more than one Host, `wrong-host` for none or another's.
pub fn check_host(uri: &Uri, headers: &HeaderMap, allowed: &[String]) -> Result<(), Problem> {
    let mut hosts = headers.get_all(HOST).iter();
    let (first, more) = (hosts.next(), hosts.next().is_some());
    if more {
        return Err(Problem::new("invalid-request", "more than one Host header"));
    }
    let header = first.and_then(|host| host.to_str().ok()).map(name_of);
    // A target in absolute form names a host of its own, which other programs would believe instead.
    let target = uri.authority().map(|authority| name_of(authority.as_str()));
    let fits = |name: &str| is_ours(name, allowed);
    match (header, target) {
        (Some(name), target) if fits(name) && target.is_none_or(fits) => Ok(()),
        _ => {
            let mut names = vec!["localhost", "127.0.0.1", "[::1]"];
            names.extend(allowed.iter().map(String::as_str));
            let detail = format!("the Host header must name one of {} (http.hosts)", names.join(", "));
            Err(Problem::new("wrong-host", detail))
        }
    }
}

/// Says whether this is a loopback name, or one of `http.hosts`. A user before it is no part of a name: others would
/// take what stands there for the host.
fn is_ours(name: &str, allowed: &[String]) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    is_loopback(&name) || allowed.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

fn is_loopback(name: &str) -> bool {
    name == "localhost" || name == "[::1]" || name.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Cuts the port off.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Refuses what a page of another origin makes a browser send, whatever it carries. Runs behind [`check_host`].
///
/// An `Origin` must be a loopback name with the port under which the daemon is called, or one of `http.hosts` (whose
/// port a proxy may have changed). That it equals `Host` proves nothing by itself: so it does after a name was rebound.
///
/// # Errors
/// `forbidden`.
pub fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), Problem> {
    let refused = |header: &str| {
        let detail = format!("{header}: pages of other origins may not call the daemon");
        Err(Problem::new("forbidden", detail))
    };
    for site in headers.get_all("sec-fetch-site") {
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            return refused("Sec-Fetch-Site");
        }
    }
    let port = headers.get(HOST).and_then(|host| host.to_str().ok()).map_or("", port_of);
    for origin in headers.get_all(ORIGIN) {
        let text = origin.to_str().unwrap_or("");
        let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or("");
        let name = name_of(authority);
        let is_own = is_loopback(name) && port_of(authority) == port;
        if !is_own && !allowed.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return refused("Origin");
        }
    }
    Ok(())
}

/// Returns the port, empty if there is none.
fn port_of(authority: &str) -> &str {
    authority[name_of(authority).len()..].trim_start_matches(':')
}

/// Finds out who calls.
///
/// # Errors
/// `unauthorized`.
pub fn check_token(app: &App, headers: &HeaderMap) -> Result<Principal, Problem> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let token = match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().ok().and_then(|line| {
            let (scheme, token) = line.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        }),
        _ => None,
    };
    let known = token.and_then(|token| app.store.tokens().check(token));
    known.cloned().ok_or_else(|| {
        let detail = if headers.contains_key(AUTHORIZATION) {
            "the token is not valid: `Authorization: Bearer TOKEN`, where TOKEN is in `operator.token` in the data folder"
        } else {
            "a token is needed: `Authorization: Bearer TOKEN`, where TOKEN is in `operator.token` in the data folder"
        };
        Problem::new("unauthorized", detail)
    })
}

/// Refuses codings of a body that others could read differently: it comes as it is, or `chunked`, said once.
///
/// # Errors
/// `invalid-request`.
pub fn check_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(Problem::new("invalid-request", "Transfer-Encoding: expected `chunked`, once, or no such header")),
    }
}

/// Checks the announced size and the type of a JSON body, before any of it is read.
///
/// # Errors
/// `too-large`, `unsupported-media-type`.
pub fn check_json(headers: &HeaderMap, body: &Incoming, most: usize) -> Result<(), Problem> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.or(body.size_hint().exact()).is_some_and(|length| length > most as u64) {
        return Err(too_large(most as u64));
    }
    // Each of them, if there are several: which one counts would be a guess.
    for content_type in headers.get_all(CONTENT_TYPE) {
        let essence = content_type.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(Problem::new("unsupported-media-type", "the body must be `application/json`"));
        }
    }
    check_encoding(headers)
}

/// Reads the idempotency key: a quoted string, as the IETF's draft has it, or the same characters bare.
///
/// # Errors
/// `invalid-request` for two lines, an empty value, or anything else; `idempotency-key-missing`.
pub fn read_key(headers: &HeaderMap, required: bool) -> Result<Option<String>, Problem> {
    let mut lines = headers.get_all("idempotency-key").iter();
    let (first, more) = (lines.next(), lines.next().is_some());
    let invalid = |what: &str| Err(Problem::new("invalid-request", format!("Idempotency-Key: {what}")));
    let Some(line) = first else {
        if required {
            let detail = "this daemon wants an Idempotency-Key with every request that changes something";
            return Err(Problem::new("idempotency-key-missing", detail));
        }
        return Ok(None);
    };
    if more {
        return invalid("sent twice");
    }
    let text = line.as_bytes();
    let text = match text {
        [b'"', inner @ .., b'"'] => inner,
        bare => bare,
    };
    if (1..=255).contains(&text.len()) && text.iter().all(|byte| is_key_byte(*byte)) {
        return Ok(Some(text.iter().copied().map(char::from).collect()));
    }
    invalid(
        "expected 1 to 255 visible ASCII characters without quote, backslash, comma or semicolon, bare or in quotes",
    )
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"\\,;".contains(&byte)
}

/// Refuses compressed bodies: their size could not be bounded by what is read.
///
/// # Errors
/// `unsupported-media-type`.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    if encodings.all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Ok(())
    } else {
        Err(Problem::new("unsupported-media-type", "the body must not be encoded"))
    }
}
