//! Artifacts: files that a step leaves, sent while it is in its agent's hands.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{Lab, Reply, on_board, one_step, step, with};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn put(lab: &Lab, claim: &Value, path: &str, bytes: &str) -> Reply {
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce");
    put_with(lab, claim, path, nonce, claim["attempt"].as_i64().expect("a number"), bytes)
}

fn put_with(lab: &Lab, claim: &Value, path: &str, nonce: &str, attempt: i64, bytes: &str) -> Reply {
    let (run, seq) = (claim["run_id"].as_str().expect("a run"), &claim["seq"]);
    let address = format!("/v1/runs/{run}/steps/{seq}/artifacts/{path}?nonce={nonce}&attempt={attempt}");
    lab.put(&address, bytes.to_owned())
}

fn list(lab: &Lab, run: &str) -> Value {
    lab.get(&format!("/v1/runs/{run}/artifacts")).expect(200)
}

fn read(lab: &Lab, run: &str, path: &str) -> String {
    let reply = lab.get(&format!("/v1/runs/{run}/artifacts/{path}"));
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/octet-stream")), "{}", reply.body);
    assert_eq!(reply.header("content-disposition"), Some("attachment"), "no browser shows it as the daemon's");
    String::from_utf8(reply.bytes.to_vec()).expect("text")
}

fn claimed(lab: &Lab) -> (String, Value) {
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    (run, claim)
}

/// What was sent is listed and read, before the seal and after it; the same path again replaces it.
#[test]
fn an_artifact_is_listed_and_read_and_replaced() {
    let lab = Lab::new();
    let (run, claim) = claimed(&lab);
    assert_eq!(list(&lab, &run), json!([]));
    for (path, bytes) in
        [("out/image.bin", "draft"), ("a%20b", "with a space"), ("out/image.bin", "image"), ("%EB%B3%B4", "")]
    {
        assert_eq!(put(&lab, &claim, path, bytes).status, 204, "{path}");
    }
    let entry = |path: &str, bytes: &str| json!({"seq": 1, "attempt": 1, "path": path, "size": bytes.len(), "sha256": sha256(bytes.as_bytes())});
    let expect = json!([entry("a b", "with a space"), entry("out/image.bin", "image"), entry("보", "")]);
    let look = || {
        assert_eq!(list(&lab, &run), expect);
        assert_eq!(read(&lab, &run, "out/image.bin"), "image");
        assert_eq!(read(&lab, &run, "a%20b?seq=1&attempt=1"), "with a space");
        assert_eq!(read(&lab, &run, "%EB%B3%B4"), "");
        for missing in ["out/image", "out", "image.bin", "a%20b?seq=2", "a%20b?attempt=2"] {
            lab.get(&format!("/v1/runs/{run}/artifacts/{missing}")).problem(404, "not-found");
        }
    };
    look();
    lab.report("b1", &claim, json!({"exit_code": 1})).expect(200);
    look();
    assert_eq!(lab.get(&format!("/v1/runs/{run}/record")).status, 200);
    look();
    put(&lab, &claim, "out/image.bin", "after").problem(410, "gone");
    look();
    assert_eq!(lab.events("step.artifact"), 4, "a replaced one was there too");
}

/// Without a step and an attempt the newest is meant.
#[test]
fn the_newest_is_meant() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let back = with(step("test", "dut"), "loop", json!({"back_to": "build", "max": 2}));
    let run = lab.placed(&on_board(json!([step("build", "dut"), back])));
    for (bytes, exit_code) in [("build-1", 0), ("test-1", 1), ("build-2", 0)] {
        let claim = lab.claimed("b1");
        assert_eq!(put(&lab, &claim, "log", bytes).status, 204);
        lab.report("b1", &claim, json!({"exit_code": exit_code})).expect(200);
    }
    let test = lab.claimed("b1");
    for (query, expect) in [
        ("", "build-2"),
        ("?seq=1", "build-2"),
        ("?seq=2", "test-1"),
        ("?seq=1&attempt=1", "build-1"),
        ("?attempt=2", "build-2"),
    ] {
        assert_eq!(read(&lab, &run, &format!("log{query}")), expect, "{query}");
    }
    assert_eq!(put(&lab, &test, "log", "test-2").status, 204);
    assert_eq!(read(&lab, &run, "log"), "test-2");
    let sizes: Vec<(i64, i64)> = list(&lab, &run)
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (entry["seq"].as_i64().expect("a number"), entry["attempt"].as_i64().expect("a number")))
        .collect();
    assert_eq!(sizes, [(1, 1), (1, 2), (2, 1), (2, 2)]);
}

