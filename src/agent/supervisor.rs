//! The supervisor of one step: a process between the agent and the command, so that no work outlives its right.
//!
//! The agent starts its own binary again (`mediator supervise`) and speaks to it by three pipes: orders come in on
//! standard input, a line of JSON each; the command's output goes out on standard output, which the command inherits;
//! the report goes out on standard error. The supervisor ends only when nothing that the command started is left:
//!
//! - it is a subreaper, so whatever the command starts, in whatever session, stays below it and is found;
//! - the end of its standard input means that the agent died, if by SIGKILL: everything is killed at once;
//! - it knows the deadlines itself: a stopped agent (SIGSTOP, swap, a debugger) lets no work run past its lease;
//! - it holds a lock in the work folder: the next life of the agent starts nothing there before it is gone (I11).

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::deadline::sleep_until;
use super::descendants::{self, Process};
use super::user::Identity;
use crate::clock::{Ms, boottime_ms};

/// How long a command that is told to end (SIGTERM) has before it is killed; less if its lease runs out sooner.
const GRACE_MS: Ms = 5_000;

/// What the agent tells a supervisor. Times are milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Always the first: start the command.
    Start(Start),
    /// The lease was renewed.
    Until(Ms),
    /// End the work.
    Stop,
}

/// What to start.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Start {
    /// The argument vector.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The folder to start it in.
    pub dir: PathBuf,
    /// The file whose lock says that work is going on in `dir`.
    pub lock: PathBuf,
    /// When the lease runs out unless it is renewed: then everything is killed at once.
    pub until_ms: Ms,
    /// When the step has run over its time, if it has a limit.
    pub time_ms: Option<Ms>,
    /// Who the command becomes; none: this process's own user.
    pub identity: Option<Identity>,
}

/// How the work ended: the supervisor's last word.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct End {
    /// What became of the command.
    pub how: How,
    /// Why the supervisor ended it; nothing if it ended by itself.
    pub stopped: Option<Cause>,
}

/// What became of a command.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// It ended with this code; 128+n if by signal n.
    Code(i32),
    /// It could not be started, for this reason.
    NotStarted(String),
}

/// Why work was ended.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The agent said so, or died.
    Told,
    /// The lease ran out.
    Lease,
    /// The step ran over its time.
    Time,
}

/// Supervises one command, as told on standard input.
pub fn run() -> ExitCode {
    match supervise() {
        Ok(end) => {
            let line = serde_json::to_string(&end).expect("it is plain data");
            // Nobody reads it when the agent is gone; then nobody needs it either.
            let _ = writeln!(io::stderr(), "{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "supervise: {error}");
            ExitCode::FAILURE
        }
    }
}

fn supervise() -> io::Result<End> {
    // Out of the agent's terminal: Ctrl-C there is for the agent alone. Fails if this process already leads a group
    // of its own, which is as good.
    let _ = rustix::process::setsid();
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Taken over and left unanswered: only the agent's orders, its end and the deadlines stop the work.
        let _ignored = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        let mut child_ended = signal(SignalKind::child())?;
        let mut orders = read_orders(io::stdin());
        let Some(Order::Start(start)) = orders.recv().await else {
            return Err(io::Error::other("the first order is to start a command"));
        };
        let mut work = Work::new(me, start.until_ms, start.time_ms);
        let not_started = |why: String, stopped| Ok(End { how: How::NotStarted(why), stopped });
        let lock = match File::options().create(true).append(true).mode(0o600).open(&start.lock) {
            Ok(lock) => lock,
            Err(error) => return not_started(format!("{}: {error}", start.lock.display()), None),
        };
        if !work.wait_for_folder(&lock, &mut orders).await? {
            return not_started("the work folder was in use".into(), work.stopped);
        }
        match command(&start) {
            Ok(pid) => work.main = Some(pid),
            Err(why) => return not_started(why, None),
        }
        while work.is_under_way() {
            tokio::select! {
                order = orders.recv() => work.obey(order),
                _ = child_ended.recv() => drop(work.reap()),
                () = sleep_until(work.next_deadline_ms()) => work.judge(),
            }
        }
        work.kill_all().await;
        // `lock` is held until here, where nothing is left.
        drop(lock);
        Ok(work.end())
    })
}

/// The work as its supervisor sees it.
pub(super) struct Work {
    me: Pid,
    until_ms: Ms,
    time_ms: Option<Ms>,
    stopped: Option<Cause>,
    /// From when on everything is killed.
    kill_at_ms: Ms,
    /// The command.
    pub(super) main: Option<Pid>,
    code: Option<i32>,
}

impl Work {
    /// Starts with nothing begun; `me` is this process, a subreaper.
    pub(super) fn new(me: Pid, until_ms: Ms, time_ms: Option<Ms>) -> Self {
        Self { me, until_ms, time_ms, stopped: None, kill_at_ms: Ms::MAX, main: None, code: None }
    }

    /// Says whether the command runs and may.
    pub(super) fn is_under_way(&self) -> bool {
        self.code.is_none() && boottime_ms() < self.kill_at_ms
    }

    /// Returns how the command ended; one without a code was killed, or is about to be.
    pub(super) fn end(&self) -> End {
        End { how: How::Code(self.code.unwrap_or(128 + Signal::KILL.as_raw())), stopped: self.stopped }
    }

