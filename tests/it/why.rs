//! Why: what a waiting run waits for, what a running one is at, and what ended one.

use serde_json::{Value, json};

use crate::support::{Daemon, Lab, id_of, on_board, one_step, requires, step, with};

fn why(lab: &Lab, run: &str) -> Value {
    lab.get(&format!("/v1/runs/{run}/why")).expect(200)
}

/// Checks the code and returns the sentence.
#[track_caller]
fn says(lab: &Lab, run: &str, code: &str) -> String {
    let why = why(lab, run);
    assert_eq!(why["code"], code, "{why}");
    why["detail"].as_str().expect("a sentence").to_owned()
}

/// The numbers of a role as `wanted known live free`.
fn numbers(role: &Value) -> String {
    ["wanted", "known", "live", "free"].map(|name| role[name].to_string()).join(" ")
}

/// For each fitting node who holds it, since when and until when.
#[test]
fn a_busy_node_is_told_with_its_holder() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let holder = lab.placed(&with(one_step(), "limit_seconds", 3600));
    lab.advance(5.0);
    lab.heartbeat("b1");
    let first = lab.queued(&one_step());
    let second = lab.queued(&one_step());
    let answer = why(&lab, &second);
    let lease = lab.run(&holder);
    assert_eq!(
        answer,
        json!({
            "code": "nodes-busy",
            "detail": format!("role `dut` needs 1 more node: run {holder} has to give back b1"),
            "position": 2, "passed": 0,
            "roles": [{"as": "dut", "wanted": 1, "known": 1, "live": 1, "free": 0, "nodes": [{
                "node_id": "b1", "status": "leased", "run_id": holder, "since": lease["started_at"],
                "ends_by": lease["ends_by"], "by": "operator", "reason": null,
            }]}],
        })
    );
    assert_eq!(why(&lab, &first)["position"], 1);
    lab.get("/v1/runs/unknown/why").problem(404, "not-found");
}

/// Of a node that drains: who, why, since when; of a silent one: when it was last seen.
#[test]
fn a_draining_or_silent_node_is_told() {
    let lab = Lab::new();
    for node in ["b1", "b2", "b3"] {
        lab.node(node, &["board"]);
    }
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful", "reason": "new cable"})).expect(200);
    let all = json!({"requires": [{"as": "dut", "capability": "board", "count": 3}], "steps": [step("w", "dut")]});
    let run = lab.queued(&all);
    let detail = says(&lab, &run, "nodes-draining");
    assert_eq!(detail, "role `dut` needs 1 more node: the drain of b1 has to be lifted");
    let answer = why(&lab, &run);
    let role = &answer["roles"][0];
    assert_eq!(numbers(role), "3 3 3 2");
    let drained = &role["nodes"][0];
    assert_eq!(
        (&drained["status"], &drained["by"], &drained["reason"]),
        (&json!("draining"), &json!("operator"), &json!("new cable"))
    );
    assert_eq!(drained["since"], lab.show_node("b1")["drains"][0]["since"]);
    assert_eq!(
        role["nodes"][1],
        json!({"node_id": "b2", "status": "free", "run_id": null, "since": null, "ends_by": null, "by": null, "reason": null})
    );

    lab.advance(40.0);
    lab.heartbeat("b1");
    lab.heartbeat("b2");
    lab.advance(40.0);
    lab.delete("/v1/nodes/b1/drain").expect(200);
    let detail = says(&lab, &run, "nodes-silent");
    assert_eq!(detail, "role `dut` needs 1 more node: b3 has to be heard of again");
    let answer = why(&lab, &run);
    let role = &answer["roles"][0];
    assert_eq!(numbers(role), "3 3 2 2");
    assert_eq!(
        (&role["nodes"][2]["status"], &role["nodes"][2]["since"]),
        (&json!("silent"), &lab.show_node("b3")["last_seen"])
    );
    lab.heartbeat("b3");
    says(&lab, &run, "running");
}

/// What could be served at submission may never be again: then it says so.
#[test]
fn a_run_whose_nodes_are_gone_says_so() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    let run = lab.queued(&one_step());
    lab.delete("/v1/nodes/b1").expect(200);
    let detail = says(&lab, &run, "no-candidate");
    assert!(detail.contains("no set of known nodes"), "{detail}");
    assert_eq!(numbers(&why(&lab, &run)["roles"][0]), "1 0 0 0");
    lab.node("b2", &["board"]);
    assert_eq!(says(&lab, &run, "running"), "step `work` is ready and not yet claimed by the agent of b2");
}

