//! Who wakes the queue: what frees something starts the waiting run before the request that caused it is answered.

use serde_json::{Value, json};

use crate::support::{Lab, advert, on_board, one_step, report, requires, result_path, step, with};

/// A lab with the board `b1` and the host `h1`, a run with these steps on both, and a run that waits for the board.
fn waiting_for_board(steps: Value) -> (Lab, String, String) {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    let holder = lab.placed(&json!({"requires": requires(&["dut=board", "pc=host"]), "steps": steps}));
    let waiting = lab.queued(&one_step());
    (lab, holder, waiting)
}

/// Reads the row itself, beside the daemon: what is there the moment the answer has come.
#[track_caller]
fn has_started(lab: &Lab, run: &str) {
    let state: String = lab.row("SELECT state FROM runs WHERE run_id = ?1", [run], |row| row.get(0));
    assert_eq!(state, "RUNNING", "it was freed, and nobody was woken");
}

#[track_caller]
fn still_waits(lab: &Lab, run: &str) {
    let state: String = lab.row("SELECT state FROM runs WHERE run_id = ?1", [run], |row| row.get(0));
    assert_eq!(state, "QUEUED");
}

fn ask(id: &str) -> Value {
    json!({"id": id, "ask": {"prompt": "?", "options": ["yes", "no"], "accept": ["yes"]}})
}

/// I6
#[test]
fn a_result_that_ends_the_run_wakes() {
    for outcome in [json!({"exit_code": 0}), json!({"exit_code": 1}), json!({"error": "no"}), json!({"lost": true})] {
        let (lab, _, waiting) = waiting_for_board(json!([step("work", "dut")]));
        let claim = lab.claimed("b1");
        lab.report("b1", &claim, outcome).expect(200);
        has_started(&lab, &waiting);
    }
}

/// I6
#[test]
fn a_result_that_releases_a_role_wakes_while_its_run_goes_on() {
    for (outcome, allow) in [(0, false), (1, true)] {
        let first = with(with(step("work", "dut"), "release", json!(["dut"])), "allow_failure", allow);
        let (lab, holder, waiting) = waiting_for_board(json!([first, step("more", "pc")]));
        lab.work("b1", outcome);
        has_started(&lab, &waiting);
        assert_eq!(lab.state(&holder), "RUNNING");
    }
}

/// I6
#[test]
fn an_answer_that_ends_the_run_or_releases_wakes() {
    for (answer, last) in [("yes", true), ("no", true), ("yes", false)] {
        let question = with(ask("q"), "release", json!(["dut"]));
        let steps = if last { json!([ask("q")]) } else { json!([question, step("more", "pc")]) };
        let (lab, holder, waiting) = waiting_for_board(steps);
        lab.answer(&holder, 1, answer).expect(200);
        has_started(&lab, &waiting);
    }
}

/// I6
#[test]
fn a_cancel_wakes() {
    let (lab, holder, waiting) = waiting_for_board(json!([step("work", "dut")]));
    lab.cancel(&holder);
    has_started(&lab, &waiting);
}

/// I6
#[test]
fn a_hold_that_is_over_wakes() {
    let (lab, holder, waiting) = waiting_for_board(json!([{"id": "h", "hold": {}}]));
    lab.post(&format!("/v1/runs/{holder}/steps/1/result"), &json!({"attempt": 1, "exit_code": 0})).expect(200);
    has_started(&lab, &waiting);
}

/// I6: what ends because a time has come wakes in the same pass.
#[test]
fn every_deadline_of_the_reaper_that_frees_something_wakes() {
    let timed = |mut step: Value, kind: &str| {
        step[kind]["timeout_seconds"] = json!(30);
        step
    };
    let hold = || json!({"id": "h", "hold": {}});
    // A question and a hold that run out; with a release behind them they free while the run goes on.
    for (steps, seconds) in [
        (json!([timed(ask("q"), "ask")]), 31.0),
        (
            json!([
                with(with(timed(ask("q"), "ask"), "allow_failure", true), "release", json!(["dut"])),
                step("m", "pc")
            ]),
            31.0,
        ),
        (json!([timed(hold(), "hold")]), 91.0),
        (json!([hold()]), 121.0),
    ] {
        let (lab, _, waiting) = waiting_for_board(steps);
        lab.pass(seconds, &["b1", "h1"]);
        has_started(&lab, &waiting);
    }
    // A command that ran over its time, and the limit of a run.
    for contract in [with(step("w", "dut"), "timeout_seconds", 70), step("w", "dut")] {
        let lab = Lab::new();
        lab.node("b1", &["board"]);
        lab.placed(&with(on_board(json!([contract])), "limit_seconds", 100));
        let waiting = lab.queued(&one_step());
        lab.claimed("b1");
        lab.pass(101.0, &["b1"]);
        has_started(&lab, &waiting);
    }
    // A lease that ran out on another node of the run.
    let (lab, holder, waiting) = waiting_for_board(json!([step("work", "dut")]));
    lab.pass(601.0, &["b1"]);
    has_started(&lab, &waiting);
    assert_eq!(lab.state(&holder), "FAILED node-lost");
}

