//! The right to the nodes, as the holder may count it.
//!
//! The daemon takes the nodes back when it has not heard of the holder for `hold.ttl_seconds`; it tells what is left in
//! the answer to each renewal. As an agent does with its lease, the holder counts from the moment it *sent* the renewal,
//! on a clock that runs during suspend: whatever the way took only shortens what the daemon granted.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::watch;

use crate::agent::deadline::sleep_until;
use crate::client::{Client, Error, encode};
use crate::clock::{Ms, boottime_ms};

/// The pause after a renewal that was not answered, and the shortest one after any.
const RETRY_MS: Ms = 300;
/// The longest and shortest time that one renewal may take before it is tried on a new connection.
const LIMITS_MS: (Ms, Ms) = (1_000, 10_000);

/// What is known of the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// When it runs out unless it is renewed; 0 before the first answer.
    pub until: Ms,
    /// The lifetime, as told with the last renewal.
    pub ttl_ms: Ms,
    /// The daemon said that the run has ended.
    pub ended: bool,
}

/// Why the right is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The daemon said that the run has ended.
    Ended,
    /// It could not be renewed in time.
    RanOut,
}

/// The right, renewed from now on for as long as this lives.
pub struct Right {
    known: watch::Receiver<Known>,
    renewing: tokio::task::JoinHandle<()>,
}

#[derive(Deserialize)]
struct Renewed {
    ttl_seconds: Option<f64>,
}

impl Right {
    /// Begins to renew, at once and then three times in each lifetime.
    pub fn keep(client: Client, run_id: &str) -> Self {
        let (known, receive) = watch::channel(Known { until: 0, ttl_ms: 0, ended: false });
        let path = format!("/v1/runs/{}/renew", encode(run_id));
        let renewing = tokio::spawn(async move {
            let mut now = *known.borrow();
            while !now.ended {
                let sent_at = boottime_ms();
                let answer = renew(&client, &path, now.ttl_ms).await;
                let renewed = now.hear(answer, sent_at);
                known.send_replace(now);
                sleep_until(if renewed { sent_at + now.ttl_ms / 3 } else { 0 }.max(boottime_ms() + RETRY_MS)).await;
            }
        });
        Self { known: receive, renewing }
    }

    /// Returns what is known now.
    pub fn known(&self) -> Known {
        *self.known.borrow()
    }

    /// Waits until the right is known to be there, or to be over. May be dropped and called again.
    pub async fn settled(&mut self) -> Known {
        // The sender lives as long as the run; then it has said that it ended.
        let wait = self.known.wait_for(|known| known.ended || known.until > boottime_ms()).await;
        wait.map_or(Known { until: 0, ttl_ms: 0, ended: true }, |known| *known)
    }

    /// Waits for a renewal, and returns when the right then runs out. May be dropped and called again.
    ///
    /// # Errors
    /// When the right is over.
    pub async fn renewed(&mut self) -> Result<Ms, Over> {
        loop {
            let known = self.known();
            if known.ended {
                return Err(Over::Ended);
            }
            if known.until <= boottime_ms() {
                return Err(Over::RanOut);
            }
            tokio::select! {
                changed = self.known.changed() => match changed {
                    Ok(()) if self.known.borrow_and_update().ended => return Err(Over::Ended),
                    Ok(()) => return Ok(self.known().until),
                    Err(_) => return Err(Over::Ended),
                },
                // The look at the top decides.
                () = sleep_until(known.until) => {}
            }
        }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Known {
    /// Takes the answer to a renewal that was sent at `sent_at`; says whether it was one.
    fn hear(&mut self, answer: Result<Option<f64>, Error>, sent_at: Ms) -> bool {
        match answer {
            Ok(Some(ttl_seconds)) => {
                #[allow(clippy::cast_possible_truncation, reason = "a lifetime is at most a century")]
                let ttl_ms = (ttl_seconds * 1000.0) as Ms;
                self.ttl_ms = ttl_ms;
                self.until = self.until.max(sent_at.saturating_add(ttl_ms));
                return true;
            }
            // No deadline runs: the hold has just closed, which whoever reported its result knows.
            Ok(None) => {}
            Err(Error::Refused(problem)) if is_end(problem.status) => self.ended = true,
            // Away, or unwilling for now: what is left is used to ask again.
            Err(_) => {}
        }
        false
    }
}

/// Says whether a refusal means that there is nothing to hold any more.
pub fn is_end(status: StatusCode) -> bool {
    [StatusCode::CONFLICT, StatusCode::NOT_FOUND, StatusCode::GONE].contains(&status)
}

async fn renew(client: &Client, path: &str, ttl_ms: Ms) -> Result<Option<f64>, Error> {
    let limit = Duration::from_millis((ttl_ms / 3).clamp(LIMITS_MS.0, LIMITS_MS.1).unsigned_abs());
    let body = Bytes::from_static(b"{}");
    let answer = client.call(Method::POST, path, Some("application/json"), body, limit).await?;
    let renewed: Renewed = serde_json::from_slice(&answer.body).map_err(|error| Error::Garbled(error.to_string()))?;
    Ok(renewed.ttl_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_counts_from_its_sending_and_never_shortens() {
        let mut known = Known { until: 0, ttl_ms: 0, ended: false };
        assert!(known.hear(Ok(Some(120.0)), 1_000));
        assert_eq!(known.until, 121_000);
        assert!(known.hear(Ok(Some(3.0)), 2_000));
        assert_eq!((known.until, known.ttl_ms), (121_000, 3_000));
        assert!(!known.hear(Ok(None), 500_000));
        assert!(!known.hear(Err(Error::Garbled("x".into())), 500_000));
        assert_eq!((known.until, known.ended), (121_000, false));
    }
}
