//! Questions: raised, answered once, ended by their time.

use serde_json::{Value, json};

use crate::support::{Lab, on_board, step, with};

fn ask(more: Value) -> Value {
    let mut ask = json!({"prompt": "Is it green?"});
    more.as_object().expect("fields").iter().for_each(|(name, value)| ask[name] = value.clone());
    json!({"id": "look", "ask": ask})
}

fn options() -> Value {
    json!({"options": ["yes", "no", "perhaps"], "accept": ["yes", "perhaps"]})
}

fn asked(steps: Value) -> (Lab, String) {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&on_board(steps));
    (lab, run)
}

/// The inbox shows what is open, oldest first.
#[test]
fn an_open_question_is_in_the_inbox() {
    let (lab, run) = asked(json!([ask(with(options(), "answerers", json!(["alice"])))]));
    lab.advance(1.0);
    lab.node("b2", &["board"]);
    let second = lab.placed(&on_board(json!([ask(json!({"timeout_seconds": 60}))])));
    let inbox = lab.get("/v1/asks").expect(200);
    assert_eq!(
        inbox["asks"][0],
        json!({
        "run_id": run, "seq": 1, "id": "look", "attempt": 1, "prompt": "Is it green?", "options": ["yes", "no", "perhaps"],
        "answerers": ["alice"], "asked_at": "2027-01-15T08:00:00.000Z", "deadline": "2027-01-16T08:00:00.000Z"})
    );
    assert_eq!(
        (&inbox["asks"][1]["run_id"], &inbox["asks"][1]["deadline"]),
        (&json!(second), &json!("2027-01-15T08:01:01.000Z"))
    );
    let page = lab.get("/v1/asks?limit=1").expect(200);
    let next = lab.get(&format!("/v1/asks?limit=1&cursor={}", page["next"].as_str().expect("a cursor"))).expect(200);
    assert_eq!((&next["asks"][0]["run_id"], &next["next"]), (&json!(second), &Value::Null));
}

/// An accepted answer lets the run go on; another fails the step.
#[test]
fn an_answer_decides() {
    for (answer, state, steps) in [
        ("yes", "RUNNING", "DONE PENDING"),
        ("perhaps", "RUNNING", "DONE PENDING"),
        ("no", "FAILED step-failed", "FAILED CANCELLED"),
    ] {
        let (lab, run) = asked(json!([ask(options()), step("w", "dut")]));
        let view = lab.answer(&run, 1, answer).expect(200);
        assert_eq!(view["steps"][0]["result"], json!({"answer": answer, "by": "operator"}));
        assert_eq!((lab.state(&run).as_str(), lab.steps(&run).as_str()), (state, steps));
        assert_eq!(lab.get("/v1/asks").expect(200)["asks"], json!([]));
    }
}

