//! Adverts: a node's declaration, its heartbeat, and the renewal of its lease, in one write.
//!
//! Wakes the queue when room appears (a new node, one back after silence, changed capabilities), when the owner lifts
//! a drain, and when a restart of the agent ended runs. A plain heartbeat wakes nobody.

use rusqlite::{OptionalExtension as _, named_params};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::Refusal;
use super::hub::Topic;
use super::live::Live;
use super::progress;
use super::runs;
use super::tx::{About, Tx};
use super::{Error, NEVER, clean, lease};
use crate::clock::{Ms, rfc3339};
use crate::domain::ids::{NodeId, RunId};
use crate::domain::matching::Capability;
use crate::domain::run::{Verdict, VerdictKind};
use crate::failpoint;

/// How many replaced instances are remembered for each node.
const REPLACED: i64 = 16;

/// An advert as it came in.
#[derive(Clone, Debug)]
pub struct Advert {
    /// Whose.
    pub node: NodeId,
    /// What people call it.
    pub label: Option<String>,
    /// The life of the agent; `None` declares a static node.
    pub instance: Option<String>,
    /// What it can do.
    pub capabilities: Vec<Capability>,
    /// The owner's drain, with its reason.
    pub drain: Option<(DrainMode, Option<String>)>,
    /// Whether its agent cleans it after every lease.
    pub cleans: bool,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// The host it runs on.
    pub host: Option<String>,
}

/// How a node drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainMode {
    /// Its run goes on to its end.
    Graceful,
    /// Its run ends at the next step boundary.
    AtBoundary,
}

impl DrainMode {
    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::AtBoundary => "at-boundary",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Graceful, Self::AtBoundary].into_iter().find(|mode| mode.as_str() == word)
    }
}

/// What an advert is answered with.
#[derive(Clone, Debug, Serialize)]
pub struct Advertised {
    /// All leases on this node: one that is not here is gone.
    pub leases: Vec<LeaseTold>,
    /// When to advertise next, in seconds.
    pub renew_seconds: f64,
    /// The drain in force.
    pub drain: Option<&'static str>,
}

/// A lease as its holder is told.
#[derive(Clone, Debug, Serialize)]
pub struct LeaseTold {
    /// The run that has the node.
    pub run_id: String,
    /// The node.
    pub node_id: String,
    /// The fencing token: told to the holder alone.
    pub nonce: String,
    /// When it may be given away.
    pub not_after: String,
    /// What is left when the answer is made, rounded down.
    pub ttl_seconds: i64,
}

/// The stored side of the node.
struct Known {
    instance: Option<String>,
    capabilities: String,
    label: Option<String>,
    agent_version: Option<String>,
    host: Option<String>,
    drain: Option<String>,
    reason: Option<String>,
    cleans: bool,
    is_silent: bool,
    live_until: Ms,
    last_seen: Ms,
}

/// Takes an advert.
///
/// # Errors
/// [`Error::Refused`]: `static-node` (declared without an agent), `stale-instance` (another life has replaced it).
pub fn advertise(tx: &Tx, advert: &Advert) -> Result<Advertised, Error> {
    let node = &advert.node;
    let known = find(tx, node)?;
    let restarted = match (&known, &advert.instance) {
        (Some(Known { instance: None, .. }), Some(_)) => {
            let detail =
                format!("node {node} is static: it was declared without an agent (`mediator node remove` first)");
            return Err(Error::Refused(Refusal::new("static-node", detail)));
        }
        (Some(Known { instance: Some(_), .. }), None) => {
            let detail = format!("node {node} has an agent: remove it before it is declared static");
            return Err(Error::Refused(Refusal::new("static-node", detail)));
        }
        (Some(Known { instance: Some(old), .. }), Some(new)) if old != new => {
            if is_replaced(tx, node, new)? {
                return Err(Error::Refused(Refusal::new(
                    "stale-instance",
                    format!("another agent has taken node {node} over"),
                )));
            }
            Some(old.clone())
        }
        _ => None,
    };
    let capabilities = serde_json::to_string(&advert.capabilities)?;
    let changed = store(tx, advert, known.as_ref(), &capabilities)?;
    tx.touch(node);
    failpoint!("advert.after_store");
    if let Some(old) = restarted {
        replace(tx, node, &old)?;
        failpoint!("advert.after_restart");
    }
    if advert.instance.is_some() {
        lease::renew_node(tx, node)?;
    }
    if changed {
        // A drain that was set may end the run that holds the node; one that was lifted lets it go on.
        progress::resume(tx, node)?;
    }
    answer(tx, node)
}

