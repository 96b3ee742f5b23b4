//! Records: what is kept of a run, sealed after its end.
//!
//! Until then it is rows and files (`runs/RUN/`). Sealing writes all of it into a temporary folder, syncs, renames it
//! to `records/RUN/`, and marks the row: a crash at any point leaves either no sealed record or a whole one. What was
//! renamed and not marked is no record yet, and is made again. A sealed record never changes (I9).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::artifacts::{artifacts_folder, hex};
use super::folder::{names, open_plain, sync_tree};
use super::views::{self, At};
use super::{Error, Folder, Refusal, Store, history, random_text};
use crate::domain::ids::RunId;
use crate::failpoint;

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

/// What goes into a record, read in one snapshot.
struct Content {
    run: Value,
    contract: String,
    events: Vec<Value>,
    artifacts: Vec<views::ArtifactView>,
    last_event: i64,
    sealed_at: String,
}

impl Store {
    /// Seals a run's record if it has ended and lacks its seal; returns the SHA-256 of the manifest.
    ///
    /// # Errors
    /// `not-found`; `not-sealed` while the run goes on; the disk's.
    pub async fn seal(&self, run: &RunId) -> Result<String, Error> {
        // On a task of its own: whoever asked may hang up, and half a seal would let the next one begin beside it.
        let (store, run) = (self.clone(), run.clone());
        let sealing = tokio::spawn(async move { store.seal_whole(&run).await });
        sealing.await.map_err(|error| Error::Broken(format!("sealing ended early: {error}")))?
    }

    async fn seal_whole(&self, run: &RunId) -> Result<String, Error> {
        // One at a time: two seals of one run would write into each other.
        let mut is_unknown = self.0.sealing.lock().await;
        loop {
            let (own, at) = (run.clone(), At::of(self.clock()));
            let content = self.read(move |conn| match sealed(conn, &own)? {
                Sealed::Open => {
                    let detail = format!("run {own} goes on: its record is sealed when it has ended");
                    Err(Error::Refused(Refusal::new("not-sealed", detail)))
                }
                Sealed::Yes(manifest) => Ok(Err(manifest)),
                Sealed::Owed => gather(conn, &own, at).map(Ok),
            });
            let content = match content.await? {
                Ok(content) => content,
                Err(manifest) => return Ok(manifest),
            };
            if *is_unknown {
                return Err(Error::Stopping);
            }
            let (store, own, last_event) = (self.clone(), run.clone(), content.last_event);
            let written = tokio::task::spawn_blocking(move || write(store.folder(), &own, &content)).await;
            let written = written.map_err(|error| Error::Broken(format!("sealing ended early: {error}")))?;
            let manifest = written.map_err(|error| super::logs::file_error(&error))?;
            let (own, hash) = (run.clone(), manifest.clone());
            let marked = self.write(move |tx| mark(tx, &own, last_event, &hash)).await;
            // A mark that failed with the disk may turn out to be kept at the next start. Then the record must be there
            // as it was marked: nothing is put in its place any more. The daemon is about to end.
            *is_unknown = matches!(marked, Err(Error::Disk(_) | Error::Stopping));
            let marked = marked?;
            failpoint!("seal.after_mark");
            if marked {
                // The working files have served; a crash before this line leaves them to the next start.
                let _ = fs::remove_dir_all(self.folder().run(run));
                failpoint!("seal.after_clean");
                return Ok(manifest);
            }
            // A late report was noted meanwhile: it belongs into the record.
        }
    }

    /// Seals what ended without its seal, until there is nothing left or `most` were looked at. Failures are logged and
    /// tried again by the next call.
    pub async fn seal_owed(&self, most: usize) {
        let mut after = String::new();
        let mut left = most;
        while left > 0 {
            let from = after.clone();
            let owed = match self.read(move |conn| owed(conn, &from)).await {
                Ok(owed) => owed,
                Err(error) => {
                    log::error!("cannot look for records to seal cause={error}");
                    return;
                }
            };
            let Some(last) = owed.last() else { return };
            after = last.as_str().to_owned();
            for run in owed.into_iter().take(left) {
                left -= 1;
                match self.seal(&run).await {
                    Ok(_) | Err(Error::Stopping) => {}
                    Err(error) => log::error!("cannot seal run={run} cause={error}"),
                }
            }
        }
    }

    /// Removes what an interrupted seal has left behind. Before anything is served.
    pub fn sweep_records(&self) {
        let Ok(entries) = fs::read_dir(self.folder().records()) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// What the name of an unfinished record begins with: no run's id can.
const TEMPORARY: &str = ".new-";

/// Returns where a run's record stands.
///
/// # Errors
/// `not-found`.
pub fn sealed(conn: &Connection, run: &RunId) -> Result<Sealed, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT ended_at IS NOT NULL, manifest_sha256 FROM runs LEFT JOIN records USING (run_id) WHERE run_id = ?1",
    )?;
    let row = statement.query_row([run.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(match row.ok_or_else(|| history::missing(conn, run))? {
        (_, Some(manifest)) => Sealed::Yes(manifest),
        (true, None) => Sealed::Owed,
        (false, None) => Sealed::Open,
    })
}

fn owed(conn: &Connection, after: &str) -> Result<Vec<RunId>, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT run_id FROM records INDEXED BY records_owed WHERE owed = 1 AND run_id > ?1 ORDER BY run_id LIMIT 100",
    )?;
    let runs = statement.query_map([after], |row| Ok(RunId::from_stored(row.get::<_, String>(0)?)))?;
    Ok(runs.collect::<Result<_, _>>()?)
}

