//! The commands.

pub mod agent;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "mediator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(agent::AgentArgs),
    /// Look after one step for the agent that started this
    #[command(hide = true)]
    Supervise,
}

/// Runs the command line.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Agent(args) => {
            env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
            agent::run(&args)
        }
        Command::Supervise => agent::supervise(),
    }
}
