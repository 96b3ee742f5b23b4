//! What a person wants to know of a daemon's health: how durable it is, what room there is, and whether the rows are
//! as they should be.

use serde::Serialize;

use super::{Error, Store, invariants};
use crate::config::Synchronous;

/// The findings.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorView {
    /// Whether nothing is wrong.
    pub healthy: bool,
    /// The version of the daemon.
    pub version: &'static str,
    /// How many times it was started on this folder.
    pub boot: i64,
    /// The mode in force: `full` or `normal`.
    pub synchronous: &'static str,
    /// SQLite's version.
    pub sqlite: &'static str,
    /// The data folder.
    pub data: String,
    /// The file system it is on.
    pub file_system: String,
    /// What is left there, in bytes.
    pub free_bytes: u64,
    /// The size of the database.
    pub database_bytes: u64,
    /// The size of its write-ahead log.
    pub wal_bytes: u64,
    /// Rows that break an invariant.
    pub broken: Vec<BrokenView>,
    /// What else a person should look at.
    pub warnings: Vec<String>,
}

/// A row that should not be.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenView {
    /// Which invariant, e.g. `I2`.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

/// Below this much free space a warning is given: a WAL, a few logs and a record must still fit.
const LITTLE_BYTES: u64 = 256 << 20;

impl Store {
    /// Examines the store, beside the writer.
    ///
    /// # Errors
    /// Only the database's, and the file system's.
    pub async fn doctor(&self) -> Result<DoctorView, Error> {
        let rows = self.read(|conn| {
            let boot: i64 = conn.query_row("SELECT number FROM boot", [], |row| row.get(0))?;
            let failed: i64 =
                conn.query_row("SELECT count(*) FROM outbox WHERE state = 'failed'", [], |row| row.get(0))?;
            let unsealed: i64 = conn.query_row(
                "SELECT count(*) FROM runs INDEXED BY runs_owed WHERE ended_at IS NOT NULL AND sealed_at IS NULL",
                [],
                |row| row.get(0),
            )?;
            Ok((boot, failed, unsealed, invariants::check(conn)?))
        });
        let (boot, failed, unsealed, broken) = rows.await?;
        let (file_system, free_bytes) =
            self.folder().room().map_err(|error| Error::Disk(format!("looking at the data folder: {error}")))?;
        let size = |suffix: &str| {
            let mut path = self.folder().database().into_os_string();
            path.push(suffix);
            std::fs::metadata(path).map_or(0, |meta| meta.len())
        };
        let mut warnings = Vec::new();
        if self.settings().synchronous == Synchronous::Normal {
            warnings.push("storage.synchronous is normal: a power cut may take back what was answered".to_owned());
        }
        if free_bytes < LITTLE_BYTES {
            warnings.push(format!("only {} MiB are free", free_bytes >> 20));
        }
        if failed > 0 {
            warnings.push(format!("{failed} notifications could not be delivered: `mediator outbox --state failed`"));
        }
        if unsealed > 100 {
            warnings.push(format!("{unsealed} ended runs wait for the seal of their record"));
        }
        let broken: Vec<BrokenView> =
            broken.into_iter().map(|found| BrokenView { invariant: found.invariant, what: found.what }).collect();
        Ok(DoctorView {
            healthy: broken.is_empty() && warnings.is_empty(),
            version: env!("CARGO_PKG_VERSION"),
            boot,
            synchronous: match self.settings().synchronous {
                Synchronous::Full => "full",
                Synchronous::Normal => "normal",
            },
            sqlite: rusqlite::version(),
            data: self.folder().path().display().to_string(),
            file_system,
            free_bytes,
            database_bytes: size(""),
            wal_bytes: size("-wal"),
            broken,
            warnings,
        })
    }
}
