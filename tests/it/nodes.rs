//! Nodes: adverts, lives of agents, static nodes, silence, and looking at them.

use serde_json::{Value, json};

use crate::support::{Lab, advert, on_board, one_step, requires, step, with};

/// An advert declares, renews and answers in one; the list of leases is complete.
#[test]
fn an_advert_is_answered_with_all_leases_and_when_to_come_again() {
    let lab = Lab::new();
    assert_eq!(lab.node("b1", &["board"]), json!({"leases": [], "renew_seconds": 20.0, "drain": null}));
    let run = lab.placed(&one_step());
    lab.advance(10.5);
    let answer = lab.node("b1", &["board"]);
    let lease = &answer["leases"][0];
    assert_eq!((&lease["run_id"], &lease["node_id"], &lease["ttl_seconds"]), (&json!(run), &json!("b1"), &json!(600)));
    let claim = lab.claimed("b1");
    assert_eq!(claim["lease"]["nonce"], lease["nonce"], "the same fencing token");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.node("b1", &["board"])["leases"], json!([]), "what is not in it is gone");
}

/// `renew_seconds` is at most a third of both lifetimes, and may be a fraction.
#[test]
fn agents_are_told_to_come_again_in_time() {
    let lab = Lab::with(|settings| settings.advert_ttl_ms = 1000);
    let answer = lab.node("b1", &["board"]);
    assert!((0.3..=0.334).contains(&answer["renew_seconds"].as_f64().expect("a number")), "{answer}");
}

/// I8: a nonce is told to its holder alone.
#[test]
fn a_node_is_shown_without_its_nonce() {
    let lab = Lab::new();
    let body = json!({"node_id": "b1", "label": "the left one", "instance": "i", "agent_version": "1", "host": "pc",
        "capabilities": [{"capability": "board", "attrs": {"slots": 4, "usb": "1-2", "hot": true}}, {"capability": "board"}]});
    lab.post("/v1/nodes", &body).expect(200);
    let run = lab.placed(&one_step());
    let shown = lab.get("/v1/nodes/b1").expect(200);
    assert_eq!(
        shown,
        json!({
            "node_id": "b1", "label": "the left one", "instance": "i", "static": false, "live": true,
            "last_seen": "2027-01-15T08:00:00.000Z", "drain": null, "drains": [], "cleaning": null,
            "capabilities": [{"capability": "board", "attrs": {"hot": "true", "slots": "4", "usb": "1-2"}}, {"capability": "board", "attrs": {}}],
            "lease": {"run_id": run, "not_after": "2027-01-15T08:10:00.000Z", "ttl_seconds": 600},
            "holders": [{"run_id": run, "principal": "operator", "work": null, "from": "2027-01-15T08:00:00.000Z", "to": null,
                "why": null}],
            "waiting": [],
        })
    );
    let nonce: String = lab.row("SELECT nonce FROM leases", [], |row| row.get(0));
    for path in ["/v1/nodes", "/v1/nodes/b1", "/v1/runs", "/v1/capabilities", &format!("/v1/runs/{run}")] {
        let reply = lab.get(path);
        assert!(!String::from_utf8_lossy(&reply.bytes).contains(&nonce), "{path} tells the nonce");
    }
}

/// One entry must fit alone; `4` and `"4"` are one; every node has the attribute `node`.
#[test]
fn one_entry_of_an_advert_must_fit_alone() {
    let lab = Lab::new();
    let body = json!({"node_id": "b1", "instance": "i", "capabilities": [
        {"capability": "board", "attrs": {"model": "a", "slots": 4}}, {"capability": "board", "attrs": {"model": "b"}}]});
    lab.post("/v1/nodes", &body).expect(200);
    let wants = |attrs: Value| {
        let contract =
            json!({"requires": [{"as": "dut", "capability": "board", "attrs": attrs}], "steps": [step("w", "dut")]});
        lab.post("/v1/runs?dry_run=true", &contract).status
    };
    assert_eq!(wants(json!({"model": "a", "slots": "4"})), 200);
    assert_eq!(wants(json!({"model": "b", "node": "b1"})), 200);
    assert_eq!(wants(json!({"model": "b", "slots": 4})), 422);
    assert_eq!(wants(json!({"model": "a", "node": "b2"})), 422);
}

