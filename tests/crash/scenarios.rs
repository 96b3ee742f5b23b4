//! What the daemon is doing when it is killed: each scenario prepares a lab, then does one thing that a client can
//! repeat after a crash.

use std::time::Duration;

use mediator::clock::boottime_ms;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Died};

/// One thing to do, and the lab it is done in.
pub struct Scenario {
    pub name: &'static str,
    /// Whether a receiver of notifications listens.
    pub webhook: bool,
    /// Settings, as variables.
    pub settings: &'static [(&'static str, &'static str)],
    pub prepare: fn(&Daemon) -> Result<(), Died>,
    /// Done again, the same, until it gets through: keys and ids are fixed.
    pub act: fn(&Daemon) -> Result<(), Died>,
}

macro_rules! scenarios {
    ($($name:literal $prepare:expr, $act:expr;)*) => {
        &[$(Scenario { name: $name, webhook: false, settings: &[], prepare: $prepare, act: $act }),*]
    };
}

pub const SCENARIOS: &[Scenario] = scenarios! {
    "a run is placed" lab, |d| submit(d, "r", &board(json!([work("a")])));
    "a run is queued" busy, |d| submit(d, "r", &board(json!([work("a")])));
    "a run is rejected" lab, |d| {
        let (status, _) = d.call("POST", "/v1/runs", Some("k-r"), &with_id("r", &needs("laser", json!([work("a")]))))?;
        assert_eq!(status, 422);
        d.call("GET", "/v1/runs/r/record", None, "").map(|(status, _)| assert_eq!(status, 200))
    };
    "a run begins with a question, an acquisition and a hold" lab, |d| submit(d, "r", &board(json!([
        {"id": "q", "ask": {"prompt": "?"}}, {"id": "h", "hold": {}, "needs": []}, acquire(json!([])), work_on("x", "m", json!(["s"])),
        work_on("dut", "n", json!(["s"])),
    ])));
    "a step is claimed" placed, |d| claim(d, "b1").map(|_| ());
    "a result ends a run and starts a waiting one" waiting, |d| result(d, "r0", 1, "b1", json!({"exit_code": 0}));
    "a failed result ends a run" claimed, |d| result(d, "r0", 1, "b1", json!({"exit_code": 3}));
    "a result goes on with the next claim" two_steps, |d| {
        let body = report(d, "b1", json!({"exit_code": 0, "instance": "i1"}));
        d.post("/v1/runs/r0/steps/1/result?claim=true", None, &body).map(|_| ())
    };
    "a loop goes back" looping, |d| result(d, "r0", 1, "b1", json!({"exit_code": 1}));
    "a release starts a waiting run" releasing, |d| result(d, "r0", 1, "b1", json!({"exit_code": 0}));
    "an answer leads to an acquisition" asking, |d| {
        d.post("/v1/runs/r0/steps/1/answer", Some("k-a"), &json!({"answer": "yes"})).map(|_| ())
    };
    "a hold is renewed and ends" holding, |d| {
        // Renewing what has ended meanwhile is refused, and changes nothing.
        let (status, answer) = d.call("POST", "/v1/runs/r0/renew", None, "{}")?;
        assert!(matches!(status, 200 | 409), "{answer}");
        d.post("/v1/runs/r0/steps/1/result", None, &json!({"attempt": 1, "exit_code": 0})).map(|_| ())
    };
    "a cancel starts a waiting run" waiting, |d| cancel(d, "r0");
    "a cancel, then the record" claimed, |d| {
        cancel(d, "r0")?;
        d.call("GET", "/v1/runs/r0/record", None, "").map(|(status, _)| assert_eq!(status, 200))
    };
    "an agent is started again" waiting, |d| advert(d, "b1", "i2");
    "a node is cleaned, then a waiting run starts" dirty, |d| {
        let cleaning = |d: &Daemon| Ok(d.call("GET", "/v1/nodes/b1", None, "")?.1["cleaning"].clone());
        let report = |d: &Daemon, exit_code: i64| -> Result<(), Died> {
            let order = claim(d, "b1")?;
            let body = json!({"instance": "i1", "cleaning": order["cleaning"], "exit_code": exit_code});
            let (status, answer) = d.call("POST", "/v1/nodes/b1/cleaned", None, &body.to_string())?;
            assert!(matches!(status, 200 | 409), "{answer}");
            Ok(())
        };
        cancel(d, "r0")?;
        // It fails first; what it has failed at is not given to it again before an operator says so, once.
        if cleaning(d)?["run_id"] == "r0" {
            if cleaning(d)?["failure"].is_null() {
                report(d, 3)?;
            }
            d.post("/v1/nodes/b1/clean", Some("k-clean"), &json!({}))?;
            // Killed behind that, the repetition has failed anew, and the key's answer is an old one.
            if cleaning(d)?["failure"].is_null() {
                report(d, 0)?;
            } else {
                d.post("/v1/nodes/b1/clean", None, &json!({"done": true}))?;
            }
        }
        Ok(())
    };
    "room appears" waiting, |d| advert(d, "b9", "i1");
    "a drain ends a run at the boundary" waiting_unclaimed, |d| {
        d.post("/v1/nodes/b1/drain", Some("k-d"), &json!({"mode": "at-boundary", "reason": "test"})).map(|_| ())
    };
    "a drain is lifted" drained, |d| {
        let (status, answer) = d.call("DELETE", "/v1/nodes/b1/drain", Some("k-u"), "")?;
        assert_eq!(status, 200, "{answer}");
        Ok(())
    };
    "a node is removed" lab, |d| {
        let (status, answer) = d.call("DELETE", "/v1/nodes/b2", Some("k-n"), "")?;
        assert_eq!(status, 200, "{answer}");
        Ok(())
    };
    "output and files arrive, then the result" claimed, |d| {
        let nonce = nonce(d, "b1");
        // What was reported already is known: then nothing more is to be sent.
        if step_state(d, "r0", 1) == "CLAIMED" {
            let log = format!("/v1/runs/r0/steps/1/log?nonce={nonce}&attempt=1&offset=0");
            let (status, answer) = d.call("PUT", &log, None, "some output\n")?;
            assert_eq!(status, 204, "{answer}");
            let file = format!("/v1/runs/r0/steps/1/artifacts/out/a.bin?nonce={nonce}&attempt=1");
            let (status, answer) = d.call("PUT", &file, None, "some bytes")?;
            assert_eq!(status, 204, "{answer}");
        }
        result(d, "r0", 1, "b1", json!({"exit_code": 0}))
    };
    "a time in the queue ends" queue_time, |d| until(d, "a queue time-out", |d| {
        let (_, run) = d.call("GET", "/v1/runs/r", None, "")?;
        Ok(run["state"] == "FAILED")
    });
};

