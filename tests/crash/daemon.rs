//! The built daemon on a folder that outlives it: started, armed, killed, started again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

/// A daemon that may die at any moment.
pub struct Daemon {
    child: Child,
    address: String,
    token: String,
    dir: std::path::PathBuf,
}

/// There was no answer: the daemon died.
#[derive(Debug)]
pub struct Died;

/// A status and a body.
pub type Answer = (u16, Value);

impl Daemon {
    /// Starts a daemon on `dir`; `None` if it died before it was ready. Orders are read from `dir.orders`.
    pub fn start(dir: &Path, webhook: Option<&str>) -> Option<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir);
        command.env("MEDIATOR_FAILPOINTS", orders(dir)).env("RUST_LOG", "off");
        // Short, so that the suite need not wait for what falls due.
        command.env("MEDIATOR_IDEMPOTENCY_RETENTION_SECONDS", "0.4");
        if let Some(url) = webhook {
            let file = dir.with_extension("toml");
            let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
            let text = format!("[[webhook]]\nname = \"test\"\nurl = \"{url}\"\nsecret = \"{secret}\"\n");
            std::fs::write(&file, text).expect("there is room");
            command.arg("--config").arg(file);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the daemon starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("standard output");
        BufReader::new(out).read_line(&mut line).expect("a line, or its end");
        let Some(address) = line.trim().strip_prefix("listening on http://") else {
            child.wait().expect("it ends");
            return None;
        };
        let token = std::fs::read_to_string(dir.join("operator.token")).expect("a token");
        Some(Self { child, address: address.to_owned(), token: token.trim().to_owned(), dir: dir.to_owned() })
    }

    /// Sends one request.
    ///
    /// # Errors
    /// [`Died`] when it is not answered.
    pub fn call(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Result<Answer, Died> {
        self.exchange(method, path, key, body).ok_or(Died)
    }

    fn exchange(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Option<Answer> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        let (host, token, length) = (&self.address, &self.token, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n{key}\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let split = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
        let status = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
        Some((status, serde_json::from_slice(&answer[split + 4..]).unwrap_or(Value::Null)))
    }

    /// Posts JSON and expects a 2xx answer.
    ///
    /// # Errors
    /// [`Died`] when it is not answered.
    #[track_caller]
    pub fn post(&self, path: &str, key: Option<&str>, body: &Value) -> Result<Value, Died> {
        let (status, answer) = self.call("POST", path, key, &body.to_string())?;
        assert!((200..300).contains(&status), "{path} {body}: {status} {answer}");
        Ok(answer)
    }

    /// Says whether it is dead, after giving it a moment to die.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }

    /// Tells it to end, and waits.
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.child.wait().expect("it ends");
    }

    /// The rows as they are.
    pub fn rows(&self) -> Connection {
        crate::support::open_rows(&self.dir)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Killed, never closed: a tidy end would hide what a crash leaves.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file that a daemon on `dir` reads its orders from.
pub fn orders(dir: &Path) -> std::path::PathBuf {
    dir.with_extension("orders")
}
