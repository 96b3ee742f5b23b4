//! Draining: by the owner and by an operator, gracefully and at the step boundary.

use serde_json::{Value, json};

use crate::support::{Lab, advert, on_board, one_step, requires, step, with};

fn drain(lab: &Lab, node: &str, mode: &str) -> Value {
    lab.post(&format!("/v1/nodes/{node}/drain"), &json!({"mode": mode, "reason": "new firmware"})).expect(200)
}

fn owner(lab: &Lab, node: &str, mode: &str) -> Value {
    let policy = json!({"drain": mode, "reason": "loose cable"});
    lab.post("/v1/nodes", &with(advert(node, &format!("{node}-1"), &["board"]), "policy", policy)).expect(200)
}

fn lab() -> Lab {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab
}

fn ask(id: &str) -> Value {
    json!({"id": id, "ask": {"prompt": "?"}, "needs": []})
}

/// Each side lifts only its own; the strictest mode wins; both are shown with reason, author and time.
#[test]
fn a_node_drains_while_one_side_says_so() {
    let mut lab = lab();
    drain(&lab, "b1", "graceful");
    lab.advance(5.0);
    assert_eq!(owner(&lab, "b1", "at-boundary")["drain"], "at-boundary");
    let shown = lab.show_node("b1");
    assert_eq!(shown["drain"], "at-boundary");
    assert_eq!(
        shown["drains"],
        json!([
        {"mode": "at-boundary", "by": "node", "reason": "loose cable", "since": "2027-01-15T08:00:05.000Z"},
        {"mode": "graceful", "by": "operator", "reason": "new firmware", "since": "2027-01-15T08:00:00.000Z"}])
    );
    lab.queued(&one_step());
    let left = lab.delete("/v1/nodes/b1/drain").expect(200);
    assert_eq!(
        (&left["drain"], left["drains"].as_array().map(Vec::len)),
        (&json!("at-boundary"), Some(1)),
        "the owner's remains"
    );
    lab.restart();
    assert_eq!(lab.show_node("b1")["drain"], "at-boundary", "kept over a restart of the daemon");
    drain(&lab, "b1", "graceful");
    lab.advert("b1", "b1-2", &["board"]);
    assert_eq!(lab.show_node("b1")["drain"], "graceful", "the operator's is kept over a restart of the agent");
    assert_eq!(lab.number("SELECT count(*) FROM leases"), 0);
    lab.delete("/v1/nodes/b1/drain").expect(200);
    assert!(lab.holder("b1").is_some());
}

/// Gracefully: no new lease, and its run goes on to its end.
#[test]
fn a_graceful_drain_lets_the_run_end() {
    let lab = lab();
    let run =
        lab.placed(&on_board(json!([step("a", "dut"), ask("q"), with(step("b", "dut"), "needs", json!(["a", "q"]))])));
    drain(&lab, "b1", "graceful");
    let waiting = lab.queued(&one_step());
    lab.work("b1", 0);
    lab.answer(&run, 2, "yes").expect(200);
    lab.work("b1", 0);
    assert_eq!((lab.state(&run).as_str(), lab.state(&waiting).as_str()), ("SUCCEEDED succeeded", "QUEUED"));
}

/// At the boundary: nothing begins any more, and the run ends with the first commit after which nothing is in hand.
#[test]
fn a_drain_at_the_boundary_ends_the_run_at_its_next_step() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([step("a", "dut"), step("b", "dut")])));
    let claim = lab.claimed("b1");
    drain(&lab, "b1", "at-boundary");
    assert_eq!(lab.state(&run), "RUNNING", "a step in hand goes on");
    assert_eq!(lab.claimed("b1")["attempt"], claim["attempt"], "and is told again");
    assert_eq!(lab.report("b1", &claim, json!({"exit_code": 0})).expect(200)["state"], "DONE");
    let verdict = lab.run(&run)["verdict"].clone();
    assert_eq!((lab.state(&run).as_str(), lab.steps(&run).as_str()), ("CANCELLED drained", "DONE CANCELLED"));
    assert_eq!(verdict["node"], "b1");
    let detail = verdict["detail"].as_str().expect("a text");
    assert!(detail.contains("b1") && detail.contains("operator") && detail.contains("new firmware"), "{detail}");
    assert_eq!(lab.holder("b1"), None);
}

/// Unless that commit ends it otherwise.
#[test]
fn a_run_that_ends_anyhow_is_not_called_drained() {
    for (exit_code, state) in [(0, "SUCCEEDED succeeded"), (1, "FAILED step-failed")] {
        let lab = lab();
        let run = lab.placed(&one_step());
        let claim = lab.claimed("b1");
        drain(&lab, "b1", "at-boundary");
        lab.report("b1", &claim, json!({"exit_code": exit_code})).expect(200);
        assert_eq!(lab.state(&run), state);
    }
}

/// With nothing in hand the run ends in the drain's own commit, whichever side says it.
#[test]
fn a_drain_at_the_boundary_ends_an_idle_run_at_once() {
    let lab = lab();
    let run = lab.placed(&one_step());
    drain(&lab, "b1", "at-boundary");
    assert_eq!(lab.state(&run), "CANCELLED drained");
    lab.delete("/v1/nodes/b1/drain").expect(200);
    let run = lab.placed(&one_step());
    assert_eq!(owner(&lab, "b1", "at-boundary")["leases"], json!([]));
    assert_eq!(lab.state(&run), "CANCELLED drained");
    let detail = lab.run(&run)["verdict"]["detail"].to_string();
    assert!(detail.contains("loose cable"), "{detail}");
}

