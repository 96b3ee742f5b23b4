//! The nodes of this agent, and what becomes of them when their owner has the file read again (SIGHUP).
//!
//! The whole file is read and checked first: one that is wrong changes nothing. Then each node hears what is new for it
//! and does it when it can ([`Orders`]); none is started again, and a step in hand goes on as it began. A node that has
//! left the file *retires*: it drains at the next step boundary, is cleaned if it is to be, and falls silent. One that is
//! in the file again before that stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use log::{error, info, warn};
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::{Config, NodeConfig, TokenSource};
use super::link::Link;
use super::node::{Left, Node, Orders};
use super::process::Supervisors;
use super::{Ended, Phase};
use crate::systemd::Manager;

/// The nodes at work.
#[derive(Debug)]
pub struct Nodes {
    path: PathBuf,
    /// The daemon's address and token, as the file had them at the start: they are never taken over.
    daemon: (Option<String>, Option<TokenSource>, Option<PathBuf>),
    link: Arc<Link>,
    supervisors: Supervisors,
    phase: watch::Receiver<Phase>,
    /// What each that has not ended is to do.
    orders: BTreeMap<String, watch::Sender<Orders>>,
    at_work: JoinSet<(String, Left)>,
    /// Ends for each when the daemon has heard of it, or never will.
    unknown: JoinSet<()>,
    /// Those that another agent has taken over.
    taken_over: BTreeSet<String>,
    readings: u64,
}

impl Nodes {
    /// Starts the nodes of `config`, which was read from `path`.
    pub fn start(
        path: &Path,
        config: Config,
        link: Link,
        supervisors: Supervisors,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let mut nodes = Self {
            path: path.to_owned(),
            daemon: (config.url, config.token, config.ca_file),
            link: Arc::new(link),
            supervisors,
            phase,
            orders: BTreeMap::new(),
            at_work: JoinSet::new(),
            unknown: JoinSet::new(),
            taken_over: BTreeSet::new(),
            readings: 0,
        };
        config.nodes.into_iter().for_each(|node| nodes.begin(Arc::new(node)));
        nodes
    }

    /// Looks after them until none is left; each `hangup` has the file read again. `manager` is told when the daemon knows
    /// all of them.
    pub async fn look_after(mut self, mut hangup: Signal, manager: &Manager) -> Ended {
        let (mut told, mut ready) = (false, false);
        loop {
            tokio::select! {
                // One that has ended is not among them any more when it is asked who is known.
                biased;
                left = self.at_work.join_next() => match left {
                    None if told || *self.phase.borrow() > Phase::Run => return Ended::Told,
                    None => return Ended::Refused,
                    Some(Ok((id, left))) => {
                        told |= left == Left::Told;
                        self.end(id, left);
                    }
                    // A panic in one node ends the process, and with it all work: being deaf would be worse.
                    Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                },
                Some(_) = self.unknown.join_next() => {
                    if !ready && self.unknown.is_empty() && !self.orders.is_empty() {
                        ready = true;
                        manager.ready(&self.status());
                    }
                }
                _ = hangup.recv() => {
                    if ready {
                        manager.reloading();
                    }
                    self.read_again().await;
                    if ready {
                        manager.ready(&self.status());
                    }
                }
            }
        }
    }

    fn begin(&mut self, config: Arc<NodeConfig>) {
        let id = config.id.clone();
        let (send, orders) = watch::channel(Orders { config, retired: false, reading: self.readings });
        let node = Node::new(orders, self.link.clone(), self.supervisors.clone(), self.phase.clone());
        let mut heard = node.heard.subscribe();
        // One that is refused goes, and with it what tells of it.
        self.unknown.spawn(async move { drop(heard.wait_for(|heard| heard.adverts > 0).await) });
        self.orders.insert(id.clone(), send);
        self.at_work.spawn(async move { (id, node.run().await) });
    }

    fn end(&mut self, id: String, left: Left) {
        let orders = self.orders.remove(&id).expect("each has its orders until it ends");
        let orders = orders.borrow();
        match left {
            // It was in the file again when it had just left.
            Left::Retired if !orders.retired => self.begin(orders.config.clone()),
            Left::Retired => info!("node retired node={id}"),
            Left::TakenOver => drop(self.taken_over.insert(id)),
            Left::Told | Left::Refused => {}
        }
    }

    fn status(&self) -> String {
        let names: Vec<&str> = self.orders.keys().map(String::as_str).collect();
        format!("speaking for {} at {}", names.join(", "), self.link.client().url())
    }

    async fn read_again(&mut self) {
        if *self.phase.borrow() > Phase::Run {
            return info!("told to read the file again, but this agent ends");
        }
        let path = self.path.clone();
        // On another thread: looking up a user may take long, and the nodes go on meanwhile.
        let read = tokio::task::spawn_blocking(move || {
            let config = Config::load(&path).map_err(|invalid| invalid.to_string())?;
            config.prepare()?;
            Ok::<_, String>(config)
        });
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        match read {
            Ok(config) => self.take_over(config),
            Err(invalid) => error!("the file is not taken over, everything stays as it was: {invalid}"),
        }
    }

    fn take_over(&mut self, config: Config) {
        self.readings += 1;
        let Config { url, token, ca_file, nodes } = config;
        if (url, token, ca_file) != self.daemon {
            warn!("another url, token or ca_file is taken over by a restart only: this agent stays with its daemon");
        }
        let mut new: BTreeMap<String, NodeConfig> = nodes.into_iter().map(|node| (node.id.clone(), node)).collect();
        let (mut changed, mut retired) = (Vec::new(), Vec::new());
        for (id, orders) in &self.orders {
            orders.send_modify(|orders| {
                orders.reading = self.readings;
                match new.remove(id) {
                    None => {
                        if !std::mem::replace(&mut orders.retired, true) {
                            retired.push(id.clone());
                        }
                    }
                    Some(node) => {
                        if std::mem::replace(&mut orders.retired, false) || *orders.config != node {
                            changed.push(id.clone());
                        }
                        orders.config = Arc::new(node);
                    }
                }
            });
        }
        let mut added = Vec::new();
        for (id, node) in new {
            if self.taken_over.contains(&id) {
                warn!("another agent has the node: only a restart of this one takes it back node={id}");
                continue;
            }
            added.push(id);
            self.begin(Arc::new(node));
        }
        let named = |names: &[String]| if names.is_empty() { "-".to_owned() } else { names.join(",") };
        let (added, changed, retired) = (named(&added), named(&changed), named(&retired));
        info!("the file is taken over added={added} changed={changed} retired={retired}");
    }
}
