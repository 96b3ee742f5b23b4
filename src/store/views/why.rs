//! Why a run waits, or what ended it.

use rusqlite::{Connection, named_params};
use serde::Serialize;

use super::runs::QueueView;
use super::{At, NodeView, RunView, run as run_view};
use crate::config::Settings;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::matching::{self, Node, Requirement};
use crate::domain::run::RunState;
use crate::domain::why::{NodeStatus, Obstacle, RoleFacts, explain};
use crate::store::{Error, runs};

/// Where a run stands, and why.
#[derive(Clone, Debug, Serialize)]
pub struct WhyView {
    /// A fixed code: of a waiting run what it waits for, of a running one `running`, of an ended one its verdict.
    pub code: String,
    /// The sentence for people.
    pub detail: String,
    /// Its place in the queue, counted from 1; null when it does not wait.
    pub position: Option<i64>,
    /// How many later runs started while it waited.
    pub passed: i64,
    /// What each role wants and what there is; empty once the run does not wait.
    pub roles: Vec<RoleView>,
}

/// One role of a waiting run.
#[derive(Clone, Debug, Serialize)]
pub struct RoleView {
    /// Its name.
    #[serde(rename = "as")]
    pub role: String,
    /// How many different nodes it wants.
    pub wanted: usize,
    /// How many known nodes fit.
    pub known: usize,
    /// How many of them are live.
    pub live: usize,
    /// How many of them are free.
    pub free: usize,
    /// Each fitting node.
    pub nodes: Vec<WhyNodeView>,
}

/// A node that fits a role.
#[derive(Clone, Debug, Serialize)]
pub struct WhyNodeView {
    /// The node.
    pub node_id: String,
    /// `free`, `leased`, `cleaning`, `draining`, `silent`.
    pub status: &'static str,
    /// Who holds it, or has held it when it is being cleaned.
    pub run_id: Option<String>,
    /// Since when it is so.
    pub since: Option<String>,
    /// When the time limit of who holds it ends it.
    pub ends_by: Option<String>,
    /// Who drains it, or whose run holds it.
    pub by: Option<String>,
    /// Why it drains.
    pub reason: Option<String>,
}

/// Explains where a run stands.
///
/// # Errors
/// `not-found`.
pub fn why(conn: &Connection, id: &RunId, settings: &Settings, at: At) -> Result<WhyView, Error> {
    let run = run_view(conn, id, at)?;
    match RunState::parse(&run.state) {
        Some(RunState::Queued) => waiting(conn, &run, settings, at),
        Some(RunState::Running) => Ok(plain("running", running(conn, &run, at)?)),
        _ => {
            let verdict: serde_json::Value =
                run.verdict.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
            let text = |name: &str| verdict[name].as_str().unwrap_or_default().to_owned();
            Ok(plain(&text("kind"), text("detail")))
        }
    }
}

fn plain(code: &str, detail: String) -> WhyView {
    WhyView { code: code.to_owned(), detail, position: None, passed: 0, roles: Vec::new() }
}

/// Says what a running run is at.
fn running(conn: &Connection, run: &RunView, at: At) -> Result<String, Error> {
    let mut parts = Vec::new();
    for step in &run.steps {
        let on = step.node_id.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
        match (step.state.as_str(), step.kind.as_str()) {
            ("CLAIMED", "hold") => parts.push(format!("{} holds its nodes (step `{}`)", run.principal, step.id)),
            ("CLAIMED", _) => parts.push(format!("step `{}` is under way{on}", step.id)),
            ("ASKED", _) => parts.push(format!("step `{}` waits for an answer (`mediator asks`)", step.id)),
            _ => {}
        }
    }
    // Steps need earlier ones alone: the first that was not begun is ready.
    if let Some(step) = run.steps.iter().find(|step| step.state == "PENDING" && parts.is_empty()) {
        parts.push(match (step.kind.as_str(), &step.node_id) {
            ("hold", _) => {
                let nodes = settling(conn, run, at)?.join(", ");
                format!("step `{}` opens once the agent of {nodes} has stopped its earlier work", step.id)
            }
            (_, Some(node)) => format!("step `{}` is ready and not yet claimed by the agent of {node}", step.id),
            (_, None) => format!("step `{}` is ready", step.id),
        });
    }
    Ok(parts.join("; "))
}

/// Returns the run's nodes whose agents may still be at work for an earlier lease.
fn settling(conn: &Connection, run: &RunView, at: At) -> Result<Vec<String>, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT node_id FROM leases JOIN nodes USING (node_id) WHERE run_id = ?1 AND settling_until > ?2 ORDER BY node_id",
    )?;
    let nodes = statement.query_map((&run.run_id, at.now), |row| row.get(0))?;
    Ok(nodes.collect::<Result<_, _>>()?)
}