fn gather(conn: &Connection, run: &RunId, at: At) -> Result<Content, Error> {
    let mut events = Vec::new();
    let mut last_event = 0;
    loop {
        let more = views::events(conn, last_event, Some(run), 1000, at)?;
        let Some(last) = more.last() else { break };
        last_event = last.id;
        events.extend(more.into_iter().map(|event| json!({"id": event.id, "event": event.event, "data": event.data})));
    }
    let contract: String = conn
        .prepare_cached("SELECT contract FROM runs WHERE run_id = ?1")?
        .query_row([run.as_str()], |row| row.get(0))?;
    Ok(Content {
        run: serde_json::to_value(views::run(conn, run, at)?)?,
        contract,
        events,
        artifacts: views::artifacts(conn, run)?,
        last_event,
        sealed_at: crate::clock::rfc3339(at.now, at.offset),
    })
}

/// Marks a record as sealed, unless something was noted after what went into it.
fn mark(tx: &super::Tx, run: &RunId, last_event: i64, manifest: &str) -> Result<bool, Error> {
    let newest: i64 = tx
        .conn
        .prepare_cached("SELECT coalesce(max(id), 0) FROM events WHERE run_id = ?1")?
        .query_row([run.as_str()], |row| row.get(0))?;
    if newest != last_event {
        return Ok(false);
    }
    tx.conn
        .prepare_cached(
            "UPDATE records SET sealed_at = ?2, manifest_sha256 = ?3, owed = 0 WHERE run_id = ?1 AND sealed_at IS NULL",
        )?
        .execute((run.as_str(), tx.now, manifest))?;
    failpoint!("seal.mark", Error::Disk("as ordered".into()));
    Ok(true)
}

/// Writes the whole record into place; returns the SHA-256 of its manifest.
fn write(folder: &Folder, run: &RunId, content: &Content) -> io::Result<String> {
    let records = folder.records();
    DirBuilder::new().recursive(true).mode(0o700).create(&records)?;
    let place = records.join(run.as_str());
    // Renamed and not marked, by a life that ended in between: not a record.
    match fs::remove_dir_all(&place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let temporary = records.join(format!("{TEMPORARY}{}-{}", run.as_str(), random_text(8)));
    let mut draft = Draft { root: temporary.clone(), files: Vec::new() };
    let outcome = draft.fill(folder, run, content).and_then(|manifest| {
        sync_tree(&temporary)?;
        failpoint!("seal.after_files");
        fs::rename(&temporary, &place)?;
        failpoint!("seal.after_rename");
        File::open(&records)?.sync_all()?;
        File::open(folder.path())?.sync_all()?;
        Ok(manifest)
    });
    if outcome.is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
    outcome
}

struct Draft {
    root: PathBuf,
    files: Vec<Value>,
}

impl Draft {
    fn fill(&mut self, folder: &Folder, run: &RunId, content: &Content) -> io::Result<String> {
        self.put("run.json", pretty(&content.run).as_bytes())?;
        self.put("contract.json", content.contract.as_bytes())?;
        self.put("events.json", pretty(&Value::Array(content.events.clone())).as_bytes())?;
        let logs = folder.run(run).join("logs");
        folder.has_no_links(&logs.join("1"))?;
        folder.has_no_links(&artifacts_folder(folder, run).join("1"))?;
        for name in names(&logs)? {
            self.put(&format!("logs/{name}"), open_plain(&logs.join(&name))?)?;
        }
        for artifact in &content.artifacts {
            let source = open_plain(&artifacts_folder(folder, run).join(artifact.id.to_string()))?;
            self.put(&format!("artifacts/{}-{}/{}", artifact.seq, artifact.attempt, artifact.path), source)?;
        }
        self.files.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
        let manifest = json!({"run_id": run.as_str(), "sealed_at": content.sealed_at, "files": self.files});
        self.put("manifest.json", pretty(&manifest).as_bytes())
    }

    /// Copies one file in, with its SHA-256 into the manifest.
    fn put(&mut self, path: &str, mut source: impl Read) -> io::Result<String> {
        let target = self.root.join(path);
        DirBuilder::new().recursive(true).mode(0o700).create(target.parent().expect("it is below the root"))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
        let (mut hash, mut size) = (Sha256::new(), 0u64);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = source.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            size += read as u64;
            file.write_all(&buffer[..read])?;
        }
        file.sync_all()?;
        let sha256 = hex(&hash.finalize());
        self.files.push(json!({"path": path, "size": size, "sha256": sha256}));
        Ok(sha256)
    }
}

fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("a value is JSON");
    text.push('\n');
    text
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
