//! Idempotency keys: an effect and its completion record commit together (I5), so a retry of the same request has one
//! effect whatever was lost on the way.
//!
//! The key is looked up and stored in the transaction of the effect. There is no durable "in progress": a second
//! request with the same key waits for the one writer, and then finds the first one's answer. Only what had an effect
//! is stored; an error leaves the key free.

use rusqlite::{Connection, OptionalExtension as _, named_params};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::error::Refusal;
use super::tx::Tx;
use super::views::At;
use super::{Error, NEVER};
use crate::clock::{Ms, rfc3339};
use crate::domain::ids::RunId;
use crate::failpoint;

/// How fingerprints are made now; one made differently is compared with its own version's algorithm.
const FP_VERSION: i64 = 1;

/// How many keys are forgotten in one step: a step must not be felt by a write that waits for it.
const PRUNE: i64 = 200;

/// A request that carries a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// The principal.
    pub scope: String,
    /// The key.
    pub key: String,
    /// Of method, path, query and body; see [`fingerprint`].
    pub fingerprint: [u8; 32],
}

/// An answer as it is kept and given again, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers that matter, by name.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// What an effect leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Its answer.
    pub answer: Answer,
    /// Whether it changed anything: only then is its key kept.
    pub changed: bool,
    /// The run it is about.
    pub run: Option<RunId>,
}

/// How a request with a key was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It acted, or it had no key, or it changed nothing.
    New(Answer, Option<Kept>),
    /// An equal request has acted before: its answer.
    Replay(Answer, Kept),
}

/// Until when an answer is kept, as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// RFC 3339. Never before the run it is about has ended.
    pub expires: String,
}

/// What is known of a key.
#[derive(Clone, Debug, Serialize)]
pub struct RequestView {
    /// The key.
    pub key: String,
    /// `absent`: nothing was done under it, or that was long ago; `stored`; `expired`: done, and the answer forgotten.
    pub state: &'static str,
    /// The status of the stored answer.
    pub status: Option<u16>,
    /// The run it was about.
    pub run_id: Option<String>,
    /// When it was first used.
    pub created_at: Option<String>,
    /// When the answer is forgotten, if the run has ended by then; null when it is forgotten already.
    pub expires_at: Option<String>,
}

/// Makes the fingerprint of a request. `query` is sorted here; `body` is in canonical form, so that key order and
/// white space do not matter.
pub fn fingerprint(method: &str, path: &str, query: &[(String, String)], body: &str) -> [u8; 32] {
    let mut query: Vec<_> = query.to_vec();
    query.sort();
    let mut hash = Sha256::new();
    // Each part with its length before it: no two requests can be spelled alike.
    let mut put = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    put(&FP_VERSION.to_be_bytes());
    put(method.as_bytes());
    put(path.as_bytes());
    put(&(query.len() as u64).to_be_bytes());
    for (name, value) in &query {
        put(name.as_bytes());
        put(value.as_bytes());
    }
    put(body.as_bytes());
    hash.finalize().into()
}

/// Runs `effect` once for all equal requests with one key; without a key, every time.
///
/// # Errors
/// [`Error::Refused`] with `idempotency-payload-conflict` or `idempotency-key-expired`: nothing is done. Whatever
/// `effect` refuses leaves the key free.
pub fn once(
    tx: &Tx,
    keyed: Option<&Keyed>,
    effect: impl FnOnce(&Tx) -> Result<Effect, Error>,
) -> Result<Answered, Error> {
    let Some(keyed) = keyed else { return Ok(Answered::New(effect(tx)?.answer, None)) };
    if let Some((answer, kept)) = find(tx, keyed)? {
        return Ok(Answered::Replay(answer, kept));
    }
    let Effect { answer, changed, run } = effect(tx)?;
    failpoint!("request.after_effect");
    if !changed {
        return Ok(Answered::New(answer, None));
    }
    let due_at = tx.after(tx.settings.idempotency_retention_ms);
    let headers: serde_json::Map<String, Value> =
        answer.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    tx.conn
        .prepare_cached(
            "INSERT INTO requests (scope, key, run_id, created_at, due_at, fp_version, fingerprint, status, headers, body)
             VALUES (:scope, :key, :run, :now, :due, :version, :fingerprint, :status, :headers, :body)",
        )?
        .execute(named_params! {
            ":scope": keyed.scope, ":key": keyed.key, ":run": run.as_ref().map(RunId::as_str), ":now": tx.now,
            ":due": due_at, ":version": FP_VERSION, ":fingerprint": keyed.fingerprint, ":status": answer.status,
            ":headers": Value::Object(headers).to_string(), ":body": answer.body,
        })?;
    failpoint!("request.after_row");
    let kept = Kept { expires: rfc3339(due_at, tx.offset) };
    Ok(Answered::New(answer, Some(kept)))
}

