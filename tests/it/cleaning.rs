//! Cleaning: between two users of a node whose agent cleans it, nobody gets it before it is clean.

use serde_json::{Value, json};

use crate::support::{Lab, advert, on_board, one_step, step, with};

/// A board that is cleaned.
fn lab() -> Lab {
    let lab = Lab::new();
    cleans(&lab, "b1-1", true);
    lab
}

fn cleans(lab: &Lab, instance: &str, cleans: bool) -> Value {
    lab.post("/v1/nodes", &with(advert("b1", instance, &["board"]), "cleans", cleans)).expect(200)
}

fn claim(lab: &Lab, instance: &str) -> Value {
    lab.post("/v1/nodes/b1/claim", &json!({"instance": instance})).body
}

fn cleaned(lab: &Lab, instance: &str, order: &Value, exit_code: i64) -> crate::support::Reply {
    let body = json!({"instance": instance, "cleaning": order["cleaning"], "exit_code": exit_code});
    lab.post("/v1/nodes/b1/cleaned", &body)
}

#[test]
fn a_node_is_given_to_nobody_before_it_is_clean() {
    let lab = lab();
    let first = lab.placed(&one_step());
    let second = lab.queued(&one_step());
    let work = lab.claimed("b1");
    // The agent that reports learns of it in the same answer.
    let body = with(crate::support::report("b1", &work, json!({"exit_code": 0})), "instance", "b1-1");
    let answer = lab.post(&format!("{}?claim=true", crate::support::result_path(&work)), &body).expect(200);
    let order = &answer["claim"];
    assert_eq!((order["kind"].as_str(), order["run_id"].as_str()), (Some("cleanup"), Some(first.as_str())));
    assert_eq!(lab.state(&second), "QUEUED");
    let node = lab.show_node("b1");
    assert_eq!((node["cleaning"]["run_id"].as_str(), &node["lease"]), (Some(first.as_str()), &Value::Null));
    let why = lab.get(&format!("/v1/runs/{second}/why")).expect(200);
    assert_eq!(why["code"], "nodes-cleaning");
    assert_eq!(why["roles"][0]["nodes"][0]["status"], "cleaning");
    assert_eq!(why["roles"][0]["free"], 0);
    assert_eq!(lab.get("/v1/capabilities").expect(200)["capabilities"][0]["free"], 0);
    // A new submission does not get it either, and it cannot be forgotten.
    let third = lab.queued(&one_step());
    lab.delete("/v1/nodes/b1").problem(409, "node-leased");
    // An answer that was lost is given again.
    assert_eq!(&claim(&lab, "b1-1"), order);
    cleaned(&lab, "b1-1", order, 0).expect(200);
    assert_eq!(lab.holder("b1").as_deref(), Some(second.as_str()));
    cleaned(&lab, "b1-1", order, 0).problem(409, "stale-lease");
    lab.cancel(&third);
    lab.work("b1", 0);
    assert_eq!(lab.events("node.cleaning"), 2);
    assert_eq!(lab.events("node.cleaned"), 1);
}

/// However the lease ends: cancelled, run out, released on the way, the agent started again.
#[test]
fn every_end_of_a_lease_is_followed_by_a_cleaning() {
    type End = fn(&Lab, &str);
    let end_by: [(&str, End); 4] = [
        ("cancel", |lab, run| drop(lab.cancel(run))),
        ("silence", |lab, _| lab.advance(700.0)),
        ("release", |lab, _| {
            lab.claimed("b1");
            let work = lab.claimed("b1");
            lab.report("b1", &work, json!({"exit_code": 0})).expect(200);
        }),
        ("restart", |lab, _| {
            lab.claimed("b1");
            cleans(lab, "b1-2", true);
        }),
    ];
    for (what, end) in end_by {
        let lab = lab();
        lab.static_node("s1", &["scope"]);
        let steps = json!([with(step("a", "b"), "release", json!(["b"])), {"id": "q", "ask": {"prompt": "?"}}]);
        let run = lab.placed(&json!({"requires": crate::support::requires(&["b=board", "s=scope"]), "steps": steps}));
        end(&lab, &run);
        let node = lab.show_node("b1");
        assert_eq!(node["cleaning"]["run_id"].as_str(), Some(run.as_str()), "{what}: {node}");
        assert_eq!(node["lease"], Value::Null, "{what}");
    }
}

#[test]
fn a_parked_claim_hears_of_it() {
    let lab = lab();
    let run = lab.placed(&on_board(json!([{"id": "q", "ask": {"prompt": "?"}}])));
    let parked = lab.park("POST", "/v1/nodes/b1/claim?wait_seconds=30", &json!({"instance": "b1-1"}));
    assert!(lab.is_parked(&parked));
    lab.cancel(&run);
    assert_eq!(lab.join(parked).expect(200)["kind"], "cleanup");
}

