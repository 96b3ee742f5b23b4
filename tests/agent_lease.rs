//! Work has an end when its right has: the lease gone, run out, or the agent dead.

mod support;

use mediator::clock::boottime_ms;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use support::fake_daemon::FakeDaemon;
use support::{Agent, marked, supervisors, unique, wait_for};

/// A script with a child in a session of its own, and one that has left its parent.
const FAMILY: &str = "setsid sleep 300 & (setsid sleep 300 &) ; sleep 300 & echo ready; wait";

fn family(daemon: &FakeDaemon, run_id: &str) -> String {
    let mark = unique(run_id);
    daemon.give(run_id, FAMILY, json!({"env": {"MARK": mark}}));
    daemon.wait_log(run_id, "ready");
    wait_for("the whole family", || (marked(&mark).len() == 4).then_some(()));
    mark
}

fn none_left(mark: &str) {
    wait_for("the end of all processes", || marked(mark).is_empty().then_some(()));
}

#[test]
fn a_cancel_stops_everything_at_once() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.renew_seconds = 30.0);
    let _agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    // Only the parked claim can tell so soon.
    daemon.set(|state| (state.held, state.lease) = (None, None));
    assert_eq!(daemon.result("r")["lost"], true);
    assert_eq!(marked(&mark), [0; 0], "nothing is reported before it is stopped");
    daemon.give("next", "echo on", json!({}));
    assert_eq!(daemon.result("next")["exit_code"], 0);
}

#[test]
fn a_lease_that_an_advert_no_longer_lists_is_gone() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    daemon.state().lease = None;
    assert_eq!(daemon.result("r")["lost"], true);
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_renewed_lease_outlives_its_first_time_and_one_that_is_not_renewed_ends_the_work() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.ttl_seconds = 3.0);
    let _agent = Agent::start(&daemon);
    let started = boottime_ms();
    let mark = family(&daemon, "r");
    wait_for("two lifetimes", || (boottime_ms() > started + 6_000).then_some(()));
    assert_eq!(marked(&mark).len(), 4, "it is renewed");
    daemon.set(|state| state.away = true);
    none_left(&mark);
    daemon.set(|state| state.away = false);
    assert_eq!(daemon.result("r")["lost"], true);
}

/// The supervisor keeps the time itself.
#[test]
fn work_of_an_agent_that_stands_still_ends_with_its_lease() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.ttl_seconds = 2.0);
    let agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    agent.signal(Signal::STOP);
    none_left(&mark);
    agent.signal(Signal::CONT);
    assert_eq!(daemon.result("r")["lost"], true);
}

#[test]
fn a_killed_agent_leaves_no_process() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    let supervisor = supervisors(&agent);
    assert_eq!(supervisor.len(), 1);
    let _dir = agent.kill();
    none_left(&mark);
    let gone = || rustix::process::test_kill_process(supervisor[0]).is_err().then_some(());
    wait_for("the supervisor's end", gone);
}

#[test]
fn the_next_life_starts_nothing_before_the_last_one_s_work_is_gone() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    let supervisor = supervisors(&agent)[0];
    // So it cannot clean up yet.
    kill_process(supervisor, Signal::STOP).expect("it is a test's own");
    let dir = agent.kill();
    daemon.set(|state| (state.held, state.lease) = (None, None));
    daemon.give("next", "echo next", json!({}));
    let file = "[[node]]\nid = \"n\"\n";
    let next = Agent::start_in(dir, &daemon.url(), file);
    wait_for("the next supervisor", || (supervisors(&next).len() == 1).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(daemon.state().results.is_empty() && daemon.log("next").is_empty());
    assert_eq!(marked(&mark).len(), 4);
    kill_process(supervisor, Signal::CONT).expect("it is a test's own");
    assert_eq!(daemon.result("next")["exit_code"], 0);
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_killed_supervisor_leaves_its_work_to_the_agent_which_ends_it() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    let mark = family(&daemon, "r");
    kill_process(supervisors(&agent)[0], Signal::KILL).expect("it is a test's own");
    assert_eq!(daemon.result("r")["lost"], true);
    assert_eq!(marked(&mark), [0; 0]);
    daemon.give("next", "echo on", json!({}));
    assert_eq!(daemon.result("next")["exit_code"], 0);
}

/// Each link of the chain starts the next and ends, so a walk of `/proc` always comes a little late.
#[test]
fn a_chain_of_processes_that_runs_away_is_caught() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let mark = unique("chain");
    // It gives up by itself in the end, should the agent not catch it.
    let link = "[ $1 -gt 50000 ] || setsid sh link $(($1 + 1)) &";
    let script = format!("echo '{link}' > link; sh link 0; sh link 0; echo started");
    daemon.give("r", &script, json!({"env": {"MARK": mark}}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    assert_eq!(marked(&mark), [0; 0]);
}

/// I11
#[test]
fn an_attempt_that_is_given_again_is_not_begun_again() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.set(|state| state.redeliver = true);
    daemon.give("r", "echo begun >> begun", json!({}));
    let lost = daemon.wait("a second result", |state| Some(state.results.get(1)?.1.clone()));
    assert_eq!(daemon.state().results[0].1["exit_code"], 0);
    assert_eq!(lost["lost"], true);
    assert_eq!(std::fs::read_to_string(agent.work().join("begun")).expect("it ran"), "begun\n");
    // Another attempt of the same step is another matter.
    daemon.give("r", "echo again >> begun", json!({"attempt": 2}));
    let again = daemon.wait("a third result", |state| Some(state.results.get(2)?.1.clone()));
    assert_eq!((&again["exit_code"], &again["attempt"]), (&json!(0), &json!(2)));
}

#[test]
fn a_lease_that_ran_out_on_the_way_starts_nothing() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.ttl_seconds = 0.0);
    let agent = Agent::start(&daemon);
    daemon.give("r", "touch started", json!({}));
    let result: Value = daemon.result("r");
    assert_eq!(result["lost"], true);
    assert!(!agent.work().join("started").exists());
}
