//! The agent's side of a step's supervisor: starts it, gives it orders, hears how the work ended.

use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use log::warn;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::descendants;
use super::supervisor::{End, Order, Start};

/// All supervisors of this agent that have not ended.
#[derive(Clone, Debug, Default)]
pub struct Supervisors(Arc<Mutex<Vec<Pid>>>);

/// One step's work, under its supervisor. Dropping it kills the work: the supervisor sees its input end.
#[derive(Debug)]
pub struct Work {
    supervisors: Supervisors,
    pid: Pid,
    child: Child,
    orders: ChildStdin,
    reports: Lines<BufReader<ChildStderr>>,
    end: Option<End>,
}

impl Supervisors {
    /// Makes this process the last resort: if a supervisor is killed, what it looked after becomes this process's
    /// own children, which [`Work::ended`] then kills.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self::default())
    }

    /// Starts work; returns it with what the command will write.
    ///
    /// # Errors
    /// The system's, when there is no supervisor: the command was not begun.
    pub async fn start(&self, start: Start) -> io::Result<(Work, ChildStdout)> {
        // Not by its path: the binary may have been replaced or removed since this process started.
        let mut child = Command::new("/proc/self/exe")
            .arg0("mediator")
            .arg("supervise")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it was not waited for");
        self.0.lock().expect("no holder panics").push(pid);
        let orders = child.stdin.take().expect("it is piped");
        let output = child.stdout.take().expect("it is piped");
        let reports = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut work = Work { supervisors: self.clone(), pid, child, orders, reports, end: None };
        work.order(&Order::Start(start)).await;
        Ok((work, output))
    }

    async fn sweep(&self) {
        sweep(|| self.0.lock().expect("no holder panics").clone()).await;
    }
}

/// Kills what a supervisor that was killed has left to this process, a subreaper: all below it but the supervisors that
/// live, and what is theirs.
pub async fn sweep(live: impl Fn() -> Vec<Pid>) {
    let me = rustix::process::getpid();
    loop {
        let left = descendants::of(me, &live());
        if left.is_empty() {
            return;
        }
        for process in left {
            descendants::signal(process, Signal::KILL);
            // Only those that are this process's own children by now; the others follow.
            let _ = rustix::process::waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Work {
    /// Gives an order. A supervisor that has ended takes none; [`Work::ended`] tells.
    pub async fn order(&mut self, order: &Order) {
        let line = serde_json::to_string(order).expect("it is plain data") + "\n";
        let _ = self.orders.write_all(line.as_bytes()).await;
    }

    /// Waits until nothing of the work is left. Returns nothing when the supervisor was killed: then how the command
    /// ended is unknown. May be dropped and called again.
    pub async fn ended(&mut self) -> Option<End> {
        while let Ok(Some(line)) = self.reports.next_line().await {
            match serde_json::from_str(&line) {
                Ok(end) => self.end = Some(end),
                Err(_) => warn!("the supervisor says: {line}"),
            }
        }
        if let Err(error) = self.child.wait().await {
            warn!("waiting for a supervisor: {error}");
        }
        self.supervisors.0.lock().expect("no holder panics").retain(|pid| *pid != self.pid);
        if self.end.is_none() {
            self.supervisors.sweep().await;
        }
        self.end.clone()
    }
}
