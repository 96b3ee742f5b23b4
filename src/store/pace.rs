//! How long a group of writes waits for more of them before it is committed.
//!
//! Who is answered calls again soon, but not at once. Where a sync is slow, the first to call again would have a commit
//! to itself while all others wait for it, and then for their own: groups of 1, 15, 1, 15, and two syncs for each
//! answer. So a group is joined by what comes while it is worked on, until it is as large as those lately, or nothing has
//! come for a short part of what a commit takes, and never for longer than that. One client alone is never waited for:
//! lately there was one.

use std::time::Duration;

/// The part of a commit's time that a group may wait for the next to join.
const PART: u32 = 10;

/// Not worth a wait: the kernel's timers are no finer than this.
const LEAST: Duration = Duration::from_micros(50);

/// What the last groups were like.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How many writes the last two had.
    sizes: [usize; 2],
    /// How long the last commit took.
    commit: Duration,
}

impl Pace {
    /// Returns how many writes a group that began `elapsed` ago is to have, and how long to wait for the next of them.
    pub(super) fn patience(&self, elapsed: Duration) -> (usize, Duration) {
        let patience = self.commit / PART;
        if patience < LEAST {
            return (1, Duration::ZERO);
        }
        (self.sizes[0].max(self.sizes[1]), patience.min(self.commit.saturating_sub(elapsed)))
    }

    /// Notes a commit: of how many writes, and how long it took.
    pub(super) fn committed(&mut self, writes: usize, took: Duration) {
        self.sizes = [writes, self.sizes[0]];
        self.commit = took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(sizes: &[usize], commit_ms: u64) -> (usize, Duration) {
        let mut pace = Pace::default();
        sizes.iter().for_each(|writes| pace.committed(*writes, Duration::from_millis(commit_ms)));
        pace.patience(Duration::ZERO)
    }

    #[test]
    fn one_alone_is_not_waited_for() {
        assert_eq!(after(&[1, 1], 5).0, 1);
        assert_eq!(after(&[16, 1, 1], 5).0, 1, "those who came earlier are forgotten after two groups");
    }

    #[test]
    fn the_larger_of_the_last_two_groups_is_waited_for_a_tenth_of_a_commit() {
        assert_eq!(after(&[1, 15], 5), (15, Duration::from_micros(500)));
        assert_eq!(after(&[15, 1], 5), (15, Duration::from_micros(500)));
    }

    #[test]
    fn nobody_waits_for_others_longer_than_a_commit_takes() {
        let mut pace = Pace::default();
        pace.committed(16, Duration::from_millis(5));
        for (elapsed_us, left_us) in [(0, 500), (4_500, 500), (4_900, 100), (5_000, 0), (9_000, 0)] {
            let (_, patience) = pace.patience(Duration::from_micros(elapsed_us));
            assert_eq!(patience, Duration::from_micros(left_us), "{elapsed_us}");
        }
    }

    #[test]
    fn a_fast_disk_is_not_waited_for() {
        assert_eq!(after(&[16, 16], 0), (1, Duration::ZERO));
    }
}
