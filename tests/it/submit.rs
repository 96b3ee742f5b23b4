//! Submitting: what is answered, and what is stored, row by row.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use mediator::store::Store;
use serde_json::{Value, json};

use crate::support::{Daemon, Lab, id_of, on_board, one_step, requires, step, with};

/// Contracts that break one rule each, with the pointer to what is wrong.
fn bad_contracts() -> Vec<(&'static str, Value, &'static str)> {
    let top = |field: &str, value: Value| with(one_step(), field, value);
    let role = |value: Value| json!({"requires": [value], "steps": [step("work", "dut")]});
    let first = |field: &str, value: Value| on_board(json!([with(step("work", "dut"), field, value)]));
    let second =
        |field: &str, value: Value| on_board(json!([step("one", "dut"), with(step("two", "dut"), field, value)]));
    let ask = |value: Value| on_board(json!([{"id": "q", "ask": value}]));
    let acquire = |value: Value| {
        on_board(json!([
            {"id": "get", "acquire": value},
            {"id": "use", "uses": "x", "run": ["true"]},
            {"id": "not", "uses": "dut", "run": ["true"], "needs": ["get"]},
        ]))
    };
    let want = || json!({"as": "x", "capability": "meter"});
    let had = || json!({"want": want(), "acquired": "use", "unavailable": "not"});
    let looped = |steps: Value| on_board(steps);
    vec![
        // The top level.
        ("a body that is no object", json!([1]), ""),
        ("an unknown field", top("prioritty", json!(1)), "/prioritty"),
        ("no requires", json!({"steps": [step("work", "dut")]}), "/requires"),
        ("no steps", json!({"requires": requires(&["dut=board"])}), "/steps"),
        ("requires is no list", top("requires", json!({})), "/requires"),
        ("requires is empty", top("requires", json!([])), "/requires"),
        (
            "33 roles",
            top("requires", (0..33).map(|n| json!({"as": format!("r{n}"), "capability": "board"})).collect()),
            "/requires",
        ),
        ("steps is empty", top("steps", json!([])), "/steps"),
        ("501 steps", top("steps", (0..501).map(|n| step(&format!("s{n}"), "dut")).collect()), "/steps"),
        ("a name that is no text", top("name", json!(7)), "/name"),
        ("a run_id that is no id", top("run_id", json!("a b")), "/run_id"),
        ("a run_id that begins with a dot", top("run_id", json!(".a")), "/run_id"),
        ("a run_id of 65 characters", top("run_id", json!("a".repeat(65))), "/run_id"),
        ("a work that is no text", top("work", json!({})), "/work"),
        ("distinct_nodes that is no boolean", top("distinct_nodes", json!("yes")), "/distinct_nodes"),
        ("a priority above 10", top("priority", json!(11)), "/priority"),
        ("a priority below -10", top("priority", json!(-11)), "/priority"),
        ("a priority with a fraction", top("priority", json!(0.5)), "/priority"),
        ("queue_timeout_seconds of 0", top("queue_timeout_seconds", json!(0)), "/queue_timeout_seconds"),
        ("limit_seconds below 0", top("limit_seconds", json!(-1)), "/limit_seconds"),
        ("limit_seconds as a text", top("limit_seconds", json!("60")), "/limit_seconds"),
        ("attended without a hold", top("attended", json!(true)), "/attended"),
        ("attended that is no boolean", top("attended", json!(1)), "/attended"),
        // Requirements.
        ("a role that is no object", role(json!("board")), "/requires/0"),
        ("a role without a name", role(json!({"capability": "board"})), "/requires/0/as"),
        ("a role without a capability", role(json!({"as": "dut"})), "/requires/0/capability"),
        ("an empty capability", role(json!({"as": "dut", "capability": ""})), "/requires/0/capability"),
        ("a role's name with a dot", role(json!({"as": "dut.1", "capability": "board"})), "/requires/0/as"),
        (
            "an unknown field of a role",
            role(json!({"as": "dut", "capability": "board", "attr": {}})),
            "/requires/0/attr",
        ),
        ("a count of 0", role(json!({"as": "dut", "capability": "board", "count": 0})), "/requires/0/count"),
        ("a count of 33", role(json!({"as": "dut", "capability": "board", "count": 33})), "/requires/0/count"),
        ("attrs that are a list", role(json!({"as": "dut", "capability": "board", "attrs": []})), "/requires/0/attrs"),
        (
            "an attribute that is an object",
            role(json!({"as": "dut", "capability": "board", "attrs": {"m": {}}})),
            "/requires/0/attrs/m",
        ),
        (
            "an attribute with a fraction",
            role(json!({"as": "dut", "capability": "board", "attrs": {"m": 1.5}})),
            "/requires/0/attrs/m",
        ),
        ("two roles of one name", top("requires", requires(&["dut=board", "dut=board"])), "/requires/1/as"),
        ("two roles of one variable", top("requires", requires(&["dut=board", "DUT=board"])), "/requires/1/as"),
        // Steps.
        ("a step that is no object", on_board(json!([1])), "/steps/0"),
        ("a step without an id", on_board(json!([{"uses": "dut", "run": ["true"]}])), "/steps/0/id"),
        ("a step's id that is none", first("id", json!("a/b")), "/steps/0/id"),
        ("two steps of one id", on_board(json!([step("a", "dut"), step("a", "dut")])), "/steps/1/id"),
        ("a step of no kind", on_board(json!([{"id": "a"}])), "/steps/0"),
        ("a step of two kinds", first("hold", json!({})), "/steps/0"),
        ("an unknown field of a step", first("timeout", json!(5)), "/steps/0/timeout"),
        ("needs of itself", first("needs", json!(["work"])), "/steps/0/needs/0"),
        (
            "needs of a later step",
            on_board(json!([with(step("a", "dut"), "needs", json!(["b"])), step("b", "dut")])),
            "/steps/0/needs/0",
        ),
        ("needs of no step", second("needs", json!(["one", "none"])), "/steps/1/needs/1"),
        ("needs twice of one", second("needs", json!(["one", "one"])), "/steps/1/needs/1"),
        ("needs that is a text", second("needs", json!("one")), "/steps/1/needs"),
        ("allow_failure that is no boolean", first("allow_failure", json!("no")), "/steps/0/allow_failure"),
        // Commands.
        ("a command that is a text", first("run", json!("make all")), "/steps/0/run"),
        ("a command without words", first("run", json!([])), "/steps/0/run"),
        ("a command whose first word is empty", first("run", json!([""])), "/steps/0/run"),
        ("a word that is a number", first("run", json!(["sleep", 5])), "/steps/0/run/1"),
        ("a command without a role", on_board(json!([{"id": "a", "run": ["true"]}])), "/steps/0/uses"),
        ("an unknown role", first("uses", json!("host")), "/steps/0/uses"),
        ("a node that the role does not have", first("uses", json!("dut.1")), "/steps/0/uses"),
        ("a role's number with a zero before", first("uses", json!("dut.00")), "/steps/0/uses"),
        ("env that is a list", first("env", json!(["A=1"])), "/steps/0/env"),
        ("a value of env that is a list", first("env", json!({"A": []})), "/steps/0/env/A"),
        ("a variable with an equals sign", first("env", json!({"A=B": "1"})), "/steps/0/env/A=B"),
        ("pass_env that is an object", first("pass_env", json!({})), "/steps/0/pass_env"),
        ("pass_env with an empty name", first("pass_env", json!([""])), "/steps/0/pass_env/0"),
        ("a time-out of 0", first("timeout_seconds", json!(0)), "/steps/0/timeout_seconds"),
        ("an absolute artifact", first("artifacts", json!(["/etc/passwd"])), "/steps/0/artifacts/0"),
        ("an artifact above", first("artifacts", json!(["out", "../out"])), "/steps/0/artifacts/1"),
        // Questions.
        ("a question that is a text", ask(json!("ok?")), "/steps/0/ask"),
        ("a question without a prompt", ask(json!({})), "/steps/0/ask/prompt"),
        ("an unknown field of a question", ask(json!({"prompt": "?", "option": []})), "/steps/0/ask/option"),
        (
            "accept that is no option",
            ask(json!({"prompt": "?", "options": ["a"], "accept": ["b"]})),
            "/steps/0/ask/accept",
        ),
        ("accept without options", ask(json!({"prompt": "?", "accept": ["b"]})), "/steps/0/ask/accept"),
        ("an option twice", ask(json!({"prompt": "?", "options": ["a", "a"]})), "/steps/0/ask/options/1"),
        ("a question's time of 0", ask(json!({"prompt": "?", "timeout_seconds": 0})), "/steps/0/ask/timeout_seconds"),
        ("answerers that are a text", ask(json!({"prompt": "?", "answerers": "me"})), "/steps/0/ask/answerers"),
        (
            "a question with a role",
            on_board(json!([{"id": "q", "ask": {"prompt": "?"}, "uses": "dut"}])),
            "/steps/0/uses",
        ),
        // Acquisitions.
        (
            "an acquisition of nothing",
            acquire(json!({"acquired": "use", "unavailable": "not"})),
            "/steps/0/acquire/want",
        ),
        (
            "a count of what is wanted",
            acquire(with(had(), "want", with(want(), "count", 1))),
            "/steps/0/acquire/want/count",
        ),
        ("a way that is no step", acquire(with(had(), "acquired", "none")), "/steps/0/acquire/acquired"),
        ("one step for both ways", acquire(with(had(), "unavailable", "use")), "/steps/0/acquire/unavailable"),
        ("only one way", acquire(json!({"want": want(), "acquired": "use"})), "/steps/0/acquire/unavailable"),
        (
            "a way that does not need it",
            on_board(json!([
            {"id": "get", "acquire": had()},
            {"id": "use", "uses": "x", "run": ["true"]},
            {"id": "not", "uses": "dut", "run": ["true"], "needs": ["use"]}])),
            "/steps/0/acquire/unavailable",
        ),
        (
            "what may not be had is used anyhow",
            on_board(json!([
            {"id": "get", "acquire": had()},
            {"id": "use", "uses": "x", "run": ["true"]},
            {"id": "not", "uses": "dut", "run": ["true"], "needs": ["get"]},
            {"id": "end", "uses": "x", "run": ["true"], "needs": ["use", "not"]}])),
            "/steps/3/uses",
        ),
        (
            "a role that is there already",
            acquire(with(had(), "want", json!({"as": "dut", "capability": "meter"}))),
            "/steps/0/acquire/want/as",
        ),
        (
            "an acquisition that releases",
            on_board(json!([{"id": "get", "acquire": had(), "release": ["dut"]},
            {"id": "use", "uses": "x", "run": ["true"]},
            {"id": "not", "uses": "dut", "run": ["true"], "needs": ["get"]}])),
            "/steps/0/release",
        ),
        (
            "an acquisition that may fail",
            on_board(json!([{"id": "get", "acquire": had(), "allow_failure": true},
            {"id": "use", "uses": "x", "run": ["true"]},
            {"id": "not", "uses": "dut", "run": ["true"], "needs": ["get"]}])),
            "/steps/0/allow_failure",
        ),
        // Holds.
        ("a hold that is a text", on_board(json!([{"id": "h", "hold": "me"}])), "/steps/0/hold"),
        ("an unknown field of a hold", on_board(json!([{"id": "h", "hold": {"ttl": 5}}])), "/steps/0/hold/ttl"),
        (
            "a hold's time of 0",
            on_board(json!([{"id": "h", "hold": {"timeout_seconds": 0}}])),
            "/steps/0/hold/timeout_seconds",
        ),
        // Releases.
        ("a release of no role", first("release", json!(["host"])), "/steps/0/release/0"),
        ("a release of a node the role has not", first("release", json!(["dut.1"])), "/steps/0/release/0"),
        ("a release that is a text", first("release", json!("dut")), "/steps/0/release"),
        (
            "a role used after its release",
            on_board(json!([with(step("a", "dut"), "release", json!(["dut"])), step("b", "dut")])),
            "/steps/0/release/0",
        ),
        (
            "a role used beside its release",
            on_board(json!([
                step("a", "dut"),
                with(with(step("b", "dut"), "needs", json!([])), "release", json!(["dut"]))
            ])),
            "/steps/1/release/0",
        ),
        // Loops.
        ("a loop back to no step", first("loop", json!({"back_to": "none", "max": 2})), "/steps/0/loop/back_to"),
        (
            "a loop forward",
            looped(json!([with(step("a", "dut"), "loop", json!({"back_to": "b", "max": 2})), step("b", "dut")])),
            "/steps/0/loop/back_to",
        ),
        ("a loop without a number", first("loop", json!({"back_to": "work"})), "/steps/0/loop/max"),
        ("a loop of one attempt", first("loop", json!({"back_to": "work", "max": 1})), "/steps/0/loop/max"),
        ("a loop of 101 attempts", first("loop", json!({"back_to": "work", "max": 101})), "/steps/0/loop/max"),
        (
            "an unknown field of a loop",
            first("loop", json!({"back_to": "work", "max": 2, "min": 1})),
            "/steps/0/loop/min",
        ),
        (
            "a range that does not come before",
            second("loop", json!({"back_to": "one", "max": 2})).tap(|c| c["steps"][1]["needs"] = json!([])),
            "/steps/1/loop",
        ),
        (
            "a step outside that needs one inside",
            looped(json!([
                step("a", "dut"),
                with(step("b", "dut"), "loop", json!({"back_to": "a", "max": 2})),
                with(step("c", "dut"), "needs", json!(["a"]))
            ])),
            "/steps/1/loop",
        ),
        (
            "two ranges that overlap",
            looped(json!([
                step("a", "dut"),
                with(step("b", "dut"), "loop", json!({"back_to": "a", "max": 2})),
                with(step("c", "dut"), "loop", json!({"back_to": "b", "max": 2}))
            ])),
            "/steps/2/loop",
        ),
        (
            "a release inside a range",
            json!({"requires": requires(&["dut=board", "pc=host"]), "steps": [
            with(step("a", "pc"), "release", json!(["pc"])),
            with(step("b", "dut"), "loop", json!({"back_to": "a", "max": 2}))]}),
            "/steps/1/loop",
        ),
    ]
}

