//! Which requirements wait, kept in memory between transactions: so that a sweep need not read the queue to find that
//! nothing in it fits.
//!
//! One entry for each *shape* (see `submit::shape`) of which a run waits, with the place of its first run. The rows
//! decide: an entry may be there for a shape that waits no longer, and its place may be earlier than that of its first
//! run; a sweep looks into the rows before it acts on one, and corrects it. What must never be is a waiting run without
//! an entry, or with one behind its place: that would be a wake-up lost (I6), or a turn (I7). So an entry is added in
//! the write that queues a run, and stays when that write is undone; and it is corrected only by what the rows say.
//!
//! Entries are grouped by the rarest of what they need ([`offer::needs`]), and looked at only where that is on offer.

use std::cmp::Reverse;
use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};

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

/// The waiting shapes; `None` until a sweep first asks for them.
#[derive(Debug, Default)]
pub(super) struct Queue(Option<Entries>);

#[derive(Debug, Default)]
struct Entries {
    groups: HashMap<Offer, HashMap<i64, Entry>>,
    /// In which group each shape is.
    group_of: HashMap<i64, Offer>,
}

/// A shape of which a run may wait.
#[derive(Debug)]
struct Entry {
    /// Not behind the first run of it that waits.
    place: Place,
    needs: Box<[(Offer, u32)]>,
    /// The requirement as JSON: a tenth of what it takes as a value, and it is seldom looked at.
    requirement: Box<str>,
}

impl Queue {
    /// Forgets everything: it is read again when it is next asked for.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Notes that a run of this requirement waits at `place`.
    pub(super) fn add(&mut self, shape: i64, requirement: &Requirement, place: Place) -> Result<(), Error> {
        match &mut self.0 {
            Some(entries) => entries.add(shape, requirement, place),
            None => Ok(()),
        }
    }

    /// Reads the rows, if that was not done yet.
    pub(super) fn load(&mut self, conn: &Connection) -> Result<(), Error> {
        if self.0.is_none() {
            self.0 = Some(read(conn)?);
        }
        #[cfg(debug_assertions)]
        super::statements::unseen(|| self.check(conn))?;
        Ok(())
    }

    /// Returns place and shape of all entries whose needs are all among `offered`, which counts nodes.
    pub(super) fn candidates(&self, offered: &HashMap<Offer, u32>) -> Vec<(Place, i64)> {
        let Some(Entries { groups, .. }) = &self.0 else { return Vec::new() };
        // From the side where there is less to go through.
        let groups: Vec<&HashMap<i64, Entry>> = if groups.len() < offered.len() {
            groups.iter().filter(|(need, _)| offered.contains_key(need)).map(|(_, group)| group).collect()
        } else {
            offered.keys().filter_map(|offer| groups.get(offer)).collect()
        };
        let is_offered = |(need, count): &(Offer, u32)| offered.get(need).is_some_and(|own| own >= count);
        let entries = groups.into_iter().flatten().filter(|(_, entry)| entry.needs.iter().all(is_offered));
        entries.map(|(shape, entry)| (entry.place, *shape)).collect()
    }

    /// Returns the requirement of a shape that has an entry.
    pub(super) fn requirement(&self, shape: i64) -> Result<Option<Requirement>, Error> {
        let Some(entry) = self.0.as_ref().and_then(|entries| entries.find(shape)) else { return Ok(None) };
        Ok(Some(serde_json::from_str(&entry.requirement)?))
    }

    /// Corrects an entry by the first run of its shape that waits; `None`: none does.
    pub(super) fn correct(&mut self, shape: i64, first: Option<Place>) {
        let Some(entries) = &mut self.0 else { return };
        let Some(need) = entries.group_of.get(&shape).copied() else { return };
        let group = entries.groups.get_mut(&need).expect("a shape's group is there");
        if let Some(place) = first {
            group.get_mut(&shape).expect("a shape is in its group").place = place;
            return;
        }
        group.remove(&shape);
        if group.is_empty() {
            entries.groups.remove(&need);
        }
        entries.group_of.remove(&shape);
    }

    /// Debug builds compare with the rows every time: a waiting run that has no entry would wait for ever.
    #[cfg(debug_assertions)]
    fn check(&self, conn: &Connection) -> Result<(), Error> {
        let entries = self.0.as_ref().expect("it was loaded");
        let mut statement =
            conn.prepare_cached("SELECT shape, priority, arrival, run_id, contract FROM runs WHERE state = 'QUEUED'")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let own: i64 = row.get(0)?;
            let place = Place { priority: Reverse(row.get(1)?), arrival: row.get(2)? };
            let run = RunId::from_stored(row.get::<_, String>(3)?);
            match entries.find(own) {
                Some(entry) => assert!(entry.place <= place, "run {run} waits before the place that is known"),
                // Somebody has changed the row by hand.
                None => assert!(sound(&run, own, &row.get::<_, String>(4)?).is_err(), "run {run} waits unknown"),
            }
        }
        Ok(())
    }
}

