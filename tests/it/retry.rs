//! Safe retries: one effect for each key, the first answer byte for byte, and what is kept, for whom and for how long.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use mediator::config::{EVENTS, Secret, Settings, Webhook};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Daemon, Lab, Reply, id_of, on_board, one_step, with};

const HOUR: f64 = 3600.0;

/// A contract with a question: a static node can have it, and nothing but an answer ends it.
fn question() -> Value {
    on_board(json!([{"id": "look", "ask": {"prompt": "Is it on?", "options": ["yes", "no"]}}]))
}

/// A lab with one board that needs no agent.
fn bench(change: impl FnOnce(&mut Settings)) -> Lab {
    let lab = Lab::with(change);
    lab.static_node("b1", &["board"]);
    lab
}

/// A receiver that nobody listens for: its notifications stay in the outbox.
fn webhook() -> Webhook {
    let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
    let (name, url) = ("log".to_owned(), "http://127.0.0.1:9/".to_owned());
    Webhook { name, url, secret, events: EVENTS.map(str::to_owned).to_vec() }
}

fn is_replay(reply: &Reply) -> bool {
    reply.header("idempotent-replayed").is_some_and(|value| value == "true")
}

/// Checks that `again` is the stored answer `first`.
#[track_caller]
fn same(first: &Reply, again: &Reply) {
    assert!(!is_replay(first), "the first is no replay");
    assert!(is_replay(again), "{again:?}");
    assert_eq!(first.status, again.status);
    assert_eq!(first.bytes, again.bytes, "byte for byte");
    for header in ["content-type", "location", "idempotency-expires", "cache-control"] {
        assert_eq!(first.header(header), again.header(header), "{header}");
    }
    assert!(first.header("idempotency-expires").is_some());
}

fn keys(lab: &Lab) -> i64 {
    lab.number("SELECT count(*) FROM requests")
}

fn runs(lab: &Lab) -> i64 {
    lab.number("SELECT count(*) FROM runs")
}

/// What the daemon knows of a key.
#[track_caller]
fn known(lab: &Lab, key: &str) -> Value {
    lab.get(&format!("/v1/idempotency/{key}")).expect(200)
}

/// Posts a contract with these lines in the head, byte for byte; returns the status and the body.
fn raw(lab: &Lab, lines: &[u8]) -> (u16, String) {
    let body = one_step().to_string();
    let address = lab.url().strip_prefix("http://").expect("an address").to_owned();
    let mut request = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\ncontent-length: {}\r\n",
        lab.token(),
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(lines);
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body.as_bytes());
    let answer = lab.http.rt.block_on(async {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        stream.write_all(&request).await.expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        String::from_utf8(answer).expect("text")
    });
    (answer[9..12].parse().expect("a status"), answer)
}

// ---- the key

