//! `mediator logs`: the output of a run's steps, as received.

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::follow::{Patient, WAIT_SECONDS, pause_unless_parked};
use super::wire::{Run, Step};
use super::{Context, Exit, Stop, out, text};
use crate::client::{Error, encode};
use crate::clock::boottime_ms;

/// Says on an answer with log bytes that the attempt has ended and that nothing comes after them.
const LOG_END: &str = "mediator-log-end";

/// Flags of `mediator logs`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run_id: String,
    /// One step, by its id or number (default: every step that ran a command, in order)
    #[arg(value_name = "STEP")]
    step: Option<String>,
    /// Show this attempt of the step (default: the newest that began)
    #[arg(long, value_name = "N", requires = "step", value_parser = clap::value_parser!(u64).range(1..))]
    attempt: Option<u64>,
    /// Show what comes until the run ends
    #[arg(long, short)]
    follow: bool,
}

/// Which log: one attempt of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The step's number in its run.
    pub seq: u64,
    /// Counts from 1.
    pub attempt: u64,
}

/// Shows logs.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    // The first call tells at once that the daemon or the run is not there; only later absences are waited out.
    let answer = context.client.get(&format!("/v1/runs/{}", encode(&args.run_id))).await?;
    let run: Run = super::wire::read(&answer)?;
    let selected = args.step.as_deref().map(|name| find_step(&run, name).map(|step| step.seq)).transpose()?;
    let mut reader = Reader { patient: Patient::new(&context.client), sink: Box::new(tokio::io::stdout()) };
    match (selected, args.attempt) {
        (Some(seq), Some(attempt)) => reader.copy(&run.run_id, Log { seq, attempt }, args.follow).await?,
        _ if args.follow => reader.follow(run, selected).await?,
        _ => {
            let logs: Vec<Log> = run.steps.iter().filter(|step| wanted(step, selected)).filter_map(newest).collect();
            if logs.is_empty() {
                out::note("no command has begun yet: `--follow` waits for it");
            }
            for log in logs {
                head(&run, log, selected);
                reader.copy(&run.run_id, log, false).await?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Returns the step that `name` means: an id, else a number.
///
/// # Errors
/// When the run has no such step.
pub fn find_step<'a>(run: &'a Run, name: &str) -> Result<&'a Step, Stop> {
    let by_id = run.steps.iter().find(|step| step.id == name);
    by_id.or_else(|| run.steps.iter().find(|step| step.seq.to_string() == name)).ok_or_else(|| {
        let ids: Vec<&str> = run.steps.iter().map(|step| step.id.as_str()).collect();
        Stop::new(Exit::Refused, format!("run {} has no step '{name}'; its steps: {}", run.run_id, ids.join(", ")))
    })
}

/// Copies logs to where they are shown, patiently.
pub struct Reader {
    /// Asks the daemon.
    pub patient: Patient,
    /// Written without blocking the runtime: a full pipe must not keep a signal from being handled.
    pub sink: Box<dyn AsyncWrite + Unpin>,
}

impl Reader {
    /// Copies one log from its start; with `follow` until the attempt, or its run, has ended.
    pub async fn copy(&mut self, run_id: &str, log: Log, follow: bool) -> Result<(), Stop> {
        let mut offset = 0;
        // Whether the run was over before the last empty answer: what was written is then all there is.
        let mut run_has_ended = false;
        loop {
            let wait = if follow && !run_has_ended { format!("&wait_seconds={WAIT_SECONDS}") } else { String::new() };
            let asked_at = boottime_ms();
            let path = format!(
                "/v1/runs/{}/steps/{}/log?attempt={}&offset={offset}{wait}",
                encode(run_id),
                log.seq,
                log.attempt
            );
            let (bytes, is_end) = match self.patient.get(&path).await {
                Ok(answer) => {
                    let is_end = answer.headers.get(LOG_END).is_some_and(|value| value == "true");
                    (answer.body, is_end)
                }
                // No log yet: the step has not begun, and a pruned run would be 410.
                Err(Error::Refused(problem)) if problem.code == "not-found" => (bytes::Bytes::new(), false),
                Err(error) => return Err(error.into()),
            };
            self.sink.write_all(&bytes).await?;
            self.sink.flush().await?;
            offset += bytes.len();
            if is_end || (bytes.is_empty() && (!follow || run_has_ended)) {
                return Ok(());
            }
            if bytes.is_empty() {
                run_has_ended = self.patient.run(run_id).await?.0.has_ended();
                if !run_has_ended {
                    pause_unless_parked(asked_at).await;
                }
            }
        }
    }

    /// Copies every log of the run (or of one step) until the run ends, each attempt in the order it was seen to
    /// begin. Steps that run at the same time are shown one after the other.
    async fn follow(&mut self, mut run: Run, selected: Option<u64>) -> Result<(), Stop> {
        let mut done: Vec<Log> = Vec::new();
        loop {
            let begun = run.steps.iter().filter(|step| wanted(step, selected)).filter_map(newest);
            match begun.into_iter().find(|log| !done.contains(log)) {
                Some(log) => {
                    head(&run, log, selected);
                    self.copy(&run.run_id, log, true).await?;
                    done.push(log);
                    run = self.patient.run(&run.run_id).await?.0;
                }
                None if run.has_ended() => return Ok(()),
                // The poll answers at the run's next state; a step that begins is seen a second later at most.
                None => run = self.patient.run_past(&run.run_id, &run.state, 1).await?.0,
            }
        }
    }
}

fn wanted(step: &Step, selected: Option<u64>) -> bool {
    selected.map_or(step.kind == "run", |seq| step.seq == seq)
}

/// Returns the newest attempt of a step that began; after a rollback that is the one before the step's own.
fn newest(step: &Step) -> Option<Log> {
    let attempt = if step.started_at.is_empty() { step.attempt.saturating_sub(1) } else { step.attempt };
    (attempt > 0).then_some(Log { seq: step.seq, attempt })
}

/// Tells on standard error whose output comes, when there may be several.
fn head(run: &Run, log: Log, selected: Option<u64>) {
    let Some(step) = run.steps.iter().find(|step| step.seq == log.seq).filter(|_| selected.is_none()) else { return };
    let node = if step.node_id.is_empty() { String::new() } else { format!(" on {}", step.node_id) };
    let result = step.result.as_ref().filter(|_| step.attempt == log.attempt).map(text::step_result);
    let result = result.filter(|text| !text.is_empty()).map(|text| format!(", {text}")).unwrap_or_default();
    out::note(&format!("step {} {}{node}, attempt {}: {}{result}", step.seq, step.id, log.attempt, step.state));
}
