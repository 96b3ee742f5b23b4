//! The owner's commands for a node: the cleanup between two users, and the check that tells whether it works.
//!
//! They run as the agent's own user, under a supervisor as a step's command does, and never beside one: whoever runs
//! something on the node holds [`Node::hands`]. A cleanup is begun when the daemon asks for it, which is after the old
//! work is gone: this life of the agent has ended it before it claims again, and what an earlier one left is waited for
//! by the supervisor, at the folder's lock.

use std::convert::Infallible;
use std::pin::pin;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use log::{debug, info, warn};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::config::{Errand, NodeConfig};
use super::deadline::sleep_until;
use super::environment::for_owner;
use super::link::{Pause, is_passing, refusal};
use super::node::{Node, Orders};
use super::secrets::Masker;
use super::step::OUTPUT_LINGERS;
use super::supervisor::{Cause, End, How, Order, Start};
use super::wire::Cleaning;
use crate::client::{CALL_LIMIT, encode};
use crate::clock::{Ms, boottime_ms};

/// How much of a command's output, from its end, goes to the agent's log, in bytes.
const LOGGED_BYTES: usize = 4096;

/// How much of it goes into the reason of a drain, in characters.
const REASON_CHARS: usize = 300;

/// How long a reason may be, in bytes: the daemon takes up to 1024.
const REASON_BYTES: usize = 900;

/// How long a check waits for the answer to an advert: it tells whether a run holds the node by now.
const ASK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// What the last check said.
#[derive(Clone, Debug, Default)]
pub struct Verdict(Option<(Vec<String>, Result<(), String>)>);

impl Verdict {
    /// Returns whether `check` has passed, or why the node drains. Another command's verdict says nothing.
    ///
    /// # Errors
    /// The reason of the drain.
    pub fn on(&self, check: &Errand) -> Result<(), String> {
        match &self.0 {
            Some((argv, verdict)) if *argv == check.argv => verdict.clone(),
            _ => Err("its check has not passed yet".to_owned()),
        }
    }
}

impl Node {
    /// Cleans the node and reports it until the daemon answers. When the agent is told twice to end, or killed, nothing
    /// is reported: the next life cleans again.
    pub async fn clean(&self, cleaning: &Cleaning) {
        let _hands = self.hands.lock().await;
        let Orders { config, reading, .. } = self.orders.borrow().clone();
        let Some(errand) = &config.cleanup else {
            // It left the file a moment ago; the daemon forgets the cleaning when it hears of that.
            let mut heard = self.heard.subscribe();
            self.advert_now.notify_one();
            let _ = tokio::time::timeout(ASK_LIMIT, heard.changed()).await;
            return;
        };
        let named = format!("node={} run={} cleaning={}", config.id, cleaning.run_id, cleaning.cleaning);
        info!("cleanup begins {named}");
        let Some(ended) = self.run_errand("cleanup", &config, errand, Some(&cleaning.run_id)).await else {
            return warn!("cleanup given up {named}");
        };
        let mut body = json!({"instance": self.instance(), "cleaning": cleaning.cleaning});
        match &ended {
            Ok(()) => {
                info!("cleanup ended {named}");
                body["exit_code"] = json!(0);
            }
            Err(why) => {
                warn!("cleanup failed {named} cause={why:?}");
                body["error"] = json!(why);
            }
        }
        let body = body.to_string();
        tokio::select! {
            () = self.report_cleaning(&body) => {
                if ended.is_err() {
                    self.note_failed_cleanup(reading);
                }
            }
            () = self.abandoned() => {}
        }
    }

