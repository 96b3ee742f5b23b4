//! The daemon's log: what each level tells, and that no level tells a secret.

use serde_json::{Value, json};

use crate::support::{Daemon, advert, one_step, report, result_path, wait_for};

/// As long as a token is, so that any cut of it would be seen.
const CANARY: &str = "mdt_canary0123456789abcdefghjkmnpqrstvwxyz0123456789ab";
const SECRET: &str = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5";

/// A daemon that logs at this level, with a receiver of notifications that is not there, after some work; its log, its
/// token, and the nonce of a lease.
fn at_level(level: &str) -> (String, Vec<String>) {
    let webhook =
        format!("[[webhook]]\nname = \"gone\"\nurl = \"http://127.0.0.1:9/{CANARY}\"\nsecret = \"{SECRET}\"\n");
    let daemon = Daemon::with_file_and_env(&webhook, &[("RUST_LOG", level)]);
    daemon.call("POST", "/v1/nodes", &advert("b1", "b1-1", &["board"])).expect(200);
    daemon.call("POST", "/v1/runs", &one_step()).expect(201);
    daemon.call("POST", "/v1/runs", &one_step()).expect(202);
    let claim = daemon.call("POST", "/v1/nodes/b1/claim", &json!({"instance": "b1-1"})).expect(200);
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce").to_owned();
    let step = format!("/v1/runs/{}/steps/1", claim["run_id"].as_str().expect("an id"));
    daemon.call("PUT", &format!("{step}/log?nonce={nonce}&attempt=1&offset=0"), &json!("output")).expect(204);
    daemon.call("PUT", &format!("{step}/artifacts/f?nonce={nonce}&attempt=1"), &json!("file")).expect(204);
    // Wrong in every place that a secret can be in.
    let wrong = |method: &str, path: &str, headers: &[(&str, &str)], body: &Value| {
        let reply = daemon.call_with(method, path, headers, body);
        assert!((400..500).contains(&reply.status), "{path}: {}", reply.status);
    };
    wrong("PUT", &format!("{step}/log?nonce={CANARY}&attempt=1&offset=0"), &[], &json!("x"));
    wrong("PUT", &format!("{step}/log?nonce={CANARY}&attempt=no"), &[], &json!("x"));
    wrong("POST", &result_path(&claim), &[], &report("b1", &claim, json!({"nonce": CANARY, "exit_code": 0})));
    wrong("POST", &result_path(&claim), &[], &report("b1", &claim, json!({"nonce": [CANARY], "exit_code": 0})));
    wrong("POST", "/v1/runs", &[], &json!({"requires": [], "secret": CANARY}));
    wrong("GET", "/v1/no", &[("x-forwarded-host", CANARY)], &json!({CANARY: CANARY}));
    daemon.raw(&format!("GET /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {CANARY}\r\n\r\n"));
    daemon.raw(&format!("GET /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {CANARY}\r\n\r\n"));
    daemon.raw(&format!("GET /v1/runs HTTP/1.1\r\nhost : localhost\r\nauthorization: Bearer {CANARY}\r\n\r\n"));
    daemon.raw(&format!("GET /v1/runs HTTP/9.9\r\nauthorization: Bearer {CANARY}\r\n\r\n"));
    daemon.call("POST", &result_path(&claim), &report("b1", &claim, json!({"exit_code": 0}))).expect(200);
    wait_for("a notification that failed", || {
        let outbox = daemon.call("GET", "/v1/outbox", &Value::Null).expect(200);
        outbox["outbox"].as_array().expect("a list").iter().any(|sent| sent["attempts"] != 0).then_some(())
    });
    // What is told of a write comes after its answer; a write later it is there.
    daemon.call("POST", "/v1/nodes", &advert("b1", "b1-1", &["board"])).expect(200);
    let mut secrets = vec![nonce, daemon.token().to_owned(), CANARY.to_owned(), SECRET.to_owned()];
    secrets.push("canarycanarycanary".to_owned());
    (daemon.log(), secrets)
}

#[test]
fn no_level_tells_a_secret() {
    for level in ["debug", "trace"] {
        let (log, secrets) = at_level(level);
        assert!(log.contains("path=\"/v1/nodes/b1/claim\" status=200"), "the requests are in it:\n{log}");
        for secret in &secrets {
            // Not a piece of it either.
            for piece in [secret.as_str(), &secret[..secret.len().min(16)]] {
                let told: Vec<&str> = log.lines().filter(|line| line.contains(piece)).collect();
                assert!(told.is_empty(), "RUST_LOG={level} tells {piece}: {told:#?}");
            }
        }
    }
}

/// As docs/operations.md has it.
#[test]
fn each_level_tells_what_it_is_said_to() {
    let words = |level: &str| at_level(level).0;
    let has = |log: &str, what: &str| log.lines().any(|line| line.contains(what));
    let (off, warn, info, debug) = (words("off"), words("warn"), words("info"), words("debug"));
    assert_eq!(off, "");
    assert!(has(&warn, " WARN ") && !has(&warn, " INFO ") && has(&warn, "a notification was not delivered"), "{warn}");
    for what in ["serving url=", "node new node=b1", "run queued run=", "run promoted run=", "run ended run="] {
        assert!(has(&info, what), "{what}: {info}");
    }
    assert!(!has(&info, " DEBUG ") && !has(&info, "method="), "{info}");
    assert!(has(&debug, "method=POST path=\"/v1/runs\" status=201") && !has(&debug, " TRACE "), "{debug}");
    let chosen = words("warn,mediator::http=debug");
    assert!(has(&chosen, "method=POST") && !has(&chosen, "run promoted"), "{chosen}");
}
