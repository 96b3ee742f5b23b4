//! `mediator request`, `outbox` and `doctor`: did it happen, was it told, is all well.

use serde::Deserialize;
use serde_json::json;

use super::out::Table;
use super::{Context, Exit, Stop, out, wire};
use crate::client::encode;

/// Flags of `mediator request`.
#[derive(clap::Args, Debug)]
pub struct RequestArgs {
    /// The idempotency key
    #[arg(value_name = "KEY")]
    key: String,
}

/// The commands of `mediator outbox`.
#[derive(clap::Args, Debug)]
pub struct OutboxArgs {
    /// Only those in this state
    #[arg(long, value_parser = ["pending", "delivered", "failed"])]
    state: Option<String>,
    /// Show at most this many, 1 to 500 (default: 50)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: Option<u16>,
    /// Send this one again, with the same id (can be repeated)
    #[arg(long, value_name = "ID", conflicts_with_all = ["state", "limit"])]
    resend: Vec<i64>,
}

#[derive(Deserialize)]
struct Request {
    state: String,
    status: Option<u16>,
    run_id: Option<String>,
    created_at: Option<String>,
    expires_at: Option<String>,
}

/// Tells whether a request with a key was done: exit code 0 if so, 1 if not.
pub async fn request(args: RequestArgs, context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get(&format!("/v1/idempotency/{}", encode(&args.key))).await?;
    let request: Request = wire::read(&answer)?;
    let done = request.state != "absent";
    if context.json {
        out::raw_json(&answer.body)?;
    } else {
        let run = request.run_id.map(|run| format!(", run {run}")).unwrap_or_default();
        let at = request.created_at.unwrap_or_default();
        out::line(&match (request.state.as_str(), request.status) {
            ("stored", Some(status)) => {
                let until = request.expires_at.unwrap_or_default();
                format!("done at {at}, answered {status}{run}; the answer is kept until {until}")
            }
            ("expired", _) => format!("done at {at}{run}; the answer is forgotten, and the key refuses a repeat"),
            _ => "nothing was done with this key, or it was so long ago that the key is free again".to_owned(),
        })?;
    }
    Ok(if done { Exit::Done } else { Exit::Failed })
}

#[derive(Deserialize)]
struct Outbox {
    outbox: Vec<Notification>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Notification {
    id: i64,
    webhook: String,
    event: String,
    run_id: Option<String>,
    state: String,
    attempts: i64,
    created_at: String,
    next_at: Option<String>,
    last_error: Option<String>,
}

/// Lists notifications, or sends some again.
pub async fn outbox(args: OutboxArgs, context: &Context) -> Result<Exit, Stop> {
    if !args.resend.is_empty() {
        if context.key.is_some() && args.resend.len() > 1 {
            return Err(Stop::new(Exit::Usage, "--idempotency-key is for one request: send one again with it"));
        }
        for id in args.resend {
            let answer = context.post(&format!("/v1/outbox/{id}/resend"), &json!({})).await?;
            if context.json {
                out::raw_json(&answer.body)?;
            } else {
                let sent: Notification = wire::read(&answer)?;
                out::line(&format!("notification {id} to {} is sent again", sent.webhook))?;
            }
        }
        return Ok(Exit::Done);
    }
    let state = args.state.map(|state| format!("&state={state}")).unwrap_or_default();
    let answer = context.client.get(&format!("/v1/outbox?limit={}{state}", args.limit.unwrap_or(50))).await?;
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let list: Outbox = wire::read(&answer)?;
    let mut table = Table::new(&["ID", "TO", "EVENT", "RUN", "STATE", "SENT", "SINCE", "NEXT", "LAST ERROR"]);
    for row in list.outbox {
        table.row([
            row.id.to_string(),
            row.webhook,
            row.event,
            row.run_id.unwrap_or_default(),
            row.state,
            row.attempts.to_string(),
            row.created_at,
            row.next_at.unwrap_or_default(),
            row.last_error.unwrap_or_default(),
        ]);
    }
    table.print()?;
    if list.next.is_some() {
        out::note("there are older ones: --limit shows more");
    }
    Ok(Exit::Done)
}

#[derive(Deserialize)]
struct Doctor {
    healthy: bool,
    version: String,
    boot: i64,
    synchronous: String,
    sqlite: String,
    data: String,
    file_system: String,
    free_bytes: u64,
    database_bytes: u64,
    wal_bytes: u64,
    broken: Vec<Broken>,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Broken {
    invariant: String,
    what: String,
}

/// Shows the daemon's health: exit code 0 if nothing is wrong, 1 otherwise.
pub async fn doctor(context: &Context) -> Result<Exit, Stop> {
    let answer = context.client.get("/v1/doctor").await?;
    let doctor: Doctor = wire::read(&answer)?;
    let exit = if doctor.healthy { Exit::Done } else { Exit::Failed };
    if context.json {
        out::raw_json(&answer.body)?;
        return Ok(exit);
    }
    let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
    for (name, value) in [
        ("daemon", format!("mediator {}, start number {}", doctor.version, doctor.boot)),
        ("data", doctor.data),
        ("on", format!("{}, {} MiB free", doctor.file_system, doctor.free_bytes >> 20)),
        (
            "database",
            format!("SQLite {}, {}, log {}", doctor.sqlite, kib(doctor.database_bytes), kib(doctor.wal_bytes)),
        ),
        ("durability", format!("synchronous {}", doctor.synchronous)),
    ] {
        out::line(&format!("{:<12}{value}", format!("{name}:")))?;
    }
    for warning in &doctor.warnings {
        out::line(&format!("{:<12}{warning}", "warning:"))?;
    }
    for broken in &doctor.broken {
        out::line(&format!("{:<12}{}: {}", "broken:", broken.invariant, broken.what))?;
    }
    if doctor.broken.is_empty() {
        out::line("invariants: all hold")?;
    }
    Ok(exit)
}
