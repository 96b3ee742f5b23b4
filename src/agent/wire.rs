//! What the daemon tells an agent, and what the agent reports: the JSON of `POST /v1/nodes`, claim and result.
//!
//! Unknown fields are ignored: a newer daemon may tell more.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::client::{Answer, Error, encode};

/// A lease, in an advert's answer or in a claim (where the claim's own `run_id` says whose it is).
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Lease {
    /// The run that holds the node.
    #[serde(default)]
    pub run_id: String,
    /// The fencing token.
    pub nonce: String,
    /// What was left, in seconds, when the answer was made.
    pub ttl_seconds: f64,
}

impl Lease {
    /// Returns what was left, in milliseconds.
    pub fn ttl_ms(&self) -> i64 {
        ms(self.ttl_seconds)
    }
}

/// The answer to an advert.
#[derive(Debug, Deserialize)]
pub struct Adverted {
    /// Every lease on the node.
    #[serde(default, deserialize_with = "or_default")]
    pub leases: Vec<Lease>,
    /// How soon, in seconds, to advertise again.
    pub renew_seconds: f64,
    /// The mode of draining in force; empty if none.
    #[serde(default, deserialize_with = "or_default")]
    pub drain: String,
}

/// A step that the daemon gave to this node.
#[derive(Clone, Debug, Deserialize)]
pub struct Claim {
    /// The run.
    pub run_id: String,
    /// The step's place in the run, from 1.
    pub seq: u64,
    /// The step's id.
    pub id: String,
    /// Which attempt this is, from 1.
    pub attempt: u64,
    /// The argument vector.
    pub run: Vec<String>,
    /// Variables that the contract sets.
    #[serde(default, deserialize_with = "or_default")]
    pub env: BTreeMap<String, Value>,
    /// Names to pass through from the agent's own environment.
    #[serde(default, deserialize_with = "or_default")]
    pub pass_env: Vec<String>,
    /// How long it may take, in seconds, counted from the claim.
    #[serde(default)]
    pub timeout_seconds: Option<f64>,
    /// Relative paths to keep.
    #[serde(default, deserialize_with = "or_default")]
    pub artifacts: Vec<String>,
    /// The run's nodes, by role.
    #[serde(default)]
    pub assigned: Value,
    /// The lease under which it is done.
    pub lease: Lease,
}

/// What a claim gives.
#[derive(Clone, Debug)]
pub enum Given {
    /// A step.
    Step(Box<Claim>),
    /// The node is to be cleaned after its last user.
    Cleanup(Cleaning),
}

/// Which cleaning is due.
#[derive(Clone, Debug, Deserialize)]
pub struct Cleaning {
    /// It goes with the report.
    pub cleaning: String,
    /// The run whose lease ended.
    pub run_id: String,
}

impl Given {
    /// Reads what a claim's answer, or the `claim` of a result's answer, gives.
    ///
    /// # Errors
    /// What is not as expected in it.
    pub fn read(value: Value) -> serde_json::Result<Self> {
        if value["kind"] == "cleanup" {
            return serde_json::from_value(value).map(Self::Cleanup);
        }
        serde_json::from_value(value).map(Self::Step)
    }
}

/// Names one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The run.
    pub run_id: String,
    /// The step's place in the run.
    pub seq: u64,
    /// Which attempt.
    pub attempt: u64,
}

impl Claim {
    /// Returns which attempt it is.
    pub fn attempt(&self) -> Attempt {
        Attempt { run_id: self.run_id.clone(), seq: self.seq, attempt: self.attempt }
    }

    /// Returns the address of one of the step's resources: `result`, `log`, `artifacts/..`.
    pub fn path(&self, resource: &str) -> String {
        format!("/v1/runs/{}/steps/{}/{resource}", encode(&self.run_id), self.seq)
    }

    /// Returns the query by which the step's holder shows itself (I8).
    pub fn fence(&self) -> String {
        format!("nonce={}&attempt={}", encode(&self.lease.nonce), self.attempt)
    }
}

impl Attempt {
    /// Returns it as the `working` of a claim.
    pub fn working(&self) -> Value {
        json!({"run_id": self.run_id, "seq": self.seq, "attempt": self.attempt})
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended by itself; 128+n if a signal ended it.
    ExitCode(i32),
    /// It could not be started, or ran over its time: a failure of the step.
    Error(String),
    /// The agent gave the work up; the text says why and stays in the agent's log.
    Lost(String),
}

impl Outcome {
    /// Adds it to the body of a result.
    pub fn write(&self, body: &mut Value) {
        match self {
            Self::ExitCode(code) => body["exit_code"] = json!(code),
            Self::Error(what) => body["error"] = json!(what),
            Self::Lost(_) => body["lost"] = json!(true),
        }
    }
}

/// Reads an answer's body.
///
/// # Errors
/// [`Error::Garbled`] when it is not what was expected.
pub fn read<T: for<'de> Deserialize<'de>>(answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|error| Error::Garbled(error.to_string()))
}

/// Returns seconds as milliseconds; negative ones count as none.
pub fn ms(seconds: f64) -> i64 {
    // The cast saturates: an absurd time becomes "for ever", not an overflow.
    (seconds.max(0.0) * 1000.0) as i64
}

/// `null` counts as absent, everywhere on the wire.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}