/// "a quoted string as the IETF draft has it or the same characters bare, 1 to 255 visible ASCII without quote,
/// backslash, comma, semicolon; anything else, an empty value or two lines: 400"
#[test]
fn a_key_is_a_quoted_string_or_the_same_characters_bare() {
    let lab = bench(|_| {});
    let long = "k".repeat(255);
    let every: String = ('!'..='~').filter(|c| !"\"\\,;".contains(*c)).collect();
    for (number, key) in ["a", "7", long.as_str(), every.as_str(), "a/b:c?d=e&f#g%20"].into_iter().enumerate() {
        let (status, answer) = raw(&lab, format!("Idempotency-Key: {key}\r\n").as_bytes());
        assert_eq!(status, 422, "no agent: a rejection, which is stored: {answer}");
        let (status, answer) = raw(&lab, format!("idempotency-key:   \"{key}\"  \r\n").as_bytes());
        assert_eq!((status, answer.contains("idempotent-replayed: true")), (422, true), "{answer}");
        assert_eq!(keys(&lab), i64::try_from(number).unwrap() + 1, "bare and quoted are one key");
    }
    let stored = (keys(&lab), runs(&lab));
    let over = format!("Idempotency-Key: {long}k\r\n");
    let over_quoted = format!("Idempotency-Key: \"{long}k\"\r\n");
    for lines in [
        &b"Idempotency-Key:\r\n"[..],
        b"Idempotency-Key:   \r\n",
        b"Idempotency-Key: \"\"\r\n",
        b"Idempotency-Key: \"\r\n",
        b"Idempotency-Key: \"a\r\n",
        b"Idempotency-Key: a\"\r\n",
        b"Idempotency-Key: \"a\"b\"\r\n",
        b"Idempotency-Key: \"a\";p=1\r\n",
        b"Idempotency-Key: a b\r\n",
        b"Idempotency-Key: a\tb\r\n",
        b"Idempotency-Key: \" a\"\r\n",
        b"Idempotency-Key: a,b\r\n",
        b"Idempotency-Key: a;b\r\n",
        b"Idempotency-Key: a\\b\r\n",
        b"Idempotency-Key: 'a',\r\n",
        b"Idempotency-Key: caf\xc3\xa9\r\n",
        b"Idempotency-Key: caf\xe9\r\n",
        b"Idempotency-Key: a\r\nIdempotency-Key: a\r\n",
        b"Idempotency-Key: a\r\nidempotency-key: b\r\n",
        over.as_bytes(),
        over_quoted.as_bytes(),
    ] {
        let (status, answer) = raw(&lab, lines);
        let shown = String::from_utf8_lossy(lines);
        assert_eq!(status, 400, "{shown}: {answer}");
        assert!(answer.contains("\"invalid-request\"") && answer.contains("\"new-key\""), "{shown}: {answer}");
    }
    assert_eq!((keys(&lab), runs(&lab)), stored, "nothing was done and nothing was kept");
}

/// "a key sent with them is checked for form and not stored"
#[test]
fn what_is_repeatable_by_nature_stores_no_key() {
    let lab = Lab::new();
    let advert = crate::support::advert("b1", "b1-1", &["board"]);
    lab.keyed("POST", "/v1/nodes", "k", &advert).expect(200);
    lab.placed(&one_step());
    let claim = lab.keyed("POST", "/v1/nodes/b1/claim", "k", &json!({"instance": "b1-1"})).expect(200);
    let report = crate::support::report("b1", &claim, json!({"exit_code": 0}));
    let path = crate::support::result_path(&claim);
    let first = lab.keyed("POST", &path, "k", &report);
    let again = lab.keyed("POST", &path, "k", &report);
    assert_eq!((first.status, again.status), (200, 200));
    assert!(first.header("idempotency-expires").is_none() && !is_replay(&again));
    assert_eq!(keys(&lab), 0);
    for (method, path) in [("POST", "/v1/nodes"), ("POST", "/v1/nodes/b1/claim"), ("POST", path.as_str())] {
        lab.keyed(method, path, "a;b", &json!({})).problem(400, "invalid-request");
    }
    lab.keyed("GET", "/v1/runs", "a b", &Value::Null).problem(400, "invalid-request");
}

/// "`idempotency.required` can demand it: 400 `idempotency-key-missing`"
#[test]
fn a_daemon_can_demand_a_key_with_every_change() {
    let lab = bench(|settings| settings.idempotency_required = true);
    let run = id_of(&lab.keyed("POST", "/v1/runs", "k", &question()).expect(201));
    for (method, path) in changing(&run) {
        let problem = lab.call(method, &path, &json!({})).problem(400, "idempotency-key-missing");
        assert_eq!(problem["retry"], "new-key", "{method} {path}");
    }
    // What is repeatable as it is needs none.
    lab.node("b2", &["board"]);
    assert_eq!(lab.claim("b2"), None);
    lab.post(&format!("/v1/runs/{run}/renew"), &json!({})).expect(200);
    lab.get("/v1/runs").expect(200);
}

/// Every route that takes a key.
fn changing(run: &str) -> Vec<(&'static str, String)> {
    vec![
        ("POST", "/v1/runs".to_owned()),
        ("POST", format!("/v1/runs/{run}/cancel")),
        ("POST", format!("/v1/runs/{run}/steps/1/answer")),
        ("POST", "/v1/nodes/b1/drain".to_owned()),
        ("DELETE", "/v1/nodes/b1/drain".to_owned()),
        ("DELETE", "/v1/nodes/b1".to_owned()),
        ("POST", "/v1/outbox/1/resend".to_owned()),
    ]
}

