//! The built daemon, and agents that speak to it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Agent, wait_for};

/// A daemon on a folder of its own. It ends with the test.
pub struct Lab {
    pub dir: TempDir,
    address: String,
    daemon: Option<Child>,
}

impl Lab {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let mut lab = Self { dir, address: "127.0.0.1:0".to_owned(), daemon: None };
        lab.up();
        lab
    }

    /// Starts the daemon, where it was before if it was.
    pub fn up(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("daemon.log"));
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(["serve", "--listen", &self.address, "--data"])
            .arg(self.dir.path().join("data"))
            .env("MEDIATOR_LEASE_RENEW_SECONDS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("there is room"))
            .spawn()
            .expect("the binary is built");
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().expect("it is piped")).read_line(&mut line).expect("it says where it is");
        self.address = line.trim().strip_prefix("listening on http://").expect("it listens").to_owned();
        self.daemon = Some(daemon);
    }

    /// Kills the daemon.
    pub fn down(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().expect("it is ours");
        daemon.wait().expect("it is ours");
    }

    /// What an agent's file says of the daemon.
    pub fn head(&self) -> String {
        format!("url = \"http://{}\"\ntoken_file = {:?}\n", self.address, self.dir.path().join("data/operator.token"))
    }

    /// Starts an agent in a folder of its own, with the rest of its file.
    pub fn agent(&self, file: &str) -> Agent {
        self.agent_in(tempfile::tempdir().expect("there is room"), file)
    }

    /// Starts an agent in a folder, with the rest of its file.
    pub fn agent_in(&self, dir: TempDir, file: &str) -> Agent {
        self.agent_by(&mut Command::new(env!("CARGO_BIN_EXE_mediator")), dir, file)
    }

    /// Starts an agent with what starts it.
    pub fn agent_by(&self, start: &mut Command, dir: TempDir, file: &str) -> Agent {
        Agent::start_by(start, dir, &self.head(), file)
    }

    /// Runs a command to its end.
    pub fn mediator(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(args).arg("--data").arg(self.dir.path().join("data"));
        command.env_remove("MEDIATOR_URL").env_remove("MEDIATOR_TOKEN").stdin(Stdio::null());
        command.output().expect("the binary is built")
    }

    /// Runs a command that must succeed; returns what it prints.
    #[track_caller]
    pub fn prints(&self, args: &[&str]) -> String {
        let output = self.mediator(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.mediator(&[args, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Returns a node; null if there is none.
    pub fn node(&self, id: &str) -> Value {
        self.json(&["node", "show", id])
    }

    /// Waits until something is true of a node.
    #[track_caller]
    pub fn wait_for_node(&self, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("{id}: {what}"), || Some(self.node(id)).filter(|node| !node["node_id"].is_null() && is(node)))
    }

    /// Waits until a node drains for this reason, as its owner says.
    #[track_caller]
    pub fn wait_for_reason(&self, id: &str, reason: &str) {
        self.wait_for_node(id, reason, |node| {
            node["drains"].as_array().into_iter().flatten().any(|drain| drain["reason"] == reason)
        });
    }

    /// Waits until a node can be had.
    #[track_caller]
    pub fn wait_until_free(&self, id: &str) {
        self.wait_for_node(id, "free", |node| {
            node["drain"].is_null() && node["lease"].is_null() && node["cleaning"].is_null() && node["live"] == true
        });
    }

    /// Submits steps for a board; returns the run.
    #[track_caller]
    pub fn submit(&self, steps: &Value) -> String {
        let contract = json!({"requires": [{"as": "dut", "capability": "board"}], "steps": steps});
        let path = self.dir.path().join("contract.json");
        fs::write(&path, contract.to_string()).expect("there is room");
        let run = self.json(&["submit", path.to_str().expect("it is text")]);
        run["run_id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned()
    }

    /// Submits a run of one step, a shell script.
    #[track_caller]
    pub fn submit_script(&self, script: &str) -> String {
        self.submit(&json!([{"id": "work", "uses": "dut", "run": ["sh", "-c", script]}]))
    }

    pub fn run(&self, id: &str) -> Value {
        self.json(&["show", id])
    }

    /// Waits until a run has this state.
    #[track_caller]
    pub fn wait_for_run(&self, id: &str, state: &str) -> Value {
        wait_for(&format!("{id} {state}"), || Some(self.run(id)).filter(|run| run["state"] == state))
    }

    /// What a run's first step has written so far.
    pub fn log(&self, id: &str) -> String {
        String::from_utf8_lossy(&self.mediator(&["logs", id]).stdout).into_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default();
            eprintln!("the daemon's log:\n{log}");
        }
    }
}
