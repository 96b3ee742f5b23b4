//! `mediator hold`: wait for nodes, hold them, run a command here, and give them back whatever happens.
//!
//! The run is *attended*: from its submission on the daemon ends it when it has not heard of this process for
//! `hold.ttl_seconds`. So whatever kills this process, the nodes come back within that time, and a run that waits does
//! not wait for nobody. Three things go on at once: the right to the nodes is renewed ([`right`]), the run is watched
//! ([`daemon`]), and the command is looked after by a process of its own ([`command`]), which kills it when the right
//! runs out, when it is told to, and when this process is gone. What is said meanwhile goes through [`teller`].

mod command;
mod daemon;
mod right;
mod signals;
mod teller;

use std::ffi::OsString;
use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::command::Command;
use self::daemon::{Daemon, Reported, Waited, refusal};
use self::right::{Over, Right};
use self::signals::{Received, Signals};
use self::teller::Teller;
use super::exec::{GAVE_UP, OUR_END, not_started};
use super::wire::Run;
use super::{Context, Exit, Stop, text};
use crate::agent::deadline::sleep_until;
use crate::agent::supervisor::{Cause, End, How};
use crate::client::Error;
use crate::clock::{Ms, boottime_ms};
use crate::domain::variables::variables;

/// Everything is given back within seven seconds of a SIGTERM: five for the command, then its supervisor kills it. From
/// here on it is given back even if something could not be killed ...
const CLEARED_MS: Ms = 5_700;
/// ... and from here on without the daemon having heard of it.
const TOLD_MS: Ms = 6_700;
/// The exit code of a command that was killed: 128 and SIGKILL.
const KILLED: i32 = 137;
/// How long what the command left behind is waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(5);
/// How long a run that waits is tried to be cancelled, and a lost one to be given back.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How long the run's document is waited for when everything else is done.
const DOCUMENT_LIMIT: Duration = Duration::from_secs(2);
/// How much longer than the daemon this waits when the daemon is to give up.
const WAIT_SLACK_MS: f64 = 5_000.0;

/// Flags of `mediator hold`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A node to hold (can be repeated)
    #[arg(long, required = true, value_name = "ROLE=CAPABILITY[,KEY=VALUE..]", value_parser = text::parse_require)]
    require: Vec<Value>,
    /// The run's name (default: `hold` and the command's first word)
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Say what the nodes are held for, e.g. a change under review
    #[arg(long, value_name = "TEXT")]
    work: Option<String>,
    /// Go before runs of a lower priority: -10 to 10, above 0 for operators (default: 0)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-10..=10))]
    priority: Option<i64>,
    /// Give the nodes back, and end the command (exit code 125), after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    timeout: Option<f64>,
    /// Give up (exit code 124) if the nodes are not free within this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = text::parse_seconds)]
    wait_timeout: Option<f64>,
    /// The command and its arguments; it runs here, and no shell is involved
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Holds the nodes while the command runs, and ends with its exit code.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let teller = Teller::start();
    let result = hold(&args, context, &teller).await;
    teller.close();
    result
}

async fn hold(args: &Args, context: &Context, teller: &Teller) -> Result<Exit, Stop> {
    // Before anything is asked for: from then on there is something to give back.
    let mut signals = Signals::listen()?;
    let run_id = new_run_id()?;
    let daemon = Daemon::new(&context.client, teller, &run_id);
    let give_up = pin!(wait_limit(args.wait_timeout));
    let waiting = async {
        let (run, body) = daemon.submit(&contract(args, &run_id)).await?;
        let mut right = Right::keep(context.client.clone(), &run_id);
        let waited = daemon.wait(run, body).await?;
        right.settled().await;
        Ok::<_, Stop>((waited, right))
    };
    let (waited, right) = tokio::select! {
        waited = waiting => waited?,
        signal = signals.end() => {
            let reason = format!("{} while it waited", signal.name());
            return Err(leave(&daemon, &mut signals, OUR_END, &reason).await);
        }
        () = give_up => return Err(leave(&daemon, &mut signals, GAVE_UP, "gave up waiting").await),
    };
    match waited {
        Waited::Ended(run) => Err(refusal(&run)),
        Waited::Open(run, body) => {
            let nodes = text::placement(&run.assigned);
            teller.note(format!("run {run_id} holds {nodes}"));
            let (attempt, since) = (run.steps[0].attempt, boottime_ms());
            let holder = Holder { daemon, teller, right, signals, attempt, nodes, since };
            holder.work(args, &body, context.json).await
        }
    }
}

/// Returns an id for the run: chosen here, so that the submission can be repeated.
fn new_run_id() -> Result<String, Stop> {
    let number = getrandom::u64().map_err(|error| Stop::new(Exit::Failed, format!("no random numbers: {error}")))?;
    Ok(format!("hold-{:012x}", number >> 16))
}

