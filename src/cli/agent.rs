//! `mediator agent`: a lab host; and `mediator supervise`, which the agent starts for each step.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Exit, out};

/// Flags of `mediator agent`.
#[derive(clap::Args, Debug)]
pub struct AgentArgs {
    /// File that describes the nodes (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Runs the agent.
pub fn run(_args: &AgentArgs) -> ExitCode {
    out::note("this build has no agent");
    Exit::Usage.into()
}

/// Supervises one step, as told on standard input.
pub fn supervise() -> ExitCode {
    out::note("this build has no agent");
    Exit::Usage.into()
}
