//! The built daemon with one static node, and the built `mediator hold`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use mediator::clock::boottime_ms;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// How long a test waits for what must come: far more than it takes on a busy machine.
const LIMIT_MS: i64 = 60_000;

/// Waits until `found` finds something; when it does not, fails with what it was to be.
#[track_caller]
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = boottime_ms() + LIMIT_MS;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(boottime_ms() < until, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Returns the processes that have `text` in their environment and have not ended.
pub fn marked(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("this is Linux");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |path: String| {
        fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    pids.filter(|pid: &u32| holds(format!("/proc/{pid}/environ"))).collect()
}

/// A daemon on a folder of its own, with the node `board-1`. It ends with the test.
pub struct Lab {
    pub dir: TempDir,
    ttl: &'static str,
    listen: String,
    daemon: Option<Child>,
}

impl Lab {
    /// Starts with holders that may be silent for so long.
    pub fn start(ttl: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let mut lab = Self { dir, ttl, listen: "127.0.0.1:0".to_owned(), daemon: None };
        lab.up();
        let add = lab.mediator(&["node", "add", "board-1", "--capability", "board,model=rpi4,port=/dev/ttyUSB0"]);
        assert!(add.status.success(), "{add:?}");
        lab
    }

    /// Starts the daemon, where it was before if it was.
    pub fn up(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("daemon.log"));
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(["serve", "--listen", &self.listen, "--data"])
            .arg(self.data())
            .env("MEDIATOR_HOLD_TTL_SECONDS", self.ttl)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("there is room"))
            .spawn()
            .expect("the binary is built");
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().expect("it is piped")).read_line(&mut line).expect("it says where it is");
        let address = line.trim().strip_prefix("listening on http://").expect("it listens").to_owned();
        self.listen = address;
        self.daemon = Some(daemon);
    }

    /// Kills the daemon.
    pub fn down(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().expect("it is ours");
        daemon.wait().expect("it is ours");
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Runs a command to its end.
    pub fn mediator(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(args).env_remove("MEDIATOR_URL").env_remove("MEDIATOR_TOKEN").env("MEDIATOR_DATA", self.data());
        command.stdin(Stdio::null()).output().expect("the binary is built")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.mediator(&[args, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// Returns the run of this name.
    pub fn run(&self, name: &str) -> Value {
        let runs = self.json(&["runs"]);
        let run = runs["runs"].as_array().into_iter().flatten().find(|run| run["name"] == name);
        run.cloned().unwrap_or_default()
    }

    /// Waits until the run of this name has this state.
    #[track_caller]
    pub fn wait_for_state(&self, name: &str, state: &str) -> Value {
        wait_for(&format!("{name} {state}"), || Some(self.run(name)).filter(|run| run["state"] == state))
    }

    /// Says whether nobody holds `board-1`.
    pub fn is_free(&self) -> bool {
        self.json(&["node", "show", "board-1"])["lease"].is_null()
    }

    /// Begins to hold `board-1` under this name, with a mark in the environment.
    pub fn hold(&self, name: &str, flags: &[&str], command: &[&str]) -> Hold {
        self.hold_on(name, flags, command, Stdio::null())
    }

    /// The same with this standard input.
    pub fn hold_on(&self, name: &str, flags: &[&str], command: &[&str], stdin: Stdio) -> Hold {
        let mut program = with_plain_signals();
        program.arg(env!("CARGO_BIN_EXE_mediator")).args(self.words(name, flags, command));
        self.begin(program, name, stdin)
    }

    /// The command line that holds `board-1`.
    pub fn words(&self, name: &str, flags: &[&str], command: &[&str]) -> Vec<String> {
        let first = ["hold", "--require", "dut=board,model=rpi4", "--name", name];
        [&first[..], flags, &["--"], command].concat().into_iter().map(str::to_owned).collect()
    }

    /// Starts a program that holds.
    pub fn begin(&self, mut program: Command, name: &str, stdin: Stdio) -> Hold {
        let mark = format!("HOLD_MARK={name}-{:016x}", getrandom::u64().expect("there are random numbers"));
        let (key, value) = mark.split_once('=').expect("it has one");
        let out = self.dir.path().join(format!("{name}.out"));
        let err = self.dir.path().join(format!("{name}.err"));
        let child = program
            .env_remove("MEDIATOR_URL")
            .env_remove("MEDIATOR_TOKEN")
            .env("MEDIATOR_DATA", self.data())
            .env("DIR", self.dir.path())
            .env(key, value)
            .stdin(stdin)
            .stdout(File::create(&out).expect("there is room"))
            .stderr(File::create(&err).expect("there is room"))
            .spawn()
            .expect("the program is there");
        Hold { child, mark, out, err }
    }

    /// Returns a file in the lab's folder, once it is there and not empty.
    #[track_caller]
    pub fn file(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        wait_for(name, || fs::read_to_string(&path).ok().filter(|text| !text.is_empty()))
    }

    /// Makes a file that a command waits for.
    pub fn touch(&self, name: &str) {
        fs::write(self.dir.path().join(name), "x").expect("there is room");
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

/// A `mediator hold` under way. It ends with the test.
pub struct Hold {
    pub child: Child,
    pub mark: String,
    out: PathBuf,
    err: PathBuf,
}

impl Hold {
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("it is ours and not waited for");
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        wait_for("the end of hold", || self.child.try_wait().expect("it is ours"))
    }

    /// Waits for its end and asserts its exit code.
    #[track_caller]
    pub fn expect(&mut self, code: i32) {
        let status = self.ended();
        assert_eq!(status.code(), Some(code), "out: {}\nerr: {}", self.out(), self.err());
    }

    /// Waits until nothing that it started is left.
    #[track_caller]
    pub fn nothing_left(&self) {
        wait_for("the end of all that was started", || marked(&self.mark).is_empty().then_some(()));
    }

    /// Waits until nothing but `hold` itself is left: neither the command nor its supervisor.
    #[track_caller]
    pub fn nothing_left_but_hold(&self) {
        let is_hold = |pid: &u32| *pid == self.child.id();
        wait_for("the end of the command", || marked(&self.mark).iter().all(is_hold).then_some(()));
    }

    /// What the command has written.
    pub fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// What `hold` has told.
    pub fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits until `hold` has told this.
    #[track_caller]
    pub fn tells(&self, text: &str) {
        wait_for(text, || self.err().contains(text).then_some(()));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("hold told:\n{}", self.err());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts what follows with the signals as a shell gives them: whoever runs the tests may ignore some (`nohup`, a shell
/// without job control), and an ignored signal stays ignored.
pub fn with_plain_signals() -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=HUP,INT,QUIT,TERM,USR1,PIPE");
    env
}
