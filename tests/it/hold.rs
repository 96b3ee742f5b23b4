//! Holds: the submitter itself works with the run's nodes, and says that it is still there.

use serde_json::{Value, json};

use crate::support::{Lab, on_board, one_step, requires, step, with};

fn hold() -> Value {
    json!({"id": "h", "hold": {}})
}

fn held(contract: &Value) -> (Lab, String) {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(contract);
    (lab, run)
}

fn renew(lab: &Lab, run: &str) -> Value {
    lab.post(&format!("/v1/runs/{run}/renew"), &json!({})).expect(200)
}

fn close(lab: &Lab, run: &str, seq: i64, outcome: Value) -> Value {
    lab.post(&format!("/v1/runs/{run}/steps/{seq}/result"), &with(outcome, "attempt", 1)).expect(200)
}

/// A hold opens in the commit that made it ready, and its result decides over the run.
#[test]
fn a_hold_opens_at_once_and_ends_with_its_result() {
    for (outcome, step_state, state) in [
        (json!({"exit_code": 0}), "DONE", "SUCCEEDED succeeded"),
        (json!({"exit_code": 7}), "FAILED", "FAILED step-failed"),
        (json!({"error": "cannot start"}), "FAILED", "FAILED step-failed"),
    ] {
        let (lab, run) = held(&on_board(json!([hold()])));
        assert_eq!(lab.steps(&run), "CLAIMED");
        let answer = close(&lab, &run, 1, outcome.clone());
        assert_eq!(answer, json!({"run_id": run, "seq": 1, "attempt": 1, "state": step_state, "claim": null}));
        assert_eq!(lab.state(&run), state);
        assert_eq!(close(&lab, &run, 1, outcome), answer, "an equal report, an equal answer");
        lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 9}))
            .problem(409, "stale-lease");
    }
}

/// A hold is not lost, and no node reports on it.
#[test]
fn a_holds_result_is_the_holders() {
    let (lab, run) = held(&on_board(json!([hold(), step("w", "dut")])));
    let path = format!("/v1/runs/{run}/steps/1/result");
    lab.post(&path, &json!({"attempt": 1, "lost": true})).problem(400, "invalid-request");
    lab.post(&path, &json!({"attempt": 2, "exit_code": 0})).problem(409, "stale-lease");
    let nonce: String = lab.row("SELECT nonce FROM leases", [], |row| row.get(0));
    lab.post(&path, &json!({"attempt": 1, "exit_code": 0, "node_id": "b1", "nonce": nonce}))
        .problem(409, "stale-lease");
    lab.post(&format!("{path}?claim=true"), &json!({"attempt": 1, "exit_code": 0, "instance": "b1-1"}))
        .problem(400, "invalid-request");
    assert_eq!(lab.steps(&run), "CLAIMED PENDING");
    assert!(lab.claim("b1").is_none(), "a hold is not for its agent");
}

/// The holder has a deadline of its own, from the opening and from each renewal; then it is gone.
#[test]
fn a_holder_that_is_not_heard_of_loses_the_run() {
    let allowed = with(hold(), "allow_failure", true);
    let (lab, run) = held(&on_board(json!([allowed])));
    lab.advance(119.0);
    assert_eq!(
        renew(&lab, &run),
        json!({"state": "RUNNING", "not_after": "2027-01-15T08:03:59.000Z", "ttl_seconds": 120})
    );
    lab.advance(119.9);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(0.1);
    assert_eq!((lab.state(&run).as_str(), lab.holder("b1")), ("FAILED holder-gone", None));
    lab.post(&format!("/v1/runs/{run}/renew"), &json!({})).problem(409, "stale-lease");
    lab.post("/v1/runs/none/renew", &json!({})).problem(404, "not-found");
}

/// With no such deadline running a renewal changes nothing and says so.
#[test]
fn a_renewal_without_a_deadline_says_nothing() {
    let (lab, run) = held(&one_step());
    assert_eq!(renew(&lab, &run), json!({"state": "RUNNING", "not_after": null, "ttl_seconds": null}));
    let waiting = lab.queued(&on_board(json!([hold()])));
    assert_eq!(renew(&lab, &waiting), json!({"state": "QUEUED", "not_after": null, "ttl_seconds": null}));
    lab.advance(500.0);
    assert_eq!(lab.state(&waiting), "QUEUED");
    lab.post(&format!("/v1/runs/{run}/renew"), &json!({"x": 1})).problem(400, "invalid-request");
}