fn find(tx: &Tx, node: &NodeId) -> Result<Option<Known>, Error> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT instance, capabilities, label, owner_mode, owner_reason, silent, live_until, last_seen,
                agent_version, host, cleans FROM nodes WHERE node_id = ?1",
    )?;
    let known = statement.query_row([node.as_str()], |row| {
        Ok(Known {
            instance: row.get(0)?,
            capabilities: row.get(1)?,
            label: row.get(2)?,
            drain: row.get(3)?,
            reason: row.get(4)?,
            is_silent: row.get(5)?,
            live_until: row.get(6)?,
            last_seen: row.get(7)?,
            agent_version: row.get(8)?,
            host: row.get(9)?,
            cleans: row.get(10)?,
        })
    });
    Ok(known.optional()?)
}

/// Writes the advert; returns whether it is more than a heartbeat, and owes the wake that goes with it.
fn store(tx: &Tx, advert: &Advert, known: Option<&Known>, capabilities: &str) -> Result<bool, Error> {
    let node = &advert.node;
    let is_static = advert.instance.is_none();
    let live_until = if is_static { NEVER } else { tx.after(tx.settings.advert_ttl_ms) };
    let drain = advert.drain.as_ref().map(|(mode, _)| mode.as_str());
    let reason = advert.drain.as_ref().and_then(|(_, reason)| reason.as_deref());
    let is_back = known.is_some_and(|known| !is_static && (known.is_silent || tx.now >= known.live_until));
    let same_ability = known.is_some_and(|known| known.capabilities == capabilities);
    let same_drain = known.is_some_and(|known| known.drain.as_deref() == drain && known.reason.as_deref() == reason);
    let same_life = known.is_some_and(|known| known.instance == advert.instance);
    let same_words = known.is_some_and(|known| {
        known.label == advert.label
            && known.agent_version == advert.agent_version
            && known.host == advert.host
            && known.cleans == advert.cleans
    });
    if same_ability && same_drain && same_life && same_words && !is_back {
        // The everyday heartbeat: two columns, no event, no wake.
        tx.conn.prepare_cached("UPDATE nodes SET last_seen = ?2, live_until = ?3 WHERE node_id = ?1")?.execute((
            node.as_str(),
            tx.now,
            live_until,
        ))?;
        return Ok(false);
    }
    tx.conn
        .prepare_cached(
            "INSERT INTO nodes (node_id, label, static, instance, capabilities, cleans, agent_version, host, created_at,
                 last_seen, live_until, owner_mode, owner_reason, owner_since)
             VALUES (:node, :label, :static, :instance, :capabilities, :cleans, :version, :host, :now, :now, :live_until,
                 :drain, :reason, CASE WHEN :drain IS NULL THEN NULL ELSE :now END)
             ON CONFLICT (node_id) DO UPDATE SET label = :label, instance = :instance, capabilities = :capabilities,
                 cleans = :cleans, agent_version = :version, host = :host, last_seen = :now, live_until = :live_until, silent = 0,
                 settling_until = CASE WHEN instance IS :instance THEN settling_until ELSE 0 END,
                 owner_since = CASE WHEN :drain IS NULL THEN NULL WHEN owner_mode = :drain THEN owner_since ELSE :now END,
                 owner_mode = :drain, owner_reason = :reason",
        )?
        .execute(named_params! {
            ":node": node.as_str(), ":label": advert.label, ":static": is_static, ":instance": advert.instance,
            ":capabilities": capabilities, ":cleans": advert.cleans, ":version": advert.agent_version, ":host": advert.host, ":now": tx.now,
            ":live_until": live_until, ":drain": drain, ":reason": reason,
        })?;
    let about = About::node(node);
    let Some(known) = known else {
        tx.event("node.new", about, &json!({"capabilities": advert.capabilities, "static": is_static}))?;
        tx.log(|| format!("node new node={node}"));
        tx.owe_wake();
        return Ok(true);
    };
    if is_back {
        let silent_ms = tx.now - known.last_seen;
        tx.event("node.back", about, &json!({"silent_seconds": silent_ms / 1000}))?;
        tx.log(|| format!("node back after silence node={node}"));
        tx.owe_wake();
    }
    if known.cleans && !advert.cleans {
        clean::forget(tx, node)?;
    }
    if !same_ability {
        tx.event("node.changed", about, &json!({"capabilities": advert.capabilities}))?;
        tx.owe_wake();
    }
    if !same_drain {
        let data = json!({"by": "node", "mode": drain, "reason": reason});
        tx.event(if drain.is_some() { "node.drained" } else { "node.undrained" }, about, &data)?;
        if drain.is_none() {
            tx.owe_wake();
        }
    }
    Ok(true)
}