    /// Waits until no other supervisor is at work in the folder: the last one's agent may have been killed a moment
    /// ago. Returns false when the work was stopped first.
    async fn wait_for_folder(&mut self, lock: &File, orders: &mut UnboundedReceiver<Order>) -> io::Result<bool> {
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(self.stopped.is_none()),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) => {}
            }
            tokio::select! {
                order = orders.recv() => self.obey(order),
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
            self.judge();
            if self.stopped.is_some() {
                return Ok(false);
            }
        }
    }

    fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Start(_)) => {}
            Some(Order::Until(ms)) => self.prolong(ms),
            Some(Order::Stop) => self.stop(Cause::Told, GRACE_MS),
            None => self.die(),
        }
    }

    /// Lets the work go on until `ms`: a renewal never shortens.
    pub(super) fn prolong(&mut self, ms: Ms) {
        self.until_ms = self.until_ms.max(ms);
    }

    /// Ends the work at once: nobody is left who answers for it.
    pub(super) fn die(&mut self) {
        self.stop(Cause::Told, 0);
        self.kill_at_ms = boottime_ms();
    }

    /// Passes on what the command is to hear. After SIGTERM and SIGHUP it has five seconds before it is killed; it is
    /// woken for them if it is stopped. What only programs agree on (SIGUSR1, SIGUSR2) is for the command alone: those
    /// below it would die of it. The others go to all, as they do from a terminal: a shell that waits for a program
    /// does not act on SIGINT or SIGTERM before that has ended.
    pub(super) fn pass(&mut self, signal: Signal) {
        let all = descendants::of(self.me, &[]);
        let only_command = [Signal::USR1, Signal::USR2].contains(&signal);
        let hears = |process: &&Process| !only_command || Some(process.pid) == self.main;
        all.iter().filter(hears).for_each(|process| descendants::signal(*process, signal));
        if [Signal::TERM, Signal::HUP].contains(&signal) {
            all.iter().for_each(|process| descendants::signal(*process, Signal::CONT));
            self.stopped.get_or_insert(Cause::Told);
            self.kill_at_ms = self.kill_at_ms.min(boottime_ms().saturating_add(GRACE_MS));
        }
    }

    /// Looks at the deadlines.
    pub(super) fn judge(&mut self) {
        let now = boottime_ms();
        if now >= self.until_ms {
            // Others may work with what the node leads to from now on: there is no time left to be gentle.
            self.stop(Cause::Lease, 0);
            self.kill_at_ms = now;
        } else if self.time_ms.is_some_and(|time_ms| now >= time_ms) {
            self.stop(Cause::Time, GRACE_MS);
        }
    }

    /// Returns when to look at them next.
    pub(super) fn next_deadline_ms(&self) -> Ms {
        let time_ms = self.time_ms.filter(|_| self.stopped.is_none()).unwrap_or(Ms::MAX);
        self.until_ms.min(time_ms).min(self.kill_at_ms)
    }

    fn stop(&mut self, cause: Cause, grace_ms: Ms) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(cause);
        self.kill_at_ms = boottime_ms().saturating_add(grace_ms);
        if grace_ms > 0 {
            descendants::of(self.me, &[]).into_iter().for_each(|process| descendants::signal(process, Signal::TERM));
        }
    }

    /// Collects what has ended; says whether any child is left.
    pub(super) fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.main => {
                    self.code = status.exit_status().or(status.terminating_signal().map(|n| 128 + n));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Kills until nothing is left. What starts new processes meanwhile is met by the next walk, which follows at once;
    /// only what cannot be killed (another user's, or stuck in the kernel) is waited for with pauses.
    pub(super) async fn kill_all(&mut self) {
        let mut last = Vec::new();
        let mut pause_ms = 1;
        while self.reap() {
            let found = descendants::of(self.me, &[]);
            for process in &found {
                descendants::signal(*process, Signal::KILL);
            }
            pause_ms = if found == last { (pause_ms * 2).min(200) } else { 1 };
            last = found;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

/// Reads orders on a thread of its own: its end must not wait for a read that never returns.
pub(super) fn read_orders<T: DeserializeOwned + Send + 'static>(
    from: impl Read + Send + 'static,
) -> UnboundedReceiver<T> {
    let (send, receive) = unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            // An order that makes no sense is as good as a dead agent: the channel closes, everything is killed.
            let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return };
            if send.send(order).is_err() {
                return;
            }
        }
    });
    receive
}

/// Starts the command, its output and its errors on this process's standard output.
fn command(start: &Start) -> Result<Pid, String> {
    let Some((program, arguments)) = start.argv.split_first() else { return Err("there is no command".into()) };
    fs::create_dir_all(&start.dir).map_err(|error| format!("{}: {error}", start.dir.display()))?;
    let output = || io::stdout().as_fd().try_clone_to_owned().map(Stdio::from);
    let cannot = |error: io::Error| format!("cannot start {program}: {error}");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(start.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&start.dir)
        .stdin(Stdio::null())
        .stdout(output().map_err(cannot)?)
        .stderr(output().map_err(cannot)?)
        .process_group(0);
    let child = match &start.identity {
        None => command.spawn(),
        Some(identity) => {
            // The pipe too: else the command could not open its own /dev/stdout.
            let owned = fchown(io::stdout(), Some(identity.uid), Some(identity.gid));
            owned.and_then(|()| identity.run(|| command.spawn()))
        }
    };
    child.map(|child| Pid::from_child(&child)).map_err(cannot)
}