/// While a hold is open the run's leases are not reaped; when it closes each gets a full lifetime.
#[test]
fn an_open_hold_spares_the_leases() {
    let (lab, run) = held(&on_board(json!([hold(), step("w", "dut")])));
    for _ in 0..20 {
        lab.advance(100.0);
        renew(&lab, &run);
    }
    assert_eq!(lab.state(&run), "RUNNING");
    close(&lab, &run, 1, json!({"exit_code": 0}));
    assert_eq!(lab.show_node("b1")["lease"]["ttl_seconds"], 600);
    assert_eq!(renew(&lab, &run)["not_after"], Value::Null, "nobody has to be there any more");
    lab.advance(599.0);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(1.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
}

/// Over `timeout_seconds` the reaper fails the step at once, renewed or not; and a failure may be allowed.
#[test]
fn a_hold_ends_with_its_time() {
    let timed = json!({"id": "h", "hold": {"timeout_seconds": 100}});
    for (allow, state) in [(false, "FAILED step-failed"), (true, "RUNNING")] {
        let (lab, run) = held(&on_board(json!([with(timed.clone(), "allow_failure", allow), step("w", "dut")])));
        lab.advance(99.0);
        renew(&lab, &run);
        assert_eq!(lab.steps(&run), "CLAIMED PENDING");
        lab.advance(1.0);
        assert_eq!(lab.state(&run), state);
    }
}

/// Attended: the deadline runs from submission; a run still waiting then is cancelled, and holds nothing for a dead client.
#[test]
fn an_attended_run_ends_with_its_clients_silence() {
    let attended = with(on_board(json!([hold()])), "attended", true);
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let first = lab.placed(&one_step());
    let (silent, renewed) = (lab.queued(&attended), lab.queued(&attended));
    lab.advance(60.0);
    renew(&lab, &renewed);
    lab.heartbeat("b1");
    lab.advance(59.0);
    assert_eq!(lab.state(&silent), "QUEUED");
    lab.advance(1.0);
    assert_eq!((lab.state(&silent).as_str(), lab.state(&renewed).as_str()), ("CANCELLED holder-gone", "QUEUED"));
    lab.heartbeat("b1");
    lab.cancel(&first);
    assert_eq!((lab.state(&renewed).as_str(), lab.steps(&renewed).as_str()), ("RUNNING", "CLAIMED"));
    assert_eq!(
        lab.row("SELECT holder_until FROM runs WHERE run_id = ?1", [&renewed], |row| row.get::<_, i64>(0)),
        crate::support::START + 180_000,
        "neither promotion nor opening moves it"
    );
    lab.advance(60.0);
    assert_eq!(lab.state(&renewed), "FAILED holder-gone");
}

/// Attended until the last hold has closed, also between two.
#[test]
fn an_attended_run_is_attended_until_its_last_hold_has_closed() {
    let again = with(hold(), "id", "again");
    let contract = with(on_board(json!([hold(), step("w", "dut"), again, step("x", "dut")])), "attended", true);
    let (lab, run) = held(&contract);
    close(&lab, &run, 1, json!({"exit_code": 0}));
    lab.advance(100.0);
    lab.heartbeat("b1");
    assert_eq!(renew(&lab, &run)["ttl_seconds"], 120);
    lab.work("b1", 0);
    assert_eq!(lab.steps(&run), "DONE DONE CLAIMED PENDING");
    lab.advance(119.0);
    close(&lab, &run, 3, json!({"exit_code": 0}));
    assert_eq!(renew(&lab, &run)["not_after"], Value::Null);
    lab.advance(300.0);
    assert_eq!(lab.state(&run), "RUNNING");
    let (lab, run) = held(&contract);
    close(&lab, &run, 1, json!({"exit_code": 0}));
    lab.advance(120.0);
    assert_eq!(lab.state(&run), "FAILED holder-gone");
}

/// A hold is of all nodes of the run, static ones included; a restart of the daemon keeps it open.
#[test]
fn a_hold_survives_a_restart_of_the_daemon() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.static_node("outlet", &["plug"]);
    let run = lab.placed(&json!({"requires": requires(&["dut=board", "power=plug"]), "steps": [hold()]}));
    lab.restart_after(3000.0);
    assert_eq!(lab.steps(&run), "CLAIMED");
    assert_eq!(lab.row("SELECT holder_until FROM runs", [], |row| row.get::<_, i64>(0)), lab.now() + 120_000);
    close(&lab, &run, 1, json!({"exit_code": 0}));
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}