/// I6
#[test]
fn an_agent_that_comes_back_as_another_instance_wakes() {
    let (lab, holder, waiting) = waiting_for_board(json!([step("work", "dut")]));
    lab.claimed("b1");
    lab.advert("b1", "b1-2", &["board"]);
    has_started(&lab, &waiting);
    assert_eq!(lab.state(&holder), "FAILED agent-restarted");
}

/// I6
#[test]
fn a_drain_at_the_boundary_that_ends_a_run_wakes() {
    let by_operator: fn(&Lab) = |lab| {
        lab.post("/v1/nodes/h1/drain", &json!({"mode": "at-boundary"})).expect(200);
    };
    let by_owner: fn(&Lab) = |lab| {
        let body = with(advert("h1", "h1-1", &["host"]), "policy", json!({"drain": "at-boundary"}));
        lab.post("/v1/nodes", &body).expect(200);
    };
    for drain in [by_operator, by_owner] {
        let (lab, holder, waiting) = waiting_for_board(json!([step("work", "dut")]));
        drain(&lab);
        has_started(&lab, &waiting);
        assert_eq!(lab.state(&holder), "CANCELLED drained");
    }
}

/// I6
#[test]
fn a_lifted_drain_wakes_by_either_side() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    let waiting = lab.queued(&one_step());
    lab.delete("/v1/nodes/b1/drain").expect(200);
    has_started(&lab, &waiting);
    let drained = with(advert("b1", "b1-1", &["board"]), "policy", json!({"drain": "graceful", "reason": "mine"}));
    lab.post("/v1/nodes", &drained).expect(200);
    lab.work("b1", 0);
    let waiting = lab.queued(&one_step());
    lab.node("b1", &["board"]);
    has_started(&lab, &waiting);
}

/// I6
#[test]
fn room_that_appears_wakes() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.placed(&one_step());
    let waiting = lab.queued(&one_step());
    lab.node("b2", &["board"]);
    has_started(&lab, &waiting);
    let waiting = lab.queued(&one_step());
    lab.node("h1", &["host"]);
    still_waits(&lab, &waiting);
    lab.node("h1", &["host", "board"]);
    has_started(&lab, &waiting);
    // Static nodes are room for whatever needs no agent.
    let held = json!({"requires": requires(&["p=board"]), "steps": [{"id": "h", "hold": {}}]});
    let waiting = lab.queued(&held);
    lab.static_node("s1", &["board"]);
    has_started(&lab, &waiting);
}

/// I6: a node that was silent is back with its advert, whether the reaper has marked it or not.
#[test]
fn a_node_back_after_silence_wakes() {
    for marked in [true, false] {
        let lab = Lab::new();
        lab.node("b1", &["board"]);
        lab.clock.advance(std::time::Duration::from_secs(60));
        if marked {
            lab.settle();
            assert_eq!(lab.events("node.silent"), 1);
        }
        let waiting = lab.queued(&one_step());
        lab.heartbeat("b1");
        has_started(&lab, &waiting);
    }
}

/// I6: once at start-up, for whatever was missed.
#[test]
fn a_start_wakes() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    let waiting = lab.queued(&one_step());
    lab.stop();
    lift_unseen(&lab);
    lab.start();
    has_started(&lab, &waiting);
}

/// Frees `b1` behind the daemon's back.
fn lift_unseen(lab: &Lab) {
    let lift = "UPDATE nodes SET operator_mode = NULL, operator_by = NULL, operator_since = NULL WHERE node_id = 'b1'";
    assert_eq!(lab.outside().execute(lift, []).expect("the drain is lifted"), 1);
}

