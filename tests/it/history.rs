//! History: what is old is pruned in small steps, and what is left of it says so; folders of earlier versions.

use std::collections::BTreeSet;
use std::time::Duration;

use mediator::store::{DATABASE, Store};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{Lab, id_of, on_board, open_rows, requires, step, with};

const DAY_MS: i64 = 86_400_000;
const DAY: f64 = 86_400.0;

/// A board that stays, runs kept for ten days, events for three.
fn bench() -> Lab {
    let lab = Lab::with(|settings| {
        settings.history_retention_ms = 10 * DAY_MS;
        settings.events_retention_ms = 3 * DAY_MS;
        settings.run_limit_ms = 100 * DAY_MS;
    });
    lab.static_node("b1", &["board"]);
    lab
}

fn asking() -> Value {
    on_board(json!([{"id": "q", "ask": {"prompt": "?", "timeout_seconds": 8_640_000}}]))
}

/// Runs a hold to its end and seals its record.
fn ended(lab: &Lab, name: &str) -> String {
    let contract = with(with(on_board(json!([{"id": "q", "ask": {"prompt": "?"}}])), "run_id", name), "work", "w");
    let run = lab.placed(&contract);
    lab.answer(&run, 1, "yes").expect(200);
    assert_eq!(lab.get(&format!("/v1/runs/{run}/record")).status, 200);
    run
}

#[test]
fn a_run_is_pruned_when_its_time_has_come_and_leaves_its_id() {
    let mut lab = bench();
    let contract = with(on_board(json!([{"id": "q", "ask": {"prompt": "?"}}])), "run_id", "old");
    let first = lab.keyed("POST", "/v1/runs", "k", &contract);
    assert_eq!(first.status, 201);
    lab.answer("old", 1, "yes").expect(200);
    lab.get("/v1/runs/old/record").expect(200);
    let folder = lab.dir.path().join("records/old");
    assert!(folder.join("manifest.json").exists());
    lab.advance(4.0 * DAY);
    let young = ended(&lab, "young");
    lab.advance(6.0 * DAY - 2.0);
    assert_eq!(lab.state("old"), "SUCCEEDED succeeded", "not before its time");
    lab.advance(4.0);
    for path in ["", "/why", "/record", "/artifacts", "/artifacts/a", "/steps/1/log"] {
        let problem = lab.get(&format!("/v1/runs/old{path}")).problem(410, "gone");
        assert_eq!(problem["run_id"], "old");
    }
    for (path, body) in [
        ("cancel", json!({})),
        ("renew", json!({})),
        ("steps/1/answer", json!({"answer": "yes"})),
        ("steps/1/result", json!({"node_id": "b1", "nonce": "n", "attempt": 1, "exit_code": 0})),
    ] {
        lab.post(&format!("/v1/runs/old/{path}"), &body).problem(410, "gone");
    }
    // The id is not given again, not even to the same contract.
    lab.submit(&contract).problem(409, "run-exists");
    let list = lab.get("/v1/runs").expect(200);
    let listed: Vec<&str> =
        list["runs"].as_array().expect("a list").iter().filter_map(|run| run["run_id"].as_str()).collect();
    assert_eq!(listed, [young.as_str()]);
    // What a key promised is not changed by it: a week is over here, so a tombstone refuses.
    lab.keyed("POST", "/v1/runs", "k", &contract).problem(409, "idempotency-key-expired");
    // The files go after the commit, also if the daemon was killed in between.
    assert!(folder.exists());
    lab.restart();
    lab.http.rt.block_on(lab.store().remove_pruned_files());
    assert!(!folder.exists());
    assert!(lab.dir.path().join("records").join(&young).exists());
    assert_eq!(lab.number("SELECT count(*) FROM pruned_runs WHERE has_files = 1"), 0);
    for table in ["steps", "attempts", "lease_history", "artifacts", "runs"] {
        let query = format!("SELECT count(*) FROM {table} WHERE run_id = 'old'");
        assert_eq!(lab.number(&query), 0, "{table}");
    }
}

