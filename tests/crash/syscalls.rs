//! Every system call that changes the disk: the daemon, without any hook of its own, is killed by a tracer at its
//! n-th write, sync, truncate, unlink and rename, n + 1, until the script gets through. This finds points that nobody
//! named. Then the same with calls that fail instead.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::daemon::{Daemon, Lab};
use crate::matrix::Case;
use crate::scenarios::SCRIPT;

/// The calls, in groups that are counted apart.
const CALLS: [&str; 6] =
    ["pwrite64", "write", "fsync,fdatasync,syncfs", "ftruncate", "unlink,unlinkat,rmdir", "rename,renameat,renameat2"];

/// I5, I10: whatever was answered is there, once; whatever was not can be asked again.
#[test]
fn killed_at_any_system_call_nothing_is_lost_and_nothing_is_done_twice() {
    let kills = sweep_all(&CALLS.map(|calls| (calls, "signal=SIGKILL")));
    println!("{kills} kills at system calls");
}

/// A call that fails once: no 2xx for what is not kept. A full disk passes; any other failure empties the WAL and ends
/// the daemon, and the next start has all that was answered.
#[test]
fn at_any_failing_system_call_nothing_that_was_answered_is_missing() {
    let failures = sweep_all(&[
        ("pwrite64", "error=EIO"),
        ("pwrite64", "error=ENOSPC"),
        ("fsync,fdatasync,syncfs", "error=EIO"),
        ("ftruncate", "error=EIO"),
        ("unlink,unlinkat,rmdir", "error=EIO"),
        ("rename,renameat,renameat2", "error=EIO"),
    ]);
    println!("{failures} failing system calls");
}

/// Says whether there is a tracer.
pub fn can_trace() -> bool {
    if Command::new("strace").arg("-V").output().is_ok() {
        return true;
    }
    // A newcomer's machine need not have it; CI installs it.
    assert!(std::env::var_os("CI").is_none(), "strace is needed here");
    eprintln!("left out: there is no strace");
    false
}

/// Tries each of `faults` at its first call, its second, and so on; returns how many there were.
fn sweep_all(faults: &[(&str, &str)]) -> usize {
    if !can_trace() {
        return 0;
    }
    // The binary that people run, when it was built; else the one that was built for the tests.
    let binary = std::env::var("MEDIATOR_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_mediator").to_owned());
    let case = Case::new(&SCRIPT, "");
    let (count, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((calls, fault)) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    count.fetch_add(sweep(&case, &binary, calls, fault), Ordering::Relaxed);
                }
            });
        }
    });
    let count = count.into_inner();
    assert!(count >= 100, "only {count}: was anything traced?");
    count
}

/// Lets each of the calls meet the fault in turn; returns how many there were.
fn sweep(case: &Case, binary: &str, calls: &str, fault: &str) -> usize {
    for at in 1.. {
        let folder = case.copy();
        let data = folder.path().join("data");
        let log = folder.path().join("trace");
        let inject = format!("inject={calls}:{fault}:when={at}");
        let tracer: Vec<String> = ["strace", "-f", "-qq", "-e", &format!("trace={calls}"), "-e", &inject, "-o"]
            .map(str::to_owned)
            .into_iter()
            .chain([log.display().to_string()])
            .collect();
        let through =
            Daemon::start_under(&tracer, binary, &data, &Lab::default()).is_some_and(|daemon| case.act(&daemon));
        case.recover(&data, &format!("{fault} at {calls} number {at}"));
        // A kill shows by the missing answer. A failure may be coped with; the trace tells whether there was one.
        let is_met = std::fs::read_to_string(&log).unwrap_or_default().contains("(INJECTED)");
        if through && !is_met {
            return at - 1;
        }
        assert!(at < 2000, "{calls}: it never gets through");
    }
    unreachable!("the loop ends by returning")
}
