//! Leases, deadlines, and what a restart of the daemon does to them.

use serde_json::{Value, json};

use crate::support::{Lab, on_board, one_step, requires, step, with};

fn ttl(lab: &Lab, node: &str) -> i64 {
    lab.show_node(node)["lease"]["ttl_seconds"].as_i64().expect("a lease")
}

fn ask(id: &str) -> Value {
    json!({"id": id, "ask": {"prompt": "?"}})
}

/// A lease runs out unless its node gives signs; the run ends as a fault of the lab.
#[test]
fn a_lease_that_is_not_renewed_ends_the_run() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    lab.advance(599.9);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(0.1);
    let verdict = lab.run(&run)["verdict"].clone();
    assert_eq!((&verdict["kind"], &verdict["node"]), (&json!("node-lost"), &json!("b1")));
    assert_eq!((lab.steps(&run).as_str(), lab.holder("b1")), ("CANCELLED", None));
    lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    let (to, why): (i64, String) =
        lab.row("SELECT \"to\", why FROM lease_history", [], |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!((to, why.as_str()), (lab.now(), "node-lost"));
}

/// Adverts renew; a heartbeat that waits when the deadline passes still counts.
#[test]
fn adverts_renew_a_lease() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    lab.pass(3000.0, &["b1"]);
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 600));
    // Until a commit ends it, a renewal counts even after `not_after`.
    lab.clock.advance(std::time::Duration::from_secs(700));
    lab.heartbeat("b1");
    lab.settle();
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 600));
}

/// A heartbeat that waits for the writer when the deadline passes counts before leases are judged.
#[test]
fn a_heartbeat_that_waits_is_applied_before_leases_are_judged() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let busy = lab.hold_writer();
    let heartbeat = lab.park("POST", "/v1/nodes", &crate::support::advert("b1", "b1-1", &["board"]));
    lab.let_wait();
    lab.clock.advance(std::time::Duration::from_secs(700));
    lab.store().poke();
    drop(busy);
    lab.join(heartbeat).expect(200);
    lab.settle();
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 600));
}

/// I8: until a commit ends the lease, a result counts even after `not_after`.
#[test]
fn a_result_counts_until_a_commit_ends_the_lease() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    lab.clock.advance(std::time::Duration::from_secs(700));
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    lab.settle();
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// The daemon's downtime ends no lease: each gets its lifetime again, at least 90 s.
#[test]
fn downtime_of_the_daemon_ends_no_lease() {
    let mut lab = Lab::with(|settings| settings.lease_ttl_ms = 30_000);
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    lab.restart_after(86_000.0);
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 90));
    lab.heartbeat("b1");
    assert_eq!(ttl(&lab, "b1"), 90, "a renewal never shortens");
    lab.advance(89.0);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    let run = lab.queued(&one_step());
    lab.node("b1", &["board"]);
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "b1")), ("RUNNING", 30));
    lab.restart_after(1000.0);
    lab.advance(91.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
}

/// In a restart loop leases still end: three times in a row without a sign of the holder, and no more.
#[test]
fn a_lease_is_extended_three_times_without_a_sign() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    for _ in 0..3 {
        lab.restart_after(500.0);
        assert_eq!(ttl(&lab, "b1"), 600);
    }
    lab.restart_after(500.0);
    assert_eq!(ttl(&lab, "b1"), 100, "the fourth start moves nothing");
    lab.heartbeat("b1");
    lab.restart_after(500.0);
    assert_eq!(ttl(&lab, "b1"), 600, "a sign makes the count begin anew");
    for _ in 0..3 {
        lab.restart_after(500.0);
    }
    lab.advance(101.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
}

/// A holder's deadline likewise.
#[test]
fn a_holders_deadline_is_extended_three_times_without_a_sign() {
    let mut lab = Lab::with(|settings| settings.hold_ttl_ms = 100_000);
    lab.node("b1", &["board"]);
    let run = lab.placed(&on_board(json!([{"id": "h", "hold": {}}])));
    for _ in 0..3 {
        lab.restart_after(90.0);
    }
    lab.restart_after(90.0);
    lab.advance(9.0);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(1.0);
    assert_eq!(lab.state(&run), "FAILED holder-gone");
}

