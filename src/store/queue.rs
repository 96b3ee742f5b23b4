//! The queue, kept in memory between transactions: what waits, by what it requires, so that a sweep need not read the
//! rows to find that nothing in it fits, and nobody walks through them to count.
//!
//! One entry for each *shape* (see `submit::shape`) of which a run waits, with the places of all of them. It follows the
//! rows: `runs` notes each move into QUEUED and out of it in the write that makes it, and when such a write is undone
//! everything is read again ([`Queue::changes`]). A waiting run that is not here would be a wake-up lost (I6), and one in
//! a wrong place a turn (I7): debug builds compare with the rows at each sweep.
//!
//! Entries are grouped by the rarest of what they need ([`offer::needs`]), and looked at only where that is on offer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use rusqlite::Connection;

use super::submit::shape;
use super::{Error, runs};
use crate::domain::ids::RunId;
use crate::domain::matching::Requirement;
use crate::domain::offer::{self, Offer};

/// A place in the queue: higher priority first, then earlier arrival. The smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: Reverse<i64>,
    pub(super) arrival: i64,
}

/// The waiting runs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// `None` until somebody first asks for them.
    known: Option<Known>,
    changes: u64,
}

#[derive(Debug, Default)]
struct Known {
    groups: HashMap<Offer, HashMap<i64, Entry>>,
    /// In which group each shape is.
    group_of: HashMap<i64, Offer>,
    /// How many runs wait, by principal and priority.
    counts: BTreeMap<String, BTreeMap<i64, i64>>,
}

/// A shape of which a run waits.
#[derive(Debug)]
struct Entry {
    places: BTreeSet<Place>,
    needs: Box<[(Offer, u32)]>,
    /// The requirement as JSON: a tenth of what it takes as a value, and it is seldom looked at.
    requirement: Box<str>,
}

impl Queue {
    /// Forgets everything: it is read again when it is next asked for.
    pub(super) fn forget(&mut self) {
        self.known = None;
    }

    /// Counts the moves that were noted. A part of a write that is undone after it has noted one must [`Self::forget`].
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that a run of this requirement waits at `place`.
    pub(super) fn join(
        &mut self,
        principal: &str,
        shape: i64,
        requirement: &Requirement,
        place: Place,
    ) -> Result<(), Error> {
        self.changes += 1;
        let Some(known) = &mut self.known else { return Ok(()) };
        known.count(principal, place, 1);
        known.enter(shape, place, || Ok(requirement.clone()))
    }

    /// Notes that the run of this shape at `place` waits no longer.
    pub(super) fn leave(&mut self, principal: &str, shape: i64, place: Place) {
        self.changes += 1;
        let Some(known) = &mut self.known else { return };
        known.count(principal, place, -1);
        known.remove(shape, place);
    }

    /// Reads the rows, if that was not done yet.
    pub(super) fn load(&mut self, conn: &Connection) -> Result<(), Error> {
        if self.known.is_none() {
            self.known = Some(read(conn)?);
        }
        Ok(())
    }

    /// Returns shape and first place of all entries whose needs are all among `offered`, which counts nodes.
    pub(super) fn candidates(&self, offered: &HashMap<Offer, u32>) -> Vec<(Place, i64)> {
        let Some(Known { groups, .. }) = &self.known else { return Vec::new() };
        // From the side where there is less to go through.
        let groups: Vec<&HashMap<i64, Entry>> = if groups.len() < offered.len() {
            groups.iter().filter(|(need, _)| offered.contains_key(need)).map(|(_, group)| group).collect()
        } else {
            offered.keys().filter_map(|offer| groups.get(offer)).collect()
        };
        let is_offered = |(need, count): &(Offer, u32)| offered.get(need).is_some_and(|own| own >= count);
        let entries = groups.into_iter().flatten().filter(|(_, entry)| entry.needs.iter().all(is_offered));
        entries.filter_map(|(shape, entry)| entry.places.first().map(|place| (*place, *shape))).collect()
    }

    /// Returns the requirement of a shape of which a run waits.
    pub(super) fn requirement(&self, shape: i64) -> Result<Option<Requirement>, Error> {
        let Some(entry) = self.known.as_ref().and_then(|known| known.find(shape)) else { return Ok(None) };
        Ok(Some(serde_json::from_str(&entry.requirement)?))
    }

    /// Returns the place of the first run of `shape` behind `place`.
    pub(super) fn next(&self, shape: i64, place: Place) -> Option<Place> {
        let entry = self.known.as_ref()?.find(shape)?;
        entry.places.range((Bound::Excluded(place), Bound::Unbounded)).next().copied()
    }

