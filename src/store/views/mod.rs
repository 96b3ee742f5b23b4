//! Read-only questions: runs, nodes, questions to people. What is answered is the shape on the wire: absent values are
//! null or empty, never missing; times are RFC 3339.

mod artifacts;
mod asks;
mod attempts;
mod events;
mod nodes;
mod runs;
mod why;

pub use artifacts::{ArtifactView, artifact, artifacts};
pub use asks::{AskView, asks};
pub use attempts::{Attempt, attempt, check_holder};
pub use events::{EventView, event_range, events};
pub use nodes::{
    CapabilityView, DrainView, HolderView, LeaseView, NodeStory, NodeView, capabilities, node, node_story, nodes,
};
pub use runs::{QueueView, RunFilter, RunView, StepView, queued, run, runs, state};
pub use why::{RoleView, WhyNodeView, WhyView, why};

use crate::clock::{Ms, rfc3339};

/// When a question is asked: the time on the scale, and what is added to times that are shown.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The time on the daemon's scale.
    pub now: Ms,
    /// See [`crate::clock::Clock::offset`].
    pub offset: i64,
}

impl At {
    /// Reads a clock.
    pub fn of(clock: &crate::clock::Clock) -> Self {
        Self { now: clock.now(), offset: clock.offset() }
    }

    fn show(self, at: Ms) -> String {
        rfc3339(at, self.offset)
    }

    fn show_deadline(self, at: Ms) -> Option<String> {
        (at < super::NEVER).then(|| rfc3339(at, self.offset))
    }
}

impl super::Tx<'_> {
    /// Returns when this write takes place, for a view of what it did.
    pub fn at(&self) -> At {
        At { now: self.now, offset: self.offset }
    }

    /// Returns the connection, for a view of what this write did.
    pub fn rows(&self) -> &rusqlite::Connection {
        self.conn
    }
}

/// A page of a list: at most `limit` items behind `cursor`.
#[derive(Clone, Debug)]
pub struct Page {
    /// From 1 to 500.
    pub limit: usize,
    /// What an earlier page gave as `next`.
    pub cursor: Option<String>,
}

/// Cuts a list that was read one longer than the page; returns the cursor of the next page, if there is one.
pub(super) fn cut<T>(list: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Option<String> {
    if list.len() <= limit {
        return None;
    }
    list.truncate(limit);
    list.last().map(cursor)
}
