//! The command of `mediator hold`, under its supervisor ([`crate::agent::here`]).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;

use crate::agent::here::{Order, Start};
use crate::agent::process::sweep;
use crate::agent::supervisor::End;
use crate::clock::Ms;

/// A command under way. Dropping it kills everything: its supervisor sees its socket close.
pub struct Command {
    supervisor: Child,
    /// None once everything is to be killed.
    orders: Option<OwnedWriteHalf>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    assigned: AssignedFile,
    terminal: Terminal,
}

impl Command {
    /// Starts `command` with these variables besides the environment of this process, and with `assigned` in a file
    /// that `MEDIATOR_ASSIGNED` names. It is killed at `until_ms` unless [`Command::prolong`] says otherwise.
    ///
    /// # Errors
    /// The system's, when there is no supervisor: the command was not begun.
    pub async fn start(
        command: &[OsString],
        mut env: Vec<(String, String)>,
        assigned: &Value,
        until_ms: Ms,
    ) -> io::Result<Self> {
        // If the supervisor is killed, what it looked after becomes this process's own, and is killed here.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let assigned = AssignedFile::write(assigned)?;
        let path =
            assigned.0.to_str().ok_or_else(|| io::Error::other("the folder for temporary files is not UTF-8"))?;
        env.push(("MEDIATOR_ASSIGNED".to_owned(), path.to_owned()));
        let (own, theirs) = UnixStream::pair()?;
        // Not by its path: the binary may have been replaced or removed since this process started.
        let supervisor = tokio::process::Command::new("/proc/self/exe")
            .arg0("mediator")
            .args(["attend", "--"])
            .args(command)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Of its own group, so that what ends the group of this process does not end it.
            .process_group(0)
            .spawn()?;
        hand_over(&own)?;
        own.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(own)?.into_split();
        let mut started = Self {
            supervisor,
            orders: Some(orders),
            reports: BufReader::new(reports).lines(),
            assigned,
            terminal: Terminal::look(),
        };
        let group = rustix::process::Pid::as_raw(Some(rustix::process::getpgrp()));
        let assigned = started.assigned.0.clone();
        started.order(&Order::Start(Start { group, env, assigned, until_ms })).await;
        Ok(started)
    }

    /// Lets the command go on until `until_ms`.
    pub async fn prolong(&mut self, until_ms: Ms) {
        self.order(&Order::Until(until_ms)).await;
    }

    /// Passes a signal on; after SIGTERM and SIGHUP the command is killed if it does not end within five seconds.
    pub async fn pass(&mut self, signal: Signal) {
        self.order(&Order::Pass(signal.as_raw())).await;
    }

    /// Gives an order. A supervisor that has ended takes none; [`Command::end`] tells.
    async fn order(&mut self, order: &Order) {
        if let Some(orders) = &mut self.orders {
            let line = serde_json::to_string(order).expect("it is plain data") + "\n";
            let _ = orders.write_all(line.as_bytes()).await;
        }
    }

    /// Waits until the command has ended. Returns nothing when the supervisor was killed: then how it ended is unknown.
    /// May be dropped and called again.
    pub async fn end(&mut self) -> Option<End> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }

    /// Kills the command and everything that it has started.
    pub fn kill(&mut self) {
        self.orders = None;
    }

    /// Waits, but only so long, until nothing is left of the command; says whether that is so. What another user
    /// started below it (`sudo`) cannot be killed from here.
    pub async fn gone(&mut self, limit: Duration) -> bool {
        let gone = async {
            let status = self.supervisor.wait().await;
            if !status.is_ok_and(|status| status.success()) {
                sweep(Vec::new).await;
            }
        };
        let is_gone = tokio::time::timeout(limit, gone).await.is_ok();
        self.terminal.restore();
        is_gone
    }
}

/// Sends standard input, output and errors through the socket, with one byte that carries them.
fn hand_over(socket: &UnixStream) -> io::Result<()> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let descriptors = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for three descriptors"));
    }
    sendmsg(socket, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The file that `MEDIATOR_ASSIGNED` names. It is removed with this; if this process is killed, the supervisor does it.
struct AssignedFile(PathBuf);

impl AssignedFile {
    fn write(assigned: &Value) -> io::Result<Self> {
        let name = format!("mediator-assigned-{:016x}.json", getrandom::u64().map_err(io::Error::other)?);
        let path = std::env::temp_dir().join(name);
        // Its reader alone: attributes may be what leads to a board.
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let own = Self(path);
        writeln!(file, "{assigned}")?;
        Ok(own)
    }
}

impl Drop for AssignedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How the terminal was set before the command.
struct Terminal(Option<Termios>);

impl Terminal {
    fn look() -> Self {
        Self(rustix::termios::tcgetattr(io::stdin()).ok())
    }

    /// Undoes what a full-screen program that was killed could not. Only from the foreground: setting a terminal from
    /// the background would stop this process.
    fn restore(&self) {
        let in_front = rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp());
        if let Some(settings) = self.0.as_ref().filter(|_| in_front) {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, settings);
        }
    }
}
