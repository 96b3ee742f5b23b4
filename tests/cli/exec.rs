//! `exec`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fake::{Asked, Fake, Reply, run};
use crate::program::{Program, mediator, until};

fn ended(state: &str, kind: &str, result: Value) -> Reply {
    let step = json!([{"seq": 1, "id": "exec", "kind": "run", "state": "DONE", "attempt": 1, "result": result}]);
    Reply::json(200, run(state, json!({"steps": step, "verdict": {"kind": kind}})))
}

/// A daemon that queues the run, starts it, sends its output in two parts, and ends it as told.
fn lab(asked: &Asked, end: Reply) -> Reply {
    match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(202, run("QUEUED", json!({"queue": {"position": 2}}))),
        line if line.ends_with("while=QUEUED") => Reply::json(200, run("RUNNING", json!({}))),
        line if line.contains("/log?attempt=1&offset=0&") => Reply::bytes(b"hello "),
        line if line.contains("/log?attempt=1&offset=6&") => {
            Reply::bytes(b"world\n").header("mediator-log-end", "true")
        }
        _ => end,
    }
}

const EXEC: [&str; 3] = ["exec", "--require", "dut=board,model=rpi4"];

#[test]
fn output_is_shown_and_the_commands_code_is_ours() {
    for code in [0, 1, 3, 124, 137, 255] {
        let fake = Fake::start(move |asked| lab(asked, ended("FAILED", "step-failed", json!({"exit_code": code}))));
        let done = mediator(&fake, &[&EXEC[..], &["--", "make", "-C", "fw"]].concat()).expect(code);
        assert_eq!(done.out, "hello world\n");
        assert!(done.err.contains("QUEUED at position 2") && done.err.contains("RUNNING on dut=board-1"), "{done:?}");
    }
}

#[test]
fn the_contract_has_one_step_on_the_first_role() {
    let fake = Fake::start(|asked| lab(asked, ended("SUCCEEDED", "succeeded", json!({"exit_code": 0}))));
    let flags = [
        "--require",
        "host=builder",
        "--env",
        "A=b=c",
        "--pass-env",
        "TOKEN",
        "--timeout",
        "90",
        "--wait-timeout",
        "5.5",
    ];
    mediator(&fake, &[&EXEC[..], &flags, &["--", "./t.sh", "--json"]].concat()).expect(0);
    assert_eq!(
        fake.body_of("POST /v1/runs"),
        json!({"name": "exec ./t.sh", "queue_timeout_seconds": 5.5,
            "requires": [{"as": "dut", "capability": "board", "attrs": {"model": "rpi4"}}, {"as": "host", "capability": "builder"}],
            "steps": [{"id": "exec", "uses": "dut", "run": ["./t.sh", "--json"], "env": {"A": "b=c"}, "pass_env": ["TOKEN"],
                       "timeout_seconds": 90.0}]})
    );
}

#[test]
fn our_own_ends_cannot_be_taken_for_the_commands() {
    let check = |end: Reply, code: i32| {
        let fake = Fake::start(move |asked| lab(asked, end.clone()));
        mediator(&fake, &[&EXEC[..], &["--", "x"]].concat()).expect(code)
    };
    check(
        ended("FAILED", "step-failed", json!({"error": "cannot start 'x': No such file or directory (os error 2)"})),
        127,
    );
    check(ended("FAILED", "step-failed", json!({"error": "cannot start 'x': Permission denied (os error 13)"})), 126);
    check(ended("FAILED", "node-lost", Value::Null), 125);
    check(ended("FAILED", "queue-timeout", Value::Null), 124);
    let refused = Fake::start(|_| Reply::problem(422, "no-candidate", "no board at all"));
    let done = mediator(&refused, &[&EXEC[..], &["--", "x"]].concat()).expect(125);
    assert!(done.err.contains("no board at all"), "{done:?}");
    let env = [("MEDIATOR_URL", "http://127.0.0.1:1"), ("MEDIATOR_TOKEN", "t")];
    Program::start(&[&EXEC[..], &["--", "x"]].concat(), &env, "").done().expect(125);
}

