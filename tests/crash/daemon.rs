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

/// How a daemon is set up.
#[derive(Clone, Default)]
pub struct Lab {
    /// Where a receiver of notifications listens.
    pub webhook: Option<String>,
    /// Settings, as variables.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether debug builds must take rows that a test has planted.
    pub is_broken: bool,
    /// Where to listen, if not at any free port.
    pub listen: Option<String>,
    /// Where the daemon's own view of the files is to be found, if it has one: `/proc/PID/root`.
    pub root: Option<std::path::PathBuf>,
}

/// There was no answer, or "not now": the daemon died, or its disk failed. The same is to be asked again.
#[derive(Debug)]
pub struct Died;

/// A whole answer.
pub struct Reply {
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: Value,
}

/// A status and a body.
pub type Answer = (u16, Value);

impl Daemon {
    /// Starts a daemon on `dir`; `None` if it died before it was ready. Orders are read from `dir.orders`.
    pub fn start(dir: &Path, lab: &Lab) -> Option<Self> {
        Self::start_under(&[], env!("CARGO_BIN_EXE_mediator"), dir, lab)
    }

    /// Starts `binary` under another program, e.g. a tracer.
    pub fn start_under(tracer: &[String], binary: &str, dir: &Path, lab: &Lab) -> Option<Self> {
        let words: Vec<&str> = tracer.iter().map(String::as_str).chain([binary]).collect();
        let mut command = Command::new(words[0]);
        let listen = lab.listen.as_deref().unwrap_or("127.0.0.1:0");
        command.args(&words[1..]).args(["serve", "--listen", listen, "--data"]).arg(dir);
        command.env("MEDIATOR_FAILPOINTS", orders(dir)).env("RUST_LOG", "off");
        if lab.is_broken {
            command.env("MEDIATOR_TOLERATE_BROKEN_ROWS", "1");
        }
        command.envs(lab.settings.iter().copied());
        if let Some(url) = &lab.webhook {
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
        let dir =
            lab.root.as_ref().map_or_else(|| dir.to_owned(), |root| root.join(dir.strip_prefix("/").unwrap_or(dir)));
        let token = std::fs::read_to_string(dir.join("operator.token")).expect("a token");
        Some(Self { child, address: address.to_owned(), token: token.trim().to_owned(), dir })
    }

    /// Sends one request.
    ///
    /// # Errors
    /// [`Died`] when it is not answered, or answered that it could not be done now.
    pub fn call(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Result<Answer, Died> {
        let reply =
            self.exchange(method, path, key, body).filter(|reply| !matches!(reply.status, 503 | 507)).ok_or(Died)?;
        Ok((reply.status, reply.body))
    }

    /// Sends one request; `None` if no answer came.
    pub fn exchange(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Option<Reply> {
        exchange(&self.address, &self.token, method, path, key, body)
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

    /// Waits until it has ended by itself; returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        crate::support::wait_for("the daemon's end", || self.child.try_wait().expect("it is a child")).code()
    }

    /// The folder it is on.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Tells it to end, and waits.
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.child.wait().expect("it ends");
    }

    /// Tells it to end, also under a tracer, and does not wait.
    pub fn tell_to_end(&self) {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let traced =
            children.split_whitespace().next().and_then(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?));
        let pid = traced.unwrap_or(rustix::process::Pid::from_child(&self.child));
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.dir
    }

    /// The rows as they are.
    pub fn rows(&self) -> Connection {
        crate::support::open_rows(&self.dir)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Killed, never closed: a tidy end would hide what a crash leaves. Under a tracer the daemon is its child, and
        // the tracer ends once it has seen that end: only then is the folder free.
        let mut is_traced = false;
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        for child in std::fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            if let Some(pid) = child.parse().ok().and_then(rustix::process::Pid::from_raw) {
                is_traced = true;
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if !is_traced {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Sends one request; `None` if no answer came.
pub fn exchange(address: &str, token: &str, method: &str, path: &str, key: Option<&str>, body: &str) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n{key}\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let split = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let status = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    let head = String::from_utf8_lossy(&answer[..split]).to_lowercase();
    let body = serde_json::from_slice(&answer[split + 4..]).unwrap_or(Value::Null);
    Some(Reply { status, head, body })
}

/// The file that a daemon on `dir` reads its orders from.
pub fn orders(dir: &Path) -> std::path::PathBuf {
    dir.with_extension("orders")
}

/// Gives orders to a daemon on `dir`, in place of earlier ones: at no moment are there others, or none.
pub fn order(dir: &Path, text: &str) {
    let (file, new) = (orders(dir), dir.with_extension("orders-new"));
    std::fs::write(&new, text).expect("there is room");
    std::fs::rename(new, file).expect("it can be put there");
}

/// How often a daemon on `dir` has reached a point so far.
pub fn reached(dir: &Path, point: &str) -> usize {
    let text = std::fs::read_to_string(dir.with_extension("orders.reached")).unwrap_or_default();
    text.lines().filter(|line| *line == point).count()
}

/// Waits until a point was reached more often than `before`.
pub fn await_point(dir: &Path, point: &str, before: usize) {
    crate::support::wait_for(point, || (reached(dir, point) > before).then_some(()));
}
