//! What SQLite alone can do here, set as the daemon sets it: no HTTP, no other thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tempfile::TempDir;

/// A database with one table, in WAL with `synchronous=FULL`.
pub struct Bare {
    conn: Connection,
    _folder: TempDir,
}

/// Opens the table that bare rows go to.
pub fn open(folder: &Path, synchronous: &str) -> Connection {
    let conn = Connection::open(folder.join("bare.db")).expect("a database");
    conn.execute_batch(&format!(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 5242880; PRAGMA temp_store = 2;
         CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;"
    ))
    .expect("SQL");
    conn.set_prepared_statement_cache_capacity(64);
    conn
}

/// Inserts one small row.
pub fn insert(conn: &Connection, body: &[u8]) {
    conn.prepare_cached("INSERT INTO rows (body) VALUES (?1)").expect("SQL").execute([body]).expect("a row");
}

pub fn run(conn: &Connection, sql: &str) {
    conn.prepare_cached(sql).expect("SQL").execute([]).expect("a statement");
}

/// Checkpoints as the daemon does: from 4 MiB on.
pub fn checkpoint(conn: &Connection, pages: &AtomicI32) {
    if pages.load(Ordering::Relaxed) >= 1024 {
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).expect("a checkpoint");
        pages.store(0, Ordering::Relaxed);
    }
}

/// Has the pages in the WAL counted.
pub fn count_pages(conn: &mut Connection) -> Arc<AtomicI32> {
    let pages = Arc::new(AtomicI32::new(0));
    let counted = Arc::clone(&pages);
    conn.wal_hook(Some(move |_: &mut Wal, now| {
        counted.store(now, Ordering::Relaxed);
        Ok(())
    }))
    .expect("a hook");
    pages
}

impl Bare {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { conn: open(folder.path(), "full"), _folder: folder }
    }

    /// The time of two commits of one row each.
    pub fn two_commits(&self) -> Duration {
        let began = Instant::now();
        for _ in 0..2 {
            run(&self.conn, "BEGIN IMMEDIATE");
            insert(&self.conn, &[7; 64]);
            run(&self.conn, "COMMIT");
        }
        began.elapsed()
    }

    /// The time of one commit of `groups` savepoints with `rows` rows each.
    pub fn grouped(&self, groups: usize, rows: usize) -> Duration {
        let began = Instant::now();
        run(&self.conn, "BEGIN IMMEDIATE");
        for _ in 0..groups {
            run(&self.conn, "SAVEPOINT part");
            (0..rows).for_each(|_| insert(&self.conn, &[7; 64]));
            run(&self.conn, "RELEASE part");
        }
        run(&self.conn, "COMMIT");
        began.elapsed()
    }
}