/// Nodes that are free and would be too many for one run.
#[test]
fn a_run_that_is_too_wide_for_now_says_so() {
    let lab = Lab::with(|settings| settings.lease_max_per_run = 1);
    lab.node("all", &["board", "builder"]);
    lab.placed(&on_board(json!([{"id": "h", "hold": {}}])));
    lab.node("b1", &["board a=1 b=2 c=3"]);
    lab.node("h1", &["builder a=1 b=2 c=3"]);
    let both = json!({"requires": requires(&["dut=board", "host=builder"]), "steps": [step("w", "dut")]});
    let run = lab.queued(&both);
    let detail = says(&lab, &run, "too-wide");
    assert!(detail.contains("lease.max_per_run"), "{detail}");
}

/// Each role alone could be served, but not all together.
#[test]
fn roles_that_compete_say_so() {
    let lab = Lab::new();
    lab.node("b1", &["board model=mk1"]);
    lab.node("b2", &["board model=mk2"]);
    let mk2 = json!([{"as": "dut", "capability": "board", "attrs": {"model": "mk2"}}]);
    lab.placed(&with(one_step(), "requires", mk2));
    let both = json!({
        "requires": [{"as": "a", "capability": "board", "attrs": {"model": "mk1"}}, {"as": "b", "capability": "board"}],
        "steps": [step("w", "a")],
    });
    let run = lab.queued(&both);
    says(&lab, &run, "nodes-shared");
    let roles = why(&lab, &run)["roles"].clone();
    assert_eq!((numbers(&roles[0]).as_str(), numbers(&roles[1]).as_str()), ("1 1 1 1", "1 2 2 1"));
}

/// That others passed it, how many, and why that is so.
#[test]
fn runs_that_passed_are_counted() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("h1", &["builder"]);
    lab.placed(&one_step());
    let waiting = lab.queued(&one_step());
    let build = json!({"requires": requires(&["host=builder"]), "steps": [step("w", "host")]});
    lab.placed(&build);
    lab.queued(&build);
    assert_eq!(why(&lab, &waiting)["passed"], 1);
    let detail = says(&lab, &waiting, "nodes-busy");
    assert!(detail.ends_with("; 1 later run has started meanwhile, on nodes that this one could not use at that moment: no node is kept back"), "{detail}");
    lab.work("h1", 0);
    assert_eq!(why(&lab, &waiting)["passed"], 2, "one that waited behind it has passed it too");
}

/// What a running run is at.
#[test]
fn a_running_run_says_what_it_is_at() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let look = json!({"id": "look", "ask": {"prompt": "green?"}});
    let run = lab.placed(&on_board(json!([step("work", "dut"), look, {"id": "h", "hold": {}}])));
    assert_eq!(says(&lab, &run, "running"), "step `work` is ready and not yet claimed by the agent of b1");
    let claim = lab.claimed("b1");
    assert_eq!(says(&lab, &run, "running"), "step `work` is under way on b1");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(says(&lab, &run, "running"), "step `look` waits for an answer (`mediator asks`)");
    lab.answer(&run, 2, "yes").expect(200);
    assert_eq!(says(&lab, &run, "running"), "operator holds its nodes (step `h`)");
    let answer = why(&lab, &run);
    assert_eq!((&answer["position"], &answer["roles"]), (&Value::Null, &json!([])));
}

/// A hold that waits until its node has settled says so, and not that an agent has to claim it.
#[test]
fn a_hold_that_waits_for_a_settling_node_says_so() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let first = lab.placed(&one_step());
    lab.claimed("b1");
    lab.cancel(&first);
    let run = lab.placed(&on_board(json!([{"id": "h", "hold": {}}])));
    assert_eq!(lab.steps(&run), "PENDING");
    assert_eq!(says(&lab, &run, "running"), "step `h` opens once the agent of b1 has stopped its earlier work");
    assert!(lab.claim("b1").is_none());
    says(&lab, &run, "running");
    assert_eq!(lab.steps(&run), "CLAIMED");
}

