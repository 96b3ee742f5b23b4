//! Claims and results: who works on what, and whose word counts.

use serde_json::{Value, json};

use crate::support::{Lab, id_of, on_board, one_step, report, requires, result_path, step, with};

fn lab() -> Lab {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab
}

fn claim_path(wait: &str) -> String {
    format!("/v1/nodes/b1/claim{wait}")
}

/// A claim tells everything the agent needs.
#[test]
fn a_claim_tells_the_whole_step() {
    let lab = Lab::new();
    lab.node("b1", &["board model=a"]);
    let run = lab.placed(&on_board(json!([{
        "id": "flash", "uses": "dut.0", "run": ["./flash.sh", ""], "env": {"A": 1, "B": "x", "C": true},
        "pass_env": ["HOME"], "timeout_seconds": 0.5, "artifacts": ["out/log.txt"],
    }])));
    lab.advance(0.25);
    let mut claim = lab.claimed("b1");
    assert!(claim["lease"]["nonce"].as_str().is_some_and(|nonce| nonce.len() >= 20), "{claim}");
    claim["lease"]["nonce"] = Value::Null;
    assert_eq!(
        claim,
        json!({
            "run_id": run, "seq": 1, "id": "flash", "kind": "run", "attempt": 1, "uses": "dut.0", "run": ["./flash.sh", ""],
            "env": {"A": "1", "B": "x", "C": "true"}, "pass_env": ["HOME"], "timeout_seconds": 0.5, "artifacts": ["out/log.txt"],
            "assigned": [{"as": "dut", "nodes": [{"node_id": "b1", "label": null, "attrs": {"model": "a"}}]}],
            "lease": {"nonce": null, "not_after": "2027-01-15T08:10:00.000Z", "ttl_seconds": 599},
        })
    );
}

/// A parked claim is answered by the event, not by a clock.
#[test]
fn a_parked_claim_is_woken_by_what_it_waits_for() {
    let lab = lab();
    let parked = lab.park("POST", &claim_path("?wait_seconds=60"), &json!({"instance": "b1-1"}));
    assert!(lab.is_parked(&parked));
    lab.heartbeat("b1");
    assert!(lab.is_parked(&parked), "a heartbeat brings no work");
    let run = lab.placed(&on_board(json!([step("a", "dut"), {"id": "q", "ask": {"prompt": "?"}}, step("b", "dut")])));
    let claim = lab.join(parked).expect(200);
    assert_eq!(id_of(&claim), run);
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    let parked = lab.park("POST", &claim_path("?wait_seconds=60"), &json!({"instance": "b1-1"}));
    assert!(lab.is_parked(&parked));
    lab.answer(&run, 2, "go").expect(200);
    assert_eq!(lab.join(parked).expect(200)["id"], "b");
}

/// A parked claim of a replaced life hears of it at once.
#[test]
fn a_parked_claim_of_a_replaced_life_ends() {
    let lab = lab();
    let parked = lab.park("POST", &claim_path("?wait_seconds=60"), &json!({"instance": "b1-1"}));
    assert!(lab.is_parked(&parked));
    lab.advert("b1", "b1-2", &["board"]);
    lab.join(parked).problem(409, "stale-instance");
}

/// Without work, and without waiting, the answer is 204.
#[test]
fn a_claim_without_work_is_204() {
    let mut lab = lab();
    assert!(lab.claim("b1").is_none());
    lab.post(&claim_path("?wait_seconds=0.05"), &json!({"instance": "b1-1"})).expect(204);
    lab.change(|settings| settings.lease_ttl_ms = 300);
    lab.restart();
    // Parked for at most a third of the lease's lifetime.
    lab.post(&claim_path("?wait_seconds=60"), &json!({"instance": "b1-1"})).expect(204);
}

