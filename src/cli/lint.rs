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

/// Checks contracts by the daemon's grammar, and tells on standard error what is legal but odd. Whether there are nodes for them, `submit --dry-run` tells.
pub fn run(args: Args, as_json: bool) -> Result<Exit, Stop> {
    let mut exit = Exit::Done;
    for path in &args.files {
        match check(path)? {
            Ok((_, odd)) if as_json => {
                for complaint in odd {
                    let mut shown = serde_json::to_value(&complaint).expect("text and a number");
                    shown["legal"] = true.into();
                    out::json(&shown)?;
                }
            }
            Ok((contract, odd)) => {
                for complaint in odd {
                    out::note(&format!("{complaint} (legal, but odd)"));
                }
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

/// Returns the contract and what is odd about it, or what is wrong.
fn check(path: &Path) -> Result<Result<(Contract, Vec<Complaint>), Complaint>, Stop> {
    Ok(ContractFile::load(path)?.and_then(|file| {
        let contract = json::parse(&file.json).and_then(|body| Contract::parse(&body));
        let contract = contract.map_err(|invalid| file.complaint(&invalid.path, &invalid.what))?;
        let odd = contract.odd().iter().map(|odd| file.complaint(&odd.path, &odd.what)).collect();
        Ok((contract, odd))
    }))
}
