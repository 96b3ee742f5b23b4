//! Connections: the one that writes, and the pool that only reads. Every setting is read back, because SQLite ignores
//! a pragma that it does not know or cannot honour.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use crate::clock;
use crate::config::Synchronous;

/// How long a statement waits for somebody else's lock.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5000);

/// How long one read may take: a reader that stays keeps the WAL from shrinking.
const READ_LIMIT_MS: i64 = 5000;

/// WAL before 3.51.3 could lose pages when two connections checkpointed at once.
const OLDEST_SQLITE: i32 = 3_051_003;

/// How many bytes the WAL had after the last commit of the writer.
pub type WalBytes = Arc<AtomicU64>;

/// What comes before each page in the WAL.
const WAL_FRAME_HEADER_BYTES: u64 = 24;

/// The size of pages in databases that we make.
const PAGE_BYTES: u32 = 2048;

/// How much of the WAL's file is kept when it starts over.
const WAL_KEPT: i64 = 5 << 20;

/// Opens the writing connection; tells with each commit how long the WAL has become.
///
/// # Errors
/// A sentence that names the setting that could not be made.
pub fn open_writer(path: &Path, synchronous: Synchronous) -> Result<(Connection, WalBytes), String> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(format!("SQLite {} is too old: its WAL can lose pages", rusqlite::version()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let counted = WalBytes::default();
    let open = || -> rusqlite::Result<Connection> {
        let mut conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        // Of a new database only. A savepoint keeps a copy of each page that it changes, and a commit writes them whole, so
        // smaller ones spare time. Not smaller still: a row that spills over is read whole by each look for another.
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(
            None,
            "synchronous",
            match synchronous {
                Synchronous::Full => 2,
                Synchronous::Normal => 1,
            },
        )?;
        // Automatic checkpoints swallow errors: the writer checkpoints, and reads the result.
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        // A little above the size at which the writer checkpoints: in everyday use the file is written over in place,
        // which spares each sync the file's own records; one that a reader has made long is cut when it starts over.
        conn.pragma_update(None, "journal_size_limit", WAL_KEPT)?;
        let bytes = Arc::clone(&counted);
        let page: u32 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let frame = u64::from(page) + WAL_FRAME_HEADER_BYTES;
        conn.wal_hook(Some(move |_: &mut Wal, pages: std::ffi::c_int| {
            bytes.store(u64::from(pages.unsigned_abs()) * frame, Ordering::Relaxed);
            Ok(())
        }))?;
        // Statement journals in memory: a full or missing temporary folder, or no free descriptor, must not look like a
        // failure of the data disk.
        conn.pragma_update(None, "temp_store", 2)?;
        common(&mut conn)?;
        Ok(conn)
    };
    let conn = open().map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    let synchronous = if synchronous == Synchronous::Full { "2" } else { "1" };
    let own = [
        ("journal_mode", "wal"),
        ("synchronous", synchronous),
        ("wal_autocheckpoint", "0"),
        ("journal_size_limit", &WAL_KEPT.to_string()),
        ("temp_store", "2"),
    ];
    expect(&conn, &own)?;
    Ok((conn, counted))
}

fn common(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // A plan must not depend on what is bound: it would be made anew at each use, which takes longer than the use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(256);
    #[cfg(debug_assertions)]
    super::statements::watch(conn)?;
    Ok(())
}

/// Reads the settings back.
fn expect(conn: &Connection, own: &[(&str, &str)]) -> Result<(), String> {
    let common = [("foreign_keys", "1"), ("trusted_schema", "0"), ("cell_size_check", "1"), ("busy_timeout", "5000")];
    for (name, wanted) in own.iter().chain(&common) {
        let found = conn
            .pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
            .map_err(|error| format!("cannot read back {name}: {error}"))?;
        let found = match found {
            rusqlite::types::Value::Integer(number) => number.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => format!("{other:?}"),
        };
        if found != *wanted {
            return Err(format!("SQLite's {name} is {found} and must be {wanted}"));
        }
    }
    let switches = [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, "defensive mode"),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, "its mode of stable plans"),
    ];
    for (switch, name) in switches {
        match conn.db_config(switch) {
            Ok(true) => {}
            other => return Err(format!("SQLite is not in {name}: {other:?}")),
        }
    }
    let unsafe_build: bool = conn
        .query_row("SELECT count(*) FROM pragma_compile_options WHERE compile_options LIKE 'NO_SYNC%'", [], |r| {
            r.get(0)
        })
        .map_err(|error| format!("cannot read the compile options: {error}"))?;
    if unsafe_build { Err("this SQLite was built without syncs (NO_SYNC)".into()) } else { Ok(()) }
}

