//! Records: opened at submission, appended while the run goes on, sealed at its end, and never changed again (I9).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::{
    Daemon, Lab, Reply, copy_of, id_of, on_board, one_step, report, requires, result_path, step, wait_for, with,
};

const SEALED: &str = "mediator-manifest-sha256";

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Unpacks a record; fails if it is not what its manifest and its header say.
#[track_caller]
fn unpack(reply: &Reply) -> BTreeMap<String, Vec<u8>> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/x-tar")), "{}", reply.body);
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(&reply.bytes[..]).entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        assert!(entry.header().entry_type().is_file());
        let path = String::from_utf8(entry.path_bytes().into_owned()).expect("text");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("reads");
        assert!(files.insert(path, bytes).is_none(), "a file is there twice");
    }
    let sealed = reply.header(SEALED).expect("the header");
    is_whole(&files, sealed).expect("whole");
    files
}

/// Compares files with the manifest among them, and that with the SHA-256 it was sealed with.
fn is_whole(files: &BTreeMap<String, Vec<u8>>, sealed: &str) -> Result<(), String> {
    let manifest = files.get("manifest.json").ok_or("no manifest")?;
    if sha256(manifest) != sealed {
        return Err("another manifest was sealed".into());
    }
    let manifest: Value = serde_json::from_slice(manifest).map_err(|error| error.to_string())?;
    let listed: BTreeMap<&str, &Value> = manifest["files"]
        .as_array()
        .ok_or("no list")?
        .iter()
        .map(|file| (file["path"].as_str().unwrap_or_default(), file))
        .collect();
    let found: Vec<&String> = files.keys().filter(|path| *path != "manifest.json").collect();
    if !found.iter().map(|path| path.as_str()).eq(listed.keys().copied()) {
        return Err(format!("{found:?} are not {:?}", listed.keys()));
    }
    for (path, file) in listed {
        let bytes = &files[path];
        if file["sha256"] != sha256(bytes) || file["size"] != bytes.len() {
            return Err(format!("{path} is not what the manifest says"));
        }
    }
    Ok(())
}

fn json_of(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
    serde_json::from_slice(&files[path]).expect("JSON")
}

fn record(lab: &Lab, run: &str) -> Reply {
    lab.get(&format!("/v1/runs/{run}/record"))
}

/// The names of a record's events.
fn names(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let events = json_of(files, "events.json");
    let events = events.as_array().expect("a list");
    events.iter().map(|event| event["event"].as_str().expect("a name").to_owned()).collect()
}

fn log_path(claim: &Value, offset: u64) -> String {
    let (run, nonce) = (claim["run_id"].as_str().expect("a run"), claim["lease"]["nonce"].as_str().expect("a nonce"));
    format!("/v1/runs/{run}/steps/{}/log?nonce={nonce}&attempt={}&offset={offset}", claim["seq"], claim["attempt"])
}

fn artifact_path(claim: &Value, path: &str) -> String {
    let (run, nonce) = (claim["run_id"].as_str().expect("a run"), claim["lease"]["nonce"].as_str().expect("a nonce"));
    format!("/v1/runs/{run}/steps/{}/artifacts/{path}?nonce={nonce}&attempt={}", claim["seq"], claim["attempt"])
}