#[test]
fn a_run_that_ends_in_the_queue_shows_no_log() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(202, run("QUEUED", json!({}))),
        _ => Reply::json(200, run("FAILED", json!({"started_at": null, "verdict": {"kind": "queue-timeout"}}))),
    });
    mediator(&fake, &[&EXEC[..], &["--", "x"]].concat()).expect(124);
    assert!(!fake.asked().iter().any(|asked| asked.line.contains("/log")));
}

#[test]
fn json_is_the_run_and_the_output_goes_to_standard_error() {
    let fake = Fake::start(|asked| lab(asked, ended("SUCCEEDED", "succeeded", json!({"exit_code": 0}))));
    let done = mediator(&fake, &[&["--json"], &EXEC[..], &["--", "x"]].concat()).expect(0);
    let answer: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(answer["state"], "SUCCEEDED");
    assert!(done.err.contains("hello world"), "{done:?}");
}

/// A daemon whose run goes on until it is cancelled; without `obeys` even then.
fn endless(obeys: bool) -> Fake {
    let cancelled = Arc::new(AtomicBool::new(false));
    Fake::start(move |asked| {
        let is_over = cancelled.load(Ordering::Relaxed) && obeys;
        match asked.line.as_str() {
            "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
            "POST /v1/runs/r-1/cancel" => {
                cancelled.store(true, Ordering::Relaxed);
                Reply::json(200, run("RUNNING", json!({})))
            }
            line if line.contains("offset=0") => Reply::bytes(b"begun\n"),
            line if line.contains("/log") && is_over => Reply::bytes(b"").header("mediator-log-end", "true"),
            line if line.contains("/log") => Reply::bytes(b"").after_ms(100),
            _ if is_over => ended("CANCELLED", "cancelled", Value::Null),
            _ => Reply::json(200, run("RUNNING", json!({}))).after_ms(100),
        }
    })
}

#[test]
fn a_signal_cancels_the_run_and_waits_for_its_end() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let fake = endless(true);
        let program = Program::client(&fake, &[&EXEC[..], &["--", "sleep", "inf"]].concat());
        until("output", || fake.asked().iter().any(|asked| asked.line.contains("offset=6")));
        program.signal(signal);
        let done = program.done().expect(125);
        assert_eq!(done.out, "begun\n");
        assert!(done.err.contains("cancelling run r-1") && done.err.contains("CANCELLED"), "{done:?}");
    }
}

#[test]
fn a_second_signal_leaves_at_once() {
    let fake = endless(false);
    let program = Program::client(&fake, &[&EXEC[..], &["--", "sleep", "inf"]].concat());
    until("output", || fake.asked().iter().any(|asked| asked.line.contains("offset=6")));
    program.signal(Signal::INT);
    until("the cancel", || fake.asked().iter().any(|asked| asked.line.ends_with("/cancel")));
    program.signal(Signal::INT);
    program.done().expect(125);
}

#[test]
fn a_daemon_that_restarts_meanwhile_loses_no_output() {
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let first = Fake::start(move |asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
        line if line.contains("offset=0") => Reply::bytes(b"hello "),
        _ => {
            counted.fetch_add(1, Ordering::Relaxed);
            Reply::bytes(b"").after_ms(60_000)
        }
    });
    let addr = first.addr;
    let program = Program::client(&first, &[&EXEC[..], &["--", "x"]].concat());
    until("a parked poll", || polls.load(Ordering::Relaxed) > 0);
    drop(first);
    let _second = Fake::start_on(addr, |asked| lab(asked, ended("SUCCEEDED", "succeeded", json!({"exit_code": 0}))));
    assert_eq!(program.done().expect(0).out, "hello world\n");
}

#[test]
fn a_reader_that_goes_away_cancels_the_run() {
    let fake = endless(true);
    let url = format!("http://{}", fake.addr);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_mediator"))
        .args([&EXEC[..], &["--", "yes"]].concat())
        .envs([("MEDIATOR_URL", url.as_str()), ("MEDIATOR_TOKEN", "t")])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(125));
    assert!(fake.asked().iter().any(|asked| asked.line.ends_with("/cancel")));
}
