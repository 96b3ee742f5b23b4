//! The daemon's answers as types, for the commands that show them to people.
//!
//! They are tolerant: an added field is ignored, a missing or null one is empty, and states and kinds stay text, so
//! that an older command goes on working with a newer daemon. What `--json` prints does not pass through here.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::Exit;
use crate::client::{self, Answer};

/// Reads null as the empty value.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(source: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(source).map(Option::unwrap_or_default)
}

macro_rules! answer {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default)]
        #[allow(missing_docs, reason = "the fields are the wire's, which docs of the API describe")]
        pub struct $name { $(#[serde(deserialize_with = "nullable")] pub $field: $kind,)* }
    };
}

answer!(
    /// A run.
    Run {
        run_id: String,
        name: String,
        state: String,
        principal: String,
        work: String,
        priority: i64,
        created_at: String,
        started_at: String,
        ended_at: String,
        ends_by: String,
        requires: Vec<Require>,
        assigned: Vec<Assigned>,
        verdict: Option<Verdict>,
        queue: Queue,
        steps: Vec<Step>,
    }
);
answer!(
    /// One entry of a run's `requires`.
    Require {
        r#as: String,
        capability: String,
        attrs: serde_json::Map<String, Value>,
        count: Option<u64>,
    }
);
answer!(
    /// The nodes that serve one role.
    Assigned {
        r#as: String,
        nodes: Vec<AssignedNode>,
    }
);
answer!(
    /// One of them.
    AssignedNode {
        node_id: String,
    }
);
answer!(
    /// Why a submission can never be placed.
    Reject {
        role: String,
        wanted: Option<u64>,
        known: Option<u64>,
    }
);
answer!(
    /// How a run ended.
    Verdict {
        kind: String,
        detail: String,
        step: String,
        node: String,
    }
);
answer!(
    /// Where a run waits.
    Queue {
        position: Option<u64>,
    }
);
answer!(
    /// A step of a run.
    Step {
        seq: u64,
        id: String,
        kind: String,
        uses: String,
        state: String,
        node_id: String,
        attempt: u64,
        started_at: String,
        ended_at: String,
        result: Option<StepResult>,
    }
);
answer!(
    /// What came out of a step.
    StepResult {
        exit_code: Option<i64>,
        error: Option<String>,
        answer: Option<String>,
        by: String,
        acquired: Option<bool>,
        node_id: String,
    }
);
answer!(
    /// A node.
    Node {
        node_id: String,
        label: String,
        r#static: bool,
        live: bool,
        last_seen: String,
        capabilities: Vec<Capability>,
        drain: String,
        drains: Vec<Drain>,
        cleaning: Option<Cleaning>,
        lease: Option<Lease>,
        holders: Vec<Holder>,
        waiting: Vec<String>,
    }
);
answer!(
    /// What a node is cleaned for.
    Cleaning {
        run_id: String,
        since: String,
        failure: String,
    }
);
answer!(
    /// A lease that a node had, or has.
    Holder {
        run_id: String,
        principal: String,
        work: String,
        from: String,
        to: String,
        why: String,
    }
);
answer!(
    /// Something a node can do.
    Capability {
        capability: String,
        attrs: serde_json::Map<String, Value>,
    }
);
answer!(
    /// One side's wish that a node takes no new run.
    Drain {
        mode: String,
        by: String,
        reason: String,
        since: String,
    }
);
answer!(
    /// Who holds a node.
    Lease {
        run_id: String,
    }
);
answer!(
    /// An open question.
    Ask {
        run_id: String,
        seq: u64,
        id: String,
        prompt: String,
        options: Vec<String>,
        answerers: Vec<String>,
        asked_at: String,
        deadline: String,
    }
);
answer!(
    /// What a run waits for.
    Why {
        code: String,
        detail: String,
        position: Option<u64>,
        roles: Vec<WhyRole>,
    }
);
answer!(
    /// One role of it.
    WhyRole {
        r#as: String,
        wanted: u64,
        known: u64,
        live: u64,
        free: u64,
        nodes: Vec<WhyNode>,
    }
);
answer!(
    /// A node that could serve the role, and what keeps it.
    WhyNode {
        node_id: String,
        status: String,
        run_id: String,
        since: String,
        ends_by: String,
        by: String,
        reason: String,
    }
);
answer!(
    /// A file that a step left.
    Artifact {
        seq: u64,
        attempt: u64,
        path: String,
        size: u64,
        sha256: String,
    }
);

/// Reads the body of an answer.
///
/// # Errors
/// [`client::Error::Garbled`] when it is something else.
pub fn read<T: DeserializeOwned>(answer: &Answer) -> Result<T, client::Error> {
    serde_json::from_slice(&answer.body).map_err(|error| client::Error::Garbled(error.to_string()))
}

impl Run {
    /// Says whether the run is over.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "SUCCEEDED" | "FAILED" | "CANCELLED")
    }

    /// Returns how a command that followed the run to its end ends.
    pub fn exit(&self) -> Exit {
        let kind = self.verdict.as_ref().map_or("", |verdict| verdict.kind.as_str());
        match (self.state.as_str(), kind) {
            ("SUCCEEDED", _) => Exit::Done,
            (_, "node-lost" | "agent-restarted" | "drained") => Exit::LabFailed,
            _ => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_null_and_unknown_fields_are_no_trouble() {
        let run: Run = serde_json::from_str(
            r#"{"run_id":"r-1","name":null,"verdict":null,"queue":null,"assigned":null,"colour":"blue",
                "steps":[{"seq":1,"id":"a","result":{"exit_code":0,"more":1},"node_id":null}]}"#,
        )
        .expect("reads");
        assert_eq!((run.name.as_str(), run.queue.position), ("", None));
        assert_eq!(run.steps[0].result.as_ref().and_then(|result| result.exit_code), Some(0));
    }

    #[test]
    fn a_script_can_tell_a_failed_test_from_a_failing_lab() {
        let check = |state: &str, kind: &str, expect: Exit| {
            let verdict = Some(Verdict { kind: kind.into(), ..Verdict::default() });
            assert_eq!(Run { state: state.into(), verdict, ..Run::default() }.exit(), expect, "{state} {kind}");
        };
        check("SUCCEEDED", "succeeded", Exit::Done);
        for kind in ["step-failed", "time-limit", "queue-timeout", "rejected", "holder-gone", "restored", ""] {
            check("FAILED", kind, Exit::Failed);
        }
        check("CANCELLED", "cancelled", Exit::Failed);
        check("CANCELLED", "drained", Exit::LabFailed);
        check("FAILED", "node-lost", Exit::LabFailed);
        check("FAILED", "agent-restarted", Exit::LabFailed);
    }
}
