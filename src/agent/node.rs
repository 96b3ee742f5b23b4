//! One node: its adverts, its claims, and that one step follows another.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, error, info, warn};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::Phase;
use super::config::{Config, NodeConfig};
use super::deadline::{Authority, sleep_until};
use super::link::{Link, Pause, is_passing, refusal};
use super::process::Supervisors;
use super::step;
use super::wire::{self, Adverted, Attempt, Claim};
use crate::client::{Answer, Error, encode};
use crate::clock::{Ms, boottime_ms};

/// How long a claim may be parked, in seconds.
const CLAIM_WAIT_SECONDS: u64 = 30;

/// How long a parked claim may be without an answer before the connection counts as dead.
const CLAIM_LIMIT: Duration = Duration::from_secs(CLAIM_WAIT_SECONDS + 15);

/// How long the last claim of an agent that was told to end may take.
const LAST_CLAIM_LIMIT: Duration = Duration::from_secs(2);

/// How long an advert may take, in milliseconds: twice the pause between two, within these bounds. The next one cannot
/// be sent meanwhile, and one that was lost on the way must not cost the lease.
const ADVERT_LIMIT_MS: (i64, i64) = (2_000, 10_000);

/// How many attempts are remembered. The daemon can only give again the one it still has as claimed, so the last would
/// do; more cost nothing.
const REMEMBERED: usize = 256;

/// One node of this agent, in this life.
#[derive(Debug)]
pub struct Node {
    settings: Arc<Config>,
    index: usize,
    /// The daemon.
    pub link: Arc<Link>,
    /// Who looks after the work.
    pub supervisors: Supervisors,
    /// New at every start: by it the daemon tells this life from an earlier one.
    pub instance: String,
    /// How far the agent is on its way out.
    pub phase: watch::Receiver<Phase>,
    /// The lease last received.
    pub lease: watch::Sender<Option<Authority>>,
    /// The nonce of the lease that the last advert was answered with. Told of new ones alone.
    told: watch::Sender<Option<String>>,
    /// Whether the daemon refused the node for good.
    refused: watch::Sender<bool>,
    /// How many adverts were accepted.
    adverts: watch::Sender<u64>,
    advert_now: Notify,
    begun: Mutex<VecDeque<Attempt>>,
}

/// A claimed step, and when: the times between which the daemon granted it.
#[derive(Debug)]
pub struct Granted {
    /// The step.
    pub claim: Claim,
    /// When the request was sent.
    pub sent_at: Ms,
    /// When the answer came in.
    pub received_at: Ms,
}