/// I11: a life that another has replaced is refused; one that has not advertised cannot claim.
#[test]
fn a_replaced_life_of_an_agent_is_refused() {
    let lab = Lab::new();
    for life in 0..20 {
        lab.advert("b1", &format!("i{life}"), &["board"]);
        lab.advance(1.0);
    }
    for life in 3..19 {
        let old = format!("i{life}");
        lab.post("/v1/nodes", &advert("b1", &old, &["board"])).problem(409, "stale-instance");
        lab.post("/v1/nodes/b1/claim", &json!({"instance": old})).problem(409, "stale-instance");
    }
    lab.post("/v1/nodes/b1/claim", &json!({"instance": "i20"})).problem(409, "unknown-instance");
    lab.post("/v1/nodes/none/claim", &json!({"instance": "i"})).problem(404, "not-found");
    assert_eq!(lab.show_node("b1")["instance"], "i19");
}

/// A new life fails only the runs whose step the earlier one had in hand.
#[test]
fn a_new_life_fails_the_run_with_a_step_in_hand_and_keeps_another() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let first = lab.node("b1", &["board"])["leases"][0]["nonce"].clone();
    let answer = lab.advert("b1", "b1-2", &["board"]);
    assert_eq!(
        (&answer["leases"][0]["run_id"], &answer["leases"][0]["nonce"]),
        (&json!(run), &first),
        "nothing was in hand"
    );
    let claim = lab.post("/v1/nodes/b1/claim", &json!({"instance": "b1-2"})).expect(200);
    let answer = lab.advert("b1", "b1-3", &["board"]);
    assert_eq!(answer["leases"], json!([]));
    let verdict = lab.run(&run)["verdict"].clone();
    assert_eq!(
        (&verdict["kind"], &verdict["step"], &verdict["node"]),
        (&json!("agent-restarted"), &json!("work"), &json!("b1"))
    );
    lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    assert_eq!(lab.events("step.late-report"), 1, "the late report is noted");
}

/// A node not heard of is not live from its deadline on, and only an advert clears the mark.
#[test]
fn silence_outlives_the_daemon() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    lab.advance(59.9);
    assert_eq!((lab.show_node("b1")["live"].clone(), lab.events("node.silent")), (json!(true), 0));
    lab.heartbeat("b2");
    lab.advance(0.1);
    assert_eq!((lab.show_node("b1")["live"].clone(), lab.events("node.silent")), (json!(false), 1));
    lab.restart_after(1000.0);
    assert_eq!(lab.show_node("b1")["live"], false, "marked: it stays silent");
    assert_eq!(lab.show_node("b2")["live"], true, "not marked: it counts as live for one lifetime");
    lab.placed(&one_step());
    assert!(lab.holder("b2").is_some());
    lab.advance(59.0);
    assert_eq!(lab.show_node("b2")["live"], true);
    lab.advance(1.0);
    assert_eq!(lab.show_node("b2")["live"], false);
    lab.heartbeat("b1");
    assert_eq!((lab.show_node("b1")["live"].clone(), lab.events("node.back")), (json!(true), 1));
}

/// A static node has no agent: it never goes silent, nobody claims for it, no command runs on it.
#[test]
fn a_static_node_is_declared_and_stays() {
    let lab = Lab::new();
    lab.static_node("outlet", &["plug"]);
    let shown = lab.show_node("outlet");
    assert_eq!((&shown["static"], &shown["instance"], &shown["live"]), (&json!(true), &Value::Null, &json!(true)));
    lab.post("/v1/nodes", &advert("outlet", "i", &["plug"])).problem(409, "static-node");
    lab.post("/v1/nodes/outlet/claim", &json!({"instance": "i"})).problem(409, "static-node");
    lab.node("b1", &["board"]);
    let body = json!({"node_id": "b1", "static": true, "capabilities": []});
    lab.post("/v1/nodes", &body).problem(409, "static-node");
    lab.advance(30.0 * 86_400.0);
    assert_eq!(lab.show_node("outlet")["live"], true);
    lab.placed(&json!({"requires": requires(&["p=plug"]), "steps": [{"id": "h", "hold": {}}]}));
    lab.submit(&json!({"requires": requires(&["p=plug"]), "steps": [step("w", "p")]})).problem(422, "no-candidate");
}

