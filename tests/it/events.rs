//! Events: every state change is one, seen after its commit, in order, none twice and none missed after a resume.

use std::io::Write as _;
use std::net::TcpStream;

use mediator::store::DATABASE;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{Daemon, Event, Lab, Stream, copy_of, id_of, on_board, one_step, requires, step, with};

fn board() -> Daemon {
    let daemon = Daemon::start();
    let node = json!({"node_id": "b1", "static": true, "capabilities": [{"capability": "board", "attrs": {}}]});
    daemon.call("POST", "/v1/nodes", &node).expect(200);
    daemon
}

fn held() -> Value {
    on_board(json!([{"id": "h", "hold": {}}]))
}

/// Submits and cancels; what waits behind starts meanwhile.
fn churn(daemon: &Daemon, rounds: usize, reason: &str) -> Vec<String> {
    let mut runs = Vec::new();
    for _ in 0..rounds {
        let run = id_of(&daemon.call("POST", "/v1/runs", &held()).body);
        daemon.call("POST", &format!("/v1/runs/{run}/cancel"), &json!({"reason": reason})).expect(200);
        runs.push(run);
    }
    runs
}

fn stored(rows: &Connection, run: Option<&str>) -> Vec<(i64, String)> {
    let mut statement =
        rows.prepare("SELECT id, event FROM events WHERE ?1 IS NULL OR run_id = ?1 ORDER BY id").expect("SQL");
    let list = statement.query_map([run], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
    list.collect::<Result<_, _>>().expect("rows")
}

fn seen(events: &[Event]) -> Vec<(i64, String)> {
    events.iter().map(|event| (event.id, event.name.clone())).collect()
}

fn cancelled_last(run: &str) -> impl Fn(&Event) -> bool {
    let run = run.to_owned();
    move |event| event.name == "run.ended" && event.data["run_id"] == run.as_str()
}

/// Readers that come and go while others write see every event once and in order; one of a run sees that run's.
#[test]
fn a_resume_loses_none_and_repeats_none() {
    let daemon = board();
    let followers: Vec<(Option<Stream>, Vec<Event>)> =
        (0..3).map(|_| (Some(daemon.events("", Some(0))), Vec::new())).collect();
    let mut followers = followers;
    let mut last = String::new();
    for round in 0..12 {
        let runs = churn(&daemon, 4, "again");
        last = runs[3].clone();
        // One is cut off after a few, one after each round, one never.
        for (at, (stream, got)) in followers.iter_mut().enumerate().take(2) {
            let open = stream.take().expect("it is open");
            let wanted = if at == 0 { 1 + round % 5 } else { 20 };
            for _ in 0..wanted {
                got.push(open.next());
            }
            drop(open);
            *stream = Some(daemon.events("", got.last().map(|event| event.id)));
        }
    }
    let all = stored(&daemon.rows(), None);
    for (stream, mut got) in followers {
        let stream = stream.expect("it is open");
        if got.last().is_none_or(|event| !cancelled_last(&last)(event)) {
            got.extend(stream.until(cancelled_last(&last)));
        }
        assert_eq!(seen(&got), all);
    }
    let of_run = daemon.events(&format!("?run={last}"), Some(0)).until(cancelled_last(&last));
    assert_eq!(seen(&of_run), stored(&daemon.rows(), Some(&last)));
    assert!(of_run.iter().all(|event| event.data["run_id"] == last.as_str()));
}

/// While writers write concurrently: what a reader has seen is committed, and a restart changes nothing of it.
#[test]
fn writers_at_work_and_a_kill_lose_nothing() {
    let mut daemon = board();
    let mut got: Vec<Event> = Vec::new();
    for _ in 0..3 {
        let stream = daemon.events("", Some(got.last().map_or(0, |event| event.id)));
        std::thread::scope(|scope| {
            let [(_, url), (_, token)] = daemon.env();
            for _ in 0..3 {
                let (url, token) = (url.clone(), format!("Bearer {token}"));
                scope.spawn(move || {
                    let client = crate::support::Http::new();
                    for _ in 0..10 {
                        let send = |path: &str, body: Value| {
                            let bytes = bytes::Bytes::from(body.to_string());
                            client.send("POST", &format!("{url}{path}"), &[("authorization", &token)], bytes)
                        };
                        let run = id_of(&send("/v1/runs", held()).body);
                        send(&format!("/v1/runs/{run}/cancel"), json!({})).expect(200);
                    }
                });
            }
            for _ in 0..60 {
                got.push(stream.next());
            }
        });
        daemon.kill();
        let events = stored(&copy_of(daemon.dir.path()).1, None);
        assert!(seen(&got).iter().all(|event| events.contains(event)), "what was seen is kept");
        drop(stream);
        daemon.start_again();
    }
    let run = churn(&daemon, 1, "the last").remove(0);
    let stream = daemon.events("", got.last().map(|event| event.id));
    got.extend(stream.until(cancelled_last(&run)));
    assert_eq!(seen(&got), stored(&daemon.rows(), None));
}

/// Without an id a stream begins with what happens next.
#[test]
fn a_new_stream_begins_now() {
    let daemon = board();
    churn(&daemon, 1, "before");
    let stream = daemon.events("", None);
    let run = churn(&daemon, 1, "after").remove(0);
    let first = stream.next();
    assert_eq!(stream.begins_behind() + 1, first.id, "it tells where it begins, for a resume before the first event");
    assert_eq!((first.name.as_str(), first.data["run_id"].as_str()), ("run.submitted", Some(run.as_str())));
    for (query, header) in [("?run=..", "1"), ("?other=1", "1"), ("", "x"), ("", "-1")] {
        let url = format!("/v1/events{query}");
        let reply = daemon.call_with("GET", &url, &[("last-event-id", header)], &Value::Null);
        reply.problem(400, "invalid-request");
    }
}

/// A resume from before what is kept, or from another database, gives one `reset`, and then what there is.
#[test]
fn a_resume_from_too_long_ago_is_told() {
    let daemon = board();
    let run = churn(&daemon, 3, "x").remove(2);
    let outside = Connection::open(daemon.dir.path().join(DATABASE)).expect("the database");
    outside.execute_batch("DELETE FROM events WHERE id < 10; UPDATE pruned SET last_event = 9").expect("they go");
    let kept = stored(&outside, None);
    assert_eq!(kept[0].0, 10);
    for after in [1, 5, 1_000_000] {
        let events = daemon.events("", Some(after)).until(cancelled_last(&run));
        assert_eq!((events[0].name.as_str(), events[0].id), ("reset", 9), "behind {after}");
        assert_eq!(seen(&events[1..]), kept, "behind {after}");
    }
    for after in [0, 9] {
        let events = daemon.events("", Some(after)).until(cancelled_last(&run));
        assert_eq!(seen(&events), kept, "behind {after}");
    }
}

/// Who does not read stands in nobody's way.
#[test]
fn a_slow_reader_stalls_nobody() {
    let daemon = board();
    let [(_, url), (_, token)] = daemon.env();
    let address = url.strip_prefix("http://").expect("an address");
    let deaf: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("connects");
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).expect("it can be small");
            write!(stream, "GET /v1/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nlast-event-id: 0\r\n\r\n")
                .expect("sends");
            stream
        })
        .collect();
    let stream = daemon.events("", Some(0));
    let run = churn(&daemon, 600, &"x".repeat(1000)).remove(599);
    let got = stream.until(cancelled_last(&run));
    assert_eq!(seen(&got), stored(&daemon.rows(), None));
    drop(deaf);
}

