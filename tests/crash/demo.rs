//! `make crash-demo`: what is there before a kill, right after it, after the restart and after the retry, in tables.
//!
//! The first part kills the daemon itself at points of `src/failpoint.rs`. The second part shows designs that are
//! wrong, each on a scratch database of its own: nothing of them is in the daemon. docs/crash-recovery.md explains the
//! tables; a table that is not in that page, as it is printed here, is an error.

#[allow(dead_code, reason = "the demonstration needs a part of it")]
mod daemon;
#[path = "demo/scratch.rs"]
mod scratch;
#[path = "../it/support.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mediator::store::DATABASE;
use rusqlite::Connection;
use serde_json::{Value, json};

use daemon::{Daemon, Lab, orders};

fn main() {
    // Started by itself as the process that is to be killed.
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, path, moment] = words.as_slice()
        && word == "worker"
    {
        scratch::work(Path::new(path), moment);
    }
    let mut page = Page::default();
    killed_before_and_after_the_commit(&mut page);
    killed_while_promoting(&mut page);
    woken_at_the_start(&mut page);
    told_once_or_twice(&mut page);
    scratch::effect_first(&mut page);
    scratch::checked_outside(&mut page);
    scratch::mailed(&mut page);
    page.end();
}

/// What is printed.
#[derive(Default)]
pub struct Page {
    tables: Vec<String>,
}

impl Page {
    /// Prints a title, a table and the reason for what it shows.
    pub fn table(&mut self, title: &str, head: &[&str], rows: &[Vec<String>], why: &str) {
        let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
        let width = |at: usize| {
            let cells = rows.iter().chain([&head]).map(|row| row[at].chars().count());
            cells.max().expect("there is a head")
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:width$} |")).collect();
            format!("|{}\n", cells.concat())
        };
        let rule: String = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect();
        let body: String = rows.iter().map(|row| line(row)).collect();
        let table = format!("{}|{rule}\n{body}", line(&head));
        println!("{title}\n\n{table}\n{why}\n");
        self.tables.push(table);
    }

    /// Sees that the page for people shows the same.
    fn end(self) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/crash-recovery.md");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let missing = self.tables.iter().filter(|table| !text.contains(*table)).count();
        assert_eq!(missing, 0, "so many tables are not in docs/crash-recovery.md as they are above");
        println!("docs/crash-recovery.md explains these {} tables.", self.tables.len());
    }
}

// ---- the daemon

const HEAD: [&str; 5] = ["", "runs", "leases", "completion records", "answer"];

/// A daemon's folder, and what is seen of it.
struct Story {
    folder: tempfile::TempDir,
    lab: Lab,
    rows: Vec<Vec<String>>,
}

impl Story {
    /// Starts a daemon with two boards and a scope.
    fn begin(lab: Lab) -> (Self, Daemon) {
        let story = Self { folder: tempfile::tempdir().expect("there is room"), lab, rows: Vec::new() };
        let daemon = story.start();
        for node in ["b1", "b2"] {
            let body = json!({"node_id": node, "static": true, "capabilities": [{"capability": "board"}]});
            daemon.post("/v1/nodes", None, &body).expect("nobody kills it");
        }
        (story, daemon)
    }

    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn start(&self) -> Daemon {
        Daemon::start(&self.data(), &self.lab).expect("it starts")
    }

    /// Sends what the daemon is to be killed at, and waits for its death.
    fn kill_at(&self, mut daemon: Daemon, point: &str, send: impl FnOnce(&Daemon) -> String) {
        std::fs::write(orders(&self.data()), format!("kill {point} 1")).expect("there is room");
        let answer = send(&daemon);
        assert_eq!(answer, "none", "it was to be killed at {point}");
        support::wait_for("its death", || daemon.is_dead().then_some(()));
        drop(daemon);
        std::fs::remove_file(orders(&self.data())).expect("it is there");
    }

    /// Opens a copy of the database as it is on the disk: to look at the daemon's own could change what it finds.
    fn copy(&self) -> (tempfile::TempDir, Connection) {
        let copy = tempfile::tempdir().expect("there is room");
        for suffix in ["", "-wal"] {
            let name = format!("{DATABASE}{suffix}");
            let file = self.data().join(&name);
            if file.exists() {
                std::fs::copy(file, copy.path().join(&name)).expect("a copy");
            }
        }
        let rows = Connection::open(copy.path().join(DATABASE)).expect("a database");
        (copy, rows)
    }

