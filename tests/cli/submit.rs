//! `submit`.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::fake::{Fake, Reply, run};
use crate::program::{Program, mediator, until};

fn contract() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".json").tempfile().expect("a file");
    std::fs::write(file.path(), r#"{"requires": [{"as": "dut", "capability": "board"}], "steps": []}"#)
        .expect("writes");
    file
}

fn submit(fake: &Fake, more: &[&str]) -> crate::program::Done {
    let file = contract();
    mediator(fake, &[&["submit", file.path().to_str().expect("text")], more].concat())
}

#[test]
fn placed_queued_and_known_runs_are_told_apart() {
    let check = |status: u16, answer: serde_json::Value, expect: &str| {
        let fake = Fake::start(move |_| Reply::json(status, answer.clone()));
        assert_eq!(submit(&fake, &[]).expect(0).out, expect);
        assert_eq!(fake.asked()[0].line, "POST /v1/runs");
        assert_eq!(fake.asked()[0].body["requires"][0]["as"], "dut");
    };
    check(201, run("RUNNING", json!({})), "run r-1 is RUNNING on dut=board-1\n");
    check(202, run("QUEUED", json!({"queue": {"position": 3}})), "run r-1 is QUEUED at position 3\n");
    check(200, run("SUCCEEDED", json!({})), "run r-1 was submitted before: it SUCCEEDED\n");
}

#[test]
fn a_contract_comes_from_standard_input_too() {
    let fake = Fake::start(|_| Reply::json(201, run("RUNNING", json!({}))));
    let url = format!("http://{}", fake.addr);
    let env = [("MEDIATOR_URL", url.as_str()), ("MEDIATOR_TOKEN", "t")];
    Program::start(&["submit", "-"], &env, r#"{"name": "piped"}"#).done().expect(0);
    assert_eq!(fake.asked()[0].body, json!({"name": "piped"}));
}

#[test]
fn a_refusal_names_the_role_and_the_numbers() {
    let fake = Fake::start(|_| {
        let reject = json!({"code": "no-candidate", "role": "dut", "wanted": 3, "known": 2, "detail": ""});
        let problem = json!({"status": 422, "code": "no-candidate", "detail": "too few boards", "run_id": "r-1", "reject": reject});
        Reply::json(422, problem)
    });
    let done = submit(&fake, &[]).expect(4);
    assert!(done.err.contains("too few boards [422 no-candidate]"), "{done:?}");
    assert!(done.err.contains("role 'dut': 3 wanted, 2 known"), "{done:?}");
    assert_eq!(done.out, "");
}

#[test]
fn a_dry_run_says_where_it_would_run() {
    let assigned = json!([{"as": "dut", "nodes": [{"node_id": "b-1"}, {"node_id": "b-2"}]}]);
    let fake = Fake::start(move |_| Reply::json(200, json!({"state": "DRY_RUN", "assigned": assigned})));
    assert_eq!(submit(&fake, &["--dry-run"]).expect(0).out, "would run on dut=b-1,b-2\n");
    assert_eq!(fake.asked()[0].line, "POST /v1/runs?dry_run=true");
}

#[test]
fn waiting_ends_with_the_verdicts_exit_code_and_tells_each_state() {
    let check = |state: &'static str, kind: &'static str, code: i32| {
        let fake = Fake::start(move |asked| match asked.line.as_str() {
            "POST /v1/runs" => Reply::json(202, run("QUEUED", json!({"queue": {"position": 1}}))),
            line if line.ends_with("while=QUEUED") => Reply::json(200, run("RUNNING", json!({}))),
            _ => Reply::json(200, run(state, json!({"verdict": {"kind": kind}}))),
        });
        let done = submit(&fake, &["--wait"]).expect(code);
        assert!(done.out.starts_with(&format!("run r-1 {state}")), "{done:?}");
        assert!(done.err.contains("QUEUED at position 1") && done.err.contains("RUNNING on dut=board-1"), "{done:?}");
        let json = submit(&fake, &["--wait", "--json"]).expect(code);
        assert!(json.out.starts_with('{') && json.out.contains(kind), "{json:?}");
    };
    check("SUCCEEDED", "succeeded", 0);
    check("FAILED", "step-failed", 1);
    check("CANCELLED", "drained", 6);
    check("FAILED", "node-lost", 6);
}

#[test]
fn giving_up_waiting_is_exit_code_5_and_leaves_the_run() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
        _ => Reply::json(200, run("RUNNING", json!({}))).after_ms(60_000),
    });
    let done = submit(&fake, &["--wait", "--wait-timeout", "0.3"]).expect(5);
    assert!(done.err.contains("run r-1 goes on"), "{done:?}");
    assert!(!fake.asked().iter().any(|asked| asked.line.contains("cancel")));
}

#[test]
fn waiting_survives_a_daemon_that_goes_away_and_comes_back() {
    let first = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
        _ => Reply::json(200, run("RUNNING", json!({}))).after_ms(60_000),
    });
    let addr = first.addr;
    let file = contract();
    let waiting = Program::client(&first, &["submit", "--wait", file.path().to_str().expect("text")]);
    until("the long poll", || first.asked().iter().any(|asked| asked.line.contains("while=RUNNING")));
    drop(first);
    let polls = AtomicUsize::new(0);
    let second = Fake::start_on(addr, move |_| match polls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::problem(503, "unavailable", "starting"),
        _ => Reply::json(200, run("SUCCEEDED", json!({"verdict": {"kind": "succeeded"}}))),
    });
    let done = waiting.done().expect(0);
    assert_eq!(done.out, "run r-1 SUCCEEDED\n");
    assert_eq!(done.err.matches("is away").count(), 1, "{done:?}");
    assert!(done.err.contains("the daemon is back"), "{done:?}");
    assert!(second.asked().iter().all(|asked| asked.line.starts_with("GET ")));
}

#[test]
fn a_question_is_told_to_whoever_waits() {
    let asked_step = json!([{"seq": 2, "id": "look", "kind": "ask", "state": "ASKED", "attempt": 1}]);
    let polls = AtomicUsize::new(0);
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
        _ if polls.fetch_add(1, Ordering::Relaxed) < 2 => {
            Reply::json(200, run("RUNNING", json!({"steps": asked_step})))
        }
        _ => Reply::json(200, run("SUCCEEDED", json!({}))),
    });
    let done = submit(&fake, &["--wait"]).expect(0);
    assert_eq!(done.err.matches("`mediator answer r-1 look TEXT`").count(), 1, "{done:?}");
}
