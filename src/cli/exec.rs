//! `mediator exec`: one command on a matching node, as if it ran here.

use std::pin::pin;

use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::follow::{Patient, WAIT_SECONDS};
use super::logs::{Log, Reader};
use super::wire::{self, Run};
use super::{Context, Exit, Stop, out, text};
use crate::client::encode;

/// Gave up waiting for the nodes.
pub const GAVE_UP: u8 = 124;
/// Any other end that is not the command's own.
pub const OUR_END: u8 = 125;
/// The command was found, but could not be started.
const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// Flags of `mediator exec`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A node that the command needs; it runs on the first (can be repeated)
    #[arg(long, required = true, value_name = "ROLE=CAPABILITY[,KEY=VALUE..]", value_parser = text::parse_require)]
    require: Vec<Value>,
    /// The run's name (default: `exec` and the command's first word)
    #[arg(long)]
    name: Option<String>,
    /// End the command after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    timeout: Option<f64>,
    /// Set a variable for the command; it is kept in the record, so no secrets (can be repeated)
    #[arg(long, value_name = "KEY=VALUE", value_parser = text::parse_pair)]
    env: Vec<(String, String)>,
    /// Pass a variable of the node's environment to the command, if its agent offers it (can be repeated)
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// Give up (exit code 124) if the nodes are not free within this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    wait_timeout: Option<f64>,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Submits the command as a run of one step, shows its output, and ends with its exit code.
///
/// The first SIGINT, SIGTERM or SIGHUP cancels the run and still waits for its end; the second leaves at once.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let interrupts = listen()?;
    let leave = async || {
        seen(&interrupts, 2).await;
        Stop::new(Exit::Command(OUR_END), "left at once; `mediator runs` shows what became of the run")
    };
    let contract = contract(&args);
    let answer = tokio::select! {
        answer = context.post("/v1/runs", &contract) => answer?,
        stop = leave() => return Err(stop),
    };
    let run: Run = wire::read(&answer)?;
    let run_id = run.run_id.clone();

    let mut work = pin!(attend(run, context));
    let cancel = async {
        seen(&interrupts, 1).await;
        out::note(&format!("cancelling run {run_id}; once more to leave at once"));
        if let Err(error) = cancel(context, &run_id, "interrupted at the command line").await {
            out::note(&error.to_string());
        }
        // The end of the run ends the command, not the sending of the wish.
        std::future::pending::<Stop>().await
    };
    let result = tokio::select! {
        result = &mut work => result,
        stop = cancel => Err(stop),
        stop = leave() => Err(stop),
    };
    // Whoever read the output went away: a shell would end the command with SIGPIPE.
    if result.as_ref().is_err_and(Stop::is_broken_pipe) {
        cancel_quietly(context, &run_id).await;
    }
    result
}

/// Turns an end without an answer into one that cannot be taken for the command's own.
pub fn as_own_end(stop: Stop) -> Stop {
    match stop.exit {
        Exit::Command(_) => stop,
        _ => Stop { exit: Exit::Command(OUR_END), ..stop },
    }
}

fn contract(args: &Args) -> Value {
    let mut step = Map::new();
    step.insert("id".to_owned(), "exec".into());
    step.insert("uses".to_owned(), args.require[0]["as"].clone());
    step.insert("run".to_owned(), args.command.clone().into());
    if !args.env.is_empty() {
        let env: Map<String, Value> =
            args.env.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
        step.insert("env".to_owned(), env.into());
    }
    if !args.pass_env.is_empty() {
        step.insert("pass_env".to_owned(), args.pass_env.clone().into());
    }
    if let Some(seconds) = args.timeout {
        step.insert("timeout_seconds".to_owned(), seconds.into());
    }
    let word: String = args.command[0].chars().take(100).collect();
    let name = args.name.clone().unwrap_or_else(|| format!("exec {word}"));
    let mut contract = json!({ "name": name, "requires": args.require, "steps": [step] });
    // The daemon keeps the time, so that a run whose client died does not wait for ever.
    if let Some(seconds) = args.wait_timeout {
        contract["queue_timeout_seconds"] = seconds.into();
    }
    contract
}

/// Follows the run from its place in the queue to its end, showing the command's output.
async fn attend(mut run: Run, context: &Context) -> Result<Exit, Stop> {
    let run_id = run.run_id.clone();
    let mut patient = Patient::new(&context.client);
    let mut told = String::new();
    while run.state == "QUEUED" {
        let now = text::run_state(&run);
        if now != told {
            out::note(&format!("run {run_id} {now}"));
            told = now;
        }
        run = patient.run_past(&run_id, "QUEUED", WAIT_SECONDS).await?.0;
    }
    if !run.started_at.is_empty() || run.state == "RUNNING" {
        if !run.has_ended() {
            out::note(&format!("run {run_id} {}", text::run_state(&run)));
        }
        // With `--json` the answer is the run; its output then is for people.
        let sink: Box<dyn tokio::io::AsyncWrite + Unpin> =
            if context.json { Box::new(tokio::io::stderr()) } else { Box::new(tokio::io::stdout()) };
        let mut reader = Reader { patient, sink };
        reader.copy(&run_id, Log { seq: 1, attempt: 1 }, true).await?;
        patient = reader.patient;
    }
    let mut body;
    (run, body) = patient.run(&run_id).await?;
    while !run.has_ended() {
        (run, body) = patient.run_past(&run_id, &run.state, WAIT_SECONDS).await?;
    }
    if context.json {
        out::raw_json(&body)?;
    }
    Ok(end(&run))
}

