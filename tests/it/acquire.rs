//! Acquiring one more node in the middle of a run: a value, never a failure, never waiting.

use serde_json::{Value, json};

use crate::support::{Lab, requires, step, with};

/// A run on a board that wants a meter: measures if it has one, notes it otherwise, and reports in the end.
fn wants(want: Value) -> Value {
    json!({"requires": requires(&["dut=board"]), "steps": [
        {"id": "get", "acquire": {"want": want, "acquired": "measure", "unavailable": "note"}},
        with(step("measure", "scope"), "release", json!(["scope"])),
        with(step("note", "dut"), "needs", json!(["get"])),
        with(step("report", "dut"), "needs", json!(["measure", "note"])),
    ]})
}

fn meter() -> Value {
    json!({"as": "scope", "capability": "meter"})
}

fn lab() -> Lab {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab
}

/// Had: the node is leased in the same commit, the other way is skipped, and it is given back by its release.
#[test]
fn a_node_that_is_free_is_had() {
    let lab = lab();
    lab.node("m1", &["meter range=10"]);
    let run = lab.placed(&wants(meter()));
    let view = lab.run(&run);
    assert_eq!(view["steps"][0]["result"], json!({"acquired": true, "node_id": "m1"}));
    assert_eq!(lab.steps(&run), "DONE PENDING SKIPPED PENDING");
    assert_eq!(
        view["assigned"][1],
        json!({"as": "scope", "nodes": [{"node_id": "m1", "label": null, "attrs": {"range": "10"}}]})
    );
    assert_eq!(lab.holder("m1"), Some(run.clone()));
    let claim = lab.claimed("m1");
    assert_eq!(claim["assigned"].as_array().map(Vec::len), Some(2));
    lab.report("m1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.holder("m1"), None, "released");
    assert_eq!(lab.run(&run)["assigned"].as_array().map(Vec::len), Some(2), "and still shown");
    assert_eq!(lab.work("b1", 0), "report");
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// Not had, for whatever reason: the other way is followed, and nothing is waited for.
#[test]
fn a_node_that_is_not_free_is_not_had() {
    let none: fn(&Lab) = |_| ();
    let busy: fn(&Lab) = |lab| {
        lab.node("m1", &["meter"]);
        lab.placed(&json!({"requires": requires(&["m=meter"]), "steps": [{"id": "h", "hold": {}}]}));
    };
    let draining: fn(&Lab) = |lab| {
        lab.node("m1", &["meter"]);
        lab.post("/v1/nodes/m1/drain", &json!({"mode": "graceful"})).expect(200);
    };
    let silent: fn(&Lab) = |lab| {
        lab.node("m1", &["meter"]);
        lab.advance(60.0);
        lab.heartbeat("b1");
    };
    // A command runs on it, so it needs an agent.
    let without_agent: fn(&Lab) = |lab| drop(lab.static_node("m1", &["meter"]));
    for prepare in [none, busy, draining, silent, without_agent] {
        let lab = lab();
        prepare(&lab);
        let run = lab.placed(&wants(meter()));
        assert_eq!(lab.run(&run)["steps"][0]["result"], json!({"acquired": false, "node_id": null}));
        assert_eq!(lab.steps(&run), "DONE SKIPPED PENDING PENDING");
        assert_eq!((lab.work("b1", 0), lab.work("b1", 0)), ("note".into(), "report".into()));
        assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
    }
}

/// A node that the run already holds does not count.
#[test]
fn a_node_that_the_run_holds_is_not_acquired() {
    let lab = Lab::new();
    lab.node("b1", &["board", "meter"]);
    let run = lab.placed(&wants(meter()));
    assert_eq!(lab.steps(&run), "DONE SKIPPED PENDING PENDING");
    lab.node("b2", &["board"]);
    let run = lab.placed(&wants(json!({"as": "scope", "capability": "board"})));
    assert_eq!(lab.holder("b2"), Some(run.clone()));
    assert_eq!(lab.steps(&run), "DONE SKIPPED PENDING PENDING");
}

/// One that would exceed `lease.max_per_run` is not had.
#[test]
fn an_acquisition_stays_within_the_width_of_a_run() {
    for (most, steps) in [(1, "DONE SKIPPED PENDING PENDING"), (2, "DONE PENDING SKIPPED PENDING")] {
        let lab = Lab::with(|settings| settings.lease_max_per_run = most);
        lab.node("b1", &["board"]);
        lab.node("m1", &["meter"]);
        let run = lab.placed(&wants(meter()));
        assert_eq!(lab.steps(&run), steps);
    }
}

/// The skip spreads along `needs` to what needs only skipped steps, and stops where one way is left.
#[test]
fn the_way_not_taken_is_skipped_as_far_as_it_goes() {
    let lab = lab();
    let run = lab.placed(&json!({"requires": requires(&["dut=board"]), "steps": [
        {"id": "get", "acquire": {"want": meter(), "acquired": "a", "unavailable": "n"}},
        step("a", "scope"),
        step("b", "scope"),
        {"id": "q", "ask": {"prompt": "?"}},
        with(step("n", "dut"), "needs", json!(["get"])),
        with(step("end", "dut"), "needs", json!(["q", "n"])),
    ]}));
    assert_eq!(lab.steps(&run), "DONE SKIPPED SKIPPED SKIPPED PENDING PENDING");
    lab.work("b1", 0);
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// I4: a waiting run acquires nothing; it does so at its start, and takes part in the order of the sweep.
#[test]
fn a_waiting_run_acquires_when_it_starts() {
    let lab = lab();
    lab.node("m1", &["meter"]);
    let first = lab.placed(&json!({"requires": requires(&["dut=board"]), "steps": [step("w", "dut")]}));
    let waiting = lab.queued(&wants(meter()));
    let behind = lab.queued(&json!({"requires": requires(&["dut=board", "m=meter"]), "steps": [step("w", "dut")]}));
    assert_eq!(lab.holder("m1"), None);
    lab.cancel(&first);
    assert_eq!((lab.holder("m1"), lab.state(&behind)), (Some(waiting.clone()), "QUEUED".into()));
    lab.cancel(&waiting);
    assert_eq!(lab.state(&behind), "RUNNING");
}

/// What was decided stays decided.
#[test]
fn an_acquisition_is_decided_once() {
    let lab = lab();
    let run = lab.placed(&wants(meter()));
    lab.node("m1", &["meter"]);
    assert_eq!((lab.steps(&run).as_str(), lab.holder("m1")), ("DONE SKIPPED PENDING PENDING", None));
}

/// An acquired node ends with its run like any other, and its own step counts like any other.
#[test]
fn an_acquired_node_is_freed_with_its_run() {
    let lab = lab();
    lab.node("m1", &["meter"]);
    let run = lab.placed(&wants(meter()));
    lab.work("m1", 1);
    assert_eq!(lab.state(&run), "FAILED step-failed");
    assert_eq!((lab.holder("b1"), lab.holder("m1")), (None, None));
    assert_eq!(lab.run(&run)["verdict"]["node"], "m1");
}

/// Nobody reports on an acquisition.
#[test]
fn a_result_on_an_acquisition_is_refused() {
    let lab = lab();
    let run = lab.placed(&wants(meter()));
    let body = json!({"attempt": 1, "exit_code": 0});
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &body).problem(409, "stale-lease");
    lab.answer(&run, 1, "yes").problem(409, "not-asked");
}