/// A heartbeat, a rollback, a claim, a question and a plain result free nothing and cost no sweep.
#[test]
fn what_frees_nothing_wakes_nobody() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    let waiting = lab.queued(&one_step());
    let again = with(step("again", "pc"), "loop", json!({"back_to": "again", "max": 3}));
    let other =
        lab.placed(&json!({"requires": requires(&["pc=host"]), "steps": [again, step("then", "pc"), ask("q")]}));
    lift_unseen(&lab);
    lab.heartbeat("h1");
    still_waits(&lab, &waiting);
    lab.work("h1", 1);
    assert_eq!(lab.run(&other)["steps"][0]["attempt"], 2, "rolled back");
    still_waits(&lab, &waiting);
    lab.work("h1", 0);
    lab.work("h1", 0);
    assert_eq!(lab.steps(&other), "DONE DONE ASKED");
    lab.advance(10.0);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    lift_unseen(&lab);
    still_waits(&lab, &waiting);
    lab.answer(&other, 3, "yes").expect(200);
    has_started(&lab, &waiting);
}

/// I7: what was freed belongs to the queue; a submission that waits in the same group of writes comes after the wake.
#[test]
fn no_newer_submission_slips_in_between() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let mut holder = lab.placed(&one_step());
    let mut waiting = lab.queued(&one_step());
    for round in 0..40 {
        // The writer is kept busy until both wait, so that they share a group; in some rounds they arrive as they like.
        let busy = lab.hold_writer();
        let cancel = lab.park("POST", &format!("/v1/runs/{holder}/cancel"), &json!({}));
        let submit = lab.park("POST", "/v1/runs", &one_step());
        if round % 4 > 0 {
            lab.let_wait();
        }
        drop(busy);
        let newer = lab.join(submit).expect(202);
        lab.join(cancel).expect(200);
        has_started(&lab, &waiting);
        holder = waiting;
        waiting = newer["run_id"].as_str().expect("an id").to_owned();
        still_waits(&lab, &waiting);
    }
}

/// I7: an acquire takes no node that became free in its own transaction, nor before the queue was asked.
#[test]
fn an_acquire_does_not_take_what_its_own_result_freed() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    let run = lab.placed(&json!({
        "requires": requires(&["dut=board", "pc=host"]),
        "steps": [
            with(step("work", "dut"), "release", json!(["dut"])),
            {"id": "get", "acquire": {"want": {"as": "x", "capability": "board"}, "acquired": "use", "unavailable": "not"}},
            step("use", "x"),
            with(step("not", "pc"), "needs", json!(["get"])),
        ],
    }));
    let waiting = lab.queued(&one_step());
    lab.work("b1", 0);
    assert_eq!(lab.run(&run)["steps"][1]["result"], json!({"acquired": false, "node_id": null}));
    has_started(&lab, &waiting);
    assert_eq!(lab.steps(&run), "DONE DONE SKIPPED PENDING");
}

/// With the next claim in the result's answer, an agent learns of the run that the wake has started.
#[test]
fn a_result_with_a_claim_is_answered_after_the_wake() {
    let (lab, _, waiting) = waiting_for_board(json!([step("work", "dut")]));
    let claim = lab.claimed("b1");
    let body = with(report("b1", &claim, json!({"exit_code": 0})), "instance", "b1-1");
    let answer = lab.post(&format!("{}?claim=true", result_path(&claim)), &body).expect(200);
    assert_eq!(answer["claim"]["run_id"], json!(waiting));
}

/// "A wake that fails is logged, never becomes a request's error, and stays owed: the next write of any kind repeats it
/// first." What must not come before it is told to come again.
#[test]
fn a_wake_that_failed_is_repeated_by_the_next_write() {
    let (lab, holder, waiting) = waiting_for_board(json!([step("work", "dut")]));
    let plant = "CREATE TRIGGER plant BEFORE UPDATE OF state ON runs WHEN NEW.state = 'RUNNING'
        BEGIN SELECT RAISE(ROLLBACK, 'planted'); END";
    lab.outside().execute_batch(plant).expect("a trigger");
    lab.cancel(&holder);
    still_waits(&lab, &waiting);
    // It fails again, and again it is nobody's error.
    lab.heartbeat("h1");
    still_waits(&lab, &waiting);
    lab.submit(&one_step()).problem(503, "unavailable");
    lab.outside().execute_batch("DROP TRIGGER plant").expect("no trigger");
    lab.heartbeat("h1");
    has_started(&lab, &waiting);
}