/// Returns the exit code for a run that has ended, and tells whatever the command's own output did not.
fn end(run: &Run) -> Exit {
    let result = run.steps.first().and_then(|step| step.result.as_ref());
    if let Some(code) = result.and_then(|result| result.exit_code) {
        return Exit::Command(u8::try_from(code).unwrap_or(OUR_END));
    }
    out::note(&format!("run {} {}", run.run_id, text::run_state(run)));
    let kind = run.verdict.as_ref().map_or("", |verdict| verdict.kind.as_str());
    Exit::Command(match result.and_then(|result| result.error.as_deref()) {
        Some(error) => {
            out::note(error);
            not_started(error)
        }
        None if kind == "queue-timeout" => GAVE_UP,
        None => OUR_END,
    })
}

/// Tells by an agent's error, "cannot start PROGRAM: ... (os error N)", why the command did not start.
pub fn not_started(error: &str) -> u8 {
    let number = error.strip_suffix(')').and_then(|text| text.rsplit_once("(os error "));
    match number.filter(|_| error.starts_with("cannot start ")).map(|(_, number)| number) {
        // ENOENT.
        Some("2") => NOT_FOUND,
        // EACCES; ENOEXEC, ENOTDIR, EISDIR: it is there, but no program.
        Some("13" | "8" | "20" | "21") => NOT_EXECUTABLE,
        _ => OUR_END,
    }
}

async fn cancel(context: &Context, run_id: &str, reason: &str) -> Result<(), crate::client::Error> {
    let path = format!("/v1/runs/{}/cancel", encode(run_id));
    Patient::new(&context.client).post(&path, &json!({ "reason": reason })).await.map(|_| ())
}

async fn cancel_quietly(context: &Context, run_id: &str) {
    if let Err(error) = cancel(context, run_id, "nobody reads its output").await {
        out::note(&error.to_string());
    }
}

/// Counts SIGINT, SIGTERM and SIGHUP from now on.
fn listen() -> Result<watch::Receiver<u32>, Stop> {
    let (count, interrupts) = watch::channel(0);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let count = count.clone();
        let mut signals = signal(kind).map_err(|error| Stop::new(Exit::Failed, format!("cannot start: {error}")))?;
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                count.send_modify(|count| *count += 1);
            }
        });
    }
    Ok(interrupts)
}

async fn seen(interrupts: &watch::Receiver<u32>, times: u32) {
    // Its senders live as long as the runtime.
    let _ = interrupts.clone().wait_for(|&count| count >= times).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_submitted_keeps_the_grammar() {
        use crate::domain::{contract::Contract, json};
        let long = "x".repeat(2000);
        let words = format!(
            "exec --require dut=board,cores=4 --require h=b --env A=1 --pass-env P --timeout 0.5 --wait-timeout 9 -- {long} -v"
        );
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from(words.split(' ')).expect("parses");
        let body = json::parse(contract(&line.args).to_string().as_bytes()).expect("JSON");
        let contract = Contract::parse(&body).expect("keeps the grammar");
        assert_eq!((contract.steps.len(), contract.requires.roles.len()), (1, 2));
    }

    #[test]
    fn a_command_that_did_not_start_ends_as_in_a_shell() {
        let check = |error: &str, expect: u8| assert_eq!(not_started(error), expect, "{error}");
        check("cannot start './x': No such file or directory (os error 2)", 127);
        check("cannot start './x': Permission denied (os error 13)", 126);
        check("cannot start './x': Exec format error (os error 8)", 126);
        check("cannot start './x': Cannot allocate memory (os error 12)", 125);
        check("ran over its 5 s", 125);
    }

    #[test]
    fn only_the_commands_own_code_is_passed_on() {
        let check = |run: Value, expect: u8| {
            let run: Run = serde_json::from_value(run).expect("a run");
            assert_eq!(end(&run), Exit::Command(expect), "{run:?}");
        };
        check(json!({"state": "SUCCEEDED", "steps": [{"result": {"exit_code": 0}}]}), 0);
        check(json!({"state": "FAILED", "steps": [{"result": {"exit_code": 143}}]}), 143);
        check(json!({"state": "FAILED", "steps": [{"result": {"exit_code": 300}}]}), 125);
        check(
            json!({"state": "FAILED", "steps": [{"result": {"error": "cannot start x: Permission denied (os error 13)"}}]}),
            126,
        );
        check(json!({"state": "FAILED", "verdict": {"kind": "queue-timeout"}, "steps": [{"result": null}]}), 124);
        check(json!({"state": "FAILED", "verdict": {"kind": "node-lost"}, "steps": [{}]}), 125);
        check(json!({"state": "CANCELLED", "verdict": {"kind": "cancelled"}, "steps": [{}]}), 125);
    }
}
