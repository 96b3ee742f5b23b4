//! The kill matrix: every scenario is killed at its first durable point, its second, and so on, until it gets
//! through; points are counted, not listed. After each kill the daemon is started again on the same folder, judged,
//! and asked the same again. Then the same with a second kill in the recovery of the first.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mediator::config::Settings;
use mediator::failpoint;
use mediator::store::invariants;

use crate::daemon::{Daemon, Lab, orders};
use crate::scenarios::{FORGETTING, NOTIFYING, PRUNING, SCENARIOS, Scenario};
use crate::support::could_start;

static KILLS: AtomicUsize = AtomicUsize::new(0);
static REACHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// I1 to I11 as far as rows show them, and: whatever is asked again has one effect.
#[test]
fn killed_at_any_point_nothing_is_lost_and_nothing_is_done_twice() {
    let receiver = receiver();
    let queue: Mutex<Vec<&Scenario>> =
        Mutex::new(SCENARIOS.iter().chain([&NOTIFYING, &FORGETTING, &PRUNING]).rev().collect());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4)) {
            scope.spawn(|| {
                while let Some(scenario) = { queue.lock().expect("no holder panics").pop() } {
                    Case::new(scenario, &receiver).try_every_point();
                }
            });
        }
    });
    first_start();
    migration();
    stop();
    let reached = REACHED.lock().expect("no holder panics").clone();
    let never: Vec<_> = failpoint::ALL.iter().filter(|name| !reached.contains(**name)).collect();
    let kills = KILLS.load(Ordering::Relaxed);
    println!("{kills} kills at {} of {} points", reached.len(), failpoint::ALL.len());
    assert!(never.is_empty(), "points that were never reached: {never:?}");
    assert!(kills >= 1000, "only {kills} kills");
}

/// One scenario with its prepared lab and the end it must come to.
pub struct Case<'a> {
    scenario: &'a Scenario,
    lab: Lab,
    prepared: tempfile::TempDir,
    expected: Vec<String>,
}

impl<'a> Case<'a> {
    pub fn new(scenario: &'a Scenario, receiver: &'a str) -> Self {
        let webhook = scenario.webhook.then(|| receiver.to_owned());
        let lab = Lab { webhook, settings: scenario.settings, ..Lab::default() };
        let prepared = tempfile::tempdir().expect("there is room");
        let mut case = Self { scenario, lab, prepared, expected: Vec::new() };
        {
            let daemon = Daemon::start(&case.prepared.path().join("data"), &case.lab).expect("it starts");
            (scenario.prepare)(&daemon).expect("nobody kills it");
        }
        let (_folder, daemon) = case.copy_and_start();
        (scenario.act)(&daemon).expect("nobody kills it");
        case.expected = snapshot(&daemon);
        case
    }

    pub fn copy(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("there is room");
        copy(&self.prepared.path().join("data"), &folder.path().join("data"));
        folder
    }

    fn copy_and_start(&self) -> (tempfile::TempDir, Daemon) {
        let folder = self.copy();
        let daemon = Daemon::start(&folder.path().join("data"), &self.lab).expect("it starts");
        (folder, daemon)
    }

    fn try_every_point(&self) {
        for point in 1.. {
            if !self.kill_at(point, None) {
                break;
            }
            // A second kill, at each point of the recovery from the first: for every third of them, since recoveries
            // are much alike; for fewer where each has to wait for time to pass.
            let every = if self.scenario.settings.is_empty() { 3 } else { 15 };
            if point % every == 1 {
                for second in 1.. {
                    if !self.kill_at(point, Some(second)) {
                        break;
                    }
                }
            }
            assert!(point < 2000, "{}: it never gets through", self.scenario.name);
        }
    }

