//! Sealing: what is kept of a run is made immutable after its end (I9).
//!
//! Until then it is rows and files (`runs/RUN/`). Sealing writes all of it into a temporary folder, syncs, renames it
//! to `records/RUN/`, and marks the row: a crash at any point leaves either no sealed record or a whole one. What was
//! renamed and not marked is no record yet, and is made again.
//!
//! Records that are owed at the same time are sealed together, in one commit. Each has files of its own, and a disk
//! takes its time for every sync: where runs end by the hundred, syncing file by file would keep it from the commits
//! that everybody waits for. So many records are synced by one sync of the file system.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::OnceLock;

use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::artifacts::{artifacts_folder, hex};
use super::folder::{Files, names, open_plain, sync_tree};
use super::record::{Sealed, sealed};
use super::views::{self, At};
use super::{Error, Folder, Refusal, Store, Tx, logs};
use crate::domain::ids::RunId;
use crate::failpoint;
use crate::random;

/// How many records are sealed together.
const TOGETHER: usize = 64;

/// How many events are gathered for them, so that memory has a bound; what is left is sealed next.
const EVENTS: usize = 20_000;

/// From how many records on the file system is synced as a whole. Below, their files are: whatever else is being written
/// on that disk is then not waited for.
const MANY: usize = 8;

/// What goes into a record, read in one snapshot.
struct Content {
    run: RunId,
    view: Value,
    contract: String,
    events: Vec<Value>,
    artifacts: Vec<views::ArtifactView>,
    last_event: i64,
    sealed_at: String,
}

/// What became of each of some runs.
type Outcomes = HashMap<RunId, Result<String, Error>>;

impl Store {
    /// Seals a run's record if it has ended and lacks its seal; returns the SHA-256 of the manifest.
    ///
    /// # Errors
    /// `not-found`; `not-sealed` while the run goes on; the disk's.
    pub async fn seal(&self, run: &RunId) -> Result<String, Error> {
        let mut outcomes = self.seal_all(vec![run.clone()]).await?;
        outcomes.remove(run).expect("it was asked for")
    }

