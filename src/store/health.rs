//! What the writer last met, and whether a change would be kept right now.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Error, Store};

/// How long the writer may take before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(2);

/// What must be free again after the disk was full: a page fits long before the largest contract does, which is written to
/// the WAL and then to the database.
const ROOM_BYTES: u64 = 1 << 20;

/// Kept beside the writer, since it cannot be asked while it empties its WAL.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// A write found the disk full, and none has fitted since that was tried.
    full: AtomicBool,
    /// The disk failed: the writer empties its WAL, and then ends the process.
    failed: AtomicBool,
}

impl Health {
    /// Takes note of why a transaction failed.
    pub(super) fn note(&self, error: &Error) {
        match error {
            Error::Full => self.full.store(true, Ordering::Relaxed),
            Error::Disk(_) => self.failed.store(true, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Store {
    /// Asks whether a change would be kept right now; if not, says why, for people.
    ///
    /// The write that finds out changes nothing, and so costs nothing. Only after the disk was full, and when there seems to
    /// be room again, does it write a page.
    ///
    /// # Errors
    /// The reason.
    pub async fn is_ready(&self) -> Result<(), String> {
        let was_full = self.0.health.full.load(Ordering::Relaxed);
        if was_full && self.folder().room().is_ok_and(|(_, free)| free < ROOM_BYTES) {
            return Err(reason(&Error::Full));
        }
        let probe = self.write(move |tx| {
            if was_full {
                tx.rows().execute("UPDATE boot SET clock_offset = clock_offset", [])?;
            }
            Ok(())
        });
        match tokio::time::timeout(PATIENCE, probe).await {
            Ok(Ok(())) if was_full => self.0.health.full.store(false, Ordering::Relaxed),
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(reason(&error)),
            Err(_) if self.has_failed() => return Err(reason(&Error::Disk(String::new()))),
            Err(_) => return Err(format!("the writer has not answered for {} s", PATIENCE.as_secs())),
        }
        self.read(|conn| Ok(conn.query_row("SELECT number FROM boot", [], |_| Ok(()))?)).await.map_err(|error| {
            match error {
                error @ (Error::Busy | Error::Short(_)) => reason(&error),
                _ => "the database cannot be read".to_owned(),
            }
        })
    }

    /// Says whether the writer still answers, in whatever way; waits until it does.
    pub async fn writer_answers(&self) {
        let _ = self.write(|_| Ok(())).await;
    }

    /// Says whether the disk has failed: then the process ends by itself, once its WAL is empty, and must not end before.
    pub fn has_failed(&self) -> bool {
        self.0.health.failed.load(Ordering::Relaxed)
    }
}

/// Without what only the log is to tell.
fn reason(error: &Error) -> String {
    match error {
        Error::Disk(_) => "the disk failed: the daemon empties its WAL, and then ends to be started again".to_owned(),
        Error::Full => "the disk is full".to_owned(),
        Error::Busy => "the database is in use by another program, or all readers are taken".to_owned(),
        Error::Short(_) => "too many files and connections are open".to_owned(),
        Error::Unusable(_) => "the database cannot be used".to_owned(),
        Error::Stopping => "the daemon is stopping".to_owned(),
        Error::Refused(_) | Error::Broken(_) | Error::WakeFirst => "a mistake of ours".to_owned(),
    }
}