    /// Kills at the n-th point, and in the recovery at the m-th if that is asked for. Returns whether the last kill
    /// that was asked for was reached.
    fn kill_at(&self, point: usize, second: Option<usize>) -> bool {
        let (folder, mut daemon) = self.copy_and_start();
        let data = folder.path().join("data");
        let what = format!("{}: kill at point {point}, then {second:?}", self.scenario.name);
        std::fs::write(orders(&data), format!("count {point}")).expect("there is room");
        let got_through = (self.scenario.act)(&daemon).is_ok();
        // The point may lie in what goes on beside the answer, e.g. a seal: then the daemon dies a moment later.
        let died = if got_through { daemon.is_dead() } else { dies(&mut daemon) };
        assert!(died || got_through, "{what}: no answer, and it lives");
        drop(daemon);
        let mut reached = died;
        KILLS.fetch_add(usize::from(died), Ordering::Relaxed);
        if let Some(second) = second {
            std::fs::write(orders(&data), format!("count {second} again")).expect("there is room");
            let again = Daemon::start(&data, &self.lab);
            reached = again.is_none();
            KILLS.fetch_add(usize::from(reached), Ordering::Relaxed);
        }
        note_reached(&data);
        let _ = std::fs::remove_file(orders(&data));
        self.recover(&data, &what);
        note_reached(&data);
        reached
    }

    /// Does the thing on a daemon that somebody may kill; says whether it was answered throughout.
    pub fn act(&self, daemon: &Daemon) -> bool {
        (self.scenario.act)(daemon).is_ok()
    }

    /// Starts on what a kill has left, judges it, asks the same again, and compares with a life without a kill.
    pub fn recover(&self, data: &Path, what: &str) {
        let daemon = Daemon::start(data, &self.lab).unwrap_or_else(|| panic!("{what}: it does not start again"));
        judge(&daemon, what);
        (self.scenario.act)(&daemon).unwrap_or_else(|_| panic!("{what}: it dies without being killed"));
        judge(&daemon, what);
        assert_eq!(snapshot(&daemon), self.expected, "{what}");
    }
}

fn dies(daemon: &mut Daemon) -> bool {
    crate::support::wait_for("its death", || daemon.is_dead().then_some(()));
    true
}

/// The very first start of a folder, killed at each of its points.
fn first_start() {
    start_killed_everywhere("first start", |_| {});
}

/// The first start of this version on a folder of each earlier one.
fn migration() {
    for version in 1.. {
        let schema = format!("{}/tests/schemas/{version}.sql", env!("CARGO_MANIFEST_DIR"));
        let Ok(schema) = std::fs::read_to_string(schema) else {
            assert!(version > 1, "no earlier version to migrate from");
            return;
        };
        start_killed_everywhere(&format!("migration from {version}"), |data| {
            std::fs::create_dir(data).expect("there is room");
            let rows = rusqlite::Connection::open(data.join(mediator::store::DATABASE)).expect("a database");
            let set = format!("PRAGMA application_id = 0x6d647472; PRAGMA user_version = {version}");
            rows.execute_batch(&format!("PRAGMA journal_mode = WAL; BEGIN; {schema}; {set}; COMMIT")).expect("SQL");
        });
    }
}

fn start_killed_everywhere(what: &str, prepare: impl Fn(&Path)) {
    for point in 1.. {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        prepare(&data);
        std::fs::write(orders(&data), format!("count {point}")).expect("there is room");
        let started = Daemon::start(&data, &Lab::default());
        KILLS.fetch_add(usize::from(started.is_none()), Ordering::Relaxed);
        let through = started.is_some();
        drop(started);
        std::fs::remove_file(orders(&data)).expect("it is there");
        let daemon = Daemon::start(&data, &Lab::default()).unwrap_or_else(|| panic!("{what}, killed at {point}"));
        judge(&daemon, what);
        let (status, answer) = daemon.call("GET", "/v1/runs", None, "").expect("it answers");
        assert_eq!(status, 200, "the token of a start killed at {point}: {answer}");
        note_reached(&data);
        if through {
            return;
        }
    }
}

