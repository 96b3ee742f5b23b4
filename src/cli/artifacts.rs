//! `mediator artifacts`: the files that a run's steps left.

use std::path::{Component, Path, PathBuf};

use super::logs::find_step;
use super::out::Table;
use super::record::{copy, save};
use super::wire::{self, Artifact, Run};
use super::{Context, Exit, Stop, out};
use crate::client::{Opened, encode};

/// Flags of `mediator artifacts`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run_id: String,
    /// Only those of this step, by its id or number
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Fetch this one, the newest if there are several
    #[arg(long, value_name = "PATH", conflicts_with = "all")]
    get: Option<String>,
    /// Write what --get fetches to this file (default: standard output)
    #[arg(long, short, value_name = "FILE", requires = "get")]
    output: Option<PathBuf>,
    /// Fetch all into this folder, each as STEP-ATTEMPT/PATH
    #[arg(long, value_name = "DIR")]
    all: Option<PathBuf>,
}

/// Lists or fetches artifacts.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let address = format!("/v1/runs/{}", encode(&args.run_id));
    let seq = match &args.step {
        None => None,
        Some(name) => {
            let run: Run = wire::read(&context.client.get(&address).await?)?;
            Some(find_step(&run, name)?.seq)
        }
    };
    let answer = context.client.get(&format!("{address}/artifacts")).await?;
    if context.json && args.get.is_none() && args.all.is_none() && seq.is_none() {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let mut artifacts: Vec<Artifact> = wire::read(&answer)?;
    artifacts.retain(|artifact| seq.is_none_or(|seq| artifact.seq == seq));
    if let Some(path) = &args.get {
        artifacts.retain(|artifact| artifact.path == *path);
        if artifacts.is_empty() {
            let message = format!(
                "run {} left no '{path}': `mediator artifacts {}` lists what it left",
                args.run_id, args.run_id
            );
            return Err(Stop::new(Exit::Refused, message));
        }
        // Which of several is the newest the daemon knows: a loop may have gone back to an earlier step.
        let query = seq.map(|seq| format!("?seq={seq}")).unwrap_or_default();
        let mut source = open(context, &address, path, &query).await?;
        match &args.output {
            None => copy(&mut source, &mut std::io::stdout().lock()).await?,
            Some(file) => save_checked(&mut source, file, &artifacts).await?,
        }
    } else if let Some(folder) = &args.all {
        for artifact in &artifacts {
            let file = folder.join(format!("{}-{}", artifact.seq, artifact.attempt)).join(inner(&artifact.path)?);
            let parent = file.parent().unwrap_or(folder);
            std::fs::create_dir_all(parent)
                .map_err(|error| Stop::new(Exit::Failed, format!("cannot make {}: {error}", parent.display())))?;
            let query = format!("?seq={}&attempt={}", artifact.seq, artifact.attempt);
            let mut source = open(context, &address, &artifact.path, &query).await?;
            save_checked(&mut source, &file, std::slice::from_ref(artifact)).await?;
            out::line(&file.display().to_string())?;
        }
    } else {
        let mut table = Table::new(&["STEP", "ATTEMPT", "SIZE", "SHA256", "PATH"]);
        for artifact in artifacts {
            let Artifact { seq, attempt, path, size, sha256 } = artifact;
            table.row([seq.to_string(), attempt.to_string(), size.to_string(), sha256, path]);
        }
        table.print()?;
    }
    Ok(Exit::Done)
}

async fn open(context: &Context, address: &str, path: &str, query: &str) -> Result<Opened, Stop> {
    // The slashes of a path are the address's own.
    let path: Vec<String> = path.split('/').map(encode).collect();
    Ok(context.client.open(&format!("{address}/artifacts/{}{query}", path.join("/")), None).await?)
}

/// Writes an artifact that must be one of these.
async fn save_checked(source: &mut Opened, file: &Path, expected: &[Artifact]) -> Result<(), Stop> {
    let sha256 = save(source, file).await?;
    if expected.iter().any(|artifact| sha256.eq_ignore_ascii_case(&artifact.sha256)) {
        return Ok(());
    }
    Err(Stop::new(Exit::Failed, format!("{} is not what the daemon's list says: its SHA-256 differs", file.display())))
}

/// Returns a path of the daemon's that stays inside the folder it is put into.
fn inner(path: &str) -> Result<&Path, Stop> {
    let relative = Path::new(path);
    let is_inner = !path.is_empty() && relative.components().all(|part| matches!(part, Component::Normal(_)));
    if is_inner {
        return Ok(relative);
    }
    Err(Stop::new(Exit::Failed, format!("'{path}' would be written outside the folder")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        for path in ["", "/etc/passwd", "../x", "a/../../x", "./x"] {
            assert!(inner(path).is_err(), "{path}");
        }
        for path in ["x", "a/b.bin", "a/..b"] {
            assert!(inner(path).is_ok(), "{path}");
        }
    }
}
