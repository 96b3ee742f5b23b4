//! What `mediator hold` asks the daemon: everything but the renewals.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::right::is_end;
use super::teller::Teller;
use crate::cli::follow::{WAIT_SECONDS, is_absence, pause_unless_parked};
use crate::cli::wire::{self, Run, Why};
use crate::cli::{Exit, Stop, text};
use crate::client::{Answer, Client, Error, encode};
use crate::clock::{Ms, boottime_ms};

/// How long a submission without an answer is repeated: a restart of the daemon fits.
const SUBMIT_MS: Ms = 10_000;
/// How long the daemon may be away while the run waits.
const PATIENCE_MS: Ms = 10 * 60 * 1000;
/// How long an absence is not worth a word to whoever works with the nodes.
const UNTOLD_MS: Ms = 3_000;
/// How often the reason for waiting is asked for.
const WHY_SECONDS: u64 = 3;
/// How often it is asked whether a hold that could not open at once has opened.
const OPENING_SECONDS: u64 = 1;
/// Pauses between attempts while the daemon is away; they double.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// One run at the daemon.
#[derive(Clone)]
pub struct Daemon<'a> {
    client: &'a Client,
    teller: &'a Teller,
    /// The run.
    pub run_id: &'a str,
}

/// Where waiting for the nodes has led.
#[derive(Debug)]
pub enum Waited {
    /// The hold is open.
    Open(Box<Run>, Bytes),
    /// The run has ended.
    Ended(Box<Run>),
}

/// What became of a report.
#[derive(Debug)]
pub enum Reported {
    /// It counts.
    Taken,
    /// The daemon refused it: the hold was over before, or the caller may not report.
    Refused(Error),
}

impl<'a> Daemon<'a> {
    /// Speaks about the run `run_id`, which need not exist yet.
    pub fn new(client: &'a Client, teller: &'a Teller, run_id: &'a str) -> Self {
        Self { client, teller, run_id }
    }