/// The record holds everything that happened, when and by whom; it is the same tar every time, whatever comes later.
#[test]
fn a_record_holds_the_whole_story_and_never_changes() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    let look = json!({"id": "look", "ask": {"prompt": "green?", "options": ["yes", "no"], "accept": ["yes"]}});
    let contract = with(on_board(json!([step("work", "dut"), look])), "name", "story");
    let run = lab.placed(&contract);
    record(&lab, &run).problem(409, "not-sealed");
    let claim = lab.claimed("b1");
    assert_eq!(lab.put(&log_path(&claim, 0), "hello\n").status, 204);
    assert_eq!(lab.put(&artifact_path(&claim, "out/image.bin"), "image").status, 204);
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    record(&lab, &run).problem(409, "not-sealed");
    lab.answer(&run, 2, "yes").expect(200);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");

    let first = record(&lab, &run);
    let files = unpack(&first);
    let expect =
        ["artifacts/1-1/out/image.bin", "contract.json", "events.json", "logs/1-1.log", "manifest.json", "run.json"];
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), expect);
    assert_eq!(files["logs/1-1.log"], b"hello\n");
    assert_eq!(files["artifacts/1-1/out/image.bin"], b"image");
    assert_eq!(json_of(&files, "contract.json"), contract);
    assert_eq!(json_of(&files, "run.json"), lab.run(&run));
    assert_eq!(json_of(&files, "run.json")["steps"][1]["result"], json!({"answer": "yes", "by": "operator"}));
    let events = json_of(&files, "events.json");
    for event in events.as_array().expect("a list") {
        assert_eq!((&event["data"]["run_id"], event["data"]["at"].is_string()), (&json!(run), true), "{event}");
    }
    let expect = [
        "run.submitted",
        "node.leased",
        "run.started",
        "step.ready",
        "step.claimed",
        "step.artifact",
        "step.done",
        "ask.raised",
        "ask.done",
        "node.freed",
        "run.ended",
    ];
    assert_eq!(names(&files), expect);
    assert_eq!(events[0]["data"]["by"], "operator");

    // Whatever comes later.
    lab.put(&log_path(&claim, 6), "more").problem(410, "gone");
    lab.put(&artifact_path(&claim, "late"), "late").problem(410, "gone");
    lab.report("b1", &claim, json!({"exit_code": 3})).problem(409, "stale-lease");
    assert_eq!(lab.cancel(&run)["state"], "SUCCEEDED");
    let again = record(&lab, &run);
    assert_eq!((&again.bytes, again.header(SEALED)), (&first.bytes, first.header(SEALED)));
    lab.restart_after(100.0);
    assert_eq!(record(&lab, &run).bytes, first.bytes);
    assert!(!lab.dir.path().join("runs").join(&run).exists(), "the working files have served");
}

/// A run that never started has a record too.
#[test]
fn rejected_and_cancelled_runs_have_records() {
    let lab = Lab::new();
    let refused = lab.submit(&one_step()).problem(422, "no-candidate");
    let rejected = id_of(&refused);
    let files = unpack(&record(&lab, &rejected));
    assert_eq!(names(&files), ["run.submitted", "run.ended"]);
    assert_eq!(json_of(&files, "run.json")["reject"], refused["reject"]);

    lab.node("b1", &["board"]);
    lab.placed(&one_step());
    let waiting = lab.queued(&one_step());
    lab.post(&format!("/v1/runs/{waiting}/cancel"), &json!({"reason": "wrong branch"})).expect(200);
    let files = unpack(&record(&lab, &waiting));
    assert_eq!(names(&files), ["run.submitted", "run.queued", "step.cancelled", "run.ended"]);
    let detail = json_of(&files, "run.json")["verdict"]["detail"].as_str().expect("a sentence").to_owned();
    assert!(detail.contains("operator") && detail.contains("wrong branch"), "{detail}");
    lab.get("/v1/runs/unknown/record").problem(404, "not-found");
}

/// What happens to the run's nodes meanwhile is part of its story: who drained one, why, and when it fell silent.
#[test]
fn drains_and_silence_are_in_the_record() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    for node in ["b1", "b2"] {
        lab.post(&format!("/v1/nodes/{node}/drain"), &json!({"mode": "graceful", "reason": "new cable"})).expect(200);
    }
    lab.delete("/v1/nodes/b1/drain").expect(200);
    lab.advance(70.0);
    lab.heartbeat("b1");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    let files = unpack(&record(&lab, &run));
    let names = names(&files);
    let of_node: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with("node.") && !name.ends_with("leased") && !name.ends_with("freed"))
        .collect();
    assert_eq!(of_node, ["node.drained", "node.undrained", "node.silent", "node.back"], "of its own node alone");
    let events = json_of(&files, "events.json");
    let drained = events.as_array().expect("a list").iter().find(|event| event["event"] == "node.drained");
    let data = &drained.expect("an event")["data"];
    assert_eq!(
        (&data["by"], &data["reason"], &data["node_id"]),
        (&json!("operator"), &json!("new cable"), &json!("b1"))
    );
}

/// A late report of a former holder is in the events, and in the record as long as that is open.
#[test]
fn a_late_report_is_in_the_record_while_it_is_open() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    lab.advance(700.0);
    assert_eq!(lab.state(&run), "FAILED node-lost");
    lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    let first = record(&lab, &run);
    let files = unpack(&first);
    let events = json_of(&files, "events.json");
    let late = events.as_array().expect("a list").last().expect("an event").clone();
    assert_eq!(late["event"], "step.late-report");
    assert_eq!((&late["data"]["by"], &late["data"]["report"]), (&json!("b1"), &json!({"exit_code": 0})));
    // Sealed now: the next is an event alone.
    lab.report("b1", &claim, json!({"exit_code": 0})).problem(409, "stale-lease");
    assert_eq!(lab.events("step.late-report"), 2);
    assert_eq!(record(&lab, &run).bytes, first.bytes);
}

