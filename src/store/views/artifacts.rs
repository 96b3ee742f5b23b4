//! Artifacts: what a run's steps have left.

use rusqlite::{Connection, OptionalExtension as _, Row, named_params};
use serde::Serialize;

use crate::domain::ids::RunId;
use crate::store::{Error, not_found};

/// An artifact as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactView {
    /// The step that left it.
    pub seq: i64,
    /// In which attempt.
    pub attempt: i64,
    /// Its path in the node's work folder.
    pub path: String,
    /// In bytes.
    pub size: i64,
    /// Of its content, in hexadecimal.
    pub sha256: String,
    /// The name of its file until the record is sealed.
    #[serde(skip)]
    pub id: i64,
}

const COLUMNS: &str = "seq, attempt, path, size, sha256, id";

fn read(row: &Row) -> rusqlite::Result<ArtifactView> {
    Ok(ArtifactView {
        seq: row.get(0)?,
        attempt: row.get(1)?,
        path: row.get(2)?,
        size: row.get(3)?,
        sha256: row.get(4)?,
        id: row.get(5)?,
    })
}

/// Returns all artifacts of a run, by step, attempt and path.
///
/// # Errors
/// `not-found`.
pub fn artifacts(conn: &Connection, run: &RunId) -> Result<Vec<ArtifactView>, Error> {
    super::runs::state(conn, run)?;
    let mut statement =
        conn.prepare_cached(&format!("SELECT {COLUMNS} FROM artifacts WHERE run_id = ?1 ORDER BY seq, attempt, path"))?;
    let list = statement.query_map([run.as_str()], read)?;
    Ok(list.collect::<Result<_, _>>()?)
}

/// Returns the newest artifact of that path, of one step or attempt if that is said.
///
/// # Errors
/// `not-found`.
pub fn artifact(
    conn: &Connection,
    run: &RunId,
    path: &str,
    seq: Option<i64>,
    attempt: Option<i64>,
) -> Result<ArtifactView, Error> {
    super::runs::state(conn, run)?;
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM artifacts
         WHERE run_id = :run AND path = :path AND (:seq IS NULL OR seq = :seq) AND (:attempt IS NULL OR attempt = :attempt)
         ORDER BY id DESC LIMIT 1"
    ))?;
    let found = statement
        .query_row(named_params! { ":run": run.as_str(), ":path": path, ":seq": seq, ":attempt": attempt }, read)
        .optional()?;
    found.ok_or_else(|| not_found(format_args!("artifact `{path}` of run {run}")))
}
