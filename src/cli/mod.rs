//! The command line: the tree of commands, what is common to them, and the exit codes.
//!
//! Every command parses its flags, speaks to the daemon through [`crate::client`], writes its answer to standard
//! output (`out`) and says with [`Exit`] how it went. Nothing here decides about runs or nodes: the daemon does.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::agent::link::Flags;
use crate::client::{self, Client, Problem, Token};
use crate::tls::Trust;

mod agent;
mod agent_init;
mod artifacts;
mod asks;
mod backup;
mod cancel;
mod change;
mod contract_file;
mod events;
mod exec;
mod follow;
mod hold;
mod keeping;
mod lint;
mod lists;
mod login;
mod logs;
mod nodes;
mod out;
mod record;
mod runs;
mod serve;
mod submit;
mod text;
mod why;
mod wire;
mod yaml;

/// Share lab nodes among runs
///
/// One daemon (`mediator serve`) matches runs to nodes, leases them and keeps the records; an agent
/// (`mediator agent`) on each lab host does the work; every other command asks the daemon.
#[derive(Parser, Debug)]
#[command(name = "mediator", version, after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done or succeeded; 1 the run failed or was cancelled; 2 usage; 3 the daemon can't \
be reached; 4 refused; 5 gave up waiting; 6 the lab failed. `exec` and `hold` end with the command's own code; 124 gave up \
waiting, 125 any other end of ours, 126 and 127 as a shell gives them.";

/// Flags of every command that speaks to the daemon.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Finding the daemon and printing its answer")]
struct Global {
    /// Print the daemon's JSON instead of tables and sentences
    #[arg(long, global = true)]
    json: bool,
    /// Speak to the daemon at this address (default: $MEDIATOR_URL, else as logged in, else the
    /// file `url` in the data folder)
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// Repeat an earlier request that has this key: it is done once, and answered alike
    #[arg(long, global = true, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Find the daemon's address and token in this folder (default: $MEDIATOR_DATA, else where `serve` keeps it)
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon
    Serve(serve::Args),
    /// Run the agent of a lab host: speak for its nodes and do their work
    Agent(agent::AgentArgs),
    /// Look after one step for the agent that started this
    #[command(hide = true)]
    Supervise,
    /// Look after the command of `hold`
    #[command(hide = true)]
    Attend(agent::AttendArgs),
    #[command(flatten)]
    Client(ClientCommand),
    /// Check contracts without a daemon
    Lint(lint::Args),
    /// Keep a daemon's address and token for the commands of this user
    Login(login::Args),
    /// Forget what `login` has kept
    Logout,
    /// Make a new data folder from a backup
    Restore(backup::RestoreArgs),
}

/// The commands that ask the daemon.
#[derive(Subcommand, Debug)]
enum ClientCommand {
    /// Submit a contract
    Submit(submit::Args),
    /// Run one command on a matching node and show its output
    Exec(exec::Args),
    /// Wait for nodes, hold them, run a command here, and give them back
    Hold(hold::Args),
    /// List runs, newest first
    Runs(runs::ListArgs),
    /// Show everything about a run
    Show(runs::ShowArgs),
    /// Tell what a run waits for
    Why(why::Args),
    /// Show the output of a run's steps
    Logs(logs::Args),
    /// Cancel runs: those that are named, or all that fit
    Cancel(cancel::Args),
    /// List or fetch the files that a run's steps left
    Artifacts(artifacts::Args),
    /// Fetch or verify the record of a run that has ended
    Record(record::Args),
    /// Show what happens, as it happens
    Events(events::Args),
    /// List open questions, oldest first
    Asks(asks::ListArgs),
    /// Answer a question
    Answer(asks::AnswerArgs),
    /// List nodes and what they are doing
    Nodes(nodes::ListArgs),
    /// Show, add or remove one node
    #[command(subcommand)]
    Node(nodes::NodeCommand),
    /// Let a node take no new run
    Drain(nodes::DrainArgs),
    /// Lift the drain of a node
    Undrain(nodes::UndrainArgs),
    /// Tell whether the request with an idempotency key was done (exit code 1: it was not)
    Request(keeping::RequestArgs),
    /// List what is to be sent to webhooks, or send it again
    Outbox(keeping::OutboxArgs),
    /// Write everything that the daemon keeps to a file, while it serves
    Backup(backup::BackupArgs),
    /// Examine the daemon: durability, room, invariants (exit code 1: something is wrong)
    Doctor,
}

