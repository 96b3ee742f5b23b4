//! `mediator events`: what happens, as it happens.

use std::time::Duration;

use hyper::header::HeaderName;
use serde_json::{Value, json};

use super::follow::{Patient, pause_unless_parked};
use super::{Context, Exit, Stop, out};
use crate::client::{Client, Error, Opened, encode};
use crate::clock::boottime_ms;

/// A stream that says nothing for so long, not even a comment, is taken for dead and opened anew: an event that came
/// meanwhile is sent again.
const SILENCE: Duration = Duration::from_secs(90);

/// Flags of `mediator events`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only events of this run; ends with it
    #[arg(long = "run", value_name = "RUN")]
    run_id: Option<String>,
    /// Begin after the event with this id (default: with the next that happens)
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
}

/// One event of the stream.
#[derive(Debug, PartialEq)]
struct Event {
    id: String,
    name: String,
    data: String,
}

/// Shows events until it is interrupted, or the run that was asked for has ended.
pub async fn run(args: Args, context: &Context) -> Result<Exit, Stop> {
    let path = match &args.run_id {
        None => "/v1/events".to_owned(),
        Some(run_id) => format!("/v1/events?run={}", encode(run_id)),
    };
    let mut last_id = args.after.map(|id| id.to_string());
    let mut stream = open(&context.client, &path, last_id.as_deref()).await?;
    // Asked only now: a run that ends after this look is seen to end in the stream.
    if let Some(run_id) = args.run_id.as_deref().filter(|_| args.after.is_none()) {
        let (run, _) = Patient::new(&context.client).run(run_id).await?;
        if run.has_ended() {
            out::note(&format!("run {run_id} has ended; `mediator record {run_id}` has its events"));
            return Ok(Exit::Done);
        }
    }
    let mut patient = Patient::new(&context.client);
    let mut lines = Lines::default();
    let mut opened_at = boottime_ms();
    loop {
        match stream.next(SILENCE).await {
            Ok(Some(bytes)) => {
                for event in lines.feed(&bytes) {
                    if show(&event, args.run_id.as_deref(), context.json)? {
                        return Ok(Exit::Done);
                    }
                }
                // Also when there was no event: the daemon begins by telling where.
                if !lines.last_id.is_empty() {
                    last_id = Some(lines.last_id.clone());
                }
            }
            Ok(None) | Err(Error::Unreachable { .. }) => {
                // A half event is sent again as a whole.
                lines = Lines::default();
                pause_unless_parked(opened_at).await;
                opened_at = boottime_ms();
                stream = patient.insist(async |client| open(client, &path, last_id.as_deref()).await).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn open(client: &Client, path: &str, last_id: Option<&str>) -> Result<Opened, Error> {
    let header = last_id.map(|id| (HeaderName::from_static("last-event-id"), id));
    client.open(path, header).await
}

/// Shows one event if it is wanted; says whether it is the end of the run that was asked for.
fn show(event: &Event, only: Option<&str>, as_json: bool) -> Result<bool, Stop> {
    let data: Value = serde_json::from_str(&event.data).unwrap_or_else(|_| event.data.as_str().into());
    if event.name == "reset" {
        out::note("the daemon no longer keeps the events before the next one");
    }
    if only.is_some_and(|run_id| data["run_id"] != run_id && event.name != "reset") {
        return Ok(false);
    }
    if as_json {
        let id = event.id.parse::<u64>().map_or_else(|_| json!(event.id), |id| json!(id));
        out::json(&json!({ "id": id, "event": event.name, "data": data }))?;
    } else {
        out::line(&sentence(&event.name, &data))?;
    }
    Ok(only.is_some() && event.name == "run.ended")
}

/// Returns `TIME EVENT key=value ..`, without what is null.
fn sentence(name: &str, data: &Value) -> String {
    let mut text = format!("{} {name}", data["at"].as_str().unwrap_or("-"));
    for (key, value) in data.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            _ if key == "at" => {}
            Value::String(value) => text.push_str(&format!(" {key}={value}")),
            value => text.push_str(&format!(" {key}={value}")),
        }
    }
    text
}

/// Turns bytes into events (the `text/event-stream` format of HTML, section 9.2.6).
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
    id: String,
    /// The id of the last block that was whole.
    last_id: String,
    name: String,
    data: Vec<String>,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.pending.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            events.extend(self.line(line.trim_end_matches(['\n', '\r'])));
        }
        events
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            self.last_id.clone_from(&self.id);
            let data = std::mem::take(&mut self.data);
            let name = std::mem::take(&mut self.name);
            let is_event = !data.is_empty() || !name.is_empty();
            return is_event.then(|| Event { id: self.id.clone(), name, data: data.join("\n") });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => value.clone_into(&mut self.id),
            "event" => value.clone_into(&mut self.name),
            "data" => self.data.push(value.to_owned()),
            // A comment, or a field that later versions know.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However the bytes are cut.
    #[test]
    fn a_stream_becomes_events() {
        let stream = b": hello\nid: 7\nevent: run.queued\ndata: {\"a\":\ndata: 1}\n\nretry: 5\n\r\nid: 8\r\nevent:x\r\ndata\r\n\r\n";
        let event = |id: &str, name: &str, data: &str| Event { id: id.into(), name: name.into(), data: data.into() };
        let expect = [event("7", "run.queued", "{\"a\":\n1}"), event("8", "x", "")];
        for size in 1..=stream.len() {
            let mut lines = Lines::default();
            let events: Vec<Event> = stream.chunks(size).flat_map(|bytes| lines.feed(bytes)).collect();
            assert_eq!(events, expect, "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_is_one_line() {
        let data = json!({"at": "2026-01-01T00:00:00.000Z", "run_id": "r-1", "seq": 2, "node_id": null});
        assert_eq!(sentence("step.claimed", &data), "2026-01-01T00:00:00.000Z step.claimed run_id=r-1 seq=2");
    }
}
