//! `asks`, `answer`, `why`.

use serde_json::json;

use crate::fake::{Fake, Reply, run};
use crate::program::mediator;

#[test]
fn open_questions_are_a_table() {
    let fake = Fake::start(|_| {
        let ask = json!({"run_id": "r-1", "seq": 4, "id": "look", "attempt": 1, "prompt": "Is the LED green?\u{1b}[2J",
            "options": ["yes", "no"], "answerers": [], "asked_at": "2026-01-01T00:00:00.000Z", "deadline": "2026-01-02T00:00:00.000Z"});
        Reply::json(200, json!({"asks": [ask], "next": null}))
    });
    let done = mediator(&fake, &["asks"]).expect(0);
    let row = done.out.lines().nth(1).expect("a row");
    for part in ["r-1", "look", "2026-01-02T00:00:00.000Z", "yes|no", "anyone", r"Is the LED green?\x1b[2J"] {
        assert!(row.contains(part), "{part} is not in {row}");
    }
}

#[test]
fn an_answer_goes_to_the_attempt_that_was_looked_at() {
    let steps = json!([{"seq": 4, "id": "look", "kind": "ask", "state": "ASKED", "attempt": 3}]);
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        "GET /v1/runs/r-1" => Reply::json(200, run("RUNNING", json!({"steps": steps}))),
        "POST /v1/runs/r-1/steps/4/answer" if asked.body["answer"] == "maybe" => {
            Reply::problem(422, "not-an-option", "'maybe' is none of yes, no")
        }
        _ => Reply::json(200, run("SUCCEEDED", json!({}))),
    });
    assert_eq!(mediator(&fake, &["answer", "r-1", "look", "yes"]).expect(0).out, "answered; run r-1 SUCCEEDED\n");
    assert_eq!(fake.body_of("POST"), json!({"answer": "yes", "attempt": 3}));
    let done = mediator(&fake, &["answer", "r-1", "4", "maybe"]).expect(4);
    assert!(done.err.contains("none of yes, no"), "{done:?}");
    let done = mediator(&fake, &["answer", "r-1", "5", "yes"]).expect(4);
    assert!(done.err.contains("no step '5'"), "{done:?}");
}

#[test]
fn why_names_each_role_and_what_keeps_its_nodes() {
    let fake = Fake::start(|_| {
        let nodes = json!([
            {"node_id": "b-1", "status": "leased", "run_id": "r-7", "since": null, "ends_by": "2026-01-02T00:00:00.000Z"},
            {"node_id": "b-2", "status": "draining", "run_id": null, "by": "kim", "reason": "new cable"},
        ]);
        let role = json!({"as": "dut", "wanted": 1, "known": 2, "live": 2, "free": 0, "nodes": nodes});
        Reply::json(
            200,
            json!({"code": "waiting", "detail": "role dut waits for a node", "position": 2, "roles": [role]}),
        )
    });
    let done = mediator(&fake, &["why", "r-1"]).expect(0);
    assert!(done.out.starts_with("run r-1 (waiting, position 2): role dut waits for a node\n"), "{done:?}");
    assert!(done.out.contains("dut: 1 wanted, 2 known, 2 live, 0 free"), "{done:?}");
    assert!(done.out.contains("run r-7") && done.out.contains("by kim, new cable"), "{done:?}");
}