/// The daemon keeps this time. Should it be away when it is over, this does.
async fn wait_limit(seconds: Option<f64>) {
    match seconds {
        #[allow(clippy::cast_possible_truncation, reason = "some 31 years at most")]
        Some(seconds) => sleep_until(boottime_ms() + (seconds * 1000.0 + WAIT_SLACK_MS) as Ms).await,
        None => std::future::pending().await,
    }
}

fn contract(args: &Args, run_id: &str) -> Value {
    let word: String = args.command[0].to_string_lossy().chars().filter(|c| !c.is_control()).take(100).collect();
    let mut hold = Map::new();
    hold.extend(args.timeout.map(|seconds| ("timeout_seconds".to_owned(), seconds.into())));
    let mut contract = json!({
        "name": args.name.clone().unwrap_or_else(|| format!("hold {word}")),
        "run_id": run_id,
        "attended": true,
        "requires": args.require,
        "steps": [{ "id": "hold", "hold": hold }],
    });
    let fields = [
        ("work", args.work.clone().map(Value::from)),
        ("priority", args.priority.map(Value::from)),
        ("queue_timeout_seconds", args.wait_timeout.map(Value::from)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            contract[name] = value;
        }
    }
    contract
}

/// Cancels a run that still waits. A second signal leaves at once.
async fn leave(daemon: &Daemon<'_>, signals: &mut Signals, code: u8, reason: &str) -> Stop {
    let run_id = daemon.run_id;
    let cancelled = tokio::select! {
        cancelled = tokio::time::timeout(CANCEL_LIMIT, daemon.cancel(reason)) => cancelled.ok(),
        _ = signals.end() => None,
    };
    let message = match cancelled {
        Some(Ok(Some(run))) if code == GAVE_UP => format!("{reason}; run {run_id} {}", text::run_state(&run)),
        Some(Ok(Some(run))) => format!("run {run_id} {}", text::run_state(&run)),
        Some(Ok(None)) => format!("{reason}; nothing had been submitted yet"),
        Some(Err(error)) => format!("{reason}; cannot cancel run {run_id}: {error}"),
        None => format!("{reason}; run {run_id} ends by itself within the daemon's hold.ttl_seconds"),
    };
    Stop::new(Exit::Command(code), message)
}

/// Who holds the nodes.
struct Holder<'a> {
    daemon: Daemon<'a>,
    teller: &'a Teller,
    right: Right,
    signals: Signals,
    attempt: u64,
    /// For people.
    nodes: String,
    since: Ms,
}

/// How the command's time with the nodes ended.
enum Ending {
    /// The command ended; nothing if its supervisor was killed.
    Command(Option<End>),
    /// The run ended, as this tells if that is known.
    Lost(Option<Box<Run>>),
    /// The right ran out.
    RanOut,
    /// A command that was told to end could not be killed in time.
    Stuck,
}

