//! Many writes in one commit: the requests of several clients that wait together are one group, and the daemon is
//! killed at its first point, its second, and so on. Whoever was answered is there once; the others wholly or not at
//! all; and asked again, all of it is as if nobody had been killed. Also: no answer before the commit behind it.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Lab, Reply, await_point, order, reached};
use crate::matrix::{copy, judge, snapshot};

/// A request of one client.
struct Ask {
    method: &'static str,
    path: String,
    key: Option<String>,
    body: Value,
}

fn post(path: &str, key: &str, body: Value) -> Ask {
    Ask { method: "POST", path: path.to_owned(), key: Some(key.to_owned()), body }
}

fn contract(run: &str, capability: &str) -> Value {
    let requires = json!([{"as": "dut", "capability": capability}]);
    json!({"run_id": run, "requires": requires, "steps": [
        {"id": "a", "uses": "dut", "run": ["true"]}, {"id": "b", "uses": "dut", "run": ["true"]},
    ]})
}

fn submit(run: &str, capability: &str) -> Ask {
    post("/v1/runs", &format!("k-{run}"), contract(run, capability))
}

fn advert(node: &str, capability: &str) -> Value {
    json!({"node_id": node, "instance": "i1", "capabilities": [{"capability": capability}]})
}

/// Three boards and a host; `r1` to `r3` have the boards, a step of `r1` is in hand, `r0` asks about the host, and `w`
/// waits for a board.
fn prepare(data: &Path) -> Value {
    let daemon = Daemon::start(data, &Lab::default()).expect("it starts");
    let ok = |path: &str, body: &Value| daemon.post(path, None, body).expect("an answer");
    for (node, capability) in [("b1", "board"), ("b2", "board"), ("b3", "board"), ("h1", "host"), ("s1", "spare")] {
        ok("/v1/nodes", &advert(node, capability));
    }
    let question = json!([{"id": "q", "ask": {"prompt": "?"}}]);
    ok("/v1/runs", &json!({"run_id": "r0", "requires": [{"as": "x", "capability": "host"}], "steps": question}));
    for run in ["r1", "r2", "r3", "w"] {
        ok("/v1/runs", &contract(run, "board"));
    }
    ok("/v1/nodes/b1/claim", &json!({"instance": "i1"}))
}

/// One commit: some are placed, more have to wait, one can never be.
fn submissions(_: &Value) -> Vec<Ask> {
    let capabilities = ["spare", "board", "board", "spare", "board", "host", "board", "spare", "board", "board"];
    capabilities.iter().enumerate().map(|(at, capability)| submit(&format!("g{at}"), capability)).collect()
}

/// All sorts; what frees a node makes the group end before the next that could take one.
fn mixed(claim: &Value) -> Vec<Ask> {
    let lost = json!({"node_id": "b1", "nonce": claim["lease"]["nonce"], "attempt": 1, "exit_code": 1});
    vec![
        submit("g0", "board"),
        submit("g1", "spare"),
        Ask { method: "POST", path: "/v1/runs/r1/steps/1/result".to_owned(), key: None, body: lost },
        submit("g2", "board"),
        post("/v1/nodes/s1/drain", "k-drain", json!({"mode": "graceful", "reason": "dust"})),
        post("/v1/runs/r2/cancel", "k-cancel", json!({"reason": "enough"})),
        post("/v1/runs/r0/steps/1/answer", "k-answer", json!({"answer": "yes"})),
        submit("g3", "host"),
        Ask {
            method: "DELETE",
            path: "/v1/nodes/s1/drain".to_owned(),
            key: Some("k-undrain".into()),
            body: Value::Null,
        },
        submit("g4", "spare"),
    ]
}

fn send(daemon: &Daemon, ask: &Ask) -> Option<Reply> {
    let body = if ask.body.is_null() { String::new() } else { ask.body.to_string() };
    daemon.exchange(ask.method, &ask.path, ask.key.as_deref(), &body)
}