    /// Seals what has ended and lacks its seal, `most` at most. What ends meanwhile is left to the next call, so that many
    /// go together; and so is what fails, which is logged.
    pub async fn seal_owed(&self, most: usize) {
        let mut after = 0;
        let mut left = most;
        while left > 0 {
            let limit = left.min(TOGETHER);
            let owed = match self.read(move |conn| owed(conn, after, limit)).await {
                Ok(owed) => owed,
                Err(error) => return log::error!("cannot look for records to seal cause={error}"),
            };
            let Some((last, _)) = owed.last() else { return };
            after = *last;
            left = if owed.len() < limit { 0 } else { left - limit };
            match self.seal_all(owed.into_iter().map(|(_, run)| run).collect()).await {
                Ok(outcomes) => {
                    for (run, outcome) in outcomes {
                        match outcome {
                            Ok(_) | Err(Error::Stopping) => {}
                            Err(error) => log::error!("cannot seal run={run} cause={error}"),
                        }
                    }
                }
                Err(error) => log::error!("cannot seal cause={error}"),
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

    async fn seal_all(&self, runs: Vec<RunId>) -> Result<Outcomes, Error> {
        // On a task of its own: whoever asked may hang up, and half a seal would let the next one begin beside it.
        let store = self.clone();
        let sealing = tokio::spawn(async move { store.seal_whole(&runs).await });
        sealing.await.map_err(|error| Error::Broken(format!("sealing ended early: {error}")))
    }

    async fn seal_whole(&self, runs: &[RunId]) -> Outcomes {
        // One at a time: two seals of one run would write into each other.
        let mut is_unknown = self.0.sealing.lock().await;
        let mut outcomes = Outcomes::new();
        loop {
            let left: Vec<RunId> = runs.iter().filter(|run| !outcomes.contains_key(*run)).cloned().collect();
            if left.is_empty() {
                return outcomes;
            }
            match self.pass(left.clone(), &mut is_unknown).await {
                Ok(done) => outcomes.extend(done),
                Err(error) => outcomes.extend(left.into_iter().map(|run| (run, Err(error.clone())))),
            }
        }
    }

    /// Seals as many of `runs` as go together. One that is not among the outcomes is to be tried again.
    async fn pass(&self, runs: Vec<RunId>, is_unknown: &mut bool) -> Result<Outcomes, Error> {
        let at = At::of(self.clock());
        let (mut outcomes, contents) = self.read(move |conn| gather_all(conn, runs, at)).await?;
        if contents.is_empty() {
            return Ok(outcomes);
        }
        if *is_unknown {
            return Err(Error::Stopping);
        }
        let early = |error| Error::Broken(format!("sealing ended early: {error}"));
        let store = self.clone();
        let written = tokio::task::spawn_blocking(move || write_all(store.folder(), contents)).await;
        let mut drafts = Vec::new();
        for (run, written) in written.map_err(early)?.map_err(|error| logs::file_error(&error))? {
            match written {
                Ok(draft) => drafts.push((run, draft)),
                Err(error) => drop(outcomes.insert(run, Err(logs::file_error(&error)))),
            }
        }
        let own = drafts.clone();
        let marked = self.write(move |tx| {
            own.iter().map(|(run, written)| mark(tx, run, written)).collect::<Result<Vec<bool>, Error>>()
        });
        let marked = marked.await;
        // A mark that failed with the disk may turn out to be kept at the next start. Then the record must be there
        // as it was marked: nothing is put in its place any more. The daemon is about to end.
        *is_unknown = matches!(marked, Err(Error::Disk(_) | Error::Stopping));
        let marked = marked?;
        failpoint!("seal.after_mark");
        // One that is not marked: a late report was noted meanwhile, and belongs into the record.
        let drafts = drafts.into_iter().zip(marked).filter(|(_, is_marked)| *is_marked).map(|(draft, _)| draft);
        let sealed: Vec<(RunId, Written)> = drafts.collect();
        let folders: Vec<PathBuf> = sealed.iter().map(|(run, _)| self.folder().run(run)).collect();
        // The working files have served; a crash before this line leaves them to the next start.
        let cleaned = tokio::task::spawn_blocking(move || folders.iter().for_each(|own| drop(fs::remove_dir_all(own))));
        cleaned.await.map_err(early)?;
        failpoint!("seal.after_clean");
        outcomes.extend(sealed.into_iter().map(|(run, written)| (run, Ok(written.manifest))));
        Ok(outcomes)
    }
}

/// What the name of an unfinished record begins with: no run's id can.
const TEMPORARY: &str = ".new-";

/// Returns arrival and id of the first runs behind `after` that have ended and lack their seal.
fn owed(conn: &Connection, after: i64, limit: usize) -> Result<Vec<(i64, RunId)>, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT arrival, run_id FROM runs INDEXED BY runs_owed
         WHERE ended_at IS NOT NULL AND sealed_at IS NULL AND arrival > ?1 ORDER BY arrival LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let runs =
        statement.query_map((after, limit), |row| Ok((row.get(0)?, RunId::from_stored(row.get::<_, String>(1)?))))?;
    Ok(runs.collect::<Result<_, _>>()?)
}

/// Gathers what the records of `runs` are to hold, the first in any case and others as far as there is room.
fn gather_all(conn: &Connection, runs: Vec<RunId>, at: At) -> Result<(Outcomes, Vec<Content>), Error> {
    let mut outcomes = Outcomes::new();
    let mut contents: Vec<Content> = Vec::new();
    let mut events = 0;
    for run in runs {
        if events >= EVENTS {
            break;
        }
        match gather(conn, &run, at) {
            Ok(Ok(content)) => {
                events += content.events.len();
                contents.push(content);
            }
            Ok(Err(manifest)) => drop(outcomes.insert(run, Ok(manifest))),
            Err(error) if error.is_of_the_group() => return Err(error),
            Err(error) => drop(outcomes.insert(run, Err(error))),
        }
    }
    Ok((outcomes, contents))
}

/// Gathers what a record is to hold; the manifest's hash if it is sealed already.
fn gather(conn: &Connection, run: &RunId, at: At) -> Result<Result<Content, String>, Error> {
    match sealed(conn, run)? {
        Sealed::Open => {
            let detail = format!("run {run} goes on: its record is sealed when it has ended");
            return Err(Error::Refused(Refusal::new("not-sealed", detail)));
        }
        Sealed::Yes(manifest) => return Ok(Err(manifest)),
        Sealed::Owed => {}
    }
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
    Ok(Ok(Content {
        run: run.clone(),
        view: serde_json::to_value(views::run(conn, run, at)?)?,
        contract,
        events,
        artifacts: views::artifacts(conn, run)?,
        last_event,
        sealed_at: crate::clock::rfc3339(at.now, at.offset),
    }))
}

/// A record that is in its place, and not yet marked.
#[derive(Clone)]
struct Written {
    last_event: i64,
    /// The SHA-256 of its manifest.
    manifest: String,
}

/// Marks a record as sealed, unless something was noted after what went into it.
fn mark(tx: &Tx, run: &RunId, written: &Written) -> Result<bool, Error> {
    let newest: i64 = tx
        .conn
        .prepare_cached("SELECT coalesce(max(id), 0) FROM events WHERE run_id = ?1")?
        .query_row([run.as_str()], |row| row.get(0))?;
    if newest != written.last_event {
        return Ok(false);
    }
    tx.conn
        .prepare_cached("UPDATE runs SET sealed_at = ?2, manifest_sha256 = ?3 WHERE run_id = ?1 AND sealed_at IS NULL")?
        .execute((run.as_str(), tx.now, &written.manifest))?;
    failpoint!("seal.mark", Error::Disk("as ordered".into()));
    Ok(true)
}

/// Writes whole records into place. What fails for one is an error of its own.
///
/// # Errors
/// What concerns all of them.
fn write_all(folder: &Folder, contents: Vec<Content>) -> io::Result<Vec<(RunId, io::Result<Written>)>> {
    let records = folder.records();
    DirBuilder::new().recursive(true).mode(0o700).create(&records)?;
    let mut drafts: Vec<(Draft, io::Result<String>)> = Vec::new();
    for content in &contents {
        let mut draft = Draft::new(folder, &content.run);
        let written = draft.fill(folder, content);
        drafts.push((draft, written));
    }
    let is_synced = drafts.len() >= MANY
        && syncfs_tells_errors()
        && File::open(&records).is_ok_and(|folder| rustix::fs::syncfs(folder).is_ok());
    if !is_synced {
        // Also when the file system tells of an error: it may be that of another's file.
        for (draft, written) in drafts.iter_mut().filter(|(_, written)| written.is_ok()) {
            if let Err(error) = sync_tree(&draft.root, Files::Too) {
                *written = Err(error);
            }
        }
    }
    failpoint!("seal.after_files");
    for (draft, written) in &mut drafts {
        if written.is_ok()
            && let Err(error) = fs::rename(&draft.root, &draft.place)
        {
            *written = Err(error);
        }
        if written.is_err() {
            let _ = fs::remove_dir_all(&draft.root);
        }
    }
    failpoint!("seal.after_rename");
    File::open(&records)?.sync_all()?;
    File::open(folder.path())?.sync_all()?;
    let of = |(content, (_, written)): (Content, (Draft, io::Result<String>))| {
        (content.run, written.map(|manifest| Written { last_event: content.last_event, manifest }))
    };
    Ok(contents.into_iter().zip(drafts).map(of).collect())
}

/// Says whether a sync of a file system tells of what could not be written: since Linux 5.8 (syncfs(2)).
fn syncfs_tells_errors() -> bool {
    static TELLS: OnceLock<bool> = OnceLock::new();
    *TELLS.get_or_init(|| {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(5), Some(8))
    })
}

struct Draft {
    root: PathBuf,
    place: PathBuf,
    files: Vec<Value>,
}

impl Draft {
    fn new(folder: &Folder, run: &RunId) -> Self {
        let records = folder.records();
        let root = records.join(format!("{TEMPORARY}{}-{}", run.as_str(), random::text(8)));
        Self { root, place: records.join(run.as_str()), files: Vec::new() }
    }

