//! The commands.
use std::process::ExitCode;

/// Runs the command line.
pub fn run() -> ExitCode {
    ExitCode::SUCCESS
}
