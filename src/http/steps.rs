//! Steps: results and logs.

use std::io::SeekFrom;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::call::Call;
use super::problem::Problem;
use super::reply::{self, Reply};
use super::runs::{MAX_WAIT, invalid};
use crate::domain::field::Field;
use crate::domain::json::Json;
use crate::store::claim::{Claim, claim_if_allowed};
use crate::store::hub::Topic;
use crate::store::logs::{Appended, LogKey, file_error};
use crate::store::result::{Outcome, Report, Reported, Reporter, report as store_report};
use crate::store::{Error, views};

/// How much of a body is handed to the file at once.
const PIECE: usize = 256 << 10;

/// `POST /v1/runs/{id}/steps/{seq}/result`.
pub async fn result(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&["claim"])?;
    let wants_claim = call.query.flag("claim")?;
    let (run, seq) = (call.run()?, call.seq()?);
    let body = call.json().await?;
    let operator = call.caller.operator;
    let parsed = read_report(&body, &call.caller.name, operator).map_err(invalid)?;
    let report = Report { run, seq, attempt: parsed.attempt, reporter: parsed.reporter, outcome: parsed.outcome };
    let store = call.app.store.clone();
    // What the step wrote must survive whatever its result does.
    let key = LogKey { run: report.run.clone(), seq, attempt: report.attempt };
    let logs = store.clone();
    let synced = if store.logs().is_there(&key) {
        let synced = tokio::task::spawn_blocking(move || logs.logs().sync(&key)).await;
        synced.map_err(|error| Error::Broken(format!("syncing a log ended early: {error}")))?
    } else {
        Ok(())
    };
    if let Err(error) = synced {
        // Synced again, it would "succeed" without what was lost. The agent still has all of it: it sends it to the
        // next life of the daemon.
        return Err(match file_error(&error) {
            // What could not be opened was not lost.
            short @ Error::Short(_) => short.into(),
            lost => store.fail(lost).await.into(),
        });
    }
    let claim = match (&report.reporter, wants_claim, parsed.instance) {
        (_, false, _) => None,
        (Reporter::Node { node, .. }, true, Some(instance)) => {
            Some(Claim { node: node.clone(), instance, working: None })
        }
        (Reporter::Node { .. }, true, None) => {
            return Err(Problem::new("invalid-request", "a claim with the result needs `instance`").at("/instance"));
        }
        (Reporter::Holder { .. }, true, _) => {
            return Err(Problem::new("invalid-request", "only a node claims with its result").at("/node_id"));
        }
    };
    let next = claim.clone();
    let (reported, mut claimed) = store
        .write(move |tx| {
            let reported = store_report(tx, &report)?;
            // In the result's own commit if the run goes on here; a claim that is refused is no error of the result.
            let claimed = match (&reported, &next) {
                (Reported::Taken(_), Some(next)) => claim_if_allowed(tx, next)?,
                _ => None,
            };
            Ok((reported, claimed))
        })
        .await?;
    let mut answer = match reported {
        Reported::Taken(answer) => answer,
        Reported::Stale(refusal) => return Err(refusal.into()),
    };
    if claimed.is_none()
        && let Some(next) = claim
    {
        // The wake that followed may have given the node to another run.
        claimed = store.write(move |tx| claim_if_allowed(tx, &next)).await?;
    }
    answer["claim"] = serde_json::to_value(&claimed).unwrap_or(Value::Null);
    Ok(reply::json(StatusCode::OK, &answer))
}

struct ParsedReport {
    attempt: i64,
    reporter: Reporter,
    outcome: Outcome,
    instance: Option<String>,
}

fn read_report(body: &Json, caller: &str, operator: bool) -> Result<ParsedReport, crate::domain::Invalid> {
    let fields = Field::root(body).object()?;
    let attempt = fields.req("attempt")?.integer(1..=1000)?;
    let node = fields.opt("node_id").map(|field| field.node_id()).transpose()?;
    let nonce = fields.opt("nonce").map(|field| field.word().map(str::to_owned)).transpose()?;
    let instance = fields.opt("instance").map(|field| field.word().map(str::to_owned)).transpose()?;
    let exit_code = fields.opt("exit_code").map(|field| field.integer(-2_147_483_648..=4_294_967_295)).transpose()?;
    let error = fields.opt("error").map(|field| field.long_text().map(str::to_owned)).transpose()?;
    let lost = fields.opt("lost").map_or(Ok(false), |field| field.boolean())?;
    let outcome = match (exit_code, error, lost) {
        (Some(code), None, false) => Outcome::Exit(code),
        (None, Some(error), false) => Outcome::Error(error),
        (None, None, true) => Outcome::Lost,
        _ => return Err(fields.invalid("expected exactly one of exit_code, error, lost")),
    };
    let reporter = match (node, nonce) {
        (Some(node), Some(nonce)) => Reporter::Node { node, nonce },
        (None, None) => Reporter::Holder { principal: caller.to_owned(), operator },
        (Some(_), None) => return Err(fields.invalid_at("nonce", "missing: a node reports with its lease's nonce")),
        (None, Some(_)) => return Err(fields.invalid_at("node_id", "missing: whose nonce is this")),
    };
    fields.finish()?;
    Ok(ParsedReport { attempt, reporter, outcome, instance })
}

