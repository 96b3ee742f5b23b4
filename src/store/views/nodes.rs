//! Nodes, and what they can do together.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, Row};
use serde::Serialize;

use super::{At, Page, cut};
use crate::clock::Ms;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::matching::{Capability, Node};
use crate::store::advert::ttl_seconds;
use crate::store::runs::contract;
use crate::store::{Error, not_found};

/// A node as it is shown. The nonce of its lease is told to the holder alone.
#[derive(Clone, Debug, Serialize)]
pub struct NodeView {
    /// Its id.
    pub node_id: String,
    /// What people call it.
    pub label: Option<String>,
    /// The life of its agent; null for a static node.
    pub instance: Option<String>,
    /// Whether it was declared without an agent.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// Whether it was heard of lately.
    pub live: bool,
    /// When it was last heard of.
    pub last_seen: String,
    /// What it can do.
    pub capabilities: Vec<Capability>,
    /// The drain in force: the strictest of both sides.
    pub drain: Option<String>,
    /// Both sides of its draining.
    pub drains: Vec<DrainView>,
    /// What it is cleaned for, until it is.
    pub cleaning: Option<CleaningView>,
    /// Who has it.
    pub lease: Option<LeaseView>,
}

/// A node's cleaning after a lease.
#[derive(Clone, Debug, Serialize)]
pub struct CleaningView {
    /// The run whose lease ended.
    pub run_id: String,
    /// Since when.
    pub since: String,
    /// Why it failed; null while it is under way.
    pub failure: Option<String>,
}

impl NodeView {
    /// Says whether a lease could be granted on it now.
    pub fn is_free(&self) -> bool {
        self.live && self.drain.is_none() && self.cleaning.is_none() && self.lease.is_none()
    }
}

/// One side of a node's draining.
#[derive(Clone, Debug, Serialize)]
pub struct DrainView {
    /// `graceful` or `at-boundary`.
    pub mode: String,
    /// `node` for the owner's side, else the operator who did it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// Since when.
    pub since: String,
}

/// The lease on a node, without its nonce.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseView {
    /// The run that has it.
    pub run_id: String,
    /// When it may be given away.
    pub not_after: String,
    /// What is left, rounded down.
    pub ttl_seconds: i64,
}

/// A node with what is to be told of it alone.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStory {
    /// The node.
    #[serde(flatten)]
    pub node: NodeView,
    /// Its last holders, newest first.
    pub holders: Vec<HolderView>,
    /// The first waiting runs that it could serve, in the order of the queue.
    pub waiting: Vec<String>,
}

/// A lease that was.
#[derive(Clone, Debug, Serialize)]
pub struct HolderView {
    /// The run.
    pub run_id: String,
    /// Whose run.
    pub principal: String,
    /// What it was for.
    pub work: Option<String>,
    /// Since when.
    pub from: String,
    /// Until when; null while it lasts.
    pub to: Option<String>,
    /// Why it ended.
    pub why: Option<String>,
}

/// One capability over all known nodes.
#[derive(Clone, Debug, Serialize)]
pub struct CapabilityView {
    /// Its name.
    pub capability: String,
    /// How many known nodes have it.
    pub known: usize,
    /// How many of them are live.
    pub live: usize,
    /// How many of them are free.
    pub free: usize,
    /// Its attributes with the values that occur.
    pub attrs: BTreeMap<String, BTreeSet<String>>,
}

const QUERY: &str = "SELECT nodes.node_id, label, instance, static, silent, last_seen, live_until, capabilities,
        owner_mode, owner_reason, owner_since, operator_mode, operator_reason, operator_by, operator_since,
        leases.run_id, not_after, cleanings.run_id, since, failure, failed_at
    FROM nodes LEFT JOIN leases USING (node_id) LEFT JOIN cleanings USING (node_id)";

/// Returns one node.
///
/// # Errors
/// `not-found`.
pub fn node(conn: &Connection, id: &NodeId, at: At) -> Result<NodeView, Error> {
    let mut statement = conn.prepare_cached(&format!("{QUERY} WHERE nodes.node_id = ?1"))?;
    let view = statement.query_row([id.as_str()], |row| Ok(read(row, at))).optional()?;
    view.ok_or_else(|| not_found(format_args!("node {id}")))?
}

/// Returns a page of nodes by id, and the cursor of the next.
pub fn nodes(conn: &Connection, page: &Page, at: At) -> Result<(Vec<NodeView>, Option<String>), Error> {
    let mut statement =
        conn.prepare_cached(&format!("{QUERY} WHERE nodes.node_id > ?1 ORDER BY nodes.node_id LIMIT ?2"))?;
    let limit = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query((page.cursor.as_deref().unwrap_or(""), limit))?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read(row, at)?);
    }
    let next = cut(&mut list, page.limit, |node| node.node_id.clone());
    Ok((list, next))
}