/// An open question delays nothing; it can be answered until the run ends, and is cancelled with it.
#[test]
fn an_open_question_does_not_delay_a_drain() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([
        ask("q"),
        with(step("a", "dut"), "needs", json!([])),
        ask("r"),
        with(ask("late"), "needs", json!(["q"]))
    ])));
    let claim = lab.claimed("b1");
    drain(&lab, "b1", "at-boundary");
    assert_eq!(lab.steps(&run), "ASKED CLAIMED ASKED PENDING");
    lab.answer(&run, 1, "yes").expect(200);
    assert_eq!(lab.steps(&run), "DONE CLAIMED ASKED PENDING", "no question is raised any more");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(
        (lab.state(&run).as_str(), lab.steps(&run).as_str()),
        ("CANCELLED drained", "DONE DONE CANCELLED CANCELLED")
    );
    assert_eq!(lab.get("/v1/asks").expect(200)["asks"], json!([]));
}

/// An open hold delays it.
#[test]
fn an_open_hold_delays_a_drain() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([{"id": "h", "hold": {}}, step("a", "dut")])));
    drain(&lab, "b1", "at-boundary");
    assert_eq!(lab.state(&run), "RUNNING");
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 0})).expect(200);
    assert_eq!(lab.state(&run), "CANCELLED drained");
}

/// While it drains at the boundary no other step is claimed on any of its nodes, and nothing is acquired.
#[test]
fn nothing_of_a_run_begins_while_one_of_its_nodes_drains_at_the_boundary() {
    let lab = lab();
    lab.node("h1", &["host"]);
    lab.node("h2", &["host"]);
    let run = lab.placed(&json!({"requires": requires(&["dut=board", "pc=host"]), "steps": [
        step("a", "dut"),
        with(step("b", "pc"), "needs", json!([])),
        {"id": "h", "hold": {}, "needs": ["b"]},
        {"id": "get", "acquire": {"want": {"as": "x", "capability": "host"}, "acquired": "use", "unavailable": "not"}, "needs": ["b"]},
        step("use", "x"),
        with(step("not", "pc"), "needs", json!(["get"])),
    ]}));
    let (first, second) = (lab.claimed("b1"), lab.claimed("h1"));
    drain(&lab, "b1", "at-boundary");
    lab.report("h1", &second, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.steps(&run), "CLAIMED DONE PENDING PENDING PENDING PENDING");
    assert_eq!(lab.holder("h2"), None);
    assert!(lab.claim("h1").is_none());
    // Lifted first: what became ready meanwhile begins in the lifting commit.
    lab.delete("/v1/nodes/b1/drain").expect(200);
    assert_eq!(lab.steps(&run), "CLAIMED DONE CLAIMED DONE PENDING SKIPPED");
    assert_eq!(lab.holder("h2"), Some(run.clone()));
    lab.report("b1", &first, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.work("h2", 0), "use");
}

/// A claim that was parked for a step which the drain kept back is woken when it is lifted.
#[test]
fn a_lifted_drain_wakes_who_waits_for_a_step_that_was_ready_before() {
    let by_operator: fn(&Lab, bool) = |lab, on| {
        if on {
            drain(lab, "b1", "at-boundary");
        } else {
            lab.delete("/v1/nodes/b1/drain").expect(200);
        }
    };
    let by_owner: fn(&Lab, bool) = |lab, on| drop(owner(lab, "b1", if on { "at-boundary" } else { "" }));
    for set in [by_operator, by_owner] {
        let lab = lab();
        lab.node("h1", &["host"]);
        let other = with(step("b", "pc"), "needs", json!([]));
        lab.placed(&json!({"requires": requires(&["dut=board", "pc=host"]), "steps": [step("a", "dut"), other]}));
        lab.claimed("b1");
        set(&lab, true);
        let parked = lab.park("POST", "/v1/nodes/h1/claim?wait_seconds=30", &json!({"instance": "h1-1"}));
        assert!(lab.is_parked(&parked));
        set(&lab, false);
        assert!(!lab.is_parked(&parked), "told by the event, not by the end of its wait");
        assert_eq!(lab.join(parked).expect(200)["id"], "b");
    }
}

/// From at-boundary to graceful is a lifting, too.
#[test]
fn a_drain_made_gentler_lets_the_run_go_on() {
    for by_owner in [false, true] {
        let lab = lab();
        let run =
            lab.placed(&on_board(json!([ask("q"), with(step("a", "dut"), "needs", json!([])), step("b", "dut")])));
        let claim = lab.claimed("b1");
        let set = |mode: &str| if by_owner { owner(&lab, "b1", mode) } else { drain(&lab, "b1", mode) };
        set("at-boundary");
        set("graceful");
        lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
        assert_eq!(lab.work("b1", 0), "b");
        lab.answer(&run, 1, "yes").expect(200);
        assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
    }
}

/// What breaks the grammar, or names no node, is refused.
#[test]
fn a_bad_drain_is_refused() {
    let lab = lab();
    for (body, path) in [
        (json!({}), "/mode"),
        (json!({"mode": "now"}), "/mode"),
        (json!({"mode": ""}), "/mode"),
        (json!({"mode": "graceful", "reason": 5}), "/reason"),
        (json!({"mode": "graceful", "why": ""}), "/why"),
    ] {
        assert_eq!(lab.post("/v1/nodes/b1/drain", &body).problem(400, "invalid-request")["path"], path);
    }
    lab.post("/v1/nodes/none/drain", &json!({"mode": "graceful"})).problem(404, "not-found");
    lab.delete("/v1/nodes/none/drain").problem(404, "not-found");
    lab.delete("/v1/nodes/b1/drain").expect(200);
    assert_eq!(lab.events("node.undrained"), 0, "there was nothing to lift");
}
