//! The states of a run, who moves it between them, and how it ended.

use std::fmt;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunState {
    /// Waits for nodes. Made by submission; left by promotion, cancel or a time-out. Holds nothing (I4).
    Queued,
    /// Has all nodes it requires (I3). Made by submission or promotion; left when it ends.
    Running,
    /// Every step is done, skipped, or failed and allowed to.
    Succeeded,
    /// A step failed, a limit passed, the lab failed, or no node could ever fit.
    Failed,
    /// Somebody ended it, or its holder went away while it waited.
    Cancelled,
}

/// What moves a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// Its nodes are free: a sweep grants them.
    Promote,
    /// Its last step ended well.
    Succeed,
    /// It ends badly.
    Fail,
    /// It is ended before its end.
    Cancel,
}

/// A move that no rule allows: a mistake of ours, never of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IllegalMove {
    /// The state it was found in.
    pub from: String,
    /// What was to happen.
    pub event: String,
}

impl fmt::Display for IllegalMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no move from {} by {}", self.from, self.event)
    }
}

impl RunState {
    /// Every state that is stored.
    pub const ALL: [Self; 5] = [Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];
    /// The states that nothing leaves.
    pub const TERMINAL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Returns the state after `event`.
    ///
    /// # Errors
    /// [`IllegalMove`] for every pair that is not listed here.
    pub fn next(self, event: RunEvent) -> Result<Self, IllegalMove> {
        match (self, event) {
            (Self::Queued, RunEvent::Promote) => Ok(Self::Running),
            (Self::Running, RunEvent::Succeed) => Ok(Self::Succeeded),
            (Self::Queued | Self::Running, RunEvent::Fail) => Ok(Self::Failed),
            (Self::Queued | Self::Running, RunEvent::Cancel) => Ok(Self::Cancelled),
            (from, event) => Err(IllegalMove { from: from.to_string(), event: format!("{event:?}") }),
        }
    }

    /// Says whether the run has ended.
    pub fn is_terminal(self) -> bool {
        Self::TERMINAL.contains(&self)
    }

    /// Returns the word on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What ended a run, so that a script can tell a failed test from a failing lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// All went well.
    Succeeded,
    /// A step failed that was not allowed to.
    StepFailed,
    /// `limit_seconds` passed.
    TimeLimit,
    /// `queue_timeout_seconds` passed.
    QueueTimeout,
    /// No node could ever fit.
    Rejected,
    /// Somebody cancelled it.
    Cancelled,
    /// A lease ran out, or an agent gave its work up.
    NodeLost,
    /// A node came back as another instance in the middle of a step.
    AgentRestarted,
    /// A node was drained at the next step boundary.
    Drained,
    /// The submitter who was to hold the nodes was not heard of any more.
    HolderGone,
    /// It was under way in a backup that was restored.
    Restored,
}

impl VerdictKind {
    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::StepFailed => "step-failed",
            Self::TimeLimit => "time-limit",
            Self::QueueTimeout => "queue-timeout",
            Self::Rejected => "rejected",
            Self::Cancelled => "cancelled",
            Self::NodeLost => "node-lost",
            Self::AgentRestarted => "agent-restarted",
            Self::Drained => "drained",
            Self::HolderGone => "holder-gone",
            Self::Restored => "restored",
        }
    }

    /// Returns how a run in state `from` ends with this verdict.
    pub fn event(self, from: RunState) -> RunEvent {
        match self {
            Self::Succeeded => RunEvent::Succeed,
            Self::Cancelled | Self::Drained => RunEvent::Cancel,
            Self::HolderGone if from == RunState::Queued => RunEvent::Cancel,
            _ => RunEvent::Fail,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What ended it.
    pub kind: VerdictKind,
    /// A sentence for people.
    pub detail: String,
    /// The step's id, when one ended it.
    pub step: Option<String>,
    /// The node's id, when one ended it.
    pub node: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_state_and_event_is_as_listed() {
        use RunEvent::{Cancel, Fail, Promote, Succeed};
        use RunState::{Cancelled, Failed, Queued, Running, Succeeded};
        let legal = [
            (Queued, Promote, Running),
            (Queued, Fail, Failed),
            (Queued, Cancel, Cancelled),
            (Running, Succeed, Succeeded),
            (Running, Fail, Failed),
            (Running, Cancel, Cancelled),
        ];
        for from in RunState::ALL {
            for event in [Promote, Succeed, Fail, Cancel] {
                let expected = legal.iter().find(|(a, b, _)| (*a, *b) == (from, event)).map(|(_, _, to)| *to);
                assert_eq!(from.next(event).ok(), expected, "{from} by {event:?}");
                assert!(!from.is_terminal() || expected.is_none());
            }
            assert_eq!(RunState::parse(from.as_str()), Some(from));
        }
    }
}
