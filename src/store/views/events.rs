//! Events: what happened, in order, from any point on.

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::At;
use crate::domain::ids::RunId;
use crate::store::{Error, history};

/// One event as it is shown.
#[derive(Clone, Debug)]
pub struct EventView {
    /// Global and growing; none is used twice.
    pub id: i64,
    /// What happened, e.g. `run.queued`.
    pub event: String,
    /// What it is about, and what else is to be said.
    pub data: Value,
}

/// How many bytes of events are read at once, and one event more: each of many streams may have that much in memory.
const BATCH_BYTES: usize = 16 << 10;

/// Returns at most `limit` events behind `after`, of one run or of all; fewer if they are long, but at least one if
/// there is one.
pub fn events(conn: &Connection, after: i64, run: Option<&RunId>, limit: i64, at: At) -> Result<Vec<EventView>, Error> {
    let of_run = if run.is_some() { "run_id = :run AND" } else { "" };
    let mut statement = conn.prepare_cached(&format!(
        "SELECT id, at, event, run_id, seq, node_id, data FROM events WHERE {of_run} id > :after ORDER BY id LIMIT :limit"
    ))?;
    let mut rows = match run {
        Some(run) => statement.query(named_params! { ":run": run.as_str(), ":after": after, ":limit": limit })?,
        None => statement.query(named_params! { ":after": after, ":limit": limit })?,
    };
    let (mut list, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES
        && let Some(row) = rows.next()?
    {
        let more: String = row.get(6)?;
        bytes += more.len();
        let mut data: Value = serde_json::from_str(&more).unwrap_or_else(|_| json!({}));
        data["run_id"] = row.get::<_, Option<String>>(3)?.into();
        data["seq"] = row.get::<_, Option<i64>>(4)?.into();
        data["node_id"] = row.get::<_, Option<String>>(5)?.into();
        data["at"] = at.show(row.get(1)?).into();
        list.push(EventView { id: row.get(0)?, event: row.get(2)?, data });
    }
    Ok(list)
}

/// Returns up to which event the list may have gaps, and the newest there has been; zeros when there is none.
pub fn event_range(conn: &Connection) -> Result<(i64, i64), Error> {
    let pruned = history::pruned_to(conn)?;
    let newest: Option<i64> = conn.prepare_cached("SELECT max(id) FROM events")?.query_row([], |row| row.get(0))?;
    Ok((pruned, newest.unwrap_or(0).max(pruned)))
}
