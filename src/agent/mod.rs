//! The agent: speaks for the nodes of one host, and does their work.
//!
//! Each node is on its own ([`node`]): it advertises itself, claims one step at a time and carries it out.
//! The lease decides how long it may ([`deadline`]); a supervisor process sees to it that nothing outlives that
//! ([`supervisor`]). Between two users it is cleaned, while idle it is checked ([`upkeep`]). What the owner's file comes
//! to say is taken over without touching what works ([`reload`]). What is sent to the daemon is sent until it is heard
//! ([`link`]).
//!
//! Invariants kept here: a result names node, nonce and attempt (I8); no attempt is begun twice by one life of the
//! agent, and nothing is begun before earlier work on the node is stopped (I11).

pub mod advert;
pub mod artifacts;
pub mod config;
pub mod deadline;
mod descendants;
pub mod environment;
pub mod here;
pub mod link;
pub mod node;
pub mod output;
pub mod process;
pub mod reload;
pub mod secrets;
mod step;
pub mod supervisor;
pub mod upkeep;
pub mod user;
pub mod wire;

use std::path::Path;

use log::{error, info, warn};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use config::Config;
use link::{Flags, Link};
use process::Supervisors;
use reload::Nodes;

use crate::systemd::Manager;

/// How far the agent is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It works.
    Run,
    /// Told to end: nothing new is claimed, the steps in hand end.
    Finish,
    /// Told again: the work is stopped and reported.
    Abandon,
}

/// How an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Told,
    /// Its file makes no sense, or the host does not let it work.
    Config,
    /// There is no address or no token of a daemon.
    NoDaemon,
    /// The daemon refused every one of its nodes.
    Refused,
}

/// Runs the agent that the file at `path` describes, until a signal ends it or the daemon refuses all its nodes.
pub fn run(path: &Path, flags: &Flags) -> Ended {
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(invalid) => {
            error!("{invalid}");
            return Ended::Config;
        }
    };
    let link = match Link::new(&config, flags) {
        Ok(link) => link,
        Err(missing) => {
            error!("{missing}");
            return Ended::NoDaemon;
        }
    };
    // Looked at before anything starts, so that a wrong path is found now and not at the first step.
    if let Err(invalid) = config.prepare() {
        error!("{invalid}");
        return Ended::Config;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(run_nodes(path, config, link))) {
        Ok(ended) => ended,
        Err(error) => {
            error!("the agent cannot work on this host: {error}");
            Ended::Config
        }
    }
}

async fn run_nodes(path: &Path, config: Config, link: Link) -> std::io::Result<Ended> {
    let supervisors = Supervisors::new()?;
    let hangup = signal(SignalKind::hangup())?;
    let manager = Manager::of_environment();
    let phase = watch_signals(manager.clone())?;
    info!("agent for {} nodes url={}", config.nodes.len(), link.client().url());
    manager.status(&format!("waiting for the daemon at {}", link.client().url()));
    tokio::spawn(keep_watched(manager.clone()));
    let ended = Nodes::start(path, config, link, supervisors, phase).look_after(hangup, &manager).await;
    match ended {
        Ended::Refused => error!("the daemon refuses every node of this agent"),
        _ => info!("agent ends"),
    }
    Ok(ended)
}

/// Turns SIGTERM and SIGINT into phases.
fn watch_signals(manager: Manager) -> std::io::Result<watch::Receiver<Phase>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (send, receive) = watch::channel(Phase::Run);
    tokio::spawn(async move {
        for phase in [Phase::Finish, Phase::Abandon] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            match phase {
                Phase::Abandon => warn!("told to end again: stopping the work"),
                _ => info!("told to end: nothing new is claimed, the steps in hand end (a second signal stops them)"),
            }
            manager.stopping("the steps in hand end");
            send.send_replace(phase);
        }
        // The channel must not close while nodes wait on it.
        std::future::pending::<()>().await;
    });
    Ok(receive)
}

/// Tells the service manager that the agent lives, from the one thread that does all its work: blocked, it would tell
/// nothing.
async fn keep_watched(manager: Manager) {
    let Some(every) = manager.watch_every() else { return };
    loop {
        manager.alive();
        tokio::time::sleep(every).await;
    }
}
