//! A change is done once, however often the way to the daemon breaks; `request` and `outbox` tell what became of it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use mediator::clock::boottime_ms;
use serde_json::json;

use crate::fake::{Asked, Fake, Reply, run};
use crate::program::{Program, mediator};

/// Answers the first requests with these, every later one with the last.
fn one_after_the_other(replies: Vec<Reply>) -> Fake {
    let next = AtomicUsize::new(0);
    Fake::start(move |_| {
        let at = next.fetch_add(1, Ordering::Relaxed).min(replies.len() - 1);
        replies[at].clone()
    })
}

fn keys(asked: &[Asked]) -> Vec<&str> {
    asked.iter().map(|asked| asked.key.as_deref().expect("a key")).collect()
}

#[test]
fn a_change_is_repeated_with_one_key_until_it_is_answered() {
    let fake = one_after_the_other(vec![
        Reply::nothing(),
        Reply::problem(503, "unavailable", "not now"),
        Reply::nothing(),
        Reply::problem(507, "storage-full", "no room"),
        Reply::json(200, run("CANCELLED", json!({}))),
    ]);
    let began = boottime_ms();
    let done = mediator(&fake, &["cancel", "r-1", "--reason", "enough"]).expect(0);
    assert!(boottime_ms() - began >= 100 + 200 + 400 + 800, "the pauses grow");
    let asked = fake.asked();
    assert!(asked.len() >= 5, "{asked:?}");
    assert!(asked.iter().all(|one| one.line == asked[0].line && one.body == asked[0].body), "{asked:?}");
    let keys = keys(&asked);
    assert!(keys.iter().all(|key| *key == keys[0] && key.len() >= 20), "{keys:?}");
    assert_eq!(done.err.matches("trying again").count(), 1, "{}", done.err);
    // The next command is another request.
    mediator(&fake, &["cancel", "r-1", "--reason", "enough"]).expect(0);
    assert_ne!(fake.asked().last().expect("it was asked").key.as_deref(), Some(keys[0]));
}

#[test]
fn every_change_carries_a_key_and_the_one_that_is_given() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/runs" => Reply::json(201, run("RUNNING", json!({}))),
        "POST /v1/outbox/7/resend" => Reply::json(
            200,
            json!({"id": 7, "message_id": "msg_1", "webhook": "chat", "event": "run.ended", "run_id": "r-1",
                   "state": "pending", "attempts": 0, "created_at": "2026-01-01T00:00:00.000Z",
                   "next_at": "2026-01-01T00:00:00.000Z", "ended_at": null, "last_error": null}),
        ),
        line if line.ends_with("/cancel") => Reply::json(200, run("CANCELLED", json!({}))),
        _ => Reply::json(
            200,
            json!({"node_id": "board-1", "label": "", "instance": null, "static": true, "live": true,
                   "last_seen": "2026-01-01T00:00:00.000Z", "capabilities": [], "drain": null, "drains": [],
                   "lease": null}),
        ),
    });
    let contract = json!({"requires": [], "steps": []}).to_string();
    let submit = |args: &[&str]| {
        let url = format!("http://{}", fake.addr);
        Program::start(args, &[("MEDIATOR_URL", &url), ("MEDIATOR_TOKEN", "t")], &contract).done()
    };
    submit(&["submit", "-", "--idempotency-key", "nightly-7"]).expect(0);
    assert_eq!(fake.asked().last().and_then(|asked| asked.key.clone()).as_deref(), Some("nightly-7"));
    for args in [
        &["cancel", "r-1"][..],
        &["drain", "board-1", "--reason", "dust"],
        &["undrain", "board-1"],
        &["node", "remove", "board-1"],
        &["outbox", "--resend", "7"],
    ] {
        mediator(&fake, args).expect(0);
        let asked = fake.asked().pop().expect("it was asked");
        assert!(asked.key.is_some() && !asked.line.starts_with("GET"), "{args:?}: {asked:?}");
    }
}

