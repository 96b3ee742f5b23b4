//! The states of a step.

use std::fmt;

use super::run::IllegalMove;

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepState {
    /// Not begun; its run waits, or its needs are not done, or nobody has claimed it yet.
    Pending,
    /// In the hands of one life of a node (I11), or, a hold, of the run's principal.
    Claimed,
    /// A question that people can see and answer.
    Asked,
    /// Ended well; an acquisition also when the node was not had.
    Done,
    /// Ended badly. Its run has ended too, unless the step was allowed to fail.
    Failed,
    /// On the way that was not taken.
    Skipped,
    /// Not finished when its run ended.
    Cancelled,
}

/// What moves a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// A node takes it, or a hold is opened.
    Claim,
    /// Its question is raised.
    Ask,
    /// An acquisition is decided, either way.
    Acquire,
    /// It ends well.
    Finish,
    /// It ends badly.
    Fail,
    /// Its way is not taken.
    Skip,
    /// Its run ended.
    Cancel,
    /// A loop goes back over it.
    RollBack,
}

impl StepState {
    /// Every state that is stored.
    pub const ALL: [Self; 7] =
        [Self::Pending, Self::Claimed, Self::Asked, Self::Done, Self::Failed, Self::Skipped, Self::Cancelled];

    /// Returns the state after `event`.
    ///
    /// # Errors
    /// [`IllegalMove`] for every pair that is not listed here.
    pub fn next(self, event: StepEvent) -> Result<Self, IllegalMove> {
        match (self, event) {
            (Self::Pending, StepEvent::Claim) => Ok(Self::Claimed),
            (Self::Pending, StepEvent::Ask) => Ok(Self::Asked),
            (Self::Pending, StepEvent::Acquire) => Ok(Self::Done),
            (Self::Pending, StepEvent::Skip) => Ok(Self::Skipped),
            (Self::Claimed | Self::Asked, StepEvent::Finish) => Ok(Self::Done),
            (Self::Claimed | Self::Asked, StepEvent::Fail) => Ok(Self::Failed),
            (Self::Pending | Self::Claimed | Self::Asked, StepEvent::Cancel) => Ok(Self::Cancelled),
            (Self::Claimed | Self::Asked | Self::Done | Self::Failed, StepEvent::RollBack) => Ok(Self::Pending),
            (from, event) => Err(IllegalMove { from: from.as_str().to_owned(), event: format!("{event:?}") }),
        }
    }

    /// Says whether steps that need this one may go on. A failure counts: it was allowed, or the run has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped)
    }

    /// Says whether somebody has it in hand.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Claimed | Self::Asked)
    }

    /// Returns the word on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Claimed => "CLAIMED",
            Self::Asked => "ASKED",
            Self::Done => "DONE",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl fmt::Display for StepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_state_and_event_is_as_listed() {
        use StepEvent::{Acquire, Ask, Cancel, Claim, Fail, Finish, RollBack, Skip};
        use StepState::{Asked, Cancelled, Claimed, Done, Failed, Pending, Skipped};
        let legal = [
            (Pending, Claim, Claimed),
            (Pending, Ask, Asked),
            (Pending, Acquire, Done),
            (Pending, Skip, Skipped),
            (Pending, Cancel, Cancelled),
            (Claimed, Finish, Done),
            (Claimed, Fail, Failed),
            (Claimed, Cancel, Cancelled),
            (Claimed, RollBack, Pending),
            (Asked, Finish, Done),
            (Asked, Fail, Failed),
            (Asked, Cancel, Cancelled),
            (Asked, RollBack, Pending),
            (Done, RollBack, Pending),
            (Failed, RollBack, Pending),
        ];
        for from in StepState::ALL {
            for event in [Claim, Ask, Acquire, Finish, Fail, Skip, Cancel, RollBack] {
                let expected = legal.iter().find(|(a, b, _)| (*a, *b) == (from, event)).map(|(_, _, to)| *to);
                assert_eq!(from.next(event).ok(), expected, "{from} by {event:?}");
            }
            assert_eq!(StepState::parse(from.as_str()), Some(from));
        }
    }
}