/// Lets all of `asks` wait for the writer, in this order, then gives it `orders` and lets it take them.
fn as_one_group(daemon: &Daemon, asks: &[Ask], orders: &str) -> Vec<Option<Reply>> {
    let data = daemon.dir();
    let before = reached(data, "group.before_answer");
    order(data, "hold group.before_answer");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.exchange("POST", "/v1/nodes", None, &advert("b3", "board").to_string()));
        await_point(data, "group.before_answer", before);
        let mut asking = Vec::new();
        for ask in asks {
            let waiting = reached(data, "write.waits");
            asking.push(scope.spawn(|| send(daemon, ask)));
            await_point(data, "write.waits", waiting);
        }
        let groups = reached(data, "group.after_begin");
        order(data, orders);
        let _ = first.join().expect("no panic");
        let answers: Vec<_> = asking.into_iter().map(|asking| asking.join().expect("no panic")).collect();
        assert!(reached(data, "group.after_begin") < groups + asks.len(), "they did not share a commit");
        answers
    })
}

/// Says whether the rows tell that it was done.
fn is_done(rows: &Connection, ask: &Ask) -> bool {
    let count = |query: &str, of: &str| rows.query_row(query, [of], |row| row.get::<_, i64>(0)).expect("a number");
    let Some(key) = &ask.key else {
        return count("SELECT count(*) FROM attempts WHERE run_id = ?1 AND report IS NOT NULL", "r1") == 1;
    };
    let done = count("SELECT count(*) FROM requests WHERE key = ?1", key);
    if let Some(run) = ask.body["run_id"].as_str() {
        // I5: with all that belongs to it, or nothing of it.
        for (what, wanted) in [
            ("SELECT count(*) FROM runs WHERE run_id = ?1", done),
            ("SELECT count(*) FROM steps WHERE run_id = ?1", 2 * done),
            ("SELECT count(*) FROM events WHERE event = 'run.submitted' AND run_id = ?1", done),
        ] {
            assert_eq!(count(what, run), wanted, "{run}: {what}");
        }
    }
    done == 1
}

/// Kills at each point of the group in turn; returns how many there were.
fn try_every_point(name: &str, make: fn(&Value) -> Vec<Ask>, is_one_commit: bool) -> usize {
    let prepared = tempfile::tempdir().expect("there is room");
    let asks = make(&prepare(&prepared.path().join("data")));
    let fresh = || {
        let folder = tempfile::tempdir().expect("there is room");
        copy(&prepared.path().join("data"), &folder.path().join("data"));
        let daemon = Daemon::start(&folder.path().join("data"), &Lab::default()).expect("it starts");
        (folder, daemon)
    };
    let expected = {
        let (_folder, daemon) = fresh();
        let answers = as_one_group(&daemon, &asks, "none");
        assert!(answers.iter().flatten().all(|reply| reply.status < 300) && answers.len() == asks.len());
        snapshot(&daemon)
    };
    for point in 1.. {
        let what = format!("{name}: kill at point {point}");
        let (folder, mut daemon) = fresh();
        let data = folder.path().join("data");
        let answers = as_one_group(&daemon, &asks, &format!("count {point}"));
        let is_through = answers.iter().all(Option::is_some) && !daemon.is_dead();
        drop(daemon);
        order(&data, "none");
        let daemon = Daemon::start(&data, &Lab::default()).unwrap_or_else(|| panic!("{what}: it does not start"));
        judge(&daemon, &what);
        let done: Vec<bool> = asks.iter().map(|ask| is_done(&daemon.rows(), ask)).collect();
        // In order of arrival, and of one commit all or none.
        assert!(done.is_sorted_by(|a, b| a >= b), "{what}: {done:?}");
        assert!(!is_one_commit || done.iter().all(|own| *own == done[0]), "{what}: half of a commit: {done:?}");
        for ((ask, first), done) in asks.iter().zip(answers).zip(done) {
            assert!(done || first.is_none(), "{what}: answered and gone: {}", ask.path);
            let again = send(&daemon, ask).unwrap_or_else(|| panic!("{what}: no answer"));
            assert!(again.status < 300, "{what}: {} {}", ask.path, again.body);
            let is_replay = again.head.contains("idempotent-replayed: true");
            assert_eq!(is_replay, done && ask.key.is_some(), "{what}: {}", ask.path);
            if let Some(first) = first {
                assert_eq!((first.status, &first.body), (again.status, &again.body), "{what}: {}", ask.path);
            }
        }
        judge(&daemon, &what);
        assert_eq!(snapshot(&daemon), expected, "{what}");
        if is_through {
            return point - 1;
        }
        assert!(point < 2000, "{name}: it never gets through");
    }
    unreachable!("the loop ends by returning")
}