/// "A sealed record never changes", and one that is not sealed yet is not lost.
#[test]
fn nothing_is_pruned_before_it_has_ended_and_is_sealed() {
    let lab = bench();
    let waits = lab.placed(&asking());
    let queued = lab.queued(&asking());
    lab.cancel(&queued);
    lab.advance(50.0 * DAY);
    assert_eq!(lab.state(&waits), "RUNNING");
    assert_eq!(lab.state(&queued), "CANCELLED cancelled", "its record is not sealed yet");
    lab.get(&format!("/v1/runs/{queued}/record")).expect(200);
    lab.advance(9.9 * DAY);
    assert_eq!(lab.state(&queued), "CANCELLED cancelled");
    lab.advance(0.2 * DAY);
    lab.get(&format!("/v1/runs/{queued}")).problem(410, "gone");
    assert_eq!(lab.state(&waits), "RUNNING");
}

/// The writer gives these numbers, so it has to know of those that are gone: places in lists, and the events that whoever
/// follows has seen.
#[test]
fn numbers_of_what_was_pruned_are_not_given_again() {
    let mut lab = bench();
    ended(&lab, "first");
    ended(&lab, "last");
    let arrival = lab.number("SELECT max(arrival) FROM runs");
    let event = lab.number("SELECT max(id) FROM events");
    lab.advance(11.0 * DAY);
    assert_eq!(lab.number("SELECT count(*) FROM runs") + lab.number("SELECT count(*) FROM events"), 0);
    lab.restart();
    ended(&lab, "next");
    assert_eq!(lab.number("SELECT min(arrival) FROM runs"), arrival + 1);
    assert_eq!(lab.number("SELECT min(id) FROM events"), event + 1);
}

#[test]
fn events_are_pruned_and_who_resumes_from_before_is_told() {
    let lab = bench();
    let waits = lab.placed(&asking());
    let old = lab.number("SELECT max(id) FROM events");
    lab.static_node("b2", &["board"]);
    let run = ended(&lab, "r");
    lab.advance(4.0 * DAY);
    let last = lab.number("SELECT last_event FROM pruned");
    assert!(last > old, "{last}");
    // Those of a run that goes on are kept for its record.
    assert_eq!(lab.number(&format!("SELECT count(*) FROM events WHERE run_id = '{run}'")), 0);
    let kept = lab.number(&format!("SELECT count(*) FROM events WHERE run_id = '{waits}'"));
    assert!(kept >= 2, "{kept}");
    lab.cancel(&waits);
    let record = lab.get(&format!("/v1/runs/{waits}/record"));
    assert_eq!(record.status, 200);
    let text = String::from_utf8_lossy(&record.bytes).into_owned();
    assert!(text.contains("run.started") && text.contains("run.ended"));
    let read = |after: i64| lab.http.opening(&format!("{}/v1/events", lab.url()), lab.token(), after);
    let opening = read(1);
    assert!(opening.contains("event: reset") && opening.contains(&format!("id: {last}\n")), "{opening}");
    assert!(!read(last).contains("reset"));
    // The run takes them along.
    lab.advance(11.0 * DAY);
    lab.get(&format!("/v1/runs/{waits}")).problem(410, "gone");
    assert_eq!(lab.number("SELECT count(*) FROM events WHERE run_id IS NOT NULL"), 0);
}

/// Thousands that fall due at once: each write meanwhile finds no more than a step gone since the one before.
#[test]
fn pruning_goes_in_small_steps() {
    const MANY: i64 = 1_500;
    let lab = bench();
    ended(&lab, "model");
    let outside = lab.outside();
    for table in ["runs", "steps", "attempts", "lease_history"] {
        multiply(&outside, table, MANY);
    }
    let rows = || {
        ["runs", "steps", "attempts", "lease_history"]
            .iter()
            .map(|table| lab.number(&format!("SELECT count(*) FROM {table}")))
            .sum::<i64>()
    };
    lab.clock.advance(Duration::from_millis((10 * DAY_MS + 2000).unsigned_abs()));
    let mut seen = vec![rows()];
    assert!(seen[0] > 4 * MANY, "{seen:?}");
    while lab.number("SELECT count(*) FROM runs") > 0 {
        lab.store().poke();
        lab.http.rt.block_on(lab.store().write(|_| Ok(()))).expect("a write");
        seen.push(rows());
        // A step that had more to do leaves the writer to others for a moment.
        lab.clock.advance(Duration::from_millis(25));
        assert!(seen.len() < 500, "it ends: {seen:?}");
    }
    let largest = seen.windows(2).map(|pair| pair[0] - pair[1]).max().expect("steps");
    assert!(largest <= 1_600, "{largest} rows in one step, of {seen:?}");
    assert!(seen.len() > 5, "{seen:?}");
    assert_eq!(lab.number("SELECT count(*) FROM pruned_runs"), MANY + 1);
}

