//! The agent and a daemon that goes away, loses answers, refuses; and the agent's own end.

mod support;

use mediator::clock::boottime_ms;
use rustix::process::Signal;
use serde_json::json;
use support::fake_daemon::FakeDaemon;
use support::{Agent, marked, unique, wait_for};

#[test]
fn a_result_is_repeated_until_it_is_heard() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    daemon.set(|state| state.lose_answers = 3);
    daemon.give("r", "exit 7", json!({}));
    let results = daemon.wait("four reports", |state| (state.results.len() >= 4).then(|| state.results.clone()));
    assert!(results.iter().all(|(_, body)| *body == results[0].1), "a repeated report is equal");
    daemon.give("next", "exit 0", json!({}));
    daemon.result("next");
    assert_eq!(daemon.state().results.len(), 5, "once heard it is not repeated");
}

#[test]
fn the_answer_to_a_result_brings_the_next_step() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| {
        for run_id in ["a", "b"] {
            let step = support::fake_daemon::step(run_id, &["true"], json!({}));
            state.steps.push_back(step);
        }
    });
    let _agent = Agent::start(&daemon);
    daemon.result("b");
    let idle = daemon.state().claims.iter().filter(|claim| claim["working"].is_null()).count();
    assert!(idle <= 2, "only the first step was claimed by a claim, and perhaps one waits now");
    assert!(daemon.state().results[0].0.ends_with("?claim=true"));
}

#[test]
fn work_goes_on_while_the_daemon_is_away_and_is_reported_when_it_is_back() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.give("r", "echo before; while [ ! -e go ]; do sleep 0.05; done; echo after", json!({}));
    daemon.wait_log("r", "before");
    daemon.set(|state| state.away = true);
    wait_for("a word about it", || agent.log().contains("the daemon is away").then_some(()));
    std::fs::write(agent.work().join("go"), "").expect("the command runs there");
    wait_for("the end of the command", || {
        agent.log().contains("reporting run=r").then_some(()).or_else(|| {
            // The output is sent first, so the report may not have been tried yet.
            agent.log().contains("sending output run=r").then_some(())
        })
    });
    // What was taken but not yet on disk there.
    daemon.set(|state| {
        state.logs.values_mut().for_each(|log| log.truncate(3));
        state.away = false;
    });
    assert_eq!(daemon.result("r")["exit_code"], 0);
    assert_eq!(daemon.log("r"), "before\nafter\n");
    wait_for("a word about it", || agent.log().contains("the daemon is back").then_some(()));
    assert_eq!(agent.log().matches("the daemon is away").count(), 1, "it is said once");
}

#[test]
fn a_log_that_a_daemon_lost_between_the_output_and_the_result_is_sent_again() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.set(|state| state.refuse_results = Some((503, "unavailable")));
    daemon.give("r", "echo all of it", json!({}));
    daemon.wait("a report", |state| (!state.results.is_empty()).then_some(()));
    daemon.set(|state| {
        state.away = true;
        state.logs.clear();
    });
    let tries = daemon.state().results.len();
    wait_for("a report that is not answered", || {
        agent.log().contains("reporting run=r node=n step=work attempt=1: cannot reach").then_some(())
    });
    daemon.set(|state| (state.away, state.refuse_results) = (false, None));
    daemon.wait("another report", |state| (state.results.len() > tries && state.held.is_none()).then_some(()));
    assert_eq!(daemon.log("r"), "all of it\n");
}

