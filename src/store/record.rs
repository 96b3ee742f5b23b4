//! Sealed records: where they stand, and what is in them. (`seal` makes them.)

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _};

use super::artifacts::artifacts_folder;
use super::folder::open_plain;
use super::{Error, Folder, history, views};
use crate::domain::ids::RunId;

/// Where a run's record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The run goes on.
    Open,
    /// It has ended, and the seal is owed.
    Owed,
    /// It is sealed; the SHA-256 of its manifest.
    Yes(String),
}

/// Returns where a run's record stands.
///
/// # Errors
/// `not-found`.
pub fn sealed(conn: &Connection, run: &RunId) -> Result<Sealed, Error> {
    let mut statement =
        conn.prepare_cached("SELECT ended_at IS NOT NULL, manifest_sha256 FROM runs WHERE run_id = ?1")?;
    let row = statement.query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(match row.ok_or_else(|| history::missing(conn, run))? {
        (_, Some(manifest)) => Sealed::Yes(manifest),
        (true, None) => Sealed::Owed,
        (false, None) => Sealed::Open,
    })
}

/// Lists the files of a sealed record, sorted.
///
/// # Errors
/// The file system's; a link or anything else that is not a plain file is an error.
pub fn files(folder: &Folder, run: &RunId) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    folder.has_no_links(&folder.records().join(run.as_str()).join("manifest.json"))?;
    collect(&folder.records().join(run.as_str()), "", &mut paths)?;
    paths.sort();
    Ok(paths)
}

/// Writes these files of a sealed record as a tar: the same bytes every time, with fixed owner and mode.
///
/// # Errors
/// The file system's, or whoever reads; a link is an error.
pub fn tar(folder: &Folder, run: &RunId, files: &[String], sink: impl Write) -> io::Result<()> {
    let root = folder.records().join(run.as_str());
    let mut archive = tar::Builder::new(sink);
    for path in files {
        let mut file = open_plain(&root.join(path))?;
        let mut header = tar::Header::new_gnu();
        header.set_size(file.metadata()?.len());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_entry_type(tar::EntryType::Regular);
        archive.append_data(&mut header, path, &mut file)?;
    }
    archive.into_inner()?.flush()
}

fn collect(root: &Path, below: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(root, &path, paths)?;
        } else if kind.is_file() {
            paths.push(path);
        } else {
            return Err(io::Error::other(format!("`{path}` in a sealed record is not a plain file")));
        }
    }
    Ok(())
}

/// Opens an artifact, wherever it is now.
///
/// # Errors
/// The file system's.
pub fn open_artifact(folder: &Folder, run: &RunId, artifact: &views::ArtifactView) -> io::Result<File> {
    let working = || open_plain(&artifacts_folder(folder, run).join(artifact.id.to_string()));
    let sealed = folder.records().join(run.as_str());
    let sealed = sealed.join(format!("artifacts/{}-{}", artifact.seq, artifact.attempt)).join(&artifact.path);
    folder.has_no_links(&sealed)?;
    folder.has_no_links(&artifacts_folder(folder, run).join("1"))?;
    // Looked for on both sides of a seal that may be going on, and once more where it began.
    working().or_else(|_| open_plain(&sealed)).or_else(|_| working())
}
