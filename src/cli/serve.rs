//! `mediator serve`: the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{Exit, out};

/// Flags of `mediator serve`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Keep everything in this folder (default: $STATE_DIRECTORY, else $XDG_STATE_HOME/mediator, else
    /// ~/.local/state/mediator)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Listen here (default: 127.0.0.1:7340; port 0 picks a free one)
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Runs the daemon until it is told to stop.
pub fn run(_args: &Args) -> ExitCode {
    out::note("this build has no daemon");
    Exit::Usage.into()
}