    /// Counts the waiting runs of `priority` or higher.
    pub(super) fn down_to(&self, priority: i64) -> i64 {
        let counts = self.known.iter().flat_map(|known| known.counts.values());
        counts.flat_map(|own| own.range(priority..)).map(|(_, runs)| runs).sum()
    }

    /// Counts the waiting runs of a principal.
    pub(super) fn of(&self, principal: &str) -> i64 {
        let own = self.known.as_ref().and_then(|known| known.counts.get(principal));
        own.map_or(0, |own| own.values().sum())
    }

    /// Compares with the rows: a waiting run that is not here would wait for ever.
    #[cfg(debug_assertions)]
    pub(super) fn check(&self, conn: &Connection) -> Result<(), Error> {
        let Some(own) = &self.known else { return Ok(()) };
        let rows = read(conn)?;
        assert_eq!(own.counts, rows.counts, "the waiting runs by count and by rows");
        assert_eq!(own.places(), rows.places(), "the waiting runs by shape, in memory and by rows");
        Ok(())
    }
}

impl Known {
    fn find(&self, shape: i64) -> Option<&Entry> {
        self.groups.get(self.group_of.get(&shape)?)?.get(&shape)
    }

    fn count(&mut self, principal: &str, place: Place, by: i64) {
        let priority = place.priority.0;
        if !self.counts.contains_key(principal) {
            self.counts.insert(principal.to_owned(), BTreeMap::new());
        }
        let own = self.counts.get_mut(principal).expect("it is there now");
        let runs = own.entry(priority).or_default();
        *runs += by;
        if *runs == 0 {
            own.remove(&priority);
            if own.is_empty() {
                self.counts.remove(principal);
            }
        }
    }

    /// Enters a run; its requirement is asked for when it is the first of its shape.
    fn enter(
        &mut self,
        shape: i64,
        place: Place,
        requirement: impl FnOnce() -> Result<Requirement, Error>,
    ) -> Result<(), Error> {
        if let Some(need) = self.group_of.get(&shape) {
            let group = self.groups.get_mut(need).expect("a shape's group is there");
            group.get_mut(&shape).expect("a shape is in its group").places.insert(place);
            return Ok(());
        }
        let requirement = requirement()?;
        let needs = offer::needs(&requirement).into_boxed_slice();
        let rarest = needs[0].0;
        let requirement = serde_json::to_string(&requirement)?.into_boxed_str();
        let entry = Entry { places: BTreeSet::from([place]), needs, requirement };
        self.group_of.insert(shape, rarest);
        self.groups.entry(rarest).or_default().insert(shape, entry);
        Ok(())
    }

    fn remove(&mut self, shape: i64, place: Place) {
        // One that somebody has changed by hand was never entered.
        let Some(need) = self.group_of.get(&shape).copied() else { return };
        let group = self.groups.get_mut(&need).expect("a shape's group is there");
        let entry = group.get_mut(&shape).expect("a shape is in its group");
        entry.places.remove(&place);
        if !entry.places.is_empty() {
            return;
        }
        group.remove(&shape);
        if group.is_empty() {
            self.groups.remove(&need);
        }
        self.group_of.remove(&shape);
    }

    #[cfg(debug_assertions)]
    fn places(&self) -> BTreeMap<i64, &BTreeSet<Place>> {
        self.groups.values().flatten().map(|(shape, entry)| (*shape, &entry.places)).collect()
    }
}

/// Reads what waits.
fn read(conn: &Connection) -> Result<Known, Error> {
    let mut known = Known::default();
    let mut statement = conn.prepare_cached(
        "SELECT priority, arrival, principal, shape, run_id, contract FROM runs INDEXED BY runs_waiting
         WHERE state = 'QUEUED'",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let place = Place { priority: Reverse(row.get(0)?), arrival: row.get(1)? };
        known.count(&row.get::<_, String>(2)?, place, 1);
        let shape = row.get(3)?;
        let mut unsound = None;
        let entered = known.enter(shape, place, || {
            let run = RunId::from_stored(row.get::<_, String>(4)?);
            let requirement = sound(&run, shape, &row.get::<_, String>(5)?);
            unsound = requirement.is_err().then_some(run);
            requirement
        });
        match (entered, unsound) {
            // A row that somebody has changed by hand does not speak for the others of its shape.
            (Err(error), Some(run)) => log::error!("a waiting run cannot be promoted run={run} cause={error}"),
            (entered, _) => entered?,
        }
    }
    Ok(known)
}

/// Returns what a stored contract requires, if that is of the stored shape.
fn sound(run: &RunId, own: i64, contract: &str) -> Result<Requirement, Error> {
    let contract = runs::contract(run, contract)?;
    if shape(&contract.requires) != own {
        return Err(Error::Broken(format!("the shape of run {run} is not that of its contract")));
    }
    Ok(contract.requires)
}