/// Looks a key up.
fn find(tx: &Tx, keyed: &Keyed) -> Result<Option<(Answer, Kept)>, Error> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT run_id, created_at, due_at, fp_version, fingerprint, status, headers, body FROM requests
         WHERE scope = ?1 AND key = ?2",
    )?;
    let row = statement.query_row((&keyed.scope, &keyed.key), |row| {
        Ok((
            row.get::<_, Option<String>>(0)?,
            expiry(row.get(1)?, row.get(2)?, tx.settings.idempotency_retention_ms),
            row.get::<_, Option<i64>>(3)?,
            row.get::<_, Option<[u8; 32]>>(4)?,
            row.get::<_, Option<u16>>(5)?,
            row.get::<_, Option<String>>(6)?,
            row.get::<_, Option<Vec<u8>>>(7)?,
        ))
    });
    let Some((run, expires, version, fingerprint, status, headers, body)) = row.optional()? else {
        return Ok(None);
    };
    let (Some(version), Some(fingerprint), Some(status), Some(headers), Some(body)) =
        (version, fingerprint, status, headers, body)
    else {
        let detail = "this key was used long ago, and its answer is forgotten: it is not done again";
        return Err(Error::Refused(Refusal::new("idempotency-key-expired", detail).with("run_id", run)));
    };
    if version != FP_VERSION || fingerprint != keyed.fingerprint {
        let detail = "this key was used for another request: nothing was done, and the first one's effect stands";
        return Err(Error::Refused(Refusal::new("idempotency-payload-conflict", detail)));
    }
    let headers: Value = serde_json::from_str(&headers)?;
    let headers = headers.as_object().into_iter().flatten();
    let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
    Ok(Some((Answer { status, headers, body }, Kept { expires: rfc3339(expires, tx.offset) })))
}

/// Returns until when an answer is kept, as it was told with it: a setting that was changed since does not change what
/// was promised. A key that waits for the end of its run has no such time in its row any more.
fn expiry(created_at: Ms, due_at: Ms, retention_ms: i64) -> Ms {
    if due_at == NEVER { created_at.saturating_add(retention_ms) } else { due_at }
}

/// Tells what is known of a key.
///
/// # Errors
/// Only the database's.
pub fn request(conn: &Connection, scope: &str, key: &str, retention_ms: i64, at: At) -> Result<RequestView, Error> {
    let mut statement =
        conn.prepare_cached("SELECT run_id, created_at, due_at, status FROM requests WHERE scope = ?1 AND key = ?2")?;
    let row = statement.query_row((scope, key), |row| {
        Ok((
            row.get::<_, Option<String>>(0)?,
            row.get::<_, Ms>(1)?,
            row.get::<_, Ms>(2)?,
            row.get::<_, Option<u16>>(3)?,
        ))
    });
    let show = |time| rfc3339(time, at.offset);
    Ok(match row.optional()? {
        None => RequestView {
            key: key.to_owned(),
            state: "absent",
            status: None,
            run_id: None,
            created_at: None,
            expires_at: None,
        },
        Some((run_id, created_at, due_at, status)) => RequestView {
            key: key.to_owned(),
            state: if status.is_some() { "stored" } else { "expired" },
            status,
            run_id,
            created_at: Some(show(created_at)),
            // The time of a tombstone is when the key is free again: not what is asked for here.
            expires_at: status.map(|_| show(expiry(created_at, due_at, retention_ms))),
        },
    })
}

/// Forgets a small step of what is due: answers become tombstones, tombstones vanish. A key whose run goes on waits
/// for its end, see [`release`].
pub(super) fn prune(tx: &Tx) -> Result<(), Error> {
    let due: Vec<(String, String, bool, bool)> = {
        let mut statement = tx.conn.prepare_cached(
            "SELECT scope, key, status IS NULL, EXISTS (SELECT 1 FROM runs WHERE runs.run_id = requests.run_id
                 AND ended_at IS NULL)
             FROM requests WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2",
        )?;
        let rows =
            statement.query_map((tx.now, PRUNE), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        rows.collect::<Result<_, _>>()?
    };
    for (scope, key, is_tombstone, run_goes_on) in due {
        if is_tombstone {
            tx.conn.prepare_cached("DELETE FROM requests WHERE scope = ?1 AND key = ?2")?.execute((&scope, &key))?;
        } else if run_goes_on {
            tx.conn
                .prepare_cached("UPDATE requests SET due_at = ?3 WHERE scope = ?1 AND key = ?2")?
                .execute((&scope, &key, NEVER))?;
        } else {
            tx.conn
                .prepare_cached(
                    "UPDATE requests SET fp_version = NULL, fingerprint = NULL, status = NULL, headers = NULL, body = NULL,
                         due_at = ?3 WHERE scope = ?1 AND key = ?2",
                )?
                .execute((&scope, &key, tx.after(tx.settings.idempotency_tombstone_ms)))?;
            failpoint!("prune.after");
        }
    }
    Ok(())
}

/// Lets go of the keys that waited for the end of a run.
pub(super) fn release(tx: &Tx, run: &RunId) -> Result<(), Error> {
    tx.conn
        .prepare_cached("UPDATE requests SET due_at = ?2 WHERE run_id = ?1 AND due_at = ?3 AND status IS NOT NULL")?
        .execute((run.as_str(), tx.now, NEVER))?;
    Ok(())
}
