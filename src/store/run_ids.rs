//! The ids that runs are given when their contract names none.

use std::cell::Cell;

use crate::clock::Ms;
use crate::domain::ids::RunId;
use crate::random;

/// Makes the ids of runs: `r-` and 12 characters, short enough to type, in the order in which they are made.
///
/// In front is the time: rows that come together then lie together, and a group of submissions changes a few pages of
/// each index instead of one for every run (a third of what a submission costs). Behind it is what keeps ids apart, in
/// steps that nobody can guess, so that a mistyped id is most likely nobody's.
#[derive(Debug, Default)]
pub(super) struct RunIds {
    last: Cell<u64>,
}

impl RunIds {
    /// The last 25 of 60 bits are steps, of at most 1,024: room for ten thousands of runs in each quarter of a second.
    const STEP_BITS: u32 = 25;

    pub(super) fn next(&self, now: Ms) -> RunId {
        let random = u64::from(u32::from_le_bytes(random::bytes()));
        // A first step from the lower half, so that there is room behind it.
        let by_time = (now.unsigned_abs() >> 8) << Self::STEP_BITS | random >> (33 - Self::STEP_BITS);
        let id = by_time.max(self.last.get() + 1 + random % 1024);
        self.last.set(id);
        let characters = (0..12).rev().map(|at| char::from(random::ALPHABET[(id >> (5 * at) & 31) as usize]));
        RunId::from_stored(format!("r-{}", characters.collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_runs_are_in_order_and_never_the_same() {
        let ids = RunIds::default();
        let made: Vec<String> =
            (0..50_000).map(|at| ids.next(1_800_000_000_000 + at / 100).as_str().to_owned()).collect();
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(made.iter().all(|id| id.len() == 14));
        assert!(ids.next(1_900_000_000_000).as_str() > made.last().expect("some").as_str());
    }
}