/// The principal is the scope, "not the token: a rotated token is the same caller"; "a replay is authorised afresh".
#[test]
fn keys_belong_to_the_principal_and_outlive_its_token() {
    let mut lab = bench(|_| {});
    let other = format!("Bearer {}", lab.token_of("another"));
    let first = lab.keyed("POST", "/v1/runs", "k", &question());
    assert_eq!(first.status, 201);
    let body = question().to_string();
    let headers = [("authorization", other.as_str()), ("idempotency-key", "k")];
    let theirs = lab.call_with("POST", "/v1/runs", &headers, body.clone());
    assert_eq!((theirs.status, is_replay(&theirs)), (202, false), "the other's key is another");
    assert_ne!(theirs.bytes, first.bytes);
    same(&theirs, &lab.call_with("POST", "/v1/runs", &headers, body.clone()));
    assert_eq!((runs(&lab), keys(&lab)), (2, 2));

    let old = format!("Bearer {}", lab.token());
    lab.stop();
    std::fs::remove_file(lab.dir.path().join("operator.token")).expect("it is there");
    lab.start();
    let headers = [("authorization", old.as_str()), ("idempotency-key", "k")];
    lab.call_with("POST", "/v1/runs", &headers, body).problem(401, "unauthorized");
    same(&first, &lab.keyed("POST", "/v1/runs", "k", &question()));
    assert_eq!(runs(&lab), 2);
}

// ---- the request