/// The one that also tells a receiver.
pub const NOTIFYING: Scenario = Scenario {
    name: "a receiver is told",
    webhook: true,
    settings: &[],
    prepare: lab,
    act: |d| {
        submit(d, "r", &board(json!([work("a")])))?;
        cancel(d, "r")?;
        until(d, "two notifications", |d| {
            Ok(d.rows()
                .query_row("SELECT count(*) FROM outbox WHERE state = 'delivered'", [], |row| row.get::<_, i64>(0))
                .expect("a number")
                >= 2)
        })
    },
};

/// The one in which keys are soon forgotten.
pub const FORGETTING: Scenario = Scenario {
    name: "a key is forgotten",
    webhook: false,
    settings: &[("MEDIATOR_IDEMPOTENCY_RETENTION_SECONDS", "0.4")],
    prepare: lab,
    act: |d| {
        // Sent once only: its tombstone refuses every later one.
        if d.call("GET", "/v1/idempotency/k-r", None, "")?.1["state"] == "absent" {
            let (status, _) =
                d.call("POST", "/v1/runs", Some("k-r"), &with_id("r", &needs("laser", json!([work("a")]))))?;
            assert_eq!(status, 422);
        }
        until(d, "a forgotten key", |d| Ok(d.call("GET", "/v1/idempotency/k-r", None, "")?.1["state"] == "expired"))
    },
};

/// The one in which ended runs, events and notifications are soon pruned.
pub const PRUNING: Scenario = Scenario {
    name: "history is pruned",
    webhook: true,
    settings: &[("MEDIATOR_HISTORY_RETENTION_DAYS", "0.00001"), ("MEDIATOR_EVENTS_RETENTION_DAYS", "0.00001")],
    prepare: lab,
    act: |d| {
        // Asked again after its end it is refused: there has been such a run.
        let body = with_id("r", &board(json!([work("a")])));
        let (status, answer) = d.call("POST", "/v1/runs", None, &body)?;
        assert!(matches!(status, 200 | 201) || answer["code"] == "run-exists", "{answer}");
        let (status, answer) = d.call("POST", "/v1/runs/r/cancel", None, "{}")?;
        assert!(matches!(status, 200 | 410), "{answer}");
        until(d, "a pruned run without its files", |d| {
            let files = d.data().join("records/r").exists() || d.data().join("runs/r").exists();
            let left = "SELECT (SELECT count(*) FROM pruned_runs WHERE has_files = 0) = 1
                AND NOT EXISTS (SELECT 1 FROM outbox WHERE state = 'delivered')
                AND NOT EXISTS (SELECT 1 FROM events WHERE run_id = 'r')";
            Ok(!files && d.rows().query_row(left, [], |row| row.get(0)).expect("a truth"))
        })
    },
};

