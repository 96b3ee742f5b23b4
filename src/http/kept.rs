//! What is kept: artifacts, the sealed record, events.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;

use super::App;
use super::call::{Call, too_large};
use super::problem::Problem;
use super::reply::{self, Reply};
use super::steps::stream;
use crate::domain::contract::is_inner_path;
use crate::domain::ids::RunId;
use crate::store::Error;
use crate::store::hub::Topic;
use crate::store::logs::{LogKey, file_error};
use crate::store::record::{self, open_artifact};
use crate::store::views::{self, At};

/// How often an event stream says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How many events are read at once.
const BATCH: i64 = 200;

/// `PUT /v1/runs/{id}/steps/{seq}/artifacts/{path}`.
pub async fn write_artifact(mut call: Call) -> Result<Reply, Problem> {
    call.query.only(&["nonce", "attempt"])?;
    let (run, seq) = (call.run()?, call.seq()?);
    let path = inner_path(&call.params[2])?;
    let needed = |name: &str| Problem::new("invalid-request", format!("query parameter `{name}` is needed"));
    let attempt = call.query.number("attempt", 1..=1000i64)?.ok_or_else(|| needed("attempt"))?;
    let nonce = call.query.get("nonce").ok_or_else(|| needed("nonce"))?.to_owned();
    let key = LogKey { run: run.clone(), seq, attempt };
    let store = call.app.store.clone();
    // Refused before the disk is filled; judged again in the write that keeps it.
    let (own, own_nonce) = (key.clone(), nonce.clone());
    store.read(move |conn| views::check_holder(conn, &own, &own_nonce)).await?;
    if call.announced().is_some_and(|size| size > store.settings().artifact_max_bytes) {
        return Err(too_large(store.settings().artifact_max_bytes));
    }
    let mut incoming = store.receive(&run).map_err(|error| file_error(&error))?;
    loop {
        let chunk = call.body.next().await?;
        let Some(chunk) = chunk else { break };
        let written = tokio::task::spawn_blocking(move || incoming.write(&chunk).map(|fits| (fits, incoming)));
        let (fits, back) = written.await.map_err(ended_early)?.map_err(|error| file_error(&error))?;
        incoming = back;
        if !fits {
            return Err(too_large(incoming.most()));
        }
    }
    let received = tokio::task::spawn_blocking(move || incoming.finish()).await;
    let received = received.map_err(ended_early)?.map_err(|error| file_error(&error))?;
    store.keep_artifact(key, nonce, path, received).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

fn inner_path(text: &str) -> Result<String, Problem> {
    if is_inner_path(text) {
        Ok(text.to_owned())
    } else {
        Err(Problem::new("invalid-request", "an artifact's path is relative, without `.`, `..` or empty parts"))
    }
}

fn ended_early(error: tokio::task::JoinError) -> Error {
    Error::Broken(format!("work on a file ended early: {error}"))
}

/// `GET /v1/runs/{id}/artifacts`.
pub async fn list_artifacts(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let run = call.run()?;
    let list = call.app.store.read(move |conn| views::artifacts(conn, &run)).await?;
    Ok(reply::json(StatusCode::OK, &list))
}

/// `GET /v1/runs/{id}/artifacts/{path}`: the newest, unless the query says which.
pub async fn read_artifact(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["seq", "attempt"])?;
    let run = call.run()?;
    let path = call.params[1].clone();
    let seq = call.query.number("seq", 1..=500i64)?;
    let attempt = call.query.number("attempt", 1..=1000i64)?;
    let store = call.app.store.clone();
    let own = run.clone();
    let artifact = store.read(move |conn| views::artifact(conn, &own, &path, seq, attempt)).await?;
    let opened = tokio::task::spawn_blocking(move || {
        let file = open_artifact(store.folder(), &run, &artifact)?;
        let size = file.metadata()?.len();
        Ok((file, size))
    });
    let (file, size) = opened.await.map_err(ended_early)?.map_err(|error: io::Error| file_error(&error))?;
    let mut reply = stream(tokio::fs::File::from_std(file), 0, size);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Never shown by a browser as if it came from the daemon.
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    Ok(reply)
}

