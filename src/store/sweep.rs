//! The sweep: goes through the queue in order and promotes what fits.
//!
//! The outcome is that of the plain procedure: for each queued run by (priority, arrival), promote it if it fits the
//! nodes that are still available, else leave it and look at the next (I6, I7). The cost is not: within a sweep the
//! available nodes only grow fewer, so once a run of some *shape* does not fit, none of that shape will, and all of
//! them are passed over at once. And a shape is looked at only if what it needs is on offer at all (`queue`). A sweep
//! costs what can start plus, at most, the number of shapes that wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::begin::assign;
use super::live::Live;
use super::progress;
use super::queue::Place;
use super::runs;
use super::submit::shape;
use super::tx::Tx;
use super::{Error, lease};
use crate::domain::matching;
use crate::domain::run::RunState;
use crate::failpoint;

/// What to look at next: a shape, and its first run that was not looked at yet.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    place: Place,
    shape: i64,
    /// Whether its shape is known to have fitted in this sweep.
    was_tried: bool,
}

/// What became of one run.
#[derive(Debug)]
enum Promotion {
    Promoted,
    /// No fit: left silently.
    NoFit,
    /// It fits only with more nodes than one run may hold: another combination may fit later.
    TooWide,
    /// It is not QUEUED any more, or a lease's key was taken: undone.
    Overtaken,
}

/// Sweeps the queue once. Each promotion stands or falls alone, in a savepoint.
///
/// # Errors
/// Only what concerns the whole transaction; the failure of one run is logged, and the next is tried.
pub(super) fn sweep(tx: &Tx) -> Result<(), Error> {
    if tx.settings.lease_ttl_ms <= 0 {
        return Err(Error::Broken("lease.ttl_seconds is 0: no endless lease is granted by accident".into()));
    }
    let mut heads = {
        let fleet = tx.fleet()?;
        if fleet.available().is_empty() {
            return Ok(());
        }
        let queue = tx.queue()?;
        #[cfg(debug_assertions)]
        super::statements::unseen(|| queue.check(tx.conn))?;
        let candidates = queue.candidates(fleet.offered()).into_iter();
        BinaryHeap::from_iter(candidates.map(|(place, shape)| Reverse(Head { place, shape, was_tried: false })))
    };
    // Shapes whose run was left for its width: the next of them is tried once the available nodes have changed, and
    // only from the place where they did.
    let mut too_wide: Vec<i64> = Vec::new();
    while let Some(Reverse(head)) = heads.pop() {
        if tx.memory.stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Head { place, shape, was_tried } = head;
        if !was_tried && !fits(tx, shape)? {
            continue;
        }
        match promote(tx, place, shape) {
            Ok(Promotion::TooWide) => {
                too_wide.push(shape);
                continue;
            }
            // The matcher's refusal holds for the whole shape, and for the rest of the sweep.
            Ok(Promotion::NoFit) => continue,
            Ok(Promotion::Promoted) => {
                for shape in std::mem::take(&mut too_wide) {
                    heads.extend(next(tx, shape, place)?);
                }
                if tx.fleet()?.available().is_empty() {
                    return Ok(());
                }
            }
            Ok(Promotion::Overtaken) => {}
            Err(error) if error.is_of_the_group() => return Err(error),
            Err(error) => log::error!("cannot promote a run arrival={} cause={error}", place.arrival),
        }
        heads.extend(next(tx, shape, place)?);
    }
    Ok(())
}

/// Returns the first waiting run of `shape` behind `place`.
fn next(tx: &Tx, shape: i64, place: Place) -> Result<Option<Reverse<Head>>, Error> {
    let next = tx.queue()?.next(shape, place);
    Ok(next.map(|place| Reverse(Head { place, shape, was_tried: true })))
}

/// Says whether runs of `shape` fit the nodes that are available now.
fn fits(tx: &Tx, shape: i64) -> Result<bool, Error> {
    let Some(requirement) = tx.memory.queue.borrow().requirement(shape)? else { return Ok(false) };
    Ok(matching::fit(&requirement, tx.fleet()?.available()).is_some())
}

/// Moves the run at `place` from QUEUED to RUNNING with its leases, or leaves it as it was.
fn promote(tx: &Tx, place: Place, own: i64) -> Result<Promotion, Error> {
    let mut row = runs::at(tx, place.arrival)?;
    let run = &row.run_id.clone();
    let contract = tx.contract(run, &row.contract)?;
    if shape(&contract.requires) != own {
        // Somebody has changed the row: what becomes of it must say nothing about others.
        return Err(Error::Broken(format!("the shape of run {run} is not that of its contract")));
    }
    {
        let fleet = tx.fleet()?;
        let available = fleet.available();
        let Some(chosen) = matching::fit(&contract.requires, available) else { return Ok(Promotion::NoFit) };
        if matching::width(&chosen) > tx.settings.lease_max_per_run {
            tx.log(|| format!("run fits only with more nodes than lease.max_per_run run={run}"));
            return Ok(Promotion::TooWide);
        }
        row.assigned = assign(&contract.requires, &chosen, available);
    }
    let overtaken = std::cell::Cell::new(false);
    let limit = contract.limit_ms.unwrap_or(tx.settings.run_limit_ms);
    let outcome = tx.attempt(|| {
        let undo = || {
            overtaken.set(true);
            Err(Error::Broken("overtaken".into()))
        };
        if !runs::promote(tx, &row, limit)? {
            return undo();
        }
        failpoint!("promote.after_state");
        row.state = RunState::Running;
        let mut live = Live::fresh(row, Arc::clone(&contract));
        match progress::start(tx, &mut live)? {
            Ok(()) => Ok(()),
            Err(lease::Taken) => undo(),
        }
    });
    match outcome {
        Ok(()) => {
            tx.log(|| format!("run promoted run={run}"));
            Ok(Promotion::Promoted)
        }
        Err(_) if overtaken.get() => {
            log::warn!("a promotion was undone: someone else was first run={run}");
            tx.memory.forget();
            Ok(Promotion::Overtaken)
        }
        Err(error) => Err(error),
    }
}
