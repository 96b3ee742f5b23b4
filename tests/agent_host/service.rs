//! The agent as a service: what systemd is told, and that its log tells no secret.

use std::process::Command;

use serde_json::json;

use crate::lab::Lab;
use crate::support::wait_for;
use crate::systemd::Systemd;
use rustix::process::Signal;

const BOARD: &str = "[[node]]\nid = \"b1\"\ncapabilities = [{ capability = \"board\" }]\n";
const HOST: &str = "[[node]]\nid = \"h1\"\ncapabilities = [{ capability = \"host\" }]\n";

fn under(systemd: &Systemd) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
    command.env("NOTIFY_SOCKET", &systemd.name).env("WATCHDOG_USEC", "400000");
    command
}

/// Ready means that the daemon knows every node, and so not before there is a daemon.
#[test]
fn systemd_is_told_when_the_nodes_are_known_read_again_and_leave() {
    let mut lab = Lab::start();
    lab.down();
    let systemd = Systemd::without_a_path();
    let folder = tempfile::tempdir().expect("there is room");
    let mut agent = lab.agent_by(&mut under(&systemd), folder, &format!("{BOARD}{HOST}"));
    assert!(systemd.hears("STATUS").0.contains("STATUS=waiting for the daemon at http://"));
    agent.says("the daemon is away");
    // It lives, and is not ready.
    systemd.hears("WATCHDOG");
    assert!(systemd.drain().iter().all(|message| message.get("READY").is_none()));
    lab.up();
    let ready = systemd.hears("READY");
    assert!(ready.0.contains("STATUS=speaking for b1, h1 at http://"), "{ready:?}");
    lab.node("b1");
    lab.node("h1");
    agent.reload(BOARD);
    assert!(systemd.hears("RELOADING").get("MONOTONIC_USEC").is_some());
    systemd.hears("READY");
    systemd.hears("WATCHDOG");
    agent.signal(Signal::TERM);
    systemd.hears("STOPPING");
    assert_eq!(agent.ended().code(), Some(0));
}

/// Neither its token nor the nonce of a lease.
#[test]
fn its_log_tells_no_secret() {
    let lab = Lab::start();
    let systemd = Systemd::at_a_path();
    let folder = tempfile::tempdir().expect("there is room");
    let agent = lab.agent_by(&mut under(&systemd), folder, BOARD);
    lab.wait_for_node("b1", "it is known", |_| true);
    let run = lab.submit(&json!([{"id": "a", "uses": "dut", "run": ["sleep", "3"]}]));
    let rows = rusqlite::Connection::open_with_flags(
        lab.dir.path().join("data").join(mediator::store::DATABASE),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
    );
    let rows = rows.expect("it opens");
    let nonce: String = wait_for("a lease", || rows.query_row("SELECT nonce FROM leases", [], |row| row.get(0)).ok());
    lab.wait_for_run(&run, "SUCCEEDED");
    let token = std::fs::read_to_string(lab.dir.path().join("data/operator.token")).expect("a token");
    let log = agent.log();
    assert!(log.contains("the daemon knows the node node=b1"), "{log}");
    for secret in [token.trim(), &nonce] {
        assert!(!log.contains(&secret[..16]), "{log}");
    }
}
