//! What is on the disk before it is told: a tracer (strace) lists syncs and answers in their order. A kill alone does
//! not show a sync that is missing, for the page cache outlives the process; a power cut would.

use std::path::Path;

use mediator::store::DATABASE;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Lab, Reply};

const CALLS: &str = "trace=fsync,fdatasync,ftruncate,write,writev,sendto,exit_group";

/// A daemon under a tracer that writes down its syncs and what it says.
struct Traced {
    folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Traced {
    /// Starts one, on a folder of its own or on the one that another has left; `None` if there is no tracer.
    fn start(folder: tempfile::TempDir, more: &[&str]) -> Option<Self> {
        if !crate::syscalls::can_trace() {
            return None;
        }
        let log = folder.path().join("trace").display().to_string();
        // -y names files, -s shows enough of what is said.
        let own = ["strace", "-f", "-qq", "-y", "-s", "64", "-e", CALLS, "-o", &log];
        let tracer: Vec<String> = own.iter().chain(more).map(|word| (*word).to_owned()).collect();
        let binary = env!("CARGO_BIN_EXE_mediator");
        let daemon = Daemon::start_under(&tracer, binary, &folder.path().join("data"), &Lab::default());
        let daemon = daemon.expect("it starts");
        Some(Self { folder, daemon })
    }

    /// The trace so far.
    fn trace(&self) -> Vec<String> {
        trace(self.folder.path())
    }

    /// Sends a request that must be taken; returns what was traced meanwhile, up to the answer.
    fn during(&self, path: &str, body: &Value) -> Vec<String> {
        let before = self.trace().len();
        self.daemon.post(path, None, body).expect("an answer");
        let mut lines = self.trace().split_off(before);
        let answer = lines.iter().position(|line| line.contains("HTTP/1.1 2")).expect("the answer was traced");
        lines.truncate(answer);
        lines
    }
}

fn trace(folder: &Path) -> Vec<String> {
    std::fs::read_to_string(folder.join("trace")).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Says whether a line is a sync of the file.
fn syncs(line: &str, file: &str) -> bool {
    line.contains("sync(") && line.contains(&format!("/{file}>"))
}

fn wal() -> String {
    format!("{DATABASE}-wal")
}

fn advert() -> Value {
    json!({"node_id": "b1", "instance": "i1", "capabilities": [{"capability": "board"}]})
}

fn contract() -> Value {
    json!({
        "run_id": "r1", "requires": [{"as": "dut", "capability": "board"}],
        "steps": [{"id": "a", "uses": "dut", "run": ["true"]}],
    })
}

/// "`synchronous=FULL` by default, so that what was answered survives power loss."
#[test]
fn what_is_answered_was_synced_before() {
    let Some(traced) = Traced::start(tempfile::tempdir().expect("there is room"), &[]) else { return };
    for (path, body) in [
        ("/v1/nodes", advert()),
        ("/v1/runs", contract()),
        ("/v1/nodes/b1/claim", json!({"instance": "i1"})),
        ("/v1/runs/r1/cancel", json!({})),
    ] {
        let lines = traced.during(path, &body);
        assert!(lines.iter().any(|line| syncs(line, &wal())), "{path} was answered without a sync: {lines:#?}");
    }
}

/// "SQLite's recovery does not sync what it found [..]: therefore the first thing after opening is one committed write
/// [..]; nothing is answered before it."
#[test]
fn what_a_kill_left_is_synced_before_it_is_shown() {
    let folder = tempfile::tempdir().expect("there is room");
    {
        let daemon = Daemon::start(&folder.path().join("data"), &Lab::default()).expect("it starts");
        // Nothing that the start itself has to write: no node, no lease, no seal that is owed.
        let never = Daemon::call(&daemon, "POST", "/v1/runs", None, &contract().to_string()).expect("an answer");
        assert_eq!(never.0, 422);
        daemon.exchange("GET", "/v1/runs/r1/record", None, "").expect("an answer");
    }
    let Some(traced) = Traced::start(folder, &[]) else { return };
    let lines = traced.trace();
    let ready = lines.iter().position(|line| line.contains("listening on")).expect("it said so");
    let is_synced = lines[..ready].iter().any(|line| syncs(line, &wal()));
    assert!(is_synced, "it listens, and what it recovered was never synced: {lines:#?}");
}

/// "Log files are synced with the step's result."
#[test]
fn a_log_is_synced_before_its_result_is_answered() {
    let Some(traced) = Traced::start(tempfile::tempdir().expect("there is room"), &[]) else { return };
    traced.during("/v1/nodes", &advert());
    traced.during("/v1/runs", &contract());
    let claim = traced.daemon.post("/v1/nodes/b1/claim", None, &json!({"instance": "i1"})).expect("an answer");
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce");
    let log = format!("/v1/runs/r1/steps/1/log?nonce={nonce}&attempt=1&offset=0");
    assert_eq!(traced.daemon.call("PUT", &log, None, "hello\n").expect("an answer").0, 204);
    let report = json!({"node_id": "b1", "nonce": nonce, "attempt": 1, "exit_code": 0});
    let lines = traced.during("/v1/runs/r1/steps/1/result", &report);
    for file in ["1-1.log", "logs", "r1", "runs"] {
        assert!(lines.iter().any(|line| syncs(line, file)), "{file} was not synced: {lines:#?}");
    }
}

/// "A failed sync or any other I/O error: all in the group are told 503; roll back, then `wal_checkpoint(TRUNCATE)` on
/// the same connection until it succeeds, then end the process."
#[test]
fn after_a_failed_sync_everyone_is_told_the_wal_is_emptied_and_the_process_ends() {
    // The tracer counts the calls of each thread: the start has done with fewer, the writer gets there.
    let inject = "inject=fsync,fdatasync:error=EIO:when=40";
    let folder = tempfile::tempdir().expect("there is room");
    let Some(mut traced) = Traced::start(folder, &["-e", inject]) else { return };
    traced.during("/v1/nodes", &advert());
    let submit = |daemon: &Daemon, number: usize| -> Reply {
        let (key, mut body) = (format!("k{number}"), contract());
        body["run_id"] = format!("r{number}").into();
        daemon.exchange("POST", "/v1/runs", Some(&key), &body.to_string()).expect("an answer")
    };
    let (failing, reply) = (0..60)
        .map(|number| (number, submit(&traced.daemon, number)))
        .find(|(_, reply)| reply.status >= 300)
        .expect("a sync has failed");
    assert_eq!((reply.status, &reply.body["retry"]), (503, &json!("same-key")), "{}", reply.body);
    // Nothing is done any more: what a later commit synced would seem to cover what the failed one lost.
    let next = traced.daemon.exchange("POST", "/v1/nodes", None, &advert().to_string());
    assert!(next.is_none_or(|reply| reply.status == 503), "it goes on");
    assert_eq!(traced.daemon.ended(), Some(74));
    let lines = traced.trace();
    let failed = lines.iter().position(|line| line.contains("(INJECTED)")).expect("a sync has failed");
    let after = &lines[failed + 1..];
    let find = |what: &str, is_it: &dyn Fn(&str) -> bool| {
        after.iter().position(|line| is_it(line)).unwrap_or_else(|| panic!("no {what}: {lines:#?}"))
    };
    let emptied = find("emptying of the WAL", &|line| line.contains("ftruncate(") && line.contains(&wal()));
    let ended = find("end", &|line| line.contains("exit_group(74)"));
    let answered = find("answer", &|line| line.contains("HTTP/1.1 503"));
    assert!(emptied < ended && answered < ended, "{lines:#?}");
    // The next start has what was acknowledged, and the request can be made again.
    let daemon = Daemon::start(&traced.folder.path().join("data"), &Lab::default()).expect("it starts");
    for number in 0..failing {
        let reply = submit(&daemon, number);
        assert!(reply.head.contains("idempotent-replayed: true"), "r{number}: {}", reply.body);
    }
    let again = submit(&daemon, failing);
    assert!(matches!(again.status, 201 | 202) && !again.head.contains("idempotent-replayed"), "{}", again.body);
}

/// A disk that stays broken: the daemon says why it is not ready, still lives, and does not end, not even when it is told
/// to. Ended now, the next start could take for durable what was never on the disk.
#[test]
fn while_the_disk_stays_broken_it_says_so_and_does_not_end() {
    let inject = "inject=fsync,fdatasync:error=EIO:when=40+";
    let Some(mut traced) = Traced::start(tempfile::tempdir().expect("there is room"), &["-e", inject]) else { return };
    traced.during("/v1/nodes", &advert());
    let ready = |daemon: &Daemon| daemon.exchange("GET", "/readyz", None, "").expect("an answer");
    assert_eq!(ready(&traced.daemon).status, 200);
    let failed = (0..60).any(|number| {
        let mut body = contract();
        body["run_id"] = format!("r{number}").into();
        traced.daemon.exchange("POST", "/v1/runs", None, &body.to_string()).expect("an answer").status == 503
    });
    assert!(failed, "no sync has failed");
    let reply = ready(&traced.daemon);
    assert_eq!((reply.status, &reply.body["code"]), (503, &json!("unavailable")), "{}", reply.body);
    assert!(
        reply.body["detail"].as_str().is_some_and(|detail| detail.starts_with("the disk failed")),
        "{}",
        reply.body
    );
    assert_eq!(traced.daemon.exchange("GET", "/healthz", None, "").expect("an answer").status, 200);
    traced.daemon.tell_to_end();
    let until = mediator::clock::boottime_ms() + 6_500;
    while mediator::clock::boottime_ms() < until {
        assert!(!traced.daemon.is_dead(), "it has ended, and its WAL is not empty");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