#[test]
fn an_agent_that_started_before_its_daemon_waits_for_it() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.away = true);
    let agent = Agent::start(&daemon);
    wait_for("a word about it", || agent.log().contains("the daemon is away").then_some(()));
    daemon.set(|state| state.away = false);
    daemon.give("r", "true", json!({}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
}

#[test]
fn a_node_that_another_agent_took_over_stops_its_work_and_ends() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    let mark = unique("taken");
    daemon.give("r", "sleep 300 & echo ready; wait", json!({"env": {"MARK": mark}}));
    daemon.wait_log("r", "ready");
    daemon.set(|state| {
        state.refuse_adverts = Some((409, "stale-instance"));
        (state.held, state.lease) = (None, None);
    });
    assert_eq!(agent.ended().code(), Some(4));
    assert!(agent.log().contains("stale-instance"));
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_refusal_at_the_start_ends_the_agent() {
    for (status, code) in [(401, "unauthorized"), (409, "static-node"), (400, "invalid-request")] {
        let daemon = FakeDaemon::start();
        daemon.set(|state| state.refuse_adverts = Some((status, code)));
        let mut agent = Agent::start(&daemon);
        assert_eq!(agent.ended().code(), Some(4), "{code}");
        assert!(agent.log().contains(code));
    }
}

#[test]
fn a_file_that_makes_no_sense_is_told_before_anything_starts() {
    let daemon = FakeDaemon::start();
    let dir = tempfile::tempdir().expect("there is room");
    let mut agent = Agent::start_in(dir, &daemon.url(), "[[node]]\nid = \"n\"\ncolour = 3\n");
    assert_eq!(agent.ended().code(), Some(2));
    assert!(agent.log().contains("colour") && agent.log().contains("line 6"), "{}", agent.log());
    assert!(daemon.state().adverts.is_empty());
}

#[test]
fn a_daemon_that_does_not_know_the_instance_hears_of_it_again() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| {
        state.renew_seconds = 30.0;
        state.refuse_claims.push_back((409, "unknown-instance"));
    });
    let _agent = Agent::start(&daemon);
    daemon.wait("another advert, long before its time", |state| (state.adverts.len() >= 2).then_some(()));
    daemon.give("r", "true", json!({}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
}

#[test]
fn an_idle_agent_that_is_told_to_end_ends() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    daemon.wait("a claim", |state| (!state.claims.is_empty()).then_some(()));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
}

/// The daemon gave a step with an answer that was on its way when the signal came.
#[test]
fn a_step_given_at_the_moment_of_the_signal_is_not_left_in_nobody_s_hands() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    daemon.wait("a claim", |state| (!state.claims.is_empty()).then_some(()));
    // Given, as the daemon sees it, but the parked claim is not woken to say so.
    daemon.state().held = Some(support::fake_daemon::step("r", &["true"], json!({})));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(daemon.result("r")["exit_code"], 0);
}

#[test]
fn told_to_end_the_step_in_hand_ends_and_nothing_new_is_claimed() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    daemon.give("r", "echo ready; while [ ! -e go ]; do sleep 0.05; done", json!({}));
    daemon.give("next", "true", json!({}));
    daemon.wait_log("r", "ready");
    agent.signal(Signal::TERM);
    wait_for("a word about it", || agent.log().contains("told to end").then_some(()));
    let told = boottime_ms();
    daemon.wait("adverts that keep the lease", |state| {
        (state.adverts.iter().filter(|(at, _)| *at > told).count() >= 2).then_some(())
    });
    std::fs::write(agent.work().join("go"), "").expect("the command runs there");
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    assert_eq!(daemon.state().results.len(), 1);
    assert_eq!(daemon.state().steps.len(), 1, "the next step is left");
}

#[test]
fn told_twice_the_work_is_stopped_and_reported() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    let mark = unique("twice");
    daemon.give("r", "setsid sleep 300 & echo ready; wait", json!({"env": {"MARK": mark}}));
    daemon.wait_log("r", "ready");
    agent.signal(Signal::TERM);
    wait_for("a word about it", || agent.log().contains("told to end").then_some(()));
    agent.signal(Signal::INT);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(daemon.result("r")["lost"], true);
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn told_twice_while_the_daemon_is_away_the_agent_still_ends() {
    let daemon = FakeDaemon::start();
    let mut agent = Agent::start(&daemon);
    let mark = unique("away");
    daemon.give("r", "echo ready; sleep 300", json!({"env": {"MARK": mark}}));
    daemon.wait_log("r", "ready");
    daemon.set(|state| state.away = true);
    agent.signal(Signal::TERM);
    wait_for("a word about it", || agent.log().contains("told to end").then_some(()));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(marked(&mark), [0; 0]);
}
