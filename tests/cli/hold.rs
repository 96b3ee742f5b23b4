//! `hold` with a daemon that does what the real one seldom does. Everything else is in `tests/hold`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::fake::{Asked, Fake, Reply, run};
use crate::program::{Program, mediator, until};

const HOLD: [&str; 3] = ["hold", "--require", "dut=board,model=rpi4"];

fn held(state: &str, step: &str) -> Value {
    run(state, json!({"steps": [{"seq": 1, "id": "hold", "kind": "hold", "state": step, "attempt": 1}]}))
}

/// A daemon whose hold is open at once.
fn lab(asked: &Asked) -> Reply {
    let line = asked.line.as_str();
    match line {
        "POST /v1/runs" => Reply::json(201, held("RUNNING", "CLAIMED")),
        _ if line.ends_with("/renew") => Reply::json(200, json!({"state": "RUNNING", "ttl_seconds": 60})),
        _ if line.ends_with("/result") => Reply::json(200, json!({"state": "DONE"})),
        _ => Reply::json(200, held("RUNNING", "CLAIMED")).after_ms(60_000),
    }
}

#[test]
fn the_contract_is_attended_and_has_one_hold() {
    let fake = Fake::start(lab);
    let flags = ["--name", "n", "--work", "w", "--priority", "-2", "--timeout", "90", "--wait-timeout", "5.5"];
    mediator(&fake, &[&HOLD[..], &flags, &["--", "true", "--json"]].concat()).expect(0);
    let mut contract = fake.body_of("POST /v1/runs");
    let run_id = contract["run_id"].take();
    assert!(run_id.as_str().is_some_and(|id| id.starts_with("hold-")), "{run_id}");
    assert_eq!(
        contract,
        json!({"name": "n", "run_id": null, "work": "w", "priority": -2, "attended": true, "queue_timeout_seconds": 5.5,
            "requires": [{"as": "dut", "capability": "board", "attrs": {"model": "rpi4"}}],
            "steps": [{"id": "hold", "hold": {"timeout_seconds": 90.0}}]})
    );
}

#[test]
fn a_submission_that_was_not_answered_is_repeated_as_it_was() {
    let posts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&posts);
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        "POST /v1/runs" if counted.fetch_add(1, Ordering::Relaxed) == 0 => {
            Reply::problem(503, "unavailable", "starting")
        }
        _ => lab(asked),
    });
    mediator(&fake, &[&HOLD[..], &["--", "true"]].concat()).expect(0);
    let bodies: Vec<Value> =
        fake.asked().into_iter().filter(|asked| asked.line == "POST /v1/runs").map(|asked| asked.body).collect();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1]);
}

#[test]
fn the_command_waits_until_the_hold_is_open() {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, held("RUNNING", "PENDING")),
        line if line.contains("wait_seconds=1&") && counted.fetch_add(1, Ordering::Relaxed) == 0 => {
            Reply::json(200, held("RUNNING", "PENDING"))
        }
        line if line.contains("wait_seconds=1&") => Reply::json(200, held("RUNNING", "CLAIMED")),
        _ => lab(asked),
    });
    let done = mediator(&fake, &[&HOLD[..], &["--", "true"]].concat()).expect(0);
    assert!(done.err.contains("earlier work there has to stop first"), "{done:?}");
    assert!(looks.load(Ordering::Relaxed) >= 2);
}

#[test]
fn a_renewal_that_finds_the_run_ended_ends_the_command() {
    let renewals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renewals);
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        line if line.ends_with("/renew") => match counted.fetch_add(1, Ordering::Relaxed) {
            0..3 => Reply::json(200, json!({"state": "RUNNING", "ttl_seconds": 1})),
            _ => Reply::problem(409, "stale-lease", "the run has ended"),
        },
        line if !line.contains("while=") && line.starts_with("GET ") => {
            Reply::json(200, run("FAILED", json!({"verdict": {"kind": "restored", "detail": "from a backup"}})))
        }
        _ => lab(asked),
    });
    let done = mediator(&fake, &[&HOLD[..], &["--", "sleep", "300"]].concat()).expect(125);
    assert!(done.err.contains("was lost") && done.err.contains("from a backup"), "{done:?}");
}

#[test]
fn a_result_that_came_too_late_is_no_success() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        line if line.ends_with("/result") => Reply::problem(409, "stale-lease", "not in your hands"),
        line if !line.contains("while=") && line.starts_with("GET ") => {
            Reply::json(200, run("FAILED", json!({"verdict": {"kind": "holder-gone"}})))
        }
        _ => lab(asked),
    });
    let done = mediator(&fake, &[&HOLD[..], &["--", "true"]].concat()).expect(125);
    assert!(done.err.contains("holder-gone"), "{done:?}");
}

#[test]
fn a_signal_before_the_first_answer_cancels_what_may_have_been_submitted() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, held("RUNNING", "CLAIMED")).after_ms(60_000),
        line if line.ends_with("/cancel") => Reply::json(200, run("CANCELLED", json!({}))),
        _ => lab(asked),
    });
    let program = Program::client(&fake, &[&HOLD[..], &["--", "true"]].concat());
    until("the submission", || !fake.asked().is_empty());
    program.signal(rustix::process::Signal::TERM);
    program.done().expect(125);
    let run_id = fake.body_of("POST /v1/runs")["run_id"].as_str().expect("an id").to_owned();
    assert!(fake.asked().iter().any(|asked| asked.line == format!("POST /v1/runs/{run_id}/cancel")));
}