/// A tidy end, killed at each of its points.
fn stop() {
    for point in 1.. {
        let folder = tempfile::tempdir().expect("there is room");
        let data = folder.path().join("data");
        let mut daemon = Daemon::start(&data, &Lab::default()).expect("it starts");
        std::fs::write(orders(&data), format!("count {point}")).expect("there is room");
        daemon.stop();
        note_reached(&data);
        let reached = std::fs::read_to_string(reached_file(&data)).unwrap_or_default();
        std::fs::remove_file(orders(&data)).expect("it is there");
        let again = Daemon::start(&data, &Lab::default()).expect("it starts again");
        judge(&again, "a tidy end");
        KILLS.fetch_add(1, Ordering::Relaxed);
        if reached.ends_with("checkpoint.before\ncheckpoint.after\n") && point > 1 {
            return;
        }
        assert!(point < 100, "an end without an end");
    }
}

/// What must be true after every start, whatever happened before.
pub fn judge(daemon: &Daemon, what: &str) {
    let rows = daemon.rows();
    let broken = invariants::check(&rows).expect("rows can be read");
    assert!(broken.is_empty(), "{what}: {broken:?}");
    // Live by what the rows say now: nodes have a minute from each start.
    let now: i64 = rows.query_row("SELECT started_at FROM boot", [], |row| row.get(0)).expect("a boot");
    let left = could_start(&rows, now + 1, &Settings::default());
    assert!(left.is_empty(), "{what}: left waiting though it fits: {left:?}");
}

/// Everything that must come out the same, however often it was killed: no times, no random words.
pub fn snapshot(daemon: &Daemon) -> Vec<String> {
    let rows = daemon.rows();
    let mut lines = Vec::new();
    for query in [
        "SELECT 'run', run_id, state, verdict ->> 'kind' FROM runs ORDER BY run_id",
        "SELECT 'step', run_id || '/' || seq, state || ' ' || attempt || ' ' || ready, node_id FROM steps ORDER BY run_id, seq",
        "SELECT 'lease', node_id, run_id, NULL FROM leases ORDER BY node_id",
        "SELECT 'node', node_id, silent, coalesce(owner_mode, '') || coalesce(operator_mode, '') FROM nodes ORDER BY node_id",
        "SELECT 'attempt', run_id || '/' || seq || '/' || attempt, node_id, report IS NOT NULL FROM attempts ORDER BY 2",
        "SELECT 'held', run_id || ' ' || node_id, why, \"to\" IS NULL FROM lease_history ORDER BY 2, 3",
        "SELECT 'artifact', run_id || '/' || seq || '/' || attempt, path, sha256 FROM artifacts ORDER BY 2, 3",
        "SELECT 'told', event, run_id, NULL FROM outbox ORDER BY 2, 3",
        // Each transition once, also in what is told of it.
        "SELECT 'event', event, run_id, count(*) FROM events
         WHERE event IN ('run.submitted', 'run.queued', 'run.started', 'run.ended', 'step.claimed', 'step.done', 'step.failed',
             'step.rolled-back', 'ask.raised', 'ask.done', 'hold.opened', 'hold.done')
         GROUP BY event, run_id ORDER BY 2, 3",
    ] {
        let mut statement = rows.prepare(query).expect("a query");
        let mut found = statement.query([]).expect("rows");
        while let Some(row) = found.next().expect("a row") {
            let cells: Vec<String> = (0..4)
                .map(|at| match row.get::<_, rusqlite::types::Value>(at).expect("a cell") {
                    rusqlite::types::Value::Text(text) => text,
                    rusqlite::types::Value::Integer(number) => number.to_string(),
                    _ => "-".to_owned(),
                })
                .collect();
            lines.push(cells.join(" "));
        }
    }
    lines
}

fn reached_file(data: &Path) -> std::path::PathBuf {
    let mut path = orders(data).into_os_string();
    path.push(".reached");
    path.into()
}

fn note_reached(data: &Path) {
    let text = std::fs::read_to_string(reached_file(data)).unwrap_or_default();
    REACHED.lock().expect("no holder panics").extend(
        // A line that a kill has cut is none.
        text.lines().filter(|name| failpoint::ALL.contains(name)).map(str::to_owned),
    );
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("there is room");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// A receiver that answers 200 to everything. Returns its address; it ends with the process.
fn receiver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut request = [0; 16384];
                while stream.read(&mut request).is_ok_and(|read| read > 0) {
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}