/// I5, I6, I7: before and after the commit that many share.
#[test]
fn killed_in_a_group_of_many_writes_each_is_done_once_or_not_at_all() {
    let kills: usize = std::thread::scope(|scope| {
        let one = scope.spawn(|| try_every_point("submissions", submissions, true));
        let two = scope.spawn(|| try_every_point("all sorts", mixed, false));
        [one, two].into_iter().map(|case| case.join().expect("its message is above")).sum()
    });
    println!("{kills} kills in groups of ten writes");
    assert!(kills >= 80, "only {kills} kills");
}

/// I10: not before its own commit, and not before the wake of what it freed.
#[test]
fn no_answer_before_the_commit() {
    for (point, path) in [
        ("group.before_commit", "/v1/runs"),
        ("group.before_commit", "/v1/runs/r2/cancel"),
        ("wake.before_commit", "/v1/runs/r2/cancel"),
    ] {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        prepare(&data);
        let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        let before = reached(&data, point);
        order(&data, &format!("hold {point}"));
        let ask = post(path, "k", if path == "/v1/runs" { contract("g", "spare") } else { json!({}) });
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| send(&daemon, &ask));
            await_point(&data, point, before);
            // Time enough for an answer that should not be there.
            std::thread::sleep(Duration::from_millis(300));
            let is_answered = asking.is_finished();
            order(&data, "none");
            let reply = asking.join().expect("no panic").expect("an answer");
            assert!(!is_answered, "{path} is answered before {point}");
            assert!(reply.status < 300, "{}", reply.body);
        });
    }
}

/// A claim that is parked is done in the very commit that makes its step ready: there is no moment between the two at
/// which the daemon could be killed.
#[test]
fn a_parked_claim_is_of_the_commit_that_makes_its_step_ready() {
    for (point, path) in [("group.after_commit", "/v1/runs"), ("wake.after_commit", "/v1/runs/h/cancel")] {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        let ok = |path: &str, body: &Value| daemon.post(path, None, body).expect("an answer");
        ok("/v1/nodes", &advert("b1", "board"));
        if path != "/v1/runs" {
            // `h` has the board and asks; `g` waits for it.
            let requires = json!([{"as": "dut", "capability": "board"}]);
            ok(
                "/v1/runs",
                &json!({"run_id": "h", "requires": requires, "steps": [{"id": "q", "ask": {"prompt": "?"}}]}),
            );
            ok("/v1/runs", &contract("g", "board"));
        }
        let ask = post(path, "k", if path == "/v1/runs" { contract("g", "board") } else { json!({}) });
        let claim = json!({"instance": "i1"}).to_string();
        std::thread::scope(|scope| {
            let groups = reached(&data, "group.before_answer");
            let parked = scope.spawn(|| daemon.exchange("POST", "/v1/nodes/b1/claim?wait_seconds=30", None, &claim));
            await_point(&data, "group.before_answer", groups);
            let before = reached(&data, point);
            order(&data, &format!("hold {point}"));
            let asking = scope.spawn(|| send(&daemon, &ask));
            await_point(&data, point, before);
            let state: String = daemon
                .rows()
                .query_row("SELECT state FROM steps WHERE run_id = 'g' AND seq = 1", [], |row| row.get(0))
                .expect("a step");
            let is_answered = parked.is_finished();
            order(&data, "none");
            let reply = parked.join().expect("no panic").expect("an answer");
            assert!(asking.join().expect("no panic").expect("an answer").status < 300);
            assert_eq!(state, "CLAIMED", "{path}: there is a commit between them");
            assert!(!is_answered, "{path}: answered before {point}");
            assert!(reply.status == 200 && reply.body["run_id"] == "g", "{}", reply.body);
        });
    }
}
