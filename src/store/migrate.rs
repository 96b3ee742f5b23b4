//! The schema and its versions. A folder of an earlier version is brought up, one of a later version refused.

use std::path::Path;

use rusqlite::Connection;

use super::Error;
use crate::failpoint;

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
/// [`Error::Unusable`]: the file is another program's, or of a later version; or the database's.
pub(super) fn migrate(conn: &Connection, path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let pragma = |conn: &Connection, name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = pragma(conn, "user_version")?;
    let application = pragma(conn, "application_id")?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if version == 0 && tables == 0 {
        let script = format!(
            "BEGIN IMMEDIATE; {SCHEMA}; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT"
        );
        failpoint!("migrate.before");
        conn.execute_batch(&script)?;
        failpoint!("migrate.after");
        return Ok(());
    }
    if application != APPLICATION {
        return Err(Error::Unusable("it is not a database of mediator".into()));
    }
    if version > VERSION {
        let what = format!("it was written by a later mediator (schema {version}, this one knows {VERSION})");
        return Err(Error::Unusable(what));
    }
    for from in version..VERSION {
        let script = usize::try_from(from - 1).ok().and_then(|at| MIGRATIONS.get(at));
        let script = script.ok_or_else(|| Error::Unusable(format!("its schema {from} is unknown")))?;
        log::info!("migrating path={shown} from={from} to={}", from + 1);
        let script = format!("BEGIN IMMEDIATE; {script}; PRAGMA user_version = {}; COMMIT", from + 1);
        failpoint!("migrate.before");
        conn.execute_batch(&script)?;
        failpoint!("migrate.after");
    }
    Ok(())
}
