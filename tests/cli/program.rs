//! The built program in a fresh environment.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fake::Fake;

/// What a finished command left.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A command under way.
pub struct Program {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

impl Program {
    /// Starts the program with nothing but these variables in its environment.
    pub fn start(args: &[&str], env: &[(&str, &str)], input: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(args)
            .env_clear()
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut stdin = child.stdin.take().expect("piped");
        // One that reads no input closes it.
        let _ = stdin.write_all(input.as_bytes());
        let out = child.stdout.take().map(reader);
        let err = child.stderr.take().map(reader);
        Self { child, out, err }
    }

    /// Starts it as a client of `fake`.
    pub fn client(fake: &Fake, args: &[&str]) -> Self {
        Self::start(args, &[("MEDIATOR_URL", &format!("http://{}", fake.addr)), ("MEDIATOR_TOKEN", "t")], "")
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signals");
    }

    /// Waits for its end, at most a minute.
    pub fn done(mut self) -> Done {
        let status = self.end();
        let text = |reader: Option<JoinHandle<Vec<u8>>>| {
            String::from_utf8_lossy(&reader.expect("piped").join().expect("reads")).into_owned()
        };
        let (out, err) = (text(self.out.take()), text(self.err.take()));
        Done { code: status.code().unwrap_or(-1), out, err }
    }

    fn end(&mut self) -> ExitStatus {
        for _ in 0..3000 {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        panic!("did not end within a minute");
    }
}

impl Done {
    /// Asserts the exit code, and shows everything if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }
}

/// Runs a client of `fake` to its end.
pub fn mediator(fake: &Fake, args: &[&str]) -> Done {
    Program::client(fake, args).done()
}

/// Waits, at most a minute, until `holds`.
#[track_caller]
pub fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never came: {what}");
}

fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}
