//! Plays the service manager: a datagram socket, and what was said on it.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use mediator::clock::boottime_ms;

/// How long a message is waited for: far more than it takes on a busy machine.
const LIMIT_MS: i64 = 40_000;

/// The service manager of one process.
pub struct Systemd {
    socket: UnixDatagram,
    /// What `NOTIFY_SOCKET` is to be.
    pub name: String,
    _folder: tempfile::TempDir,
}

/// One message: its lines, as `NAME=value`.
#[derive(Debug)]
pub struct Message(pub String);

impl Message {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

impl Systemd {
    /// Listens at a path.
    pub fn at_a_path() -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("it can be bound");
        Self { socket, name: path.to_str().expect("text").to_owned(), _folder: folder }
    }

    /// Listens at a name that is no file.
    pub fn without_a_path() -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        // As unique as the folder is.
        let name = folder.path().to_str().expect("text").to_owned();
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("it can be bound");
        Self { socket, name: format!("@{name}"), _folder: folder }
    }

    /// Returns the next message that has come within this time.
    pub fn within(&self, limit: Duration) -> Option<Message> {
        self.socket.set_read_timeout(Some(limit)).expect("a limit");
        let mut buffer = [0; 4096];
        let read = self.socket.recv(&mut buffer).ok()?;
        Some(Message(String::from_utf8(buffer[..read].to_vec()).expect("text")))
    }

    /// Waits for a message that sets `name`; others are passed over.
    #[track_caller]
    pub fn hears(&self, name: &str) -> Message {
        let until = boottime_ms() + LIMIT_MS;
        let mut heard = Vec::new();
        while boottime_ms() < until {
            if let Some(message) = self.within(Duration::from_millis(500)) {
                if message.get(name).is_some() {
                    return message;
                }
                heard.push(message);
            }
        }
        panic!("{name} was never said, but {heard:#?}");
    }

    /// Takes all that was said by now.
    pub fn drain(&self) -> Vec<Message> {
        std::iter::from_fn(|| self.within(Duration::from_millis(1))).collect()
    }
}
