//! As a service: what systemd is told, and the units that come with the program.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mediator::clock::monotonic_us;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Daemon, Lab};
use crate::systemd::Systemd;

#[test]
fn systemd_is_told_when_it_listens_reads_again_and_stops() {
    for systemd in [Systemd::at_a_path(), Systemd::without_a_path()] {
        let mut daemon = Daemon::with_env(&[("NOTIFY_SOCKET", &systemd.name)]);
        let ready = systemd.hears("READY");
        assert_eq!(
            (ready.get("READY"), ready.get("STATUS")),
            (Some("1"), Some(format!("serving {}", daemon.url()).as_str()))
        );
        let before = monotonic_us();
        daemon.signal(Signal::HUP);
        let reloading = systemd.hears("RELOADING");
        let at: i64 = reloading.get("MONOTONIC_USEC").and_then(|at| at.parse().ok()).expect("a time");
        assert!(reloading.get("RELOADING") == Some("1") && before <= at && at <= monotonic_us(), "{reloading:?}");
        assert_eq!(systemd.hears("READY").get("READY"), Some("1"));
        daemon.signal(Signal::TERM);
        assert_eq!(systemd.hears("STOPPING").get("STOPPING"), Some("1"));
        assert_eq!(daemon.ended().code(), Some(0));
        assert!(systemd.drain().is_empty(), "nobody watches, so no sign of life is given");
    }
}

/// A sign of life is the writer's: while it cannot write, none is given.
#[test]
fn the_watchdog_hears_of_the_writer_and_not_of_a_timer() {
    let systemd = Systemd::at_a_path();
    let daemon = Daemon::with_env(&[("NOTIFY_SOCKET", &systemd.name), ("WATCHDOG_USEC", "400000")]);
    for _ in 0..4 {
        systemd.hears("WATCHDOG");
    }
    let outside = rusqlite::Connection::open(daemon.dir.path().join(mediator::store::DATABASE)).expect("it opens");
    outside.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
    std::thread::sleep(Duration::from_millis(400));
    systemd.drain();
    // SQLite waits 5 s for the lock; a timer would have gone off several times by then.
    assert!(systemd.within(Duration::from_millis(2000)).is_none(), "the writer is held up, and seems to live");
    outside.execute_batch("ROLLBACK").expect("it is ours");
    systemd.hears("WATCHDOG");
}

/// Without a manager, or with one that is not there any more, nothing is different.
#[test]
fn a_manager_that_is_not_there_is_no_trouble() {
    for name in ["/nonexistent/notify", "@nobody-listens-here", "no-path"] {
        let daemon = Daemon::with_env(&[("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", "100000")]);
        daemon.call("GET", "/readyz", &Value::Null).expect(200);
    }
}

#[test]
fn the_units_are_what_systemd_takes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/systemd");
    let copies = tempfile::tempdir().expect("there is room");
    for name in ["mediator.service", "mediator-agent.service"] {
        let unit = std::fs::read_to_string(folder.join(name)).expect("it is there");
        for line in ["Type=notify", "Restart=always", "ExecReload=/bin/kill -HUP $MAINPID", "NoNewPrivileges=yes"] {
            assert!(unit.lines().any(|own| own == line), "{name} does not have {line}");
        }
        // What it starts must be there.
        let unit = unit.replace("/usr/local/bin/mediator", env!("CARGO_BIN_EXE_mediator"));
        let copy = copies.path().join(name);
        std::fs::write(&copy, unit).expect("there is room");
        let Ok(verified) = Command::new("systemd-analyze").arg("verify").arg(&copy).output() else {
            eprintln!("LEFT OUT: the units were not verified, there is no systemd-analyze");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !said.contains(name), "{name}: {said}");
    }
}

/// 503, and why; the process itself is well.
#[test]
fn readyz_says_why_not() {
    let lab = Lab::new();
    lab.get("/readyz").expect(200);
    let held = lab.hold_writer();
    let reply = lab.get("/readyz");
    assert!(reply.header("retry-after").is_some());
    let problem = reply.problem(503, "unavailable");
    assert_eq!(problem["detail"], "the writer has not answered for 2 s");
    lab.get("/healthz").expect(200);
    drop(held);
    lab.get("/readyz").expect(200);
}
