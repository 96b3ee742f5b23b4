//! A running run in the hands of a write: its contract, its steps, and the one function that moves a step.

use std::sync::Arc;

use rusqlite::named_params;
use serde_json::Value;

use super::runs::{self, RunRow};
use super::tx::{About, Tx};
use super::{Error, NEVER};
use crate::clock::Ms;
use crate::domain::contract::Contract;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::plan::Progress;
use crate::domain::run::RunState;
use crate::domain::step::{StepEvent, StepState};

/// A running run in the hands of a write.
pub(super) struct Live {
    pub(super) run: RunRow,
    pub(super) contract: Arc<Contract>,
    pub(super) steps: Vec<StepRow>,
}

/// One of its steps.
#[derive(Clone, Debug)]
pub(super) struct StepRow {
    pub(super) state: StepState,
    pub(super) ready: bool,
    pub(super) attempt: i64,
    pub(super) node_id: Option<NodeId>,
    pub(super) instance: Option<String>,
    pub(super) had: Option<bool>,
}

impl Live {
    /// Loads a run with its contract and steps.
    pub(super) fn load(tx: &Tx, run: RunRow) -> Result<Self, Error> {
        let contract = tx.contract(&run.run_id, &run.contract)?;
        let mut statement = tx.conn.prepare_cached(
            "SELECT state, ready, attempt, node_id, instance,
                 CASE WHEN kind = 'acquire' THEN result ->> 'acquired' END
             FROM steps WHERE run_id = ?1 ORDER BY seq",
        )?;
        let mut rows = statement.query([run.run_id.as_str()])?;
        let mut steps = Vec::with_capacity(contract.steps.len());
        while let Some(row) = rows.next()? {
            let state: String = row.get(0)?;
            steps.push(StepRow {
                state: StepState::parse(&state).ok_or_else(|| Error::Broken(format!("a step's state is {state:?}")))?,
                ready: row.get(1)?,
                attempt: row.get(2)?,
                node_id: row.get::<_, Option<String>>(3)?.map(NodeId::from_stored),
                instance: row.get(4)?,
                had: row.get(5)?,
            });
        }
        if steps.len() != contract.steps.len() {
            return Err(Error::Broken(format!(
                "run {} has {} steps in {} rows",
                run.run_id,
                contract.steps.len(),
                steps.len()
            )));
        }
        Ok(Self { run, contract, steps })
    }

    /// Takes a run that is about to begin: its steps are as they were inserted (I4).
    pub(super) fn fresh(run: RunRow, contract: Arc<Contract>) -> Self {
        let step =
            StepRow { state: StepState::Pending, ready: false, attempt: 1, node_id: None, instance: None, had: None };
        let steps = vec![step; contract.steps.len()];
        Self { run, contract, steps }
    }

    /// Loads a run that is RUNNING, by its id; `None` when it is not.
    pub(super) fn running(tx: &Tx, run: &RunId) -> Result<Option<Self>, Error> {
        match runs::find(tx, run)? {
            Some(row) if row.state == RunState::Running => Self::load(tx, row).map(Some),
            _ => Ok(None),
        }
    }

    pub(super) fn progress(&self) -> Vec<Progress> {
        self.steps.iter().map(|step| Progress { state: step.state, had: step.had }).collect()
    }

    pub(super) fn about(&self, at: usize) -> About<'_> {
        let about = About::step(&self.run.run_id, seq(at));
        match &self.steps[at].node_id {
            Some(node) => about.on(node),
            None => about,
        }
    }

    /// The one function that moves a step of a running run: asks `StepState::next`, then updates the row where it
    /// still has the state and attempt it was found in.
    pub(super) fn step(&mut self, tx: &Tx, at: usize, event: StepEvent, set: &Set) -> Result<(), Error> {
        let step = &mut self.steps[at];
        let to = step.state.next(event)?;
        let attempt = step.attempt + i64::from(event == StepEvent::RollBack);
        let rows = tx
            .conn
            .prepare_cached(
                "UPDATE steps SET state = :to, attempt = :attempt, ready = 0, instance = :instance, deadline = :deadline,
                     started_at = CASE WHEN :begins THEN :now WHEN :to = 'PENDING' THEN NULL ELSE started_at END,
                     ended_at = CASE WHEN :ends THEN :now ELSE NULL END,
                     result = :result
                 WHERE run_id = :run AND seq = :seq AND state = :from AND attempt = :was",
            )?
            .execute(named_params! {
                ":to": to.as_str(), ":attempt": attempt, ":instance": set.instance, ":deadline": set.deadline,
                ":begins": matches!(event, StepEvent::Claim | StepEvent::Ask | StepEvent::Acquire), ":now": tx.now,
                ":ends": to.is_over(), ":result": set.result.as_ref().map(Value::to_string),
                ":run": self.run.run_id.as_str(), ":seq": seq(at), ":from": step.state.as_str(), ":was": step.attempt,
            })?;
        if rows != 1 {
            return Err(Error::Broken(format!("step {} of run {} is not {}", seq(at), self.run.run_id, step.state)));
        }
        step.state = to;
        step.attempt = attempt;
        step.ready = false;
        step.instance.clone_from(&set.instance);
        Ok(())
    }

    /// Begins an attempt: the step's move and the row that will keep its report.
    pub(super) fn begin(
        &mut self,
        tx: &Tx,
        at: usize,
        event: StepEvent,
        set: &Set,
        nonce: Option<&str>,
    ) -> Result<(), Error> {
        self.step(tx, at, event, set)?;
        let step = &self.steps[at];
        tx.conn
            .prepare_cached(
                "INSERT INTO attempts (run_id, seq, attempt, node_id, nonce, started_at)
                 VALUES (:run, :seq, :attempt, :node, :nonce, :now)",
            )?
            .execute(named_params! {
                ":run": self.run.run_id.as_str(), ":seq": seq(at), ":attempt": step.attempt,
                ":node": step.node_id.as_ref().map(NodeId::as_str), ":nonce": nonce, ":now": tx.now,
            })?;
        Ok(())
    }

    /// Ends an attempt's row.
    pub(super) fn close_attempt(&self, tx: &Tx, at: usize, attempt: i64, result: &Value) -> Result<(), Error> {
        tx.conn
            .prepare_cached(
                "UPDATE attempts SET ended_at = ?4, result = ?5 WHERE run_id = ?1 AND seq = ?2 AND attempt = ?3",
            )?
            .execute((self.run.run_id.as_str(), seq(at), attempt, tx.now, result.to_string()))?;
        Ok(())
    }
}

/// What a move sets besides the state.
pub(super) struct Set {
    pub(super) instance: Option<String>,
    pub(super) deadline: Ms,
    pub(super) result: Option<Value>,
}

impl Set {
    pub(super) fn nothing() -> Self {
        Self { instance: None, deadline: NEVER, result: None }
    }

    pub(super) fn result(result: &Value) -> Self {
        Self { result: Some(result.clone()), ..Self::nothing() }
    }
}

/// A step's number on the wire.
pub(super) fn seq(at: usize) -> i64 {
    i64::try_from(at).expect("at most 500 steps") + 1
}
