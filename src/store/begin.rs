//! How each kind of step begins: a command is offered and then claimed, an acquisition decided, a question raised, a
//! hold opened. (`progress::advance` says when.)

use serde_json::json;

use super::error::Refusal;
use super::fleet::Entry;
use super::hub::Topic;
use super::live::{Live, Set, seq};
use super::progress::set_holder;
use super::runs::{self, Assigned, AssignedNode};
use super::tx::Tx;
use super::{Error, NEVER, lease};
use crate::domain::contract::{Acquire, Kind};
use crate::domain::ids::NodeId;
use crate::domain::matching::{self, Requirement};
use crate::domain::step::StepEvent;
use crate::failpoint;

/// Marks a run step as claimable and tells its node.
pub(super) fn offer(tx: &Tx, live: &mut Live, at: usize) -> Result<(), Error> {
    let step = &mut live.steps[at];
    if step.ready {
        return Ok(());
    }
    tx.conn
        .prepare_cached("UPDATE steps SET ready = 1 WHERE run_id = ?1 AND seq = ?2 AND state = 'PENDING'")?
        .execute((live.run.run_id.as_str(), seq(at)))?;
    step.ready = true;
    if let Some(node) = &step.node_id {
        tx.tell(Topic::Node(node.clone()));
    }
    tx.event("step.ready", live.about(at), &json!({"id": live.contract.steps[at].id}))
}

/// Decides an acquisition: a value, never a failure, never waiting.
pub(super) fn acquire_node(tx: &Tx, live: &mut Live, at: usize, acquire: &Acquire) -> Result<(), Error> {
    tx.before_taking()?;
    let held = lease::held(tx, &live.run.run_id)?;
    let wanted = Requirement { roles: vec![acquire.want.clone()], distinct_nodes: None };
    let found = if held.len() < tx.settings.lease_max_per_run {
        let fleet = tx.fleet()?;
        // A node that became free in this very transaction belongs to the queue first.
        let available: Vec<_> =
            fleet.available().iter().filter(|entry| !tx.was_freed_here(&entry.node.id)).cloned().collect();
        matching::fit(&wanted, &available).map(|chosen| assign(&wanted, &chosen, &available))
    } else {
        None
    };
    let mut result = json!({"acquired": false, "node_id": null});
    if let Some(mut role) = found {
        let node = NodeId::from_stored(&role[0].nodes[0].node_id);
        let granted = tx.attempt(|| match lease::grant(tx, &live.run, &node)? {
            Ok(()) => Ok(()),
            Err(lease::Taken) => Err(Error::Refused(Refusal::new("lease-collision", "another run has the node"))),
        });
        match granted {
            Ok(()) => {
                result = json!({"acquired": true, "node_id": node.as_str()});
                live.run.assigned.append(&mut role);
                runs::store_assigned(tx, &live.run.run_id, &live.run.assigned)?;
                tx.conn.prepare_cached("UPDATE steps SET node_id = ?3 WHERE run_id = ?1 AND seq = ?2")?.execute((
                    live.run.run_id.as_str(),
                    seq(at),
                    node.as_str(),
                ))?;
                live.steps[at].node_id = Some(node);
            }
            // Someone has it after all: it was not had, and the rows know better than what was remembered.
            Err(Error::Refused(_)) => {
                log::error!("a node to be acquired was leased after all run={} node={node}", live.run.run_id);
                tx.memory.fleet.borrow_mut().forget();
            }
            Err(error) => return Err(error),
        }
    }
    let had = result["acquired"] == true;
    live.steps[at].had = Some(had);
    live.step(tx, at, StepEvent::Acquire, &Set::result(&result))?;
    failpoint!("acquire.after");
    place_steps(tx, live)?;
    let id = live.contract.steps[at].id.clone();
    tx.event("step.acquired", live.about(at), &json!({"id": id, "acquired": had}))
}

