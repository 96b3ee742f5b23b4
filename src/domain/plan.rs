//! What of a running run may begin now, what is skipped, what is rolled back, and what is given back.
//!
//! All of it follows from the contract and the states of the steps; nothing here is stored.

use std::collections::BTreeSet;

use super::contract::{Contract, Kind, Loop};
use super::step::StepState;

/// What the plan needs to know of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its state.
    pub state: StepState,
    /// Of an acquisition that is decided: whether the node was had.
    pub had: Option<bool>,
}

/// Returns the steps that are to be skipped now, in order: the way an acquisition did not take, and what needs only
/// skipped steps.
pub fn to_skip(contract: &Contract, steps: &[Progress]) -> Vec<usize> {
    let mut skipped: Vec<bool> = steps.iter().map(|step| step.state == StepState::Skipped).collect();
    for (own, progress) in contract.steps.iter().zip(steps) {
        if let (Kind::Acquire(acquire), Some(had)) = (&own.kind, progress.had) {
            let not_taken = if had { acquire.unavailable } else { acquire.acquired };
            skipped[not_taken] = true;
        }
    }
    let mut found = Vec::new();
    // Needs point backwards, so one pass in order carries the skip as far as it goes.
    for (at, own) in contract.steps.iter().enumerate() {
        skipped[at] |= !own.needs.is_empty() && own.needs.iter().all(|&need| skipped[need]);
        if skipped[at] && steps[at].state == StepState::Pending {
            found.push(at);
        }
    }
    found
}

/// Returns the steps that may begin now, in order; [`to_skip`] must have nothing left to say.
pub fn ready(contract: &Contract, steps: &[Progress]) -> Vec<usize> {
    (0..steps.len())
        .filter(|&at| steps[at].state == StepState::Pending)
        .filter(|&at| contract.steps[at].needs.iter().all(|&need| steps[need].state.is_over()))
        .collect()
}

/// Says whether every step has ended, each in a way that the run can succeed with.
pub fn is_finished(steps: &[Progress]) -> bool {
    steps.iter().all(|step| step.state.is_over())
}

/// Returns the steps that a loop's rollback sets back to PENDING: its range, without acquisitions and what they
/// skipped. `None` when the attempts are used up.
pub fn rolled_back(contract: &Contract, steps: &[Progress], failed: usize, attempt: i64) -> Option<Vec<usize>> {
    let Loop { back_to, max } = contract.steps[failed].again.as_ref()?;
    let range = *back_to..=failed;
    (attempt < *max).then(|| {
        range
            .filter(|&at| !matches!(contract.steps[at].kind, Kind::Acquire(_)))
            .filter(|&at| steps[at].state != StepState::Skipped)
            .collect()
    })
}

/// Returns which of the slots `(role, index)` that a run was given are still its own: not named by the `release` of a
/// step that is done, or failed and allowed to.
pub fn kept<'a>(
    contract: &Contract,
    steps: &[Progress],
    slots: impl IntoIterator<Item = (&'a str, usize)>,
) -> BTreeSet<(&'a str, usize)> {
    let given_back: Vec<_> = contract
        .steps
        .iter()
        .zip(steps)
        .filter(|(_, progress)| matches!(progress.state, StepState::Done | StepState::Failed))
        .flat_map(|(own, _)| &own.release)
        .collect();
    slots.into_iter().filter(|(role, index)| !given_back.iter().any(|named| named.covers(role, *index))).collect()
}
