//! The `mediator` program: parse, call, exit code. Everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    mediator::cli::run()
}