fn is_replaced(tx: &Tx, node: &NodeId, instance: &str) -> Result<bool, Error> {
    let mut statement =
        tx.conn.prepare_cached("SELECT 1 FROM replaced_instances WHERE node_id = ?1 AND instance = ?2")?;
    Ok(statement.exists((node.as_str(), instance))?)
}

/// Another life of the agent speaks for the node: the old one is refused from now on, and what it had in hand is lost.
fn replace(tx: &Tx, node: &NodeId, old: &str) -> Result<(), Error> {
    tx.conn
        .prepare_cached("INSERT INTO replaced_instances (node_id, instance, replaced_at) VALUES (?1, ?2, ?3)")?
        .execute((node.as_str(), old, tx.now))?;
    tx.conn
        .prepare_cached(
            "DELETE FROM replaced_instances WHERE node_id = ?1 AND instance NOT IN
                 (SELECT instance FROM replaced_instances WHERE node_id = ?1 ORDER BY replaced_at DESC, instance LIMIT ?2)",
        )?
        .execute((node.as_str(), REPLACED))?;
    tx.event("node.restarted", About::node(node), &Value::Object(serde_json::Map::new()))?;
    // Parked claims of the old life have to hear it.
    tx.tell(Topic::Node(node.clone()));
    tx.log(|| format!("node restarted node={node}"));
    let in_hand: Vec<String> = {
        let mut statement = tx.conn.prepare_cached(
            "SELECT DISTINCT run_id FROM steps WHERE node_id = ?1 AND state = 'CLAIMED' AND kind = 'run'",
        )?;
        let rows = statement.query_map([node.as_str()], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    for run in in_hand {
        if let Some(live) = Live::running(tx, &RunId::from_stored(run))? {
            let step =
                live.steps.iter().position(|step| step.node_id.as_ref() == Some(node) && step.instance.is_some());
            let verdict = Verdict {
                node: Some(node.as_str().to_owned()),
                step: step.map(|at| live.contract.steps[at].id.clone()),
                ..runs::verdict(VerdictKind::AgentRestarted, format!("the agent of node {node} was started again"))
            };
            runs::end(tx, &live.run, &verdict)?;
        }
    }
    // The new life has nothing of the old one in hand: nothing has to settle.
    tx.conn.prepare_cached("UPDATE nodes SET settling_until = 0 WHERE node_id = ?1")?.execute([node.as_str()])?;
    tx.touch(node);
    Ok(())
}

fn answer(tx: &Tx, node: &NodeId) -> Result<Advertised, Error> {
    let mut statement = tx.conn.prepare_cached("SELECT run_id, nonce, not_after FROM leases WHERE node_id = ?1")?;
    let leases = statement.query_map([node.as_str()], |row| {
        let not_after: Ms = row.get(2)?;
        Ok(LeaseTold {
            run_id: row.get(0)?,
            node_id: node.as_str().to_owned(),
            nonce: row.get(1)?,
            not_after: rfc3339(not_after, tx.offset),
            ttl_seconds: ttl_seconds(not_after, tx.now),
        })
    })?;
    let leases = leases.collect::<Result<_, _>>()?;
    let drain = tx
        .conn
        .prepare_cached(
            "SELECT CASE WHEN 'at-boundary' IN (owner_mode, operator_mode) THEN 'at-boundary'
                         WHEN 'graceful' IN (owner_mode, operator_mode) OR failure IS NOT NULL THEN 'graceful' END
             FROM nodes LEFT JOIN cleanings USING (node_id) WHERE node_id = ?1",
        )?
        .query_row([node.as_str()], |row| row.get::<_, Option<String>>(0))?
        .and_then(|mode| DrainMode::parse(&mode))
        .map(DrainMode::as_str);
    #[allow(clippy::cast_precision_loss, reason = "a lifetime is far below 2^53 ms")]
    let renew_seconds = tx.settings.renew_ms() as f64 / 1000.0;
    Ok(Advertised { leases, renew_seconds, drain })
}

/// What is left of a lifetime, in whole seconds, rounded down: local time may only shorten what was granted.
pub(super) fn ttl_seconds(not_after: Ms, now: Ms) -> i64 {
    (not_after - now).max(0) / 1000
}