/// I11: the same life gets the same step again; nobody gets it besides.
#[test]
fn a_lost_answer_is_told_again() {
    let mut lab = lab();
    let run = lab.placed(&on_board(json!([step("a", "dut"), with(step("b", "dut"), "needs", json!([]))])));
    let claim = lab.claimed("b1");
    assert_eq!(lab.claimed("b1"), claim);
    lab.restart();
    let again = lab.claimed("b1");
    assert_eq!(
        (&again["seq"], &again["attempt"], &again["lease"]["nonce"]),
        (&claim["seq"], &claim["attempt"], &claim["lease"]["nonce"])
    );
    assert_eq!(lab.steps(&run), "CLAIMED PENDING", "one step at a time in one node's hands");
    assert_eq!(lab.number("SELECT count(*) FROM attempts"), 1);
}

/// A cancel reaches an agent at work at once, and so does whatever else takes its step away.
#[test]
fn a_claim_with_working_hears_when_its_step_is_taken_away() {
    let cancel: fn(&Lab, &str) = |lab, run| drop(lab.cancel(run));
    let expiry: fn(&Lab, &str) = |lab, _| lab.advance(600.0);
    for take_away in [cancel, expiry] {
        let lab = lab();
        let run = lab.placed(&one_step());
        let claim = lab.claimed("b1");
        let working = json!({"run_id": run, "seq": 1, "attempt": claim["attempt"]});
        let body = json!({"instance": "b1-1", "working": working});
        let parked = lab.park("POST", &claim_path("?wait_seconds=60"), &body);
        assert!(lab.is_parked(&parked));
        take_away(&lab, &run);
        lab.join(parked).problem(409, "stale-lease");
        lab.post(&claim_path("?wait_seconds=60"), &body).problem(409, "stale-lease");
    }
}

/// `working` claims nothing, also when there is something else to do.
#[test]
fn a_claim_with_working_takes_nothing() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([step("a", "dut"), with(step("b", "dut"), "needs", json!([]))])));
    lab.claimed("b1");
    for (seq, attempt, status) in [(1, 1, 204), (1, 2, 409), (2, 1, 409)] {
        let working = json!({"run_id": run, "seq": seq, "attempt": attempt});
        assert_eq!(lab.post(&claim_path(""), &json!({"instance": "b1-1", "working": working})).status, status);
    }
    assert_eq!(lab.steps(&run), "CLAIMED PENDING");
}

/// I8: node, nonce and attempt must all be the current ones; what is refused changes nothing but a note.
#[test]
fn a_result_counts_only_from_the_holder() {
    let lab = lab();
    lab.node("h1", &["host"]);
    let contract =
        json!({"requires": requires(&["dut=board", "pc=host"]), "steps": [step("a", "dut"), step("b", "dut")]});
    let run = lab.placed(&contract);
    let claim = lab.claimed("b1");
    let other: String = lab.row("SELECT nonce FROM leases WHERE node_id = 'h1'", [], |row| row.get(0));
    for wrong in [
        json!({"nonce": "x", "exit_code": 0}),
        json!({"nonce": other, "exit_code": 0}),
        json!({"node_id": "h1", "exit_code": 0}),
        json!({"node_id": "h1", "nonce": other, "exit_code": 0}),
        json!({"attempt": 2, "exit_code": 0}),
        json!({"nonce": "x", "lost": true}),
    ] {
        lab.report("b1", &claim, wrong).problem(409, "stale-lease");
        assert_eq!(lab.steps(&run), "CLAIMED PENDING");
    }
    assert_eq!(lab.events("step.late-report"), 6);
    let at = |seq: i64| format!("/v1/runs/{run}/steps/{seq}/result");
    let body = report("b1", &claim, json!({"exit_code": 0}));
    lab.post(&at(2), &body).problem(409, "stale-lease");
    lab.post(&at(3), &body).problem(404, "not-found");
    lab.post("/v1/runs/none/steps/1/result", &body).problem(404, "not-found");
    lab.report("b1", &claim, json!({"node_id": "none", "exit_code": 0})).problem(404, "not-found");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.steps(&run), "DONE PENDING");
}

