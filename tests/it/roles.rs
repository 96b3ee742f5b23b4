//! Roles: what only operators may do, and what is somebody's own.

use serde_json::{Value, json};

use crate::support::{Lab, Reply, advert, on_board, one_step, with};

/// A lab with a board, and somebody who is no operator. (Tokens can't be made yet: it is planted.)
fn lab() -> (Lab, String) {
    let mut lab = Lab::new();
    let member = lab.token_with_role("alice", "member");
    lab.node("b1", &["board"]);
    (lab, format!("Bearer {member}"))
}

fn call(lab: &Lab, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    lab.call_with(method, path, &[("authorization", token)], body)
}

/// 403, before the body is looked at; and nothing has happened.
#[test]
fn what_is_for_operators_is_refused_to_others() {
    let (lab, member) = lab();
    let graceful = json!({"mode": "graceful"});
    lab.post("/v1/nodes/b1/drain", &graceful).expect(200);
    for (method, path, body) in [
        ("POST", "/v1/nodes/b1/drain", &json!({"mode": "at-boundary"})),
        ("DELETE", "/v1/nodes/b1/drain", &Value::Null),
        ("DELETE", "/v1/nodes/b1", &Value::Null),
        ("GET", "/v1/doctor", &Value::Null),
        ("GET", "/v1/outbox", &Value::Null),
        ("POST", "/v1/outbox/1/resend", &json!({})),
        ("POST", "/v1/nodes/b1/drain", &json!({"mode": 7})),
    ] {
        call(&lab, &member, method, path, body).problem(403, "forbidden");
    }
    assert_eq!(lab.show_node("b1")["drain"], "graceful");
    let first = with(one_step(), "priority", 1);
    assert_eq!(call(&lab, &member, "POST", "/v1/runs", &first).problem(403, "forbidden")["path"], "/priority");
    let outlet = with(with(advert("p1", "x", &["plug"]), "static", true), "instance", Value::Null);
    call(&lab, &member, "POST", "/v1/nodes", &outlet).problem(403, "forbidden");
    // What is for everybody.
    for path in ["/v1/runs", "/v1/nodes", "/v1/asks"] {
        call(&lab, &member, "GET", path, &Value::Null).expect(200);
    }
    call(&lab, &member, "POST", "/v1/runs", &one_step()).expect(202);
}

/// I8: a hold is in the hands of the run's principal; an operator may speak for anyone.
#[test]
fn nobody_speaks_for_anothers_hold() {
    let (lab, member) = lab();
    let hold = on_board(json!([{"id": "h", "hold": {}}]));
    let theirs = lab.placed(&hold);
    let result = |run: &str| format!("/v1/runs/{run}/steps/1/result");
    let done = json!({"attempt": 1, "exit_code": 0});
    call(&lab, &member, "POST", &result(&theirs), &done).problem(403, "forbidden");
    call(&lab, &member, "POST", &format!("/v1/runs/{theirs}/renew"), &json!({})).problem(403, "forbidden");
    assert_eq!(lab.steps(&theirs), "CLAIMED");
    lab.post(&result(&theirs), &done).expect(200);

    let own = call(&lab, &member, "POST", "/v1/runs", &hold).expect(201)["run_id"].as_str().expect("an id").to_owned();
    call(&lab, &member, "POST", &format!("/v1/runs/{own}/renew"), &json!({})).expect(200);
    call(&lab, &member, "POST", &result(&own), &done).expect(200);
    let own = call(&lab, &member, "POST", "/v1/runs", &hold).expect(201)["run_id"].as_str().expect("an id").to_owned();
    lab.post(&result(&own), &done).expect(200);
}

/// A question may be for some alone; an operator may always answer.
#[test]
fn a_question_is_for_those_it_names() {
    let (lab, member) = lab();
    let ask = |who: &str| on_board(json!([{"id": "q", "ask": {"prompt": "?", "answerers": [who]}}]));
    let answer = json!({"answer": "yes"});
    for (named, status) in [("bob", 403), ("alice", 200)] {
        let run = lab.placed(&ask(named));
        let path = format!("/v1/runs/{run}/steps/1/answer");
        assert_eq!(call(&lab, &member, "POST", &path, &answer).status, status, "{named}");
        lab.post(&path, &answer).expect(200);
    }
}
