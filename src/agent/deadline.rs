//! How long this agent may work on a node: the lease as the agent may count it.
//!
//! Authority is counted from the moment a request was *sent*, on CLOCK_BOOTTIME, plus the `ttl_seconds` of its
//! answer: whatever the request and the answer took can only shorten what the daemon granted, and a machine that
//! slept finds its lease run out. All times here are milliseconds of [`crate::clock::boottime_ms`].

use super::wire::Lease;
use crate::clock::{Ms, boottime_ms};
use std::time::Duration;

/// The lease on a node as its agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    run_id: String,
    nonce: String,
    /// When the answer that granted it came in: only an advert sent after this can say that it is gone.
    received_at: Ms,
    /// When it runs out unless it is renewed.
    until: Ms,
    /// The daemon said that it has ended.
    gone: bool,
}

impl Authority {
    /// Takes a lease from the answer, received at `received_at`, to a claim sent at `sent_at`.
    pub fn granted(run_id: &str, lease: &Lease, sent_at: Ms, received_at: Ms) -> Self {
        let until = sent_at.saturating_add(lease.ttl_ms());
        Self { run_id: run_id.to_owned(), nonce: lease.nonce.clone(), received_at, until, gone: false }
    }

    /// Takes the same lease told again, for the next step of its run: a renewal never shortens. Another lease is
    /// returned as it is.
    pub fn or_longer(self, earlier: Option<&Self>) -> Self {
        match earlier {
            Some(earlier) if earlier.nonce == self.nonce && earlier.run_id == self.run_id && !earlier.gone => {
                Self { until: self.until.max(earlier.until), ..self }
            }
            _ => self,
        }
    }

    /// Takes the complete list of leases from the answer to an advert sent at `sent_at`. Says whether anything
    /// changed.
    pub fn hear(&mut self, leases: &[Lease], sent_at: Ms) -> bool {
        let before = (self.until, self.gone);
        match leases.iter().find(|lease| lease.nonce == self.nonce && lease.run_id == self.run_id) {
            Some(lease) => self.until = self.until.max(sent_at.saturating_add(lease.ttl_ms())),
            // An advert sent before the grant came in may have been answered before the lease was made.
            None if sent_at > self.received_at => self.gone = true,
            None => {}
        }
        before != (self.until, self.gone)
    }

    /// Returns when it runs out unless it is renewed.
    pub fn until(&self) -> Ms {
        self.until
    }

    /// Says whether work under it must stop: it ran out, or the daemon said that it has ended.
    pub fn is_over(&self, now: Ms) -> bool {
        self.gone || now >= self.until
    }

    /// Says whether the daemon said that it has ended.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}

/// Waits until `at` on CLOCK_BOOTTIME. The runtime's own clock stands still in suspend, so it is asked to wait at
/// most a second at a time: that is how late this can be after the machine woke up.
pub async fn sleep_until(at: Ms) {
    loop {
        let left = at.saturating_sub(boottime_ms());
        if left <= 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(left.min(1000).unsigned_abs())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(nonce: &str, ttl_seconds: f64) -> Lease {
        Lease { run_id: "r".into(), nonce: nonce.into(), ttl_seconds }
    }

    fn held() -> Authority {
        Authority::granted("r", &lease("n", 10.0), 1_000, 1_500)
    }

    #[test]
    fn a_lease_counts_from_the_sending_of_its_request() {
        assert!(!held().is_over(10_999));
        assert!(held().is_over(11_000));
    }

    #[test]
    fn a_renewal_counts_from_the_sending_of_the_advert_and_never_shortens() {
        let mut held = held();
        assert!(held.hear(&[lease("n", 10.0)], 4_000));
        assert_eq!(held.until(), 14_000);
        assert!(!held.hear(&[lease("n", 2.0)], 5_000));
        assert_eq!(held.until(), 14_000);
    }

    #[test]
    fn a_lease_is_gone_only_by_an_advert_sent_after_it_was_received() {
        let mut held = held();
        held.hear(&[], 1_500);
        assert!(!held.is_gone());
        held.hear(&[lease("other", 10.0)], 1_501);
        assert!(held.is_gone() && held.is_over(0));
    }

    #[test]
    fn the_next_step_of_the_run_keeps_the_longer_time() {
        let mut earlier = held();
        earlier.hear(&[lease("n", 60.0)], 2_000);
        let next = Authority::granted("r", &lease("n", 10.0), 3_000, 3_100);
        assert_eq!(next.clone().or_longer(Some(&earlier)).until(), 62_000);
        let other = Authority::granted("r", &lease("m", 10.0), 3_000, 3_100);
        assert_eq!(other.or_longer(Some(&earlier)).until(), 13_000);
    }
}