/// A bit of everything that writes, for killing at every system call.
pub const SCRIPT: Scenario = Scenario {
    name: "a script",
    webhook: false,
    settings: &[],
    prepare: lab,
    act: |d| {
        submit(d, "r0", &board(json!([work("a")])))?;
        submit(d, "r1", &board(json!([work("a"), {"id": "q", "ask": {"prompt": "?"}}])))?;
        submit(d, "r2", &board(json!([work("a")])))?;
        let (status, _) = d.call("POST", "/v1/runs", None, &with_id("r3", &needs("laser", json!([work("a")]))))?;
        assert!(matches!(status, 200 | 422), "{status}");
        if step_state(d, "r0", 1) != "DONE" {
            claim(d, "b1")?;
            let nonce = nonce(d, "b1");
            let (status, answer) =
                d.call("PUT", &format!("/v1/runs/r0/steps/1/log?nonce={nonce}&attempt=1&offset=0"), None, "output\n")?;
            assert_eq!(status, 204, "{answer}");
            let path = format!("/v1/runs/r0/steps/1/artifacts/a.bin?nonce={nonce}&attempt=1");
            let (status, answer) = d.call("PUT", &path, None, "some bytes")?;
            assert_eq!(status, 204, "{answer}");
        }
        // Gives b1 to r2.
        result(d, "r0", 1, "b1", json!({"exit_code": 0}))?;
        d.post("/v1/nodes/b2/drain", None, &json!({"mode": "graceful", "reason": "test"}))?;
        cancel(d, "r1")?;
        cancel(d, "r2")?;
        for run in ["r0", "r1", "r2"] {
            let (status, answer) = d.call("GET", &format!("/v1/runs/{run}/record"), None, "")?;
            assert_eq!(status, 200, "{answer}");
        }
        Ok(())
    },
};

fn step_state(d: &Daemon, run: &str, seq: i64) -> String {
    d.rows()
        .query_row("SELECT state FROM steps WHERE run_id = ?1 AND seq = ?2", (run, seq), |row| row.get(0))
        .expect("a step")
}

