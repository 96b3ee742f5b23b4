//! What a node tells of itself: its adverts, and the owner's side of draining in them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, info, warn};
use serde_json::{Value, json};

use super::config::Drain;
use super::deadline::sleep_until;
use super::link::{Pause, is_passing, refusal};
use super::node::{Heard, Node, Orders};
use super::upkeep::{Verdict, as_reason};
use super::wire::{self, Adverted};
use crate::client::Error;
use crate::clock::{Ms, boottime_ms};

/// How long an advert may take, in milliseconds: twice the pause between two, within these bounds. The next one cannot
/// be sent meanwhile, and one that was lost on the way must not cost the lease.
const ADVERT_LIMIT_MS: (i64, i64) = (2_000, 10_000);

impl Node {
    /// Advertises the node, again and again, at once when there is something new to tell. When the daemon refuses it for
    /// good, the others are told.
    pub async fn advertise(&self) -> Infallible {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut orders = self.orders.clone();
        let mut pause = Pause::default();
        let mut drain: Option<String> = None;
        let mut limit_ms = ADVERT_LIMIT_MS.1;
        while !self.is_refused() {
            let told = orders.borrow_and_update().clone();
            let id = &told.config.id;
            let body = Bytes::from(self.advert(&told, host.trim()).to_string());
            let sent_at = boottime_ms();
            let client = self.link.client();
            let limit = Duration::from_millis(limit_ms.unsigned_abs());
            let answer = client.call(Method::POST, "/v1/nodes", Some("application/json"), body, limit).await;
            self.link.note(answer.as_ref().err());
            match answer.and_then(|answer| wire::read::<Adverted>(&answer)) {
                Ok(adverted) => {
                    pause.reset();
                    self.hear(&adverted, told.reading, sent_at);
                    if drain.as_ref() != Some(&adverted.drain) {
                        info!("the daemon knows the node node={id} drain={:?}", adverted.drain);
                        drain = Some(adverted.drain);
                    }
                    // Not faster than a tenth of a second, whatever is told.
                    let renew_ms = wire::ms(adverted.renew_seconds).max(100);
                    limit_ms = renew_ms.saturating_mul(2).clamp(ADVERT_LIMIT_MS.0, ADVERT_LIMIT_MS.1);
                    let next_at = sent_at.saturating_add(renew_ms);
                    tokio::select! {
                        () = sleep_until(next_at) => {}
                        () = self.advert_now.notified() => {}
                        _ = orders.changed() => {}
                    }
                }
                Err(error) if is_final(&error, drain.is_none()) => self.refuse(&error),
                Err(error) => {
                    match &error {
                        Error::Unreachable { .. } => {}
                        passing if is_passing(passing) => debug!("advertising node={id}: {error}"),
                        _ => warn!("the daemon does not take what the file says node={id}: {error}"),
                    }
                    // With a short lease a long pause could be all that is left of it when the line is whole again.
                    pause.wait_at_most(limit / 4).await;
                }
            }
        }
        std::future::pending().await
    }

    fn advert(&self, orders: &Orders, host: &str) -> Value {
        let config = &orders.config;
        let (drain, reason) = policy(orders, &self.verdict.borrow());
        json!({
            "node_id": config.id,
            "label": config.label,
            "instance": self.instance(),
            "capabilities": config.capabilities,
            "cleans": config.cleanup.is_some(),
            "policy": {"drain": drain.as_str(), "reason": reason},
            "agent_version": env!("CARGO_PKG_VERSION"),
            "host": host,
        })
    }

    fn hear(&self, adverted: &Adverted, reading: u64, sent_at: Ms) {
        self.lease.send_if_modified(|held| held.as_mut().is_some_and(|held| held.hear(&adverted.leases, sent_at)));
        let leased = !adverted.leases.is_empty();
        self.heard.send_modify(|heard| *heard = Heard { adverts: heard.adverts + 1, reading, leased });
        let nonce = adverted.leases.first().map(|lease| lease.nonce.clone());
        self.told.send_if_modified(|told| {
            let is_new = nonce.is_some() && *told != nonce;
            *told = nonce;
            is_new
        });
    }
}

/// Returns how the owner wants the node drained: the file, its own check, and its leaving the file speak, the strictest
/// of them decides.
fn policy(orders: &Orders, verdict: &Verdict) -> (Drain, String) {
    let config = &orders.config;
    let mut wishes = vec![(config.drain, config.reason.clone())];
    if let Some(check) = &config.check
        && let Err(why) = verdict.on(&check.errand)
    {
        wishes.push((Drain::Graceful, why));
    }
    if orders.retired {
        // At the next boundary, for nobody does the run's next step.
        wishes.push((Drain::AtBoundary, "retired by its owner".to_owned()));
    }
    let drain = wishes.iter().map(|(drain, _)| *drain).max().unwrap_or_default();
    let reasons: Vec<String> =
        wishes.into_iter().map(|(_, reason)| reason).filter(|reason| !reason.is_empty()).collect();
    (drain, as_reason(&reasons.join("; ")))
}

/// Says whether a refused advert is refused for good. At first any refusal of the request itself is: a wrong token or
/// a wrong file should be seen at once. A node that the daemon once accepted ends only when it belongs to another.
fn is_final(error: &Error, first: bool) -> bool {
    match refusal(error) {
        Some((StatusCode::CONFLICT, "stale-instance" | "static-node")) => true,
        Some((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST, _)) => first,
        _ => first && !is_passing(error),
    }
}