impl Entries {
    fn find(&self, shape: i64) -> Option<&Entry> {
        self.groups.get(self.group_of.get(&shape)?)?.get(&shape)
    }

    fn add(&mut self, shape: i64, requirement: &Requirement, place: Place) -> Result<(), Error> {
        if let Some(need) = self.group_of.get(&shape) {
            let group = self.groups.get_mut(need).expect("a shape's group is there");
            let entry = group.get_mut(&shape).expect("a shape is in its group");
            entry.place = entry.place.min(place);
            return Ok(());
        }
        let needs = offer::needs(requirement).into_boxed_slice();
        let rarest = needs[0].0;
        let requirement = serde_json::to_string(requirement)?.into_boxed_str();
        self.group_of.insert(shape, rarest);
        self.groups.entry(rarest).or_default().insert(shape, Entry { place, needs, requirement });
        Ok(())
    }
}

/// Reads all shapes that wait: one step of the index for each, however many runs of it wait.
fn read(conn: &Connection) -> Result<Entries, Error> {
    let mut entries = Entries::default();
    let mut first_of_shape = conn.prepare_cached(FIRST_OF_SHAPE)?;
    let mut from = Some(i64::MIN);
    while let Some(at_least) = from {
        let found = first_of_shape
            .query_row([at_least], |row| Ok((row.get::<_, i64>(0)?, head(row)?, row.get::<_, String>(4)?)))
            .optional()?;
        let Some((own, (first_place, mut run), mut contract)) = found else { break };
        let mut place = first_place;
        loop {
            match sound(&run, own, &contract) {
                Ok(requirement) => {
                    entries.add(own, &requirement, first_place)?;
                    break;
                }
                // A row that somebody has changed by hand does not speak for the others of its shape.
                Err(error) => log::error!("a waiting run cannot be promoted run={run} cause={error}"),
            }
            let Some(next) = first(conn, own, Some(place))? else { break };
            (place, run) = next;
            contract = conn.prepare_cached(CONTRACT)?.query_row([run.as_str()], |row| row.get(0))?;
        }
        from = own.checked_add(1);
    }
    Ok(entries)
}

/// Returns what a stored contract requires, if that is of the stored shape.
fn sound(run: &RunId, own: i64, contract: &str) -> Result<Requirement, Error> {
    let contract = runs::contract(run, contract)?;
    if shape(&contract.requires) != own {
        return Err(Error::Broken(format!("the shape of run {run} is not that of its contract")));
    }
    Ok(contract.requires)
}

const FIRST_OF_SHAPE: &str = "SELECT shape, priority, arrival, run_id, contract FROM runs INDEXED BY runs_waiting_shape
    WHERE state = 'QUEUED' AND shape >= ?1 ORDER BY shape, priority DESC, arrival LIMIT 1";

const CONTRACT: &str = "SELECT contract FROM runs WHERE run_id = ?1";

// Two statements, because an index in mixed order serves no comparison of both columns at once.
const FIRST_OF_PRIORITY: &str = "SELECT shape, priority, arrival, run_id FROM runs INDEXED BY runs_waiting_shape
    WHERE state = 'QUEUED' AND shape = ?1 AND priority = ?2 AND arrival > ?3 ORDER BY arrival LIMIT 1";

const FIRST_BELOW_PRIORITY: &str = "SELECT shape, priority, arrival, run_id FROM runs INDEXED BY runs_waiting_shape
    WHERE state = 'QUEUED' AND shape = ?1 AND priority < ?2 ORDER BY priority DESC, arrival LIMIT 1";

/// Reads a waiting run's place and id from the second column on.
fn head(row: &rusqlite::Row) -> rusqlite::Result<(Place, RunId)> {
    let place = Place { priority: Reverse(row.get(1)?), arrival: row.get(2)? };
    Ok((place, RunId::from_stored(row.get::<_, String>(3)?)))
}

/// Returns the first waiting run of `shape`, or the first behind `place`.
pub(super) fn first(conn: &Connection, shape: i64, place: Option<Place>) -> Result<Option<(Place, RunId)>, Error> {
    let priority = place.map_or(i64::MAX, |place| place.priority.0);
    if let Some(place) = place {
        let mut statement = conn.prepare_cached(FIRST_OF_PRIORITY)?;
        let head = statement.query_row((shape, priority, place.arrival), head).optional()?;
        if head.is_some() {
            return Ok(head);
        }
    }
    Ok(conn.prepare_cached(FIRST_BELOW_PRIORITY)?.query_row((shape, priority), head).optional()?)
}
