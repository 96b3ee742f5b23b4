//! What the tests of the agent share: a daemon that does as it is told, and the built agent.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod fake_daemon;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use fake_daemon::FakeDaemon;
use mediator::clock::boottime_ms;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// How long a test waits for what must come: far more than it takes on a busy machine.
const LIMIT_MS: i64 = 40_000;

/// Waits until `found` finds something; when it does not, fails with what it was to be.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = boottime_ms() + LIMIT_MS;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(boottime_ms() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The built agent, with a folder of its own. It ends with the test.
pub struct Agent {
    pub child: Child,
    pub dir: TempDir,
}

impl Agent {
    /// Starts an agent for the node `n`.
    pub fn start(daemon: &FakeDaemon) -> Self {
        Self::start_with(daemon, "")
    }

    /// Starts an agent for the node `n` with more lines at the top of its file.
    pub fn start_with(daemon: &FakeDaemon, top: &str) -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let nodes = "[[node]]\nid = \"n\"\ncapabilities = [{ capability = \"board\", attrs = { model = \"rpi4\" } }]\n";
        Self::start_in(dir, &daemon.url(), &format!("{top}\n{nodes}"))
    }

    /// Starts an agent in a folder, with the rest of a file.
    pub fn start_in(dir: TempDir, url: &str, file: &str) -> Self {
        let config = dir.path().join("agent.toml");
        let work = dir.path().join("work");
        let text = format!("url = \"{url}\"\ntoken = \"secret-token\"\nwork_dir = {work:?}\n{file}");
        fs::write(&config, text).expect("there is room");
        let log = fs::File::options().create(true).append(true).open(dir.path().join("agent.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(["agent", "--config"])
            .arg(&config)
            .env_remove("MEDIATOR_URL")
            .env_remove("MEDIATOR_TOKEN")
            .env_remove("MEDIATOR_DATA")
            .env("RUST_LOG", "debug")
            .env("OFFERED", "from the agent")
            .env("PRIVATE", "of the agent")
            .stdin(Stdio::null())
            .stderr(log.expect("there is room"))
            .spawn()
            .expect("the binary is built");
        Self { child, dir }
    }

    /// Kills the agent and gives its folder back.
    pub fn kill(mut self) -> TempDir {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is ours");
        let empty = tempfile::tempdir().expect("there is room");
        std::mem::replace(&mut self.dir, empty)
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("it is ours and not waited for");
    }

    /// Waits until the agent has ended by itself.
    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the agent's end", || self.child.try_wait().expect("it is ours"))
    }

    /// The work folder of the node `n`.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work/n")
    }

    /// What the agent has said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processes that have `text` in their environment: a step's, if its contract sets it.
pub fn marked(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("this is Linux");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |path: String| {
        fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    pids.filter(|pid: &u32| holds(format!("/proc/{pid}/environ"))).collect()
}

/// Returns a text that no other test uses.
pub fn unique(name: &str) -> String {
    format!("{name}-{:016x}", getrandom::u64().expect("there are random numbers"))
}

/// Returns the supervisors of an agent.
pub fn supervisors(agent: &Agent) -> Vec<Pid> {
    let children = format!("/proc/{0}/task/{0}/children", agent.child.id());
    let text = fs::read_to_string(children).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
