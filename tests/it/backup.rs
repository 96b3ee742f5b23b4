//! Backups: made while the daemon serves, whole or refused, and what becomes of runs that were under way.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;

use crate::support::{Daemon, id_of, on_board, one_step, report, result_path, wait_for};

fn lab() -> Daemon {
    let daemon = Daemon::start();
    daemon.node("b1", &["board"]);
    daemon.node("b2", &["board"]);
    daemon
}

/// Restores a backup, and starts a daemon on it.
fn restored(daemon: &Daemon, file: &str) -> Daemon {
    let dir = tempfile::tempdir().expect("there is room");
    fs::remove_dir(dir.path()).expect("it is empty");
    daemon.mediator(&["restore", file, "--into", dir.path().to_str().expect("text")]).expect(0);
    assert_eq!(fs::metadata(dir.path()).expect("a folder").permissions().mode() & 0o777, 0o700);
    Daemon::on(dir, "")
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().expect("text").to_owned()
}

#[test]
fn a_backup_has_everything_and_what_was_under_way_ends_as_restored() {
    let daemon = lab();
    // One that has ended, with output and a file; one under way, with output; one that waits.
    let contract = json!({"requires": [{"as": "dut", "capability": "board"}],
        "steps": [{"id": "a", "uses": "dut", "run": ["x"], "artifacts": ["out.bin"]}]});
    let done = id_of(&daemon.call("POST", "/v1/runs", &contract).expect(201));
    let work = daemon.claimed("b1");
    let nonce = work["lease"]["nonce"].as_str().expect("a nonce").to_owned();
    daemon.put(&format!("/v1/runs/{done}/steps/1/log?nonce={nonce}&attempt=1&offset=0"), "said\n").expect(204);
    daemon.put(&format!("/v1/runs/{done}/steps/1/artifacts/out.bin?nonce={nonce}&attempt=1"), "bytes").expect(204);
    daemon.call("POST", &result_path(&work), &report("b1", &work, json!({"exit_code": 0}))).expect(200);
    let sealed = daemon.get(&format!("/v1/runs/{done}/record"));
    assert_eq!(sealed.status, 200);
    let under_way = id_of(&daemon.call("POST", "/v1/runs", &one_step()).expect(201));
    let work = daemon.claimed("b1");
    let nonce = work["lease"]["nonce"].as_str().expect("a nonce").to_owned();
    daemon.put(&format!("/v1/runs/{under_way}/steps/1/log?nonce={nonce}&attempt=1&offset=0"), "so far\n").expect(204);
    let asking = on_board(json!([{"id": "q", "ask": {"prompt": "?"}}]));
    let asked = id_of(&daemon.call("POST", "/v1/runs", &asking).expect(201));
    let waits = id_of(&daemon.call("POST", "/v1/runs", &one_step()).expect(202));

    let room = tempfile::tempdir().expect("there is room");
    let file = path(room.path(), "lab.tar");
    daemon.mediator(&["backup", &file]).expect(0);
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o077, 0, "it has all there is to know");
    // Nothing is left of its making, and the daemon goes on.
    let left = || fs::read_dir(daemon.dir.path()).expect("a folder").flatten();
    wait_for("its end", || left().all(|e| !e.file_name().to_string_lossy().starts_with("backup-")).then_some(()));
    daemon.call("POST", &result_path(&work), &report("b1", &work, json!({"exit_code": 0}))).expect(200);

    let mut restored = restored(&daemon, &file);
    assert_ne!(restored.token(), daemon.token(), "the token is another");
    for run in [&under_way, &asked] {
        let run = restored.get(&format!("/v1/runs/{run}")).expect(200);
        assert_eq!((run["state"].as_str(), run["verdict"]["kind"].as_str()), (Some("FAILED"), Some("restored")));
    }
    let log = restored.get(&format!("/v1/runs/{under_way}/steps/1/log"));
    assert_eq!(&log.bytes[..], b"so far\n");
    assert_eq!(restored.get(&format!("/v1/runs/{under_way}/record")).status, 200);
    assert_eq!(restored.get(&format!("/v1/runs/{done}/record")).bytes, sealed.bytes);
    // What waited was woken at the start: the nodes are free. Its nonce is a new one, and the old ones are dead.
    let run = restored.get(&format!("/v1/runs/{waits}")).expect(200);
    assert_eq!(run["state"], "RUNNING");
    restored
        .call("POST", &result_path(&work), &report("b1", &work, json!({"exit_code": 0})))
        .problem(409, "stale-lease");
    assert!(restored.get("/v1/doctor").expect(200)["broken"].as_array().is_some_and(Vec::is_empty));
    // The second start ends nothing.
    restored.kill();
    restored.start_again();
    assert_eq!(restored.get(&format!("/v1/runs/{waits}")).expect(200)["state"], "RUNNING");
}