/// Asks until it is so, or the daemon dies.
fn until(d: &Daemon, what: &str, mut done: impl FnMut(&Daemon) -> Result<bool, Died>) -> Result<(), Died> {
    let began = boottime_ms();
    while !done(d)? {
        // Rows can be read of a dead daemon: ask it as well.
        d.call("GET", "/healthz", None, "")?;
        assert!(boottime_ms() - began < 20_000, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn lab(d: &Daemon) -> Result<(), Died> {
    advert(d, "b1", "i1")?;
    advert(d, "b2", "i1")?;
    d.post("/v1/nodes", None, &json!({"node_id": "s1", "static": true, "capabilities": [{"capability": "scope"}]}))?;
    Ok(())
}

fn placed(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    submit(d, "r0", &board(json!([work("a")])))
}

fn claimed(d: &Daemon) -> Result<(), Died> {
    placed(d)?;
    claim(d, "b1").map(|_| ())
}

/// r0 holds b1, which is cleaned after every lease; r2 waits for it.
fn dirty(d: &Daemon) -> Result<(), Died> {
    advert(d, "b2", "i1")?;
    let body = json!({"node_id": "b1", "instance": "i1", "capabilities": [{"capability": "board"}], "cleans": true});
    d.post("/v1/nodes", None, &body)?;
    submit(d, "r0", &board(json!([work("a")])))?;
    submit(d, "r1", &board(json!([work("a")])))?;
    submit(d, "r2", &board(json!([work("a")])))
}

/// Both boards are taken.
fn busy(d: &Daemon) -> Result<(), Died> {
    placed(d)?;
    submit(d, "r1", &board(json!([work("a")])))
}

fn waiting_unclaimed(d: &Daemon) -> Result<(), Died> {
    busy(d)?;
    submit(d, "r2", &board(json!([work("a")])))
}

fn waiting(d: &Daemon) -> Result<(), Died> {
    waiting_unclaimed(d)?;
    claim(d, "b1").map(|_| ())
}

fn drained(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    for node in ["b1", "b2"] {
        d.post(&format!("/v1/nodes/{node}/drain"), None, &json!({"mode": "graceful"}))?;
    }
    submit(d, "r2", &board(json!([work("a")])))
}

fn two_steps(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    submit(d, "r0", &board(json!([work("a"), work("b")])))?;
    claim(d, "b1").map(|_| ())
}

fn looping(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    let mut step = work("a");
    step["loop"] = json!({"back_to": "a", "max": 3});
    submit(d, "r0", &board(json!([step])))?;
    claim(d, "b1").map(|_| ())
}

/// r0 holds b1 and s1 and gives b1 back with its first step; r2 waits for a board.
fn releasing(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    let mut step = work("a");
    step["release"] = json!(["dut"]);
    let requires = json!([{"as": "dut", "capability": "board"}, {"as": "s", "capability": "scope"}]);
    submit(d, "r0", &json!({"requires": requires, "steps": [step, {"id": "h", "hold": {}}]}))?;
    submit(d, "r1", &board(json!([work("a")])))?;
    submit(d, "r2", &board(json!([work("a")])))?;
    claim(d, "b1").map(|_| ())
}

fn asking(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    submit(
        d,
        "r0",
        &board(json!([
            {"id": "q", "ask": {"prompt": "?", "options": ["yes", "no"], "accept": ["yes"]}},
            acquire(json!(["q"])),
            work_on("x", "m", json!(["s"])),
            work_on("dut", "n", json!(["s"])),
        ])),
    )
}

fn holding(d: &Daemon) -> Result<(), Died> {
    lab(d)?;
    let requires = json!([{"as": "s", "capability": "scope"}]);
    submit(d, "r0", &json!({"requires": requires, "steps": [{"id": "h", "hold": {}}]}))
}

fn queue_time(d: &Daemon) -> Result<(), Died> {
    busy(d)?;
    let mut contract = board(json!([work("a")]));
    contract["queue_timeout_seconds"] = json!(0.5);
    submit(d, "r", &contract)
}

fn board(steps: Value) -> Value {
    needs("board", steps)
}

fn needs(capability: &str, steps: Value) -> Value {
    json!({"requires": [{"as": "dut", "capability": capability}], "steps": steps})
}

fn work(id: &str) -> Value {
    json!({"id": id, "uses": "dut", "run": ["true"]})
}

fn work_on(role: &str, id: &str, needs: Value) -> Value {
    json!({"id": id, "uses": role, "run": ["true"], "needs": needs})
}

fn acquire(needs: Value) -> Value {
    let want = json!({"as": "x", "capability": "board"});
    json!({"id": "s", "acquire": {"want": want, "acquired": "m", "unavailable": "n"}, "needs": needs})
}

fn with_id(run: &str, contract: &Value) -> String {
    let mut contract = contract.clone();
    contract["run_id"] = json!(run);
    contract.to_string()
}

fn submit(d: &Daemon, run: &str, contract: &Value) -> Result<(), Died> {
    let (status, answer) = d.call("POST", "/v1/runs", Some(&format!("k-{run}")), &with_id(run, contract))?;
    assert!(matches!(status, 200..=202), "{run}: {status} {answer}");
    Ok(())
}

fn advert(d: &Daemon, node: &str, instance: &str) -> Result<(), Died> {
    let body = json!({"node_id": node, "instance": instance, "capabilities": [{"capability": "board"}]});
    d.post("/v1/nodes", None, &body).map(|_| ())
}

fn claim(d: &Daemon, node: &str) -> Result<Value, Died> {
    d.post(&format!("/v1/nodes/{node}/claim"), None, &json!({"instance": "i1"}))
}

fn cancel(d: &Daemon, run: &str) -> Result<(), Died> {
    d.post(&format!("/v1/runs/{run}/cancel"), Some(&format!("k-c-{run}")), &json!({"reason": "test"})).map(|_| ())
}

/// The nonce of the attempt that `node` has or had, as its agent would remember it.
fn nonce(d: &Daemon, node: &str) -> String {
    d.rows()
        .query_row("SELECT nonce FROM attempts WHERE node_id = ?1 ORDER BY started_at LIMIT 1", [node], |row| {
            row.get(0)
        })
        .expect("a nonce")
}

fn report(d: &Daemon, node: &str, outcome: Value) -> Value {
    let mut body = json!({"node_id": node, "nonce": nonce(d, node), "attempt": 1});
    for (name, value) in outcome.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn result(d: &Daemon, run: &str, seq: i64, node: &str, outcome: Value) -> Result<(), Died> {
    d.post(&format!("/v1/runs/{run}/steps/{seq}/result"), None, &report(d, node, outcome)).map(|_| ())
}