/// An equal report gets the same answer for ever; any other is refused.
#[test]
fn an_equal_report_gets_the_same_answer() {
    let mut lab = lab();
    let run = lab.placed(&on_board(json!([step("a", "dut"), step("b", "dut")])));
    let claim = lab.claimed("b1");
    let first = lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(first, json!({"run_id": run, "seq": 1, "attempt": 1, "state": "DONE", "claim": null}));
    let same = |lab: &Lab| {
        assert_eq!(lab.report("b1", &claim, json!({"exit_code": 0})).expect(200), first);
        lab.report("b1", &claim, json!({"exit_code": 1})).problem(409, "stale-lease");
        lab.report("b1", &claim, json!({"error": "no"})).problem(409, "stale-lease");
        lab.report("b1", &claim, json!({"lost": true})).problem(409, "stale-lease");
    };
    same(&lab);
    lab.work("b1", 1);
    same(&lab);
    lab.restart_after(100_000.0);
    lab.advert("b1", "b1-2", &["board"]);
    same(&lab);
    assert_eq!(lab.state(&run), "FAILED step-failed");
}

/// How a step ended decides over the run, and a script can tell a failed test from a failing lab.
#[test]
fn the_outcome_of_a_step_decides_over_the_run() {
    for (outcome, step_state, state, result) in [
        (json!({"exit_code": 0}), "DONE", "SUCCEEDED succeeded", json!({"exit_code": 0})),
        (json!({"exit_code": 3}), "FAILED", "FAILED step-failed", json!({"exit_code": 3})),
        (json!({"exit_code": -9}), "FAILED", "FAILED step-failed", json!({"exit_code": -9})),
        (json!({"error": "no such file"}), "FAILED", "FAILED step-failed", json!({"error": "no such file"})),
        (json!({"lost": true}), "CANCELLED", "FAILED node-lost", Value::Null),
    ] {
        let lab = lab();
        let run = lab.placed(&one_step());
        let claim = lab.claimed("b1");
        assert_eq!(lab.report("b1", &claim, outcome).expect(200)["state"], step_state);
        let view = lab.run(&run);
        assert_eq!((lab.state(&run).as_str(), &view["steps"][0]["result"]), (state, &result));
        if state != "SUCCEEDED succeeded" {
            assert_eq!((&view["verdict"]["step"], &view["verdict"]["node"]), (&json!("work"), &json!("b1")));
        }
    }
}

/// What breaks the grammar of a report is refused with its place, and the step stays in hand.
#[test]
fn a_bad_report_is_400() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([step("a", "dut"), {"id": "h", "hold": {}}])));
    let claim = lab.claimed("b1");
    for (outcome, path) in [
        (json!({}), ""),
        (json!({"exit_code": 0, "error": "x"}), ""),
        (json!({"exit_code": 0, "lost": true}), ""),
        (json!({"exit_code": 0.5}), "/exit_code"),
        (json!({"exit_code": 0, "attempt": 0}), "/attempt"),
        (json!({"exit_code": 0, "attempt": null}), "/attempt"),
        (json!({"exit_code": 0, "nonce": null}), "/nonce"),
        (json!({"exit_code": 0, "node_id": null}), "/node_id"),
        (json!({"exit_code": 0, "node_id": null, "nonce": null}), "/node_id"),
        (json!({"exit_code": 0, "output": ""}), "/output"),
    ] {
        let problem = lab.report("b1", &claim, outcome.clone()).problem(400, "invalid-request");
        assert_eq!(problem["path"], path, "{outcome}");
    }
    let body = report("b1", &claim, json!({"exit_code": 0}));
    let problem = lab.post(&format!("{}?claim=true", result_path(&claim)), &body).problem(400, "invalid-request");
    assert_eq!(problem["path"], "/instance");
    assert_eq!(lab.steps(&run), "CLAIMED PENDING");
}

