//! Checkpoints: the writer's own, whose results it reads, and the one that a failing disk asks for.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::Error;
use crate::failpoint;

/// After a failed sync or another error of the disk: empties the WAL on this very connection, then ends the process.
///
/// The pages of a failed sync may be lost while the page cache still shows them. Ending at once would make the next
/// start recover frames that were never on the disk. A checkpoint that succeeds has copied and synced what the WAL
/// held; after it there is nothing left to recover wrongly.
pub(super) fn empty_wal(conn: &Connection, error: &Error, mut meanwhile: impl FnMut()) -> ! {
    log::error!("the disk failed: emptying the WAL before ending cause={error}");
    loop {
        if !conn.is_autocommit()
            && let Err(cause) = conn.execute_batch("ROLLBACK")
        {
            log::error!("cannot roll back cause={cause}");
        }
        match checkpoint(conn, "TRUNCATE") {
            Ok((0, _, _)) => break,
            Ok(_) => log::warn!("readers keep the WAL from being emptied"),
            Err(cause) => log::error!("cannot empty the WAL cause={cause}"),
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(200));
    }
    log::error!("the WAL is empty: ending, to start from what the disk has");
    std::process::exit(74)
}

/// Returns (busy, pages in the WAL, pages copied).
pub(super) fn checkpoint(conn: &Connection, mode: &str) -> rusqlite::Result<(i64, i64, i64)> {
    // Readers are not waited for: the writer has better things to do, and tries again.
    conn.busy_timeout(Duration::from_millis(20))?;
    let read = |row: &rusqlite::Row| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    failpoint!("checkpoint.before");
    let result = conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], read);
    failpoint!("checkpoint.after");
    conn.busy_timeout(Duration::from_millis(5000))?;
    match result {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok((1, 0, 0)),
        other => other,
    }
}