/// Without options any text is an answer.
#[test]
fn a_question_without_options_takes_any_text() {
    let (lab, run) = asked(json!([ask(json!({}))]));
    lab.answer(&run, 1, "a blue one,\nrather").expect(200);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// An answer not among the options leaves the question open.
#[test]
fn what_is_no_option_is_422_and_leaves_the_question_open() {
    let (lab, run) = asked(json!([ask(options())]));
    lab.answer(&run, 1, "maybe").problem(422, "not-an-option");
    assert_eq!(lab.steps(&run), "ASKED");
    lab.answer(&run, 1, "yes").expect(200);
}

/// The same answer again is no error; another is; to what was not asked there is no answer.
#[test]
fn a_question_is_answered_once() {
    let (lab, run) = asked(json!([ask(options()), step("w", "dut"), with(ask(options()), "id", "later")]));
    lab.answer(&run, 3, "yes").problem(409, "not-asked");
    lab.answer(&run, 2, "yes").problem(409, "not-asked");
    lab.answer(&run, 4, "yes").problem(404, "not-found");
    lab.answer("none", 1, "yes").problem(404, "not-found");
    let first = lab.answer(&run, 1, "yes").expect(200);
    assert_eq!(lab.answer(&run, 1, "yes").expect(200), first);
    lab.answer(&run, 1, "no").problem(409, "already-answered");
    lab.cancel(&run);
    assert_eq!(lab.answer(&run, 1, "yes").expect(200)["state"], "CANCELLED");
    lab.answer(&run, 1, "perhaps").problem(409, "already-answered");
}

/// `attempt` says which asking is meant: one that is not the current is refused.
#[test]
fn an_answer_to_another_attempt_is_refused() {
    let again = with(ask(options()), "loop", json!({"back_to": "look", "max": 3}));
    let (lab, run) = asked(json!([again]));
    let answer = |answer: &str, attempt: i64| {
        lab.post(&format!("/v1/runs/{run}/steps/1/answer"), &json!({"answer": answer, "attempt": attempt}))
    };
    answer("yes", 2).problem(409, "already-answered");
    answer("no", 1).expect(200);
    assert_eq!(lab.get("/v1/asks").expect(200)["asks"][0]["attempt"], 2);
    answer("yes", 1).problem(409, "already-answered");
    answer("no", 1).problem(409, "already-answered");
    answer("yes", 2).expect(200);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// A question that nobody answers fails its step; the time runs while the daemon is down.
#[test]
fn a_question_ends_with_its_time() {
    for restarts in [false, true] {
        let (mut lab, run) = asked(json!([ask(json!({"timeout_seconds": 100}))]));
        lab.advance(99.0);
        assert_eq!(lab.steps(&run), "ASKED");
        if restarts {
            lab.restart_after(1.0);
            lab.settle();
        } else {
            lab.advance(1.0);
        }
        assert_eq!((lab.state(&run).as_str(), lab.steps(&run).as_str()), ("FAILED step-failed", "FAILED"));
        lab.answer(&run, 1, "yes").problem(409, "already-answered");
    }
}

/// Of an answer and the deadline, the one that the writer took first stands.
#[test]
fn an_answer_counts_until_a_commit_ends_the_question() {
    let (lab, run) = asked(json!([ask(json!({"timeout_seconds": 100}))]));
    lab.clock.advance(std::time::Duration::from_secs(200));
    lab.answer(&run, 1, "late").expect(200);
    lab.settle();
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// A question that timed out may be allowed to, and then each lease has its full lifetime.
#[test]
fn a_question_may_be_allowed_to_fail() {
    let (lab, run) =
        asked(json!([with(ask(json!({"timeout_seconds": 5000})), "allow_failure", true), step("w", "dut")]));
    lab.advance(5000.0);
    assert_eq!(lab.steps(&run), "FAILED PENDING");
    assert_eq!(lab.show_node("b1")["lease"]["ttl_seconds"], 600);
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// I4: a waiting run asks nothing; it asks when it starts.
#[test]
fn a_waiting_run_asks_nothing() {
    let (lab, first) = asked(json!([step("w", "dut")]));
    let waiting = lab.queued(&on_board(json!([ask(json!({}))])));
    assert_eq!(lab.get("/v1/asks").expect(200)["asks"], json!([]));
    lab.answer(&waiting, 1, "yes").problem(409, "not-asked");
    lab.cancel(&first);
    assert_eq!(lab.get("/v1/asks").expect(200)["asks"][0]["run_id"], json!(waiting));
}

/// A result is no answer, and an answer no result.
#[test]
fn a_result_on_a_question_is_refused() {
    let (lab, run) = asked(json!([ask(options())]));
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 0}))
        .problem(409, "stale-lease");
    let nonce: String = lab.row("SELECT nonce FROM leases", [], |row| row.get(0));
    let body = json!({"attempt": 1, "exit_code": 0, "node_id": "b1", "nonce": nonce});
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &body).problem(409, "stale-lease");
    for (body, path) in
        [(json!({}), "/answer"), (json!({"answer": 1}), "/answer"), (json!({"answer": "yes", "by": "me"}), "/by")]
    {
        let problem = lab.post(&format!("/v1/runs/{run}/steps/1/answer"), &body).problem(400, "invalid-request");
        assert_eq!(problem["path"], path);
    }
    assert_eq!(lab.steps(&run), "ASKED");
}
