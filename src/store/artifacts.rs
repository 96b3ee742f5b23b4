//! Artifacts: files that a step asked to keep. They come while the step is still in its agent's hands, are written
//! beside the database, and count once their row is committed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{OptionalExtension as _, named_params};
use sha2::{Digest as _, Sha256};

use super::logs::{LogKey, file_error};
use super::tx::{About, Tx};
use super::{Error, Folder, Refusal, Store, views};
use crate::domain::ids::RunId;
use crate::failpoint;
use crate::random;

/// A file that is being received.
#[derive(Debug)]
pub struct Incoming {
    file: Option<File>,
    path: PathBuf,
    hash: Sha256,
    size: u64,
    most: u64,
}

/// A file that was received whole and synced, under its temporary name.
#[derive(Debug)]
pub struct Received {
    path: PathBuf,
    size: u64,
    sha256: String,
}

impl Store {
    /// Begins to receive an artifact of a run.
    ///
    /// # Errors
    /// The file system's.
    pub fn receive(&self, run: &RunId) -> io::Result<Incoming> {
        let folder = artifacts_folder(self.folder(), run);
        self.folder().has_no_links(&folder.join("new"))?;
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let path = folder.join(format!("new-{}", random::text(16)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let most = self.settings().artifact_max_bytes;
        Ok(Incoming { file: Some(file), path, hash: Sha256::new(), size: 0, most })
    }

    /// Keeps what was received, if it is still its sender's to send (I8). The same again replaces it.
    ///
    /// # Errors
    /// `not-found`, `stale-lease`, `gone`; `invalid-request` when a folder of that path would be a file, or the other
    /// way round.
    pub async fn keep_artifact(
        &self,
        key: LogKey,
        nonce: String,
        path: String,
        received: Received,
    ) -> Result<(), Error> {
        let folder: Arc<Path> = artifacts_folder(self.folder(), &key.run).into();
        let from = received.path.clone();
        let kept = self
            .write(move |tx| {
                views::check_holder(tx.conn, &key, &nonce)?;
                refuse_overlap(tx, &key, &path)?;
                let id = keep(tx, &key, &path, &received)?;
                // Renamed before the commit: a row never points to nothing. A file without a row is swept at the seal.
                std::fs::rename(&received.path, folder.join(id.to_string()))
                    .and_then(|()| File::open(&*folder)?.sync_all())
                    .map_err(|error| match file_error(&error) {
                        short @ Error::Short(_) => short,
                        _ => Error::Disk(format!("keeping an artifact: {error}")),
                    })?;
                failpoint!("artifact.after_rename");
                Ok(())
            })
            .await;
        if kept.is_err() {
            // It may have been renamed, or never been there.
            let _ = std::fs::remove_file(from);
        }
        kept
    }
}

/// Returns where the artifacts of a run are until its record is sealed.
pub(super) fn artifacts_folder(folder: &Folder, run: &RunId) -> PathBuf {
    folder.run(run).join("artifacts")
}

/// A record holds `a` as a file or as a folder, not as both.
fn refuse_overlap(tx: &Tx, key: &LogKey, path: &str) -> Result<(), Error> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT path FROM artifacts WHERE run_id = :run AND seq = :seq AND attempt = :attempt
           AND (substr(path, 1, length(:path) + 1) = :path || '/' OR substr(:path, 1, length(path) + 1) = path || '/')
         LIMIT 1",
    )?;
    let other: Option<String> = statement
        .query_row(
            named_params! { ":run": key.run.as_str(), ":seq": key.seq, ":attempt": key.attempt, ":path": path },
            |row| row.get(0),
        )
        .optional()?;
    match other {
        None => Ok(()),
        Some(other) => {
            let detail = format!("`{path}` and `{other}` cannot both be kept: one is a folder of the other");
            Err(Error::Refused(Refusal::new("invalid-request", detail)))
        }
    }
}

fn keep(tx: &Tx, key: &LogKey, path: &str, received: &Received) -> Result<i64, Error> {
    tx.conn
        .prepare_cached("DELETE FROM artifacts WHERE run_id = ?1 AND path = ?2 AND seq = ?3 AND attempt = ?4")?
        .execute((key.run.as_str(), path, key.seq, key.attempt))?;
    let id: i64 = tx
        .conn
        .prepare_cached(
            "INSERT INTO artifacts (run_id, seq, attempt, path, size, sha256)
             VALUES (:run, :seq, :attempt, :path, :size, :sha256) RETURNING id",
        )?
        .query_row(
            named_params! {
                ":run": key.run.as_str(), ":seq": key.seq, ":attempt": key.attempt, ":path": path,
                ":size": i64::try_from(received.size).unwrap_or(i64::MAX), ":sha256": received.sha256,
            },
            |row| row.get(0),
        )?;
    let data = serde_json::json!({"path": path, "size": received.size, "attempt": key.attempt});
    tx.event("step.artifact", About::step(&key.run, key.seq), &data)?;
    Ok(id)
}

impl Incoming {
    /// Adds bytes; `false` when it grows over the limit.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.size += bytes.len() as u64;
        if self.size > self.most {
            return Ok(false);
        }
        self.hash.update(bytes);
        self.file.as_mut().expect("open until it is finished").write_all(bytes)?;
        Ok(true)
    }

    /// Returns the most that is taken.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Syncs what was received.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish(mut self) -> io::Result<Received> {
        let file = self.file.take().expect("open until it is finished");
        file.sync_all()?;
        failpoint!("artifact.after_sync");
        let sha256 = hex(&std::mem::take(&mut self.hash).finalize());
        Ok(Received { path: std::mem::take(&mut self.path), size: self.size, sha256 })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What was not finished is nothing.
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