/// `?claim=true`: what a claim answers now, in the result's own commit if the run goes on here; never stored.
#[test]
fn a_result_may_claim_the_next_step() {
    let lab = lab();
    let first = lab.placed(&on_board(json!([step("a", "dut"), step("b", "dut")])));
    let next = lab.queued(&one_step());
    let claim = lab.claimed("b1");
    let path = format!("{}?claim=true", result_path(&claim));
    let body = with(report("b1", &claim, json!({"exit_code": 0})), "instance", "b1-1");
    let answer = lab.post(&path, &body).expect(200);
    assert_eq!((&answer["state"], &answer["claim"]["id"]), (&json!("DONE"), &json!("b")));
    let again = lab.post(&path, &body).expect(200);
    assert_eq!(again["claim"], answer["claim"], "a repeat asks afresh, and it is in hand");
    assert_eq!(
        lab.post(&result_path(&claim), &report("b1", &claim, json!({"exit_code": 0}))).expect(200)["claim"],
        Value::Null
    );
    let second = answer["claim"].clone();
    let body = with(report("b1", &second, json!({"exit_code": 0})), "instance", "b1-1");
    let answer = lab.post(&format!("{}?claim=true", result_path(&second)), &body).expect(200);
    assert_eq!((&answer["state"], &answer["claim"]["run_id"]), (&json!("DONE"), &json!(next)), "after the wake");
    assert_eq!(lab.state(&first), "SUCCEEDED succeeded");
    // A life that has been replaced gets no claim; its result stands.
    let third = answer["claim"].clone();
    let body = with(report("b1", &third, json!({"exit_code": 0})), "instance", "b1-0");
    assert_eq!(lab.post(&format!("{}?claim=true", result_path(&third)), &body).expect(200)["claim"], Value::Null);
    assert_eq!(lab.state(&next), "SUCCEEDED succeeded");
}

/// A log grows by offsets: what is there already is ignored, a gap is refused with the size, and each attempt has its own.
#[test]
fn a_log_is_appended_by_offset() {
    let lab = lab();
    let again = with(step("a", "dut"), "loop", json!({"back_to": "a", "max": 2}));
    let run = lab.placed(&on_board(json!([again])));
    let claim = lab.claimed("b1");
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce").to_owned();
    let log = format!("/v1/runs/{run}/steps/1/log");
    let put = |nonce: &str, attempt: i64, offset: i64, text: &str| {
        lab.call_with("PUT", &format!("{log}?nonce={nonce}&attempt={attempt}&offset={offset}"), &[], text.to_owned())
    };
    put(&nonce, 1, 0, "hello ").expect(204);
    put(&nonce, 1, 6, "world").expect(204);
    put(&nonce, 1, 0, "HELLO WORLD").expect(204);
    put(&nonce, 1, 6, "WORLD!").expect(204);
    let problem = put(&nonce, 1, 13, "x").problem(409, "log-gap");
    assert_eq!(problem["size"], 12);
    put("another", 1, 12, "x").problem(409, "stale-lease");
    put(&nonce, 2, 0, "x").problem(409, "stale-lease");
    for query in ["attempt=1&offset=0", "nonce=x&offset=0", "nonce=x&attempt=1", "nonce=x&attempt=1&offset=-1"] {
        lab.call_with("PUT", &format!("{log}?{query}"), &[], "x").problem(400, "invalid-request");
    }
    let read = |query: &str| {
        let reply = lab.get(&format!("{log}{query}"));
        (String::from_utf8_lossy(&reply.bytes).into_owned(), reply.header("mediator-log-end").is_some())
    };
    assert_eq!(read(""), ("hello world!".into(), false));
    assert_eq!(read("?offset=6"), ("world!".into(), false));
    assert_eq!(read("?offset=99"), (String::new(), false));
    // A follower is woken by the next bytes.
    let follower = lab.park("GET", &format!("{log}?offset=12&wait_seconds=60"), &Value::Null);
    assert!(lab.is_parked(&follower));
    put(&nonce, 1, 12, "\n").expect(204);
    assert_eq!(&lab.join(follower).bytes[..], b"\n");
    // And by the end.
    let follower = lab.park("GET", &format!("{log}?attempt=1&offset=13&wait_seconds=60"), &Value::Null);
    assert!(lab.is_parked(&follower));
    lab.report("b1", &claim, json!({"exit_code": 1})).expect(200);
    assert_eq!(lab.join(follower).header("mediator-log-end"), Some("true"));
    put(&nonce, 1, 13, "late").problem(409, "stale-lease");
    let second = lab.claimed("b1");
    assert_eq!(
        (&second["attempt"], &second["lease"]["nonce"]),
        (&json!(2), &json!(nonce)),
        "a rollback frees no lease"
    );
    put(&nonce, 2, 0, "second").expect(204);
    assert_eq!((read("").0.as_str(), read("?attempt=1").0.as_str()), ("second", "hello world!\n"));
}

