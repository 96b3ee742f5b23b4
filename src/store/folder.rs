//! The data folder: whose it is, who may read it, and that only one daemon is in it.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

/// A data folder that this process alone uses, until dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held open for its lock.
    lock: File,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Not only closed: a child between its fork and its program has the same open file, and with it the lock.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// File systems on which SQLite's locks or shared memory cannot be relied on: `f_type` of statfs(2).
const NETWORK: &[(u32, &str)] = &[
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "ceph"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x564C, "ncp"),
    (0x0BD0_0BD0, "lustre"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x1983_0326, "beegfs"),
    (0x6573_5546, "fuse"),
];

/// Local file systems by the same number, for people.
const LOCAL: &[(u32, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x794C_7630, "overlayfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
];

impl Folder {
    /// Makes the folder if it is missing, checks and tightens it, and locks it.
    ///
    /// # Errors
    /// A sentence for people: it is a link, another's, on a network file system, or in use.
    pub fn open(path: &Path, network_allowed: bool) -> Result<Self, String> {
        let shown = path.display();
        let failed = |what: &str, error: io::Error| format!("cannot {what} the data folder {shown}: {error}");
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed("make", e))?;
            }
            Err(error) => return Err(failed("look at", error)),
            Ok(meta) if meta.is_symlink() => {
                return Err(format!("the data folder {shown} is a link: name the folder itself"));
            }
            Ok(meta) if !meta.is_dir() => return Err(format!("the data folder {shown} is not a folder")),
            Ok(_) => {}
        }
        let meta = std::fs::symlink_metadata(path).map_err(|e| failed("look at", e))?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(format!("the data folder {shown} belongs to another user"));
        }
        if !network_allowed {
            let stat = rustix::fs::statfs(path).map_err(|e| failed("look at", e.into()))?;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
            let kind = stat.f_type as u32;
            if let Some((_, name)) = NETWORK.iter().find(|(magic, _)| *magic == kind) {
                return Err(format!(
                    "the data folder {shown} is on a network file system ({name}), where locks cannot be relied on: \
                     choose a local disk, or set storage.network_filesystem if you know better"
                ));
            }
        }
        if meta.mode() & 0o777 != 0o700 {
            std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|e| failed("tighten", e))?;
        }
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(path.join("lock"), flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| failed("lock", e.into()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(format!("{shown} is already in use by another mediator")),
            Err(error) => return Err(failed("lock", error.into())),
        }
        Ok(Self { path: path.to_owned(), lock: lock.into() })
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where the database is.
    pub fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Returns the folder of a run's files.
    pub fn run(&self, run: &crate::domain::ids::RunId) -> PathBuf {
        self.path.join("runs").join(run.as_str())
    }

    /// Returns the folder of the sealed records.
    pub fn records(&self) -> PathBuf {
        self.path.join("records")
    }

    /// Refuses a path in the folder that leads through a link, or anything else that is no folder: nothing of ours does,
    /// and it could lead anywhere.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`].
    pub(super) fn has_no_links(&self, path: &Path) -> io::Result<()> {
        for folder in path.ancestors().skip(1).take_while(|folder| *folder != self.path) {
            match std::fs::symlink_metadata(folder) {
                Ok(meta) if !meta.is_dir() => {
                    let what = format!("{} is a link, or no folder", folder.display());
                    return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the name of the file system, and how many bytes are free on it.
    ///
    /// # Errors
    /// The system's.
    pub fn room(&self) -> io::Result<(String, u64)> {
        let stat = rustix::fs::statfs(&self.path)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
        let kind = stat.f_type as u32;
        let known = NETWORK.iter().chain(LOCAL).find(|(magic, _)| *magic == kind);
        let name = known.map_or_else(|| format!("file system {kind:#x}"), |(_, name)| (*name).to_owned());
        let block = u64::try_from(stat.f_bsize).unwrap_or(0);
        Ok((name, block.saturating_mul(stat.f_bavail)))
    }

    /// Writes a file that only its owner may read: whole, or not at all.
    pub fn write_private(&self, name: &str, text: &str) -> io::Result<()> {
        use std::io::Write as _;
        let (temporary, path) = (self.path.join(format!("{name}.new")), self.path.join(name));
        let _ = std::fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(temporary, path)?;
        File::open(&self.path)?.sync_all()
    }
}

/// Returns the names in a folder, sorted; none if there is no such folder.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names: io::Result<Vec<_>> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    let mut names = names?;
    names.sort();
    Ok(names)
}

/// Whether the files of a tree are to be synced, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    Too,
    /// They are synced already.
    No,
}

/// Syncs all folders of a tree, innermost first.
pub(crate) fn sync_tree(folder: &Path, files: Files) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path(), files)?;
        } else if files == Files::Too {
            open_plain(&entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// Opens a file of a run for reading; a link in its place is not followed.
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NOFOLLOW).open(path)
}

#[allow(clippy::cast_possible_wrap, reason = "a flag of open(2)")]
pub(super) const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

/// The name of the database in the data folder.
pub const DATABASE: &str = "mediator.db";

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child has between its fork and its program is a copy of the descriptor, as here.
    #[test]
    fn it_is_free_at_once_whoever_has_a_copy_of_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path(), true).unwrap();
        let copy = first.lock.try_clone().unwrap();
        assert!(Folder::open(dir.path(), true).unwrap_err().contains("already in use"));
        drop(first);
        Folder::open(dir.path(), true).unwrap();
        drop(copy);
    }
}