    fn look(&mut self, when: &str, answer: &str) {
        let (_copy, rows) = self.copy();
        let list = |query: &str| -> String {
            let text: Option<String> = rows.query_row(query, [], |row| row.get(0)).expect("a list");
            text.unwrap_or_else(|| "-".to_owned())
        };
        let runs = list(
            "SELECT group_concat(name || ' ' || state, ', ') FROM (SELECT contract ->> 'name' AS name, state FROM runs ORDER BY arrival)",
        );
        let leases = list(
            "SELECT group_concat(node_id || ' to ' || name, ', ') FROM (SELECT node_id, contract ->> 'name' AS name
             FROM leases JOIN runs USING (run_id) ORDER BY node_id)",
        );
        let keys = list("SELECT group_concat(key, ', ') FROM (SELECT key FROM requests ORDER BY created_at, key)");
        self.rows.push(vec![when.to_owned(), runs, leases, keys, answer.to_owned()]);
    }

    fn print(&mut self, page: &mut Page, title: &str, why: &str) {
        page.table(title, &HEAD, &std::mem::take(&mut self.rows), why);
    }
}

fn contract(name: &str, boards: u32) -> Value {
    let requires = json!([{"as": "dut", "capability": "board", "count": boards}]);
    json!({"name": name, "requires": requires, "steps": [{"id": "work", "hold": {}}]})
}

/// Sends a request with a key; tells what came.
fn send(daemon: &Daemon, path: &str, key: &str, body: &Value) -> String {
    let Some(reply) = daemon.exchange("POST", path, Some(key), &body.to_string()) else { return "none".to_owned() };
    let replayed = if reply.head.contains("idempotent-replayed: true") { ", replayed" } else { "" };
    format!("{}{replayed}", reply.status)
}

fn killed_before_and_after_the_commit(page: &mut Page) {
    for (title, point, why) in [
        (
            "Killed before the commit",
            "group.before_commit",
            "Run, lease and completion record are one transaction: not committed, none of them is there, and the retry \
             does it for the first time.",
        ),
        (
            "Killed after the commit, before the answer",
            "group.after_commit",
            "All three were committed together: the retry finds the record, does nothing, and gets the answer that was \
             lost.",
        ),
    ] {
        let (mut story, daemon) = Story::begin(Lab::default());
        let submit = |daemon: &Daemon| send(daemon, "/v1/runs", "k-1", &contract("A", 1));
        story.look("before", "");
        story.kill_at(daemon, point, submit);
        story.look("right after the kill", "none");
        let daemon = story.start();
        story.look("after the restart", "");
        let answer = submit(&daemon);
        story.look("after the retry", &answer);
        story.print(page, title, why);
        if point == "group.after_commit" {
            drop(daemon);
            forget(&story);
            let daemon = story.start();
            story.look("record deleted by hand", "");
            let answer = submit(&daemon);
            story.look("after one more retry", &answer);
            let named = |daemon: &Daemon| {
                let mut named = contract("B", 1);
                named["run_id"] = json!("b-1");
                send(daemon, "/v1/runs", "k-2", &named)
            };
            let cancelled = daemon.call("GET", "/v1/runs?state=RUNNING", None, "").expect("an answer").1;
            for run in cancelled["runs"].as_array().expect("runs") {
                let path = format!("/v1/runs/{}/cancel", run["run_id"].as_str().expect("an id"));
                daemon.post(&path, None, &json!({})).expect("nobody kills it");
            }
            let answer_named = named(&daemon);
            drop(daemon);
            story.look("another, with a run_id", &answer_named);
            forget(&story);
            let daemon = story.start();
            story.look("records deleted by hand", "");
            let answer = named(&daemon);
            story.look("after its retry", &answer);
            story.print(
                page,
                "The completion record is gone",
                "Nothing tells the retry from a new request, so the work is there twice; a run_id of the client's own is \
                 a second guard, because it stays in the run's row.",
            );
        }
    }
}

/// What no daemon does: deletes the completion records by hand, while it is down.
fn forget(story: &Story) {
    let rows = Connection::open(story.data().join(DATABASE)).expect("the database");
    rows.execute("DELETE FROM requests", []).expect("they can be deleted");
}

fn killed_while_promoting(page: &mut Page) {
    let (mut story, daemon) = Story::begin(Lab::default());
    let mut wide = contract("A", 2);
    wide["run_id"] = json!("a");
    assert_eq!(send(&daemon, "/v1/runs", "k-a", &wide), "201");
    assert_eq!(send(&daemon, "/v1/runs", "k-b", &contract("B", 1)), "202");
    let cancel = |daemon: &Daemon| send(daemon, "/v1/runs/a/cancel", "k-cancel", &json!({}));
    story.look("before", "");
    story.kill_at(daemon, "promote.after_state", cancel);
    story.look("right after the kill", "none");
    let daemon = story.start();
    story.look("after the restart", "");
    let answer = cancel(&daemon);
    story.look("after the retry", &answer);
    story.print(
        page,
        "Killed in the middle of a promotion",
        "B was RUNNING without a lease for a moment, but only inside a transaction: that one is undone, the cancel \
         before it stands, and the start wakes the queue again.",
    );
}