#[test]
fn a_refusal_is_not_repeated() {
    for (status, code) in [(400, "invalid-request"), (409, "idempotency-key-expired"), (429, "queue-limit")] {
        let fake = one_after_the_other(vec![Reply::problem(status, code, "no")]);
        mediator(&fake, &["cancel", "r-1"]).expect(4);
        assert_eq!(fake.asked().len(), 1, "{code}");
    }
}

#[test]
fn a_daemon_that_is_not_there_is_tried_for_a_moment_and_nothing_is_claimed() {
    let addr = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let url = format!("http://{addr}");
    let began = boottime_ms();
    let env = [("MEDIATOR_URL", url.as_str()), ("MEDIATOR_TOKEN", "t")];
    let done = Program::start(&["cancel", "r-1"], &env, "").done().expect(3);
    assert!(boottime_ms() - began >= 1_500, "{} ms", boottime_ms() - began);
    assert!(done.out.is_empty() && !done.err.contains("mediator request"), "{done:?}");
}

#[test]
fn what_became_of_a_key_is_told_in_words_and_by_the_exit_code() {
    let fake = Fake::start(|asked| {
        let at = "2026-01-01T00:00:00.000Z";
        let view = |state: &str, status: Option<u16>, run: Option<&str>| {
            json!({"key": "k", "state": state, "status": status, "run_id": run, "created_at": run.map(|_| at),
                   "expires_at": status.map(|_| "2026-01-08T00:00:00.000Z")})
        };
        Reply::json(
            200,
            match asked.line.as_str() {
                "GET /v1/idempotency/ci%2F7" => view("stored", Some(201), Some("r-1")),
                "GET /v1/idempotency/old" => view("expired", None, Some("r-0")),
                _ => view("absent", None, None),
            },
        )
    });
    let told = |key: &str, code: i32| mediator(&fake, &["request", key]).expect(code).out;
    let stored = told("ci/7", 0);
    assert!(stored.contains("answered 201, run r-1") && stored.contains("until 2026-01-08"), "{stored}");
    let expired = told("old", 0);
    assert!(expired.contains("run r-0") && expired.contains("refuses a repeat"), "{expired}");
    assert!(told("new", 1).contains("nothing was done"));
    assert!(mediator(&fake, &["--json", "request", "new"]).expect(1).out.contains("\"absent\""));
}

#[test]
fn notifications_are_listed_and_sent_again() {
    let fake = Fake::start(|asked| {
        let row = |state: &str| {
            json!({"id": 7, "message_id": "msg_1", "webhook": "chat", "event": "run.ended", "run_id": "r-1",
                   "state": state, "attempts": 12, "created_at": "2026-01-01T00:00:00.000Z", "next_at": null,
                   "ended_at": null, "last_error": "it answered 500"})
        };
        match asked.line.as_str() {
            "GET /v1/outbox?limit=50&state=failed" => {
                Reply::json(200, json!({"outbox": [row("failed")], "next": null}))
            }
            "POST /v1/outbox/7/resend" => Reply::json(200, row("pending")),
            _ => Reply::problem(404, "not-found", "there is no such notification"),
        }
    });
    let out = mediator(&fake, &["outbox", "--state", "failed"]).expect(0).out;
    assert!(out.contains("chat") && out.contains("it answered 500") && out.lines().count() == 2, "{out}");
    let out = mediator(&fake, &["outbox", "--resend", "7"]).expect(0).out;
    assert!(out.contains("notification 7 to chat is sent again"), "{out}");
    mediator(&fake, &["outbox", "--resend", "8"]).expect(4);
    // One key cannot be that of two requests.
    let done = mediator(&fake, &["outbox", "--resend", "7", "--resend", "8", "--idempotency-key", "k"]).expect(2);
    assert!(done.err.contains("--idempotency-key"), "{}", done.err);
}
