//! The supervisor of `mediator hold`: a process between it and its command, so that the command never outlives the hold.
//!
//! It does for a command here what [`super::supervisor`] does for a step: whatever the command starts stays below this
//! process, a subreaper, and nothing of it is left when this process ends. What differs is that the command belongs to
//! whoever typed it:
//!
//! - it has the caller's standard input, output and errors, which `hold` hands over through the socket that is this
//!   process's standard input, and the caller's environment, which this process inherits;
//! - it is in the process group of `hold`, so that Ctrl-C, Ctrl-Z and `fg` mean what they mean without `hold`. This
//!   process is in a group of its own: what ends that group, SIGKILL included, leaves it to clear up.
//!
//! The end of the socket means that `hold` is gone, if by SIGKILL: everything is killed at once. Before it ends, this
//! process removes the file of the assignment, which `hold` may not be there to do.

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::deadline::sleep_until;
use super::supervisor::{End, How, Work, read_orders};
use crate::clock::Ms;

/// What `hold` tells its supervisor, a line of JSON each, after one byte that carries the three descriptors. Times are
/// milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Always the first: start the command.
    Start(Start),
    /// The hold was renewed.
    Until(Ms),
    /// Pass this signal on.
    Pass(i32),
}

/// How to start the command, which is on the command line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Start {
    /// The process group to put it in; 0 for a new one.
    pub group: i32,
    /// What it gets besides the environment of this process.
    pub env: Vec<(String, String)>,
    /// The file to remove in the end.
    pub assigned: PathBuf,
    /// When the hold runs out unless it is renewed: then everything is killed at once.
    pub until_ms: Ms,
}

/// The signals that would end or stop a program, and that are not for this one.
const NOT_FOR_ME: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// Supervises `command`. The socket on standard input hears an [`End`] when the command has ended, and closes when
/// nothing is left of it.
pub fn run(command: &[OsString]) -> ExitCode {
    match supervise(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "mediator: cannot look after the command: {error}");
            ExitCode::FAILURE
        }
    }
}

fn supervise(command: &[OsString]) -> io::Result<()> {
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))?;
    let mut hold = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // What was ignored stays so, for the command inherits that: `nohup` and the background jobs of scripts do it.
        let ignored = ignored_signals();
        let _deaf: Vec<_> = NOT_FOR_ME
            .into_iter()
            .filter(|number| !ignored.contains(number))
            .map(|number| signal(SignalKind::from_raw(number.as_raw())))
            .collect();
        let mut child_ended = signal(SignalKind::child())?;
        let stdio = receive(&hold)?;
        let mut orders = read_orders::<Order>(hold.try_clone()?);
        let Some(Order::Start(start)) = orders.recv().await else {
            return Err(io::Error::other("the first order is to start the command"));
        };
        let mut work = Work::new(me, start.until_ms, None);
        match spawn(command, &start, stdio) {
            Ok(pid) => work.main = Some(pid),
            Err(why) => {
                let _ = std::fs::remove_file(&start.assigned);
                return tell(&mut hold, &End { how: How::NotStarted(why), stopped: None });
            }
        }
        while work.is_under_way() {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Until(ms)) => work.prolong(ms),
                    Some(Order::Pass(number)) => Signal::from_named_raw(number).into_iter().for_each(|signal| work.pass(signal)),
                    Some(Order::Start(_)) => {}
                    None => work.die(),
                },
                _ = child_ended.recv() => drop(work.reap()),
                () = sleep_until(work.next_deadline_ms()) => work.judge(),
            }
        }
        // Told before the rest is killed: what another user started below the command cannot be, and `hold` waits
        // for that only so long. To a `hold` that was killed it cannot be told, and need not be.
        let _ = tell(&mut hold, &work.end());
        work.kill_all().await;
        let _ = std::fs::remove_file(&start.assigned);
        Ok(())
    })
}

fn tell(hold: &mut UnixStream, end: &End) -> io::Result<()> {
    let line = serde_json::to_string(end).map_err(io::Error::other)? + "\n";
    hold.write_all(line.as_bytes())
}

/// Receives the caller's standard input, output and errors.
fn receive(hold: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // One byte: what follows is read as lines.
    let mut byte = [0];
    recvmsg(hold, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    received.try_into().map_err(|_| io::Error::other("expected standard input, output and errors"))
}

/// Starts the command. This process keeps none of its descriptors: whoever reads its output sees the end of it.
fn spawn(command: &[OsString], start: &Start, [stdin, stdout, stderr]: [OwnedFd; 3]) -> Result<Pid, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("there is no command".into()) };
    let child = Command::new(program)
        .args(arguments)
        .envs(start.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(start.group)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.to_string_lossy()))?;
    Ok(Pid::from_child(&child))
}

/// Returns the signals that whoever started this process has set to be ignored.
pub fn ignored_signals() -> Vec<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=31).filter(|number| mask & (1 << (number - 1)) != 0).filter_map(Signal::from_named_raw).collect()
}