/// "so key order and white space do not matter"; everything else does.
#[test]
fn another_request_with_a_used_key_is_refused_and_the_first_effect_stands() {
    let lab = bench(|_| {});
    lab.static_node("b2", &["board"]);
    let text = r#"{"requires":[{"as":"dut","capability":"board"}],"steps":[{"id":"look","ask":{"prompt":"é?"}}]}"#;
    let spaced = "{ \"steps\" : [ {\"ask\":{\"prompt\":\"\\u00e9?\"},\n\"id\":\"look\"} ],\t
        \"requires\":[{\"capability\":\"board\",\"as\":\"dut\"}] }";
    let key = [("idempotency-key", "k")];
    let first = lab.call_with("POST", "/v1/runs", &key, text);
    assert_eq!(first.status, 201);
    same(&first, &lab.call_with("POST", "/v1/runs", &key, spaced));
    let conflict = |method: &str, path: &str, body: &str| {
        let before = (lab.all_rows(), keys(&lab));
        let reply = lab.call_with(method, path, &key, body.to_owned());
        assert!(
            !is_replay(&reply) && reply.header("idempotency-expires").is_none() && reply.header("location").is_none()
        );
        let problem = reply.problem(422, "idempotency-payload-conflict");
        assert_eq!(problem["retry"], "new-key");
        assert!(problem["run_id"].is_null(), "nothing of the first answer is in it: {problem}");
        assert_eq!((lab.all_rows(), keys(&lab)), before, "{method} {path} {body} did something");
    };
    conflict("POST", "/v1/runs", &question().to_string());
    conflict("POST", "/v1/runs", &with(question(), "name", "other").to_string());
    conflict("POST", "/v1/runs?dry_run=false", text);
    conflict("POST", "/v1/runs?dry_run=true", text);
    conflict("DELETE", "/v1/nodes/b2", "");
    conflict("POST", "/v1/nodes/b2/drain", r#"{"mode":"graceful"}"#);
    let run = id_of(&first.body);
    conflict("POST", &format!("/v1/runs/{run}/cancel"), "");
    same(&first, &lab.call_with("POST", "/v1/runs", &key, text));

    // The value of a parameter counts, too.
    let key = [("idempotency-key", "q")];
    let asked = lab.call_with("POST", "/v1/runs?dry_run=false", &key, text);
    assert_eq!(asked.status, 201);
    lab.call_with("POST", "/v1/runs?dry_run=true", &key, text).problem(422, "idempotency-payload-conflict");
    same(&asked, &lab.call_with("POST", "/v1/runs?dry_run=false", &key, text));

    // Routes with equal bodies differ by path and by method.
    let key = [("idempotency-key", "d")];
    let drained = lab.call_with("POST", "/v1/nodes/b1/drain", &key, r#"{"mode":"graceful"}"#);
    assert_eq!(drained.status, 200);
    for (method, path, body) in [
        ("POST", "/v1/nodes/b2/drain", r#"{"mode":"graceful"}"#),
        ("POST", "/v1/nodes/b1/drain", r#"{"mode":"at-boundary"}"#),
        ("DELETE", "/v1/nodes/b1/drain", ""),
        ("DELETE", "/v1/nodes/b1/drain", r#"{}"#),
    ] {
        lab.call_with(method, path, &key, body).problem(422, "idempotency-payload-conflict");
    }
    assert_eq!(lab.show_node("b2")["drain"], Value::Null);
    // A DELETE takes no body but an empty one.
    lab.call_with("DELETE", "/v1/nodes/b1/drain", &[], r#"{"mode":"graceful"}"#).problem(400, "invalid-request");
    assert_eq!(lab.show_node("b1")["drain"], "graceful");
    same(&drained, &lab.call_with("POST", "/v1/nodes/b1/drain", &key, r#"{ "mode" : "graceful" }"#));
}

/// "Lookup, effect and completion record in one write transaction": of every route that changes something, I5.
#[test]
fn every_effect_is_stored_and_given_again_byte_for_byte() {
    let mut lab = bench(|settings| settings.webhooks = vec![webhook()]);
    let run = id_of(&lab.submit(&question()).expect(201));
    let waiting = id_of(&lab.submit(&question()).expect(202));
    lab.static_node("b9", &["other"]);
    let never = with(question(), "requires", json!([{"as": "dut", "capability": "nothing-like-it"}]));
    let notification = lab.number("SELECT max(id) FROM outbox");
    let mut answers = Vec::new();
    for (key, method, path, body, status) in [
        ("queued", "POST", "/v1/runs".to_owned(), question(), 202),
        ("rejected", "POST", "/v1/runs".to_owned(), never, 422),
        ("cancelled", "POST", format!("/v1/runs/{waiting}/cancel"), json!({"reason": "enough"}), 200),
        ("answered", "POST", format!("/v1/runs/{run}/steps/1/answer"), json!({"answer": "yes"}), 200),
        ("drained", "POST", "/v1/nodes/b9/drain".to_owned(), json!({"mode": "graceful", "reason": "dust"}), 200),
        ("undrained", "DELETE", "/v1/nodes/b9/drain".to_owned(), Value::Null, 200),
        ("removed", "DELETE", "/v1/nodes/b9".to_owned(), Value::Null, 200),
        ("sent-again", "POST", format!("/v1/outbox/{notification}/resend"), json!({}), 200),
    ] {
        let first = lab.keyed(method, &path, key, &body);
        assert_eq!(first.status, status, "{key}: {}", first.body);
        let rows = (lab.all_rows(), keys(&lab), lab.number("SELECT count(*) FROM outbox"));
        same(&first, &lab.keyed(method, &path, key, &body));
        assert_eq!((lab.all_rows(), keys(&lab), lab.number("SELECT count(*) FROM outbox")), rows, "{key} acted twice");
        assert_eq!(known(&lab, key)["state"], "stored", "{key}");
        answers.push((key, method, path, body, first));
    }
    // A recorded rejection has the `request_id` of its first time, and tells where its run is.
    let rejected = &answers[1].4;
    let rejected_run = id_of(&rejected.body);
    assert_eq!(rejected.header("location"), Some(format!("/v1/runs/{rejected_run}").as_str()));
    assert!(rejected.body["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{}", rejected.body);
    assert_eq!(lab.state(&rejected_run), "FAILED rejected");
    // Later, when all of it looks otherwise, and in the next life of the daemon.
    lab.restart_after(HOUR);
    for (_, method, path, body, first) in &answers {
        same(first, &lab.keyed(method, path, answers_key(&answers, path, method, body), body));
    }
}

fn answers_key<'a>(
    answers: &'a [(&'static str, &'static str, String, Value, Reply)],
    path: &str,
    method: &str,
    body: &Value,
) -> &'a str {
    answers.iter().find(|a| a.2 == path && a.1 == method && a.3 == *body).expect("it was asked").0
}

/// "a 4xx or 5xx without one leaves the key free, and so does a 2xx that changed nothing"
#[test]
fn what_changed_nothing_leaves_the_key_free() {
    let lab = bench(|settings| settings.queued_per_principal = 1);
    lab.static_node("b9", &["other"]);
    let run = id_of(&lab.submit(&with(question(), "run_id", "r-1")).expect(201));
    let ended = id_of(&lab.submit(&with(question(), "run_id", "r-2")).expect(202));
    lab.cancel(&ended);
    lab.submit(&with(question(), "run_id", "r-3")).expect(202);
    let cancel = |run: &str| format!("/v1/runs/{run}/cancel");
    let answer = |run: &str| format!("/v1/runs/{run}/steps/1/answer");
    let graceful = || json!({"mode": "graceful"});
    let submit = || "/v1/runs".to_owned();
    let never = with(question(), "requires", json!([{"as": "dut", "capability": "nothing-like-it"}]));
    let table = [
        ("POST", submit(), json!({"steps": 7}), 400),
        ("POST", submit(), with(question(), "run_id", "r-1"), 200),
        ("POST", submit(), with(with(question(), "run_id", "r-1"), "name", "x"), 409),
        ("POST", submit(), question(), 429),
        ("POST", "/v1/runs?dry_run=true".to_owned(), question(), 200),
        ("POST", "/v1/runs?dry_run=true".to_owned(), never, 422),
        ("POST", "/v1/runs?dry=true".to_owned(), question(), 400),
        ("POST", cancel("nobody"), json!({}), 404),
        ("POST", cancel(&ended), json!({}), 200),
        ("POST", cancel(&run), json!({"reason": 7}), 400),
        ("POST", answer("r-3"), json!({"answer": "yes"}), 409),
        ("POST", answer(&run), json!({"answer": "perhaps"}), 422),
        ("POST", answer(&run), json!({}), 400),
        ("POST", answer("nobody"), json!({"answer": "yes"}), 404),
        ("POST", "/v1/nodes/nobody/drain".to_owned(), graceful(), 404),
        ("POST", "/v1/nodes/b9/drain".to_owned(), json!({"mode": "never"}), 400),
        ("DELETE", "/v1/nodes/b9/drain".to_owned(), Value::Null, 200),
        ("DELETE", "/v1/nodes/nobody/drain".to_owned(), Value::Null, 404),
        ("DELETE", "/v1/nodes/b1".to_owned(), Value::Null, 409),
        ("DELETE", "/v1/nodes/nobody".to_owned(), Value::Null, 404),
        ("POST", "/v1/outbox/99/resend".to_owned(), json!({}), 404),
        ("PATCH", submit(), question(), 405),
    ];
    for (method, path, body, status) in table {
        for _ in 0..2 {
            let rows = lab.all_rows();
            let reply = lab.keyed(method, &path, "free", &body);
            assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.body);
            assert!(!is_replay(&reply) && reply.header("idempotency-expires").is_none(), "{method} {path}");
            if status >= 400 {
                let retry = reply.body["retry"].as_str();
                assert!(matches!(retry, Some("same-key" | "new-key" | "never")), "{}", reply.body);
            }
            assert_eq!((keys(&lab), lab.all_rows()), (0, rows), "{method} {path} {body} changed something");
        }
    }
    // The same drain again, and the same answer again: each the second time under another key.
    lab.post("/v1/nodes/b9/drain", &graceful()).expect(200);
    lab.keyed("POST", "/v1/nodes/b9/drain", "free", &graceful()).expect(200);
    lab.answer(&run, 1, "yes").expect(200);
    lab.keyed("POST", &answer(&run), "free", &json!({"answer": "yes"})).expect(200);
    lab.keyed("POST", &answer(&run), "free", &json!({"answer": "no"})).problem(409, "already-answered");
    assert_eq!(keys(&lab), 0);
    assert_eq!(known(&lab, "free")["state"], "absent");
    // And the key that all of this was tried with does its work, once.
    let first = lab.keyed("POST", &cancel("r-3"), "free", &json!({}));
    assert_eq!(first.status, 200);
    assert_eq!(lab.number("SELECT count(*) FROM requests"), 1);
}

/// `run_id` remains a second, everlasting guard beside the key.
#[test]
fn a_run_id_guards_also_under_another_key() {
    let lab = bench(|_| {});
    let contract = with(question(), "run_id", "mine");
    let first = lab.keyed("POST", "/v1/runs", "one", &contract);
    assert_eq!(first.status, 201);
    let other = lab.keyed("POST", "/v1/runs", "two", &contract);
    assert_eq!((other.status, id_of(&other.body).as_str()), (200, "mine"));
    same(&first, &lab.keyed("POST", "/v1/runs", "one", &contract));
    assert_eq!((runs(&lab), keys(&lab)), (1, 1));
}

/// "Two at once: the second waits for the first, one effect."
#[test]
fn many_clients_with_one_key_at_one_instant_are_one_new_and_the_others_replays() {
    let lab = bench(|_| {});
    lab.static_node("b9", &["other"]);
    let run = id_of(&lab.submit(&question()).expect(201));
    for (number, (method, path)) in changing(&run).into_iter().enumerate().take(6) {
        let path = path.replace("/b1", "/b9");
        let body = match number {
            0 => question(),
            1 => json!({"reason": "x"}),
            2 => continue,
            3 => json!({"mode": "graceful"}),
            _ => Value::Null,
        };
        let (key, before) = (format!("at-once-{number}"), runs(&lab));
        let calls: Vec<_> = (0..40).map(|_| lab.park_keyed(method, &path, &key, &body)).collect();
        let replies: Vec<Reply> = calls.into_iter().map(|call| lab.join(call)).collect();
        assert_eq!(replies.iter().filter(|reply| is_replay(reply)).count(), 39, "{method} {path}");
        for reply in &replies {
            assert!(matches!(reply.status, 200..=202), "{}", reply.body);
            assert_eq!(reply.bytes, replies[0].bytes);
        }
        assert_eq!(runs(&lab) - before, i64::from(number == 0));
    }
}

/// "A client that hangs up cancels nothing."
#[test]
fn a_client_that_hangs_up_finds_its_answer_under_its_key() {
    let daemon = Daemon::start();
    daemon.call(
        "POST",
        "/v1/nodes",
        &json!({"node_id": "b1", "static": true, "capabilities": [{"capability": "board"}]}),
    );
    let request = raw_submit(&daemon, "gone", &question());
    let address = daemon.url().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(&request).expect("sent");
    // The writer has it, or will: the connection is cut, and the daemon left alone, until the key is there.
    let rows = daemon.rows();
    crate::support::wait_for("the key", || {
        let found: i64 = rows.query_row("SELECT count(*) FROM requests", [], |row| row.get(0)).expect("a row");
        (found == 1).then_some(())
    });
    drop(stream);
    let reply = daemon.call_with("POST", "/v1/runs", &[("idempotency-key", "gone")], &question());
    assert!(is_replay(&reply) && reply.status == 201, "{}", reply.body);
}

fn raw_submit(daemon: &Daemon, key: &str, contract: &Value) -> Vec<u8> {
    let body = contract.to_string();
    format!(
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\n\
         content-length: {}\r\n\r\n{body}",
        daemon.token(),
        body.len()
    )
    .into_bytes()
}

// ---- how long

/// "Retention is the guarantee": until its end a replay, then a refusal that names the run, in the end a new key.
#[test]
fn a_key_is_replayed_then_refused_then_new() {
    let lab = bench(|settings| {
        settings.idempotency_retention_ms = 3_600_000;
        settings.idempotency_tombstone_ms = 86_400_000;
    });
    let contract = with(question(), "requires", json!([{"as": "dut", "capability": "nothing-like-it"}]));
    let submit = || lab.keyed("POST", "/v1/runs", "k", &contract);
    let first = submit();
    assert_eq!(first.status, 422);
    let run = id_of(&first.body);
    assert_eq!(first.header("idempotency-expires"), Some("2027-01-15T09:00:00.000Z"), "an hour from the start");
    assert_eq!(known(&lab, "k")["expires_at"], "2027-01-15T09:00:00.000Z");
    lab.advance(HOUR - 0.001);
    same(&first, &submit());

    lab.advance(0.001);
    for _ in 0..2 {
        let expired = submit();
        assert_eq!(expired.header("location"), Some(format!("/v1/runs/{run}").as_str()));
        assert!(!is_replay(&expired) && expired.header("idempotency-expires").is_none());
        let problem = expired.problem(409, "idempotency-key-expired");
        assert_eq!((problem["run_id"].as_str(), problem["retry"].as_str()), (Some(run.as_str()), Some("never")));
    }
    // Whatever comes with it: the tombstone has no fingerprint to compare.
    lab.keyed("DELETE", "/v1/nodes/b1", "k", &Value::Null).problem(409, "idempotency-key-expired");
    let view = known(&lab, "k");
    assert_eq!((view["state"].as_str(), view["run_id"].as_str()), (Some("expired"), Some(run.as_str())));
    assert!(view["status"].is_null() && view["expires_at"].is_null() && !view["created_at"].is_null(), "{view}");
    assert_eq!(runs(&lab), 1);

    lab.advance(86_399.0);
    submit().problem(409, "idempotency-key-expired");
    lab.advance(1.0);
    assert_eq!(known(&lab, "k")["state"], "absent");
    let second = submit();
    assert_eq!((second.status, is_replay(&second)), (422, false));
    assert_ne!(id_of(&second.body), run);
    assert_eq!(runs(&lab), 2, "the key is new");
}

/// "and never before the run has ended"
#[test]
fn a_key_is_kept_while_its_run_goes_on() {
    let mut lab = bench(|settings| settings.idempotency_retention_ms = 60_000);
    let first = lab.keyed("POST", "/v1/runs", "k", &question());
    let run = id_of(&first.body);
    let drained = lab.keyed("POST", "/v1/nodes/b1/drain", "d", &json!({"mode": "graceful"}));
    assert_eq!(drained.status, 200);
    for _ in 0..3 {
        lab.advance(HOUR);
        same(&first, &lab.keyed("POST", "/v1/runs", "k", &question()));
    }
    lab.keyed("POST", "/v1/nodes/b1/drain", "d", &json!({"mode": "graceful"})).problem(409, "idempotency-key-expired");
    lab.restart();
    same(&first, &lab.keyed("POST", "/v1/runs", "k", &question()));
    assert_eq!(known(&lab, "k")["state"], "stored");
    lab.answer(&run, 1, "yes").expect(200);
    lab.settle();
    let problem = lab.keyed("POST", "/v1/runs", "k", &question()).problem(409, "idempotency-key-expired");
    assert_eq!(problem["run_id"], run.as_str());
    assert_eq!(runs(&lab), 1);
}

/// What was promised with an answer does not change with a setting.
#[test]
fn a_shorter_retention_does_not_shorten_what_was_promised() {
    let mut lab = bench(|_| {});
    let run = id_of(&lab.submit(&question()).expect(201));
    let path = format!("/v1/runs/{run}/cancel");
    let first = lab.keyed("POST", &path, "k", &json!({}));
    assert_eq!(first.status, 200);
    lab.stop();
    lab.change(|settings| settings.idempotency_retention_ms = 1000);
    lab.start();
    lab.advance(HOUR);
    same(&first, &lab.keyed("POST", &path, "k", &json!({})));
    assert_eq!(known(&lab, "k")["expires_at"].as_str(), first.header("idempotency-expires"));
}

/// "pruned within 10 s of its end in small steps by the writer, never on the path of a request"
#[test]
fn pruning_goes_in_small_steps_between_writes() {
    const MANY: i64 = 5_000;
    let lab = bench(|settings| settings.idempotency_retention_ms = 60_000);
    let outside = lab.outside();
    let due = lab.now() + 60_000;
    outside
        .execute(
            "INSERT INTO requests (scope, key, created_at, due_at, fp_version, fingerprint, status, headers, body)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
             SELECT 'operator', 'k' || i, ?2, ?3, 1, zeroblob(32), 200, '{}', zeroblob(2000) FROM n",
            (MANY, lab.now(), due),
        )
        .expect("keys");
    let left = || lab.number("SELECT count(*) FROM requests WHERE status IS NOT NULL");
    lab.advance(30.0);
    assert_eq!(left(), MANY, "none before its time");
    lab.clock.advance(Duration::from_secs(30));
    lab.store().poke();
    // Until it is pruned a key is what it was; and each write finds no more than a step gone since the one before.
    let mut seen = vec![left()];
    while seen.last() != Some(&0) {
        lab.http.rt.block_on(lab.store().write(|_| Ok(()))).expect("a write");
        seen.push(left());
        assert!(seen.len() < 1000, "it ends: {seen:?}");
    }
    assert_eq!(lab.number("SELECT count(*) FROM requests WHERE body IS NULL"), MANY, "all are tombstones");
}

// ---- did it happen

/// "percent-encoded; `%2F` is allowed in this route alone"
#[test]
fn one_can_ask_whether_it_happened_without_doing_it() {
    let mut lab = bench(|_| {});
    let key = "ci/build?7#x%y..";
    let path = "/v1/idempotency/ci%2Fbuild%3F7%23x%25y..";
    let absent =
        json!({"key": key, "state": "absent", "status": null, "run_id": null, "created_at": null, "expires_at": null});
    assert_eq!(lab.get(path).expect(200), absent);
    let first = lab.keyed("POST", "/v1/runs", key, &question());
    let view = lab.get(path).expect(200);
    let expires = first.header("idempotency-expires").expect("it is told").to_owned();
    let wanted = json!({
        "key": key, "state": "stored", "status": 201, "run_id": first.body["run_id"],
        "created_at": first.body["created_at"], "expires_at": expires,
    });
    assert_eq!(view, wanted);
    // Of one's own keys.
    let other = format!("Bearer {}", lab.token_of("another"));
    assert_eq!(lab.call_with("GET", path, &[("authorization", &other)], "").expect(200), absent);
    // A slash that is none is one in other routes, and nothing there.
    lab.get("/v1/idempotency/ci/build").problem(404, "not-found");
    lab.get("/v1/runs/ci%2Fbuild").problem(404, "not-found");
    for odd in ["%2E", "%2e%2e", "%2F"] {
        assert_eq!(lab.get(&format!("/v1/idempotency/{odd}")).expect(200)["state"], "absent", "{odd}");
    }
}

// ---- kills

/// I5: whatever the instant of the kill, the same request again has one effect.
#[test]
fn a_kill_at_any_instant_leaves_the_effect_and_its_key_or_neither() {
    let mut daemon = Daemon::start();
    let node = json!({"node_id": "b1", "static": true, "capabilities": [{"capability": "board"}]});
    daemon.call("POST", "/v1/nodes", &node).expect(200);
    let first = daemon.call_with("POST", "/v1/runs", &[("idempotency-key", "first")], &question());
    assert_eq!(first.status, 201);
    let mut found = 0;
    const ROUNDS: i64 = 12;
    for round in 0..ROUNDS {
        let key = format!("round-{round}");
        let mut stream =
            TcpStream::connect(daemon.url().strip_prefix("http://").expect("an address")).expect("it is up");
        stream.write_all(&raw_submit(&daemon, &key, &question())).expect("sent");
        // A third of a millisecond more each time: before it was read, in the middle, after the commit.
        std::thread::sleep(Duration::from_micros(350 * round.unsigned_abs()));
        daemon.kill();
        daemon.start_again();
        let count = |query: &str| daemon.rows().query_row(query, [], |row| row.get::<_, i64>(0)).expect("a row");
        let (runs, keys) = (count("SELECT count(*) FROM runs"), count("SELECT count(*) FROM requests"));
        assert_eq!(runs, keys, "an effect and its key are there together, or neither is (I5)");
        found += i64::from(keys == round + 2);
        let again = daemon.call_with("POST", "/v1/runs", &[("idempotency-key", &key)], &question());
        assert_eq!((again.status, is_replay(&again)), (202, keys == round + 2));
        assert_eq!(count("SELECT count(*) FROM runs"), round + 2);
        same(&first, &daemon.call_with("POST", "/v1/runs", &[("idempotency-key", "first")], &question()));
    }
    eprintln!("{found} of {ROUNDS} kills came after the commit");
    daemon
        .call_with("POST", "/v1/runs", &[("idempotency-key", "first")], &one_step())
        .problem(422, "idempotency-payload-conflict");
}