/// `PUT /v1/runs/{id}/steps/{seq}/log`: output of an attempt, from whoever has it in hand.
pub async fn write_log(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&["nonce", "attempt", "offset"])?;
    let (run, seq) = (call.run()?, call.seq()?);
    let needed = |name: &str| Problem::new("invalid-request", format!("query parameter `{name}` is needed"));
    let attempt = call.query.number("attempt", 1..=1000i64)?.ok_or_else(|| needed("attempt"))?;
    let mut offset = call.query.number("offset", 0..=u64::MAX)?.ok_or_else(|| needed("offset"))?;
    let nonce = call.query.get("nonce").ok_or_else(|| needed("nonce"))?.to_owned();
    let key = LogKey { run: run.clone(), seq, attempt };
    let store = call.app.store.clone();
    let check = async || {
        let (own, nonce) = (key.clone(), nonce.clone());
        store.read(move |conn| views::check_holder(conn, &own, &nonce)).await
    };
    // Refused before a long body is read.
    check().await?;
    let mut piece = Vec::new();
    loop {
        let chunk = call.body.next().await?;
        let is_last = chunk.is_none();
        piece.extend_from_slice(&chunk.unwrap_or_default());
        if piece.len() < PIECE && !is_last {
            continue;
        }
        // A body may trickle in for long: by now the step can be somebody else's, or its log synced with its result.
        check().await?;
        let (logs, own, bytes) = (store.clone(), key.clone(), std::mem::take(&mut piece));
        let length = bytes.len() as u64;
        let appended = tokio::task::spawn_blocking(move || logs.logs().append(&own, offset, &bytes)).await;
        let appended = appended.map_err(|error| Error::Broken(format!("writing a log ended early: {error}")))?;
        match appended.map_err(|error| file_error(&error))? {
            Appended::Taken => offset = offset.saturating_add(length),
            Appended::Gap(size) => {
                let detail = format!("the log has {size} bytes: send again from there");
                return Err(Problem::new("log-gap", detail).with("size", size));
            }
        }
        store.hub().tell([Topic::Log(run.clone())]);
        if is_last {
            return Ok(reply::empty(StatusCode::NO_CONTENT));
        }
    }
}

/// `GET /v1/runs/{id}/steps/{seq}/log`: the output from `offset` on. With `wait_seconds` it waits for more than
/// nothing; `Mediator-Log-End: true` says that no more will come.
pub async fn read_log(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["attempt", "offset", "wait_seconds"])?;
    let (run, seq) = (call.run()?, call.seq()?);
    let wanted = call.query.number("attempt", 1..=1000i64)?;
    let offset = call.query.number("offset", 0..=u64::MAX)?.unwrap_or(0);
    let until = tokio::time::Instant::now() + call.query.wait(MAX_WAIT)?;
    let store = call.app.store.clone();
    loop {
        let waiter = store.hub().wait_for(Topic::Log(run.clone()));
        let own = run.clone();
        let attempt = store.read(move |conn| views::attempt(conn, &own, seq, wanted)).await?;
        let (logs, key) = (store.clone(), LogKey { run: run.clone(), seq, attempt: attempt.number });
        let opened = tokio::task::spawn_blocking(move || logs.logs().open(&key)).await;
        let opened = opened.map_err(|error| Error::Broken(format!("opening a log ended early: {error}")))?;
        let opened = opened.map_err(|error| file_error(&error))?;
        let size = opened.as_ref().map_or(0, |(_, size)| *size);
        if size <= offset && !attempt.has_ended && call.app.parked(waiter, until).await {
            continue;
        }
        let mut reply = match opened {
            Some((file, size)) if size > offset => stream(tokio::fs::File::from_std(file), offset, size - offset),
            _ => reply::empty(StatusCode::OK),
        };
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert("mediator-log-attempt", HeaderValue::from(attempt.number));
        headers.insert("mediator-log-size", HeaderValue::from(size));
        if attempt.has_ended {
            headers.insert("mediator-log-end", HeaderValue::from_static("true"));
        }
        return Ok(reply);
    }
}

/// Sends `length` bytes of a file from `offset` on, as fast as the client reads.
pub fn stream(mut file: tokio::fs::File, offset: u64, length: u64) -> Reply {
    // Each of many who do not read has this much in memory.
    let (sender, body) = reply::pieces(1);
    tokio::spawn(async move {
        if let Err(error) = file.seek(SeekFrom::Start(offset)).await {
            let _ = sender.send(Err(error)).await;
            return;
        }
        let mut left = file.take(length);
        let mut buffer = vec![0; 16 << 10];
        loop {
            match left.read(&mut buffer).await {
                Ok(0) => return,
                Ok(read) => {
                    let piece = Bytes::copy_from_slice(&buffer[..read]);
                    // The client has gone: so has the reason to read on.
                    if sender.send(Ok(piece)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        }
    });
    hyper::Response::new(body)
}