/// "failing or over its time it drains the node with the reason"
#[test]
fn a_cleaning_that_fails_drains_the_node_until_somebody_sees_to_it() {
    let mut lab = lab();
    let run = lab.placed(&one_step());
    lab.cancel(&run);
    let order = claim(&lab, "b1-1");
    let node = cleaned(&lab, "b1-1", &order, 3).expect(200);
    assert_eq!((node["drain"].as_str(), node["drains"][0]["by"].as_str()), (Some("graceful"), Some("node")));
    assert_eq!(node["drains"][0]["reason"], "cleanup ended with exit code 3");
    let waits = lab.queued(&one_step());
    let why = lab.get(&format!("/v1/runs/{waits}/why")).expect(200);
    assert_eq!(why["code"], "nodes-draining");
    assert_eq!(why["roles"][0]["nodes"][0]["reason"], "cleanup ended with exit code 3");
    // The life that failed is not asked again, whoever else is; a heartbeat and an operator's undrain change nothing.
    let asked = || lab.post("/v1/nodes/b1/claim", &json!({"instance": "b1-1"})).status;
    assert_eq!(asked(), 204);
    assert_eq!(cleans(&lab, "b1-1", true)["drain"], "graceful");
    lab.delete("/v1/nodes/b1/drain").expect(200);
    assert_eq!(lab.state(&waits), "QUEUED");
    lab.restart();
    assert_eq!(lab.post("/v1/nodes/b1/claim", &json!({"instance": "b1-1"})).status, 204);
    // An operator lets it try again.
    lab.post("/v1/nodes/b1/clean", &json!({})).expect(200);
    let again = claim(&lab, "b1-1");
    assert_eq!(again, order);
    let body = json!({"instance": "b1-1", "cleaning": again["cleaning"], "error": "over its time"});
    lab.post("/v1/nodes/b1/cleaned", &body).expect(200);
    assert_eq!(lab.show_node("b1")["drains"][0]["reason"], "cleanup: over its time");
    // Another life of the agent does, too.
    cleans(&lab, "b1-2", true);
    let order = claim(&lab, "b1-2");
    cleaned(&lab, "b1-1", &order, 0).problem(409, "stale-instance");
    cleaned(&lab, "b1-2", &order, 0).expect(200);
    assert_eq!(lab.holder("b1").as_deref(), Some(waits.as_str()));
    assert_eq!(lab.show_node("b1")["drains"], json!([]));
}

#[test]
fn an_operator_may_say_that_it_is_clean() {
    let lab = lab();
    let run = lab.placed(&one_step());
    let waits = lab.queued(&one_step());
    lab.cancel(&run);
    let late = claim(&lab, "b1-1");
    let first = lab.keyed("POST", "/v1/nodes/b1/clean", "k", &json!({"done": true})).expect(200);
    assert_eq!(first["cleaning"], Value::Null);
    assert_eq!(lab.holder("b1").as_deref(), Some(waits.as_str()));
    cleaned(&lab, "b1-1", &late, 3).problem(409, "stale-lease");
    assert_eq!(lab.show_node("b1")["drains"], json!([]));
    // Nothing to do is no error.
    lab.post("/v1/nodes/b1/clean", &json!({"done": true})).expect(200);
    lab.post("/v1/nodes/b9/clean", &json!({"done": true})).problem(404, "not-found");
}

#[test]
fn an_agent_that_does_not_clean_any_more_lets_it_go() {
    let lab = lab();
    let run = lab.placed(&one_step());
    let waits = lab.queued(&one_step());
    lab.cancel(&run);
    assert_eq!(lab.state(&waits), "QUEUED");
    cleans(&lab, "b1-1", false);
    assert_eq!(lab.holder("b1").as_deref(), Some(waits.as_str()));
    lab.cancel(&waits);
    assert_eq!(lab.show_node("b1")["cleaning"], Value::Null);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lab = lab();
    let body = json!({"node_id": "s1", "static": true, "capabilities": [], "cleans": true});
    assert_eq!(lab.post("/v1/nodes", &body).problem(400, "invalid-request")["path"], "/cleans");
    for body in [
        json!({"cleaning": "x", "exit_code": 0}),
        json!({"instance": "b1-1", "exit_code": 0}),
        json!({"instance": "b1-1", "cleaning": "x"}),
        json!({"instance": "b1-1", "cleaning": "x", "exit_code": 0, "error": "both"}),
    ] {
        lab.post("/v1/nodes/b1/cleaned", &body).problem(400, "invalid-request");
    }
    let body = json!({"instance": "b1-1", "cleaning": "x", "exit_code": 0});
    lab.post("/v1/nodes/b1/cleaned", &body).problem(409, "stale-lease");
}
