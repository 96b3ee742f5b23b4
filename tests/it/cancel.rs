//! Cancelling: one run, and with the built program all that fit.

use serde_json::json;

use crate::support::{Daemon, Lab, advert, one_step, with};

/// Guarded by its state, a cancel changes nothing once the run has moved on; and its key stays free.
#[test]
fn a_cancel_for_a_state_leaves_a_run_in_another_alone() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    let (running, waiting) = (lab.placed(&one_step()), lab.queued(&one_step()));
    let cancel = |run: &str, state: &str| {
        let reply =
            lab.keyed("POST", &format!("/v1/runs/{run}/cancel"), &format!("{run}{state}"), &json!({"while": state}));
        (
            reply.header("idempotency-expires").is_some(),
            reply.expect(200)["state"].as_str().expect("a state").to_owned(),
        )
    };
    assert_eq!(cancel(&running, "QUEUED"), (false, "RUNNING".to_owned()));
    assert_eq!(cancel(&waiting, "RUNNING"), (false, "QUEUED".to_owned()));
    assert_eq!(cancel(&waiting, "QUEUED"), (true, "CANCELLED".to_owned()));
    assert_eq!(cancel(&running, "RUNNING"), (true, "CANCELLED".to_owned()));
    for word in ["CANCELLED", "queued", ""] {
        let problem =
            lab.post(&format!("/v1/runs/{running}/cancel"), &json!({"while": word})).problem(400, "invalid-request");
        assert_eq!(problem["path"], "/while");
    }
}

/// More than a page of runs that wait, and the one that runs: all of one name, and no other.
#[test]
fn all_that_fit_are_cancelled_and_nothing_else() {
    let daemon = Daemon::start();
    daemon.call("POST", "/v1/nodes", &advert("b1", "b1-1", &["board"])).expect(200);
    let named = |name: &str| with(one_step(), "name", name);
    daemon.call("POST", "/v1/runs", &named("storm")).expect(201);
    for at in 0..620 {
        daemon.call("POST", "/v1/runs", &named(if at % 31 == 0 { "other" } else { "storm" })).expect(202);
    }
    let done = daemon.mediator(&["cancel", "--name", "storm", "--state", "queued", "--yes"]);
    assert_eq!((done.code, done.out.as_str()), (0, "cancelled 600 of 600 runs\n"), "{}", done.err);
    let count = |sql: &str| daemon.rows().query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    assert_eq!(count("SELECT count(*) FROM runs WHERE name = 'storm' AND state = 'CANCELLED'"), 600);
    assert_eq!(count("SELECT count(*) FROM runs WHERE name = 'storm' AND state = 'RUNNING'"), 1);
    assert_eq!(count("SELECT count(*) FROM runs WHERE name = 'other' AND state = 'QUEUED'"), 20);
    // The one that runs is freed, and one that waits and was not meant gets its node.
    let done = daemon.mediator(&["cancel", "--name", "storm", "--node", "b1", "--yes", "--json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(count("SELECT count(*) FROM runs WHERE name = 'other' AND state = 'RUNNING'"), 1);
    assert_eq!(
        daemon.mediator(&["cancel", "--name", "storm", "--yes"]).out,
        "nothing to cancel: no run that has not ended fits\n"
    );
}