    async fn report_cleaning(&self, body: &str) {
        let id = self.config().id.clone();
        let path = format!("/v1/nodes/{}/cleaned", encode(&id));
        let mut pause = Pause::default();
        loop {
            let body = Bytes::from(body.to_owned());
            let client = self.link.client();
            let answer = client.call(Method::POST, &path, Some("application/json"), body, CALL_LIMIT).await;
            let Err(error) = answer else { return };
            match refusal(&error) {
                // Somebody settled it, or the answer to an earlier report was lost.
                Some((StatusCode::CONFLICT, "stale-lease")) => {
                    return info!("the daemon had settled the cleaning node={id}: {error}");
                }
                Some((StatusCode::CONFLICT, _) | (StatusCode::NOT_FOUND, _)) => {
                    self.refused_claim(&error, &mut pause).await;
                    if self.is_refused() {
                        return;
                    }
                }
                _ if is_passing(&error) => {
                    debug!("reporting a cleaning node={id}: {error}");
                    pause.wait().await;
                }
                _ => {
                    warn!("the daemon does not take the report of a cleaning node={id}: {error}");
                    return pause.wait().await;
                }
            }
        }
    }

    /// Checks the node at its start, at intervals and whenever the file was read again, but only while no run holds it:
    /// between two steps of one a check could undo what the first has done.
    pub async fn check_while_idle(&self) -> Infallible {
        let mut orders = self.orders.clone();
        let mut heard = self.heard.subscribe();
        let mut due_at: Ms = 0;
        loop {
            let Orders { config, retired, .. } = orders.borrow_and_update().clone();
            let Some(check) = config.check.as_ref().filter(|_| !retired) else {
                let _ = orders.changed().await;
                due_at = 0;
                continue;
            };
            let idle = async {
                sleep_until(due_at).await;
                // A run may have come since the last advert.
                let known = heard.wait_for(|heard| heard.adverts > 0).await.map_or(0, |heard| heard.adverts);
                self.advert_now.notify_one();
                let _ = tokio::time::timeout(ASK_LIMIT, heard.wait_for(|heard| heard.adverts > known)).await;
                let _ = heard.wait_for(|heard| !heard.leased).await;
                self.hands.lock().await
            };
            let hands = tokio::select! {
                hands = idle => hands,
                _ = orders.changed() => {
                    due_at = 0;
                    continue;
                }
            };
            if self.heard.borrow().leased {
                continue;
            }
            let ended = self.run_errand("check", &config, &check.errand, None).await;
            drop(hands);
            // Given up: the agent is told twice to end.
            let Some(ended) = ended else { return std::future::pending().await };
            let verdict = ended.map_err(|why| format!("check {why}"));
            let before = self.verdict.borrow().on(&check.errand);
            match &verdict {
                Ok(()) if before.is_err() => info!("check passed node={}", config.id),
                Ok(()) => debug!("check passed node={}", config.id),
                Err(why) => warn!("check failed node={} cause={why:?}", config.id),
            }
            let changed = before != verdict;
            self.verdict.send_replace(Verdict(Some((check.errand.argv.clone(), verdict))));
            if changed {
                self.advert_now.notify_one();
            }
            due_at = boottime_ms().saturating_add(check.interval_ms);
        }
    }

