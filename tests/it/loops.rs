//! Loops: a range is done again when its last step fails, so many times in all.

use serde_json::{Value, json};

use crate::support::{Lab, on_board, one_step, requires, step, with};

fn back(id: &str, to: &str, max: i64) -> Value {
    with(step(id, "dut"), "loop", json!({"back_to": to, "max": max}))
}

fn looping(steps: Value) -> (Lab, String) {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&on_board(steps));
    (lab, run)
}

fn attempts(lab: &Lab, run: &str) -> Vec<i64> {
    lab.run(run)["steps"].as_array().expect("steps").iter().map(|s| s["attempt"].as_i64().expect("a number")).collect()
}

/// The range is set back to PENDING with the next attempt; what is outside stays as it is; no lease moves.
#[test]
fn a_failure_takes_the_range_back() {
    let (lab, run) =
        looping(json!([step("build", "dut"), step("flash", "dut"), back("verify", "flash", 3), step("end", "dut")]));
    lab.queued(&one_step());
    let nonce: String = lab.row("SELECT nonce FROM leases", [], |row| row.get(0));
    for _ in 0..2 {
        lab.work("b1", 0);
    }
    let claim = lab.claimed("b1");
    let answer = lab.report("b1", &claim, json!({"exit_code": 1})).expect(200);
    assert_eq!(answer["state"], "PENDING", "the step's state right after the report");
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("DONE PENDING PENDING PENDING", vec![1, 2, 2, 1]));
    assert_eq!(lab.run(&run)["steps"][1]["started_at"], Value::Null);
    assert_eq!(lab.row("SELECT nonce FROM leases", [], |row| row.get::<_, String>(0)), nonce);
    assert_eq!(
        lab.report("b1", &claim, json!({"exit_code": 1})).expect(200),
        answer,
        "an equal report, an equal answer"
    );
    lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    let claim = lab.claimed("b1");
    assert_eq!((&claim["id"], &claim["attempt"]), (&json!("flash"), &json!(2)));
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!((lab.work("b1", 0), lab.work("b1", 0)), ("verify".into(), "end".into()));
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// `max` attempts in all; then the step fails.
#[test]
fn a_loop_is_exhausted_after_its_attempts() {
    let (lab, run) = looping(json!([back("try", "try", 3)]));
    for attempt in 1..=3 {
        assert_eq!((lab.state(&run).as_str(), attempts(&lab, &run)), ("RUNNING", vec![attempt]));
        lab.work("b1", 1);
    }
    assert_eq!((lab.state(&run).as_str(), lab.steps(&run).as_str()), ("FAILED step-failed", "FAILED"));
}

/// A loop is tried before `allow_failure`.
#[test]
fn a_loop_comes_before_allowed_failure() {
    let (lab, run) = looping(json!([with(back("try", "try", 2), "allow_failure", true), step("end", "dut")]));
    lab.work("b1", 1);
    assert_eq!(lab.steps(&run), "PENDING PENDING");
    lab.work("b1", 1);
    assert_eq!(lab.steps(&run), "FAILED PENDING");
    assert_eq!(lab.work("b1", 0), "end");
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// A failure inside the range that is not allowed ends the run; only the last step loops.
#[test]
fn a_failure_before_the_last_step_of_a_range_ends_the_run() {
    let (lab, run) = looping(json!([step("flash", "dut"), back("verify", "flash", 3)]));
    lab.work("b1", 1);
    assert_eq!(lab.state(&run), "FAILED step-failed");
}

/// Lost work, a cancel, a restart of the agent and an expiry are no failures of a step.
#[test]
fn what_the_lab_does_is_no_failure_of_a_step() {
    let lost: fn(&Lab, &Value) = |lab, claim| drop(lab.report("b1", claim, json!({"lost": true})));
    let cancel: fn(&Lab, &Value) = |lab, claim| drop(lab.cancel(claim["run_id"].as_str().expect("a run")));
    let restart: fn(&Lab, &Value) = |lab, _| drop(lab.advert("b1", "b1-2", &["board"]));
    let expiry: fn(&Lab, &Value) = |lab, _| lab.advance(600.0);
    for (happens, state) in [
        (lost, "FAILED node-lost"),
        (cancel, "CANCELLED cancelled"),
        (restart, "FAILED agent-restarted"),
        (expiry, "FAILED node-lost"),
    ] {
        let (lab, run) = looping(json!([back("try", "try", 5)]));
        let claim = lab.claimed("b1");
        happens(&lab, &claim);
        assert_eq!((lab.state(&run).as_str(), attempts(&lab, &run)), (state, vec![1]));
    }
}

/// A question that was not accepted, a question and a command that ran out of time are.
#[test]
fn questions_and_time_outs_loop_like_any_failure() {
    let ask = json!({"id": "q", "ask": {"prompt": "?", "options": ["y", "n"], "accept": ["y"], "timeout_seconds": 10},
        "loop": {"back_to": "q", "max": 3}});
    let (lab, run) = looping(json!([ask]));
    lab.answer(&run, 1, "n").expect(200);
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("ASKED", vec![2]));
    lab.advance(10.0);
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("ASKED", vec![3]));
    lab.answer(&run, 1, "n").expect(200);
    assert_eq!(lab.state(&run), "FAILED step-failed");
    let (lab, run) = looping(json!([with(back("w", "w", 2), "timeout_seconds", 70)]));
    let first = lab.claimed("b1");
    lab.advance(100.0);
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("PENDING", vec![2]));
    lab.report("b1", &first, json!({"exit_code": 0})).problem(409, "stale-lease");
    assert_eq!(lab.claimed("b1")["attempt"], 2);
}

/// A hold of the range is opened again.
#[test]
fn a_hold_in_a_range_opens_again() {
    let (lab, run) = looping(json!([{"id": "h", "hold": {}}, back("check", "h", 2)]));
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 0})).expect(200);
    lab.work("b1", 1);
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("CLAIMED PENDING", vec![2, 2]));
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 9}))
        .problem(409, "stale-lease");
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 2, "exit_code": 0})).expect(200);
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// An acquisition of the range, and what it skipped, keep their state: the node stays held.
#[test]
fn an_acquisition_in_a_range_keeps_its_state() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("m1", &["meter"]);
    let run = lab.placed(&json!({"requires": requires(&["dut=board"]), "steps": [
        {"id": "get", "acquire": {"want": {"as": "x", "capability": "meter"}, "acquired": "use", "unavailable": "not"}},
        step("use", "x"),
        with(step("not", "dut"), "needs", json!(["get"])),
        with(back("check", "get", 2), "needs", json!(["use", "not"])),
    ]}));
    assert_eq!(lab.steps(&run), "DONE PENDING SKIPPED PENDING");
    lab.work("m1", 0);
    lab.work("b1", 1);
    assert_eq!((lab.steps(&run).as_str(), attempts(&lab, &run)), ("DONE PENDING SKIPPED PENDING", vec![1, 2, 1, 2]));
    assert_eq!(lab.holder("m1"), Some(run.clone()));
    lab.work("m1", 0);
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}