/// Copies the rows of run `model` of a table, under ids of their own.
fn multiply(outside: &Connection, table: &str, many: i64) {
    let mut statement = outside.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).expect("SQL");
    let names: Vec<String> =
        statement.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("rows");
    let columns: Vec<String> =
        names.iter().filter(|name| *name != "id" || table == "steps").map(|name| format!("\"{name}\"")).collect();
    let columns: Vec<String> = columns.into_iter().filter(|name| name != "\"arrival\"" || table != "runs").collect();
    let values: Vec<String> =
        columns.iter().map(|name| if name == "\"run_id\"" { "'m' || i".to_owned() } else { name.clone() }).collect();
    let query = format!(
        "INSERT INTO {table} ({}) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many})
         SELECT {} FROM {table}, n WHERE run_id = 'model'",
        columns.join(", "),
        values.join(", ")
    );
    outside.execute(&query, []).expect("rows");
}

// ---- folders of earlier versions

/// Tables with their columns, in any order (a column that was added later stands last), and indexes as they are written.
fn schema_of(rows: &Connection) -> BTreeSet<String> {
    let query =
        "SELECT list.name || ' strict=' || strict || ' wr=' || wr || ' ' || columns.name || ' ' || columns.type || ' '
            || columns.\"notnull\" || ' ' || coalesce(dflt_value, '') || ' ' || columns.pk
        FROM pragma_table_list AS list, pragma_table_xinfo(list.name) AS columns WHERE list.type = 'table'
        UNION SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";
    let mut statement = rows.prepare(query).expect("SQL");
    let list = statement.query_map([], |row| row.get(0)).expect("rows");
    list.collect::<Result<_, _>>().expect("rows")
}

/// The definitions that a migration wrote over, with their CHECKs: word for word those of a new folder.
fn checks_of(rows: &Connection) -> String {
    let query = "SELECT group_concat(sql, ';' ORDER BY name) FROM sqlite_schema
        WHERE type = 'table' AND name IN ('events', 'outbox', 'pruned', 'runs', 'steps')";
    rows.query_row(query, [], |row| row.get(0)).expect("their definitions")
}

/// Makes a database as an earlier version made it.
fn earlier(folder: &std::path::Path, version: i64) -> Connection {
    let schema = std::fs::read_to_string(format!("{}/tests/schemas/{version}.sql", env!("CARGO_MANIFEST_DIR")));
    let conn = Connection::open(folder.join(DATABASE)).expect("a database");
    conn.execute_batch(&schema.expect("a schema")).expect("SQL");
    conn.pragma_update(None, "application_id", 0x6d64_7472).expect("a pragma");
    conn.pragma_update(None, "user_version", version).expect("a pragma");
    conn.pragma_update(None, "journal_mode", "wal").expect("a pragma");
    conn
}

