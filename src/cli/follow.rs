//! Waiting with the daemon: long polls that survive its absence.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};

use super::wire::{self, Run};
use super::{Stop, out};
use crate::client::{Answer, Client, Error, encode};
use crate::clock::boottime_ms;

/// How long one poll is parked at the daemon: shorter than what proxies and firewalls take for dead.
pub const WAIT_SECONDS: u64 = 25;
/// How long one poll may take before the daemon counts as away.
const POLL_LIMIT: Duration = Duration::from_secs(WAIT_SECONDS + 15);
/// How long the daemon may be away before following it ends: an upgrade or a reboot of its host fits.
const PATIENCE_MS: i64 = 10 * 60 * 1000;
/// Pauses between attempts while it is away; they double.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A poll that comes back sooner than this with nothing new was not parked; asking again at once would spin.
const PARKED_MS: i64 = 200;
const UNPARKED_PAUSE: Duration = Duration::from_millis(500);

/// Asks again while the daemon is away. Only for calls that may be repeated.
#[derive(Debug)]
pub struct Patient {
    client: Client,
    away_since: Option<i64>,
}

impl Patient {
    /// Starts with a daemon that is there.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), away_since: None }
    }

    /// Asks `path`, for as long as a long poll takes.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when the daemon was away for ten minutes on end; a refusal at once.
    pub async fn get(&mut self, path: &str) -> Result<Answer, Error> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// As [`Patient::get`].
    pub async fn post(&mut self, path: &str, body: &serde_json::Value) -> Result<Answer, Error> {
        self.call(Method::POST, path, Bytes::from(body.to_string())).await
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, Error> {
        let content_type = (method == Method::POST).then_some("application/json");
        self.insist(async |client| client.call(method.clone(), path, content_type, body.clone(), POLL_LIMIT).await)
            .await
    }

    /// Tries again, with growing pauses, while the daemon is away.
    ///
    /// # Errors
    /// As [`Patient::get`].
    pub async fn insist<T>(&mut self, mut attempt: impl AsyncFnMut(&Client) -> Result<T, Error>) -> Result<T, Error> {
        let mut pause = PAUSES.0;
        loop {
            let error = match attempt(&self.client).await {
                Ok(answer) => {
                    if self.away_since.take().is_some() {
                        out::note("the daemon is back");
                    }
                    return Ok(answer);
                }
                Err(error) if is_absence(&error) => error,
                Err(error) => return Err(error),
            };
            let now = boottime_ms();
            let since = *self.away_since.get_or_insert_with(|| {
                out::note(&format!("the daemon at {} is away, waiting for it to come back", self.client.url()));
                now
            });
            if now - since > PATIENCE_MS {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Returns the run, and the daemon's document, as it is now.
    pub async fn run(&mut self, run_id: &str) -> Result<(Run, Bytes), Stop> {
        let answer = self.get(&format!("/v1/runs/{}", encode(run_id))).await?;
        Ok((wire::read(&answer)?, answer.body))
    }

    /// Returns the run once its state is not `state`, or as it is when the daemon has waited long enough.
    pub async fn run_past(&mut self, run_id: &str, state: &str, wait_seconds: u64) -> Result<(Run, Bytes), Stop> {
        let path = format!("/v1/runs/{}?wait_seconds={wait_seconds}&while={}", encode(run_id), encode(state));
        let asked_at = boottime_ms();
        let answer = self.get(&path).await?;
        let run: Run = wire::read(&answer)?;
        if run.state == state {
            pause_unless_parked(asked_at).await;
        }
        Ok((run, answer.body))
    }
}

/// Waits a little if a poll that was sent at `asked_at` and brought nothing came back at once.
pub async fn pause_unless_parked(asked_at: i64) {
    if boottime_ms() - asked_at < PARKED_MS {
        tokio::time::sleep(UNPARKED_PAUSE).await;
    }
}

/// No answer, or one that says that there is no daemon to give one (a proxy in front), or not now.
pub fn is_absence(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        Error::Refused(problem) => matches!(
            problem.status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        ),
        Error::Setup(_) | Error::Garbled(_) => false,
    }
}
