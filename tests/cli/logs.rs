//! `logs`.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::fake::{Fake, Reply, run};
use crate::program::{Program, mediator, until};

fn step(seq: u64, id: &str, state: &str, attempt: u64, begun: bool) -> Value {
    let started_at = if begun { json!("2026-01-01T00:00:02.000Z") } else { Value::Null };
    json!({"seq": seq, "id": id, "kind": "run", "uses": "dut", "state": state, "node_id": "board-1",
           "attempt": attempt, "started_at": started_at, "ended_at": null, "result": null})
}

/// Answers for a run whose build is done, whose flash was rolled back and whose verify was not reached.
fn finished(line: &str) -> Reply {
    let query = line.split_once('?').map_or("", |(_, query)| query);
    let from_start = query.contains("offset=0");
    match line.split_once('?').map_or(line, |(path, _)| path) {
        "GET /v1/runs/r-1" => {
            let steps = [
                step(1, "build", "DONE", 1, true),
                step(2, "flash", "PENDING", 2, false),
                step(3, "3x", "PENDING", 1, false),
            ];
            Reply::json(200, run("CANCELLED", json!({"steps": steps})))
        }
        "GET /v1/runs/r-1/steps/1/log" if from_start => Reply::bytes(b"built \xff\x1b[0m\n"),
        "GET /v1/runs/r-1/steps/2/log" if from_start && query.contains("attempt=1&") => Reply::bytes(b"flashed\n"),
        _ => Reply::bytes(b""),
    }
}

#[test]
fn every_step_that_began_is_shown_with_a_head_on_standard_error() {
    let fake = Fake::start(|asked| finished(&asked.line));
    let done = mediator(&fake, &["logs", "r-1"]).expect(0);
    assert_eq!(done.out, "built \u{fffd}\u{1b}[0m\nflashed\n", "as received");
    assert!(done.err.contains("step 1 build on board-1, attempt 1: DONE"), "{done:?}");
    assert!(done.err.contains("step 2 flash on board-1, attempt 1"), "{done:?}");
    assert!(!done.err.contains("3x"), "{done:?}");
}

#[test]
fn one_step_is_named_by_id_or_number() {
    let fake = Fake::start(|asked| finished(&asked.line));
    assert_eq!(mediator(&fake, &["logs", "r-1", "flash"]).expect(0).out, "flashed\n");
    assert_eq!(mediator(&fake, &["logs", "r-1", "2", "--attempt", "1"]).expect(0).out, "flashed\n");
    assert_eq!(mediator(&fake, &["logs", "r-1", "2", "--attempt", "2"]).expect(0).out, "");
    let done = mediator(&fake, &["logs", "r-1", "deploy"]).expect(4);
    assert!(done.err.contains("no step 'deploy'; its steps: build, flash, 3x"), "{done:?}");
}

/// What an attempt has written so far, as the log route tells it to a poll.
fn log_from(line: &str, text: &[u8], has_ended: bool) -> Reply {
    let offset: usize =
        line.split("offset=").nth(1).and_then(|rest| rest.split('&').next()?.parse().ok()).expect("offset");
    let reply = Reply::bytes(&text[offset.min(text.len())..]);
    if has_ended { reply.header("mediator-log-end", "true") } else { reply.after_ms(250) }
}

#[test]
fn following_shows_each_step_as_it_begins_and_survives_a_restart() {
    let first = Fake::start(|asked| {
        if asked.line.contains("/log?") {
            return log_from(&asked.line, b"one\n", false);
        }
        Reply::json(
            200,
            run("RUNNING", json!({"steps": [step(1, "a", "CLAIMED", 1, true), step(2, "b", "PENDING", 1, false)]})),
        )
    });
    let addr = first.addr;
    let following = Program::client(&first, &["logs", "r-1", "--follow"]);
    until("the log is read", || first.asked().iter().any(|asked| asked.line.contains("offset=4")));
    drop(first);
    let polls = AtomicUsize::new(0);
    let _second = Fake::start_on(addr, move |asked| {
        if asked.line.contains("steps/1/log") {
            return log_from(&asked.line, b"one\ntwo\n", true);
        }
        if asked.line.contains("steps/2/log") {
            return log_from(&asked.line, b"three\n", true);
        }
        let (state, second) = match polls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => ("RUNNING", step(2, "b", "PENDING", 1, false)),
            2 => ("RUNNING", step(2, "b", "CLAIMED", 1, true)),
            _ => ("SUCCEEDED", step(2, "b", "DONE", 1, true)),
        };
        Reply::json(200, run(state, json!({"steps": [step(1, "a", "DONE", 1, true), second]})))
    });
    let done = following.done().expect(0);
    assert_eq!(done.out, "one\ntwo\nthree\n");
    assert_eq!(done.err.matches("is away").count(), 1, "{done:?}");
    assert_eq!(done.err.matches("step 1 a").count(), 1, "{done:?}");
}

#[test]
fn following_a_step_that_never_begins_ends_with_its_run() {
    let polls = AtomicUsize::new(0);
    let fake = Fake::start(move |asked| {
        if asked.line.contains("/log?") {
            return Reply::problem(404, "not-found", "no log");
        }
        let state = if polls.fetch_add(1, Ordering::Relaxed) < 3 { "RUNNING" } else { "CANCELLED" };
        Reply::json(200, run(state, json!({"steps": [step(1, "a", "CANCELLED", 1, false)]})))
    });
    assert_eq!(mediator(&fake, &["logs", "r-1", "a", "--follow"]).expect(0).out, "");
    assert_eq!(mediator(&fake, &["logs", "r-1", "a", "--attempt", "1", "--follow"]).expect(0).out, "");
}