/// From each earlier schema the same comes out as in a new folder, with what was in it, and with a copy beside it of
/// what it was.
#[test]
fn folders_of_earlier_versions_are_brought_up_and_copied_first() {
    let new = Lab::new();
    let wanted = schema_of(new.rows());
    let current: i64 = new.number("SELECT user_version FROM pragma_user_version");
    for version in 1..current {
        let mut lab = Lab::new();
        lab.stop();
        for name in [DATABASE.to_owned(), format!("{DATABASE}-wal"), format!("{DATABASE}-shm")] {
            let _ = std::fs::remove_file(lab.dir.path().join(name));
        }
        let conn = earlier(lab.dir.path(), version);
        conn.execute("INSERT INTO boot (one, number, started_at, clock_offset) VALUES (1, 41, ?1, 0)", [lab.now()])
            .expect("a boot");
        conn.execute("INSERT INTO events (at, event, data) VALUES (?1, 'node.silent', '{\"old\": true}')", [lab.now()])
            .expect("an event");
        for (run, state, is_sealed) in
            [("lacking", "FAILED", false), ("sealed", "FAILED", true), ("open", "QUEUED", false)]
        {
            conn.execute(
                "INSERT INTO runs (run_id, state, principal, priority, contract, shape, created_at, ended_at, verdict,
                     queue_until, ends_by, holder_until)
                 VALUES (?1, ?2, 'p', 0, '{}', 1, 1, iif(?2 = 'FAILED', 2, NULL), iif(?2 = 'FAILED', '{}', NULL), ?3, ?3, ?3)",
                (run, state, mediator::store::NEVER),
            )
            .expect("a run");
            let sealed = is_sealed.then_some(3);
            let values = (run, sealed, sealed.map(|_| "hash"));
            conn.execute(
                "INSERT INTO records (run_id, opened_at, sealed_at, manifest_sha256) VALUES (?1, 1, ?2, ?3)",
                values,
            )
            .expect("a record");
        }
        if version >= 3 {
            conn.execute("UPDATE records SET owed = 1 WHERE run_id = 'lacking'", []).expect("as this schema has it");
        }
        drop(conn);
        lab.start();
        let rows = open_rows(lab.dir.path());
        assert_eq!(schema_of(&rows), wanted, "from schema {version}");
        assert_eq!(checks_of(&rows), checks_of(new.rows()), "from schema {version}");
        let owed: String = rows
            .query_row(
                "SELECT group_concat(run_id) FROM runs WHERE ended_at IS NOT NULL AND sealed_at IS NULL",
                [],
                |row| row.get(0),
            )
            .expect("one");
        assert_eq!(owed, "lacking", "from schema {version}");
        let sealed: (String, i64, String) = rows
            .query_row("SELECT run_id, sealed_at, manifest_sha256 FROM runs WHERE sealed_at IS NOT NULL", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .expect("one");
        assert_eq!(sealed, ("sealed".to_owned(), 3, "hash".to_owned()), "from schema {version}");
        let soundness: String = rows.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a word");
        assert_eq!(soundness, "ok", "from schema {version}");
        rows.execute("UPDATE runs SET state = 'LOST' WHERE run_id = 'open'", []).expect_err("checked as before");
        let boot: i64 = rows.query_row("SELECT number FROM boot", [], |row| row.get(0)).expect("a boot");
        assert_eq!(boot, 42);
        let copy = lab.dir.path().join(format!("mediator.schema-{version}.db"));
        let copied = Connection::open(&copy).expect("the copy");
        let (number, user_version): (i64, i64) = copied
            .query_row("SELECT number, user_version FROM boot, pragma_user_version", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .expect("as it was");
        assert_eq!((number, user_version), (41, version));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).expect("it is there").permissions());
        assert_eq!(mode & 0o777, 0o600);
        drop(rows);
        lab.is_broken = true; // The rows that were watched are those of the folder before.
    }
}

/// Without its copy there is no migration; and nothing of the folder was changed.
#[test]
fn a_folder_that_cannot_be_copied_is_not_migrated() {
    let dir = tempfile::tempdir().expect("there is room");
    drop(earlier(dir.path(), 1));
    std::fs::create_dir(dir.path().join("mediator.copy-new")).expect("in the way");
    let settings = mediator::config::Settings::default();
    let error = Store::open(dir.path(), settings, mediator::clock::Clock::manual(1)).err().expect("refused");
    assert!(error.contains("cannot be copied") && error.contains("mediator.schema-1.db"), "{error}");
    let rows = open_rows(dir.path());
    let version: i64 =
        rows.query_row("SELECT user_version FROM pragma_user_version", [], |row| row.get(0)).expect("a number");
    assert_eq!(version, 1);
}

#[test]
fn the_agents_of_a_pruned_run_are_told() {
    let lab = bench();
    lab.advert("b2", "i1", &["oven"]);
    let contract = json!({"requires": requires(&["o=oven"]), "steps": [step("a", "o")]});
    let run = id_of(&lab.submit(&contract).expect(201));
    lab.cancel(&run);
    lab.get(&format!("/v1/runs/{run}/record")).expect(200);
    lab.advance(11.0 * DAY);
    let log = format!("/v1/runs/{run}/steps/1/log?nonce=n&attempt=1&offset=0");
    lab.put(&log, "late").problem(410, "gone");
}
