//! `nodes`, `node`, `drain`, `undrain`.

use serde_json::{Value, json};

use crate::fake::{Fake, Reply};
use crate::program::mediator;

fn node(changes: Value) -> Value {
    let mut node = json!({"node_id": "board-1", "label": "보드", "instance": "i", "static": false, "live": true,
        "last_seen": "2026-01-01T00:00:00.000Z", "drain": "", "drains": [], "lease": null,
        "capabilities": [{"capability": "board", "attrs": {"cores": 4, "model": "rpi4"}}]});
    for (name, value) in changes.as_object().expect("an object") {
        node[name] = value.clone();
    }
    node
}

#[test]
fn nodes_are_a_table() {
    let fake = Fake::start(|_| {
        let leased = json!({"node_id": "b-2", "lease": {"run_id": "r-7", "not_after": "", "ttl_seconds": 3}});
        let nodes = [node(json!({})), node(leased), node(json!({"static": true, "live": false, "label": null}))];
        Reply::json(200, json!({"nodes": nodes, "next": null}))
    });
    let done = mediator(&fake, &["nodes"]).expect(0);
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(lines[1].starts_with("board-1  보드   board,cores=4,model=rpi4  free"), "{done:?}");
    assert!(lines[2].contains("leased by r-7"), "{done:?}");
    assert!(lines[3].ends_with("static"), "{done:?}");
}

#[test]
fn a_node_is_shown_with_its_drains() {
    let drains = json!([{"mode": "graceful", "by": "kim", "reason": "new cable", "since": "2026-01-01T00:00:00.000Z"}]);
    let fake = Fake::start(move |_| Reply::json(200, node(json!({"drain": "graceful", "drains": drains}))));
    let done = mediator(&fake, &["node", "show", "board-1"]).expect(0);
    assert!(done.out.contains("state:      drained"), "{done:?}");
    assert!(done.out.contains("graceful by kim") && done.out.contains("new cable"), "{done:?}");
    assert_eq!(fake.asked()[0].line, "GET /v1/nodes/board-1");
}

/// Who had it last, and who waits for it.
#[test]
fn a_node_is_shown_with_its_last_holders_and_what_waits() {
    let holder = |run: &str, to: Value, why: Value| json!({"run_id": run, "principal": "kim", "work": "gerrit:4711", "from": "2026-01-01T00:00:00.000Z", "to": to, "why": why});
    let holders = json!([
        holder("r-9", Value::Null, Value::Null),
        holder("r-8", json!("2026-01-01T00:05:00.000Z"), json!("succeeded")),
    ]);
    let waiting: Vec<String> = (1..=7).map(|n| format!("w-{n}")).collect();
    let told = json!({"lease": {"run_id": "r-9"}, "holders": holders, "waiting": waiting});
    let fake = Fake::start(move |_| Reply::json(200, node(told.clone())));
    let done = mediator(&fake, &["node", "show", "board-1"]).expect(0);
    assert!(done.out.contains("state:      leased by r-9"), "{done:?}");
    assert!(done.out.contains("waiting:    w-1, w-2, w-3, w-4, w-5 and 2 more"), "{done:?}");
    let rows: Vec<String> =
        done.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(rows.iter().any(|row| row == "HOLDER BY WORK SINCE HELD FOR ENDED AS"), "{done:?}");
    assert!(
        rows.iter().any(|row| row.starts_with("r-9 kim gerrit:4711") && row.ends_with("it holds it now")),
        "{done:?}"
    );
    assert!(
        rows.iter().any(|row| row.starts_with("r-8 kim gerrit:4711") && row.ends_with("5 min succeeded")),
        "{done:?}"
    );
    // One of before.
    let fake = Fake::start(|_| Reply::json(200, node(json!({}))));
    let done = mediator(&fake, &["node", "show", "board-1"]).expect(0);
    assert!(!done.out.contains("HOLDER") && !done.out.contains("waiting"), "{done:?}");
}

#[test]
fn a_static_node_is_declared_and_removed() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "POST /v1/nodes" => Reply::json(200, json!({"leases": [], "renew_seconds": 20, "drain": ""})),
        "DELETE /v1/nodes/scope-1" => Reply::json(200, node(json!({}))),
        _ => Reply::problem(409, "node-leased", "run r-1 holds it"),
    });
    let add = ["node", "add", "scope-1", "--capability", "instrument,model=dho804", "--capability", "logger"];
    mediator(&fake, &[&add[..], &["--label", "bench 2"]].concat()).expect(0);
    assert_eq!(
        fake.body_of("POST /v1/nodes"),
        json!({"node_id": "scope-1", "static": true, "label": "bench 2",
               "capabilities": [{"capability": "instrument", "attrs": {"model": "dho804"}}, {"capability": "logger"}]})
    );
    assert_eq!(mediator(&fake, &["node", "remove", "scope-1"]).expect(0).out, "node scope-1 is removed\n");
    let done = mediator(&fake, &["node", "remove", "board-1"]).expect(4);
    assert!(done.err.contains("run r-1 holds it") && done.err.contains("mediator drain"), "{done:?}");
}

#[test]
fn draining_says_who_still_holds_the_node() {
    let fake = Fake::start(|asked| {
        let mode = asked.body["mode"].clone();
        Reply::json(200, node(json!({"drain": mode, "lease": {"run_id": "r-1"}})))
    });
    let done = mediator(&fake, &["drain", "board-1", "--reason", "new cable"]).expect(0);
    assert!(done.out.contains("run r-1 holds it until it ends"), "{done:?}");
    assert_eq!(fake.body_of("POST /v1/nodes/board-1/drain"), json!({"mode": "graceful", "reason": "new cable"}));
    let done = mediator(&fake, &["drain", "board-1", "--at-boundary", "--reason", "fire"]).expect(0);
    assert!(done.out.contains("ends at its next step boundary"), "{done:?}");
}

#[test]
fn lifting_a_drain_tells_when_the_owners_remains() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "DELETE /v1/nodes/board-1/drain" => Reply::json(200, node(json!({}))),
        _ => Reply::json(
            200,
            node(json!({"drain": "graceful", "drains": [{"mode": "graceful", "by": "node", "reason": "disk full"}]})),
        ),
    });
    assert_eq!(mediator(&fake, &["undrain", "board-1"]).expect(0).out, "node board-1 takes runs again\n");
    let done = mediator(&fake, &["undrain", "board-2"]).expect(0);
    assert!(done.out.contains("still drains (graceful), as its owner says: disk full"), "{done:?}");
}
