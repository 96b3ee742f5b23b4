//! Named points at which the crash suite kills the process (SIGKILL to itself): before and after each durable step of
//! every write. A panic would unwind and roll back politely; a kill does not.
//!
//! Without the feature `failpoints` a point is nothing at all. With it, each point reads its orders from the file that
//! `MEDIATOR_FAILPOINTS` names, so that a test can arm a daemon that is already running:
//!
//! - `kill NAME N`: die at the N-th time that point NAME is reached from now on;
//! - `count N`: die at the N-th point that is reached from now on, whatever its name;
//! - `hold NAME`: whoever reaches point NAME waits there until this order is gone, then goes on, uncounted;
//! - `fail NAME`: what point NAME stands for fails; only of points that can.
//!
//! There may be several, a line each.
//!
//! Whatever is reached is appended to `FILE.reached`, a name a line.

/// Every point, in the order of a run's life.
pub const ALL: &[&str] = &[
    "migrate.after_copy",
    "migrate.before",
    "migrate.after",
    "boot.before_commit",
    "boot.after_commit",
    "token.after_row",
    "token.after_file",
    "start.after_grace",
    "write.waits",
    "group.after_begin",
    "group.before_commit",
    "group.after_commit",
    "group.before_answer",
    "wake.before",
    "wake.after_begin",
    "wake.before_commit",
    "wake.after_commit",
    "submit.after_run",
    "submit.after_steps",
    "queue.after_rows",
    "reject.after_rows",
    "promote.after_state",
    "lease.after_grant",
    "lease.after_end",
    "start.after_leases",
    "claim.after_step",
    "result.after_step",
    "result.after_report",
    "release.after",
    "rollback.after",
    "acquire.after",
    "ask.after_raise",
    "ask.after_answer",
    "hold.after_open",
    "renew.after",
    "cancel.after",
    "run.after_state",
    "run.after_leases",
    "run.after_steps",
    "advert.after_store",
    "advert.after_restart",
    "clean.after_begin",
    "clean.after_failure",
    "clean.after_end",
    "drain.after",
    "undrain.after",
    "remove.after",
    "reap.after_begin",
    "reap.before_commit",
    "reap.after_commit",
    "request.after_effect",
    "request.after_row",
    "prune.after",
    "history.after_rows",
    "history.after_files",
    "history.after_mark",
    "outbox.after_row",
    "outbox.before_send",
    "outbox.after_send",
    "outbox.after_mark",
    "log.after_append",
    "log.before_sync",
    "log.after_sync",
    "artifact.after_sync",
    "artifact.after_rename",
    "seal.after_files",
    "seal.after_rename",
    "seal.mark",
    "seal.after_mark",
    "seal.after_clean",
    "checkpoint.before",
    "checkpoint.after",
];

/// Marks a point; with an error, one at which the function that it stands in can be told to fail.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::reached($name);
    };
    ($name:literal, $error:expr) => {
        #[cfg(feature = "failpoints")]
        if $crate::failpoint::reached($name) {
            return Err($error);
        }
    };
}

/// Obeys the orders for a point; says whether it is to fail.
#[cfg(feature = "failpoints")]
pub fn reached(name: &'static str) -> bool {
    use std::io::Write as _;
    use std::sync::Mutex;

    static COUNTED: Mutex<(String, u64)> = Mutex::new((String::new(), 0));
    assert!(ALL.contains(&name), "{name} is not in the list of points");
    let Some(path) = std::env::var_os("MEDIATOR_FAILPOINTS") else { return false };
    let mut log = path.clone();
    log.push(".reached");
    if let Ok(mut log) = std::fs::OpenOptions::new().create(true).append(true).open(log) {
        let _ = writeln!(log, "{name}");
    }
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let says = |orders: &str, verb: &str| orders.lines().any(|line| line.split_whitespace().eq([verb, name]));
    let mut orders = read();
    if says(&orders, "hold") {
        while says(&orders, "hold") {
            std::thread::sleep(std::time::Duration::from_millis(2));
            orders = read();
        }
        return says(&orders, "fail");
    }
    let mut counted = COUNTED.lock().expect("no holder panics");
    if counted.0 != orders {
        *counted = (orders.clone(), 0);
    }
    for line in orders.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (counts, at) = match words.as_slice() {
            ["kill", wanted, at, ..] => (*wanted == name, at.parse::<u64>()),
            ["count", at, ..] => (true, at.parse::<u64>()),
            _ => continue,
        };
        counted.1 += u64::from(counts);
        if counts && at == Ok(counted.1) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // The signal is on its way; nothing more is done.
            loop {
                std::thread::park();
            }
        }
    }
    says(&orders, "fail")
}