fn woken_at_the_start(page: &mut Page) {
    let (story, daemon) = Story::begin(Lab::default());
    let scope = json!({"node_id": "s1", "static": true, "capabilities": [{"capability": "scope"}]});
    daemon.post("/v1/nodes", None, &scope).expect("nobody kills it");
    let needs_scope = |name: &str| {
        let requires = json!([{"as": "s", "capability": "scope"}]);
        json!({"name": name, "requires": requires, "steps": [{"id": "work", "hold": {}}]})
    };
    let mut first = contract("A", 2);
    first["run_id"] = json!("a");
    let mut urgent = contract("E", 1);
    urgent["priority"] = json!(5);
    for (at, body) in
        [first, needs_scope("B"), contract("C", 1), needs_scope("D"), urgent, contract("F", 1)].iter().enumerate()
    {
        daemon.post("/v1/runs", Some(&format!("k-{at}")), body).expect("nobody kills it");
    }
    story.kill_at(daemon, "wake.before", |daemon| send(daemon, "/v1/runs/a/cancel", "k-cancel", &json!({})));
    let states = || -> Vec<Vec<String>> {
        let (_copy, rows) = story.copy();
        let query = "SELECT contract ->> 'name', priority, contract ->> '$.requires[0].capability', state,
                     coalesce((SELECT group_concat(node_id, ', ') FROM leases WHERE leases.run_id = runs.run_id), '-')
                     FROM runs ORDER BY priority DESC, arrival";
        let mut statement = rows.prepare(query).expect("a query");
        let read = |row: &rusqlite::Row| {
            let priority: i64 = row.get(1)?;
            Ok(vec![row.get(0)?, priority.to_string(), row.get(2)?, row.get(3)?, row.get(4)?])
        };
        statement.query_map([], read).expect("rows").map(|row| row.expect("a row")).collect()
    };
    let before = states();
    let daemon = story.start();
    let after = states();
    drop(daemon);
    let rows: Vec<Vec<String>> =
        before.into_iter().zip(after).map(|(row, new)| [row, new[3..].to_vec()].concat()).collect();
    page.table(
        "The queue before and after the start woke it",
        &["run", "priority", "needs", "state before", "holds", "state after", "holds"],
        &rows,
        "The kill came after A gave back both boards and before the queue was woken; the start wakes it once, before \
         anybody is answered: by priority, then arrival, and what does not fit holds nobody up.",
    );
}

fn told_once_or_twice(page: &mut Page) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let url = receiver(Arc::clone(&seen));
    let mut rows = Vec::new();
    for (moment, point) in [
        ("before it is sent", "outbox.before_send"),
        ("after it is sent, before that is recorded", "outbox.after_send"),
    ] {
        seen.lock().expect("no holder panics").clear();
        let (story, mut daemon) = Story::begin(Lab { webhook: Some(url.clone()), ..Lab::default() });
        std::fs::write(orders(&story.data()), format!("kill {point} 1")).expect("there is room");
        let laser = json!({"requires": [{"as": "d", "capability": "laser"}], "steps": [{"id": "h", "hold": {}}]});
        // The kill may come before the answer or after it.
        send(&daemon, "/v1/runs", "k-1", &laser);
        support::wait_for("its death", || daemon.is_dead().then_some(()));
        drop(daemon);
        std::fs::remove_file(orders(&story.data())).expect("it is there");
        let count = || {
            let seen = seen.lock().expect("no holder panics");
            let mut ids = seen.clone();
            ids.sort();
            ids.dedup();
            (seen.len().to_string(), ids.len().to_string())
        };
        let state = || -> String {
            story.copy().1.query_row("SELECT state FROM outbox", [], |row| row.get(0)).expect("a notification")
        };
        let (killed, killed_state) = (count().0, state());
        let daemon = story.start();
        support::wait_for("the notification", || (state() == "delivered").then_some(()));
        drop(daemon);
        let (came, different) = count();
        rows.push(vec![moment.to_owned(), killed_state, killed, state(), came, different]);
    }
    page.table(
        "A notification, through the outbox",
        &["killed", "outbox", "received", "outbox after the restart", "received", "different ids"],
        &rows,
        "The row is in the transaction of its event, so it is never forgotten; it may be sent twice, with the same \
         webhook-id, by which the receiver drops the second.",
    );
}

/// A receiver that answers 200 to everything and notes the ids. It ends with the process.
fn receiver(seen: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                let mut request = [0; 16384];
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                while let Ok(read @ 1..) = stream.read(&mut request) {
                    let text = String::from_utf8_lossy(&request[..read]).to_lowercase();
                    if let Some(id) = text.lines().find_map(|line| line.strip_prefix("webhook-id: ")) {
                        seen.lock().expect("no holder panics").push(id.to_owned());
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    url
}
