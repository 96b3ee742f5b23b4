//! `make bench`: how fast the daemon is, compared with what its own design could do at best on this disk, in one run.
//!
//! Everything that is compared is measured in turns, in the same run, in at least five rounds, and what is printed are
//! medians: so a busy machine or a slow disk moves both sides alike. The *ceiling* ([`ceiling`]) is the bare form of the
//! daemon's own design. Daemon and ceiling are processes of their own in temporary folders; the load comes from this
//! one, through one client ([`client`]). What the rows mean is in docs/performance.md.
//!
//! `ONLY=submit` measures the groups whose name contains that, `QUICK=1` takes fewer and shorter rounds.
#![allow(missing_docs, reason = "a program, not a library")]
#![allow(clippy::disallowed_methods, reason = "what is measured here is how long something took, awake")]
#![allow(clippy::cast_precision_loss, reason = "counts and milliseconds are far below 2^53")]

mod bare;
mod ceiling;
mod claim;
mod client;
mod fairness;
mod fill;
mod history;
mod idle;
mod lab;
mod promote;
mod server;
mod submit;
mod sweep;
mod table;
mod wake;

use std::cell::OnceCell;
use std::path::Path;

use table::Table;
use tempfile::TempDir;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    /// Multiplies the length of each measurement.
    pub scale: f64,
}

type Group = (&'static str, fn(&Bench, &mut Table));

/// In the order of the table.
const GROUPS: &[Group] = &[
    ("submit", submit::measure),
    ("fairness", fairness::measure),
    ("claim", claim::measure),
    ("wake", wake::measure),
    ("sweep", sweep::measure),
    ("promote", promote::measure),
    ("idle", idle::measure),
    ("history", history::measure),
];

/// What every group has.
pub struct Bench {
    pub rt: tokio::runtime::Runtime,
    pub effort: Effort,
    /// The library that makes syncs slow, in a folder of its own.
    pub slow: server::SlowFlush,
    /// See [`Bench::many_shapes`].
    many_shapes: OnceCell<TempDir>,
}

impl Bench {
    /// A folder in which 100,000 runs wait in 50,000 shapes; made when it is first asked for.
    pub fn many_shapes(&self) -> &Path {
        let make = || {
            let folder = tempfile::tempdir().expect("a temporary folder");
            sweep::queue(self, folder.path(), 50_000, 2);
            folder
        };
        self.many_shapes.get_or_init(make).path()
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [mode, folder] = args.as_slice()
        && mode == "ceiling"
    {
        return ceiling::run(folder.as_ref());
    }
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let quick = set("QUICK").is_some_and(|quick| quick != "0");
    let effort = if quick { Effort { rounds: 3, scale: 0.4 } } else { Effort { rounds: 5, scale: 1.0 } };
    let only = set("ONLY").or_else(|| args.first().cloned()).unwrap_or_default();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    mediator::http::raise_descriptor_limit();
    let _cleaner = server::Cleaner;
    let bench = Bench { rt, effort, slow: server::SlowFlush::build(), many_shapes: OnceCell::new() };
    let mut table = Table::default();
    let began = std::time::Instant::now();
    for (name, measure) in GROUPS.iter().filter(|(name, _)| name.contains(&only)) {
        eprintln!("{name} ({:.0} s)", began.elapsed().as_secs_f64());
        measure(&bench, &mut table);
    }
    table.print(quick, began.elapsed());
}