/// Output that trickles in until the seal is over does not come back to life (I9).
#[test]
fn output_that_is_under_way_at_the_seal_is_refused() {
    let daemon = Daemon::start();
    daemon.node("b1", &["board"]);
    let run = id_of(&daemon.call("POST", "/v1/runs", &one_step()).expect(201));
    let claim = daemon.claimed("b1");
    assert_eq!(daemon.put(&log_path(&claim, 0), "kept\n").status, 204);
    let [(_, url), (_, token)] = daemon.env();
    let address = url.strip_prefix("http://").expect("an address");
    let mut slow = std::net::TcpStream::connect(address).expect("connects");
    let path = log_path(&claim, 5);
    write!(
        slow,
        "PUT {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-length: 9\r\n\r\nmore"
    )
    .expect("sends");
    std::thread::sleep(Duration::from_millis(100));
    daemon.call("POST", &result_path(&claim), &report("b1", &claim, json!({"exit_code": 0}))).expect(200);
    let record = format!("/v1/runs/{run}/record");
    let sealed = daemon.get(&record);
    unpack(&sealed);
    slow.write_all(b" late").expect("sends");
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 410");
    assert_eq!(&daemon.get(&format!("/v1/runs/{run}/steps/1/log")).bytes[..], b"kept\n");
    assert_eq!(daemon.get(&record).bytes, sealed.bytes);
}

/// A link in the place of a file is not followed: neither into a record, nor out of one.
#[test]
fn a_planted_link_is_refused() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let secret = lab.dir.path().join("operator.token");
    let run = lab.placed(&one_step());
    let claim = lab.claimed("b1");
    assert_eq!(lab.put(&log_path(&claim, 0), "hello\n").status, 204);
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    let log = lab.dir.path().join(format!("runs/{run}/logs/1-1.log"));
    fs::remove_file(&log).expect("it is there");
    symlink(&secret, &log).expect("a link");
    record(&lab, &run).problem(500, "internal");
    assert_eq!(lab.number("SELECT count(*) FROM runs WHERE sealed_at IS NOT NULL"), 0);
    assert!(!lab.dir.path().join("records").join(&run).exists());
    fs::remove_file(&log).expect("it is there");
    fs::write(&log, "hello\n").expect("there is room");
    unpack(&record(&lab, &run));

    let sealed = lab.dir.path().join(format!("records/{run}/logs/1-1.log"));
    fs::remove_file(&sealed).expect("it is there");
    symlink(&secret, &sealed).expect("a link");
    let refused = record(&lab, &run).problem(500, "internal");
    assert!(refused["detail"].as_str().expect("a sentence").contains("not a plain file"), "{refused}");
    let log = lab.get(&format!("/v1/runs/{run}/steps/1/log"));
    assert!(log.status >= 500 && !String::from_utf8_lossy(&log.bytes).contains(lab.token()), "{}", log.status);
}

/// Runs a step to its end, with a log and an artifact; returns the run.
fn finished(daemon: &Daemon) -> String {
    let run = id_of(&daemon.call("POST", "/v1/runs", &one_step()).expect(201));
    let claim = daemon.claimed("b1");
    assert_eq!(daemon.put(&log_path(&claim, 0), "hello\n").status, 204);
    assert_eq!(daemon.put(&artifact_path(&claim, "image.bin"), "image").status, 204);
    daemon.call("POST", &result_path(&claim), &report("b1", &claim, json!({"exit_code": 0}))).expect(200);
    run
}