/// Returns what the known nodes can do, by capability; `forget_ms` is how long an absent node counts as known.
pub fn capabilities(conn: &Connection, at: At, forget_ms: i64) -> Result<Vec<CapabilityView>, Error> {
    let mut found: BTreeMap<String, CapabilityView> = BTreeMap::new();
    for node in known(conn, at, forget_ms)? {
        let names: BTreeSet<&str> = node.capabilities.iter().map(|own| own.capability.as_str()).collect();
        for name in names {
            let view = found.entry(name.to_owned()).or_insert_with(|| CapabilityView {
                capability: name.to_owned(),
                known: 0,
                live: 0,
                free: 0,
                attrs: BTreeMap::new(),
            });
            view.known += 1;
            view.live += usize::from(node.live);
            view.free += usize::from(node.is_free());
            for (key, value) in node.capabilities.iter().filter(|own| own.capability == name).flat_map(|own| &own.attrs)
            {
                view.attrs.entry(key.clone()).or_default().insert(value.clone());
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the nodes that count as known: heard of within `forget_ms`, or static.
pub(super) fn known(conn: &Connection, at: At, forget_ms: i64) -> Result<Vec<NodeView>, Error> {
    let mut statement = conn.prepare_cached(&format!("{QUERY} WHERE static = 1 OR last_seen > ?1"))?;
    let mut rows = statement.query([at.now - forget_ms])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        list.push(read(row, at)?);
    }
    Ok(list)
}

/// Returns one node with its last holders, newest first, and how many runs wait for it or one like it.
///
/// # Errors
/// `not-found`.
pub fn node_story(conn: &Connection, id: &NodeId, at: At) -> Result<NodeStory, Error> {
    let node = node(conn, id, at)?;
    let mut statement = conn.prepare_cached(
        r#"SELECT run_id, principal, work, "from", "to", why FROM lease_history WHERE node_id = ?1
           ORDER BY id DESC LIMIT ?2"#,
    )?;
    let holders = statement.query_map((id.as_str(), HOLDERS), |row| {
        Ok(HolderView {
            run_id: row.get(0)?,
            principal: row.get(1)?,
            work: row.get(2)?,
            from: at.show(row.get(3)?),
            to: row.get::<_, Option<Ms>>(4)?.map(|time| at.show(time)),
            why: row.get(5)?,
        })
    })?;
    let holders = holders.collect::<Result<_, _>>()?;
    let own = Node { id: id.clone(), agent: !node.is_static, capabilities: node.capabilities.clone() };
    let mut waiting = Vec::new();
    let mut statement = conn.prepare_cached(
        "SELECT run_id, contract FROM
             (SELECT arrival AS own, priority AS rank FROM runs INDEXED BY runs_waiting WHERE state = 'QUEUED'
                  ORDER BY priority DESC, arrival LIMIT ?1)
             CROSS JOIN runs ON arrival = own ORDER BY rank DESC, own",
    )?;
    let mut rows = statement.query([WAITING])?;
    while let Some(row) = rows.next()? {
        let run = RunId::from_stored(row.get::<_, String>(0)?);
        // A contract that cannot be read waits for nothing; `doctor` tells of it.
        let Ok(contract) = contract(&run, &row.get::<_, String>(1)?) else { continue };
        if contract.requires.roles.iter().any(|role| own.serves(role).is_some()) {
            waiting.push(run.as_str().to_owned());
        }
    }
    Ok(NodeStory { node, holders, waiting })
}

/// How many of the last holders are told, and how far into the queue is looked for who waits.
const HOLDERS: i64 = 10;
const WAITING: i64 = 200;

fn read(row: &Row, at: At) -> Result<NodeView, Error> {
    let is_static: bool = row.get(3)?;
    let is_silent: bool = row.get(4)?;
    let live_until: Ms = row.get(6)?;
    let mut drains = Vec::new();
    if let Some(mode) = row.get::<_, Option<String>>(8)? {
        drains.push(DrainView { mode, by: "node".into(), reason: row.get(9)?, since: at.show(row.get(10)?) });
    }
    if let Some(mode) = row.get::<_, Option<String>>(11)? {
        drains.push(DrainView { mode, by: row.get(13)?, reason: row.get(12)?, since: at.show(row.get(14)?) });
    }
    let cleaning = match row.get::<_, Option<String>>(17)? {
        None => None,
        Some(run_id) => Some(CleaningView { run_id, since: at.show(row.get(18)?), failure: row.get(19)? }),
    };
    if let Some(reason) = cleaning.as_ref().and_then(|cleaning| cleaning.failure.clone()) {
        let since = at.show(row.get(20)?);
        drains.push(DrainView { mode: "graceful".into(), by: "node".into(), reason: Some(reason), since });
    }
    let strict = drains.iter().find(|drain| drain.mode == "at-boundary").or(drains.first());
    let lease = match row.get::<_, Option<String>>(15)? {
        None => None,
        Some(run_id) => {
            let not_after: Ms = row.get(16)?;
            Some(LeaseView { run_id, not_after: at.show(not_after), ttl_seconds: ttl_seconds(not_after, at.now) })
        }
    };
    Ok(NodeView {
        node_id: row.get(0)?,
        label: row.get(1)?,
        instance: row.get(2)?,
        is_static,
        live: is_static || (!is_silent && at.now < live_until),
        last_seen: at.show(row.get(5)?),
        capabilities: serde_json::from_str(&row.get::<_, String>(7)?)?,
        drain: strict.map(|drain| drain.mode.clone()),
        drains,
        cleaning,
        lease,
    })
}
