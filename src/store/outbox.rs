//! The outbox: notifications are rows of the transaction of their event, and are sent after its commit. A crash
//! between sending and marking sends again, with the same id.

use rusqlite::{Connection, OptionalExtension as _, Row, named_params};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::Refusal;
use super::hub::Topic;
use super::tx::{About, Tx};
use super::views::{At, Page};
use super::{Error, not_found};
use crate::clock::{Ms, rfc3339};
use crate::failpoint;
use crate::random;

/// Pauses before each further attempt, in milliseconds: about a day in all, then it is given up and kept as failed.
const PAUSES_MS: [i64; 11] =
    [5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 14_400_000, 14_400_000, 28_800_000];

/// A notification that is due.
#[derive(Clone, Debug)]
pub struct Due {
    /// Its row.
    pub id: i64,
    /// The header `webhook-id`.
    pub message_id: String,
    /// The receiver's name.
    pub webhook: String,
    /// The body.
    pub payload: String,
}

/// A notification as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct OutboxView {
    /// Its number, by which it is sent again.
    pub id: i64,
    /// What the receiver sees as `webhook-id`.
    pub message_id: String,
    /// The receiver's name.
    pub webhook: String,
    /// The event.
    pub event: String,
    /// The run it is about.
    pub run_id: Option<String>,
    /// `pending`, `delivered`, `failed`.
    pub state: String,
    /// How often it was sent.
    pub attempts: i64,
    /// When the event was.
    pub created_at: String,
    /// When it is sent next; null when it is over.
    pub next_at: Option<String>,
    /// When it was delivered or given up.
    pub ended_at: Option<String>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// Writes an event's notifications, for whoever wants it.
pub(super) fn enqueue(tx: &Tx, event: &str, about: About, data: &Value) -> Result<(), Error> {
    for webhook in tx.settings.webhooks.iter().filter(|webhook| webhook.events.iter().any(|own| own == event)) {
        let mut data = data.clone();
        data["run_id"] = about.run.map(|run| run.as_str()).into();
        data["seq"] = about.seq.into();
        data["node_id"] = about.node.map(|node| node.as_str()).into();
        let payload = json!({"type": event, "timestamp": rfc3339(tx.now, tx.offset), "data": data});
        tx.conn
            .prepare_cached(
                "INSERT INTO outbox (message_id, webhook, event, run_id, payload, created_at, next_at)
                 VALUES (:message, :webhook, :event, :run, :payload, :now, :now)",
            )?
            .execute(named_params! {
                ":message": format!("msg_{}", random::text(26)), ":webhook": webhook.name, ":event": event,
                ":run": about.run.map(|run| run.as_str()), ":payload": payload.to_string(), ":now": tx.now,
            })?;
        failpoint!("outbox.after_row");
        tx.tell(Topic::Outbox);
    }
    Ok(())
}

/// Returns the first notification for `webhook` that is due, or when the next one is.
///
/// # Errors
/// Only the database's.
pub fn next(conn: &Connection, webhook: &str, now: Ms) -> Result<Result<Due, Option<Ms>>, Error> {
    let mut statement = conn.prepare_cached(
        "SELECT id, message_id, webhook, payload, next_at FROM outbox
         WHERE state = 'pending' AND webhook = ?1 ORDER BY next_at, id LIMIT 1",
    )?;
    let first = statement.query_row([webhook], |row| {
        let due = Due { id: row.get(0)?, message_id: row.get(1)?, webhook: row.get(2)?, payload: row.get(3)? };
        Ok((due, row.get::<_, Ms>(4)?))
    });
    Ok(match first.optional()? {
        None => Err(None),
        Some((due, next_at)) if next_at <= now => Ok(due),
        Some((_, next_at)) => Err(Some(next_at)),
    })
}