/// A change to a sealed file is found, the manifest included.
#[test]
fn tampering_is_found() {
    let daemon = Daemon::start();
    daemon.node("b1", &["board"]);
    let run = finished(&daemon);
    let whole = daemon.mediator(&["record", &run]).expect(0).bytes;
    assert!(daemon.mediator(&["record", "--verify", &run]).expect(0).out.contains("is whole: 5 files"));
    let root = daemon.dir.path().join("records").join(&run);
    for path in ["logs/1-1.log", "artifacts/1-1/image.bin", "run.json", "contract.json", "events.json"] {
        let file = root.join(path);
        let bytes = fs::read(&file).expect("it is there");
        let mut other = bytes.clone();
        other[0] ^= 1;
        fs::write(&file, &other).expect("there is room");
        let done = daemon.mediator(&["record", "--verify", &run]).expect(1);
        assert!(done.out.contains(&format!("{path} was changed")), "{done:?}");
        // What is fetched is told to be wrong as well, and is there to be looked at.
        let kept = daemon.dir.path().join("kept.tar");
        let done = daemon.mediator(&["record", &run, "--output", kept.to_str().expect("text")]).expect(1);
        assert!(done.err.contains(&format!("{path} was changed")) && kept.exists(), "{done:?}");
        fs::remove_file(&file).expect("it is there");
        let done = daemon.mediator(&["record", "--verify", &run]).expect(1);
        assert!(done.out.contains(&format!("{path} is missing")), "{done:?}");
        fs::write(&file, &bytes).expect("there is room");
    }
    fs::write(root.join("logs/2-1.log"), "planted").expect("there is room");
    let done = daemon.mediator(&["record", "--verify", &run]).expect(1);
    assert!(done.out.contains("logs/2-1.log is not in the manifest"), "{done:?}");
    fs::remove_file(root.join("logs/2-1.log")).expect("it is there");

    // A file and its line in the manifest, made to fit each other: only the daemon's row knows better.
    let (log, manifest) = (root.join("logs/1-1.log"), root.join("manifest.json"));
    let text = fs::read_to_string(&manifest).expect("it is there");
    fs::write(&log, "hullo\n").expect("there is room");
    fs::write(&manifest, text.replace(&sha256(b"hello\n"), &sha256(b"hullo\n"))).expect("there is room");
    let done = daemon.mediator(&["record", "--verify", &run]).expect(1);
    assert!(done.out.contains("manifest.json was changed"), "{done:?}");
    let done = daemon.mediator(&["record", &run]).expect(1);
    assert!(done.err.contains("manifest.json was changed") && !done.bytes.is_empty(), "{done:?}");
    fs::write(&log, "hello\n").expect("there is room");
    fs::write(&manifest, text).expect("there is room");
    assert_eq!(daemon.mediator(&["record", &run]).expect(0).bytes, whole);

    fs::remove_file(&log).expect("it is there");
    symlink("/etc/passwd", &log).expect("a link");
    let done = daemon.mediator(&["record", "--verify", &run]);
    assert!(done.code != 0 && done.err.contains("not a plain file"), "{done:?}");
}

/// Killed at any point around the seal, the daemon leaves no sealed record or a whole one; after the next start there
/// is a whole one before anything is served.
#[test]
fn a_kill_around_the_seal_leaves_none_or_a_whole_one() {
    let seed = getrandom::u64().expect("random numbers");
    let mut random = seed;
    let mut daemon = Daemon::start();
    let (mut lost, mut owed, mut sealed) = (0, 0, 0);
    for attempt in 0..24 {
        daemon.node("b1", &["board"]);
        let run = id_of(&daemon.call("POST", "/v1/runs", &one_step()).expect(201));
        let claim = daemon.claimed("b1");
        assert_eq!(daemon.put(&log_path(&claim, 0), vec![b'x'; 300_000]).status, 204);
        for name in ["a", "b/c", "b/d"] {
            assert_eq!(daemon.put(&artifact_path(&claim, name), vec![b'y'; 100_000]).status, 204);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_micros((random >> 33) % 40_000);
        let said = format!("try {attempt}, seed {seed}, killed after {delay:?}");
        let report = report("b1", &claim, json!({"exit_code": 0}));
        let is_answered = daemon.killed_during(delay, "POST", &result_path(&claim), &report);
        let left = left_by(&copy_of(daemon.dir.path()).1, daemon.dir.path(), &run);
        match &left {
            Left::NotEnded if is_answered => panic!("{said}: the answered result is lost"),
            Left::NotEnded => lost += 1,
            Left::Owed => owed += 1,
            Left::Sealed(outcome) => {
                sealed += 1;
                assert_eq!(*outcome, Ok(()), "{said}");
            }
        }
        daemon.start_again();
        if matches!(left, Left::NotEnded) {
            daemon.call("POST", &result_path(&claim), &report).expect(200);
            let is_sealed = || matches!(left_by(&daemon.rows(), daemon.dir.path(), &run), Left::Sealed(_));
            wait_for("the seal", || is_sealed().then_some(()));
        }
        let left = left_by(&daemon.rows(), daemon.dir.path(), &run);
        let Left::Sealed(outcome) = left else { panic!("{said}: not sealed at the start") };
        assert_eq!(outcome, Ok(()), "{said}");
        let files = unpack(&daemon.get(&format!("/v1/runs/{run}/record")));
        assert_eq!(files["logs/1-1.log"].len(), 300_000, "{said}");
        assert_eq!(files.keys().filter(|path| path.starts_with("artifacts/")).count(), 3, "{said}");
        let rubbish = fs::read_dir(daemon.dir.path().join("records")).expect("it is there");
        let rubbish: Vec<_> = rubbish
            .filter(|entry| entry.as_ref().expect("readable").file_name().to_string_lossy().starts_with('.'))
            .collect();
        assert!(rubbish.is_empty(), "{said}: {rubbish:?}");
    }
    println!("{lost} without the result, {owed} with the seal owed, {sealed} sealed");
}

/// What a kill has left of a run's record.
enum Left {
    NotEnded,
    Owed,
    Sealed(Result<(), String>),
}

fn left_by(rows: &Connection, folder: &Path, run: &str) -> Left {
    let row =
        rows.query_row("SELECT ended_at IS NOT NULL, manifest_sha256 FROM runs WHERE run_id = ?1", [run], |row| {
            Ok((row.get::<_, bool>(0)?, row.get::<_, Option<String>>(1)?))
        });
    match row.expect("the run") {
        (false, _) => Left::NotEnded,
        (true, None) => Left::Owed,
        (true, Some(sealed)) => {
            let root = folder.join("records").join(run);
            let mut files = BTreeMap::new();
            read_tree(&root, &root, &mut files);
            Left::Sealed(is_whole(&files, &sealed))
        }
    }
}

fn read_tree(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            read_tree(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below").to_str().expect("text").to_owned();
            files.insert(name, fs::read(&path).expect("readable"));
        }
    }
}

