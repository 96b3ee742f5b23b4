//! `mediator asks` and `answer`: the inbox.

use serde_json::json;

use super::logs::find_step;
use super::out::Table;
use super::wire::{self, Ask, Run};
use super::{Context, Exit, Stop, lists, out, text};
use crate::client::encode;

/// Flags of `mediator asks`.
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Show at most this many (default: 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// Flags of `mediator answer`.
#[derive(clap::Args, Debug)]
pub struct AnswerArgs {
    /// The run that asks
    #[arg(value_name = "RUN")]
    run_id: String,
    /// The step that asks, by its id or number
    #[arg(value_name = "STEP")]
    step: String,
    /// The answer: one of the options if there are any
    #[arg(value_name = "TEXT")]
    answer: String,
}

/// Lists open questions, oldest first.
pub async fn list(args: ListArgs, context: &Context) -> Result<Exit, Stop> {
    let limit = args.limit.map(|limit| limit as usize);
    let list = lists::fetch(context, "/v1/asks", "asks", &[], limit).await?;
    if context.json {
        list.print_json("asks")?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["RUN", "STEP", "AGE", "UNTIL", "OPTIONS", "WHO", "QUESTION"]);
    for ask in list.read::<Ask>()? {
        let options = if ask.options.is_empty() { "any text".to_owned() } else { ask.options.join("|") };
        let who = if ask.answerers.is_empty() { "anyone".to_owned() } else { ask.answerers.join(",") };
        table.row([ask.run_id, ask.id, text::age(&ask.asked_at), ask.deadline, options, who, ask.prompt]);
    }
    table.print()?;
    Ok(Exit::Done)
}

/// Answers a question.
pub async fn answer(args: AnswerArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get(&format!("/v1/runs/{}", encode(&args.run_id))).await?;
    let run: Run = wire::read(&answer)?;
    let step = find_step(&run, &args.step)?;
    // The attempt that was looked at: an answer must not reach a question that a rollback has asked anew.
    let body = json!({ "answer": args.answer, "attempt": step.attempt });
    let path = format!("/v1/runs/{}/steps/{}/answer", encode(&run.run_id), step.seq);
    let answer = context.post(&path, &body).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let run: Run = wire::read(&answer)?;
    out::line(&format!("answered; run {} {}", run.run_id, text::run_state(&run)))?;
    Ok(Exit::Done)
}