    /// Submits the contract. Its `run_id` makes that repeatable: when an answer is lost, the next tells what the first
    /// submission did.
    pub async fn submit(&self, contract: &Value) -> Result<(Run, Bytes), Stop> {
        let begun = boottime_ms();
        let mut pause = PAUSES.0;
        loop {
            match self.client.post("/v1/runs", contract).await {
                Ok(answer) => return Ok((wire::read(&answer)?, answer.body)),
                Err(error) if is_absence(&error) && boottime_ms() - begun < SUBMIT_MS => self.tell_away(),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Waits until the hold is open or the run has ended, telling where it stands and why.
    ///
    /// # Errors
    /// When the daemon refuses, or is away for ten minutes on end.
    pub async fn wait(&self, mut run: Run, mut body: Bytes) -> Result<Waited, Stop> {
        loop {
            if run.has_ended() {
                return Ok(Waited::Ended(Box::new(run)));
            }
            if is_open(&run) {
                return Ok(Waited::Open(Box::new(run), body));
            }
            self.tell_standing(&run).await;
            let seconds = if run.state == "QUEUED" { WHY_SECONDS } else { OPENING_SECONDS };
            (run, body) = self.look(&run.state, seconds).await?;
        }
    }

    async fn tell_standing(&self, run: &Run) {
        let run_id = self.run_id;
        if run.state == "QUEUED" {
            let why = self.client.get(&format!("/v1/runs/{}/why", encode(run_id))).await;
            // Only a sentence is lost if it cannot be had.
            let Some(why) = why.ok().and_then(|answer| wire::read::<Why>(&answer).ok()) else { return };
            let reason = if why.detail.is_empty() { why.code } else { why.detail };
            // Without a position it has started since it was looked at.
            if let Some(position) = why.position {
                self.teller.status(format!("run {run_id} waits at position {position}: {reason}"));
            }
        } else {
            let nodes = text::placement(&run.assigned);
            self.teller.status(format!("run {run_id} has {nodes}; earlier work there has to stop first"));
        }
    }

    /// Returns the run once its state is not `state`, at the latest after `seconds`.
    async fn look(&self, state: &str, seconds: u64) -> Result<(Run, Bytes), Stop> {
        let begun = boottime_ms();
        let mut pause = PAUSES.0;
        loop {
            match self.ask(state, seconds).await {
                Ok((run, answer)) => return Ok((run, answer.body)),
                Err(error) if is_absence(&error) && boottime_ms() - begun < PATIENCE_MS => self.tell_away(),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn tell_away(&self) {
        self.teller.status(format!("the daemon at {} is away, waiting for it to come back", self.client.url()));
    }

    /// Waits until the run has ended, which is when the hold is lost. Whatever else the daemon says or does not say, the
    /// right to the nodes goes on until it runs out: that is for others to watch.
    pub async fn ended(&self) -> Option<Run> {
        let mut pause = PAUSES.0;
        let mut away_since = None;
        let mut is_told = false;
        loop {
            match self.ask("RUNNING", WAIT_SECONDS).await {
                Ok((run, _)) => {
                    if run.has_ended() {
                        return Some(run);
                    }
                    if is_told {
                        self.teller.note("the daemon is back");
                    }
                    (away_since, is_told, pause) = (None, false, PAUSES.0);
                    continue;
                }
                Err(Error::Refused(problem)) if is_end(problem.status) => return None,
                Err(error) => {
                    let since = *away_since.get_or_insert_with(boottime_ms);
                    if !is_told && boottime_ms() - since >= UNTOLD_MS {
                        is_told = true;
                        self.teller.note(format!("the hold cannot be watched for now: {error}"));
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn ask(&self, state: &str, seconds: u64) -> Result<(Run, Answer), Error> {
        let asked_at = boottime_ms();
        let path = format!("/v1/runs/{}?wait_seconds={seconds}&while={}", encode(self.run_id), encode(state));
        // Little more than the daemon takes: an answer that a broken network swallowed is not waited for.
        let limit = Duration::from_secs(seconds + 10);
        let answer = self.client.call(Method::GET, &path, None, Bytes::new(), limit).await?;
        let run: Run = wire::read(&answer)?;
        if seconds > 0 && run.state == state {
            pause_unless_parked(asked_at).await;
        }
        Ok((run, answer))
    }

    /// Returns the run as it is now, unless that cannot be had soon.
    pub async fn now(&self, limit: Duration) -> Option<(Run, Bytes)> {
        let path = format!("/v1/runs/{}", encode(self.run_id));
        let answer = self.client.call(Method::GET, &path, None, Bytes::new(), limit).await.ok()?;
        Some((wire::read(&answer).ok()?, answer.body))
    }

    /// Reports how the hold went, again and again until that is heard.
    pub async fn report(&self, attempt: u64, outcome: &Value) -> Reported {
        let mut report = json!({ "attempt": attempt });
        if let (Some(report), Some(outcome)) = (report.as_object_mut(), outcome.as_object()) {
            report.extend(outcome.clone());
        }
        let path = format!("/v1/runs/{}/steps/1/result", encode(self.run_id));
        match self.insist(&path, &report).await {
            Ok(_) => Reported::Taken,
            Err(error) => Reported::Refused(error),
        }
    }

    /// Cancels the run, again and again until that is heard; returns it, or nothing if there is no such run.
    pub async fn cancel(&self, reason: &str) -> Result<Option<Run>, Error> {
        let path = format!("/v1/runs/{}/cancel", encode(self.run_id));
        match self.insist(&path, &json!({ "reason": reason })).await {
            Ok(answer) => Ok(wire::read(&answer).ok()),
            Err(Error::Refused(problem)) if problem.status == StatusCode::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Posts what may be repeated until there is an answer.
    async fn insist(&self, path: &str, body: &Value) -> Result<Answer, Error> {
        let mut pause = PAUSES.0;
        loop {
            let body = Bytes::from(body.to_string());
            let limit = Duration::from_secs(5);
            match self.client.call(Method::POST, path, Some("application/json"), body, limit).await {
                Err(error) if is_absence(&error) => {}
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Says whether the run's hold is open.
fn is_open(run: &Run) -> bool {
    run.state == "RUNNING" && run.steps.first().is_some_and(|step| step.state == "CLAIMED")
}

/// Turns a run that ended before its hold opened into the end of the command.
pub fn refusal(run: &Run) -> Stop {
    use crate::cli::exec::{GAVE_UP, OUR_END};
    let kind = run.verdict.as_ref().map_or("", |verdict| verdict.kind.as_str());
    let code = if kind == "queue-timeout" { GAVE_UP } else { OUR_END };
    Stop::new(Exit::Command(code), format!("run {} {}", run.run_id, text::run_state(run)))
}
