//! `mediator nodes`, `node show|add|remove`, `drain` and `undrain`.

use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::out::Table;
use super::wire::{self, Node};
use super::{Context, Exit, Stop, lists, out, text};
use crate::client::{Answer, encode};

/// Flags of `mediator nodes`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Show at most this many (default: 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// The commands of `mediator node`.
#[derive(clap::Subcommand, Debug)]
pub enum NodeCommand {
    /// Show everything about a node
    Show(NodeArgs),
    /// Declare a node that has no agent, or declare it anew
    Add(AddArgs),
    /// Forget a node that no run holds
    Remove(NodeArgs),
    /// Let the agent of a node whose cleanup failed try again
    Clean(CleanArgs),
}

/// Names a node.
#[derive(clap::Args, Debug)]
pub struct NodeArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node_id: String,
}

/// Flags of `mediator node add`.
#[derive(clap::Args, Debug)]
pub struct AddArgs {
    /// The node's id
    #[arg(value_name = "NODE")]
    node_id: String,
    /// Something the node can do (can be repeated)
    #[arg(long, required = true, value_name = "CAPABILITY[,KEY=VALUE..]", value_parser = text::parse_capability)]
    capability: Vec<Map<String, Value>>,
    /// What people call it
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

/// Flags of `mediator node clean`.
#[derive(clap::Args, Debug)]
pub struct CleanArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node_id: String,
    /// It is clean: you have seen to it yourself
    #[arg(long)]
    done: bool,
}

/// Flags of `mediator drain`.
#[derive(clap::Args, Debug)]
pub struct DrainArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node_id: String,
    /// End its run at the next step boundary (default: let it end by itself)
    #[arg(long)]
    at_boundary: bool,
    /// Why; whoever waits for the node reads it
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Flags of `mediator undrain`.
#[derive(clap::Args, Debug)]
pub struct UndrainArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node_id: String,
}

/// Lists nodes.
pub async fn list(args: ListArgs, context: &Context) -> Result<Exit, Stop> {
    let limit = args.limit.map(|limit| limit as usize);
    let list = lists::fetch(context, "/v1/nodes", "nodes", &[], limit).await?;
    if context.json {
        list.print_json("nodes")?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["NODE", "LABEL", "CAPABILITIES", "STATE", "SEEN"]);
    for node in list.read::<Node>()? {
        let (state, seen) = (state(&node), seen(&node));
        table.row([node.node_id, node.label, capabilities(&node.capabilities), state, seen]);
    }
    table.print()?;
    Ok(Exit::Done)
}

/// Shows one node.
pub async fn show(args: NodeArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get(&address(&args.node_id)).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let node: Node = wire::read(&answer)?;
    out::line(&format!("node:       {}", node.node_id))?;
    if !node.label.is_empty() {
        out::line(&format!("label:      {}", node.label))?;
    }
    out::line(&format!("state:      {}", state(&node)))?;
    out::line(&format!("seen:       {}", seen(&node)))?;
    for capability in &node.capabilities {
        out::line(&format!("capability: {}", text::capability(capability)))?;
    }
    if let Some(cleaning) = node.cleaning.as_ref().filter(|cleaning| cleaning.failure.is_empty()) {
        out::line(&format!("cleaning:   for {}, after run {}", text::age(&cleaning.since), cleaning.run_id))?;
    }
    for drain in &node.drains {
        let age = text::age(&drain.since);
        let reason = if drain.reason.is_empty() { "no reason given" } else { &drain.reason };
        out::line(&format!("drain:      {} by {} for {age}: {reason}", drain.mode, drain.by))?;
    }
    if !node.waiting.is_empty() {
        let (first, count) = (&node.waiting[..node.waiting.len().min(WAITING)], node.waiting.len());
        let more = if count > first.len() { format!(" and {} more", count - first.len()) } else { String::new() };
        out::line(&format!("waiting:    {}{more} (it could serve them; first in the queue first)", first.join(", ")))?;
    }
    if !node.holders.is_empty() {
        out::line("")?;
        let mut table = Table::new(&["HOLDER", "BY", "WORK", "SINCE", "HELD FOR", "ENDED AS"]);
        for holder in &node.holders {
            let held = text::lasted(&holder.from, &holder.to);
            let why = if holder.to.is_empty() { "it holds it now".to_owned() } else { holder.why.clone() };
            let since = format!("{} ago", text::age(&holder.from));
            table.row([holder.run_id.clone(), holder.principal.clone(), holder.work.clone(), since, held, why]);
        }
        table.print()?;
    }
    Ok(Exit::Done)
}

/// How many of those that wait for a node are named.
const WAITING: usize = 5;