/// For a run that ended: what ended it.
#[test]
fn an_ended_run_says_what_ended_it() {
    let lab = Lab::new();
    let refused = lab.submit(&one_step()).problem(422, "no-candidate");
    let rejected = refused["run_id"].as_str().expect("a run").to_owned();
    assert!(says(&lab, &rejected, "rejected").contains("board"));
    lab.node("b1", &["board"]);
    let ended = |end: &dyn Fn(&str)| {
        let run = lab.placed(&one_step());
        end(&run);
        run
    };
    let works = ended(&|_| drop(lab.work("b1", 0)));
    assert!(!says(&lab, &works, "succeeded").is_empty());
    let fails = ended(&|_| drop(lab.work("b1", 3)));
    assert_eq!(says(&lab, &fails, "step-failed"), "step `work` ended with exit code 3 on node b1");
    let cancelled = ended(&|run| {
        drop(lab.post(&format!("/v1/runs/{run}/cancel"), &json!({"reason": "wrong branch"})).expect(200));
    });
    let detail = says(&lab, &cancelled, "cancelled");
    assert!(detail.contains("operator") && detail.contains("wrong branch"), "{detail}");
    let drained = ended(&|_| {
        lab.post("/v1/nodes/b1/drain", &json!({"mode": "at-boundary", "reason": "fire"})).expect(200);
        lab.delete("/v1/nodes/b1/drain").expect(200);
    });
    let detail = says(&lab, &drained, "drained");
    assert!(detail.contains("b1") && detail.contains("fire"), "{detail}");
    let restarted = ended(&|_| {
        lab.claimed("b1");
        lab.advert("b1", "b1-2", &["board"]);
    });
    assert!(says(&lab, &restarted, "agent-restarted").contains("b1"));
    // No time limit is enforced just after a start.
    lab.advance(60.0);
    lab.advert("b1", "b1-2", &["board"]);
    let late = lab.placed(&with(one_step(), "limit_seconds", 40));
    lab.advance(41.0);
    assert!(says(&lab, &late, "time-limit").contains("40"));
    lab.heartbeat("b1");
    let lost = lab.placed(&one_step());
    let waiting = lab.queued(&with(one_step(), "queue_timeout_seconds", 10));
    lab.advance(11.0);
    assert!(says(&lab, &waiting, "queue-timeout").contains("10"));
    let gone = lab
        .queued(&json!({"requires": requires(&["dut=board"]), "steps": [{"id": "h", "hold": {}}], "attended": true}));
    lab.advance(130.0);
    assert!(says(&lab, &gone, "holder-gone").contains("operator"));
    lab.advance(600.0);
    assert!(says(&lab, &lost, "node-lost").contains("b1"));
    for run in [&works, &fails, &lost, &gone] {
        let verdict = lab.run(run)["verdict"].clone();
        let why = why(&lab, run);
        assert_eq!((&why["code"], &why["detail"]), (&verdict["kind"], &verdict["detail"]));
    }
}

/// What the commands tell a person of a lab where one works, one waits and one is over.
#[test]
fn the_commands_tell_the_story() {
    let daemon = Daemon::start();
    daemon.node("b1", &["board"]);
    let submit = |name: &str| id_of(&daemon.call("POST", "/v1/runs", &with(one_step(), "run_id", name)).body);
    let over = submit("over");
    let claim = daemon.claimed("b1");
    let report = crate::support::report("b1", &claim, json!({"exit_code": 0}));
    daemon.call("POST", &crate::support::result_path(&claim), &report).expect(200);
    let holder = submit("holder");
    daemon.claimed("b1");
    let waiting = submit("waiting");

    let table = daemon.mediator(&["runs"]).expect(0).out;
    let row = |run: &str| {
        let row = table.lines().find(|line| line.starts_with(run)).unwrap_or_else(|| panic!("{run} in {table}"));
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row(&over).ends_with("0 s succeeded: every step ended well"), "{table}");
    assert!(row(&holder).ends_with("0 s dut=b1; b1 works on work"), "{table}");
    assert!(row(&waiting).contains("QUEUED") && row(&waiting).ends_with("position 1"), "{table}");

    let shown = daemon.mediator(&["show", &holder]).expect(0).out;
    for part in ["state:     RUNNING on dut=b1", "waited:    0 s", "now:       b1 works on work"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let node = daemon.mediator(&["node", "show", "b1"]).expect(0).out;
    for part in ["state:      leased by holder", "waiting:    waiting", "it holds it now", "succeeded"] {
        assert!(node.contains(part), "{part} is not in {node}");
    }
    let why = daemon.mediator(&["why", &waiting]).expect(0).out;
    assert!(why.starts_with("run waiting (nodes-busy, position 1): role `dut` needs 1 more node: run holder"), "{why}");
    let why = daemon.mediator(&["why", &over]).expect(0).out;
    assert_eq!(why, "run over (succeeded): every step ended well\n");
    let events = daemon.mediator(&["events", "--run", &over, "--after", "0"]).expect(0).out;
    let names: Vec<&str> = events.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!((names.first(), names.last()), (Some(&"run.submitted"), Some(&"run.ended")), "{events}");
}
