//! The nodes as matching sees them, kept in memory between transactions.
//!
//! Reading and parsing a thousand adverts for every event would be most of the event's cost. Whoever changes a node,
//! its lease or its draining *touches* it, and only what was touched is read again. A write from outside the daemon
//! is noticed by `PRAGMA data_version`, and then everything is read again.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::runs::RunRow;
use super::{Error, NEVER};
use crate::clock::Ms;
use crate::config::Settings;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::matching::Node;
use crate::domain::offer::{self, Offer};

/// All nodes, in the order in which matching tries them.
#[derive(Debug)]
pub(super) struct Fleet {
    entries: BTreeMap<(usize, NodeId), Entry>,
    weights: HashMap<NodeId, usize>,
    /// On how many nodes each capability and attribute may be had, silence that was not yet marked left aside.
    offered: HashMap<Offer, u32>,
    stale: Stale,
}

#[derive(Debug)]
enum Stale {
    All,
    These(HashSet<NodeId>),
}

/// One node.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    /// What matching looks at.
    pub(super) node: Node,
    /// What people call it.
    pub(super) label: Option<String>,
    /// The life of its agent.
    pub(super) instance: Option<String>,
    /// The run that has it.
    pub(super) leased_to: Option<RunId>,
    pub(super) settling_until: Ms,
    pub(super) is_draining: bool,
    pub(super) is_cleaning: bool,
    known_until: Ms,
    live_until: Ms,
    is_silent: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), weights: HashMap::new(), offered: HashMap::new(), stale: Stale::All }
    }
}

impl Entry {
    /// Says whether a new lease may be granted on it: not leased, not draining, not silent, not being
    /// cleaned.
    fn is_available(&self, now: Ms) -> bool {
        self.is_known(now) && now < self.live_until && self.may_be_granted()
    }

    /// Says whether it is available unless it has fallen silent, which is a question of time.
    fn may_be_granted(&self) -> bool {
        !self.is_silent && !self.is_draining && self.leased_to.is_none() && !self.is_cleaning
    }

    fn is_known(&self, now: Ms) -> bool {
        now < self.known_until
    }
}

impl Fleet {
    /// Notes that these nodes must be read again.
    pub(super) fn touch(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        if let Stale::These(stale) = &mut self.stale {
            stale.extend(nodes);
        }
    }

    /// Forgets everything: it is read again when it is next asked for.
    pub(super) fn forget(&mut self) {
        self.stale = Stale::All;
    }

    /// Reads again what was touched.
    pub(super) fn refresh(&mut self, conn: &Connection, settings: &Settings) -> Result<(), Error> {
        let outcome = self.read_stale(conn, settings);
        if outcome.is_err() {
            // Half of it was read: none of it is known.
            self.stale = Stale::All;
        }
        outcome
    }

