//! `mediator lint`: check contracts without a daemon.

use std::path::{Path, PathBuf};

use super::contract_file::{Complaint, ContractFile};
use super::{Exit, Stop, out};
use crate::domain::contract::Contract;
use crate::domain::json;

/// Flags of `mediator lint`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The contracts; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Checks contracts by the daemon's grammar. Whether there are nodes for them, `submit --dry-run` tells.
pub fn run(args: Args, as_json: bool) -> Result<Exit, Stop> {
    let mut exit = Exit::Done;
    for path in &args.files {
        match check(path)? {
            Ok(_) if as_json => {}
            Ok(contract) => {
                let (roles, steps) = (contract.requires.roles.len(), contract.steps.len());
                out::line(&format!("{}: good: {roles} required, {steps} steps", path.display()))?;
            }
            Err(complaint) => {
                exit = Exit::Failed;
                if as_json {
                    out::json(&serde_json::to_value(&complaint).expect("text and a number"))?;
                } else {
                    out::line(&complaint.to_string())?;
                }
            }
        }
    }
    Ok(exit)
}

fn check(path: &Path) -> Result<Result<Contract, Complaint>, Stop> {
    Ok(ContractFile::load(path)?.and_then(|file| {
        let contract = json::parse(&file.json).and_then(|body| Contract::parse(&body));
        contract.map_err(|invalid| file.complaint(&invalid.path, &invalid.what))
    }))
}
