//! Seals: two moments that no kill shows (something is noted between the reading and the mark, and the disk fails at the
//! mark itself), and many that are made together.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mediator::store::DATABASE;
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::daemon::{Daemon, Lab, await_point, order, reached};
use crate::support::wait_for;

/// A daemon with a run `r1` whose one step is in hand; returns the claim, too.
fn at_work(data: &Path) -> (Daemon, Value) {
    let daemon = Daemon::start(data, &Lab::default()).expect("it starts");
    let advert = json!({"node_id": "b1", "instance": "i1", "capabilities": [{"capability": "board"}]});
    daemon.post("/v1/nodes", None, &advert).expect("an answer");
    let contract = json!({
        "run_id": "r1", "requires": [{"as": "dut", "capability": "board"}],
        "steps": [{"id": "a", "uses": "dut", "run": ["true"]}],
    });
    daemon.post("/v1/runs", None, &contract).expect("an answer");
    let claim = daemon.post("/v1/nodes/b1/claim", None, &json!({"instance": "i1"})).expect("an answer");
    (daemon, claim)
}

fn report(daemon: &Daemon, claim: &Value, exit_code: i64) -> u16 {
    let body =
        json!({"node_id": "b1", "nonce": claim["lease"]["nonce"], "attempt": 1, "exit_code": exit_code}).to_string();
    daemon.exchange("POST", "/v1/runs/r1/steps/1/result", None, &body).expect("an answer").status
}

fn place(data: &Path) -> PathBuf {
    data.join("records/r1")
}

/// Which folder it is, and what its manifest says.
fn record(data: &Path) -> (u64, String) {
    let folder = std::fs::metadata(place(data)).expect("it is there").ino();
    let manifest = std::fs::read(place(data).join("manifest.json")).expect("it is there");
    (folder, hash_of(&manifest))
}

fn mark(data: &Path) -> Option<String> {
    let rows = crate::support::open_rows(data);
    rows.query_row("SELECT manifest_sha256 FROM runs", [], |row| row.get(0)).expect("a record")
}

/// I9: what was noted while the files were written is in the record, not behind its back.
#[test]
fn a_report_that_comes_during_the_seal_is_in_the_record() {
    let folder = tempfile::tempdir().expect("there is room");
    let data = folder.path().join("data");
    let (daemon, claim) = at_work(&data);
    order(&data, "hold seal.after_files");
    assert_eq!(report(&daemon, &claim, 0), 200);
    await_point(&data, "seal.after_files", 0);
    assert_eq!(report(&daemon, &claim, 1), 409);
    order(&data, "none");
    wait_for("the seal", || mark(&data));
    assert_eq!(mark(&data), Some(record(&data).1));
    let events = std::fs::read_to_string(place(&data).join("events.json")).expect("it is there");
    assert!(events.contains("step.late-report"), "{events}");
}

/// I9: the disk fails at the mark, and the daemon is about to end. Whether the mark is there shows at the next start:
/// so the record stays as it was marked, whoever asks for it meanwhile.
#[test]
fn nothing_is_put_in_the_place_of_a_record_whose_mark_may_have_been_kept() {
    for is_kept in [true, false] {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        let (mut daemon, claim) = at_work(&data);
        // Held at the first checkpoint, it is about to end for as long as the test wants.
        order(&data, "fail seal.mark\nhold checkpoint.before");
        assert_eq!(report(&daemon, &claim, 0), 200);
        await_point(&data, "checkpoint.before", 0);
        let (marked, written) = (record(&data), reached(&data, "seal.after_rename"));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| daemon.exchange("GET", "/v1/runs/r1/record", None, ""));
            // It answers at once, or else writes another record and then waits for the end.
            wait_for("what becomes of it", || {
                (asking.is_finished() || reached(&data, "seal.after_rename") > written).then_some(())
            });
            let meanwhile = record(&data);
            order(&data, "none");
            let reply = asking.join().expect("no panic");
            assert_eq!(meanwhile, marked, "another record is in its place");
            assert_eq!(reply.expect("an answer").status, 503);
        });
        assert_eq!(daemon.ended(), Some(74));
        assert_eq!(mark(&data), None, "it was rolled back");
        if is_kept {
            // As the write-ahead log may show it to the next start after a sync that failed.
            let rows = Connection::open(data.join(DATABASE)).expect("the database");
            let keep = "UPDATE runs SET sealed_at = ended_at, manifest_sha256 = ?1";
            assert_eq!(rows.execute(keep, [&marked.1]).expect("a mark"), 1);
        }
        let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        wait_for("the seal", || mark(&data));
        assert_eq!(mark(&data), Some(record(&data).1), "marked and whole");
        assert!(!is_kept || record(&data) == marked, "the one that was marked");
        let reply = daemon.exchange("GET", "/v1/runs/r1/record", None, "").expect("an answer");
        assert_eq!(reply.status, 200);
    }
}

/// Records that are sealed together, killed at each point of it: each is made again, or is whole, and none is lost.
#[test]
fn many_that_are_sealed_together_are_each_whole_after_a_kill() {
    const RUNS: i64 = 20;
    for point in ["seal.after_files 1", "seal.after_rename 1", "seal.mark 7", "seal.after_mark 1", "seal.after_clean 1"]
    {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        // What nothing can ever do ends at once.
        let contract = json!({
            "requires": [{"as": "dut", "capability": "laser"}], "steps": [{"id": "a", "uses": "dut", "run": ["true"]}],
        });
        // Not one is sealed by the daemon that takes them.
        order(&data, "hold seal.after_files");
        for _ in 0..RUNS {
            let reply = daemon.exchange("POST", "/v1/runs", None, &contract.to_string()).expect("an answer");
            assert_eq!(reply.status, 422);
        }
        drop(daemon);
        order(&data, &format!("kill {point}"));
        assert!(Daemon::start(&data, &Lab::default()).is_none(), "{point}: it seals what is owed before it listens");
        order(&data, "none");
        let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        let rows = daemon.rows();
        let mut statement = rows.prepare("SELECT run_id, manifest_sha256 FROM runs").expect("SQL");
        let sealed = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
        let mut count = 0;
        for (run, hash) in sealed.expect("rows").map(|row| row.expect("it is sealed")) {
            let root = data.join("records").join(&run);
            let manifest = std::fs::read(root.join("manifest.json")).expect("it is there");
            assert_eq!(hash_of(&manifest), hash, "{point}: {run}");
            let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
            for file in manifest["files"].as_array().expect("a list") {
                let bytes = std::fs::read(root.join(file["path"].as_str().expect("a path"))).expect("it is there");
                assert_eq!(hash_of(&bytes), file["sha256"].as_str().expect("a hash"), "{point}: {run} {file}");
            }
            count += 1;
        }
        assert_eq!(count, RUNS, "{point}");
        let left = std::fs::read_dir(data.join("records")).expect("it is there").count();
        assert_eq!(i64::try_from(left), Ok(RUNS), "{point}: nothing else is there");
    }
}

fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
