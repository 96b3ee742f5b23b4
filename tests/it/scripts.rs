//! The scripts that anyone can run: they find the daemon as it is, and cannot fall behind it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

use crate::support::Daemon;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}

/// Runs a script; without python3 on this machine there is nothing to run, and it is said.
fn run(name: &str, arguments: &[&str]) -> Option<String> {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("scripts/{name} was not run: there is no python3");
        return None;
    }
    let program = env!("CARGO_BIN_EXE_mediator");
    let Output { status, stdout, stderr } =
        Command::new("python3").arg(script(name)).args(arguments).env("MEDIATOR", program).output().expect("it starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{name} ended with {status}:\n{stdout}\n{stderr}");
    Some(stdout.into_owned())
}

#[test]
fn the_conformance_script_knows_every_route_that_takes_a_key() {
    let table =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/routes.rs")).expect("there");
    let mut routes: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let (method, rest) = line.trim().split_once(' ')?;
            let (pattern, rest) = rest.trim().strip_prefix('"')?.split_once('"')?;
            rest.split_whitespace().any(|word| word == "once").then(|| format!("{method} {pattern}"))
        })
        .collect();
    assert!(routes.len() >= 7, "found only {routes:?}: has the table moved?");
    let Some(known) = run("conformance", &["--routes"]) else { return };
    let mut known: Vec<&str> = known.lines().collect();
    routes.sort();
    known.sort_unstable();
    assert_eq!(routes, known);
}

#[test]
fn the_daemon_conforms() {
    let Some(out) = run("conformance", &["--serve", env!("CARGO_BIN_EXE_mediator")]) else { return };
    let last = out.lines().last().expect("a sum");
    assert!(last.ends_with(" hold, 0 failed, 0 skipped"), "{last}");
    let checks: u32 = last.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(checks > 300, "{last}");
}

/// Anyone can point it at a daemon that is in use: it disturbs nobody, and leaves no node behind.
#[test]
fn a_daemon_in_use_is_checked_without_disturbing_it() {
    let daemon = Daemon::start();
    let node = json!({"node_id": "b1", "static": true, "capabilities": [{"capability": "board"}]});
    daemon.call("POST", "/v1/nodes", &node).expect(200);
    let Some(out) = run("conformance", &[daemon.url(), daemon.token(), "--quiet"]) else { return };
    assert!(out.contains(" 0 failed"), "{out}");
    let nodes = daemon.call("GET", "/v1/nodes", &json!(null)).expect(200);
    assert_eq!((nodes["nodes"].as_array().map(Vec::len), &nodes["nodes"][0]["drain"]), (Some(1), &json!(null)));
    let runs = "SELECT count(*) FROM runs WHERE state IN ('QUEUED', 'RUNNING')";
    assert_eq!(daemon.rows().query_row(runs, [], |row| row.get::<_, i64>(0)).expect("a number"), 0);
}

#[test]
fn the_retry_demo_happens_as_it_tells() {
    let Some(out) = run("retry-demo", &[]) else { return };
    let found: Vec<String> = out
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(what, rest)| format!("{what}: {}", rest.trim().split("  ").next().unwrap_or_default()))
        .map(|line| line.split(" run r-").next().unwrap_or_default().to_owned())
        .filter(|line| !line.starts_with("So"))
        .collect();
    let wanted = [
        "first request: NEW",
        "the same request again: REPLAY",
        "same key, other contract: PAYLOAD_CONFLICT",
        "(runs, requests, tombstones): (1, 1, 0)",
        "at once: 1 NEW, 7 REPLAY, 1 run",
        "(runs, requests, tombstones): (2, 2, 0)",
        "the same request after the kill: REPLAY",
        "(runs, requests, tombstones): (2, 2, 0)",
        "after that, while the run goes on: REPLAY",
        "after its end and the pruning: EXPIRED",
        "(runs, requests, tombstones): (2, 0, 2)",
        "after the tombstone is gone: NEW",
        "(runs, requests, tombstones): (3, 1, 0)",
    ];
    let found: Vec<&str> = found.iter().map(String::as_str).filter(|line| wanted.contains(line)).collect();
    assert_eq!(found, wanted, "{out}");
}