/// Every change of a state is an event, written in its transaction: compared with what triggers saw of the rows.
#[test]
fn every_state_change_has_its_event() {
    let lab = Lab::new();
    let outside = lab.outside();
    outside
        .execute_batch(
            "CREATE TABLE seen (id INTEGER PRIMARY KEY, event TEXT NOT NULL, about TEXT) STRICT;
             CREATE TRIGGER a AFTER INSERT ON runs BEGIN INSERT INTO seen (event, about) VALUES ('run.submitted', new.run_id); END;
             CREATE TRIGGER b AFTER INSERT ON runs WHEN new.state = 'QUEUED' BEGIN INSERT INTO seen (event, about) VALUES ('run.queued', new.run_id); END;
             CREATE TRIGGER c AFTER INSERT ON runs WHEN new.state = 'RUNNING' BEGIN INSERT INTO seen (event, about) VALUES ('run.started', new.run_id); END;
             CREATE TRIGGER d AFTER INSERT ON runs WHEN new.state = 'FAILED' BEGIN INSERT INTO seen (event, about) VALUES ('run.ended', new.run_id); END;
             CREATE TRIGGER e AFTER UPDATE OF state ON runs WHEN new.state <> old.state BEGIN
               INSERT INTO seen (event, about) VALUES (CASE new.state WHEN 'RUNNING' THEN 'run.started' ELSE 'run.ended' END, new.run_id); END;
             CREATE TRIGGER f AFTER UPDATE OF state ON steps WHEN new.state <> old.state BEGIN
               INSERT INTO seen (event, about) VALUES (
                 CASE new.state WHEN 'CANCELLED' THEN 'step.cancelled' WHEN 'SKIPPED' THEN 'step.skipped' WHEN 'ASKED' THEN 'ask.raised'
                   WHEN 'CLAIMED' THEN CASE new.kind WHEN 'hold' THEN 'hold.opened' ELSE 'step.claimed' END
                   WHEN 'PENDING' THEN 'step.rolled-back'
                   ELSE CASE new.kind WHEN 'ask' THEN 'ask.' WHEN 'hold' THEN 'hold.' WHEN 'acquire' THEN 'step.acquired' ELSE 'step.' END
                     || CASE WHEN new.kind = 'acquire' THEN '' ELSE lower(new.state) END END,
                 new.run_id || '/' || new.seq); END;
             CREATE TRIGGER g AFTER INSERT ON leases BEGIN INSERT INTO seen (event, about) VALUES ('node.leased', new.node_id); END;
             CREATE TRIGGER h AFTER DELETE ON leases BEGIN INSERT INTO seen (event, about) VALUES ('node.freed', old.node_id); END;
             CREATE TRIGGER i AFTER INSERT ON nodes BEGIN INSERT INTO seen (event, about) VALUES ('node.new', new.node_id); END;
             CREATE TRIGGER j AFTER DELETE ON nodes BEGIN INSERT INTO seen (event, about) VALUES ('node.removed', old.node_id); END;
             CREATE TRIGGER k AFTER UPDATE OF silent ON nodes WHEN new.silent <> old.silent BEGIN
               INSERT INTO seen (event, about) VALUES (CASE new.silent WHEN 1 THEN 'node.silent' ELSE 'node.back' END, new.node_id); END;
             CREATE TRIGGER l AFTER UPDATE OF owner_mode, operator_mode ON nodes
               WHEN new.owner_mode IS NOT old.owner_mode OR new.operator_mode IS NOT old.operator_mode BEGIN
               INSERT INTO seen (event, about) VALUES (
                 CASE WHEN coalesce(new.owner_mode, '') <> coalesce(old.owner_mode, '') AND new.owner_mode IS NOT NULL THEN 'node.drained'
                   WHEN coalesce(new.operator_mode, '') <> coalesce(old.operator_mode, '') AND new.operator_mode IS NOT NULL THEN 'node.drained'
                   ELSE 'node.undrained' END, new.node_id); END;",
        )
        .expect("SQL");
    everything(&lab);
    let read = |query: &str| -> Vec<String> {
        let mut statement = outside.prepare(query).expect("SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("rows")
    };
    let mut changes = read("SELECT event || ' ' || about FROM seen ORDER BY id");
    let mut events = read(
        "SELECT event || ' ' || CASE WHEN event LIKE 'node.%' THEN node_id WHEN seq IS NULL THEN run_id
                                ELSE run_id || '/' || seq END FROM events
         WHERE event NOT IN ('step.ready', 'step.artifact', 'step.late-report', 'node.lost', 'node.changed', 'node.restarted')
         ORDER BY id",
    );
    let kinds: std::collections::BTreeSet<&str> =
        changes.iter().filter_map(|change| change.split(' ').next()).collect();
    assert!(kinds.len() >= 22, "too little happened: {kinds:?}");
    changes.sort();
    events.sort();
    assert_eq!(events, changes);
    outside.execute_batch("DROP TRIGGER a; DROP TRIGGER b; DROP TRIGGER c; DROP TRIGGER d; DROP TRIGGER e; DROP TRIGGER f; DROP TRIGGER g; DROP TRIGGER h; DROP TRIGGER i; DROP TRIGGER j; DROP TRIGGER k; DROP TRIGGER l; DROP TABLE seen").expect("SQL");
}

/// Takes runs, steps, leases and nodes through every state.
fn everything(lab: &Lab) {
    lab.submit(&one_step()).problem(422, "no-candidate");
    lab.node("b1", &["board"]);
    lab.node("s1", &["scope"]);
    let back = with(step("test", "dut"), "loop", json!({"back_to": "test", "max": 2}));
    let acquire = json!({"id": "get", "acquire": {
        "want": {"as": "scope", "capability": "scope"}, "acquired": "measure", "unavailable": "note"}});
    let note = with(step("note", "dut"), "needs", json!(["get"]));
    let look = json!({"id": "look", "ask": {"prompt": "green?"}, "needs": ["measure", "note"]});
    let contract = on_board(json!([back, acquire, step("measure", "scope"), note, look, {"id": "h", "hold": {}}]));
    let run = lab.placed(&contract);
    let waiting = lab.queued(&one_step());
    let behind = lab.queued(&one_step());
    lab.work("b1", 1);
    lab.work("b1", 0);
    lab.work("s1", 0);
    lab.answer(&run, 5, "yes").expect(200);
    lab.post(&format!("/v1/runs/{run}/steps/6/result"), &json!({"attempt": 1, "exit_code": 0})).expect(200);
    assert_eq!((lab.state(&run).as_str(), lab.state(&waiting).as_str()), ("SUCCEEDED succeeded", "RUNNING"));
    lab.cancel(&behind);
    let late = lab.claimed("b1");
    lab.advert("b1", "b1-2", &["board"]);
    assert_eq!(lab.state(&waiting), "FAILED agent-restarted");
    lab.report("b1", &late, json!({"exit_code": 0})).problem(409, "stale-lease");
    let asks = on_board(json!([{"id": "no", "ask": {"prompt": "?", "options": ["yes", "no"], "accept": ["yes"]}}]));
    let run = lab.placed(&asks);
    lab.answer(&run, 1, "no").expect(200);
    let run = lab.placed(&on_board(json!([{"id": "h", "hold": {}}])));
    lab.post(&format!("/v1/runs/{run}/steps/1/result"), &json!({"attempt": 1, "exit_code": 4})).expect(200);
    assert_eq!(lab.state(&run), "FAILED step-failed");
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "graceful", "reason": "x"})).expect(200);
    lab.post("/v1/nodes/b1/drain", &json!({"mode": "at-boundary", "reason": "y"})).expect(200);
    let owner = |mode: &str| {
        let advert = crate::support::advert("b1", "b1-2", &["board"]);
        lab.post("/v1/nodes", &with(advert, "policy", json!({"drain": mode, "reason": "z"}))).expect(200);
    };
    owner("graceful");
    owner("");
    lab.delete("/v1/nodes/b1/drain").expect(200);
    let both = json!({"requires": requires(&["a=board", "b=scope"]), "steps": [step("w", "a")]});
    let lost = lab.placed(&both);
    lab.advance(700.0);
    assert_eq!(lab.state(&lost), "FAILED node-lost");
    lab.heartbeat("b1");
    let run = lab.placed(&with(one_step(), "limit_seconds", 20));
    lab.advance(21.0);
    assert_eq!(lab.state(&run), "FAILED time-limit");
    lab.delete("/v1/nodes/s1").expect(200);
}
