//! One node: its claims, and that one thing follows another. What it tells of itself is in [`super::advert`], its
//! owner's commands are in [`super::upkeep`].

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, error, info, warn};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::Phase;
use super::config::NodeConfig;
use super::deadline::Authority;
use super::link::{Link, Pause, is_passing, refusal};
use super::process::Supervisors;
use super::step;
use super::upkeep::Verdict;
use super::wire::{self, Attempt, Given};
use crate::client::{Answer, Error, encode};
use crate::clock::{Ms, boottime_ms};

/// How long a claim may be parked, in seconds.
const CLAIM_WAIT_SECONDS: u64 = 30;

/// How long a parked claim may be without an answer before the connection counts as dead.
const CLAIM_LIMIT: Duration = Duration::from_secs(CLAIM_WAIT_SECONDS + 15);

/// How long the last claim of an agent that was told to end may take.
const LAST_CLAIM_LIMIT: Duration = Duration::from_secs(2);

/// How many attempts are remembered. The daemon can only give again the one it still has as claimed, so the last would
/// do; more cost nothing.
const REMEMBERED: usize = 256;

/// What the owner's file says of a node, as it was last read.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Its section.
    pub config: Arc<NodeConfig>,
    /// The section has gone: the node ends its work and leaves.
    pub retired: bool,
    /// How often the file had been read again.
    pub reading: u64,
}

/// How a node was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The agent was told to end.
    Told,
    /// It is not in the file any more, and its work has ended.
    Retired,
    /// The daemon refused it.
    Refused,
    /// Another agent speaks for it.
    TakenOver,
}

/// What the daemon has heard of this life of the node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// How many adverts it accepted.
    pub adverts: u64,
    /// Which reading of the file the last one told.
    pub reading: u64,
    /// Whether a run held the node then.
    pub leased: bool,
}

/// One node of this agent.
#[derive(Debug)]
pub struct Node {
    /// What its owner wants.
    pub orders: watch::Receiver<Orders>,
    /// The daemon.
    pub link: Arc<Link>,
    /// Who looks after the work.
    pub supervisors: Supervisors,
    /// How far the agent is on its way out.
    pub phase: watch::Receiver<Phase>,
    /// The lease last received.
    pub lease: watch::Sender<Option<Authority>>,
    /// The nonce of the lease that the last advert was answered with. Told of new ones alone.
    pub told: watch::Sender<Option<String>>,
    /// Held by whatever runs on the node: a step, a cleanup, a check.
    pub hands: tokio::sync::Mutex<()>,
    /// What the last check said.
    pub verdict: watch::Sender<Verdict>,
    /// What the daemon has heard.
    pub heard: watch::Sender<Heard>,
    /// Wakes the next advert.
    pub advert_now: Notify,
    /// New at every start: by it the daemon tells this life from an earlier one.
    instance: Mutex<String>,
    /// At which reading of the file a cleanup failed. The daemon does not ask this life for it again.
    failed_cleanup: Mutex<Option<u64>>,
    /// Whether the daemon refused the node for good, and how.
    refused: watch::Sender<Option<Left>>,
    begun: Mutex<VecDeque<Attempt>>,
}

/// What was claimed, and when: the times between which the daemon granted it.
#[derive(Debug)]
pub struct Granted {
    /// A step or a cleaning.
    pub given: Given,
    /// When the request was sent.
    pub sent_at: Ms,
    /// When the answer came in.
    pub received_at: Ms,
}

impl Node {
    /// Makes a node that does what `orders` say.
    pub fn new(
        orders: watch::Receiver<Orders>,
        link: Arc<Link>,
        supervisors: Supervisors,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        Self {
            orders,
            link,
            supervisors,
            phase,
            lease: watch::Sender::new(None),
            told: watch::Sender::new(None),
            hands: tokio::sync::Mutex::new(()),
            verdict: watch::Sender::default(),
            heard: watch::Sender::default(),
            advert_now: Notify::new(),
            instance: Mutex::new(new_instance()),
            failed_cleanup: Mutex::default(),
            refused: watch::Sender::new(None),
            begun: Mutex::default(),
        }
    }

    /// Returns what the owner's file says by now.
    pub fn config(&self) -> Arc<NodeConfig> {
        self.orders.borrow().config.clone()
    }