/// The agent counts a step's time itself; the reaper steps in 30 s later.
#[test]
fn a_commands_time_out_is_enforced_30_s_late() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&on_board(json!([with(step("w", "dut"), "timeout_seconds", 100)])));
    lab.pass(200.0, &["b1"]);
    assert_eq!(lab.state(&run), "RUNNING", "it counts from the claim");
    let claim = lab.claimed("b1");
    assert_eq!(claim["timeout_seconds"], 100.0);
    lab.pass(129.0, &["b1"]);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(1.0);
    assert_eq!(lab.state(&run), "FAILED step-failed");
    assert_eq!(lab.steps(&run), "FAILED");
}

/// After a start an agent has 90 s to hand in what it finished before a time-out or a limit is enforced.
#[test]
fn no_time_out_is_enforced_in_the_first_90_s() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    let timed = on_board(json!([with(step("w", "dut"), "timeout_seconds", 10)]));
    let (first, second) = (lab.placed(&timed), lab.placed(&with(one_step(), "limit_seconds", 10)));
    let claim = lab.claimed("b1");
    lab.claimed("b2");
    lab.restart_after(1000.0);
    lab.advance(89.9);
    assert_eq!((lab.state(&first).as_str(), lab.state(&second).as_str()), ("RUNNING", "RUNNING"));
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.state(&first), "SUCCEEDED succeeded");
    lab.advance(0.1);
    assert_eq!(lab.state(&second), "FAILED time-limit");
}

/// A run waits in the queue only so long; downtime counts, and it may end within the first 90 s.
#[test]
fn the_time_in_the_queue_is_real_time() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.placed(&one_step());
    let timed = with(one_step(), "queue_timeout_seconds", 50);
    let (first, second) = (lab.queued(&timed), lab.queued(&timed));
    let patient = lab.queued(&one_step());
    lab.advance(49.0);
    assert_eq!(lab.state(&first), "QUEUED");
    lab.cancel(&second);
    lab.restart_after(1.0);
    lab.settle();
    assert_eq!(lab.state(&first), "FAILED queue-timeout");
    assert_eq!(lab.steps(&first), "CANCELLED");
    assert_eq!(lab.run(&first)["started_at"], Value::Null);
    lab.pass(100_000.0 / 100.0, &["b1"]);
    assert_eq!(lab.state(&patient), "QUEUED", "without a limit it waits without limit");
}

/// The limit of a run counts from its start, not from its submission.
#[test]
fn the_limit_of_a_run_counts_from_its_start() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let first = lab.placed(&one_step());
    let limited = lab.queued(&with(one_step(), "limit_seconds", 200));
    lab.pass(300.0, &["b1"]);
    assert_eq!((lab.state(&limited), lab.run(&limited)["ends_by"].clone()), ("QUEUED".to_owned(), Value::Null));
    lab.cancel(&first);
    assert!(lab.run(&limited)["ends_by"].is_string());
    lab.claimed("b1");
    lab.pass(199.0, &["b1"]);
    assert_eq!(lab.state(&limited), "RUNNING");
    lab.pass(1.0, &["b1"]);
    assert_eq!((lab.state(&limited).as_str(), lab.holder("b1")), ("FAILED time-limit", None));
}

/// A run is not reaped for its leases while a question is open and nothing else is to be done; then each lease gets a
/// full lifetime.
#[test]
fn an_open_question_spares_the_leases() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&on_board(json!([ask("q"), step("w", "dut")])));
    lab.advance(5000.0);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.answer(&run, 1, "whatever").expect(200);
    assert_eq!(ttl(&lab, "b1"), 600);
    lab.advance(600.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
}

/// A command that is ready or in hand beside the question is work: its node must give signs.
#[test]
fn work_beside_an_open_question_is_not_spared() {
    for claims in [false, true] {
        let lab = Lab::new();
        lab.node("b1", &["board"]);
        let steps =
            json!([ask("q"), with(step("w", "dut"), "needs", json!([])), with(ask("r"), "needs", json!(["q"]))]);
        let run = lab.placed(&on_board(steps));
        if claims {
            lab.claimed("b1");
        }
        lab.answer(&run, 1, "yes").expect(200);
        lab.advance(600.0);
        assert_eq!(lab.state(&run), "FAILED node-lost");
    }
}

