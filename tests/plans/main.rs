//! How SQLite carries out each statement that the daemon runs. A life in the lab is played, its statements are
//! collected as they are run, and their plans compared with `plans.txt`. A plan that became another one turns up as a
//! difference of that file: `UPDATE_PLANS=1 cargo test --test plans` writes it anew, to be read before it is committed.
#![cfg(debug_assertions)]

#[path = "../it/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use mediator::store::statements;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::json;

use support::{Lab, on_board, one_step, requires, step, with};

/// Statements that go through a whole table, or sort, with the reason why they may.
const EXCUSED: &[(&str, &str)] = &[
    // Tables of few rows: nodes, tokens, boot; leases of all nodes.
    ("SCAN boot", "one row"),
    ("SCAN pruned", "one row"),
    ("SCAN tokens", "a few, at the start"),
    ("SCAN nodes", "all nodes are wanted"),
    ("SCAN leases", "at most one a node"),
    ("SCAN (subquery", "a page"),
    ("SCAN sqlite_master", "at the start"),
    ("SCAN CONSTANT ROW", "no table at all"),
    ("SCAN pragma_compile_options", "when a connection is opened"),
];

/// Everything that happens again and again in a lab.
fn play(lab: &mut Lab) {
    // Nodes come, say that they are there, change, drain, come back.
    lab.node("b1", &["board model=a"]);
    lab.node("b2", &["board model=b"]);
    lab.node("m1", &["meter"]);
    lab.static_node("s1", &["plug"]);
    lab.heartbeat("b1");
    lab.post("/v1/nodes/b2/drain", &json!({"mode": "graceful", "reason": "repair"})).expect(200);
    lab.delete("/v1/nodes/b2/drain").expect(200);

    // One is cleaned between two users.
    let cleans = |cleans: bool| with(support::advert("c1", "c1-1", &["oven"]), "cleans", cleans);
    lab.post("/v1/nodes", &cleans(true)).expect(200);
    let contract = json!({"requires": requires(&["o=oven"]), "steps": [{"id": "q", "ask": {"prompt": "?"}}]});
    for exit_code in [3, 0] {
        let run = lab.placed(&contract);
        lab.cancel(&run);
        let order = lab.post("/v1/nodes/c1/claim", &json!({"instance": "c1-1"})).expect(200);
        let body = json!({"instance": "c1-1", "cleaning": order["cleaning"], "exit_code": exit_code});
        lab.post("/v1/nodes/c1/cleaned", &body).expect(200);
        lab.post("/v1/nodes/c1/clean", &json!({"done": true})).expect(200);
        lab.get(&format!("/v1/runs/{run}/record"));
    }
    lab.post("/v1/nodes", &cleans(false)).expect(200);

    // Runs are placed, queued, refused, sent again, worked on.
    let work = |steps| json!({"requires": board("a"), "steps": steps});
    let two = work(json!([step("one", "dut"), step("two", "dut")]));
    let first = lab.keyed("POST", "/v1/runs", "k1", &two).expect(201)["run_id"].as_str().expect("an id").to_owned();
    lab.keyed("POST", "/v1/runs", "k1", &two).expect(201);
    lab.get("/v1/idempotency/k1").expect(200);
    let second = lab.queued(&with(two.clone(), "work", "change-1"));
    let third = lab.queued(&with(one_on("a"), "queue_timeout_seconds", 30));
    lab.submit(&json!({"requires": requires(&["x=laser"]), "steps": [step("s", "x")]})).problem(422, "no-candidate");
    lab.submit(&with(one_step(), "run_id", first.as_str())).problem(409, "run-exists");
    let claim = lab.claimed("b1");
    lab.put(&format!("/v1/runs/{first}/steps/1/log?nonce={}&attempt=1&offset=0", nonce(&claim)), "out").expect(204);
    let path = support::result_path(&claim);
    let report = with(support::report("b1", &claim, json!({"exit_code": 0})), "instance", "b1-1");
    lab.post(&format!("{path}?claim=true"), &report).expect(200);
    lab.post(&path, &support::report("b1", &claim, json!({"exit_code": 0}))).expect(200);
    lab.work("b1", 0);
    lab.get(&format!("/v1/runs/{first}/record"));
    lab.work("b1", 1);
    assert_eq!(lab.state(&second), "FAILED step-failed");
    lab.cancel(&third);
    let queued = lab.placed(&one_on("a"));
    lab.post(&format!("/v1/runs/{queued}/cancel"), &json!({"reason": "enough"})).expect(200);

    // Each kind of step, a loop, an acquisition, a release.
    let all = json!({"requires": board("a"), "attended": true, "steps": [
        with(step("flash", "dut"), "timeout_seconds", 60),
        with(step("verify", "dut"), "loop", json!({"back_to": "flash", "max": 2})),
        {"id": "look", "ask": {"prompt": "green?", "options": ["yes"], "accept": ["yes"]}},
        {"id": "get", "acquire": {"want": {"as": "x", "capability": "meter"}, "acquired": "use", "unavailable": "not"}},
        with(step("use", "x"), "release", json!(["x"])),
        with(step("not", "dut"), "needs", json!(["get"])),
        {"id": "h", "hold": {"timeout_seconds": 600}, "needs": ["use", "not"]},
    ]});
    let run = lab.placed(&all);
    lab.work("b1", 0);
    lab.work("b1", 1);
    lab.work("b1", 0);
    lab.work("b1", 0);
    lab.get("/v1/asks").expect(200);
    lab.answer(&run, 3, "yes").expect(200);
    lab.work("m1", 0);
    lab.post(&format!("/v1/runs/{run}/renew"), &json!({})).expect(200);
    lab.post(&format!("/v1/runs/{run}/steps/7/result"), &json!({"attempt": 1, "exit_code": 0})).expect(200);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");

    // What is looked at.
    let waiting = (lab.placed(&one_on("a")), lab.queued(&one_on("a")), lab.queued(&one_on("a")));
    for query in [
        "",
        "?state=QUEUED",
        "?principal=operator",
        "?principal=operator&state=FAILED",
        "?work=change-1",
        "?node=b1",
        "?since=2020-01-01T00:00:00Z",
        "?cursor=3&limit=1",
    ] {
        lab.get(&format!("/v1/runs{query}")).expect(200);
    }
    for path in ["why", "artifacts", "steps/1/log"] {
        lab.get(&format!("/v1/runs/{}/{path}", waiting.1)).expect(200);
    }
    lab.get(&format!("/v1/runs/{first}/steps/1/log")).expect(200);
    lab.get(&format!("/v1/runs/{}?while=RUNNING&wait_seconds=1", waiting.1)).expect(200);
    // (Not the doctor, who looks at everything.)
    for path in ["/v1/nodes", "/v1/nodes/b1", "/v1/capabilities", "/v1/outbox", "/readyz"] {
        lab.get(path).expect(200);
    }

    // Times pass: silence, time-outs, lost leases, forgotten keys; agents and the daemon start again.
    lab.claimed("b1");
    lab.advert("b1", "b1-2", &["board model=a"]);
    lab.post("/v1/nodes/b1/claim", &json!({"instance": "b1-2"})).expect(200);
    lab.restart();
    lab.pass(120.0, &["b2"]);
    lab.advance(700.0);
    lab.settle();
    lab.cancel(&waiting.1);
    lab.cancel(&waiting.2);
    lab.advert("b1", "b1-2", &["board model=a"]);
    lab.placed(&on_board(json!([{"id": "h", "hold": {}}])));
    lab.advance(700_000.0);
    lab.settle();
    lab.node("m1", &["meter"]);
    lab.delete("/v1/nodes/m1").expect(200);

    // History is pruned, with its files.
    lab.advance(400.0 * 86_400.0);
    lab.advance(60.0);
    lab.http.rt.block_on(lab.store().remove_pruned_files());
    assert!(lab.number("SELECT count(*) FROM pruned_runs WHERE has_files = 0") > 0);
}