/// `GET /v1/runs/{id}/record`: the sealed record as a tar, sealed first if need be.
pub async fn read_record(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let run = call.run()?;
    let store = call.app.store.clone();
    let manifest = store.seal(&run).await?;
    let (own, sealed) = (run.clone(), store.clone());
    let files = tokio::task::spawn_blocking(move || record::files(sealed.folder(), &own)).await;
    // Said as long as something can be said: what is found later cuts the archive off.
    let files = files.map_err(ended_early)?.map_err(|error| {
        log::error!("a sealed record is not as it was run={run} cause={error}");
        Problem::new("internal", format!("the sealed record of run {run} is not as it was: {error}"))
    })?;
    let mut reply = archive("a record", move |sink| record::tar(store.folder(), &run, &files, sink));
    let headers = reply.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&manifest) {
        headers.insert("mediator-manifest-sha256", value);
    }
    Ok(reply)
}

/// `GET /v1/backup`: everything that the daemon keeps, as of now, as a tar.
pub async fn backup(call: Call) -> Result<Reply, Problem> {
    call.query.only(&[])?;
    let backup = call.app.store.backup().await?;
    Ok(archive("a backup", move |sink| backup.send(sink)))
}

/// Answers with a tar that is written while it is sent.
fn archive(what: &'static str, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()> + Send + 'static) -> Reply {
    let (sender, body) = reply::pieces(2);
    tokio::task::spawn_blocking(move || {
        let mut sink = io::BufWriter::with_capacity(64 << 10, Sink(sender.clone()));
        if let Err(error) = write(&mut sink) {
            log::warn!("cannot send {what} cause={error}");
            // Cut off rather than ended. Nobody hears it if the client has gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    let mut reply = hyper::Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    reply
}

/// Hands what is written in a blocking task to a body, as fast as the client reads.
struct Sink(mpsc::Sender<io::Result<Bytes>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone");
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `GET /v1/events`: server-sent events, from `Last-Event-ID` on, or from now; of one run with `run`.
pub async fn events(call: Call) -> Result<Reply, Problem> {
    call.query.only(&["run"])?;
    let run = match call.query.get("run") {
        None => None,
        Some(text) => Some(
            RunId::new(text)
                .ok_or_else(|| Problem::new("invalid-request", "query parameter `run`: expected the id of a run"))?,
        ),
    };
    let mut ids = call.headers.get_all("last-event-id").iter();
    let last = match (ids.next(), ids.next()) {
        (None, _) => None,
        (Some(id), None) => {
            let digits = id.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let id: Option<i64> = digits.and_then(|text| text.parse().ok());
            let wrong = || Problem::new("invalid-request", "Last-Event-ID: expected the id of an event");
            Some(id.ok_or_else(wrong)?)
        }
        (Some(_), Some(_)) => return Err(Problem::new("invalid-request", "Last-Event-ID: sent twice")),
    };
    let (pruned, newest) = call.app.store.read(views::event_range).await?;
    let start = last.unwrap_or(newest);
    let (sender, body) = reply::pieces(1);
    // What lies between is not kept any more, or is from another database: whoever resumes has to look anew.
    let reset = start > newest || (start > 0 && start < pruned);
    tokio::spawn(follow(call.app.clone(), sender, run, if reset { pruned } else { start }, reset));
    let mut reply = hyper::Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(reply)
}

async fn follow(app: App, sender: mpsc::Sender<io::Result<Bytes>>, run: Option<RunId>, mut last: i64, reset: bool) {
    // The id alone is no event: whoever is cut off before the first one resumes from here all the same.
    let reset = if reset { "event: reset\ndata: {}\n" } else { "" };
    let opening = format!(": mediator\nid: {last}\n{reset}\n");
    if sender.send(Ok(Bytes::from(opening))).await.is_err() {
        return;
    }
    loop {
        let waiter = app.store.hub().wait_for(Topic::Events);
        let (own, at) = (run.clone(), At::of(app.store.clock()));
        // One of these at a time: what many streams read must not keep others from reading.
        let turn = app.streaming.acquire().await;
        let batch = match app.store.read(move |conn| views::events(conn, last, own.as_ref(), BATCH, at)).await {
            Ok(batch) => batch,
            Err(error) => {
                log::warn!("an event stream ends cause={error}");
                return;
            }
        };
        drop(turn);
        if let Some(newest) = batch.last() {
            last = newest.id;
            let text: String = batch
                .iter()
                .map(|event| format!("id: {}\nevent: {}\ndata: {}\n\n", event.id, event.event, event.data))
                .collect();
            if sender.send(Ok(Bytes::from(text))).await.is_err() {
                return;
            }
            continue;
        }
        let until = tokio::time::Instant::now() + HEARTBEAT;
        let is_told = app.parked(waiter, until).await;
        if *app.stop.borrow() {
            return;
        }
        if !is_told && sender.send(Ok(Bytes::from_static(b": alive\n\n"))).await.is_err() {
            return;
        }
    }
}
