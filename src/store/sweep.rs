//! The sweep: goes through the queue in order and promotes what fits.
//!
//! The outcome is that of the plain procedure: for each queued run by (priority, arrival), promote it if it fits the
//! nodes that are still available, else leave it and look at the next (I6, I7). The cost is not: within a sweep the
//! available nodes only grow fewer, so once a run of some *shape* does not fit, none of that shape will, and all of
//! them are passed over at once. A sweep costs what can start plus the number of shapes that wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::OptionalExtension as _;

use super::begin::assign;
use super::live::Live;
use super::progress;
use super::runs;
use super::submit::{remember, shape};
use super::tx::Tx;
use super::{Error, lease};
use crate::domain::ids::RunId;
use crate::domain::matching::{self, Node, Requirement};
use crate::domain::run::RunState;
use crate::failpoint;

/// A place in the queue: higher priority first, then earlier arrival. The smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: Reverse<i64>,
    arrival: i64,
}

/// The first run of a shape that was not looked at yet.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    place: Place,
    shape: i64,
    run: RunId,
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
    if tx.fleet()?.available(tx.now).is_empty() {
        return Ok(());
    }
    let mut heads = heads(tx)?;
    // Shapes whose run was left for its width: the next of them is tried once the available nodes have changed, and
    // only from the place where they did.
    let mut too_wide: Vec<i64> = Vec::new();
    while let Some(Reverse(head)) = heads.pop() {
        if tx.memory.stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = match requirement(tx, &head) {
            // The matcher's refusal holds for the whole shape, and for the rest of the sweep.
            Ok(requirement) if !fits(tx, &requirement)? => continue,
            Ok(_) => promote(tx, &head.run),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(Promotion::TooWide) => {
                log::info!("run fits only with more nodes than lease.max_per_run run={}", head.run);
                too_wide.push(head.shape);
                continue;
            }
            Ok(Promotion::Promoted) => {
                for shape in std::mem::take(&mut too_wide) {
                    heads.extend(next(tx, shape, Some(head.place))?.map(Reverse));
                }
                if tx.fleet()?.available(tx.now).is_empty() {
                    return Ok(());
                }
            }
            Ok(Promotion::NoFit | Promotion::Overtaken) => {}
            Err(error) if error.is_of_the_group() => return Err(error),
            Err(error) => log::error!("cannot promote run={} cause={error}", head.run),
        }
        heads.extend(next(tx, head.shape, Some(head.place))?.map(Reverse));
    }
    Ok(())
}

/// Returns the first waiting run of every shape.
fn heads(tx: &Tx) -> Result<BinaryHeap<Reverse<Head>>, Error> {
    let mut heads = BinaryHeap::new();
    // One step of the index for each shape, however many runs of it wait.
    let mut statement = tx.conn.prepare_cached(
        "SELECT min(shape) FROM runs INDEXED BY runs_waiting_shape WHERE state = 'QUEUED' AND shape > ?1",
    )?;
    let mut first =
        tx.conn.prepare_cached("SELECT min(shape) FROM runs INDEXED BY runs_waiting_shape WHERE state = 'QUEUED'")?;
    let mut shape: Option<i64> = first.query_row([], |row| row.get(0))?;
    while let Some(own) = shape {
        heads.extend(next(tx, own, None)?.map(Reverse));
        shape = statement.query_row([own], |row| row.get(0))?;
    }
    Ok(heads)
}

/// Returns the first waiting run of `shape` behind `place`.
fn next(tx: &Tx, shape: i64, place: Option<Place>) -> Result<Option<Head>, Error> {
    // Two statements, because an index in mixed order serves no comparison of both columns at once.
    let same = "SELECT priority, arrival, run_id FROM runs INDEXED BY runs_waiting_shape
         WHERE state = 'QUEUED' AND shape = ?1 AND priority = ?2 AND arrival > ?3 ORDER BY arrival LIMIT 1";
    let lower = "SELECT priority, arrival, run_id FROM runs INDEXED BY runs_waiting_shape
         WHERE state = 'QUEUED' AND shape = ?1 AND priority < ?2 ORDER BY priority DESC, arrival LIMIT 1";
    let read = |row: &rusqlite::Row| {
        let place = Place { priority: Reverse(row.get(0)?), arrival: row.get(1)? };
        Ok(Head { place, shape, run: RunId::from_stored(row.get::<_, String>(2)?) })
    };
    let priority = place.map_or(i64::MAX, |place| place.priority.0);
    if let Some(place) = place {
        let mut statement = tx.conn.prepare_cached(same)?;
        let head = statement.query_row((shape, priority, place.arrival), read).optional()?;
        if head.is_some() {
            return Ok(head);
        }
    }
    Ok(tx.conn.prepare_cached(lower)?.query_row((shape, priority), read).optional()?)
}

fn requirement(tx: &Tx, head: &Head) -> Result<Arc<Requirement>, Error> {
    if let Some(known) = tx.memory.requirements.borrow().get(&head.shape) {
        return Ok(Arc::clone(known));
    }
    let row = runs::get(tx, &head.run)?;
    let contract = runs::contract(&head.run, &row.contract)?;
    let own = shape(&contract.requires);
    if own != head.shape {
        return Err(Error::Broken(format!("the shape of run {} is not that of its contract", head.run)));
    }
    Ok(remember(tx, own, &contract.requires))
}

fn fits(tx: &Tx, requirement: &Requirement) -> Result<bool, Error> {
    let fleet = tx.fleet()?;
    let nodes: Vec<&Node> = fleet.available(tx.now).into_iter().map(|entry| &entry.node).collect();
    Ok(matching::fit(requirement, &nodes).is_some())
}

/// Moves one run from QUEUED to RUNNING with its leases, or leaves it as it was.
fn promote(tx: &Tx, run: &RunId) -> Result<Promotion, Error> {
    let mut row = runs::get(tx, run)?;
    let contract = runs::contract(run, &row.contract)?;
    {
        let fleet = tx.fleet()?;
        let available = fleet.available(tx.now);
        let nodes: Vec<&Node> = available.iter().map(|entry| &entry.node).collect();
        let Some(chosen) = matching::fit(&contract.requires, &nodes) else { return Ok(Promotion::NoFit) };
        if matching::width(&chosen) > tx.settings.lease_max_per_run {
            return Ok(Promotion::TooWide);
        }
        row.assigned = assign(&contract.requires, &chosen, &available);
    }
    let overtaken = std::cell::Cell::new(false);
    let limit = contract.limit_ms.unwrap_or(tx.settings.run_limit_ms);
    let outcome = tx.attempt(|| {
        let undo = || {
            overtaken.set(true);
            Err(Error::Broken("overtaken".into()))
        };
        if !runs::promote(tx, run, &row.assigned, limit)? {
            return undo();
        }
        failpoint!("promote.after_state");
        row.state = RunState::Running;
        let mut live = Live::load(tx, row)?;
        match progress::start(tx, &mut live)? {
            Ok(()) => Ok(()),
            Err(lease::Taken) => undo(),
        }
    });
    match outcome {
        Ok(()) => {
            log::info!("run promoted run={run}");
            Ok(Promotion::Promoted)
        }
        Err(_) if overtaken.get() => {
            log::warn!("a promotion was undone: someone else was first run={run}");
            tx.memory.fleet.borrow_mut().forget();
            Ok(Promotion::Overtaken)
        }
        Err(error) => Err(error),
    }
}