trait Tap: Sized {
    fn tap(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl Tap for Value {
    fn tap(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// What breaks the grammar is refused with its place, and nothing is stored.
#[test]
fn a_contract_that_breaks_the_grammar_is_400_and_names_the_field() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let before = lab.all_rows();
    let mut wrong = Vec::new();
    let bad = bad_contracts();
    assert!(bad.len() >= 60);
    for (what, contract, path) in &bad {
        let reply = lab.submit(contract);
        let found = (reply.status, reply.body["code"].as_str(), reply.body["path"].as_str());
        if found != (400, Some("invalid-contract"), Some(path)) {
            wrong.push(format!("{what}: {found:?} instead of {path:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(lab.all_rows(), before);
}

/// What other readers of JSON would repair is refused, too.
#[test]
fn text_that_is_not_strict_json_is_400() {
    let lab = Lab::new();
    let before = lab.all_rows();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(32), "]".repeat(32));
    for (body, path) in [
        ("{", ""),
        ("nothing", ""),
        ("{} {}", ""),
        ("{\"name\":\"a\",\"name\":\"a\"}", "/name"),
        ("{\"steps\":[{\"id\":\"a\",\"id\":\"a\"}]}", "/steps/0/id"),
        ("{\"priority\":9007199254740992}", "/priority"),
        ("{\"name\":\"a\\u0007\"}", "/name"),
        ("{\"name\":\"\\ud800\"}", ""),
        // The innermost array itself: it is empty.
        (deep.as_str(), &format!("/a{}", "/0".repeat(31))),
        ("", "/requires"),
    ] {
        let problem = lab.call_with("POST", "/v1/runs", &[], body.to_owned()).problem(400, "invalid-contract");
        assert_eq!(problem["path"], *path, "{body}: {problem}");
    }
    assert_eq!(lab.all_rows(), before);
}

/// What the grammar allows at its edges is taken.
#[test]
fn the_edges_of_the_grammar_are_allowed() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    for contract in [
        with(one_step(), "name", json!("with\ttab and\nnewline, and ü")),
        with(one_step(), "priority", 10),
        with(one_step(), "priority", -10),
        with(one_step(), "limit_seconds", 0.25),
        with(one_step(), "name", Value::Null),
        with(one_step(), "run_id", "a".repeat(64)),
        on_board(json!([{"id": "h", "hold": {}}])),
        on_board(json!([with(step("a", "dut.0"), "run", json!(["echo", ""]))])),
        on_board(json!([with(step("a", "dut"), "needs", json!([]))])),
        on_board(json!([with(step("a", "dut"), "ask", Value::Null)])),
        on_board(json!([with(step("a", "dut"), "loop", json!({"back_to": "a", "max": 100}))])),
        on_board((0..500).map(|n| step(&format!("s{n}"), "dut")).collect()),
        with(on_board(json!([{"id": "h", "hold": {}}])), "attended", true),
    ] {
        let run = lab.placed(&contract);
        lab.cancel(&run);
    }
}

/// 201: the run, its steps, its leases, and where to find it.
#[test]
fn a_run_that_fits_is_placed_at_once() {
    let lab = Lab::new();
    lab.node("b1", &["board model=rpi4"]);
    lab.node("h1", &["host"]);
    let contract = json!({
        "name": "smoke", "work": "gerrit:1", "priority": 3, "requires": requires(&["dut=board", "pc=host"]),
        "steps": [step("build", "pc"), with(step("flash", "dut"), "needs", json!([])), step("check", "dut"),
            {"id": "look", "ask": {"prompt": "?"}, "needs": []}],
    });
    let reply = lab.submit(&contract);
    let location = reply.header("location").expect("an address").to_owned();
    let run = reply.expect(201);
    assert_eq!(location, format!("/v1/runs/{}", id_of(&run)));
    assert_eq!(lab.get(&location).expect(200), run);
    for (field, value) in [
        ("name", json!("smoke")),
        ("state", json!("RUNNING")),
        ("principal", json!("operator")),
        ("work", json!("gerrit:1")),
        ("priority", json!(3)),
        ("created_at", json!("2027-01-15T08:00:00.000Z")),
        ("started_at", json!("2027-01-15T08:00:00.000Z")),
        ("ended_at", Value::Null),
        ("ends_by", json!("2027-01-16T08:00:00.000Z")),
        ("requires", contract["requires"].clone()),
        ("reject", Value::Null),
        ("verdict", Value::Null),
        ("queue", Value::Null),
        (
            "assigned",
            json!([
            {"as": "dut", "nodes": [{"node_id": "b1", "label": null, "attrs": {"model": "rpi4"}}]},
            {"as": "pc", "nodes": [{"node_id": "h1", "label": null, "attrs": {}}]}]),
        ),
    ] {
        assert_eq!(run[field], value, "{field}");
    }
    let steps: Vec<Value> = run["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|s| json!([s["seq"], s["id"], s["kind"], s["state"], s["needs"]]))
        .collect();
    assert_eq!(
        json!(steps),
        json!([
            [1, "build", "run", "PENDING", []],
            [2, "flash", "run", "PENDING", []],
            [3, "check", "run", "PENDING", ["flash"]],
            [4, "look", "ask", "ASKED", []]
        ])
    );
    assert_eq!((lab.holder("b1"), lab.holder("h1")), (Some(id_of(&run)), Some(id_of(&run))));
}

/// The answer to a submission that is queued is made without reading the run back.
#[test]
fn a_queued_run_is_answered_as_it_is_shown() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["meter"]);
    lab.placed(&one_step());
    let role = json!({"as": "dut", "capability": "board", "attrs": {"node": "b1"}});
    let all = on_board(json!([
        {"id": "q", "ask": {"prompt": "\u{201e}ja\u{201c}?", "timeout_seconds": 60}, "needs": []},
        {"id": "h", "hold": {}, "needs": []},
        {"id": "get", "acquire": {"want": {"as": "m", "capability": "meter"}, "acquired": "use", "unavailable": "not"}},
        {"id": "use", "uses": "m", "run": ["true"], "release": ["m"]},
        {"id": "not", "uses": "dut.0", "run": ["true"], "needs": ["get"]},
        {"id": "end", "uses": "dut", "run": ["true"], "needs": ["q", "not", "use"]},
    ]));
    for contract in [
        one_step(),
        all.clone(),
        with(with(all, "attended", json!(true)), "queue_timeout_seconds", json!(60)),
        with(with(one_step(), "priority", json!(7)), "run_id", json!("mine")),
        with(with(one_step(), "priority", json!(-7)), "limit_seconds", json!(9)),
        with(with(one_step(), "name", json!("n\u{e4}chtlich \"1\"")), "work", json!("bug/7")),
        with(with(one_step(), "requires", json!([role])), "distinct_nodes", json!(false)),
        one_step(),
    ] {
        let answered = lab.submit(&contract).expect(202);
        assert_eq!(answered, lab.run(&id_of(&answered)), "{contract}");
    }
}

/// 202: the run and its steps, and nothing held (I4).
#[test]
fn a_run_whose_nodes_are_taken_draining_or_silent_is_queued() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let holder = lab.placed(&one_step());
    let all = on_board(
        json!([{"id": "q", "ask": {"prompt": "?"}, "needs": []}, {"id": "h", "hold": {}, "needs": []}, step("work", "dut")]),
    );
    let reply = lab.submit(&all);
    assert!(reply.header("location").is_some());
    let queued = reply.expect(202);
    for (field, value) in [
        ("state", json!("QUEUED")),
        ("assigned", json!([])),
        ("queue", json!({"position": 1})),
        ("started_at", Value::Null),
        ("ends_by", Value::Null),
    ] {
        assert_eq!(queued[field], value, "{field}");
    }
    assert_eq!(lab.steps(&id_of(&queued)), "PENDING PENDING PENDING");
    assert_eq!(queued["steps"][2]["needs"], json!(["h"]), "normalised at submission");
    assert_eq!(lab.get("/v1/asks").expect(200)["asks"], json!([]));
    lab.cancel(&id_of(&queued));
    lab.cancel(&holder);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    let drained = lab.queued(&one_step());
    lab.cancel(&drained);
    lab.delete("/v1/nodes/b1/drain").expect(200);
    lab.advance(61.0);
    assert_eq!(lab.show_node("b1")["live"], false);
    lab.queued(&one_step());
}

/// The reaper marks silence, but what is submitted before it looks is not given a silent node either.
#[test]
fn a_node_is_granted_to_nobody_from_the_moment_it_is_silent() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.clock.advance(Duration::from_secs(61));
    let run = lab.queued(&one_step());
    assert_eq!(lab.holder("b1"), None);
    lab.node("b1", &["board"]);
    assert_eq!(lab.holder("b1"), Some(run));
}

/// 422: submitting again gives the same; the run is stored, FAILED, with why.
#[test]
fn a_run_that_no_known_nodes_could_ever_do_is_rejected_and_kept() {
    let lab = Lab::with(|settings| settings.lease_max_per_run = 2);
    lab.node("b1", &["board model=a"]);
    lab.node("b2", &["board model=b"]);
    lab.static_node("b3", &["board model=c"]);
    lab.advance(100.0);
    assert_eq!(lab.show_node("b1")["live"], false, "silent, and still known");
    let role = |fields: Value| {
        let mut role = json!({"as": "dut", "capability": "board"});
        fields.as_object().expect("fields").iter().for_each(|(name, value)| role[name] = value.clone());
        json!({"requires": [role], "steps": [step("work", "dut")]})
    };
    for (contract, code, wanted, known, says) in [
        (role(json!({"capability": "laser"})), "no-candidate", 1, 0, "no known node has the capability `laser`"),
        (role(json!({"attrs": {"model": "z"}})), "no-candidate", 1, 0, "`model` = `z`"),
        (role(json!({"attrs": {"colour": "red"}})), "no-candidate", 1, 0, "attribute `colour`"),
        (role(json!({"attrs": {"node": "b9"}})), "no-candidate", 1, 0, "called `b9`"),
        (role(json!({"attrs": {"model": "c"}})), "no-candidate", 1, 0, "static"),
        (role(json!({"count": 3})), "no-candidate", 3, 2, "3 wanted, 2 known"),
        (
            json!({"requires": requires(&["a=board", "b=board", "c=board"]), "steps": [{"id": "h", "hold": {}}]}),
            "too-wide",
            3,
            3,
            "lease.max_per_run",
        ),
    ] {
        let reply = lab.submit(&contract);
        let location = reply.header("location").map(str::to_owned);
        let problem = reply.problem(422, code);
        assert_eq!(
            (problem["reject"]["wanted"].as_i64(), problem["reject"]["known"].as_i64()),
            (Some(wanted), Some(known))
        );
        assert!(problem["detail"].as_str().expect("a text").contains(says), "{problem}");
        let id = id_of(&problem);
        assert_eq!(location, Some(format!("/v1/runs/{id}")));
        let run = lab.run(&id);
        assert_eq!(lab.state(&id), "FAILED rejected");
        assert_eq!((&run["reject"], &run["reject"]["code"]), (&problem["reject"], &json!(code)));
        assert_eq!((lab.steps(&id), run["started_at"].clone()), ("CANCELLED".to_owned(), Value::Null));
        assert!(run["ended_at"].is_string());
    }
    // A "never" wins over a "not now", and what is only silent is a "not now".
    lab.queued(&role(json!({"attrs": {"model": "a"}})));
    // After a week unheard a node is not known any more.
    lab.advance(7.0 * 86_400.0);
    lab.submit(&role(json!({"attrs": {"model": "a"}}))).problem(422, "no-candidate");
}

/// A dry run stores nothing, whatever it answers, and asks only which nodes exist.
#[test]
fn a_dry_run_says_what_would_be_and_stores_nothing() {
    let lab = Lab::with(|settings| settings.lease_max_per_run = 1);
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    let first = lab.placed(&with(one_step(), "run_id", "mine"));
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful"})).expect(200);
    lab.advance(100.0);
    let before = lab.all_rows();
    let dry = |contract: &Value| lab.post("/v1/runs?dry_run=true", contract);
    let answer = dry(&with(one_step(), "run_id", "mine")).expect(200);
    assert_eq!(
        answer,
        json!({"state": "DRY_RUN", "assigned": [{"as": "dut", "nodes": [{"node_id": "b1", "label": null, "attrs": {}}]}]})
    );
    let none = json!({"requires": requires(&["x=laser"]), "steps": [{"id": "h", "hold": {}}]});
    let problem = dry(&none).problem(422, "no-candidate");
    assert_eq!(problem["run_id"], Value::Null);
    dry(&with(one_step(), "requires", requires(&["dut=board", "pc=host"]))).problem(422, "too-wide");
    dry(&json!({})).problem(400, "invalid-contract");
    lab.post("/v1/runs?dry_run=perhaps", &one_step()).problem(400, "invalid-request");
    lab.post("/v1/runs?dryrun=true", &one_step()).problem(400, "invalid-request");
    assert_eq!(lab.all_rows(), before);
    assert_eq!(lab.state(&first), "RUNNING");
}

/// The client's own `run_id`: the same contract is the same run; anything else is refused.
#[test]
fn a_run_id_is_used_once() {
    let mut lab = Lab::new();
    let other = lab.token_of("alice");
    lab.node("b1", &["board"]);
    let contract = with(one_step(), "run_id", "mine");
    assert_eq!(lab.placed(&contract), "mine");
    let before = lab.all_rows();
    // Key order and white space do not matter.
    let again = "{\"steps\": [ {\"run\":[\"true\"],\"uses\":\"dut\",\"id\":\"work\"}],\"run_id\":\"mine\",
        \"requires\":[{\"capability\":\"board\",\"as\":\"dut\"}]}";
    let reply = lab.call_with("POST", "/v1/runs", &[], again);
    assert_eq!(reply.header("location"), Some("/v1/runs/mine"));
    assert_eq!(reply.expect(200), lab.run("mine"));
    let problem = lab.submit(&with(contract.clone(), "name", "other")).problem(409, "run-exists");
    assert_eq!((&problem["run_id"], &problem["path"]), (&json!("mine"), &json!("/run_id")));
    let theirs = format!("Bearer {other}");
    let reply = lab.call_with("POST", "/v1/runs", &[("authorization", &theirs)], contract.to_string());
    reply.problem(409, "run-exists");
    assert_eq!(lab.all_rows(), before);
    lab.work("b1", 0);
    lab.submit(&contract).expect(200);
    assert_eq!(lab.state("mine"), "SUCCEEDED succeeded", "also once it has ended");
}

/// 429: over `limits.queued_per_principal` nothing is stored; what can be placed still is.
#[test]
fn each_principal_may_queue_so_many() {
    let mut lab = Lab::with(|settings| settings.queued_per_principal = 2);
    let other = format!("Bearer {}", lab.token_of("alice"));
    lab.node("b1", &["board"]);
    lab.placed(&one_step());
    let first = lab.queued(&one_step());
    lab.queued(&one_step());
    let before = lab.all_rows();
    let reply = lab.submit(&one_step());
    assert!(reply.header("retry-after").is_some());
    reply.problem(429, "queue-limit");
    assert_eq!(lab.all_rows(), before);
    lab.call_with("POST", "/v1/runs", &[("authorization", &other)], one_step().to_string()).expect(202);
    lab.node("h1", &["host"]);
    lab.placed(&json!({"requires": requires(&["pc=host"]), "steps": [step("work", "pc")]}));
    lab.cancel(&first);
    lab.queued(&one_step());
}

/// 202: a lease that somebody wrote beside the daemon collides; the placing is undone whole (I1, I3).
#[test]
fn a_lease_that_collides_makes_the_run_wait() {
    let mut lab = Lab::new();
    lab.is_broken = true;
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    let other = lab.placed(&json!({"requires": requires(&["pc=host"]), "steps": [{"id": "h", "hold": {}}]}));
    // Written within the daemon's own transaction, so that it cannot know of it.
    let both = json!({"requires": requires(&["pc=host", "dut=board"]), "steps": [step("work", "dut")]});
    lab.cancel(&other);
    let plant = "CREATE TRIGGER plant AFTER INSERT ON leases WHEN NEW.node_id = 'h1' BEGIN
        INSERT INTO leases (node_id, run_id, nonce, granted_at, not_after) VALUES ('b1', NEW.run_id, 'planted', 0, 9e15); END";
    lab.outside().execute_batch(plant).expect("a trigger");
    let waiting = lab.queued(&both);
    assert_eq!(lab.number("SELECT count(*) FROM leases"), 0, "undone whole");
    assert_eq!(lab.steps(&waiting), "PENDING");
    assert_eq!(
        lab.row("SELECT count(*) FROM lease_history WHERE run_id = ?1", [&waiting], |row| row.get::<_, i64>(0)),
        0
    );
    lab.outside().execute_batch("DROP TRIGGER plant").expect("no trigger");
    lab.static_node("s", &["plug"]);
    assert_eq!(lab.state(&waiting), "RUNNING");
}

/// The checks before the body: Host, token, route, size, type, in this order.
#[test]
fn what_is_wrong_with_a_request_is_told_in_order() {
    let lab = Lab::new();
    let before = lab.all_rows();
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(300_000));
    let text = [("content-type", "text/plain")];
    let call = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        lab.call_with(method, path, headers, body.to_owned())
    };
    let problem = call("POST", "/v1/nowhere", &[("host", "evil.example"), ("authorization", "")], &large)
        .problem(421, "wrong-host");
    assert!(problem["detail"].as_str().expect("a text").contains("localhost"));
    for host in ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80", "127.8.9.1"] {
        call("GET", "/v1/runs", &[("host", host)], "").expect(200);
    }
    for host in ["127.0.0.1.evil.example", "evil.example:7340", "0.0.0.0"] {
        call("GET", "/v1/runs", &[("host", host)], "").problem(421, "wrong-host");
    }
    call("GET", "/v1/runs", &[("host", "localhost"), ("host", "localhost")], "").problem(400, "invalid-request");
    // The public part of a token that is in force does not make another secret good.
    let public = lab.token().rsplit_once('_').expect("two parts").0;
    let other = format!("Bearer {public}_{}", "0".repeat(52));
    for token in ["", "Bearer wrong", "Bearer mdt_0000000000_1", "Basic abc", lab.token(), &other] {
        call("POST", "/v1/nowhere", &[("authorization", token)], &large).problem(401, "unauthorized");
    }
    for path in
        ["/v1/nowhere", "/v2/runs", "/v1/runs/", "//v1/runs", "/v1/runs/a/steps/1", "/v1/runs/..", "/v1/runs/a%2Fb"]
    {
        call("GET", path, &text, &large).problem(404, "not-found");
    }
    let reply = call("PATCH", "/v1/runs", &text, &large);
    assert_eq!(reply.header("allow"), Some("POST, GET"));
    reply.problem(405, "method-not-allowed");
    call("POST", "/v1/runs", &text, &large).problem(413, "too-large");
    call("POST", "/v1/runs", &text, "{").problem(415, "unsupported-media-type");
    call("POST", "/v1/runs", &[("content-type", "application/json; charset=utf-8")], "{")
        .problem(400, "invalid-contract");
    call("POST", "/v1/runs", &[("content-encoding", "gzip")], "{}").problem(415, "unsupported-media-type");
    assert_eq!(lab.all_rows(), before);
    for path in ["/healthz", "/readyz"] {
        call("GET", path, &[("authorization", "")], "").expect(200);
    }
}

