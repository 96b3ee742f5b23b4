//! The inbox: questions that are open.

use rusqlite::Connection;
use serde::Serialize;

use super::runs::bad_cursor;
use super::{At, Page, cut};
use crate::clock::Ms;
use crate::domain::contract::Kind;
use crate::domain::ids::RunId;
use crate::store::{Error, runs};

/// An open question as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct AskView {
    /// The run that asks.
    pub run_id: String,
    /// The step's number.
    pub seq: i64,
    /// The step's id.
    pub id: String,
    /// The attempt: a loop asks again.
    pub attempt: i64,
    /// The question.
    pub prompt: String,
    /// What may be answered; empty: any text.
    pub options: Vec<String>,
    /// Who may answer; empty: anyone.
    pub answerers: Vec<String>,
    /// Since when it is open.
    pub asked_at: String,
    /// Until when.
    pub deadline: Option<String>,
    #[serde(skip)]
    cursor: String,
}

/// Returns a page of open questions, oldest first, and the cursor of the next.
pub fn asks(conn: &Connection, page: &Page, at: At) -> Result<(Vec<AskView>, Option<String>), Error> {
    let (after, run, seq) = match &page.cursor {
        None => (-1, String::new(), 0),
        Some(cursor) => {
            let mut parts = cursor.splitn(3, ':');
            let mut number = || parts.next().and_then(|part| part.parse::<i64>().ok()).ok_or_else(bad_cursor);
            let (after, seq) = (number()?, number()?);
            (after, parts.next().ok_or_else(bad_cursor)?.to_owned(), seq)
        }
    };
    let mut statement = conn.prepare_cached(
        "SELECT steps.run_id, seq, id, attempt, steps.started_at, deadline, contract
         FROM steps JOIN runs ON runs.run_id = steps.run_id
         WHERE steps.state = 'ASKED' AND (steps.started_at, steps.run_id, seq) > (?1, ?2, ?3)
         ORDER BY steps.started_at, steps.run_id, seq LIMIT ?4",
    )?;
    let mut rows = statement.query((after, run, seq, i64::try_from(page.limit + 1).unwrap_or(i64::MAX)))?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let (run_id, seq, asked): (String, i64, Ms) = (row.get(0)?, row.get(1)?, row.get(4)?);
        let contract: String = row.get(6)?;
        let contract = runs::contract(&RunId::from_stored(run_id.clone()), &contract)?;
        let step = usize::try_from(seq - 1).ok().and_then(|at| contract.steps.into_iter().nth(at));
        let Some(Kind::Ask(question)) = step.map(|step| step.kind) else {
            return Err(Error::Broken(format!("step {seq} of run {run_id} is not a question")));
        };
        list.push(AskView {
            cursor: format!("{asked}:{seq}:{run_id}"),
            run_id,
            seq,
            id: row.get(2)?,
            attempt: row.get(3)?,
            prompt: question.prompt,
            options: question.options,
            answerers: question.answerers,
            asked_at: at.show(asked),
            deadline: at.show_deadline(row.get(5)?),
        });
    }
    let next = cut(&mut list, page.limit, |ask| ask.cursor.clone());
    Ok((list, next))
}
