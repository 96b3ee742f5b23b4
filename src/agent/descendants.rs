//! Everything that a process has started, however deep: found by walking `/proc`, signalled without a mistake.
//!
//! A process group would be less: a command leaves it with one call of `setsid`. A subreaper stays an ancestor of all
//! that was ever started under it, so walking parents finds them all.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One process: its id, and when it started, which tells it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub pid: Pid,
    started: u64,
}

struct Stat {
    parent: i32,
    started: u64,
}

/// Returns the children of `root` and all below them. The children in `except` are left out, with all below them.
pub fn of(root: Pid, except: &[Pid]) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<(i32, u64)>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        // One that ended meanwhile is not an error: the next walk is without it.
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push((pid, stat.started));
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for (pid, started) in children.remove(&parent).unwrap_or_default() {
            let Some(pid) = Pid::from_raw(pid) else { continue };
            if !except.contains(&pid) {
                found.push(Process { pid, started });
                parents.push(pid.as_raw_nonzero().get());
            }
        }
    }
    found
}

/// Sends `signal` to `process` unless it has ended. The handle is taken before the look at its start: from then on it
/// cannot come to mean another process.
pub fn signal(process: Process, signal: Signal) {
    let Ok(handle) = pidfd_open(process.pid, PidfdFlags::empty()) else { return };
    if stat(process.pid.as_raw_nonzero().get()).is_some_and(|stat| stat.started == process.started) {
        // Refused only for a process of another user, which nobody but that user can stop.
        let _ = pidfd_send_signal(handle, signal);
    }
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may itself hold spaces and parentheses.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(&text[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    // proc_pid_stat(5): field 4 is the parent, 22 the start; `rest` begins with field 3.
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, started })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_grandchild_in_a_session_of_its_own_is_found_and_stopped() {
        let mut child = Command::new("sh").args(["-c", "setsid sleep 300 & wait"]).spawn().expect("sh is there");
        let me = rustix::process::getpid();
        let child_pid = Pid::from_child(&child);
        let mut found = Vec::new();
        for _ in 0..500 {
            found = of(me, &[]);
            if of(child_pid, &[]).len() == 1 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let below = of(child_pid, &[]);
        assert_eq!(below.len(), 1, "the sleep was not found");
        assert!(found.iter().any(|process| process.pid == child_pid));
        assert!(!of(me, &[child_pid]).iter().any(|process| process.pid == child_pid || *process == below[0]));
        signal(below[0], Signal::KILL);
        assert!(child.wait().expect("it is ours").success(), "wait without arguments succeeds");
    }

    #[test]
    fn a_process_with_another_start_is_not_signalled() {
        let mut child = Command::new("sleep").arg("300").spawn().expect("sleep is there");
        let pid = Pid::from_child(&child);
        signal(Process { pid, started: 0 }, Signal::KILL);
        assert!(child.try_wait().expect("it is ours").is_none());
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}