    /// Returns which life this is.
    pub fn instance(&self) -> String {
        self.instance.lock().expect("no holder panics").clone()
    }

    /// Works until the agent is told to end, the node is retired, or the daemon refuses it.
    pub async fn run(self) -> Left {
        tokio::select! {
            () = self.work() => {}
            // The adverts go on until the last step's result is heard: they keep its lease alive.
            never = self.advertise() => match never {},
            never = self.check_while_idle() => match never {},
        }
        let refused = *self.refused.borrow();
        let told = *self.phase.borrow() > Phase::Run;
        refused.unwrap_or(if told { Left::Told } else { Left::Retired })
    }

    async fn work(&self) {
        let mut next = None;
        loop {
            let granted = match next.take() {
                Some(granted) => granted,
                None => match self.claim().await {
                    Some(granted) => granted,
                    // It was retired, and then was in the file again.
                    None if self.may_claim() => continue,
                    None => return,
                },
            };
            *self.failed_cleanup.lock().expect("no holder panics") = None;
            let Granted { given, sent_at, received_at } = granted;
            next = match given {
                Given::Step(claim) => step::carry_out(self, *claim, sent_at, received_at).await,
                Given::Cleanup(cleaning) => {
                    self.clean(&cleaning).await;
                    None
                }
            };
        }
    }

    /// Resolves when nothing new may be claimed: told to end, retired, or refused.
    async fn closing(&self) {
        let mut orders = self.orders.clone();
        tokio::select! {
            () = self.ending() => {}
            _ = orders.wait_for(|orders| orders.retired) => {}
        }
    }

    /// Resolves when the node is to be left at once if it is idle: told to end, or refused.
    async fn ending(&self) {
        let (mut phase, mut refused) = (self.phase.clone(), self.refused.subscribe());
        tokio::select! {
            _ = phase.wait_for(|phase| *phase > Phase::Run) => {}
            _ = refused.wait_for(Option::is_some) => {}
        }
    }