pub(super) fn raise(tx: &Tx, live: &mut Live, at: usize, timeout_ms: Option<i64>) -> Result<(), Error> {
    let deadline = tx.after(timeout_ms.unwrap_or(tx.settings.ask_timeout_ms));
    live.begin(tx, at, StepEvent::Ask, &Set { deadline, ..Set::nothing() }, None)?;
    failpoint!("ask.after_raise");
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt});
    tx.event("ask.raised", live.about(at), &data)
}

/// Opens a hold, unless one of the run's nodes is settling: then its agent may still be at work there.
pub(super) fn open_hold(tx: &Tx, live: &mut Live, at: usize, timeout_ms: Option<i64>) -> Result<(), Error> {
    let settling: bool = tx
        .conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1 AND settling_until > ?2)",
        )?
        .query_row((live.run.run_id.as_str(), tx.now), |row| row.get(0))?;
    if settling {
        return Ok(());
    }
    let deadline = timeout_ms.map_or(NEVER, |ms| tx.after(ms));
    live.begin(tx, at, StepEvent::Claim, &Set { deadline, ..Set::nothing() }, None)?;
    failpoint!("hold.after_open");
    if !live.contract.attended {
        set_holder(tx, live, tx.after(tx.settings.hold_ttl_ms))?;
    }
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt, "by": live.run.principal});
    tx.event("hold.opened", live.about(at), &data)
}

/// Writes to each run step the node that its role was given.
pub(super) fn place_steps(tx: &Tx, live: &mut Live) -> Result<(), Error> {
    for (at, own) in live.contract.steps.iter().enumerate() {
        let Kind::Run(command) = &own.kind else { continue };
        let nodes = runs::nodes_of(&live.run.assigned, &command.uses.role);
        let Some(node) = nodes.get(command.uses.index.unwrap_or(0)) else { continue };
        if live.steps[at].node_id.is_none() {
            tx.conn.prepare_cached("UPDATE steps SET node_id = ?3 WHERE run_id = ?1 AND seq = ?2")?.execute((
                live.run.run_id.as_str(),
                seq(at),
                &node.node_id,
            ))?;
            live.steps[at].node_id = Some(NodeId::from_stored(&node.node_id));
        }
    }
    Ok(())
}

/// Puts a step into the hands of one life of its node (I11).
pub(super) fn claim(tx: &Tx, live: &mut Live, at: usize, instance: &str, nonce: &str) -> Result<(), Error> {
    let Kind::Run(command) = &live.contract.steps[at].kind else {
        return Err(Error::Broken(format!("step {} of run {} cannot be claimed", seq(at), live.run.run_id)));
    };
    // The agent counts the time-out itself; it has half a minute to say so before the reaper does.
    let deadline = command.timeout_ms.map_or(NEVER, |ms| tx.after(ms.saturating_add(STEP_GRACE_MS)));
    let set = Set { instance: Some(instance.to_owned()), deadline, result: None };
    live.begin(tx, at, StepEvent::Claim, &set, Some(nonce))?;
    failpoint!("claim.after_step");
    let data = json!({"id": live.contract.steps[at].id, "attempt": live.steps[at].attempt});
    tx.event("step.claimed", live.about(at), &data)
}

/// How long after a step's time-out the reaper waits for its agent to report it.
pub(super) const STEP_GRACE_MS: i64 = 30_000;

/// Names the chosen nodes of each role, with the attributes they serve with.
pub(super) fn assign<E: AsRef<Entry>>(requirement: &Requirement, chosen: &[Vec<usize>], nodes: &[E]) -> Vec<Assigned> {
    let named = |role: &matching::Role, &at: &usize| {
        let Entry { node, label, .. } = nodes[at].as_ref();
        AssignedNode {
            node_id: node.id.as_str().to_owned(),
            label: label.clone(),
            attrs: node.serves(role).map(|own| own.attrs.clone()).unwrap_or_default(),
        }
    };
    let roles = requirement.roles.iter().zip(chosen);
    roles
        .map(|(role, own)| Assigned { role: role.name.clone(), nodes: own.iter().map(|at| named(role, at)).collect() })
        .collect()
}