/// An answer that was given before a large body was read still reaches the client.
#[test]
fn a_large_body_is_refused_and_the_client_hears_it() {
    let lab = Lab::new();
    for size in [262_145, 1 << 20, 6 << 20] {
        lab.call_with("POST", "/v1/runs", &[], "x".repeat(size)).problem(413, "too-large");
    }
    let most = format!("{{\"name\":\"{}\"}}", "x".repeat(262_144 - 11));
    lab.call_with("POST", "/v1/runs", &[], most).problem(400, "invalid-contract");

    // A plain client looks at the answer when it has sent everything: until then it is read from.
    let daemon = Daemon::start();
    let address = daemon.url().strip_prefix("http://").expect("an address");
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    let (token, size) = (daemon.token(), 6 << 20);
    write!(
        stream,
        "POST /v1/runs HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-length: {size}\r\n\r\n"
    )
    .expect("the head is sent");
    for _ in 0..size / 4096 {
        stream.write_all(&[b'x'; 4096]).expect("it is read from");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

/// What was answered is there after the process was killed, and the folder of a running daemon is its own.
#[test]
fn acknowledged_runs_survive_a_kill() {
    let mut daemon = Daemon::start();
    daemon.call("POST", "/v1/nodes", &crate::support::advert("b1", "i", &["board"])).expect(200);
    let placed = daemon.call("POST", "/v1/runs", &one_step()).expect(201);
    let queued = daemon.call("POST", "/v1/runs", &one_step()).expect(202);
    let in_use = Store::open(daemon.dir.path(), Default::default(), mediator::clock::Clock::system());
    assert!(in_use.err().expect("it is in use").contains("already in use by another mediator"));
    for _ in 0..2 {
        daemon.kill();
        daemon.start_again();
        for (run, state) in [(&placed, "RUNNING"), (&queued, "QUEUED")] {
            let now = daemon.call("GET", &format!("/v1/runs/{}", id_of(run)), &Value::Null).expect(200);
            assert_eq!((now["state"].as_str(), &now["created_at"]), (Some(state), &run["created_at"]));
        }
    }
    let claim = daemon.call("POST", "/v1/nodes/b1/claim", &json!({"instance": "i"})).expect(200);
    daemon.kill();
    daemon.start_again();
    let again = daemon.call("POST", "/v1/nodes/b1/claim", &json!({"instance": "i"})).expect(200);
    assert_eq!((&again["attempt"], &again["lease"]["nonce"]), (&claim["attempt"], &claim["lease"]["nonce"]));
    let report = crate::support::report("b1", &claim, json!({"exit_code": 0}));
    let path = crate::support::result_path(&claim);
    let answer = daemon.call("POST", &path, &report).expect(200);
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.call("POST", &path, &report).expect(200), answer, "an equal report, an equal answer");
    let second = daemon.call("GET", &format!("/v1/runs/{}", id_of(&queued)), &Value::Null).expect(200);
    assert_eq!(second["state"], "RUNNING", "the queue moved on in the commit after the result");
    assert_eq!(mediator::store::invariants::check(&daemon.rows()).expect("the checks run"), []);
}

/// "Every write transaction checks that this boot is still the current one: a second daemon cannot write." (The lock
/// of the folder keeps a second one out; this is for where locks do not work.)
#[test]
fn a_daemon_that_was_superseded_writes_nothing() {
    let mut daemon = Daemon::start();
    daemon.node("b1", &["board"]);
    let other = rusqlite::Connection::open(daemon.dir.path().join(mediator::store::DATABASE)).expect("the database");
    assert_eq!(other.execute("UPDATE boot SET number = number + 1", []).expect("another has started"), 1);
    let answer = daemon.tried("POST", "/v1/runs", &one_step());
    assert!(answer.is_err(), "answered by who was superseded: {answer:?}");
    assert_eq!(daemon.ended().code(), Some(1));
    let runs: i64 = other.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).expect("a number");
    assert_eq!(runs, 0);
}