fn waiting(conn: &Connection, run: &RunView, settings: &Settings, at: At) -> Result<WhyView, Error> {
    let text: String = conn
        .prepare_cached("SELECT contract FROM runs WHERE run_id = ?1")?
        .query_row([&run.run_id], |row| row.get(0))?;
    let requirement = runs::contract(&RunId::from_stored(run.run_id.clone()), &text)?.requires;
    let mut fleet: Vec<(Node, NodeView)> = super::nodes::known(conn, at, settings.node_forget_ms)?
        .into_iter()
        .map(|view| {
            let id = NodeId::from_stored(view.node_id.clone());
            (Node { id, agent: !view.is_static, capabilities: view.capabilities.clone() }, view)
        })
        .collect();
    fleet.sort_by(|(a, _), (b, _)| a.weight().cmp(&b.weight()).then_with(|| a.id.cmp(&b.id)));
    let mut roles = Vec::new();
    let mut facts = Vec::new();
    for role in &requirement.roles {
        let mut nodes = Vec::new();
        let mut own = Vec::new();
        for (_, view) in fleet.iter().filter(|(node, _)| node.serves(role).is_some()) {
            let shown = show(conn, view, at)?;
            let status = status(view);
            own.push((view.node_id.clone(), status, shown.run_id.clone()));
            nodes.push(shown);
        }
        let count = |wanted: NodeStatus| own.iter().filter(|(_, status, _)| *status == wanted).count();
        roles.push(RoleView {
            role: role.name.clone(),
            wanted: role.count,
            known: own.len(),
            live: own.len() - count(NodeStatus::Silent),
            free: count(NodeStatus::Free),
            nodes,
        });
        facts.push(RoleFacts { name: role.name.clone(), wanted: role.count, nodes: own });
    }
    let passed = passed(conn, run)?;
    let (code, detail) = explain(&facts, obstacle(&requirement, &fleet, &facts, settings), passed);
    let position = run.queue.map(|QueueView { position }| position);
    Ok(WhyView { code: code.to_owned(), detail, position, passed, roles })
}

fn status(node: &NodeView) -> NodeStatus {
    if node.lease.is_some() {
        NodeStatus::Leased
    } else if node.drain.is_some() {
        NodeStatus::Draining
    } else if !node.live {
        NodeStatus::Silent
    } else if node.cleaning.is_some() {
        NodeStatus::Cleaning
    } else {
        NodeStatus::Free
    }
}

/// Finds what stands in the way first.
fn obstacle(
    requirement: &Requirement,
    fleet: &[(Node, NodeView)],
    facts: &[RoleFacts],
    settings: &Settings,
) -> Obstacle {
    let known: Vec<&Node> = fleet.iter().map(|(node, _)| node).collect();
    if matching::judge(requirement, &known).is_err() {
        return Obstacle::NoCandidate;
    }
    let free = |(_, view): &&(Node, NodeView)| status(view) == NodeStatus::Free;
    let available: Vec<&Node> = fleet.iter().filter(free).map(|(node, _)| node).collect();
    match matching::fit(requirement, &available) {
        Some(chosen) if matching::width(&chosen) > settings.lease_max_per_run => return Obstacle::TooWide,
        Some(_) => return Obstacle::Nothing,
        None => {}
    }
    let short = facts
        .iter()
        .position(|role| role.nodes.iter().filter(|(_, status, _)| *status == NodeStatus::Free).count() < role.wanted);
    short.map_or(Obstacle::Together, Obstacle::Role)
}

/// Counts the runs behind this one in the queue's order that have started since it waits.
fn passed(conn: &Connection, run: &RunView) -> Result<i64, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT count(*) FROM runs WHERE arrival > :arrival AND priority <= :priority AND started_at IS NOT NULL",
    )?;
    Ok(statement.query_row(named_params! { ":arrival": run.arrival, ":priority": run.priority }, |row| row.get(0))?)
}

fn show(conn: &Connection, node: &NodeView, at: At) -> Result<WhyNodeView, Error> {
    let status = status(node);
    let mut view = WhyNodeView {
        node_id: node.node_id.clone(),
        status: status.as_str(),
        run_id: None,
        since: None,
        ends_by: None,
        by: None,
        reason: None,
    };
    match (status, &node.lease, node.drains.first()) {
        (NodeStatus::Leased, Some(lease), _) => {
            let mut statement = conn.prepare_cached(
                "SELECT granted_at, ends_by, principal FROM leases JOIN runs USING (run_id) WHERE node_id = ?1",
            )?;
            let (since, ends_by, by): (i64, i64, String) =
                statement.query_row([&node.node_id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            view.run_id = Some(lease.run_id.clone());
            view.since = Some(at.show(since));
            view.ends_by = at.show_deadline(ends_by);
            view.by = Some(by);
        }
        (NodeStatus::Draining, _, Some(drain)) => {
            view.since = Some(drain.since.clone());
            view.by = Some(drain.by.clone());
            view.reason.clone_from(&drain.reason);
        }
        (NodeStatus::Cleaning, ..) => {
            if let Some(cleaning) = &node.cleaning {
                view.run_id = Some(cleaning.run_id.clone());
                view.since = Some(cleaning.since.clone());
            }
        }
        (NodeStatus::Silent, ..) => view.since = Some(node.last_seen.clone()),
        _ => {}
    }
    Ok(view)
}