    fn read_stale(&mut self, conn: &Connection, settings: &Settings) -> Result<(), Error> {
        match std::mem::replace(&mut self.stale, Stale::These(HashSet::new())) {
            Stale::All => {
                self.entries.clear();
                self.weights.clear();
                self.offered.clear();
                let mut statement = conn.prepare_cached(ALL)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    self.put(read(row, settings)?);
                }
            }
            Stale::These(stale) => {
                let mut statement = conn.prepare_cached(ONE)?;
                for id in stale {
                    let entry = statement.query_row([id.as_str()], |row| Ok(read(row, settings))).optional()?;
                    self.remove(&id);
                    if let Some(entry) = entry {
                        self.put(entry?);
                    }
                }
            }
        }
        #[cfg(debug_assertions)]
        super::statements::unseen(|| self.check(conn, settings))?;
        Ok(())
    }

    fn put(&mut self, entry: Entry) {
        if entry.may_be_granted() {
            for offer in offer::offers(&entry.node) {
                *self.offered.entry(offer).or_default() += 1;
            }
        }
        self.weights.insert(entry.node.id.clone(), entry.node.weight());
        self.entries.insert((entry.node.weight(), entry.node.id.clone()), entry);
    }

    fn remove(&mut self, id: &NodeId) {
        let Some(weight) = self.weights.remove(id) else { return };
        let entry = self.entries.remove(&(weight, id.clone())).expect("a node has its place");
        if entry.may_be_granted() {
            for offer in offer::offers(&entry.node) {
                let nodes = self.offered.get_mut(&offer).expect("what is offered is counted");
                *nodes -= 1;
                if *nodes == 0 {
                    self.offered.remove(&offer);
                }
            }
        }
    }

    /// Debug builds compare with the rows every time: whoever forgets to touch is found.
    #[cfg(debug_assertions)]
    fn check(&self, conn: &Connection, settings: &Settings) -> Result<(), Error> {
        let mut statement = conn.prepare_cached(ALL)?;
        let mut rows = statement.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let entry = read(row, settings)?;
            let key = (entry.node.weight(), entry.node.id.clone());
            assert_eq!(self.entries.get(&key), Some(&entry), "a change of this node was not touched");
            count += 1;
        }
        assert_eq!(self.entries.len(), count, "a removed node was not touched");
        Ok(())
    }

    /// Returns one node.
    pub(super) fn find(&self, id: &NodeId) -> Option<&Entry> {
        self.entries.get(&(*self.weights.get(id)?, id.clone()))
    }

    /// Returns the nodes that a run holds.
    pub(super) fn held_by(&self, run: &RunRow) -> impl Iterator<Item = &Entry> {
        let assigned = run.assigned.iter().flat_map(|role| &role.nodes);
        let nodes = assigned.filter_map(|node| self.find(&NodeId::from_stored(&node.node_id)));
        nodes.filter(|entry| entry.leased_to.as_ref() == Some(&run.run_id))
    }

    /// Returns the known nodes, in order: heard of within `node.forget_days` and not removed.
    pub(super) fn known(&self, now: Ms) -> Vec<&Entry> {
        self.entries.values().filter(|entry| entry.is_known(now)).collect()
    }

    /// Returns what may be had of the nodes that are available, and on how many of them. Those that fell silent without
    /// having been marked yet are among them.
    pub(super) fn offered(&self) -> &HashMap<Offer, u32> {
        &self.offered
    }

    /// Says whether a lease may be granted on any node now.
    pub(super) fn has_available(&self, now: Ms) -> bool {
        self.entries.values().any(|entry| entry.is_available(now))
    }

    /// Returns the nodes on which a lease may be granted now, in order.
    pub(super) fn available(&self, now: Ms) -> Vec<&Entry> {
        self.entries.values().filter(|entry| entry.is_available(now)).collect()
    }
}

macro_rules! select {
    () => {
        "SELECT node_id, label, static, capabilities, last_seen, live_until, silent,
             owner_mode IS NOT NULL OR operator_mode IS NOT NULL,
             (SELECT run_id FROM leases WHERE leases.node_id = nodes.node_id),
             EXISTS (SELECT 1 FROM cleanings WHERE cleanings.node_id = nodes.node_id),
             instance, settling_until
         FROM nodes"
    };
}

const ALL: &str = select!();
const ONE: &str = concat!(select!(), " WHERE node_id = ?1");

fn read(row: &Row, settings: &Settings) -> Result<Entry, Error> {
    let id = NodeId::from_stored(row.get::<_, String>(0)?);
    let is_static: bool = row.get(2)?;
    let capabilities: String = row.get(3)?;
    let capabilities = serde_json::from_str(&capabilities)
        .map_err(|error| Error::Broken(format!("the capabilities of node {id}: {error}")))?;
    let last_seen: Ms = row.get(4)?;
    let live_until: Ms = row.get(5)?;
    Ok(Entry {
        node: Node { id, agent: !is_static, capabilities },
        label: row.get(1)?,
        // What is live is known, also when the daemon was down for longer than nodes are remembered.
        known_until: if is_static { NEVER } else { last_seen.saturating_add(settings.node_forget_ms).max(live_until) },
        live_until: if is_static { NEVER } else { live_until },
        is_silent: row.get(6)?,
        is_draining: row.get(7)?,
        leased_to: row.get::<_, Option<String>>(8)?.map(RunId::from_stored),
        is_cleaning: row.get(9)?,
        instance: row.get(10)?,
        settling_until: row.get(11)?,
    })
}
