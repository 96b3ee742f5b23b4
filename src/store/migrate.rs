//! The schema and its versions. A folder of an earlier version is brought up, one of a later version refused.

use std::path::Path;

use rusqlite::Connection;

/// The schema of this version, as a new folder gets it.
const SCHEMA: &str = include_str!("../../schema.sql");

/// `user_version` of this version's schema. A change of schema.sql adds 1 and a script to [`MIGRATIONS`].
const VERSION: i64 = 1;

/// `application_id`: says that a file is mediator's. ASCII "mdtr".
const APPLICATION: i64 = 0x6d64_7472;

/// What brings a folder from version n + 1 to n + 2, in order; each runs in one transaction with its version number.
const MIGRATIONS: &[&str] = &[];

/// Makes or brings up the schema.
///
/// # Errors
/// A sentence for people: the file is another program's, of a later version, or cannot be changed.
pub(super) fn migrate(conn: &mut Connection, path: &Path) -> Result<(), String> {
    let shown = path.display();
    let failed = |error: rusqlite::Error| format!("cannot prepare {shown}: {error}");
    let pragma = |conn: &Connection, name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = pragma(conn, "user_version").map_err(failed)?;
    let application = pragma(conn, "application_id").map_err(failed)?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if version == 0 && tables == 0 {
        let script = format!(
            "BEGIN IMMEDIATE; {SCHEMA}; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT"
        );
        return conn.execute_batch(&script).map_err(failed);
    }
    if application != APPLICATION {
        return Err(format!("{shown} is not a database of mediator"));
    }
    if version > VERSION {
        return Err(format!("{shown} was written by a later mediator (schema {version}, this one knows {VERSION})"));
    }
    for from in version..VERSION {
        let script = usize::try_from(from - 1).ok().and_then(|at| MIGRATIONS.get(at));
        let script = script.ok_or_else(|| format!("{shown} has the unknown schema {from}"))?;
        log::info!("migrating from={from} to={}", from + 1);
        let script = format!("BEGIN IMMEDIATE; {script}; PRAGMA user_version = {}; COMMIT", from + 1);
        conn.execute_batch(&script).map_err(failed)?;
    }
    Ok(())
}
