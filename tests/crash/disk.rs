//! A disk and a database that fail for real: a full one, one that is read-only, one that another program has locked,
//! rows that should not be. As the injected failures of syscalls.rs: no 2xx for what is not kept, nothing that was
//! answered is missing, and what can go on goes on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mediator::clock::boottime_ms;
use mediator::store::DATABASE;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Lab, Reply};
use crate::support::wait_for;

/// A small disk of its own, in a mount namespace that lives as long as this.
struct Disk {
    holder: Child,
    folder: tempfile::TempDir,
}

impl Disk {
    /// Makes one; `None` where that is not allowed.
    fn new(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("there is room");
        let script = "mount -t tmpfs -o \"size=$1,mode=700\" small \"$0\" && touch \"$0/../mounted\" && exec sleep 600";
        std::fs::create_dir(folder.path().join("data")).expect("there is room");
        let mut holder = Command::new("unshare")
            .args(["-rm", "sh", "-c", script])
            .arg(folder.path().join("data"))
            .arg(size)
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let is_there = wait_for("a mounted disk", || {
            let is_there = folder.path().join("mounted").exists();
            (is_there || holder.try_wait().expect("it is ours").is_some()).then_some(is_there)
        });
        if !is_there {
            assert!(std::env::var_os("CI").is_none(), "mounts in a user namespace are needed here");
            eprintln!("left out: no mounts in a user namespace");
            return None;
        }
        Some(Self { holder, folder })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The words that make a program see the disk.
    fn enter(&self) -> Vec<String> {
        let holder = self.holder.id().to_string();
        ["nsenter", "-t", &holder, "-U", "-m", "--preserve-credentials"].map(str::to_owned).into()
    }

    fn start(&self) -> Option<Daemon> {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        let lab = Lab { root: Some(root), ..Lab::default() };
        Daemon::start_under(&self.enter(), env!("CARGO_BIN_EXE_mediator"), &self.data(), &lab)
    }

    /// Runs a line of shell where the disk is seen, in its folder; says whether it went well.
    fn sh(&self, line: &str) -> bool {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c", &format!("cd \"$0\" && {line}")]).arg(self.data());
        command.stderr(Stdio::null()).status().expect("it runs").success()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn submit(daemon: &Daemon, run: &str) -> Reply {
    let requires = json!([{"as": "dut", "capability": "board"}]);
    let body = json!({"run_id": run, "requires": requires, "steps": [{"id": "a", "uses": "dut", "run": ["true"]}]});
    daemon.exchange("POST", "/v1/runs", Some(&format!("k-{run}")), &body.to_string()).expect("an answer")
}

fn get(daemon: &Daemon, path: &str) -> Value {
    let reply = daemon.exchange("GET", path, None, "").expect("an answer");
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.body
}

fn get_status(daemon: &Daemon, path: &str) -> u16 {
    daemon.exchange("GET", path, None, "").expect("an answer").status
}

fn board(daemon: &Daemon, node: &str) {
    let body = json!({"node_id": node, "instance": "i1", "capabilities": [{"capability": "board"}]});
    daemon.post("/v1/nodes", None, &body).expect("an answer");
}