/// Declares a node without an agent.
pub async fn add(args: AddArgs, context: &Context) -> Result<Exit, Stop> {
    let mut advert = json!({ "node_id": args.node_id, "static": true, "capabilities": args.capability });
    if let Some(label) = args.label {
        advert["label"] = label.into();
    }
    let answer = context.post("/v1/nodes", &advert).await?;
    if context.json {
        out::raw_json(&answer.body)?;
    } else {
        out::line(&format!("node {} is declared", args.node_id))?;
    }
    Ok(Exit::Done)
}

/// Forgets a node.
pub async fn remove(args: NodeArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = delete(context, &address(&args.node_id)).await?;
    if !context.json {
        out::line(&format!("node {} is removed", args.node_id))?;
    } else if !answer.body.is_empty() {
        out::raw_json(&answer.body)?;
    }
    Ok(Exit::Done)
}

/// Lets an agent clean again, or says that the node is clean.
pub async fn clean(args: CleanArgs, context: &Context) -> Result<Exit, Stop> {
    let path = format!("{}/clean", address(&args.node_id));
    let answer = context.post(&path, &json!({ "done": args.done })).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let node: Node = wire::read(&answer)?;
    out::line(&match &node.cleaning {
        None => format!("node {} is clean", node.node_id),
        Some(cleaning) => format!("node {} is being cleaned after run {}", node.node_id, cleaning.run_id),
    })?;
    Ok(Exit::Done)
}

/// Drains a node.
pub async fn drain(args: DrainArgs, context: &Context) -> Result<Exit, Stop> {
    let mode = if args.at_boundary { "at-boundary" } else { "graceful" };
    let path = format!("{}/drain", address(&args.node_id));
    let answer = context.post(&path, &json!({ "mode": mode, "reason": args.reason })).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let node: Node = wire::read(&answer)?;
    out::line(&match &node.lease {
        None => format!("node {} is drained: no run holds it", node.node_id),
        Some(lease) if node.drain == "at-boundary" => {
            format!("node {} is draining: run {} ends at its next step boundary", node.node_id, lease.run_id)
        }
        Some(lease) => format!("node {} is draining: run {} holds it until it ends", node.node_id, lease.run_id),
    })?;
    Ok(Exit::Done)
}

/// Lifts the operator's drain, and says so when the owner's remains.
pub async fn undrain(args: UndrainArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = delete(context, &format!("{}/drain", address(&args.node_id))).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let node: Node = wire::read(&answer)?;
    if node.drains.is_empty() {
        out::line(&format!("node {} takes runs again", node.node_id))?;
    }
    for drain in &node.drains {
        let by = if drain.by == "node" { "its owner" } else { drain.by.as_str() };
        out::line(&format!("node {} still drains ({}), as {by} says: {}", node.node_id, drain.mode, drain.reason))?;
    }
    Ok(Exit::Done)
}

async fn delete(context: &Context, path: &str) -> Result<Answer, Stop> {
    context.change(Method::DELETE, path, Bytes::new()).await
}

fn address(node_id: &str) -> String {
    format!("/v1/nodes/{}", encode(node_id))
}

/// Returns what a node is doing: the lease first, then what keeps it from having one.
fn state(node: &Node) -> String {
    let mut parts = Vec::new();
    if let Some(lease) = &node.lease {
        parts.push(format!("leased by {}", lease.run_id));
    }
    if !node.drain.is_empty() {
        parts.push(match &node.lease {
            Some(_) => format!("draining ({})", node.drain),
            None => "drained".to_owned(),
        });
    }
    if node.cleaning.as_ref().is_some_and(|cleaning| cleaning.failure.is_empty()) {
        parts.push("cleaning".to_owned());
    }
    if !node.live && !node.r#static {
        parts.push("silent".to_owned());
    }
    if parts.is_empty() {
        parts.push("free".to_owned());
    }
    parts.join(", ")
}

fn seen(node: &Node) -> String {
    if node.r#static { "static".to_owned() } else { format!("{} ago", text::age(&node.last_seen)) }
}

fn capabilities(entries: &[wire::Capability]) -> String {
    entries.iter().map(text::capability).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_node_is_told_in_words() {
        let check = |node: Value, expect: &str| {
            assert_eq!(state(&serde_json::from_value(node).expect("a node")), expect);
        };
        check(json!({"live": true}), "free");
        check(json!({"static": true, "live": false}), "free");
        check(json!({"live": false}), "silent");
        check(json!({"live": true, "lease": {"run_id": "r-1"}}), "leased by r-1");
        check(json!({"live": true, "drain": "graceful"}), "drained");
        check(json!({"live": true, "cleaning": {"run_id": "r-1", "failure": null}}), "cleaning");
        check(json!({"live": true, "drain": "graceful", "cleaning": {"run_id": "r-1", "failure": "x"}}), "drained");
        check(
            json!({"live": false, "drain": "at-boundary", "lease": {"run_id": "r-1"}}),
            "leased by r-1, draining (at-boundary), silent",
        );
    }
}