impl Holder<'_> {
    /// Runs the command, and gives the nodes back when it has ended.
    async fn work(mut self, args: &Args, body: &Bytes, json: bool) -> Result<Exit, Stop> {
        let run: Value = serde_json::from_slice(body).unwrap_or_default();
        let env = variables(self.daemon.run_id, "hold", self.attempt, &run["assigned"]);
        let until = self.right.known().until;
        let mut command = match Command::start(&args.command, env, &run["assigned"], until).await {
            Ok(command) => command,
            Err(error) => {
                let why = format!("cannot start a process to look after the command: {error}");
                self.give_back(&json!({ "error": why }), boottime_ms() + TOLD_MS).await;
                return Err(Stop::new(Exit::Command(OUR_END), why));
            }
        };
        let daemon = self.daemon.clone();
        let mut run_ended = pin!(daemon.ended());
        let mut clear_by = Ms::MAX;
        let mut tell_by = Ms::MAX;
        let ending = loop {
            tokio::select! {
                end = command.end() => break match end {
                    Some(End { stopped: Some(Cause::Lease), .. }) => Ending::RanOut,
                    end => Ending::Command(end),
                },
                run = &mut run_ended => break Ending::Lost(run.map(Box::new)),
                renewed = self.right.renewed() => match renewed {
                    Ok(until) => command.prolong(until).await,
                    Err(Over::Ended) => break Ending::Lost(None),
                    Err(Over::RanOut) => break Ending::RanOut,
                },
                () = sleep_until(clear_by) => break Ending::Stuck,
                received = self.signals.next() => {
                    if received.is_final() {
                        self.tell_end(received);
                        clear_by = clear_by.min(boottime_ms() + CLEARED_MS);
                        tell_by = tell_by.min(boottime_ms() + TOLD_MS);
                    }
                    if received.is_to_pass() {
                        command.pass(received.signal).await;
                    }
                }
            }
        };
        let result = self.finish(ending, &mut command, tell_by).await;
        if json {
            // Standard output is the command's, also here.
            if let Some((_, body)) = self.daemon.now(DOCUMENT_LIMIT).await {
                self.teller.close();
                let _ = std::io::stderr().write_all(&[&body[..], b"\n"].concat());
            }
        }
        result
    }

    fn tell_end(&self, received: Received) {
        self.teller.note(format!("{}: the command has 5 s to end", received.name()));
    }

    /// Sees to it that nothing of the command is left, then gives the nodes back.
    async fn finish(&mut self, ending: Ending, command: &mut Command, tell_by: Ms) -> Result<Exit, Stop> {
        // In this order: whoever gets the nodes next must not meet what this command started.
        command.kill();
        let left = tell_by.saturating_sub(boottime_ms() + TOLD_MS - CLEARED_MS).clamp(100, 3_600_000);
        let limit = LEFT_BEHIND.min(Duration::from_millis(left.unsigned_abs()));
        if !command.gone(limit).await {
            self.teller.note("something that the command started could not be killed, and may still use the nodes");
        }
        let end = match ending {
            Ending::Lost(run) => return Err(self.lost(run.map(|run| *run)).await),
            Ending::RanOut => return Err(self.ran_out().await),
            Ending::Command(Some(end)) => end,
            Ending::Command(None) => {
                let why = "the process that looked after the command was killed".to_owned();
                End { how: How::NotStarted(why), stopped: Some(Cause::Told) }
            }
            Ending::Stuck => End { how: How::Code(KILLED), stopped: Some(Cause::Told) },
        };
        let (outcome, code) = match &end.how {
            How::Code(code) => (json!({ "exit_code": code }), u8::try_from(*code).unwrap_or(OUR_END)),
            How::NotStarted(why) => {
                self.teller.note(why);
                (json!({ "error": why }), not_started(why))
            }
        };
        // Beyond what is left of the right nobody hears it in time.
        let tell_by = tell_by.min(self.right.known().until.max(boottime_ms() + CLEARED_MS));
        match self.give_back(&outcome, tell_by).await {
            Some(Reported::Taken) => {
                let held = text::span(boottime_ms() - self.since);
                self.teller.note(format!("gave back {} after {held}", self.nodes));
                Ok(Exit::Command(code))
            }
            Some(Reported::Refused(Error::Refused(problem))) if right::is_end(problem.status) => {
                Err(self.lost(None).await)
            }
            Some(Reported::Refused(error)) => {
                self.tell_unheard(&error.to_string());
                Ok(Exit::Command(code))
            }
            None => {
                self.tell_unheard("the daemon is away");
                Ok(Exit::Command(code))
            }
        }
    }

    /// Reports the outcome until it is heard or the time is over. A signal that asks to end shortens that.
    async fn give_back(&mut self, outcome: &Value, mut until: Ms) -> Option<Reported> {
        let daemon = self.daemon.clone();
        let mut report = pin!(daemon.report(self.attempt, outcome));
        loop {
            tokio::select! {
                reported = &mut report => return Some(reported),
                () = sleep_until(until) => return None,
                _ = self.signals.end() => until = until.min(boottime_ms() + TOLD_MS - CLEARED_MS),
            }
        }
    }

    fn tell_unheard(&self, why: &str) {
        let within = text::span(self.right.known().ttl_ms);
        self.teller.note(format!(
            "could not say that {} can be given back: {why}; the daemon takes the nodes back within {within}",
            self.nodes
        ));
    }

    /// Tells why the run ended although the command had not.
    async fn lost(&self, run: Option<Run>) -> Stop {
        let run = match run {
            Some(run) => Some(run),
            None => self.daemon.now(CANCEL_LIMIT).await.map(|(run, _)| run).filter(Run::has_ended),
        };
        let how = run.map_or_else(|| "is not there any more".to_owned(), |run| text::run_state(&run));
        let message = format!("the hold of {} was lost: run {} {how}", self.nodes, self.daemon.run_id);
        Stop::new(Exit::Command(OUR_END), message)
    }

    /// Ends a hold that could not be renewed. The daemon may still count on it, so it is told if it is there.
    async fn ran_out(&self) -> Stop {
        let ttl = text::span(self.right.known().ttl_ms);
        let why = format!("it could not be renewed within {ttl}");
        let outcome = json!({ "error": format!("the hold was lost: {why}") });
        let _ = tokio::time::timeout(CANCEL_LIMIT, self.daemon.report(self.attempt, &outcome)).await;
        Stop::new(Exit::Command(OUR_END), format!("the hold of {} was lost: {why}", self.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_is_submitted_keeps_the_grammar() {
        use crate::domain::{contract::Contract, json};
        let long = "x".repeat(2000);
        let words = format!(
            "hold --require dut=board,cores=4 --require h=b --work gerrit:1 --priority -3 --timeout 0.5 --wait-timeout 9 \
             -- {long} -v"
        );
        let line = <Line as clap::Parser>::try_parse_from(words.split(' ')).expect("parses");
        let run_id = new_run_id().expect("random numbers");
        let body = json::parse(contract(&line.args, &run_id).to_string().as_bytes()).expect("JSON");
        let contract = Contract::parse(&body).expect("keeps the grammar");
        assert_eq!((contract.steps.len(), contract.requires.roles.len(), contract.attended), (1, 2, true));
        assert_eq!(run_id.len(), "hold-".len() + 12);
    }
}
