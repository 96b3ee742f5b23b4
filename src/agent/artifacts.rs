//! Artifacts: the files of a step's work folder that its contract wants kept.
//!
//! What cannot be kept is noted in the step's log and is no failure. Nothing outside the work folder is ever sent: the
//! kernel resolves the path and refuses every way out, `..` and links included.

use std::fs::File;
use std::io;
use std::path::{Component, Path};
use std::time::Duration;

use hyper::StatusCode;
use log::debug;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::config::NodeConfig;
use super::link::{Link, Pause, is_passing, refusal};
use super::output::Output;
use super::wire::Claim;
use crate::client::{Error, encode};

/// How often an artifact is tried while the daemon answers otherwise. A refusal that comes before the body was read can
/// be lost with its connection, so trying for ever would keep the node for ever.
const ATTEMPTS: u32 = 5;

/// Sends a step's artifacts, one after the other; notes in `output` what was not kept.
pub async fn send(link: &Link, claim: &Claim, config: &NodeConfig, output: &Output) {
    for name in &claim.artifacts {
        match keep(link, claim, config, name).await {
            Ok(()) => {}
            Err(End::NotKept(why)) => output.note(&format!("artifact {}: {why}", printable(name))),
            Err(End::Closed) => return,
        }
    }
}

enum End {
    /// This one is not kept; the text says why.
    NotKept(String),
    /// The step is not this node's any more, or its record is sealed: none is taken.
    Closed,
}

async fn keep(link: &Link, claim: &Claim, config: &NodeConfig, name: &str) -> Result<(), End> {
    let path = wire_path(name).map_err(|why| End::NotKept(why.to_owned()))?;
    let path = format!("{}?{}", claim.path(&format!("artifacts/{path}")), claim.fence());
    let mut pause = Pause::default();
    let mut attempts = 0;
    loop {
        let (file, size) = match config.identity() {
            None => open(&config.work_dir, name),
            // As the step's user: a link to a file that only root can read must not bring it out.
            Some(identity) => {
                identity.run(|| Ok(open(&config.work_dir, name))).unwrap_or_else(|error| Err(error.to_string()))
            }
        }
        .map_err(End::NotKept)?;
        // A slow line moves 100 KB a second; a slower one would not do for artifacts.
        let limit = Duration::from_secs(60 + size / 100_000);
        let error = match link.client().upload(&path, size, tokio::fs::File::from_std(file), limit).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        debug!("sending an artifact run={} step={} path={name}: {error}", claim.run_id, claim.id);
        attempts += u32::from(!link.is_away());
        match refusal(&error) {
            Some((StatusCode::PAYLOAD_TOO_LARGE, _)) => {
                return Err(End::NotKept(format!("too large ({size} bytes)")));
            }
            Some((StatusCode::CONFLICT | StatusCode::NOT_FOUND | StatusCode::GONE, _)) => return Err(End::Closed),
            _ if is_passing(&error) && attempts < ATTEMPTS => pause.wait().await,
            _ => return Err(End::NotKept(reason(&error))),
        }
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::Refused(problem) => printable(&problem.detail),
        _ => "could not be sent".to_owned(),
    }
}

/// Returns the artifact's path as part of an address.
fn wire_path(name: &str) -> Result<String, &'static str> {
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(encode(part.to_str().unwrap_or_default())),
            Component::CurDir => {}
            _ => return Err("not a path inside the work folder"),
        }
    }
    if parts.is_empty() { Err("not a file") } else { Ok(parts.join("/")) }
}

/// Opens a file below `work_dir`, or tells why not; returns it with its size in bytes.
fn open(work_dir: &Path, name: &str) -> Result<(File, u64), String> {
    let cannot = |error: io::Error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => "not found".to_owned(),
        Some(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => "leads out of the work folder".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let folder = File::open(work_dir).map_err(cannot)?;
    // NONBLOCK: a FIFO must not hold the agent up.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(&folder, name, flags, Mode::empty(), inside).map_err(|e| cannot(e.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(cannot)?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err("not a file".to_owned()) }
}

/// Keeps a name or a text from breaking its line.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_the_work_folder_is_opened() {
        let outer = tempfile::tempdir().expect("there is room");
        let work = outer.path().join("work");
        fs::create_dir_all(work.join("sub")).expect("there is room");
        fs::write(outer.path().join("secret"), "s").expect("there is room");
        fs::write(work.join("sub/file"), "four").expect("there is room");
        symlink("../secret", work.join("out")).expect("there is room");
        symlink(outer.path(), work.join("absolute")).expect("there is room");
        symlink("sub/file", work.join("inside")).expect("there is room");
        symlink("loop", work.join("loop")).expect("there is room");
        rustix::fs::mkfifoat(rustix::fs::CWD, work.join("fifo"), Mode::RUSR | Mode::WUSR).expect("there is room");

        let check = |name: &str| open(&work, name).map(|(_, size)| size);
        assert_eq!(check("sub/file"), Ok(4));
        assert_eq!(check("inside"), Ok(4));
        for name in ["out", "absolute/secret", "../secret", "/etc/passwd", "loop"] {
            assert_eq!(check(name), Err("leads out of the work folder".to_owned()), "{name}");
        }
        assert_eq!(check("none"), Err("not found".to_owned()));
        for name in ["sub", "fifo", "."] {
            assert_eq!(check(name), Err("not a file".to_owned()), "{name}");
        }
    }

    #[test]
    fn a_path_is_encoded_part_by_part() {
        assert_eq!(wire_path("./a b/c?d"), Ok("a%20b/c%3Fd".to_owned()));
        for name in ["../x", "/x", "a/../x"] {
            assert_eq!(wire_path(name), Err("not a path inside the work folder"), "{name}");
        }
        assert_eq!(wire_path("."), Err("not a file"));
    }
}
