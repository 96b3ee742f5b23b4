//! Log files: the output of each attempt, as received, in the run's folder until its record is sealed.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, ErrorKind, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::Folder;
use super::folder::{NOFOLLOW, open_plain};
use crate::domain::ids::RunId;
use crate::failpoint;

/// Which log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogKey {
    /// The run.
    pub run: RunId,
    /// The step's number.
    pub seq: i64,
    /// The attempt.
    pub attempt: i64,
}

/// The log files of a data folder.
#[derive(Debug)]
pub struct Logs {
    folder: Arc<Folder>,
    max_bytes: u64,
    /// Two appends to one log must not interleave; the locks are shared by hash, so that they need no book-keeping.
    locks: [Mutex<()>; 16],
}

/// What an append led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// All of it is there, or what fits is and the log is marked as cut.
    Taken,
    /// It begins behind the end: the log has this size.
    Gap(u64),
}

impl Logs {
    pub(super) fn new(folder: Arc<Folder>, max_bytes: u64) -> Self {
        Self { folder, max_bytes, locks: Default::default() }
    }

    /// Returns where a log is.
    pub fn path(&self, key: &LogKey) -> PathBuf {
        self.folder.run(&key.run).join("logs").join(format!("{}-{}.log", key.seq, key.attempt))
    }

    /// Appends `bytes`, which begin at `offset` of the attempt's output; what is there already is ignored. Not yet
    /// synced: that is done with the step's result.
    ///
    /// # Errors
    /// The file system's.
    pub fn append(&self, key: &LogKey, offset: u64, bytes: &[u8]) -> io::Result<Appended> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % self.locks.len() as u64).expect("below 16");
        let _guard = self.locks[at].lock().expect("no holder panics");
        let path = self.path(key);
        self.folder.has_no_links(&path)?;
        let open = || {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(NOFOLLOW);
            options.open(&path)
        };
        let mut file = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path.parent().expect("a log is in a folder"))?;
                open()?
            }
            other => other?,
        };
        let size = file.metadata()?.len();
        // Past the limit nothing is kept but the mark, which is longer than nothing: the size says that it was cut.
        if size > self.max_bytes {
            return Ok(Appended::Taken);
        }
        if offset > size {
            return Ok(Appended::Gap(size));
        }
        let Some(new) = usize::try_from(size - offset).ok().and_then(|known| bytes.get(known..)) else {
            return Ok(Appended::Taken);
        };
        let room = usize::try_from(self.max_bytes - size).unwrap_or(usize::MAX);
        file.seek(SeekFrom::Start(size))?;
        if new.len() <= room {
            file.write_all(new)?;
        } else {
            let mut kept = new[..room].to_vec();
            kept.extend_from_slice(format!("\n[mediator: cut after {} bytes]\n", self.max_bytes).as_bytes());
            file.write_all(&kept)?;
        }
        failpoint!("log.after_append");
        Ok(Appended::Taken)
    }

    /// Opens a log for reading, wherever it is now; `None` when nothing was written to it.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(&self, key: &LogKey) -> io::Result<Option<(File, u64)>> {
        let working = self.path(key);
        let sealed = self.folder.records().join(key.run.as_str()).join(format!("logs/{}-{}.log", key.seq, key.attempt));
        // The sealed one first: a piece that came too late may have begun another where the working one was (I9). Looked
        // for on both sides of a seal that may be going on, and once more where it began.
        for path in [&sealed, &working, &sealed] {
            self.folder.has_no_links(path)?;
            match open_plain(path) {
                Ok(file) => {
                    let size = file.metadata()?.len();
                    return Ok(Some((file, size)));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Says whether there may be something to [`sync`](Logs::sync): a look at a name, which blocks nobody for long.
    pub fn is_there(&self, key: &LogKey) -> bool {
        fs::symlink_metadata(self.path(key)).map_or_else(|error| error.kind() != ErrorKind::NotFound, |_| true)
    }

    /// Syncs a log and its folders, before the result of its step is committed.
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(&self, key: &LogKey) -> io::Result<()> {
        let path = self.path(key);
        self.folder.has_no_links(&path)?;
        failpoint!("log.before_sync");
        match open_plain(&path) {
            Ok(file) => {
                if let Err(error) = file.sync_all() {
                    // What the disk has of it is unknown: better nothing, which is noticed.
                    let _ = fs::remove_file(&path);
                    return Err(error);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        self.sync_names(&path)?;
        failpoint!("log.after_sync");
        Ok(())
    }

    /// Syncs the folders above a log: only then is its name durable. One that is gone is no failure of the disk: a late
    /// report has met the seal, which removes the working files once the record has all of them.
    fn sync_names(&self, path: &Path) -> io::Result<()> {
        for folder in path.ancestors().skip(1).take(4) {
            match File::open(folder) {
                Ok(open) => open.sync_all()?,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            if folder == self.folder.path() {
                break;
            }
        }
        Ok(())
    }
}

/// Sorts an error of a file: a full disk passes, and so does a lack of descriptors, which whoever opens connections can
/// bring about; everything else is the disk's failure.
pub fn file_error(error: &io::Error) -> super::Error {
    use rustix::io::Errno;
    // Something that is not ours stands in the place of a file or a folder: that is no failure of the disk.
    if error.kind() == ErrorKind::NotADirectory || Errno::from_io_error(error) == Some(Errno::LOOP) {
        return super::Error::Broken(format!("a file of a run: {error}"));
    }
    if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
        return super::Error::Short(format!("a file of a run: {error}"));
    }
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => super::Error::Full,
        _ => super::Error::Disk(format!("a file of a run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen between two hosts: the report of an agent that was told to stop came while the record was sealed, and the
    /// daemon took the folder that the seal had just removed for a broken disk, and ended.
    #[test]
    fn a_log_that_the_seal_removes_while_it_is_synced_is_no_failure_of_the_disk() {
        let data = tempfile::tempdir().expect("there is room");
        let folder = Arc::new(Folder::open(data.path(), true).expect("it is ours"));
        let logs = Logs::new(folder.clone(), 1 << 20);
        let key = LogKey { run: RunId::from_stored("r".to_owned()), seq: 1, attempt: 1 };
        logs.append(&key, 0, b"output\n").expect("there is room");
        logs.sync(&key).expect("it is there");
        fs::remove_dir_all(folder.run(&key.run)).expect("it is there");
        logs.sync_names(&logs.path(&key)).expect("nothing is left to sync");
        logs.sync(&key).expect("nothing is left to sync");
    }
}