/// A folder that is in use, a file that is none, was cut off or was changed: a sentence, and no folder.
#[test]
fn what_cannot_be_restored_leaves_nothing() {
    let daemon = lab();
    daemon.call("POST", "/v1/runs", &one_step()).expect(201);
    let room = tempfile::tempdir().expect("there is room");
    let (file, into) = (path(room.path(), "lab.tar"), path(room.path(), "restored"));
    daemon.mediator(&["backup", &file]).expect(0);
    let whole = fs::read(&file).expect("a file");
    let refused = |content: &[u8], says: &str| {
        let other = path(room.path(), "other.tar");
        fs::write(&other, content).expect("there is room");
        let done = daemon.mediator(&["restore", &other, "--into", &into]).expect(1);
        assert!(done.err.contains(says), "{says:?} is not in {:?}", done.err);
        let left: Vec<_> = fs::read_dir(room.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    };
    refused(b"", "breaks off");
    refused(b"no archive at all, but longer than one block is: ".repeat(30).as_slice(), "cannot be read");
    refused(&whole[..whole.len() / 2], "b");
    refused(&whole[..whole.len() - 2048], "backup.json");
    let mut changed = whole.clone();
    changed[5000] ^= 1;
    refused(&changed, "not as it was made");
    // What leads elsewhere.
    for name in ["../out", "/tmp/out", "runs/../../out", "records", "operator.token", "runs/a/./b"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        header.set_entry_type(tar::EntryType::Regular);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        let mut archive = header.as_bytes().to_vec();
        archive.write_all(&[b'x'; 512]).expect("memory");
        refused(&archive, "no backup of mediator");
    }
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_path("runs/a/b").expect("a name");
    header.set_link_name("/etc").expect("a name");
    header.set_cksum();
    refused(header.as_bytes(), "no backup of mediator");
    // Into what is there, even empty.
    fs::create_dir(&into).expect("there is room");
    let done = daemon.mediator(&["restore", &file, "--into", &into]).expect(1);
    assert!(done.err.contains("new folder"), "{}", done.err);
    daemon.mediator(&["restore", "/nowhere", "--into", &into]).expect(2);
}

/// Two at once, while others write; and one that is killed in the middle is swept up.
#[test]
fn backups_stand_in_nobodys_way() {
    let mut daemon = lab();
    let room = tempfile::tempdir().expect("there is room");
    let files: Vec<String> = (0..3).map(|n| path(room.path(), &format!("{n}.tar"))).collect();
    std::thread::scope(|scope| {
        let daemon = &daemon;
        for file in &files {
            scope.spawn(move || daemon.mediator(&["backup", file]).expect(0));
        }
        scope.spawn(move || {
            for _ in 0..20 {
                daemon.mediator(&["nodes"]).expect(0);
            }
        });
    });
    for file in &files {
        assert_eq!(restored(&daemon, file).get("/v1/nodes").expect(200)["nodes"].as_array().map(Vec::len), Some(2));
    }
    daemon.kill();
    let left = daemon.dir.path().join("backup-abandoned");
    fs::create_dir(&left).expect("there is room");
    daemon.start_again();
    assert!(!left.exists());
}
