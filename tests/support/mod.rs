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
#[track_caller]
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
    /// The first lines of its file: where the daemon is.
    head: String,
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
        let head = format!("url = \"{url}\"\ntoken = \"secret-token\"\n");
        Self::start_by(&mut Command::new(env!("CARGO_BIN_EXE_mediator")), dir, &head, file)
    }

    /// Starts an agent with what starts it, the first lines of its file, and the rest.
    pub fn start_by(start: &mut Command, dir: TempDir, head: &str, file: &str) -> Self {
        let config = dir.path().join("agent.toml");
        let head = format!("{head}work_dir = {:?}\n", dir.path().join("work"));
        fs::write(&config, format!("{head}{file}")).expect("there is room");
        let log = fs::File::options().create(true).append(true).open(dir.path().join("agent.log"));
        let child = start
            .args(["agent", "--config"])
            .arg(&config)
            .env_remove("MEDIATOR_URL")
            .env_remove("MEDIATOR_TOKEN")
            .env_remove("MEDIATOR_DATA")
            .env("RUST_LOG", "trace")
            .env("OFFERED", "from the agent")
            .env("PRIVATE", "of the agent")
            .stdin(Stdio::null())
            .stderr(log.expect("there is room"))
            .spawn()
            .expect("the program is there");
        Self { child, dir, head }
    }

    /// Replaces the rest of its file, and has it read again.
    pub fn reload(&self, file: &str) {
        fs::write(self.dir.path().join("agent.toml"), format!("{}{file}", self.head)).expect("there is room");
        self.signal(Signal::HUP);
    }

    /// Waits until it has said this.
    #[track_caller]
    pub fn says(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
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

    /// Reads a file of that folder; empty if there is none.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// Makes a file there that something waits for.
    pub fn touch(&self, name: &str) {
        fs::write(self.work().join(name), "").expect("there is room");
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