    /// Resolves when work in hand must be stopped: told to end for the second time, or refused.
    pub async fn abandoned(&self) {
        let (mut phase, mut refused) = (self.phase.clone(), self.refused.subscribe());
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Abandon) => {}
            _ = refused.wait_for(Option::is_some) => {}
        }
    }

    /// Says whether another step may be claimed.
    pub fn may_claim(&self) -> bool {
        *self.phase.borrow() == Phase::Run && !self.is_refused() && !self.orders.borrow().retired
    }

    /// Says whether the daemon refused the node for good.
    pub fn is_refused(&self) -> bool {
        self.refused.borrow().is_some()
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

    /// Claims until there is something to do, or nothing new may be claimed.
    async fn claim(&self) -> Option<Granted> {
        // Nothing is claimed by a life that the daemon has not heard of.
        let mut heard = self.heard.subscribe();
        let mut closing = pin!(self.closing());
        tokio::select! {
            _ = heard.wait_for(|heard| heard.adverts > 0) => {}
            () = &mut closing => {}
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
                () = self.may_clean_again() => {
                    self.start_anew();
                    continue;
                }
            };
            match granted(answer, sent_at) {
                Ok(Some(granted)) => return Some(granted),
                Ok(None) => pause.reset(),
                Err(error) => tokio::select! {
                    () = self.refused_claim(&error, &mut pause) => {}
                    () = &mut closing => break,
                },
            }
        }
        self.leave().await
    }

    /// Asks once more, without waiting, after the parked claim was dropped: its answer may have been on the way, and a
    /// step given by it would be in the hands of nobody, its run lost by a mere restart of the agent. A cleaning is given
    /// again to the next life.
    async fn last_claim(&self) -> Option<Granted> {
        if *self.phase.borrow() == Phase::Run || self.is_refused() || self.link.is_away() {
            return self.leave().await;
        }
        let sent_at = boottime_ms();
        let answer = self.ask(&Value::Null, 0, LAST_CLAIM_LIMIT).await;
        granted(answer, sent_at).ok().flatten().filter(|granted| matches!(granted.given, Given::Step(_)))
    }

    /// Claims for a retired node, which the daemon drains, until no run holds it and it is clean.
    async fn leave(&self) -> Option<Granted> {
        if *self.phase.borrow() > Phase::Run || self.is_refused() || self.heard.borrow().adverts == 0 {
            return None;
        }
        let (mut heard, mut orders) = (self.heard.subscribe(), self.orders.clone());
        let reading = orders.borrow_and_update().reading;
        let mut pause = Pause::default();
        let left = async {
            loop {
                // What is to be known of leases is told by an advert that says that the node retires, sent by now.
                let known = self.heard.borrow().adverts;
                self.advert_now.notify_one();
                let _ = heard.wait_for(|heard| heard.adverts > known && heard.reading >= reading).await;
                let leased = self.heard.borrow().leased;
                let sent_at = boottime_ms();
                let answer = tokio::select! {
                    answer = self.ask(&Value::Null, if leased { CLAIM_WAIT_SECONDS } else { 0 }, CLAIM_LIMIT) => answer,
                    _ = heard.wait_for(|heard| !heard.leased), if leased => continue,
                };
                match granted(answer, sent_at) {
                    Ok(None) if !leased => return None,
                    Ok(None) => pause.reset(),
                    Ok(granted) => return granted,
                    Err(error) => self.refused_claim(&error, &mut pause).await,
                }
            }
        };
        tokio::select! {
            granted = left => granted,
            () = self.ending() => None,
            _ = orders.wait_for(|orders| !orders.retired) => None,
        }
    }

    /// Resolves when a cleanup that failed may be tried again: the owner had the file read again since.
    async fn may_clean_again(&self) {
        let Some(failed) = *self.failed_cleanup.lock().expect("no holder panics") else {
            return std::future::pending().await;
        };
        let _ = self.orders.clone().wait_for(|orders| orders.reading > failed).await;
    }

    /// Becomes another life of the agent on this node, which is idle and waits for its cleaning: the daemon asks only
    /// another one again.
    fn start_anew(&self) {
        info!("trying the failed cleanup again node={}", self.config().id);
        *self.failed_cleanup.lock().expect("no holder panics") = None;
        *self.instance.lock().expect("no holder panics") = new_instance();
        self.advert_now.notify_one();
    }

    /// Takes note that this life's cleanup failed, which began as the file said at `reading`.
    pub fn note_failed_cleanup(&self, reading: u64) {
        *self.failed_cleanup.lock().expect("no holder panics") = Some(reading);
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
        let body = json!({"instance": self.instance(), "working": working}).to_string();
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
    pub async fn refused_claim(&self, error: &Error, pause: &mut Pause) {
        match refusal(error) {
            Some((StatusCode::CONFLICT, "stale-instance" | "static-node")) => self.refuse(error),
            Some((StatusCode::CONFLICT, "unknown-instance") | (StatusCode::NOT_FOUND, _)) => {
                let mut heard = self.heard.subscribe();
                self.advert_now.notify_one();
                let _ = tokio::time::timeout(Duration::from_secs(1), heard.changed()).await;
            }
            _ if is_passing(error) && !matches!(error, Error::Garbled(_)) => {
                debug!("claiming node={}: {error}", self.config().id)
            }
            _ => warn!("claiming node={}: {error}", self.config().id),
        }
        pause.wait().await;
    }

    /// Gives the node up for good.
    pub fn refuse(&self, error: &Error) {
        let taken_over = refusal(error).is_some_and(|(_, code)| code == "stale-instance");
        let left = if taken_over { Left::TakenOver } else { Left::Refused };
        if self.refused.send_replace(Some(left)).is_none() {
            error!("this agent ends its work on the node node={}: {error}", self.config().id);
        }
    }
}

fn granted(answer: Result<Answer, Error>, sent_at: Ms) -> Result<Option<Granted>, Error> {
    let received_at = boottime_ms();
    let answer = answer?;
    if answer.status == StatusCode::NO_CONTENT {
        return Ok(None);
    }
    let given = Given::read(wire::read(&answer)?).map_err(|error| Error::Garbled(error.to_string()))?;
    Ok(Some(Granted { given, sent_at, received_at }))
}

fn new_instance() -> String {
    let mut instance = [0; 16];
    getrandom::fill(&mut instance).expect("Linux always has random numbers");
    instance.iter().map(|byte| format!("{byte:02x}")).collect()
}