/// How a command ended, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, or the run succeeded: 0.
    Done,
    /// The run failed or was cancelled; what was checked is not right: 1.
    Failed,
    /// The command was not used as it must be: 2.
    Usage,
    /// The daemon can't be reached: 3.
    Unreachable,
    /// The daemon refused: 4.
    Refused,
    /// Gave up waiting: 5.
    GaveUp,
    /// The lab failed, not the work: 6.
    LabFailed,
    /// `exec` and `hold` end with the code of what they ran.
    Command(u8),
}

impl Exit {
    /// Returns the number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
            Self::GaveUp => 5,
            Self::LabFailed => 6,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command ends without its answer.
#[derive(Debug)]
pub struct Stop {
    exit: Exit,
    /// For people; none when there is nobody left to read it (a broken pipe).
    messages: Vec<String>,
    /// The daemon's problem document, which `--json` prints.
    problem: Option<Box<Problem>>,
}

impl Stop {
    /// Ends with `exit`, telling `message`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, messages: vec![message.into()], problem: None }
    }

    /// Says whether the reader of standard output went away.
    fn is_broken_pipe(&self) -> bool {
        self.messages.is_empty()
    }
}

impl From<client::Error> for Stop {
    fn from(error: client::Error) -> Self {
        let message = error.to_string();
        match error {
            client::Error::Refused(problem) => {
                let mut messages = vec![message];
                messages.extend(text::refusal_details(&problem));
                Self { exit: Exit::Refused, messages, problem: Some(problem) }
            }
            _ => Self::new(Exit::Unreachable, message),
        }
    }
}

impl From<std::io::Error> for Stop {
    /// Of writing the answer. Whoever closed the pipe has seen enough: that is no failure.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self { exit: Exit::Done, messages: Vec::new(), problem: None };
        }
        Self::new(Exit::Failed, format!("cannot write the answer: {error}"))
    }
}

/// What every command that speaks to the daemon is given.
#[derive(Debug)]
pub struct Context {
    /// The daemon.
    pub client: Client,
    /// Whether programs read the answer.
    pub json: bool,
    /// The idempotency key to use; none: a new one for each request.
    pub key: Option<String>,
}

/// Parses the command line, runs the command, and returns its exit code.
pub fn run() -> ExitCode {
    let Args { global, command } = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help on a closed pipe: nobody wanted more of it.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    match command {
        Command::Serve(args) => {
            start_log();
            serve::run(&args)
        }
        Command::Agent(args) if args.is_init() => finish(agent::init(&args, global.url.as_deref()), global.json),
        Command::Agent(args) => {
            start_log();
            agent::run(&args, &Flags { url: global.url, data: global.data })
        }
        Command::Supervise => agent::supervise(),
        Command::Attend(args) => agent::attend(&args),
        Command::Login(args) => finish(block_on(login::login(args)), global.json),
        Command::Restore(args) => finish(backup::restore(&args), global.json),
        Command::Logout => finish(login::logout(), global.json),
        Command::Lint(args) => finish(lint::run(args, global.json), global.json),
        Command::Client(command) => {
            let has_command = matches!(command, ClientCommand::Exec(_) | ClientCommand::Hold(_));
            let result = ask_daemon(command, &global);
            finish(if has_command { result.map_err(exec::as_own_end) } else { result }, global.json)
        }
    }
}

/// The log of the two that run for long goes to standard error.
fn start_log() {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
}

/// Tells why there is no answer, if there is none.
fn finish(result: Result<Exit, Stop>, json: bool) -> ExitCode {
    let exit = result.unwrap_or_else(|stop| {
        for message in &stop.messages {
            out::note(message);
        }
        if let Some(problem) = stop.problem.filter(|problem| json && !problem.body.is_null()) {
            // Nobody reads it: the exit code says the same.
            let _ = out::json(&problem.body);
        }
        stop.exit
    });
    exit.into()
}