/// A lease on a static node is renewed whenever another of its run is, and never reaped while only such are left.
#[test]
fn static_nodes_are_spoken_for_by_their_run() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.static_node("outlet", &["plug"]);
    let both = |steps: Value| json!({"requires": requires(&["dut=board", "power=plug"]), "steps": steps});
    let run = lab.placed(&both(json!([step("w", "dut")])));
    lab.pass(2000.0, &["b1"]);
    assert_eq!((lab.state(&run).as_str(), ttl(&lab, "outlet")), ("RUNNING", 600));
    lab.advance(600.0);
    assert_eq!((lab.state(&run).as_str(), lab.holder("outlet")), ("FAILED node-lost", None));
    lab.heartbeat("b1");
    let run = lab.placed(&with(
        both(json!([with(step("w", "dut"), "release", json!(["dut"])), ask("q")])),
        "limit_seconds",
        7000,
    ));
    lab.work("b1", 0);
    lab.advance(5000.0);
    assert_eq!(lab.state(&run), "RUNNING");
    lab.advance(2000.0);
    assert_eq!(lab.state(&run), "FAILED time-limit", "the question and the run have deadlines of their own");
}

/// A node whose work may still go on settles: it can be leased at once, but no hold opens there before it has stopped.
#[test]
fn a_hold_waits_until_the_earlier_work_must_have_stopped() {
    let hold = on_board(json!([{"id": "h", "hold": {}}]));
    let begin = || {
        let lab = Lab::new();
        lab.node("b1", &["board"]);
        let first = lab.placed(&one_step());
        lab.claimed("b1");
        lab.cancel(&first);
        let run = lab.placed(&hold);
        assert_eq!((lab.steps(&run).as_str(), lab.state(&run).as_str()), ("PENDING", "RUNNING"));
        (lab, run)
    };
    let (lab, run) = begin();
    assert!(lab.claim("b1").is_none(), "the agent claims, so it has stopped");
    assert_eq!(lab.steps(&run), "CLAIMED");
    let (lab, run) = begin();
    lab.heartbeat("b1");
    assert_eq!(lab.steps(&run), "PENDING", "a heartbeat says nothing about it");
    lab.advert("b1", "b1-2", &["board"]);
    assert_eq!(lab.steps(&run), "CLAIMED", "a new life has nothing of the old one in hand");
    let (lab, run) = begin();
    lab.pass(599.0, &["b1"]);
    assert_eq!(lab.steps(&run), "PENDING");
    lab.pass(1.0, &["b1"]);
    assert_eq!(lab.steps(&run), "CLAIMED", "its lease was good until now");
}

/// A reaped time-out makes its own run's hold wait, too.
#[test]
fn a_hold_behind_a_command_that_ran_over_its_time_waits() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let late = with(with(step("w", "dut"), "timeout_seconds", 100), "allow_failure", true);
    let run = lab.placed(&on_board(json!([late, {"id": "h", "hold": {}}])));
    lab.claimed("b1");
    lab.pass(131.0, &["b1"]);
    assert_eq!(lab.steps(&run), "FAILED PENDING");
    assert!(lab.claim("b1").is_none());
    assert_eq!(lab.steps(&run), "FAILED CLAIMED");
}

/// Who held what, from when to when, and why it ended.
#[test]
fn every_lease_leaves_a_history_row() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.placed(&with(one_step(), "work", "gerrit:1"));
    lab.advance(5.0);
    lab.work("b1", 0);
    let row: (String, String, i64, i64, String) =
        lab.row("SELECT principal, work, \"from\", \"to\", why FROM lease_history WHERE node_id = 'b1'", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        });
    let start = crate::support::START;
    assert_eq!(row, ("operator".into(), "gerrit:1".into(), start, start + 5000, "succeeded".into()));
}