impl Node {
    /// Makes the node that `settings` describes at `index`.
    ///
    /// # Errors
    /// The system's, when it has no random numbers.
    pub fn new(
        settings: Arc<Config>,
        index: usize,
        link: Arc<Link>,
        supervisors: Supervisors,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<Self> {
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        Ok(Self {
            settings,
            index,
            link,
            supervisors,
            instance: instance.iter().map(|byte| format!("{byte:02x}")).collect(),
            phase,
            lease: watch::Sender::new(None),
            told: watch::Sender::new(None),
            refused: watch::Sender::new(false),
            adverts: watch::Sender::new(0),
            advert_now: Notify::new(),
            begun: Mutex::default(),
        })
    }

    /// Returns the node's own settings.
    pub fn config(&self) -> &NodeConfig {
        &self.settings.nodes[self.index]
    }

    /// Returns the agent's settings.
    pub fn settings(&self) -> &Config {
        &self.settings
    }

    /// Works until the agent is told to end, or the daemon refuses the node; says whether it did.
    pub async fn run(self) -> bool {
        tokio::select! {
            () = self.work() => {}
            // The adverts go on until the last step's result is heard: they keep its lease alive.
            never = self.advertise() => match never {},
        }
        *self.refused.borrow()
    }

    async fn work(&self) {
        let mut next = None;
        loop {
            let granted = match next.take() {
                Some(granted) => granted,
                None => match self.claim().await {
                    Some(granted) => granted,
                    None => return,
                },
            };
            next = step::carry_out(self, granted).await;
        }
    }

    /// Resolves when nothing new may be claimed: told to end, or refused.
    async fn closing(&self) {
        let (mut phase, mut refused) = (self.phase.clone(), self.refused.subscribe());
        tokio::select! {
            _ = phase.wait_for(|phase| *phase > Phase::Run) => {}
            _ = refused.wait_for(|refused| *refused) => {}
        }
    }

    /// Resolves when work in hand must be stopped: told to end for the second time, or refused.
    pub async fn abandoned(&self) {
        let (mut phase, mut refused) = (self.phase.clone(), self.refused.subscribe());
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Abandon) => {}
            _ = refused.wait_for(|refused| *refused) => {}
        }
    }

    /// Says whether another step may be claimed.
    pub fn may_claim(&self) -> bool {
        *self.phase.borrow() == Phase::Run && !*self.refused.borrow()
    }

    /// Remembers an attempt as begun; false if it was before (I11).
    pub fn begin(&self, attempt: &Attempt) -> bool {
        let mut begun = self.begun.lock().expect("no holder panics");
        if begun.contains(attempt) {
            return false;
        }
        if begun.len() == REMEMBERED {
            begun.pop_front();
        }
        begun.push_back(attempt.clone());
        true
    }

    /// Claims until there is a step, or nothing new may be claimed.
    async fn claim(&self) -> Option<Granted> {
        // Nothing is claimed by a life that the daemon has not heard of.
        let mut adverts = self.adverts.subscribe();
        let mut closing = pin!(self.closing());
        tokio::select! {
            _ = adverts.wait_for(|count| *count > 0) => {}
            () = &mut closing => return None,
        }
        let mut pause = Pause::default();
        let mut told = self.told.subscribe();
        while self.may_claim() {
            let sent_at = boottime_ms();
            let answer = tokio::select! {
                biased;
                answer = self.ask(&Value::Null, CLAIM_WAIT_SECONDS, CLAIM_LIMIT) => answer,
                // A run has the node, and the parked claim may wait for its step on a connection that died without a
                // word. What the lost answer gave is given again.
                _ = told.changed() => continue,
                () = &mut closing => return self.last_claim().await,
            };
            match self.granted(answer, sent_at) {
                Ok(Some(granted)) => return Some(granted),
                Ok(None) => pause.reset(),
                Err(error) => tokio::select! {
                    () = self.refused_claim(&error, &mut pause) => {}
                    () = &mut closing => return None,
                },
            }
        }
        None
    }

    /// Asks once more, without waiting, after the parked claim was dropped: its answer may have been on the way, and a
    /// step given by it would be in the hands of nobody, its run lost by a mere restart of the agent.
    async fn last_claim(&self) -> Option<Granted> {
        if *self.refused.borrow() || self.link.is_away() {
            return None;
        }
        let sent_at = boottime_ms();
        let answer = self.ask(&Value::Null, 0, LAST_CLAIM_LIMIT).await;
        self.granted(answer, sent_at).ok().flatten()
    }

    fn granted(&self, answer: Result<Answer, Error>, sent_at: Ms) -> Result<Option<Granted>, Error> {
        let received_at = boottime_ms();
        let answer = answer?;
        if answer.status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let claim = wire::read(&answer)?;
        Ok(Some(Granted { claim, sent_at, received_at }))
    }

    /// Keeps a claim parked while `attempt` is worked on; resolves when the daemon has taken the step away.
    pub async fn parked(&self, attempt: &Attempt) {
        let working = attempt.working();
        let mut pause = Pause::default();
        loop {
            match self.ask(&working, CLAIM_WAIT_SECONDS, CLAIM_LIMIT).await {
                Ok(answer) if answer.status == StatusCode::NO_CONTENT => pause.reset(),
                Ok(_) => {
                    warn!("a claim while working was given a step node={}", self.config().id);
                    pause.wait().await;
                }
                Err(error) if refusal(&error) == Some((StatusCode::CONFLICT, "stale-lease")) => return,
                Err(error) => self.refused_claim(&error, &mut pause).await,
            }
        }
    }

    async fn ask(&self, working: &Value, wait_seconds: u64, limit: Duration) -> Result<Answer, Error> {
        let path = format!("/v1/nodes/{}/claim?wait_seconds={wait_seconds}", encode(&self.config().id));
        let body = json!({"instance": self.instance, "working": working}).to_string();
        let started = boottime_ms();
        let client = self.link.client();
        let answer = client.call(Method::POST, &path, Some("application/json"), Bytes::from(body), limit).await;
        // A daemon that does not park must not be asked as fast as it answers.
        let is_early = wait_seconds > 0 && boottime_ms() - started < 50;
        if is_early && matches!(&answer, Ok(answer) if answer.status == StatusCode::NO_CONTENT) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        answer
    }

    /// Does what a refused claim calls for, and waits before the next.
    async fn refused_claim(&self, error: &Error, pause: &mut Pause) {
        match refusal(error) {
            Some((StatusCode::CONFLICT, "stale-instance" | "static-node")) => self.refuse(error),
            Some((StatusCode::CONFLICT, "unknown-instance") | (StatusCode::NOT_FOUND, _)) => {
                let mut adverts = self.adverts.subscribe();
                self.advert_now.notify_one();
                let _ = tokio::time::timeout(Duration::from_secs(1), adverts.changed()).await;
            }
            _ if is_passing(error) && !matches!(error, Error::Garbled(_)) => {
                debug!("claiming node={}: {error}", self.config().id)
            }
            _ => warn!("claiming node={}: {error}", self.config().id),
        }
        pause.wait().await;
    }

    /// Gives the node up for good.
    fn refuse(&self, error: &Error) {
        if !self.refused.send_replace(true) {
            error!("this agent ends its work on the node node={}: {error}", self.config().id);
        }
    }

    /// Advertises the node, again and again. When the daemon refuses it for good, [`Node::closing`] and
    /// [`Node::abandoned`] tell the others.
    async fn advertise(&self) -> std::convert::Infallible {
        let config = self.config();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let advert = json!({
            "node_id": config.id,
            "label": config.label,
            "instance": self.instance,
            "capabilities": config.capabilities,
            "policy": {"drain": config.drain, "reason": config.reason},
            "agent_version": env!("CARGO_PKG_VERSION"),
            "host": host.trim(),
        })
        .to_string();
        let mut pause = Pause::default();
        let mut drain: Option<String> = None;
        let mut limit_ms = ADVERT_LIMIT_MS.1;
        while !*self.refused.borrow() {
            let sent_at = boottime_ms();
            let body = Bytes::from(advert.clone());
            let client = self.link.client();
            let limit = Duration::from_millis(limit_ms.unsigned_abs());
            let answer = client.call(Method::POST, "/v1/nodes", Some("application/json"), body, limit).await;
            self.link.note(answer.as_ref().err());
            match answer.and_then(|answer| wire::read::<Adverted>(&answer)) {
                Ok(adverted) => {
                    pause.reset();
                    self.hear(&adverted, sent_at);
                    if drain.as_ref() != Some(&adverted.drain) {
                        info!("the daemon knows the node node={} drain={:?}", config.id, adverted.drain);
                        drain = Some(adverted.drain);
                    }
                    // Not faster than a tenth of a second, whatever is told.
                    let renew_ms = wire::ms(adverted.renew_seconds).max(100);
                    limit_ms = renew_ms.saturating_mul(2).clamp(ADVERT_LIMIT_MS.0, ADVERT_LIMIT_MS.1);
                    let next_at = sent_at.saturating_add(renew_ms);
                    tokio::select! {
                        () = sleep_until(next_at) => {}
                        () = self.advert_now.notified() => {}
                    }
                }
                Err(error) if is_final(&error, drain.is_none()) => self.refuse(&error),
                Err(error) => {
                    if !matches!(error, Error::Unreachable { .. }) {
                        debug!("advertising node={}: {error}", config.id);
                    }
                    // With a short lease a long pause could be all that is left of it when the line is whole again.
                    pause.wait_at_most(limit / 4).await;
                }
            }
        }
        std::future::pending().await
    }

    fn hear(&self, adverted: &Adverted, sent_at: Ms) {
        self.lease.send_if_modified(|held| held.as_mut().is_some_and(|held| held.hear(&adverted.leases, sent_at)));
        self.adverts.send_modify(|count| *count += 1);
        let nonce = adverted.leases.first().map(|lease| lease.nonce.clone());
        self.told.send_if_modified(|told| {
            let is_new = nonce.is_some() && *told != nonce;
            *told = nonce;
            is_new
        });
    }
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
