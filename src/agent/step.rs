//! One attempt of one step: begun once, done under its lease, reported until heard.

use std::fs::{File, Permissions};
use std::future::Future;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use log::{debug, error, info, warn};
use serde_json::{Value, json};
use tokio::process::ChildStdout;

use super::artifacts;
use super::config::NodeConfig;
use super::deadline::Authority;
use super::environment::environment;
use super::link::{Pause, is_passing};
use super::node::{Granted, Node};
use super::output::{Output, Sender};
use super::process::Work;
use super::supervisor::{Cause, End, How, Order, Start};
use super::wire::{self, Claim, Given, Outcome};
use crate::client::{CALL_LIMIT, Error};
use crate::clock::{Ms, boottime_ms};

/// How long an agent that was told twice to end goes on sending output and artifacts, and then the result.
const LAST_WORDS: Duration = Duration::from_secs(8);

/// How long output may still come after nothing of the work is left: only if the command gave its pipe to a process
/// that it had not started.
pub const OUTPUT_LINGERS: Duration = Duration::from_secs(2);

/// Carries out a claimed step; returns the next one if the daemon gave it with its answer to the result.
pub async fn carry_out(node: &Node, claim: Claim, sent_at: Ms, received_at: Ms) -> Option<Granted> {
    // What the file says by now holds for the whole step, whatever it comes to say meanwhile.
    let config = node.config();
    let lease = Authority::granted(&claim.run_id, &claim.lease, sent_at, received_at);
    let lease = lease.or_longer(node.lease.borrow().as_ref());
    let over = lease.is_over(received_at);
    node.lease.send_replace(Some(lease));

    if !node.begin(&claim.attempt()) {
        // The daemon gives a step again when it did not hear of its end. Nothing of it runs here any more (I11).
        return report(node, &claim, &Outcome::Lost("it was begun before".into()), None).await;
    }
    if over {
        return report(node, &claim, &Outcome::Lost("the lease ran out before it began".into()), None).await;
    }
    let named = format!("run={} node={} step={} attempt={}", claim.run_id, config.id, claim.id, claim.attempt);
    // A check may be under way; the lease is renewed meanwhile.
    let hands = tokio::select! {
        biased;
        () = node.abandoned() => None,
        hands = node.hands.lock() => Some(hands),
    };
    let Some(hands) = hands else {
        return report(node, &claim, &Outcome::Lost("told to stop before it began".into()), None).await;
    };
    if node.lease.borrow().as_ref().is_none_or(|lease| lease.is_over(boottime_ms())) {
        return report(node, &claim, &Outcome::Lost("the lease ended before it began".into()), None).await;
    }
    info!("step begins {named}");
    let output = config.make_state_dir().and_then(|dir| Output::new(&dir, config.spool_bytes, &config.secrets));
    let (output, mut sender) = match output {
        Ok(output) => output,
        Err(error) => {
            error!("no room for the step's output {named}: {error}");
            return report(node, &claim, &unready(&config.work_dir, &error), None).await;
        }
    };
    let work = async {
        let outcome = work(node, &claim, &config, received_at, &output).await;
        output.complete();
        outcome
    };
    let (outcome, _) = tokio::join!(work, unless_abandoned(node, sender.send(&node.link, &claim)));
    drop(hands);
    let outcome = match outcome {
        Outcome::Error(what) => Outcome::Error(config.secrets.mask(&what)),
        other => other,
    };
    match &outcome {
        Outcome::ExitCode(code) => info!("step ended {named} exit_code={code}"),
        Outcome::Error(what) => info!("step ended {named} error={what:?}"),
        Outcome::Lost(why) => warn!("step given up {named} why={why:?}"),
    }
    report(node, &claim, &outcome, Some(&mut sender)).await
}

/// Does the work itself, output and artifacts included.
async fn work(node: &Node, claim: &Claim, config: &NodeConfig, received_at: Ms, output: &Output) -> Outcome {
    let start = match prepare(node, claim, config, received_at) {
        Ok(start) => start,
        Err(outcome) => return outcome,
    };
    let (mut work, stdout): (Work, ChildStdout) = match node.supervisors.start(start).await {
        Ok(started) => started,
        Err(error) => return Outcome::Lost(format!("cannot start a supervisor: {error}")),
    };
    let mut fill = tokio::spawn({
        let output = output.clone();
        async move { output.fill(stdout).await }
    });
    let end = drive(node, claim, &mut work).await;
    if tokio::time::timeout(OUTPUT_LINGERS, &mut fill).await.is_err() {
        fill.abort();
        debug!("output without a process behind it run={} step={}", claim.run_id, claim.id);
    }
    let outcome = match end {
        None => Outcome::Lost("its supervisor was killed".into()),
        Some(End { stopped: Some(Cause::Time), .. }) => {
            Outcome::Error(format!("ran over its time of {} s", claim.timeout_seconds.unwrap_or_default()))
        }
        Some(End { stopped: Some(Cause::Lease), .. }) => Outcome::Lost("the lease ran out".into()),
        Some(End { stopped: Some(Cause::Told), .. }) => Outcome::Lost("told to stop".into()),
        Some(End { how: How::NotStarted(why), .. }) => return Outcome::Error(why),
        Some(End { how: How::Code(code), .. }) => Outcome::ExitCode(code),
    };
    if !matches!(outcome, Outcome::Lost(_)) {
        unless_abandoned(node, artifacts::send(&node.link, claim, config, output)).await;
    }
    outcome
}