/// What was answered is there, and the rows are in order.
fn expect_all(daemon: &Daemon, acknowledged: &[String]) {
    for run in acknowledged {
        get(daemon, &format!("/v1/runs/{run}"));
    }
    assert_eq!(get(daemon, "/v1/doctor")["broken"], json!([]));
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let Some(disk) = Disk::new("8m") else { return };
    let daemon = disk.start().expect("it starts");
    board(&daemon, "b1");
    let mut acknowledged = Vec::new();
    let mut number = 0;
    // Twice: it recovers each time.
    for _ in 0..2 {
        assert!(!disk.sh("cat /dev/zero > filler"), "it was to become full");
        let refused = loop {
            let run = format!("r{number}");
            let reply = submit(&daemon, &run);
            if reply.status == 507 {
                assert!(reply.head.contains("\r\nretry-after: "), "{}", reply.head);
                assert_eq!((&reply.body["code"], &reply.body["retry"]), (&json!("storage-full"), &json!("same-key")));
                break run;
            }
            assert!(matches!(reply.status, 201 | 202), "{}", reply.body);
            acknowledged.push(run);
            number += 1;
            assert!(number < 3000, "the disk never gets full");
        };
        // Reads go on, and what was refused is not there.
        expect_all(&daemon, &acknowledged);
        let reply = daemon.exchange("GET", &format!("/v1/runs/{refused}"), None, "").expect("an answer");
        assert_eq!(reply.status, 404);
        assert_eq!(submit(&daemon, &refused).status, 507);
        let ready = daemon.exchange("GET", "/readyz", None, "").expect("an answer");
        assert_eq!((ready.status, &ready.body["detail"]), (503, &json!("the disk is full")), "{}", ready.body);
        assert_eq!(daemon.exchange("GET", "/healthz", None, "").expect("an answer").status, 200);
        assert!(disk.sh("rm filler"));
        wait_for("it is ready", || (get_status(&daemon, "/readyz") == 200).then_some(()));
        wait_for("the recovery", || matches!(submit(&daemon, &refused).status, 201 | 202).then_some(()));
        acknowledged.push(refused);
        number += 1;
        expect_all(&daemon, &acknowledged);
        assert_eq!(get(&daemon, "/v1/doctor")["boot"], 1, "without a restart");
    }
    // Killed while it is full, and started while it is full: whether it comes up or not, nothing is lost.
    disk.sh("cat /dev/zero > filler");
    drop(daemon);
    if let Some(daemon) = disk.start() {
        expect_all(&daemon, &acknowledged);
    }
    assert!(disk.sh("rm filler"));
    let daemon = disk.start().expect("it starts");
    expect_all(&daemon, &acknowledged);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_and_left_alone() {
    let Some(disk) = Disk::new("64m") else { return };
    let daemon = disk.start().expect("it starts");
    board(&daemon, "b1");
    let acknowledged: Vec<String> = (0..20).map(|number| format!("r{number}")).collect();
    for run in &acknowledged {
        assert!(matches!(submit(&daemon, run).status, 201 | 202));
    }
    drop(daemon);
    assert!(disk.sh("mount -o remount,ro \"$0\""), "it can be made read-only");
    assert!(disk.start().is_none(), "it cannot keep what it would answer");
    assert!(disk.sh("mount -o remount,rw \"$0\""));
    let daemon = disk.start().expect("it starts");
    expect_all(&daemon, &acknowledged);
    assert_eq!(submit(&daemon, "more").status, 202);
}

#[test]
fn a_database_that_is_locked_for_seconds_is_waited_for_or_told() {
    let folder = tempfile::tempdir().expect("there is room");
    let data = folder.path().join("data");
    let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
    board(&daemon, "b1");
    let other = Connection::open(data.join(DATABASE)).expect("another program");
    // Longer than the daemon waits: told, and reads go on meanwhile.
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let began = boottime_ms();
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| submit(&daemon, "r0"));
        while !parked.is_finished() {
            get(&daemon, "/v1/runs");
            std::thread::sleep(Duration::from_millis(50));
        }
        let reply = parked.join().expect("no panic");
        assert_eq!((reply.status, &reply.body["retry"]), (503, &json!("same-key")), "{}", reply.body);
        assert!(reply.head.contains("\r\nretry-after: "), "{}", reply.head);
    });
    assert!(boottime_ms() - began >= 4000, "it was given time");
    other.execute_batch("ROLLBACK").expect("the end of it");
    wait_for("the recovery", || (submit(&daemon, "r0").status == 201).then_some(()));
    // Shorter: waited for.
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| submit(&daemon, "r1"));
        std::thread::sleep(Duration::from_secs(2));
        other.execute_batch("ROLLBACK").expect("the end of it");
        assert_eq!(parked.join().expect("no panic").status, 202);
    });
    assert_eq!(get(&daemon, "/v1/doctor")["boot"], 1, "without a restart");
    expect_all(&daemon, &["r0".to_owned(), "r1".to_owned()]);
}

/// Whatever wrote such a row, it was not this daemon: it is told, and stops only what depends on it.
#[test]
fn a_planted_row_is_told_and_the_others_go_on() {
    for (invariant, what, plant) in [
        (
            "I2",
            "node s1 is leased to run r2",
            "INSERT INTO leases (node_id, run_id, nonce, granted_at, not_after) VALUES ('s1', 'r2', 'planted', 0, 9007199254740991)",
        ),
        ("I3", "run r1 is RUNNING without node b2", "DELETE FROM leases WHERE run_id = 'r1'"),
        ("I4", "run r2 is QUEUED and its step 1", "UPDATE steps SET ready = 1 WHERE run_id = 'r2'"),
        ("I8", "step 1 of run r0 is CLAIMED under a nonce", "UPDATE leases SET nonce = 'planted' WHERE run_id = 'r0'"),
        ("I11", "step 1 of run r0 is in the hands of", "UPDATE steps SET instance = 'planted' WHERE run_id = 'r0'"),
    ] {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        {
            let daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
            board(&daemon, "b1");
            board(&daemon, "b2");
            let scope = json!({"node_id": "s1", "static": true, "capabilities": [{"capability": "scope"}]});
            daemon.post("/v1/nodes", None, &scope).expect("an answer");
            for (run, status) in [("r0", 201), ("r1", 201), ("r2", 202), ("r3", 202)] {
                assert_eq!(submit(&daemon, run).status, status, "{run}");
            }
            daemon.post("/v1/nodes/b1/claim", None, &json!({"instance": "i1"})).expect("an answer");
        }
        plant_row(&data, plant);
        let lab = Lab { is_broken: true, ..Lab::default() };
        let daemon = Daemon::start(&data, &lab).expect("it starts all the same");
        let doctor = Command::new(env!("CARGO_BIN_EXE_mediator")).arg("doctor").arg("--data").arg(&data).output();
        let doctor = doctor.expect("it runs");
        let text = String::from_utf8_lossy(&doctor.stdout);
        let is_told = text.lines().any(|line| line.contains(invariant) && line.contains(what));
        assert!(is_told, "{invariant}: {text}");
        assert_eq!(doctor.status.code(), Some(1), "{invariant}: {text}");
        // Others are promoted at once, and asked for as ever.
        board(&daemon, "b8");
        board(&daemon, "b9");
        assert_eq!(get(&daemon, "/v1/runs/r3")["state"], "RUNNING", "{invariant}");
        board(&daemon, "b7");
        board(&daemon, "b6");
        let reply = submit(&daemon, "r4");
        assert_eq!(reply.status, 201, "{invariant}: {}", reply.body);
        daemon.post("/v1/runs/r4/cancel", None, &json!({})).expect("an answer");
    }
}

fn plant_row(data: &Path, plant: &str) {
    let rows = Connection::open(data.join(DATABASE)).expect("the database");
    assert_eq!(rows.execute(plant, []).expect("it can be planted"), 1, "{plant}");
}
