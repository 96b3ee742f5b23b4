//! `mediator agent`: a lab host; and the supervisors: `mediator supervise`, which the agent starts for each step, and
//! `mediator attend`, which `mediator hold` starts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{Exit, Stop, agent_init};
use crate::agent::link::Flags;
use crate::agent::{self, Ended};

/// Speak for the nodes of this host and do their work
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// File that describes the nodes (TOML)
    #[arg(long, value_name = "FILE", required_unless_present = "init")]
    config: Option<PathBuf>,
    /// Write a first such file for this host and end (default: agent.toml); never over one that is there
    #[arg(long)]
    init: bool,
}

impl AgentArgs {
    /// Says whether only a file is to be written.
    pub fn is_init(&self) -> bool {
        self.init
    }

    fn path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new("agent.toml"))
    }
}

/// Writes a first file.
pub fn init(args: &AgentArgs, url: Option<&str>) -> Result<Exit, Stop> {
    agent_init::write(args.path(), url)
}

/// Runs the agent.
pub fn run(args: &AgentArgs, flags: &Flags) -> ExitCode {
    match agent::run(args.path(), flags) {
        Ended::Told => ExitCode::SUCCESS,
        Ended::Config => ExitCode::from(2),
        Ended::NoDaemon => ExitCode::from(3),
        Ended::Refused => ExitCode::from(4),
    }
}

/// Supervises one step, as told on standard input.
pub fn supervise() -> ExitCode {
    agent::supervisor::run()
}

/// What `mediator hold` starts.
#[derive(Args, Debug)]
pub struct AttendArgs {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Supervises the command of `mediator hold`.
pub fn attend(args: &AttendArgs) -> ExitCode {
    agent::here::run(&args.command)
}
