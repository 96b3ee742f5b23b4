//! `runs`, `show`.

use serde_json::json;

use crate::fake::{Fake, Reply, run};
use crate::program::mediator;

#[test]
fn runs_are_a_table_and_hostile_text_is_shown_with_escapes() {
    let fake = Fake::start(|_| {
        let ended = json!({"run_id": "r-2", "name": "x\u{1b}[2J\u{202e}", "steps": [],
            "verdict": {"kind": "step-failed", "detail": "exit code 2\nr-9 SUCCEEDED", "step": "build", "node": "b-1"}});
        let queued = json!({"run_id": "r-3", "queue": {"position": 4}});
        let runs = [run("RUNNING", json!({})), run("FAILED", ended), run("QUEUED", queued)];
        Reply::json(200, json!({"runs": runs, "next": null}))
    });
    let done = mediator(&fake, &["runs"]).expect(0);
    let lines: Vec<Vec<&str>> = done.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["RUN", "STATE", "NAME", "BY", "AGE", "WAITED", "DETAIL"]);
    assert_eq!(lines[1][..4], ["r-1", "RUNNING", "smoke", "operator"]);
    assert_eq!(lines[1].last(), Some(&"dut=board-1"));
    assert!(done.out.contains(r"x\x1b[2J\u{202e}"), "{done:?}");
    assert!(done.out.contains(r"step-failed, step build on b-1: exit code 2\nr-9 SUCCEEDED"), "{done:?}");
    assert!(lines[3].ends_with(&["position", "4"]), "{done:?}");
    assert_eq!(lines.len(), 4);
}

#[test]
fn filters_go_to_the_daemon() {
    let fake = Fake::start(|_| Reply::json(200, json!({"runs": [], "next": null})));
    let args =
        ["runs", "--state", "queued", "--work", "gerrit:4711", "--node", "b-1", "--since", "2026-01-01T00:00:00Z"];
    mediator(&fake, &[&args[..], &["--limit", "7"]].concat()).expect(0);
    assert_eq!(
        fake.asked()[0].line,
        "GET /v1/runs?limit=7&state=QUEUED&work=gerrit%3A4711&node=b-1&since=2026-01-01T00%3A00%3A00Z"
    );
}

#[test]
fn pages_are_followed_and_more_is_told() {
    let fake = Fake::start(|asked| {
        let start: usize = asked.line.split("cursor=c").nth(1).map_or(0, |at| at.parse().expect("a number"));
        let runs: Vec<_> = (start..start + 500).map(|n| json!({"run_id": format!("r-{n}")})).collect();
        Reply::json(200, json!({"runs": runs, "next": format!("c{}", start + 500)}))
    });
    let done = mediator(&fake, &["runs"]).expect(0);
    assert_eq!(done.out.lines().count(), 1001);
    assert!(done.err.contains("there are more"), "{done:?}");
    let done = mediator(&fake, &["runs", "--json", "--limit", "600"]).expect(0);
    let list: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!((list["runs"][500]["run_id"].as_str(), list["next"].as_str()), (Some("r-500"), Some("c1000")));
    assert!(fake.asked().last().expect("asked").line.contains("limit=100&cursor=c500"));
    assert_eq!(done.err, "");
}

#[test]
fn show_tells_the_whole_story() {
    let fake = Fake::start(|_| {
        let steps = json!([
            {"seq": 1, "id": "build", "kind": "run", "uses": "host", "state": "DONE", "node_id": "h-1", "attempt": 2,
             "started_at": "2026-01-01T00:00:01.000Z", "ended_at": "2026-01-01T00:00:43.000Z", "result": {"exit_code": 0}},
            {"seq": 2, "id": "look", "kind": "ask", "uses": null, "state": "FAILED", "node_id": null, "attempt": 1,
             "started_at": null, "ended_at": null, "result": {"answer": "no", "by": "kim"}},
        ]);
        let verdict = json!({"kind": "step-failed", "detail": "the answer was no", "step": "look", "node": null});
        Reply::json(200, run("FAILED", json!({"work": "gerrit:4711", "steps": steps, "verdict": verdict})))
    });
    let done = mediator(&fake, &["show", "r-1"]).expect(0);
    for part in [
        "run:       r-1",
        "state:     FAILED: step-failed, step look: the answer was no",
        "work:      gerrit:4711",
        "requires:  dut=board,model=rpi4",
        "assigned:  dut=board-1",
        "1     build  run   host  DONE    h-1   2        42 s  exit code 0",
        "'no' by kim",
    ] {
        assert!(done.out.contains(part), "{part} is not in\n{}", done.out);
    }
}

/// How long it waited, who holds what, and what is at hand.
#[test]
fn a_running_run_is_told_in_full_and_in_short() {
    let view = || {
        let step = |seq: u64, id: &str, kind: &str, state: &str, node: serde_json::Value| json!({"seq": seq, "id": id, "kind": kind, "state": state, "node_id": node, "attempt": 1});
        let steps = json!([
            step(1, "flash", "run", "CLAIMED", json!("board-1")),
            step(2, "look", "ask", "ASKED", json!(null)),
            step(3, "bench", "hold", "CLAIMED", json!(null)),
            step(4, "end", "run", "PENDING", json!("board-1")),
        ]);
        run("RUNNING", json!({"started_at": "2026-01-01T00:05:00.000Z", "steps": steps}))
    };
    let fake = Fake::start(move |asked| match asked.line.as_str() {
        "GET /v1/runs/r-1" => Reply::json(200, view()),
        _ => {
            let ended = json!({"started_at": null, "ended_at": "2026-01-01T00:02:00.000Z", "assigned": []});
            Reply::json(200, json!({"runs": [view(), run("CANCELLED", ended)], "next": null}))
        }
    });
    let done = mediator(&fake, &["show", "r-1"]).expect(0);
    assert!(done.out.contains("waited:    5 min"), "{done:?}");
    assert!(
        done.out.contains("now:       board-1 works on flash; look waits for an answer; operator holds it (bench)"),
        "{done:?}"
    );
    let done = mediator(&fake, &["runs"]).expect(0);
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(
        lines[1].contains("5 min") && lines[1].contains("dut=board-1; board-1 works on flash; look waits"),
        "{done:?}"
    );
    assert!(lines[2].contains("2 min"), "one that never started waited until its end: {done:?}");
}
