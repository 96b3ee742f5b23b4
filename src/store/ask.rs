//! Answers to questions. (A question is raised by `progress::advance`, and ends unanswered by the reaper.)

use rusqlite::OptionalExtension as _;
use serde_json::{Value, json};

use super::error::Refusal;
use super::live::Live;
use super::progress;
use super::tx::Tx;
use super::{Error, not_found, runs};
use crate::domain::contract::Kind;
use crate::domain::ids::RunId;
use crate::domain::run::RunState;
use crate::domain::step::StepState;
use crate::failpoint;

/// An answer as it came in.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The run.
    pub run: RunId,
    /// The step's number.
    pub seq: i64,
    /// What was answered.
    pub answer: String,
    /// The attempt that is meant, if it was said.
    pub attempt: Option<i64>,
    /// Who answers.
    pub by: String,
    /// Whether an operator: they may always answer.
    pub operator: bool,
}

/// Takes an answer; returns whether anything changed. The same answer again changes nothing and is no error.
///
/// # Errors
/// `not-found`; `forbidden`; `not-asked`; `not-an-option` (the question stays open); `already-answered`.
pub fn answer(tx: &Tx, answer: &Answer) -> Result<bool, Error> {
    let row = runs::get(tx, &answer.run)?;
    let (kind, state, attempt, result) = find(tx, answer)?;
    let refuse = |code, detail: String| Err(Error::Refused(Refusal::new(code, detail)));
    if kind != "ask" {
        return refuse("not-asked", format!("step {} of run {} is not a question", answer.seq, answer.run));
    }
    let contract = tx.contract(&answer.run, &row.contract)?;
    let at = usize::try_from(answer.seq - 1).unwrap_or(usize::MAX);
    let Some(Kind::Ask(question)) = contract.steps.get(at).map(|step| &step.kind) else {
        return Err(Error::Broken(format!("step {} of run {} is not what its row says", answer.seq, answer.run)));
    };
    if !answer.operator && !question.answerers.is_empty() && !question.answerers.contains(&answer.by) {
        return refuse("forbidden", format!("{} is not among those who may answer", answer.by));
    }
    if answer.attempt.is_some_and(|given| given != attempt) {
        return refuse("already-answered", format!("the question stands in attempt {attempt}"));
    }
    match StepState::parse(&state) {
        Some(StepState::Asked) => {}
        Some(StepState::Done | StepState::Failed) if result["answer"] == answer.answer.as_str() => return Ok(false),
        Some(StepState::Done | StepState::Failed) => {
            let detail = match (result["answer"].as_str(), result["by"].as_str()) {
                (Some(given), Some(by)) => format!("{by} has answered `{given}`"),
                _ => "the time to answer has ended".to_owned(),
            };
            return refuse("already-answered", detail);
        }
        _ => return refuse("not-asked", format!("the question is not open: it is {state} in attempt {attempt}")),
    }
    if row.state != RunState::Running {
        return Err(Error::Broken(format!("run {} asks and is {}", answer.run, row.state)));
    }
    if !question.options.is_empty() && !question.options.contains(&answer.answer) {
        let detail = format!("`{}` is not an option: choose one of {}", answer.answer, question.options.join(", "));
        return Err(Error::Refused(Refusal::new("not-an-option", detail).at("/answer")));
    }
    let accepted = question.accept.is_empty() || question.accept.contains(&answer.answer);
    let result = json!({"answer": answer.answer, "by": answer.by});
    let mut live = Live::load(tx, row)?;
    if accepted {
        progress::finish(tx, &mut live, at, &result)?;
    } else {
        let why = format!("was answered `{}` by {}", answer.answer, answer.by);
        progress::fail(tx, &mut live, at, &result, &why)?;
    }
    failpoint!("ask.after_answer");
    Ok(true)
}

fn find(tx: &Tx, answer: &Answer) -> Result<(String, String, i64, Value), Error> {
    let mut statement =
        tx.conn.prepare_cached("SELECT kind, state, attempt, result FROM steps WHERE run_id = ?1 AND seq = ?2")?;
    let found = statement
        .query_row((answer.run.as_str(), answer.seq), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, Option<String>>(3)?))
        })
        .optional()?;
    let Some((kind, state, attempt, result)) = found else {
        return Err(not_found(format_args!("step {} in run {}", answer.seq, answer.run)));
    };
    let result = result.map_or(Ok(Value::Null), |text| serde_json::from_str(&text))?;
    Ok((kind, state, attempt, result))
}
