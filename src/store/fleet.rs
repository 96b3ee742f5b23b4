//! The nodes as matching sees them, kept in memory between transactions.
//!
//! Reading and parsing a thousand adverts for every event would be most of the event's cost. Whoever changes a node,
//! its lease or its draining *touches* it, and only what was touched is read again. A write from outside the daemon
//! is noticed by `PRAGMA data_version`, and then everything is read again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

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
    entries: BTreeMap<(usize, NodeId), Arc<Entry>>,
    weights: HashMap<NodeId, usize>,
    /// Those on which a lease may be granted, in the same order: a sweep asks for them with every run it looks at.
    available: Vec<Arc<Entry>>,
    /// When the first of them falls silent, unless it is heard of.
    available_until: Ms,
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
    /// Of that, [`Node::weight`].
    weight: usize,
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
        Self {
            entries: BTreeMap::new(),
            weights: HashMap::new(),
            available: Vec::new(),
            available_until: NEVER,
            offered: HashMap::new(),
            stale: Stale::All,
        }
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

    /// By what nodes are put in order.
    fn key(&self) -> (usize, &NodeId) {
        (self.weight, &self.node.id)
    }
}

impl AsRef<Node> for Entry {
    fn as_ref(&self) -> &Node {
        &self.node
    }
}

impl AsRef<Node> for Arc<Entry> {
    fn as_ref(&self) -> &Node {
        &self.node
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

    /// Reads again what was touched, and leaves out what has fallen silent.
    pub(super) fn refresh(&mut self, conn: &Connection, settings: &Settings, now: Ms) -> Result<(), Error> {
        let outcome = self.read_stale(conn, settings, now);
        if outcome.is_err() {
            // Half of it was read: none of it is known.
            self.stale = Stale::All;
        }
        if self.available_until <= now {
            self.available.retain(|entry| entry.is_available(now));
            let ends = self.available.iter().map(|entry| entry.known_until.min(entry.live_until));
            self.available_until = ends.min().unwrap_or(NEVER);
        }
        #[cfg(debug_assertions)]
        if outcome.is_ok() {
            super::statements::unseen(|| self.check(conn, settings, now))?;
        }
        outcome
    }

    fn read_stale(&mut self, conn: &Connection, settings: &Settings, now: Ms) -> Result<(), Error> {
        match std::mem::replace(&mut self.stale, Stale::These(HashSet::new())) {
            Stale::These(stale) if stale.is_empty() => {}
            Stale::All => {
                self.entries.clear();
                self.weights.clear();
                self.available.clear();
                self.available_until = NEVER;
                self.offered.clear();
                let mut statement = conn.prepare_cached(ALL)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    self.put(read(row, settings)?, now);
                }
            }
            Stale::These(stale) => {
                let mut statement = conn.prepare_cached(ONE)?;
                for id in stale {
                    let entry = statement.query_row([id.as_str()], |row| Ok(read(row, settings))).optional()?;
                    self.remove(&id);
                    if let Some(entry) = entry {
                        self.put(entry?, now);
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, entry: Entry, now: Ms) {
        let entry = Arc::new(entry);
        if entry.may_be_granted() {
            for offer in offer::offers(&entry.node) {
                *self.offered.entry(offer).or_default() += 1;
            }
        }
        if entry.is_available(now)
            && let Err(at) = self.place(&entry)
        {
            self.available.insert(at, Arc::clone(&entry));
            self.available_until = self.available_until.min(entry.known_until.min(entry.live_until));
        }
        self.weights.insert(entry.node.id.clone(), entry.weight);
        self.entries.insert((entry.weight, entry.node.id.clone()), entry);
    }

    /// Returns where the node is among the available ones, or would be.
    fn place(&self, entry: &Entry) -> Result<usize, usize> {
        self.available.binary_search_by(|other| other.key().cmp(&entry.key()))
    }

    fn remove(&mut self, id: &NodeId) {
        let Some(weight) = self.weights.remove(id) else { return };
        let entry = self.entries.remove(&(weight, id.clone())).expect("a node has its place");
        if let Ok(at) = self.place(&entry) {
            self.available.remove(at);
        }
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
    fn check(&self, conn: &Connection, settings: &Settings, now: Ms) -> Result<(), Error> {
        let mut statement = conn.prepare_cached(ALL)?;
        let mut rows = statement.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let entry = read(row, settings)?;
            let key = (entry.weight, entry.node.id.clone());
            let own = self.entries.get(&key).map(AsRef::as_ref);
            assert_eq!(own, Some(&entry), "a change of this node was not touched");
            count += 1;
        }
        assert_eq!(self.entries.len(), count, "a removed node was not touched");
        let available = self.entries.values().filter(|entry| entry.is_available(now));
        assert!(self.available.iter().eq(available), "the available nodes are not all that are");
        Ok(())
    }

    /// Returns one node.
    pub(super) fn find(&self, id: &NodeId) -> Option<&Entry> {
        self.entries.get(&(*self.weights.get(id)?, id.clone())).map(AsRef::as_ref)
    }

    /// Returns the nodes that a run holds.
    pub(super) fn held_by(&self, run: &RunRow) -> impl Iterator<Item = &Entry> {
        let assigned = run.assigned.iter().flat_map(|role| &role.nodes);
        let nodes = assigned.filter_map(|node| self.find(&NodeId::from_stored(&node.node_id)));
        nodes.filter(|entry| entry.leased_to.as_ref() == Some(&run.run_id))
    }

    /// Returns the known nodes, in order: heard of within `node.forget_days` and not removed.
    pub(super) fn known(&self, now: Ms) -> Vec<&Arc<Entry>> {
        self.entries.values().filter(|entry| entry.is_known(now)).collect()
    }

    /// Returns what may be had of the nodes that are available, and on how many of them. Those that fell silent without
    /// having been marked yet are among them.
    pub(super) fn offered(&self) -> &HashMap<Offer, u32> {
        &self.offered
    }

    /// Returns the nodes on which a lease may be granted now, in order.
    pub(super) fn available(&self) -> &[Arc<Entry>] {
        &self.available
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
    let node = Node { id, agent: !is_static, capabilities };
    Ok(Entry {
        weight: node.weight(),
        node,
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