/// Over `log.max_bytes` a log is cut, and says so.
#[test]
fn a_log_is_cut_at_its_limit_and_marked() {
    let lab = Lab::with(|settings| settings.log_max_bytes = 100);
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce");
    let put = |offset: usize, text: String| {
        lab.call_with("PUT", &format!("/v1/runs/{run}/steps/1/log?nonce={nonce}&attempt=1&offset={offset}"), &[], text)
    };
    put(0, "a".repeat(90)).expect(204);
    put(90, "b".repeat(20)).expect(204);
    put(110, "c".repeat(5000)).expect(204);
    let log = lab.get(&format!("/v1/runs/{run}/steps/1/log")).bytes;
    let text = String::from_utf8_lossy(&log);
    assert!(text.starts_with(&format!("{}{}\n", "a".repeat(90), "b".repeat(10))), "{text}");
    assert!(text.contains("cut after 100 bytes") && !text.contains('c'.to_string().repeat(2).as_str()), "{text}");
}

/// Following a run: the answer comes when the state differs.
#[test]
fn a_follower_of_a_run_is_answered_when_its_state_differs() {
    let lab = lab();
    let run = lab.placed(&one_step());
    let follower = lab.park("GET", &format!("/v1/runs/{run}?wait_seconds=60&while=RUNNING"), &Value::Null);
    assert!(lab.is_parked(&follower));
    let claim = lab.claimed("b1");
    assert!(lab.is_parked(&follower), "a claim does not change the run's state");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.join(follower).expect(200)["state"], "SUCCEEDED");
    assert_eq!(lab.get(&format!("/v1/runs/{run}?wait_seconds=60&while=QUEUED")).expect(200)["state"], "SUCCEEDED");
}

/// Cancel of an ended run changes nothing; who cancelled, and why, is kept.
#[test]
fn a_cancel_is_kept_with_who_and_why() {
    let lab = lab();
    let run = lab.placed(&one_step());
    let waiting = lab.queued(&one_step());
    lab.post(&format!("/v1/runs/{waiting}/cancel"), &json!({"reason": "not needed"})).expect(200);
    let view = lab.run(&waiting);
    let detail = view["verdict"]["detail"].as_str().expect("a text");
    assert!(detail.contains("operator") && detail.contains("not needed"), "{detail}");
    assert_eq!(lab.state(&waiting), "CANCELLED cancelled");
    lab.post(&format!("/v1/runs/{waiting}/cancel"), &json!({"reason": "again"})).expect(200);
    assert_eq!(lab.run(&waiting), view);
    lab.work("b1", 0);
    assert_eq!(lab.cancel(&run)["state"], "SUCCEEDED");
    lab.post("/v1/runs/none/cancel", &json!({})).problem(404, "not-found");
    lab.post(&format!("/v1/runs/{run}/cancel"), &json!({"why": ""})).problem(400, "invalid-request");
}
