//! The command line: the tree of commands, what is common to them, and the exit codes.
//!
//! Every command parses its flags, speaks to the daemon through [`crate::client`], writes its answer to standard
//! output ([`out`]) and says with [`Exit`] how it went. Nothing here decides about runs or nodes: the daemon does.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::client::{self, Client, Problem, Token};

mod agent;
mod exec;
mod follow;
mod lists;
mod logs;
mod nodes;
mod out;
mod runs;
mod serve;
mod submit;
mod text;
mod wire;

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
be reached; 4 refused; 5 gave up waiting; 6 the lab failed. `exec` ends with the command's own code; 124 gave up waiting, \
125 any other end of ours, 126 and 127 as a shell gives them.";

/// Flags of every command that speaks to the daemon.
#[derive(clap::Args, Debug)]
struct Global {
    /// Print the daemon's JSON instead of tables and sentences
    #[arg(long, global = true)]
    json: bool,
    /// Speak to the daemon at this address (default: $MEDIATOR_URL, else the file `url` in the data folder)
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// Find the daemon's address and token in this folder (default: $MEDIATOR_DATA, else where `serve` keeps it)
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the daemon
    Serve(serve::Args),
    /// Run the agent of a lab host: speak for its nodes and do their work
    Agent(agent::Args),
    #[command(hide = true)]
    Supervise(agent::SuperviseArgs),
    /// Submit a contract
    Submit(submit::Args),
    /// Run one command on a matching node and show its output
    Exec(exec::Args),
    /// List runs, newest first
    Runs(runs::ListArgs),
    /// Show everything about a run
    Show(runs::ShowArgs),
    /// Show the output of a run's steps
    Logs(logs::Args),
    /// Cancel runs
    Cancel(runs::CancelArgs),
    /// List nodes and what they are doing
    Nodes(nodes::ListArgs),
    /// Show, add or remove one node
    #[command(subcommand)]
    Node(nodes::NodeCommand),
    /// Let a node take no new run
    Drain(nodes::DrainArgs),
    /// Lift the drain of a node
    Undrain(nodes::UndrainArgs),
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
    /// `exec` ends with the code of what it ran.
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
}

/// Parses the command line, runs the command, and returns its exit code.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help on a closed pipe: nobody wanted more of it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage.code() } else { Exit::Done.code() });
        }
    };
    let json = args.global.json;
    let exit = dispatch(args).unwrap_or_else(|stop| {
        for message in &stop.messages {
            out::note(message);
        }
        if let Some(problem) = stop.problem.filter(|problem| json && !problem.body.is_null()) {
            let _ = out::json(&problem.body);
        }
        stop.exit
    });
    ExitCode::from(exit.code())
}

fn dispatch(args: Args) -> Result<Exit, Stop> {
    let Args { global, command } = args;
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Supervise(args) => agent::supervise(args),
        command => {
            let is_exec = matches!(command, Command::Exec(_));
            let result = global.context().and_then(|context| block_on(ask_daemon(command, &context)));
            if is_exec { result.map_err(exec::as_own_end) } else { result }
        }
    }
}

async fn ask_daemon(command: Command, context: &Context) -> Result<Exit, Stop> {
    match command {
        Command::Submit(args) => submit::run(args, context).await,
        Command::Exec(args) => exec::run(args, context).await,
        Command::Runs(args) => runs::list(args, context).await,
        Command::Show(args) => runs::show(args, context).await,
        Command::Logs(args) => logs::run(args, context).await,
        Command::Cancel(args) => runs::cancel(args, context).await,
        Command::Nodes(args) => nodes::list(args, context).await,
        Command::Node(nodes::NodeCommand::Show(args)) => nodes::show(args, context).await,
        Command::Node(nodes::NodeCommand::Add(args)) => nodes::add(args, context).await,
        Command::Node(nodes::NodeCommand::Remove(args)) => nodes::remove(args, context).await,
        Command::Drain(args) => nodes::drain(args, context).await,
        Command::Undrain(args) => nodes::undrain(args, context).await,
        Command::Serve(_) | Command::Agent(_) | Command::Supervise(_) => {
            unreachable!("handled by dispatch(): they bring a runtime of their own")
        }
    }
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
        let data = self
            .data
            .clone()
            .or_else(|| set("MEDIATOR_DATA").map(PathBuf::from))
            .unwrap_or_else(crate::config::default_data_dir);
        if self.url.is_none() && self.data.is_none() {
            return Ok(Context { client: Client::discover(&data)?, json: self.json });
        }
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
        Ok(Context { client: Client::new(&url, Token::new(&token))?, json: self.json })
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
