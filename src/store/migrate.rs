//! The schema and its versions. A folder of an earlier version is brought up, one of a later version refused.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::Error;
use crate::failpoint;

/// The schema of this version, as a new folder gets it.
const SCHEMA: &str = include_str!("../../schema.sql");

/// `user_version` of this version's schema. A change of schema.sql adds 1, a script to [`MIGRATIONS`], and the schema as
/// it was to `tests/schemas`, from where a test migrates it.
const VERSION: i64 = 5;

/// `application_id`: says that a file is mediator's. ASCII "mdtr".
const APPLICATION: i64 = 0x6d64_7472;

/// What brings a folder from version n + 1 to n + 2, in order; each runs in one transaction with its version number.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/2.sql"),
    include_str!("migrations/3.sql"),
    include_str!("migrations/4.sql"),
    include_str!("migrations/5.sql"),
];

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
    if version < VERSION {
        copy(conn, path, version)?;
    }
    for from in version..VERSION {
        let script = usize::try_from(from - 1).ok().and_then(|at| MIGRATIONS.get(at));
        let script = script.ok_or_else(|| Error::Unusable(format!("its schema {from} is unknown")))?;
        log::info!("migrating path={shown} from={from} to={}", from + 1);
        failpoint!("migrate.before");
        rewrite(conn, &format!("{script}; PRAGMA user_version = {}", from + 1))?;
        failpoint!("migrate.after");
    }
    Ok(())
}

/// Runs a migration in one transaction. It may write over the definition of a table (defensive mode is off meanwhile),
/// which this connection then reads again, as every other does by the schema's own number.
fn rewrite(conn: &Connection, script: &str) -> Result<(), Error> {
    let next: i64 = conn.query_row("SELECT schema_version + 1 FROM pragma_schema_version", [], |row| row.get(0))?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
    let outcome = conn.execute_batch(&format!(
        "PRAGMA writable_schema = ON; BEGIN IMMEDIATE; {script}; PRAGMA schema_version = {next}; COMMIT"
    ));
    // Also reads the schema again.
    conn.execute_batch("PRAGMA writable_schema = RESET")?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    Ok(outcome?)
}

/// Keeps the database as it was before its first migration from `version`, beside it, whole or not at all. Without room
/// for that there is no migration.
fn copy(conn: &Connection, path: &Path, version: i64) -> Result<(), Error> {
    let place = path.with_extension(format!("schema-{version}.db"));
    if place.exists() {
        // A migration that was killed has made it: what it holds is the older, and the whole.
        return Ok(());
    }
    let temporary = path.with_extension("copy-new");
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        let place = place.display();
        Error::Unusable(format!("it is of an earlier version, and cannot be copied to {place} first: {what}: {error}"))
    };
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("removing a leftover", &error));
        }
        _ => {}
    }
    let target = temporary.to_str().ok_or_else(|| failed("its path", &"is not UTF-8"))?;
    // Made here for its mode; SQLite takes an empty file.
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(&temporary);
    made.map_err(|error| failed("making it", &error))?;
    conn.execute("VACUUM INTO ?1", [target]).map_err(|error| failed("copying", &error))?;
    let kept = File::open(&temporary).and_then(|file| file.sync_all()).and_then(|()| {
        failpoint!("migrate.after_copy");
        std::fs::rename(&temporary, &place)?;
        File::open(path.parent().unwrap_or_else(|| Path::new(".")))?.sync_all()
    });
    kept.map_err(|error| failed("keeping the copy", &error))?;
    log::info!("copied before a migration path={}", place.display());
    Ok(())
}