/// Notes what an attempt led to; `jitter` is a random number from 0 to 1, so that many do not come back at once.
pub fn mark(tx: &Tx, id: i64, outcome: &Result<(), String>, jitter: f64) -> Result<(), Error> {
    let attempts: Option<i64> = tx
        .conn
        .prepare_cached(
            "UPDATE outbox SET attempts = attempts + 1 WHERE id = ?1 AND state = 'pending' RETURNING attempts",
        )?
        .query_row([id], |row| row.get(0))
        .optional()?;
    let Some(attempts) = attempts else { return Ok(()) };
    let pause = usize::try_from(attempts - 1).ok().and_then(|at| PAUSES_MS.get(at));
    let (state, error, next_at) = match (outcome, pause) {
        (Ok(()), _) => ("delivered", None, tx.now),
        (Err(error), None) => ("failed", Some(error), tx.now),
        (Err(error), Some(&pause)) => {
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "hours in milliseconds")]
            let late = (pause as f64 * 0.25 * jitter) as i64;
            ("pending", Some(error), tx.after(pause + late))
        }
    };
    tx.conn
        .prepare_cached(
            "UPDATE outbox SET state = :state, last_error = :error, next_at = :next,
                 ended_at = CASE WHEN :state = 'pending' THEN NULL ELSE :now END WHERE id = :id",
        )?
        .execute(named_params! {
            ":state": state, ":error": error, ":next": next_at, ":now": tx.now, ":id": id,
        })?;
    Ok(())
}

/// Sends a notification again, from the first attempt on, with the same id. Returns it as it is then.
///
/// # Errors
/// `not-found`.
pub fn resend(tx: &Tx, id: i64) -> Result<OutboxView, Error> {
    let rows = tx
        .conn
        .prepare_cached(
            "UPDATE outbox SET state = 'pending', attempts = 0, next_at = ?2, ended_at = NULL WHERE id = ?1",
        )?
        .execute((id, tx.now))?;
    if rows == 0 {
        return Err(not_found(format_args!("notification {id}")));
    }
    tx.tell(Topic::Outbox);
    let mut statement = tx.conn.prepare_cached(&format!("SELECT {COLUMNS} FROM outbox WHERE id = ?1"))?;
    Ok(statement.query_row([id], |row| read(row, tx.at()))?)
}

const COLUMNS: &str =
    "id, message_id, webhook, event, run_id, state, attempts, created_at, next_at, ended_at, last_error";

fn read(row: &Row, at: At) -> rusqlite::Result<OutboxView> {
    let show = |time: Ms| rfc3339(time, at.offset);
    let state: String = row.get(5)?;
    let next_at = (state == "pending").then(|| row.get(8)).transpose()?.map(show);
    Ok(OutboxView {
        id: row.get(0)?,
        message_id: row.get(1)?,
        webhook: row.get(2)?,
        event: row.get(3)?,
        run_id: row.get(4)?,
        attempts: row.get(6)?,
        created_at: show(row.get(7)?),
        next_at,
        ended_at: row.get::<_, Option<Ms>>(9)?.map(show),
        last_error: row.get(10)?,
        state,
    })
}

/// Returns a page of notifications, newest first, in one state or in all, and the cursor of the next.
///
/// # Errors
/// `invalid-request` for a cursor that is none.
pub fn list(
    conn: &Connection,
    state: Option<&str>,
    page: &Page,
    at: At,
) -> Result<(Vec<OutboxView>, Option<String>), Error> {
    let before: i64 = match &page.cursor {
        None => i64::MAX,
        Some(cursor) => cursor.parse().map_err(|_| {
            Error::Refused(Refusal::new("invalid-request", "not a cursor that a list gave as `next`").at("/cursor"))
        })?,
    };
    let of_state = if state.is_some() { "state = :state AND" } else { "" };
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM outbox WHERE {of_state} id < :before ORDER BY id DESC LIMIT :limit"
    ))?;
    let limit = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
    let mut params: Vec<(&str, &dyn rusqlite::ToSql)> = vec![(":before", &before), (":limit", &limit)];
    if let Some(state) = &state {
        params.push((":state", state));
    }
    let rows = statement.query_map(params.as_slice(), |row| read(row, at))?;
    let mut list: Vec<OutboxView> = rows.collect::<Result<_, _>>()?;
    let next = super::views::cut(&mut list, page.limit, |row| row.id.to_string());
    Ok((list, next))
}
