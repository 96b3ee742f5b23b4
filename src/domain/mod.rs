//! What mediator decides, as pure functions: no I/O, no clock, no threads, no SQL.
//!
//! Read in this order: `ids`, `json` and `field` (how bytes become checked values), `contract` (what a client asks
//! for), `matching` (which nodes serve it), `run` and `step` (states and their moves), `plan` (what of a run may
//! begin now), `variables` (what a step's command is told).

pub mod contract;
pub mod field;
pub mod ids;
pub mod json;
pub mod matching;
pub mod offer;
pub mod plan;
pub mod run;
pub mod step;
pub mod variables;
pub mod why;

use std::fmt;

/// A field that breaks the grammar: where, and what was expected there. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// JSON pointer (RFC 6901) to the field; empty for the body as a whole.
    pub path: String,
    /// What is wrong, in words, without the path.
    pub what: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.what) } else { write!(f, "{}: {}", self.path, self.what) }
    }
}

impl std::error::Error for Invalid {}
