//! Requests that change something: each is sent with an idempotency key, which is kept over all attempts, so that it
//! has one effect however often the way to the daemon breaks.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::{Context, Exit, Stop, out};
use crate::client::{Answer, CALL_LIMIT, Error};
use crate::clock::boottime_ms;
use crate::random;

/// How long it is tried while the daemon may have got the request: an upgrade or a reboot of its host is longer, and
/// then it is for a person, or a script, to ask again.
const PATIENCE_MS: i64 = 60_000;
/// How long it is tried while nothing was sent yet: a daemon that is just being started again is soon back, one that
/// is not there at all is better said at once.
const UNSENT_PATIENCE_MS: i64 = 1_500;
/// Pauses between attempts; they double.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Context {
    /// Posts JSON once; see [`Context::change`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, Stop> {
        self.change(Method::POST, path, Bytes::from(body.to_string())).await
    }

    /// Sends a request that changes something, again and again with the same key, until it is answered.
    ///
    /// # Errors
    /// What the daemon refused. When patience ends: what is known, and how to go on with the same key.
    pub async fn change(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Stop> {
        let key = self.key.clone().unwrap_or_else(|| random::text(26));
        let client = self.client.with_key(&key);
        let content_type = (method == Method::POST).then_some("application/json");
        let began = boottime_ms();
        let mut pause = PAUSES.0;
        let mut may_have_acted = false;
        loop {
            let attempt = client.call(method.clone(), path, content_type, body.clone(), CALL_LIMIT).await;
            let error = match attempt {
                Err(error) if is_passing(&error) => error,
                other => return Ok(other?),
            };
            may_have_acted |= !matches!(error, Error::Unreachable { sent: false, .. });
            let patience = if may_have_acted { PATIENCE_MS } else { UNSENT_PATIENCE_MS };
            if boottime_ms() - began > patience {
                return Err(gave_up(error, may_have_acted, &key));
            }
            if pause == PAUSES.0 {
                out::note(&format!("no answer yet, trying again: {error}"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Says whether the same request with the same key may fare better.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        Error::Refused(problem) => matches!(
            problem.status,
            StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
                | StatusCode::INSUFFICIENT_STORAGE
        ),
        Error::Setup(_) | Error::Garbled(_) => false,
    }
}

fn gave_up(error: Error, may_have_acted: bool, key: &str) -> Stop {
    let mut stop = Stop::from(error);
    stop.exit = Exit::Unreachable;
    if may_have_acted {
        stop.messages.push(format!(
            "whether it was done is unknown: `mediator request {key}` tells, and the same command with \
             --idempotency-key {key} repeats it without doing it twice"
        ));
    }
    stop
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(sent: bool) -> Error {
        Error::Unreachable { url: "http://localhost:1".into(), cause: "reset".into(), sent }
    }

    #[test]
    fn who_gives_up_says_what_is_known_and_how_to_go_on() {
        let stop = gave_up(unreachable(true), true, "k1");
        assert_eq!(stop.exit, Exit::Unreachable);
        let said = stop.messages.join("\n");
        assert!(said.contains("`mediator request k1`") && said.contains("--idempotency-key k1"), "{said}");
        let stop = gave_up(unreachable(false), false, "k1");
        assert!(!stop.messages.join("\n").contains("k1"), "nothing was sent, so nothing is unknown");
    }
}
