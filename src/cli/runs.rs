//! `mediator runs` and `show`.

use super::out::Table;
use super::wire::{self, Capability, Require, Run, Step};
use super::{Context, Exit, Stop, lists, out, text};
use crate::client::encode;

/// Flags of `mediator runs`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Only runs in this state: queued, running, succeeded, failed or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Only runs of this principal
    #[arg(long)]
    principal: Option<String>,
    /// Only runs of this work
    #[arg(long)]
    work: Option<String>,
    /// Only runs that had this node
    #[arg(long)]
    node: Option<String>,
    /// Only runs submitted since this time (RFC 3339), or within this age (90s, 30m, 6h, 7d)
    #[arg(long, value_name = "TIME", value_parser = text::parse_since)]
    since: Option<String>,
    /// Show at most this many (default: 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// Flags of `mediator show`.
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// The run
    #[arg(value_name = "RUN")]
    run_id: String,
}

/// Lists runs, newest first.
pub async fn list(args: ListArgs, context: &Context) -> Result<Exit, Stop> {
    let filters = [
        ("state", args.state.map(|state| state.to_ascii_uppercase())),
        ("principal", args.principal),
        ("work", args.work),
        ("node", args.node),
        ("since", args.since),
    ];
    let limit = args.limit.map(|limit| limit as usize);
    let list = lists::fetch(context, "/v1/runs", "runs", &filters, limit).await?;
    if context.json {
        list.print_json("runs")?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["RUN", "STATE", "NAME", "BY", "AGE", "WAITED", "DETAIL"]);
    for run in list.read::<Run>()? {
        let detail = match run.state.as_str() {
            "QUEUED" => run.queue.position.map(|position| format!("position {position}")).unwrap_or_default(),
            _ if run.has_ended() => text::verdict(&run),
            _ => doing(&run),
        };
        let (age, waited) = (text::age(&run.created_at), waited(&run));
        table.row([run.run_id, run.state, run.name, run.principal, age, waited, detail]);
    }
    table.print()?;
    Ok(Exit::Done)
}

/// Shows the whole story of one run.
pub async fn show(args: ShowArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get(&format!("/v1/runs/{}", encode(&args.run_id))).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let run: Run = wire::read(&answer)?;
    let field = |name: &str, value: &str| -> std::io::Result<()> {
        if value.is_empty() { Ok(()) } else { out::line(&format!("{:<11}{value}", format!("{name}:"))) }
    };
    field("run", &run.run_id)?;
    field("name", &run.name)?;
    field("state", text::run_state(&run).trim_start_matches("is "))?;
    field("by", &run.principal)?;
    field("work", &run.work)?;
    if run.priority != 0 {
        field("priority", &run.priority.to_string())?;
    }
    field("created", &moment(&run.created_at))?;
    field("started", &moment(&run.started_at))?;
    field("ended", &moment(&run.ended_at))?;
    field("waited", &waited(&run))?;
    if !run.started_at.is_empty() {
        field("took", &text::lasted(&run.started_at, &run.ended_at))?;
    }
    if !run.has_ended() {
        field("ends by", &run.ends_by)?;
    }
    for require in &run.requires {
        field("requires", &requirement(require))?;
    }
    field("assigned", &text::placement(&run.assigned))?;
    if run.state == "RUNNING" {
        field("now", &at_hand(&run).join("; "))?;
    }
    if !run.steps.is_empty() {
        out::line("")?;
        steps(&run.steps).print()?;
    }
    Ok(Exit::Done)
}

/// Returns how long a run waited for its nodes, or waits; up to its end if it never had them.
fn waited(run: &Run) -> String {
    let until = if run.started_at.is_empty() { &run.ended_at } else { &run.started_at };
    text::lasted(&run.created_at, until)
}

/// Returns who has what of a running run in hand: the nodes that carry out a step, the holder, the question.
fn at_hand(run: &Run) -> Vec<String> {
    let describe = |step: &Step| match (step.state.as_str(), step.kind.as_str()) {
        ("CLAIMED", "hold") => Some(format!("{} holds it ({})", run.principal, step.id)),
        ("CLAIMED", _) => Some(format!("{} works on {}", step.node_id, step.id)),
        ("ASKED", _) => Some(format!("{} waits for an answer", step.id)),
        _ => None,
    };
    run.steps.iter().filter_map(describe).collect()
}

/// Returns where a running run is, and what it is at.
fn doing(run: &Run) -> String {
    let mut parts = vec![text::placement(&run.assigned)];
    parts.extend(at_hand(run));
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}

fn steps(steps: &[Step]) -> Table {
    let mut table = Table::new(&["STEP", "ID", "KIND", "USES", "STATE", "NODE", "ATTEMPT", "TOOK", "RESULT"]);
    for step in steps {
        let result = step.result.as_ref().map(text::step_result).unwrap_or_default();
        table.row([
            step.seq.to_string(),
            step.id.clone(),
            step.kind.clone(),
            step.uses.clone(),
            step.state.clone(),
            step.node_id.clone(),
            step.attempt.to_string(),
            text::lasted(&step.started_at, &step.ended_at),
            result,
        ]);
    }
    table
}

fn requirement(require: &Require) -> String {
    let wanted = Capability { capability: require.capability.clone(), attrs: require.attrs.clone() };
    let count = require.count.filter(|&count| count > 1).map(|count| format!(" ({count} nodes)")).unwrap_or_default();
    format!("{}={}{count}", require.r#as, text::capability(&wanted))
}

fn moment(at: &str) -> String {
    if at.is_empty() { String::new() } else { format!("{at} ({} ago)", text::age(at)) }
}