/// Over `artifact.max_bytes` it is 413, and nothing of it is kept.
#[test]
fn one_that_is_too_large_is_refused() {
    let lab = Lab::with(|settings| settings.artifact_max_bytes = 10);
    let (run, claim) = claimed(&lab);
    put(&lab, &claim, "big", "01234567890").problem(413, "too-large");
    assert_eq!(put(&lab, &claim, "big", "0123456789").status, 204);
    put(&lab, &claim, "big", "01234567890").problem(413, "too-large");
    assert_eq!(read(&lab, &run, "big"), "0123456789", "what was there stays");
    let files = std::fs::read_dir(lab.dir.path().join(format!("runs/{run}/artifacts"))).expect("it is there").count();
    assert_eq!(files, 1, "nothing partial stays");
}

/// I8: only who has the attempt in hand sends its files.
#[test]
fn only_the_holder_sends() {
    let lab = Lab::new();
    let (run, claim) = claimed(&lab);
    put_with(&lab, &claim, "x", "another", 1, "x").problem(409, "stale-lease");
    let nonce = claim["lease"]["nonce"].as_str().expect("a nonce").to_owned();
    put_with(&lab, &claim, "x", &nonce, 2, "x").problem(409, "stale-lease");
    for (change, status, code) in [("seq", 404, "not-found"), ("run_id", 404, "not-found")] {
        let other = if change == "seq" { json!(2) } else { json!("r-other") };
        put(&lab, &with(claim.clone(), change, other), "x", "x").problem(status, code);
    }
    for query in ["", "?attempt=1", "?nonce=n", "?nonce=n&attempt=0", "?nonce=n&attempt=1&more=1"] {
        lab.put(&format!("/v1/runs/{run}/steps/1/artifacts/x{query}"), "x").problem(400, "invalid-request");
    }
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    put(&lab, &claim, "x", "x").problem(409, "stale-lease");
    assert_eq!(list(&lab, &run), json!([]));
}

/// No absolute path, no `..`, nothing that is not a plain name; and no file that would be a folder too.
#[test]
fn hostile_paths_are_refused() {
    let lab = Lab::new();
    let (run, claim) = claimed(&lab);
    let long = "x".repeat(256);
    for path in [
        "..",
        "../x",
        "a/../x",
        "%2e%2e/x",
        "a/%2E%2E/%2E%2E/x",
        "/etc/passwd",
        "a//b",
        ".",
        "a/./b",
        "a/",
        "a%0Ab",
        "%00",
        "a%5C..%2Fb",
        "..%2F..%2Fx",
        "%2Fetc%2Fpasswd",
        "%FF",
        &long,
        "",
    ] {
        let reply = put(&lab, &claim, path, "x");
        assert!(matches!(reply.status, 400 | 404 | 405), "{path:?}: {} {}", reply.status, reply.body);
    }
    assert_eq!(list(&lab, &run), json!([]));
    for (path, status) in
        [("out", 204), ("out/x", 400), ("dir/x", 204), ("dir", 400), ("dir/x/y", 400), ("dir/xy", 204), ("dirt", 204)]
    {
        assert_eq!(put(&lab, &claim, path, "x").status, status, "{path}");
    }
    assert_eq!(list(&lab, &run).as_array().expect("a list").len(), 4);
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.get(&format!("/v1/runs/{run}/record")).status, 200, "a record holds them all");
}

/// Names that are patterns elsewhere are plain names here.
#[test]
fn names_are_names() {
    let lab = Lab::new();
    let (run, claim) = claimed(&lab);
    for path in ["%25", "%25/_", "a_c", "abc", "...", "-rf", "~", "$HOME", "a:b", "%2A"] {
        let expect = if path.starts_with("%25/") { 400 } else { 204 };
        assert_eq!(put(&lab, &claim, path, path).status, expect, "{path}: `%` is a file already");
    }
    assert_eq!(read(&lab, &run, "a_c"), "a_c");
    assert_eq!(read(&lab, &run, "%25"), "%25");
}
