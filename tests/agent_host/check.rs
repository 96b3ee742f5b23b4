//! The owner's check: it drains the node while it fails, and never disturbs work.

use rustix::process::Signal;
use serde_json::json;

use crate::lab::Lab;
use crate::support::{marked, unique, wait_for};

/// A board that is checked by this script every so often.
fn board(check: &str, interval: f64) -> String {
    format!(
        "[[node]]\nid = \"n\"\ncapabilities = [{{ capability = \"board\" }}]\n\
         check = [\"sh\", \"-c\", {check:?}]\ncheck_interval_seconds = {interval}\n"
    )
}

#[test]
fn a_board_takes_no_run_before_its_first_check_has_passed() {
    let lab = Lab::start();
    let agent = lab.agent(&board("while [ ! -e go ]; do sleep 0.05; done", 300.0));
    lab.wait_for_reason("n", "its check has not passed yet");
    let run = lab.submit_script("true");
    assert_eq!(lab.run(&run)["state"], "QUEUED");
    assert!(lab.prints(&["why", &run]).contains("its check has not passed yet"));
    agent.touch("go");
    lab.wait_for_run(&run, "SUCCEEDED");
}

#[test]
fn a_check_that_fails_drains_and_one_that_passes_lifts_only_that() {
    let lab = Lab::start();
    let file =
        format!("{}drain = \"graceful\"\nreason = \"SD card\"\n", board("echo $MEDIATOR_NODE is dead; [ -e ok ]", 0.3));
    let agent = lab.agent(&file);
    lab.wait_for_reason("n", "SD card; check ended with exit code 1: n is dead");
    lab.prints(&["drain", "n", "--reason", "mine"]);
    agent.touch("ok");
    lab.wait_for_reason("n", "SD card");
    let node = lab.wait_for_node("n", "two drains", |node| node["drains"].as_array().is_some_and(|all| all.len() == 2));
    assert_eq!(node["drain"], "graceful", "the owner's own and the operator's stay");
    lab.prints(&["undrain", "n"]);
    agent.reload(&board("[ -e ok ]", 0.3));
    lab.wait_until_free("n");
    std::fs::remove_file(agent.work().join("ok")).expect("it is there");
    lab.wait_for_reason("n", "check ended with exit code 1");
    assert!(lab.prints(&["node", "show", "n"]).contains("graceful by node"));
}

#[test]
fn a_check_over_its_time_is_ended() {
    let lab = Lab::start();
    let mark = unique("check");
    let script = format!("MARK={mark} setsid sleep 300 & wait");
    let _agent = lab.agent(&format!("{}check_timeout_seconds = 0.5\n", board(&script, 300.0)));
    lab.wait_for_reason("n", "check ran over its time of 0.5 s");
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_check_that_cannot_be_started_says_so() {
    let lab = Lab::start();
    // A path starts at the folder that the file is in.
    let agent = lab.agent("[[node]]\nid = \"n\"\ncheck = [\"./none\"]\n");
    let program = agent.dir.path().join("./none");
    let reason = format!("check cannot start {}: No such file or directory (os error 2)", program.display());
    lab.wait_for_reason("n", &reason);
}

#[test]
fn a_step_that_comes_during_a_check_waits_for_its_end() {
    let lab = Lab::start();
    let script = "[ ! -e slow ] || { echo x > checking; while [ ! -e go ]; do sleep 0.05; done; }";
    let agent = lab.agent(&board(script, 0.2));
    lab.wait_until_free("n");
    agent.touch("slow");
    wait_for("a slow check", || agent.work().join("checking").exists().then_some(()));
    let run = lab.submit_script("ls go");
    lab.wait_for_run(&run, "RUNNING");
    wait_for("the claim", || (lab.run(&run)["steps"][0]["state"] == "CLAIMED").then_some(()));
    assert!(!agent.log().contains("step begins"));
    agent.touch("go");
    lab.wait_for_run(&run, "SUCCEEDED");
}

#[test]
fn told_twice_to_end_an_agent_ends_its_check_and_the_step_that_waits_for_it() {
    let lab = Lab::start();
    let mark = unique("check");
    let script = format!("[ ! -e slow ] || {{ echo x > checking; MARK={mark} sleep 300; }}");
    let mut agent = lab.agent(&board(&script, 0.2));
    lab.wait_until_free("n");
    agent.touch("slow");
    wait_for("a slow check", || (marked(&mark).len() == 1).then_some(()));
    let run = lab.submit_script("true");
    wait_for("the claim", || (lab.run(&run)["steps"][0]["state"] == "CLAIMED").then_some(()));
    agent.signal(Signal::TERM);
    agent.says("told to end");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(marked(&mark), [0; 0]);
    lab.wait_for_run(&run, "FAILED");
}

/// Also while nobody works on it: the run comes back to what it left.
#[test]
fn a_board_is_not_checked_while_a_run_holds_it() {
    let lab = Lab::start();
    let agent = lab.agent(&board("echo checked >> checks", 0.1));
    lab.wait_until_free("n");
    let steps = json!([
        {"id": "work", "uses": "dut", "run": ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]},
        {"id": "look", "ask": {"prompt": "green?"}},
    ]);
    let run = lab.submit(&steps);
    wait_for("the step", || agent.log().contains("step begins").then_some(()));
    let checks = || agent.file("checks").lines().count();
    let before = checks();
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert_eq!(checks(), before);
    agent.touch("go");
    wait_for("the question", || (lab.run(&run)["steps"][1]["state"] == "ASKED").then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    assert_eq!(checks(), before);
    lab.prints(&["cancel", &run]);
    wait_for("another check", || (checks() > before).then_some(()));
}