    /// Runs a command of the owner's. Returns why it failed; nothing if it was given up.
    async fn run_errand(
        &self,
        what: &str,
        config: &NodeConfig,
        errand: &Errand,
        run_id: Option<&str>,
    ) -> Option<Result<(), String>> {
        let state = match config.make_state_dir() {
            Ok(state) => state,
            Err(error) => return Some(Err(format!("cannot begin: {}: {error}", config.work_dir.display()))),
        };
        let start = Start {
            argv: errand.argv.clone(),
            env: for_owner(config, run_id, |name| std::env::var(name).ok()),
            dir: config.work_dir.clone(),
            lock: state.join("lock"),
            until_ms: Ms::MAX,
            time_ms: Some(boottime_ms().saturating_add(errand.timeout_ms)),
            identity: None,
        };
        let (mut work, stdout) = match self.supervisors.start(start).await {
            Ok(started) => started,
            Err(error) => return Some(Err(format!("cannot begin: no supervisor: {error}"))),
        };
        let reading = tokio::spawn(tail(stdout, config.secrets.masker()));
        let mut abandoned = pin!(self.abandoned());
        let mut told = false;
        let end = loop {
            tokio::select! {
                end = work.ended() => break end,
                () = &mut abandoned, if !told => {
                    told = true;
                    work.order(&Order::Stop).await;
                }
            }
        };
        let tail = tokio::time::timeout(OUTPUT_LINGERS, reading).await.ok().and_then(Result::ok).unwrap_or_default();
        let ended = match end? {
            End { stopped: Some(Cause::Told | Cause::Lease), .. } => return None,
            End { stopped: Some(Cause::Time), how: How::NotStarted(why) } => Err(why),
            End { stopped: Some(Cause::Time), .. } => {
                Err(format!("ran over its time of {} s", errand.timeout_ms as f64 / 1000.0))
            }
            End { how: How::NotStarted(why), .. } => Err(why),
            End { how: How::Code(0), .. } => Ok(()),
            End { how: How::Code(code), .. } => Err(format!("ended with exit code {code}")),
        };
        for line in tail.lines().filter(|line| !line.is_empty()) {
            match &ended {
                // A check that passes, passes often.
                Ok(()) if what == "check" => debug!("{what} says node={}: {line}", config.id),
                _ => info!("{what} says node={}: {line}", config.id),
            }
        }
        Some(ended.map_err(|why| as_reason(&config.secrets.mask(&with_tail(&why, &tail)))))
    }
}

/// Reads what a command writes; returns the end of it, masked, without what a terminal obeys.
async fn tail(mut from: impl AsyncRead + Unpin, mut masker: Masker) -> String {
    let mut kept = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    let mut whole = true;
    loop {
        let read = from.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            kept.extend(masker.finish());
        } else {
            kept.extend_from_slice(&masker.pass(&chunk[..read]));
        }
        if kept.len() > LOGGED_BYTES {
            kept.drain(..kept.len() - LOGGED_BYTES);
            whole = false;
        }
        if read == 0 {
            break;
        }
    }
    let text: String =
        String::from_utf8_lossy(&kept).chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
    if whole { text } else { format!("..{text}") }
}

/// Returns `text` as the daemon takes a reason: on one line, and not too long.
pub fn as_reason(text: &str) -> String {
    let mut reason: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while reason.len() > REASON_BYTES {
        reason.pop();
    }
    reason
}

/// Adds the end of a command's output to why it failed.
fn with_tail(why: &str, tail: &str) -> String {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = lines.join(" | ");
    if said.is_empty() {
        return why.to_owned();
    }
    match said.char_indices().nth_back(REASON_CHARS - 1) {
        Some((at, _)) if at > 0 => format!("{why}: ..{}", &said[at..]),
        _ => format!("{why}: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::secrets::Secrets;

    #[test]
    fn the_reason_ends_with_what_the_command_said_last() {
        assert_eq!(with_tail("failed", ""), "failed");
        assert_eq!(with_tail("failed", "\n one \n\n two\n"), "failed: one | two");
        let long = with_tail("failed", &"ä".repeat(1000));
        assert_eq!(long, format!("failed: ..{}", "ä".repeat(REASON_CHARS)));
        assert_eq!(with_tail("failed", &"ä".repeat(REASON_CHARS)), format!("failed: {}", "ä".repeat(REASON_CHARS)));
    }

    #[tokio::test]
    async fn only_the_end_of_a_flood_is_kept() {
        let secrets = Secrets::read(&["P".to_owned()], &|_| Some("hunter22".to_owned())).expect("long enough");
        let flood = format!("{}\x1b[31mhunter22\n", "x".repeat(1 << 20));
        let kept = tail(flood.as_bytes(), secrets.masker()).await;
        assert_eq!(kept.len(), LOGGED_BYTES + 2);
        assert!(kept.starts_with("..xxx") && kept.ends_with(" [31m***\n"));
    }
}
