//! `mediator why`: what a run waits for.

use super::out::Table;
use super::wire::{self, Why, WhyNode};
use super::{Context, Exit, Stop, out, text};
use crate::client::encode;

/// Flags of `mediator why`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run_id: String,
}

/// Explains where a run stands.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get(&format!("/v1/runs/{}/why", encode(&args.run_id))).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let why: Why = wire::read(&answer)?;
    let reason = if why.detail.is_empty() { &why.code } else { &why.detail };
    let position = why.position.map(|position| format!(", position {position}")).unwrap_or_default();
    out::line(&format!("run {} ({}{position}): {reason}", args.run_id, why.code))?;
    for role in &why.roles {
        out::line("")?;
        out::line(&format!(
            "{}: {} wanted, {} known, {} live, {} free",
            role.r#as, role.wanted, role.known, role.live, role.free
        ))?;
        if role.nodes.is_empty() {
            continue;
        }
        let mut table = Table::new(&["NODE", "STATUS", "FOR", "UNTIL", "DETAIL"]);
        for node in &role.nodes {
            let (status, until) = (node.status.clone(), node.ends_by.clone());
            table.row([node.node_id.clone(), status, text::age(&node.since), until, detail(node)]);
        }
        table.print()?;
    }
    Ok(Exit::Done)
}

fn detail(node: &WhyNode) -> String {
    let mut parts = Vec::new();
    if !node.run_id.is_empty() {
        parts.push(format!("run {}", node.run_id));
    }
    if !node.by.is_empty() {
        parts.push(format!("by {}", node.by));
    }
    if !node.reason.is_empty() {
        parts.push(node.reason.clone());
    }
    parts.join(", ")
}
