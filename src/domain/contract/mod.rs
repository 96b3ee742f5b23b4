//! The contract: what a client submits. From bytes to a checked value, or to the path that is wrong.
//!
//! `parse` reads the fields; `check` holds what ties steps to each other (needs, release, loop, acquire); `odd`
//! tells what is legal and seldom meant. What comes
//! out needs no further checks anywhere: the rest of the program takes a [`Contract`] at its word.

mod check;
mod odd;
mod parse;

pub use parse::attributes;

use std::collections::BTreeMap;

use super::Invalid;
use super::ids::RunId;
use super::json::Json;
use super::matching::{Requirement, Role};

/// The most roles in `requires`, and the most nodes for one of them.
pub const MAX_ROLES: usize = 32;
/// The most steps of a contract.
pub const MAX_STEPS: usize = 500;

/// A checked contract.
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    /// What people call the run.
    pub name: Option<String>,
    /// The run's id, if the client chose it.
    pub run_id: Option<RunId>,
    /// What the run is for, beyond its own life: e.g. a change under review.
    pub work: Option<String>,
    /// The roles to be matched.
    pub requires: Requirement,
    /// The steps, in order; a step's `seq` is its index here plus 1.
    pub steps: Vec<Step>,
    /// From -10 to 10; higher goes first.
    pub priority: i64,
    /// How long the run may wait in the queue, in milliseconds; `None` waits without limit.
    pub queue_timeout_ms: Option<i64>,
    /// How long it may take from its start, in milliseconds; `None` takes the daemon's `run.limit_seconds`.
    pub limit_ms: Option<i64>,
    /// Whether the run ends with its submitter's silence, from submission on.
    pub attended: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Unique within the contract.
    pub id: String,
    /// What it does.
    pub kind: Kind,
    /// Indices of the steps it waits for: all smaller than its own.
    pub needs: Vec<usize>,
    /// Roles given back once it is done.
    pub release: Vec<RoleRef>,
    /// Whether the run goes on when it fails.
    pub allow_failure: bool,
    /// Going back when it fails.
    pub again: Option<Loop>,
}

/// `loop`: on failure the range from `back_to` to the step is done again.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Index of the first step of the range.
    pub back_to: usize,
    /// Attempts in all, from 2 to 100.
    pub max: i64,
}

/// The four kinds of step.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A command on a node.
    Run(Command),
    /// A question to people.
    Ask(Question),
    /// One more node, if it can be had at that moment.
    Acquire(Acquire),
    /// The submitter works with the run's nodes.
    Hold {
        /// How long, in milliseconds; `None` until the run's own limit.
        timeout_ms: Option<i64>,
    },
}

/// A command: an argument vector, never a shell line.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// On whose node.
    pub uses: RoleRef,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Plain values for its environment.
    pub env: BTreeMap<String, String>,
    /// Names passed through from the node's environment.
    pub pass_env: Vec<String>,
    /// From the claim, in milliseconds; `None` until the run's limit.
    pub timeout_ms: Option<i64>,
    /// Relative paths to keep.
    pub artifacts: Vec<String>,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What is asked.
    pub prompt: String,
    /// The answers to choose from; empty: any text.
    pub options: Vec<String>,
    /// The answers that let the run go on; empty: all.
    pub accept: Vec<String>,
    /// Who may answer; empty: anyone.
    pub answerers: Vec<String>,
    /// How long it stays open, in milliseconds; `None` takes the daemon's `ask.timeout_seconds`.
    pub timeout_ms: Option<i64>,
}

/// An acquisition and its two ways on.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// The role wanted: one node.
    pub want: Role,
    /// Index of the step that follows when it was had.
    pub acquired: usize,
    /// Index of the step that follows when it was not.
    pub unavailable: usize,
}

/// A role as a step names it: `dut` or `dut.1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoleRef {
    /// The role's name.
    pub role: String,
    /// Which of its nodes; `None` for the role as such.
    pub index: Option<usize>,
}

impl RoleRef {
    /// Says whether this names node `index` of `role`: a role alone means all its nodes.
    pub fn covers(&self, role: &str, index: usize) -> bool {
        self.role == role && self.index.is_none_or(|own| own == index)
    }
}

impl std::fmt::Display for RoleRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            None => f.write_str(&self.role),
            Some(index) => write!(f, "{}.{index}", self.role),
        }
    }
}

impl Contract {
    /// Reads a contract from strict JSON.
    ///
    /// # Errors
    /// [`Invalid`]: the first thing that breaks the grammar, with its path.
    pub fn parse(body: &Json) -> Result<Self, Invalid> {
        let contract = parse::contract(body)?;
        check::contract(&contract)?;
        Ok(contract)
    }

    /// Returns the index of the step with this id.
    pub fn step_index(&self, id: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.id == id)
    }
}

impl Kind {
    /// Returns the word for it on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Ask(_) => "ask",
            Self::Acquire(_) => "acquire",
            Self::Hold { .. } => "hold",
        }
    }
}

/// Says whether `path` is a relative path that stays below where it starts: the form of an artifact's name.
pub fn is_inner_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains(|c: char| c == '\\' || c.is_control())
        && path.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255)
}
