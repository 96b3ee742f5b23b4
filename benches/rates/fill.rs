//! Large databases, made by copying rows of runs that the daemon itself has made. The daemon is down meanwhile.

use std::path::Path;

use rusqlite::Connection;

/// The tables whose rows belong to a run, with the column that numbers them, if they have one.
const TABLES: &[(&str, Option<&str>)] = &[
    ("runs", Some("arrival")),
    ("steps", None),
    ("attempts", None),
    ("lease_history", Some("id")),
    ("events", Some("id")),
];

/// Copies each of the `templates` (run ids) `times` times. The ids of the copies begin with `prefix`, and lie spread
/// like random ones.
pub fn copy(folder: &Path, templates: &[String], times: usize, prefix: &str) {
    let conn = Connection::open(folder.join("mediator.db")).expect("the daemon's database");
    conn.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = off; PRAGMA cache_size = -1000000; PRAGMA temp_store = memory;
         PRAGMA foreign_keys = off; PRAGMA wal_autocheckpoint = 0; BEGIN IMMEDIATE;
         CREATE TEMP TABLE copies (new TEXT PRIMARY KEY, old TEXT NOT NULL) WITHOUT ROWID;",
    )
    .expect("SQL");
    let total = (templates.len() * times) as u64;
    {
        let mut insert = conn.prepare("INSERT INTO copies (new, old) VALUES (?1, ?2)").expect("SQL");
        for number in 0..total {
            // In order of the id, so that the indexes grow at their end and the copying is soon done.
            let id = format!("{prefix}{:016x}", number * (u64::MAX / total));
            let template = &templates[usize::try_from(number).expect("few") % templates.len()];
            insert.execute((id, template)).expect("a row");
        }
    }
    for (table, number) in TABLES {
        let columns: Vec<String> = {
            let mut statement = conn.prepare("SELECT name FROM pragma_table_info(?1)").expect("SQL");
            let names = statement.query_map([table], |row| row.get::<_, String>(0)).expect("SQL");
            names.map(|name| name.expect("a name")).filter(|name| Some(name.as_str()) != *number).collect()
        };
        let quoted: Vec<String> = columns.iter().map(|name| format!("\"{name}\"")).collect();
        let values = columns.iter().map(|name| match (*table, name.as_str()) {
            (_, "run_id") => "new".to_owned(),
            ("lease_history", "arrival") => "(SELECT arrival FROM runs WHERE runs.run_id = new)".to_owned(),
            _ => format!("own.\"{name}\""),
        });
        let values: Vec<String> = values.collect();
        let order = number.map_or(String::new(), |number| format!(", own.\"{number}\""));
        conn.execute_batch(&format!(
            "INSERT INTO {table} ({}) SELECT {} FROM copies CROSS JOIN {table} AS own ON own.run_id = old
             ORDER BY new{order}",
            quoted.join(", "),
            values.join(", ")
        ))
        .expect("SQL");
    }
    conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = wal;").expect("SQL");
}

/// Returns the ids of all runs in a state.
pub fn ids(folder: &Path, state: &str) -> Vec<String> {
    let conn = Connection::open(folder.join("mediator.db")).expect("the daemon's database");
    let mut statement = conn.prepare("SELECT run_id FROM runs WHERE state = ?1 ORDER BY arrival").expect("SQL");
    let ids = statement.query_map([state], |row| row.get(0)).expect("SQL");
    ids.map(|id| id.expect("an id")).collect()
}
