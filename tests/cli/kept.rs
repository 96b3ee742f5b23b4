//! What is kept: `record`, `artifacts`, `events`.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::fake::{Fake, Reply, run};
use crate::program::mediator;

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn record(log: &[u8]) -> Vec<u8> {
    let manifest = json!({"files": [{"path": "logs/1-1.log", "size": 5, "sha256": sha256(b"hello")}]}).to_string();
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in [("logs/1-1.log", log), ("manifest.json", manifest.as_bytes())] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, path, bytes).expect("appends");
    }
    builder.into_inner().expect("an archive")
}

#[test]
fn a_record_is_fetched_and_verified() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "GET /v1/runs/r-1/record" => Reply::bytes(&record(b"hello")),
        "GET /v1/runs/r-2/record" => Reply::bytes(&record(b"hellO")),
        "GET /v1/runs/r-4/record" => {
            Reply::bytes(&record(b"hello")).header("mediator-manifest-sha256", &"0".repeat(64))
        }
        _ => Reply::problem(409, "not-sealed", "run r-3 is under way"),
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("r-1.tar");
    let file = file.to_str().expect("text");
    mediator(&fake, &["record", "r-1", "--output", file]).expect(0);
    assert_eq!(std::fs::read(file).expect("reads"), record(b"hello"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("reads").count(), 1, "nothing partial stays");
    assert_eq!(mediator(&fake, &["record", "r-1"]).expect(0).out.len(), record(b"hello").len());
    let asked = fake.asked().len();
    assert!(mediator(&fake, &["record", "--verify", file]).expect(0).out.contains("is whole: 1 files"));
    assert_eq!(fake.asked().len(), asked, "a file needs no daemon");
    mediator(&fake, &["record", "r-1", "--verify"]).expect(0);
    let done = mediator(&fake, &["record", "--verify", "r-2"]).expect(1);
    assert!(done.out.contains("logs/1-1.log was changed"), "{done:?}");
    let done = mediator(&fake, &["record", "--verify", "r-4"]).expect(1);
    assert!(done.out.contains("manifest.json was changed"), "{done:?}");
    let done = mediator(&fake, &["record", "r-4"]).expect(1);
    assert!(
        done.err.contains("manifest.json was changed") && !done.out.is_empty(),
        "what there is is passed on: {done:?}"
    );
    let done = mediator(&fake, &["record", "r-3"]).expect(4);
    assert!(done.err.contains("run r-3 is under way") && done.out.is_empty(), "{done:?}");
}

#[test]
fn artifacts_are_listed_and_fetched() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        "GET /v1/runs/r-1" => Reply::json(200, run("RUNNING", json!({}))),
        "GET /v1/runs/r-1/artifacts" => Reply::json(
            200,
            json!([
                {"seq": 1, "attempt": 1, "path": "out/a b.bin", "size": 3, "sha256": sha256(b"old")},
                {"seq": 1, "attempt": 2, "path": "out/a b.bin", "size": 3, "sha256": sha256(b"new")},
                {"seq": 2, "attempt": 1, "path": "bad", "size": 3, "sha256": sha256(b"good")},
            ]),
        ),
        "GET /v1/runs/r-1/artifacts/out/a%20b.bin"
        | "GET /v1/runs/r-1/artifacts/out/a%20b.bin?seq=1"
        | "GET /v1/runs/r-1/artifacts/out/a%20b.bin?seq=1&attempt=2" => Reply::bytes(b"new"),
        "GET /v1/runs/r-1/artifacts/out/a%20b.bin?seq=1&attempt=1" => Reply::bytes(b"old"),
        _ => Reply::bytes(b"bad"),
    });
    assert_eq!(mediator(&fake, &["artifacts", "r-1"]).expect(0).out.lines().count(), 4);
    assert_eq!(mediator(&fake, &["artifacts", "r-1", "--get", "out/a b.bin"]).expect(0).out, "new");
    let get = ["artifacts", "r-1", "--step", "exec", "--get", "out/a b.bin"];
    assert_eq!(mediator(&fake, &get).expect(0).out, "new");
    let done = mediator(&fake, &["artifacts", "r-1", "--get", "nothing"]).expect(4);
    assert!(done.err.contains("left no 'nothing'"), "{done:?}");

    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("text");
    mediator(&fake, &["artifacts", "r-1", "--step", "exec", "--all", dir]).expect(0);
    assert_eq!(std::fs::read(folder.path().join("1-1/out/a b.bin")).expect("reads"), b"old");
    assert_eq!(std::fs::read(folder.path().join("1-2/out/a b.bin")).expect("reads"), b"new");
    let done = mediator(&fake, &["artifacts", "r-1", "--all", dir]).expect(1);
    assert!(done.err.contains("its SHA-256 differs"), "{done:?}");
}

#[test]
fn events_resume_where_the_stream_broke_off() {
    let opened = AtomicUsize::new(0);
    let fake = Fake::start(move |asked| {
        match (asked.line.as_str(), opened.fetch_add(1, Ordering::Relaxed)) {
        ("GET /v1/events?run=r-1", 0) => Reply::bytes(
            b"id: 7\nevent: run.started\ndata: {\"run_id\":\"r-1\",\"at\":\"T\"}\n\nid: 8\nevent: node.silent\ndata: {\"run_id\":null}\n\nid: 9\nevent: run.en",
        ),
        ("GET /v1/events?run=r-1", _) => {
            Reply::bytes(b"id: 9\nevent: run.ended\ndata: {\"run_id\":\"r-1\",\"at\":\"T\",\"state\":\"SUCCEEDED\"}\n\n")
        }
        _ => Reply::json(200, run("RUNNING", json!({}))),
    }
    });
    let done = mediator(&fake, &["events", "--run", "r-1"]).expect(0);
    assert_eq!(done.out, "T run.started run_id=r-1\nT run.ended run_id=r-1 state=SUCCEEDED\n");
    let resumed: Vec<String> = fake.asked().into_iter().filter_map(|asked| asked.last_event_id).collect();
    assert_eq!(resumed, ["8"]);
}

/// A stream that breaks off before its first event is resumed from where it began: what came meanwhile is not missed.
#[test]
fn a_stream_without_an_event_yet_is_resumed_from_its_beginning() {
    let fake = Fake::start(|asked| match (asked.line.as_str(), asked.last_event_id.as_deref()) {
        ("GET /v1/events?run=r-1", None) => Reply::bytes(b": mediator\nid: 6\n\nid: 7\nevent: run.en"),
        ("GET /v1/events?run=r-1", _) => Reply::bytes(b"id: 7\nevent: run.ended\ndata: {\"run_id\":\"r-1\"}\n\n"),
        _ => Reply::json(200, run("RUNNING", json!({}))),
    });
    mediator(&fake, &["events", "--run", "r-1"]).expect(0);
    let resumed: Vec<String> = fake.asked().into_iter().filter_map(|asked| asked.last_event_id).collect();
    assert_eq!(resumed, ["6"]);
}

#[test]
fn events_are_one_json_document_a_line() {
    let fake = Fake::start(|_| Reply::bytes(b"id: 7\nevent: run.ended\ndata: {\"run_id\":\"r-1\"}\n\n"));
    let done = mediator(&fake, &["events", "--json", "--run", "r-1", "--after", "6"]).expect(0);
    let event: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(event, json!({"id": 7, "event": "run.ended", "data": {"run_id": "r-1"}}));
    assert_eq!(fake.asked()[0].last_event_id.as_deref(), Some("6"));
}