fn ask_daemon(command: ClientCommand, global: &Global) -> Result<Exit, Stop> {
    // The record in a file needs no daemon.
    if let ClientCommand::Record(args) = &command
        && args.is_of_file()
    {
        return record::verify_file(args);
    }
    let context = &global.context()?;
    block_on(async {
        match command {
            ClientCommand::Submit(args) => submit::run(args, context).await,
            ClientCommand::Exec(args) => exec::run(args, context).await,
            ClientCommand::Hold(args) => hold::run(args, context).await,
            ClientCommand::Runs(args) => runs::list(args, context).await,
            ClientCommand::Show(args) => runs::show(args, context).await,
            ClientCommand::Why(args) => why::run(args, context).await,
            ClientCommand::Logs(args) => logs::run(args, context).await,
            ClientCommand::Cancel(args) => cancel::run(args, context).await,
            ClientCommand::Artifacts(args) => artifacts::run(args, context).await,
            ClientCommand::Record(args) => record::run(args, context).await,
            ClientCommand::Events(args) => events::run(args, context).await,
            ClientCommand::Asks(args) => asks::list(args, context).await,
            ClientCommand::Answer(args) => asks::answer(args, context).await,
            ClientCommand::Nodes(args) => nodes::list(args, context).await,
            ClientCommand::Node(nodes::NodeCommand::Show(args)) => nodes::show(args, context).await,
            ClientCommand::Node(nodes::NodeCommand::Add(args)) => nodes::add(args, context).await,
            ClientCommand::Node(nodes::NodeCommand::Remove(args)) => nodes::remove(args, context).await,
            ClientCommand::Node(nodes::NodeCommand::Clean(args)) => nodes::clean(args, context).await,
            ClientCommand::Drain(args) => nodes::drain(args, context).await,
            ClientCommand::Undrain(args) => nodes::undrain(args, context).await,
            ClientCommand::Request(args) => keeping::request(args, context).await,
            ClientCommand::Outbox(args) => keeping::outbox(args, context).await,
            ClientCommand::Backup(args) => backup::backup(args, context).await,
            ClientCommand::Doctor => keeping::doctor(context).await,
        }
    })
}

fn block_on(work: impl Future<Output = Result<Exit, Stop>>) -> Result<Exit, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Stop::new(Exit::Failed, format!("cannot start: {error}")))?;
    let result = runtime.block_on(work);
    // Not dropped: that would wait for a write to a terminal or pipe that nobody reads.
    runtime.shutdown_background();
    result
}

impl Global {
    /// Finds the daemon. A flag beats the environment, so with `--data` the variables are not looked at.
    fn context(&self) -> Result<Context, Stop> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let named = self.data.clone().or_else(|| set("MEDIATOR_DATA").map(PathBuf::from));
        let key = self.idempotency_key.clone();
        if self.url.is_none() && self.data.is_none() {
            return Ok(Context { client: Client::discover(named.as_deref())?, json: self.json, key });
        }
        let data = named.unwrap_or_else(crate::config::default_data_dir);
        let from_folder = |name: &str| {
            let path = data.join(name);
            std::fs::read_to_string(&path).map_err(|error| {
                let path = path.display();
                Stop::new(
                    Exit::Unreachable,
                    format!(
                        "cannot find the daemon: {path} is not readable ({error}): has `mediator serve` started there?"
                    ),
                )
            })
        };
        let url = self.url.clone().map_or_else(|| from_folder("url"), Ok)?;
        let from_environment = set("MEDIATOR_TOKEN").filter(|_| self.data.is_none());
        let token = match from_environment {
            Some(token) => token.to_string_lossy().into_owned(),
            None => from_folder("operator.token")?,
        };
        let trust = if self.url.is_some() { Trust::of_environment() } else { Trust::of_folder(&data) };
        Ok(Context { client: Client::trusting(&url, Token::new(&token), &trust)?, json: self.json, key })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tree_of_commands_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn serve_has_a_data_folder_of_its_own() {
        let args = Args::try_parse_from(["mediator", "serve", "--data", "/d"]).expect("parses");
        assert!(matches!(args.command, Command::Serve(serve::Args { data: Some(_), .. })));
    }
}