/// Makes the read-only connections of the pool.
#[derive(Debug)]
pub struct Readers {
    path: PathBuf,
}

impl Readers {
    /// Readers of the database at `path`, which the writer has opened before.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

/// Why a reader could not be made.
#[derive(Debug)]
pub struct ReaderError(String);

impl std::fmt::Display for ReaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReaderError {}

impl r2d2::ManageConnection for Readers {
    type Connection = Connection;
    type Error = ReaderError;

    fn connect(&self) -> Result<Connection, ReaderError> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let open = || -> rusqlite::Result<Connection> {
            let mut conn = Connection::open_with_flags(&self.path, flags)?;
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.pragma_update(None, "query_only", true)?;
            common(&mut conn)?;
            Ok(conn)
        };
        let conn = open().map_err(|error| ReaderError(error.to_string()))?;
        expect(&conn, &[("journal_mode", "wal"), ("query_only", "1")]).map_err(ReaderError)?;
        Ok(conn)
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), ReaderError> {
        Ok(())
    }

    fn has_broken(&self, conn: &mut Connection) -> bool {
        // A connection that comes back inside a transaction would pin its snapshot.
        !conn.is_autocommit()
    }
}

/// Runs `read` in one snapshot, for at most [`READ_LIMIT_MS`].
pub(super) fn read<T>(
    conn: &mut Connection,
    read: impl FnOnce(&Connection) -> Result<T, super::Error>,
) -> Result<T, super::Error> {
    let end = clock::boottime_ms() + READ_LIMIT_MS;
    conn.progress_handler(10_000, Some(move || clock::boottime_ms() > end))?;
    conn.execute_batch("BEGIN")?;
    let outcome = read(conn);
    // A snapshot that was only read ends the same way whatever came of it.
    let ended = conn.execute_batch("ROLLBACK");
    conn.progress_handler(0, None::<fn() -> bool>)?;
    ended?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SQLite says nothing to a pragma that it does not know or cannot honour: what is read back counts.
    #[test]
    fn a_setting_that_was_not_made_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let (conn, _) = open_writer(&folder.path().join("db"), Synchronous::Full).unwrap();
        assert_eq!(expect(&conn, &[("synchronous", "2")]), Ok(()));
        for (pragma, value, wanted) in [
            ("synchronous", 1, "SQLite's synchronous is 1 and must be 2"),
            ("foreign_keys", 0, "SQLite's foreign_keys is 0 and must be 1"),
            ("trusted_schema", 1, "SQLite's trusted_schema is 1 and must be 0"),
            ("busy_timeout", 1, "SQLite's busy_timeout is 1 and must be 5000"),
        ] {
            let (conn, _) = open_writer(&folder.path().join("db"), Synchronous::Full).unwrap();
            conn.pragma_update(None, pragma, value).unwrap();
            assert_eq!(expect(&conn, &[("synchronous", "2")]), Err(wanted.to_owned()));
        }
        conn.pragma_update(None, "synchronoos", 2).unwrap();
        assert!(expect(&conn, &[("synchronoos", "2")]).is_err(), "SQLite takes it in silence");
    }
}
