//! Starts what is measured as a process of its own: the daemon as it is released, or the ceiling.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use tempfile::TempDir;

use super::client::Peer;

/// A server under test; killed at its end, as everything here could be at any time.
pub struct Server {
    child: Child,
    pub peer: Peer,
    /// From the start of the process to the line that says that it listens.
    pub startup: Duration,
    folder: Option<TempDir>,
}

/// How a server is started.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    pub slow: Option<&'a SlowFlush>,
    pub settings: &'a [(&'static str, &'static str)],
}

impl Server {
    /// Starts the daemon in a fresh folder.
    pub fn daemon(how: How) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut server = Self::daemon_in(folder.path(), how);
        server.folder = Some(folder);
        server
    }

    /// Starts the daemon in a folder that outlives it.
    pub fn daemon_in(folder: &Path, how: How) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder);
        // What cannot be promoted and the like is worth a line; what happens to each run is not part of any row.
        command.env("RUST_LOG", "warn");
        let mut server = Self::start(command, how);
        let token = std::fs::read_to_string(folder.join("operator.token")).expect("the operator's token");
        server.peer.token = Some(HeaderValue::from_str(&format!("Bearer {}", token.trim())).expect("a token"));
        server
    }

    /// Starts the ceiling in a fresh folder.
    pub fn ceiling(how: How) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("ceiling").arg(folder.path());
        let mut server = Self::start(command, how);
        server.folder = Some(folder);
        server
    }

    fn start(mut command: Command, how: How) -> Self {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEDIATOR_") {
                command.env_remove(name);
            }
        }
        command.envs(how.settings.iter().copied());
        if let Some(slow) = how.slow {
            command.env("LD_PRELOAD", &slow.library);
        }
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let startup = began.elapsed();
        let address = line.trim().strip_prefix("listening on http://").expect("the server listens");
        let peer = Peer { address: address.parse().expect("an address"), token: None };
        Self { child, peer, startup, folder: None }
    }

    /// The processor time used so far, by all threads, those included that have ended.
    pub fn cpu(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the server runs");
        // After the name, which is in parentheses: user and system time are the 12th and 13th field.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Resident memory in MiB.
    pub fn resident(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib / 1024.0
    }

    /// How many records are sealed in a daemon's folder of its own.
    pub fn sealed(&self) -> usize {
        let records = self.folder.as_ref().expect("a folder of its own").path().join("records");
        let names = std::fs::read_dir(records).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| !name.to_string_lossy().starts_with('.')).count()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        LEFT.lock().expect("no holder panics").extend(self.folder.take());
    }
}

/// The folders of servers that have ended.
static LEFT: Mutex<Vec<TempDir>> = Mutex::new(Vec::new());

/// Removes the folders that were used, when everything is measured. Not sooner: for minutes after thousands of files were
/// removed, ext4 searches long for room for each new one, and so a daemon that seals records would pay for the round
/// before.
pub struct Cleaner;

impl Drop for Cleaner {
    fn drop(&mut self) {
        LEFT.lock().expect("no holder panics").clear();
    }
}

/// A library to be loaded before the C library: it adds 2 ms to each sync, which is what ordinary disks take.
pub struct SlowFlush {
    library: PathBuf,
    _folder: TempDir,
}

impl SlowFlush {
    pub fn build() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, library) = (folder.path().join("slow.c"), folder.path().join("slow.so"));
        std::fs::write(&source, include_str!("slow.c")).expect("a file");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
        assert!(built.is_ok_and(|status| status.success()), "cc builds the library that makes syncs slow");
        Self { library, _folder: folder }
    }
}
