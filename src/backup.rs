//! The form of a backup: a tar archive whose last file, `backup.json`, says what came before it. Written by the daemon,
//! read by `mediator restore`.
//!
//! What is read is not trusted: plain files under names that a data folder has, and nothing else, each written where its
//! name says below a new folder. An archive that was cut off or changed lacks its right end, and nothing of it is kept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::{DATABASE, Files, sync_tree};

/// The last file.
const END: &str = "backup.json";

/// What the last file says.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq)]
struct End {
    /// The version of the daemon that wrote it.
    mediator: String,
    /// When, RFC 3339.
    made_at: String,
    /// How many files come before it.
    files: u64,
    /// Over all of them: name, a zero byte, size (8 bytes, the highest first), content.
    sha256: String,
}

/// Writes a backup, file by file.
pub struct Writer<W: Write> {
    archive: tar::Builder<W>,
    sum: Sum,
}

/// A SHA-256 over files with their names.
#[derive(Default)]
struct Sum {
    hash: Sha256,
    files: u64,
}

impl Sum {
    fn begin(&mut self, name: &str, size: u64) {
        self.files += 1;
        self.hash.update(name.as_bytes());
        self.hash.update([0]);
        self.hash.update(size.to_be_bytes());
    }

    fn end(self) -> (u64, String) {
        (self.files, self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Passes on what is read or written, and adds it to a sum.
struct Summed<'a, T> {
    inner: T,
    sum: &'a mut Sum,
}

impl<T: Read> Read for Summed<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.sum.hash.update(&buffer[..read]);
        Ok(read)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a backup.
    pub fn new(sink: W) -> Self {
        Self { archive: tar::Builder::new(sink), sum: Sum::default() }
    }

    /// Adds a file, as long as it is now: one that grows meanwhile is cut there.
    ///
    /// # Errors
    /// The file system's, or the sink's.
    pub fn add(&mut self, name: &str, file: File) -> io::Result<()> {
        let size = file.metadata()?.len();
        self.sum.begin(name, size);
        let content = Summed { inner: file.take(size), sum: &mut self.sum };
        self.archive.append_data(&mut header(size), name, content)
    }

    /// Ends the backup.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self, made_at: String) -> io::Result<()> {
        let (files, sha256) = self.sum.end();
        let end = End { mediator: env!("CARGO_PKG_VERSION").to_owned(), made_at, files, sha256 };
        let text = serde_json::to_vec_pretty(&end)?;
        self.archive.append_data(&mut header(text.len() as u64), END, &text[..])?;
        self.archive.into_inner()?.flush()
    }
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

/// Unpacks a backup into `folder`, which must not exist; it appears under its name only when all of it is there and
/// synced. Returns when the backup was made, and how many files it has.
///
/// # Errors
/// A sentence for people; then there is nothing at `folder`.
pub fn unpack(source: impl Read, folder: &Path) -> Result<(String, u64), String> {
    let shown = folder.display();
    match fs::symlink_metadata(folder) {
        Ok(_) => return Err(format!("{shown} exists: a backup is restored into a new folder")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("cannot look at {shown}: {error}")),
    }
    let mut draft = folder.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    let failed = |error: io::Error| format!("cannot write to {}: {error}", draft.display());
    DirBuilder::new().mode(0o700).create(draft).map_err(failed)?;
    let outcome = fill(source, draft).and_then(|end| {
        sync_tree(draft, Files::No).map_err(failed)?;
        fs::rename(draft, folder).map_err(|error| format!("cannot give {shown} its name: {error}"))?;
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
        Ok(end)
    });
    if outcome.is_err() {
        let _ = fs::remove_dir_all(draft);
    }
    outcome
}

fn fill(source: impl Read, draft: &Path) -> Result<(String, u64), String> {
    let broken = |error: io::Error| format!("the backup cannot be read: {error}");
    let mut archive = tar::Archive::new(source);
    let mut sum = Sum::default();
    let mut has_database = false;
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| "this is no backup of mediator: a name in it is no text".to_owned())?;
        if !entry.header().entry_type().is_file() || (name != END && !is_ours(&name)) {
            return Err(format!("this is no backup of mediator: it has {name:?}"));
        }
        if name == END {
            let mut text = String::new();
            entry.take(1 << 16).read_to_string(&mut text).map_err(broken)?;
            let end: End = serde_json::from_str(&text).map_err(|error| format!("{END} makes no sense: {error}"))?;
            let (files, sha256) = sum.end();
            if (end.files, &end.sha256) != (files, &sha256) {
                return Err(format!("the backup is not as it was made: {END} tells of other files"));
            }
            if !has_database {
                return Err(format!("the backup lacks {DATABASE}"));
            }
            return Ok((end.made_at, files));
        }
        has_database |= name == DATABASE;
        let size = entry.header().size().map_err(broken)?;
        sum.begin(&name, size);
        let target = draft.join(&name);
        let failed = |error: io::Error| format!("cannot write {}: {error}", target.display());
        DirBuilder::new().recursive(true).mode(0o700).create(target.parent().unwrap_or(draft)).map_err(failed)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target).map_err(failed)?;
        let copied = io::copy(&mut Summed { inner: &mut entry, sum: &mut sum }, &mut file).map_err(broken)?;
        if copied != size {
            return Err(format!("the backup breaks off in {name}"));
        }
        file.sync_all().map_err(failed)?;
    }
    Err(format!("the backup breaks off: {END}, its last file, is missing"))
}

/// Says whether a data folder has a file of this name.
fn is_ours(name: &str) -> bool {
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let no_detours = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let below = |folder: &str| name.strip_prefix(folder).is_some_and(|rest| rest.contains('/'));
    plain && no_detours && (name == DATABASE || below("runs/") || below("records/"))
}
