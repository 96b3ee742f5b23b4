//! `mediator submit`: hand in a contract, and follow its run if asked to.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value};

use super::contract_file::ContractFile;
use super::follow::{Patient, WAIT_SECONDS};
use super::wire::{self, Run};
use super::{Context, Exit, Stop, out, text};

/// Flags of `mediator submit`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The contract; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Follow the run to its end; the exit code then tells how it went
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Stop following after this many seconds (exit code 5); the run goes on
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = text::parse_seconds)]
    wait_timeout: Option<f64>,
    /// Only say whether the known nodes could serve it; store nothing
    #[arg(long)]
    dry_run: bool,
    /// Name the run so, instead of what the contract says
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Choose the run's id: submitting the same contract again then changes nothing
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Say what the run is for, e.g. a change under review
    #[arg(long, value_name = "TEXT")]
    work: Option<String>,
    /// Go before runs of a lower priority: -10 to 10, above 0 for operators (default: 0)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-10..=10))]
    priority: Option<i64>,
}

/// Submits the contract and says what became of it.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let mut file = ContractFile::read(&args.file)?;
    let texts = [("name", args.name), ("run_id", args.run_id), ("work", args.work)];
    let mut fields: Map<String, Value> =
        texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))).collect();
    fields.extend(args.priority.map(|priority| ("priority".to_owned(), priority.into())));
    file.set(fields);
    let path = if args.dry_run { "/v1/runs?dry_run=true" } else { "/v1/runs" };
    let body = Bytes::copy_from_slice(&file.json);
    let answer = context.change(Method::POST, path, body).await.map_err(|mut stop| {
        if let Some((problem, field)) =
            stop.problem.as_ref().and_then(|problem| Some((problem, problem.path.as_ref()?)))
        {
            stop.messages = vec![format!("{} [{}]", file.complaint(field, &problem.detail), problem.code)];
        }
        stop
    })?;
    let run: Run = wire::read(&answer)?;
    if args.dry_run {
        say(context, &answer.body, &format!("would run on {}", text::placement(&run.assigned)))?;
        return Ok(Exit::Done);
    }
    let sentence = match answer.status {
        StatusCode::OK => format!("run {} was submitted before: it {}", run.run_id, text::run_state(&run)),
        _ => format!("run {} {}", run.run_id, text::run_state(&run)),
    };
    if !args.wait {
        say(context, &answer.body, &sentence)?;
        if run.state == "QUEUED" {
            out::note(&format!("`mediator why {}` tells what it waits for", run.run_id));
        }
        return Ok(Exit::Done);
    }
    out::note(&sentence);
    let run_id = run.run_id.clone();
    let end = follow(context, run, answer.body);
    let (run, body) = match args.wait_timeout {
        None => end.await?,
        Some(seconds) => match tokio::time::timeout(Duration::from_secs_f64(seconds), end).await {
            Ok(end) => end?,
            Err(_) => {
                let message =
                    format!("gave up waiting after {seconds} s; run {run_id} goes on: `mediator show {run_id}`");
                return Err(Stop::new(Exit::GaveUp, message));
            }
        },
    };
    say(context, &body, &format!("run {} {}", run.run_id, text::run_state(&run)))?;
    Ok(run.exit())
}

/// Follows a run to its end, telling on standard error what changes.
async fn follow(context: &Context, mut run: Run, mut body: Bytes) -> Result<(Run, Bytes), Stop> {
    let mut patient = Patient::new(&context.client);
    let mut asked: Vec<(u64, u64)> = Vec::new();
    while !run.has_ended() {
        let before = text::run_state(&run);
        (run, body) = patient.run_past(&run.run_id, &run.state, WAIT_SECONDS).await?;
        let now = text::run_state(&run);
        if now != before && !run.has_ended() {
            out::note(&format!("run {} {now}", run.run_id));
        }
        for step in run.steps.iter().filter(|step| step.state == "ASKED") {
            if !asked.contains(&(step.seq, step.attempt)) {
                asked.push((step.seq, step.attempt));
                out::note(&format!(
                    "step {} waits for an answer: `mediator answer {} {} TEXT`",
                    step.id, run.run_id, step.id
                ));
            }
        }
    }
    Ok((run, body))
}

fn say(context: &Context, document: &[u8], sentence: &str) -> Result<(), Stop> {
    if context.json {
        out::raw_json(document)?;
    } else {
        out::line(sentence)?;
    }
    Ok(())
}