/// Makes everything ready to start the command.
fn prepare(node: &Node, claim: &Claim, config: &NodeConfig, received_at: Ms) -> Result<Start, Outcome> {
    let state = config.make_state_dir().map_err(|error| unready(&config.work_dir, &error))?;
    config.hand_over().map_err(|error| unready(&config.work_dir, &error))?;
    let assigned = state.join("assigned.json");
    let own = |name: &str| std::env::var(name).ok();
    let env = environment(claim, config, &assigned.to_string_lossy(), own).map_err(Outcome::Error)?;
    let json = claim.assigned.to_string();
    write_new(&assigned, &json).map_err(|error| unready(&assigned, &error))?;
    let until_ms = node.lease.borrow().as_ref().map_or(0, Authority::until);
    let time_ms = claim.timeout_seconds.map(|limit| received_at.saturating_add(wire::ms(limit)));
    Ok(Start {
        argv: claim.run.clone(),
        env,
        dir: config.work_dir.clone(),
        lock: state.join("lock"),
        until_ms,
        time_ms,
        identity: config.identity().cloned(),
    })
}

/// Tells why a step could not be begun. A full disk is told to whoever submitted it, who may have filled it; anything
/// else here is the lab's failure.
fn unready(path: &Path, error: &io::Error) -> Outcome {
    let what = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Outcome::Error(format!("there is no room on the node's host: {what}"))
        }
        _ => Outcome::Lost(what),
    }
}

/// Writes a file anew: an earlier step may have made it a link to somewhere else.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    // The step's user reads it, whatever the umask.
    file.set_permissions(Permissions::from_mode(0o644))
}

/// Passes to the supervisor whatever bears on the work's right to go on, until nothing of it is left.
async fn drive(node: &Node, claim: &Claim, work: &mut Work) -> Option<End> {
    let attempt = claim.attempt();
    let mut lease = node.lease.subscribe();
    let mut taken_away = pin!(node.parked(&attempt));
    let mut abandoned = pin!(node.abandoned());
    let mut told = false;
    loop {
        let order = tokio::select! {
            end = work.ended() => return end,
            _ = lease.changed() => match &*lease.borrow_and_update() {
                Some(lease) if !lease.is_gone() => Order::Until(lease.until()),
                _ => Order::Stop,
            },
            () = &mut taken_away, if !told => Order::Stop,
            () = &mut abandoned, if !told => Order::Stop,
        };
        if matches!(order, Order::Stop) && !told {
            told = true;
            info!("stopping the work run={} node={} step={}", claim.run_id, node.config().id, claim.id);
        }
        work.order(&order).await;
    }
}

/// Reports how the attempt ended until the daemon answers, whatever the answer (I8: it decides what counts). Before a
/// report is repeated, the log is looked after: the daemon may have lost the end of it while it was away.
async fn report(node: &Node, claim: &Claim, outcome: &Outcome, mut log: Option<&mut Sender>) -> Option<Granted> {
    let mut body = json!({
        "node_id": node.config().id,
        "nonce": claim.lease.nonce,
        "attempt": claim.attempt,
        "instance": node.instance(),
    });
    outcome.write(&mut body);
    let body = Bytes::from(body.to_string());
    let named = format!("run={} node={} step={} attempt={}", claim.run_id, node.config().id, claim.id, claim.attempt);
    let mut pause = Pause::default();
    let reported = async {
        loop {
            let path = if node.may_claim() { claim.path("result?claim=true") } else { claim.path("result") };
            let sent_at = boottime_ms();
            let client = node.link.client();
            let answer = client.call(Method::POST, &path, Some("application/json"), body.clone(), CALL_LIMIT).await;
            match answer {
                Ok(answer) => return next_claim(&answer.json().unwrap_or_default(), sent_at),
                Err(error) if is_passing(&error) => {
                    debug!("reporting {named}: {error}");
                    pause.wait().await;
                    if let (Error::Unreachable { .. }, Some(log)) = (&error, log.as_deref_mut()) {
                        log.verify(&node.link, claim).await;
                    }
                }
                Err(error) => {
                    if matches!(outcome, Outcome::Lost(_)) {
                        info!("the daemon had ended the step {named}: {error}");
                    } else {
                        warn!("the result does not count {named}: {error}");
                    }
                    return None;
                }
            }
        }
    };
    unless_abandoned(node, reported).await.flatten()
}

fn next_claim(answer: &Value, sent_at: Ms) -> Option<Granted> {
    // What does not read as a claim is claimed again in the plain way, which tells what is wrong with it.
    let given = Given::read(answer["claim"].clone()).ok()?;
    Some(Granted { given, sent_at, received_at: boottime_ms() })
}

/// Waits for `last`, but not for long once the agent was told twice to end or the node was refused.
async fn unless_abandoned<T>(node: &Node, last: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = last => Some(done),
        () = async {
            node.abandoned().await;
            tokio::time::sleep(LAST_WORDS).await;
        } => None,
    }
}
