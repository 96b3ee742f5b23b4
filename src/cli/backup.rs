//! `mediator backup` and `restore`: everything that a daemon keeps, in one file, while it serves; and a new folder from it.

use std::fs::File;
use std::path::PathBuf;

use super::{Context, Exit, Stop, out, record};
use crate::backup;

/// Flags of `mediator backup`.
#[derive(clap::Args, Debug)]
pub struct BackupArgs {
    /// The file to write; it appears when it is whole
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Flags of `mediator restore`.
#[derive(clap::Args, Debug)]
pub struct RestoreArgs {
    /// A file that `backup` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The new data folder
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
}

/// Fetches a backup.
pub async fn backup(args: BackupArgs, context: &Context) -> Result<Exit, Stop> {
    // All that is known, hashes of tokens too: for its owner alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut source = context.client.open("/v1/backup", None).await?;
    record::save(&mut source, &args.file).await?;
    out::line(&format!("backed up to {}", args.file.display()))?;
    Ok(Exit::Done)
}

/// Makes a data folder from a backup.
pub fn restore(args: &RestoreArgs) -> Result<Exit, Stop> {
    let shown = args.file.display();
    let file =
        File::open(&args.file).map_err(|error| Stop::new(Exit::Usage, format!("cannot read {shown}: {error}")))?;
    let (made_at, files) =
        backup::unpack(std::io::BufReader::new(file), &args.into).map_err(|error| Stop::new(Exit::Failed, error))?;
    let into = args.into.display();
    out::line(&format!("restored {files} files as of {made_at} to {into}"))?;
    out::note(&format!(
        "`mediator serve --data {into}` goes on from there: runs that were under way end as `restored`, waiting ones wait on, \
         and there is a new operator's token"
    ));
    Ok(Exit::Done)
}
