//! `mediator agent`: a lab host.

use std::path::PathBuf;

use super::{Exit, Stop};

/// Flags of `mediator agent`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Read the nodes and their capabilities from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Arguments of the hidden `mediator supervise`, which the agent starts around each command.
#[derive(clap::Args, Debug)]
pub struct SuperviseArgs {
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}

/// Runs the agent until it is told to stop.
pub fn run(_args: Args) -> Result<Exit, Stop> {
    Err(Stop::new(Exit::Usage, "this build has no agent"))
}

/// Runs one command under supervision.
pub fn supervise(_args: SuperviseArgs) -> Result<Exit, Stop> {
    Err(Stop::new(Exit::Usage, "this build has no agent"))
}