    /// Writes the files; returns the SHA-256 of the manifest.
    fn fill(&mut self, folder: &Folder, content: &Content) -> io::Result<String> {
        // Renamed and not marked, by a life that ended in between: not a record.
        match fs::remove_dir_all(&self.place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.put("run.json", pretty(&content.view).as_bytes())?;
        self.put("contract.json", content.contract.as_bytes())?;
        self.put("events.json", pretty(&Value::Array(content.events.clone())).as_bytes())?;
        let logs = folder.run(&content.run).join("logs");
        let artifacts = artifacts_folder(folder, &content.run);
        folder.has_no_links(&logs.join("1"))?;
        folder.has_no_links(&artifacts.join("1"))?;
        for name in names(&logs)? {
            self.put(&format!("logs/{name}"), open_plain(&logs.join(&name))?)?;
        }
        for artifact in &content.artifacts {
            let source = open_plain(&artifacts.join(artifact.id.to_string()))?;
            self.put(&format!("artifacts/{}-{}/{}", artifact.seq, artifact.attempt, artifact.path), source)?;
        }
        self.files.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
        let manifest = json!({"run_id": content.run.as_str(), "sealed_at": content.sealed_at, "files": self.files});
        self.put("manifest.json", pretty(&manifest).as_bytes())
    }

    /// Copies one file in, with its SHA-256 into the manifest. It is synced later.
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
