//! What can go wrong with a write or a read.

use std::fmt;

use serde_json::{Map, Value};

/// Why a write did not happen, or a read has no answer. Cloned to everyone in a group that failed as one.
#[derive(Clone, Debug)]
pub enum Error {
    /// The request is understood and refused: nothing was changed.
    Refused(Refusal),
    /// The disk is full: the group was rolled back, the next may fit.
    Full,
    /// Somebody else holds the database: the group was rolled back, the next may get through.
    Busy,
    /// A sync or another call of the disk failed. Whether the change survives is unknown until the daemon is
    /// started again, which it does by itself.
    Disk(String),
    /// The process has no descriptor left: nothing was changed, and nothing is lost.
    Short(String),
    /// The database cannot be used as it is: read-only, not a database, damaged.
    Unusable(String),
    /// The daemon is stopping, or another has taken the folder over.
    Stopping,
    /// A stored row breaks an invariant, or SQLite refuses a statement of ours.
    Broken(String),
    /// Not an error to anyone outside: an earlier write of the group freed something, so the queue comes before
    /// this one. The writer ends the group and runs the write again (I6, I7).
    WakeFirst,
}

/// A refusal that the client can act on.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The stable code; the HTTP layer knows its status.
    pub code: &'static str,
    /// The sentence for people.
    pub detail: String,
    /// The field that is wrong, as a JSON pointer.
    pub path: Option<String>,
    /// What else the answer carries, e.g. `run_id`.
    pub more: Map<String, Value>,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), path: None, more: Map::new() }
    }

    /// Adds a member to the answer.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Says which field is wrong.
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }
}

impl Error {
    /// Says whether the error concerns all writes of a transaction, not the one that met it.
    pub(super) fn is_of_the_group(&self) -> bool {
        matches!(self, Self::Full | Self::Busy | Self::Disk(_) | Self::Unusable(_))
    }
}

/// Makes the refusal for something that does not exist.
pub fn not_found(what: impl fmt::Display) -> Error {
    Error::Refused(Refusal::new("not-found", format!("there is no {what}")))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "{} ({})", refusal.detail, refusal.code),
            Self::Full => f.write_str("the disk is full"),
            Self::Busy => f.write_str("the database is locked by another program"),
            Self::Disk(what) => write!(f, "the disk failed: {what}"),
            Self::Short(what) => write!(f, "too many files and connections are open: {what}"),
            Self::Unusable(what) => write!(f, "the database cannot be used: {what}"),
            Self::Stopping => f.write_str("the daemon is stopping"),
            Self::Broken(what) => write!(f, "the database is not as it should be: {what}"),
            Self::WakeFirst => f.write_str("the queue comes first"),
        }
    }
}

impl std::error::Error for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            // A read that is interrupted has taken too long: another time may be better.
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::OperationInterrupted) => Self::Busy,
            Some(ErrorCode::SystemIoFailure) => Self::Disk(error.to_string()),
            Some(
                ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::NotADatabase
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::PermissionDenied,
            ) => Self::Unusable(error.to_string()),
            _ => Self::Broken(error.to_string()),
        }
    }
}

impl From<crate::domain::run::IllegalMove> for Error {
    fn from(illegal: crate::domain::run::IllegalMove) -> Self {
        Self::Broken(illegal.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Broken(format!("stored JSON: {error}"))
    }
}

/// Says whether `error` is the violation of a primary key or a unique index.
pub(super) fn is_collision(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(rusqlite::ffi::SQLITE_CONSTRAINT_PRIMARYKEY | rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE))
}
