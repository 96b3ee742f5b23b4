//! Debug builds only: collects the text of every statement that is run, so that a test can ask for its plan. What is
//! tested is so what is used, wherever in the store it stands.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

static SEEN: Mutex<Option<BTreeSet<String>>> = Mutex::new(None);

thread_local! {
    static IS_CHECK: Cell<bool> = const { Cell::new(false) };
}

/// Begins to collect, for the whole process.
pub fn collect() {
    SEEN.lock().expect("no holder panics").get_or_insert_default();
}

/// Returns what was collected so far.
pub fn seen() -> BTreeSet<String> {
    SEEN.lock().expect("no holder panics").clone().unwrap_or_default()
}

/// Has the statements of a connection collected.
pub(super) fn watch(conn: &mut Connection) -> rusqlite::Result<()> {
    let note = |event: TraceEvent| {
        if let TraceEvent::Stmt(statement, _) = event
            && !IS_CHECK.get()
            && let Some(seen) = &mut *SEEN.lock().expect("no holder panics")
        {
            let sql = statement.sql();
            if !seen.contains(sql.as_ref()) {
                seen.insert(sql.into_owned());
            }
        }
    };
    conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note))
}

/// Runs a check that only debug builds make: its statements are not what the daemon runs.
pub(super) fn unseen<T>(check: impl FnOnce() -> T) -> T {
    let before = IS_CHECK.replace(true);
    let outcome = check();
    IS_CHECK.set(before);
    outcome
}