fn one_on(model: &str) -> serde_json::Value {
    json!({"requires": board(model), "steps": [step("work", "dut")]})
}

fn board(model: &str) -> serde_json::Value {
    json!([{"as": "dut", "capability": "board", "attrs": {"model": model}}])
}

fn nonce(claim: &serde_json::Value) -> String {
    claim["lease"]["nonce"].as_str().expect("a nonce").to_owned()
}

/// Returns the plan of a statement, indented as a tree; empty when there is nothing to choose.
fn plan(rows: &Connection, sql: &str) -> String {
    let mut statement = rows.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap_or_else(|e| panic!("{sql}: {e}"));
    // Nothing is bound: by `QPSG` a plan does not depend on it.
    let lines = statement.raw_query().mapped(|row| Ok((row.get(0)?, row.get(1)?, row.get(3)?)));
    let mut depth: BTreeMap<i64, usize> = BTreeMap::new();
    let mut text = String::new();
    for (id, parent, detail) in lines.map(|line: rusqlite::Result<(i64, i64, String)>| line.expect("a line")) {
        let own = depth.get(&parent).map_or(1, |parent| parent + 1);
        depth.insert(id, own);
        let _ = writeln!(text, "{}{detail}", "    ".repeat(own));
    }
    text
}

#[test]
fn every_statement_is_carried_out_as_it_was_meant() {
    statements::collect();
    let mut lab = Lab::new();
    play(&mut lab);
    lab.quiesce();
    let rows = lab.rows();
    // As on the daemon's own connections.
    rows.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).expect("a switch");
    let is_planned = |sql: &&String| {
        let word = sql.split_whitespace().next().unwrap_or("").to_ascii_uppercase();
        ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].contains(&word.as_str())
    };
    let mut plans: BTreeMap<String, String> = BTreeMap::new();
    for sql in statements::seen().iter().filter(is_planned) {
        let plan = plan(rows, sql);
        if !plan.is_empty() {
            plans.insert(sql.split_whitespace().collect::<Vec<_>>().join(" "), plan);
        }
    }
    let found: String = plans.iter().map(|(sql, plan)| format!("{sql}\n{plan}\n")).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans/plans.txt");
    if std::env::var_os("UPDATE_PLANS").is_some() {
        std::fs::write(&path, &found).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let (found, kept): (Vec<&str>, Vec<&str>) = (found.split("\n\n").collect(), kept.split("\n\n").collect());
    let mut difference = String::new();
    for gone in kept.iter().filter(|own| !found.contains(own)) {
        let _ = writeln!(difference, "- {}", gone.trim_end().replace('\n', "\n- "));
    }
    for new in found.iter().filter(|own| !kept.contains(own)) {
        let _ = writeln!(difference, "+ {}", new.trim_end().replace('\n', "\n+ "));
    }
    assert!(difference.is_empty(), "plans have changed (UPDATE_PLANS=1 writes them anew):\n{difference}");

    let mut slow = String::new();
    for (sql, plan) in &plans {
        for line in plan.lines().map(str::trim) {
            let scans = line.starts_with("SCAN ") && !line.contains(" USING ");
            // In the order of the table itself, and only to its limit.
            let walks = sql.contains(" LIMIT ") && !plan.contains("TEMP B-TREE");
            let excused = walks || EXCUSED.iter().any(|(start, _)| line.starts_with(start));
            if scans && !excused {
                let _ = writeln!(slow, "{line}: {sql}");
            }
        }
    }
    assert!(slow.is_empty(), "goes through a whole table:\n{slow}");
}