/// Several runs that ended at once are sealed each, also by many who ask for them at the same time.
#[test]
fn whoever_asks_at_once_gets_the_same_record() {
    let lab = Lab::new();
    for node in ["b1", "b2"] {
        lab.node(node, &["board"]);
    }
    let pair = json!({"requires": requires(&["a=board", "b=board"]), "steps": [step("work", "a")]});
    let run = lab.placed(&pair);
    let claim = lab.claimed("b1");
    lab.report("b1", &claim, json!({"exit_code": 0})).expect(200);
    let path = format!("/v1/runs/{run}/record");
    let calls: Vec<_> = (0..8).map(|_| lab.park("GET", &path, &Value::Null)).collect();
    let answers: Vec<Reply> = calls.into_iter().map(|call| lab.join(call)).collect();
    unpack(&answers[0]);
    assert!(answers.iter().all(|answer| answer.bytes == answers[0].bytes));
}

/// What somebody planted in the place of a run's folder, or of a log, is not followed, and is no failure of the disk.
#[test]
fn planted_links_are_not_followed_and_end_nothing() {
    let lab = Lab::new();
    lab.advert("b1", "b1-1", &["board"]);
    let outside = tempfile::tempdir().expect("there is room");
    let run = lab.placed(&one_step());
    let work = lab.claimed("b1");
    std::fs::create_dir_all(lab.dir.path().join("runs")).expect("there is room");
    symlink(outside.path(), lab.dir.path().join("runs").join(&run)).expect("a link");
    let nonce = work["lease"]["nonce"].as_str().expect("a nonce");
    let log = format!("/v1/runs/{run}/steps/1/log?nonce={nonce}&attempt=1&offset=0");
    lab.put(&log, "some output").problem(500, "internal");
    let file = format!("/v1/runs/{run}/steps/1/artifacts/a?nonce={nonce}&attempt=1");
    lab.put(&file, "some bytes").problem(500, "internal");
    lab.get(&format!("/v1/runs/{run}/steps/1/log")).problem(500, "internal");
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 0);
    // A link in the place of the log itself.
    fs::remove_file(lab.dir.path().join("runs").join(&run)).expect("it goes");
    let logs = lab.dir.path().join("runs").join(&run).join("logs");
    fs::create_dir_all(&logs).expect("there is room");
    let target = outside.path().join("target");
    fs::write(&target, "as it was").expect("there is room");
    symlink(&target, logs.join("1-1.log")).expect("a link");
    lab.put(&log, "some output").problem(500, "internal");
    lab.report("b1", &work, json!({"exit_code": 0})).problem(500, "internal");
    assert_eq!(fs::read_to_string(&target).expect("a file"), "as it was");
    // The daemon is well, and once the link is gone so is the run.
    fs::remove_file(logs.join("1-1.log")).expect("it goes");
    lab.put(&log, "some output").expect(204);
    lab.report("b1", &work, json!({"exit_code": 0})).expect(200);
    assert_eq!(lab.get(&format!("/v1/runs/{run}/record")).status, 200);
}