/// A node is removed only when no run holds it; an agent that still speaks for it makes it anew.
#[test]
fn a_node_is_removed_when_no_run_holds_it() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let problem = lab.delete("/v1/nodes/b1").problem(409, "node-leased");
    assert_eq!(problem["run_id"], json!(run));
    let claim = lab.claimed("b1");
    let answer = lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    lab.delete("/v1/nodes/b1").expect(200);
    lab.get("/v1/nodes/b1").problem(404, "not-found");
    lab.delete("/v1/nodes/b1").problem(404, "not-found");
    lab.submit(&one_step()).problem(422, "no-candidate");
    assert_eq!(lab.report("b1", &claim, json!({"exit_code": 0})).expect(200), answer, "its reports are kept");
    lab.report("b1", &claim, json!({"exit_code": 1})).problem(404, "not-found");
    lab.node("b1", &["board"]);
    lab.placed(&one_step());
}

/// Changed capabilities count for the next lease; what is held stays held.
#[test]
fn an_advert_replaces_the_one_before() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    lab.node("b1", &["host"]);
    assert_eq!((lab.state(&run).as_str(), lab.holder("b1")), ("RUNNING", Some(run)));
    lab.submit(&one_step()).problem(422, "no-candidate");
    lab.work("b1", 0);
    lab.placed(&json!({"requires": requires(&["pc=host"]), "steps": [step("w", "pc")]}));
}

/// Special nodes stay free for those who need them; among equals the id decides.
#[test]
fn plain_nodes_are_taken_first() {
    let lab = Lab::new();
    lab.node("a-special", &["board model=a", "meter"]);
    lab.node("z-plain", &["board"]);
    lab.node("y-plain", &["board"]);
    for expected in ["y-plain", "z-plain", "a-special"] {
        let run = lab.placed(&one_step());
        assert_eq!(lab.holder(expected), Some(run));
    }
}

/// What breaks an advert's grammar is refused with its place.
#[test]
fn a_bad_advert_is_400_and_names_the_field() {
    let lab = Lab::new();
    let good = || advert("b1", "i", &["board"]);
    for (body, path) in [
        (json!({}), "/node_id"),
        (with(good(), "node_id", "a b"), "/node_id"),
        (with(good(), "instance", Value::Null), "/instance"),
        (with(good(), "instance", ""), "/instance"),
        (with(good(), "capabilities", Value::Null), "/capabilities"),
        (with(good(), "capabilities", json!([{}])), "/capabilities/0/capability"),
        (with(good(), "capabilities", json!([{"capability": "x", "attr": {}}])), "/capabilities/0/attr"),
        (with(good(), "capabilities", json!([{"capability": "x", "attrs": {"a": []}}])), "/capabilities/0/attrs/a"),
        (with(good(), "capabilities", json!([{"capability": "x", "attrs": {"node": "b2"}}])), "/capabilities/0/attrs"),
        (with(good(), "policy", json!({"drain": "now"})), "/policy/drain"),
        (with(good(), "policy", json!({"mode": "graceful"})), "/policy/mode"),
        (with(good(), "static", true), "/instance"),
        (with(good(), "color", "red"), "/color"),
    ] {
        let problem = lab.post("/v1/nodes", &body).problem(400, "invalid-request");
        assert_eq!(problem["path"], path, "{body}");
    }
    assert_eq!(lab.number("SELECT count(*) FROM nodes"), 0);
}

/// Lists page by id and tell what the lab can do.
#[test]
fn nodes_and_capabilities_are_listed() {
    let lab = Lab::new();
    for node in ["b3", "b1", "b2"] {
        lab.node(node, &[&format!("board model={node}")]);
    }
    lab.placed(&on_board(json!([step("w", "dut")])));
    let first = lab.get("/v1/nodes?limit=2").expect(200);
    let second =
        lab.get(&format!("/v1/nodes?limit=2&cursor={}", first["next"].as_str().expect("a cursor"))).expect(200);
    let ids = |page: &Value| -> Vec<String> {
        page["nodes"]
            .as_array()
            .expect("nodes")
            .iter()
            .map(|n| n["node_id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(
        (ids(&first), ids(&second), &second["next"]),
        (vec!["b1".into(), "b2".into()], vec!["b3".into()], &Value::Null)
    );
    assert_eq!(
        lab.get("/v1/capabilities").expect(200)["capabilities"],
        json!([
        {"capability": "board", "known": 3, "live": 3, "free": 2, "attrs": {"model": ["b1", "b2", "b3"]}}])
    );
    for bad in ["limit=0", "limit=501", "limit=x", "nonsense=1"] {
        lab.get(&format!("/v1/nodes?{bad}")).problem(400, "invalid-request");
    }
}
