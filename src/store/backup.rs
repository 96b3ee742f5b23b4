//! Backups, made while the daemon serves: the database as of one instant, and the files that belong to it.
//!
//! The copy says of itself that it is one. The first start on it ends what was under way as `restored`, in the
//! transaction that grants time to leases: whoever worked for those runs belongs to another course of events.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OpenFlags};

use super::folder::{names, open_plain};
use super::tx::Tx;
use super::{DATABASE, Error, Store, runs};
use crate::backup::Writer;
use crate::clock::rfc3339;
use crate::domain::ids::RunId;
use crate::domain::run::VerdictKind;
use crate::random;

/// What the name of a backup under way begins with, in the data folder.
const TEMPORARY: &str = "backup-";

/// The copy that is sent, until it is dropped.
pub struct Backup {
    folder: PathBuf,
    made_at: String,
    store: Store,
}

impl Store {
    /// Makes the copy that a backup is sent from: the database whole, the files of runs that go on by hard links. Until it
    /// is dropped no file of a pruned run is removed.
    ///
    /// # Errors
    /// The disk's: it needs room for another database.
    pub async fn backup(&self) -> Result<Backup, Error> {
        // No run is sealed meanwhile: its files would move.
        let _sealing = self.0.sealing.lock().await;
        let clock = self.clock();
        let made_at = rfc3339(clock.now(), clock.offset());
        self.0.backups.fetch_add(1, Ordering::SeqCst);
        let folder = self.folder().path().join(format!("{TEMPORARY}{}", random::text(8)));
        let backup = Backup { folder, made_at, store: self.clone() };
        let task = tokio::task::spawn_blocking(move || backup.copy().map(|()| backup));
        task.await.map_err(|error| Error::Broken(format!("copying ended early: {error}")))?
    }

    /// Removes what backups that were cut off have left behind. Before anything is served.
    pub fn sweep_backups(&self) {
        for entry in fs::read_dir(self.folder().path()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Backup {
    fn copy(&self) -> Result<(), Error> {
        let failed = |error: io::Error| super::logs::file_error(&error);
        DirBuilder::new().mode(0o700).create(&self.folder).map_err(failed)?;
        let database = self.folder.join(DATABASE);
        let target = database.to_str().ok_or_else(|| Error::Broken("the data folder's path is not UTF-8".into()))?;
        // Made here for its mode; SQLite takes an empty file.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&database).map_err(failed)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let own = Connection::open_with_flags(self.store.folder().database(), flags)?;
        own.busy_timeout(std::time::Duration::from_secs(5))?;
        own.execute("VACUUM INTO ?1", [target])?;
        drop(own);
        let copy = Connection::open(&database)?;
        copy.execute("UPDATE boot SET copied = 1", [])?;
        copy.close().map_err(|(_, error)| error)?;
        let (from, to) = (self.store.folder().path().join("runs"), self.folder.join("runs"));
        link(&from, &to).map_err(failed)
    }

    /// Sends the backup.
    ///
    /// # Errors
    /// The file system's, or whoever reads.
    pub fn send(self, sink: impl Write) -> io::Result<()> {
        let mut writer = Writer::new(sink);
        writer.add(DATABASE, open_plain(&self.folder.join(DATABASE))?)?;
        add(&mut writer, &self.folder, "runs")?;
        // Sealed records never change. Those that were sealed since belong to a later time.
        let copy = Connection::open_with_flags(self.folder.join(DATABASE), OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(io::Error::other)?;
        let mut sealed =
            copy.prepare("SELECT 1 FROM runs WHERE run_id = ?1 AND sealed_at IS NOT NULL").map_err(io::Error::other)?;
        for name in names(&self.store.folder().records())? {
            if sealed.exists([&name]).map_err(io::Error::other)? {
                add(&mut writer, self.store.folder().path(), &format!("records/{name}"))?;
            }
        }
        writer.finish(self.made_at.clone())
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        self.store.0.backups.fetch_sub(1, Ordering::SeqCst);
        // What was held back is done now.
        self.store.hub().tell([super::hub::Topic::Records]);
    }
}

/// Ends what was under way when a backup was made, on the first start on its copy.
pub(super) fn end_restored(tx: &Tx) -> Result<(), Error> {
    let copied: bool = tx.conn.query_row("SELECT copied FROM boot", [], |row| row.get(0))?;
    if !copied {
        return Ok(());
    }
    let running: Vec<String> = {
        let mut statement =
            tx.conn.prepare_cached("SELECT run_id FROM runs WHERE state = 'RUNNING' ORDER BY arrival")?;
        let rows = statement.query_map([], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    log::warn!("this is a restored backup: runs that were under way end count={}", running.len());
    for run in running {
        let row = runs::get(tx, &RunId::from_stored(run))?;
        let detail = "it was under way when the backup was made that this daemon was restored from";
        runs::end(tx, &row, &runs::verdict(VerdictKind::Restored, detail))?;
    }
    tx.conn.execute("UPDATE boot SET copied = 0", [])?;
    Ok(())
}

/// Links all files of a folder into another, which is made.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    for name in names(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        let kind = fs::symlink_metadata(&from)?.file_type();
        if kind.is_dir() {
            link(&from, &to)?;
        } else if kind.is_file() {
            DirBuilder::new().recursive(true).mode(0o700).create(to.parent().expect("it is below a folder"))?;
            fs::hard_link(&from, &to)?;
        }
    }
    Ok(())
}

/// Adds all files below `base/name`.
fn add<W: Write>(writer: &mut Writer<W>, base: &Path, name: &str) -> io::Result<()> {
    for own in names(&base.join(name))? {
        let name = format!("{name}/{own}");
        let kind = fs::symlink_metadata(base.join(&name))?.file_type();
        if kind.is_dir() {
            add(writer, base, &name)?;
        } else if kind.is_file() {
            writer.add(&name, open_plain(&base.join(&name))?)?;
        }
    }
    Ok(())
}
