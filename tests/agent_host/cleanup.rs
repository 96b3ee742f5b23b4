//! Between two users of a board it is cleaned, whatever is killed.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::support::{Agent, marked, unique, wait_for};

/// A board whose cleanup is this script.
fn board(cleanup: &str) -> String {
    format!(
        "offer_env = [\"OFFERED\"]\n[[node]]\nid = \"n\"\ncapabilities = [{{ capability = \"board\" }}]\n\
         cleanup = [\"sh\", \"-c\", {cleanup:?}]\n"
    )
}

/// A cleanup that tells that it begins, and ends when it may.
const SLOW: &str = "echo begun >> cleaned; while [ ! -e go ]; do sleep 0.05; done; rm go; echo ended >> cleaned";

fn wait_for_file(agent: &Agent, name: &str, text: &str) {
    wait_for(&format!("{text:?} in {name}"), || (agent.file(name) == text).then_some(()));
}

/// Waits until the cleaning after `run` is under way.
fn wait_until_cleaning(lab: &Lab, run: &str) {
    lab.wait_for_node("n", "cleaning", |node| node["cleaning"]["run_id"] == run);
}

#[test]
fn nobody_gets_a_board_before_its_cleanup_has_ended() {
    let lab = Lab::start();
    let script = format!("echo $MEDIATOR_NODE $MEDIATOR_RUN_ID $OFFERED $PRIVATE > env; pwd >> env; {SLOW}");
    let agent = lab.agent(&board(&script));
    lab.wait_until_free("n");
    let first = lab.submit_script("exit 3");
    lab.wait_for_run(&first, "FAILED");
    wait_until_cleaning(&lab, &first);
    wait_for_file(&agent, "cleaned", "begun\n");
    let second = lab.submit_script("cat cleaned");
    assert_eq!(lab.run(&second)["state"], "QUEUED");
    assert!(lab.prints(&["nodes"]).contains("cleaning"));
    assert!(lab.prints(&["why", &second]).contains("cleaned after its last run"), "{}", lab.prints(&["why", &second]));
    let work = agent.work().canonicalize().expect("it is there");
    assert_eq!(agent.file("env"), format!("n {first} from the agent\n{}\n", work.display()));
    agent.touch("go");
    lab.wait_for_run(&second, "SUCCEEDED");
    assert_eq!(lab.log(&second), "begun\nended\n");
}

/// "the agent runs it only when the old process group is gone"
#[test]
fn a_cleanup_begins_when_nothing_of_the_old_work_is_left() {
    let lab = Lab::start();
    let mark = unique("old");
    let agent = lab.agent(&board(&format!("grep -l {mark} /proc/[0-9]*/environ 2>/dev/null | wc -l > left")));
    lab.wait_until_free("n");
    let script = "trap '' TERM; setsid sleep 300 & sleep 300 & echo ready; wait; sleep 300";
    let run = lab.submit(&json!([{"id": "work", "uses": "dut", "run": ["sh", "-c", script], "env": {"MARK": mark}}]));
    wait_for("the work", || (lab.log(&run) == "ready\n").then_some(()));
    lab.prints(&["cancel", &run]);
    wait_for_file(&agent, "left", "0\n");
    assert_eq!(marked(&mark), [0; 0]);
    lab.wait_until_free("n");
}

#[test]
fn a_cleanup_that_fails_drains_the_board_until_its_owner_sees_to_it() {
    let lab = Lab::start();
    let file = board("echo cleaning >> cleaned; echo no such device; [ -e fixed ]");
    let agent = lab.agent(&file);
    lab.wait_until_free("n");
    let run = lab.submit_script("true");
    let reason = "cleanup: ended with exit code 1: no such device";
    lab.wait_for_reason("n", reason);
    lab.wait_for_run(&run, "SUCCEEDED");
    let waits = lab.submit_script("true");
    assert!(lab.prints(&["why", &waits]).contains(reason), "{}", lab.prints(&["why", &waits]));
    assert!(lab.prints(&["nodes"]).contains("drained"));
    agent.says("cleanup says node=n: no such device");
    // An operator has it tried again, and then the owner, who has done something.
    lab.prints(&["node", "clean", "n"]);
    wait_for_file(&agent, "cleaned", "cleaning\ncleaning\n");
    lab.wait_for_reason("n", reason);
    agent.touch("fixed");
    agent.reload(&file);
    lab.wait_for_run(&waits, "SUCCEEDED");
    lab.wait_until_free("n");
    assert_eq!(agent.file("cleaned").lines().count(), 4);
}

#[test]
fn a_cleanup_that_fails_after_its_owner_has_put_another_in_its_place_is_tried_again() {
    let lab = Lab::start();
    let agent = lab.agent(&board(&format!("{SLOW}; exit 1")));
    lab.wait_until_free("n");
    lab.submit_script("true");
    wait_for_file(&agent, "cleaned", "begun\n");
    agent.reload(&board("echo mended >> cleaned"));
    agent.says("the file is taken over");
    agent.touch("go");
    lab.wait_until_free("n");
    assert_eq!(agent.file("cleaned"), "begun\nended\nmended\n");
}

#[test]
fn a_cleanup_over_its_time_is_ended_and_drains_the_board() {
    let lab = Lab::start();
    let mark = unique("clean");
    let script = format!("trap '' TERM; MARK={mark} setsid sleep 300 & MARK={mark} sleep 300; sleep 300");
    let _agent = lab.agent(&format!("{}cleanup_timeout_seconds = 0.5\n", board(&script)));
    lab.wait_until_free("n");
    lab.submit_script("true");
    wait_for("the cleanup", || (marked(&mark).len() == 2).then_some(()));
    lab.wait_for_reason("n", "cleanup: ran over its time of 0.5 s");
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn an_agent_that_is_killed_while_it_cleans_cleans_again_before_anybody_gets_the_board() {
    let lab = Lab::start();
    let mark = unique("clean");
    let file = board(&format!("grep -l {mark} /proc/[0-9]*/environ >> old; export MARK={mark}; sh -c '{SLOW}'"));
    let agent = lab.agent(&file);
    lab.wait_until_free("n");
    let first = lab.submit_script("true");
    wait_for_file(&agent, "cleaned", "begun\n");
    let second = lab.submit_script("cat cleaned");
    let dir = agent.kill();
    let agent = lab.agent_in(dir, &file);
    wait_for_file(&agent, "cleaned", "begun\nbegun\n");
    assert_eq!(agent.file("old"), "", "the first cleanup is gone before the second begins");
    wait_until_cleaning(&lab, &first);
    assert_eq!(lab.run(&second)["state"], "QUEUED");
    agent.touch("go");
    lab.wait_for_run(&second, "SUCCEEDED");
    assert_eq!(lab.log(&second), "begun\nbegun\nended\n");
}

#[test]
fn a_daemon_that_is_killed_during_a_cleanup_hears_of_its_end() {
    let mut lab = Lab::start();
    let agent = lab.agent(&board(SLOW));
    lab.wait_until_free("n");
    let first = lab.submit_script("true");
    wait_for_file(&agent, "cleaned", "begun\n");
    let second = lab.submit_script("cat cleaned");
    lab.down();
    agent.touch("go");
    wait_for_file(&agent, "cleaned", "begun\nended\n");
    agent.says("reporting a cleaning node=n: cannot reach");
    lab.up();
    lab.wait_for_run(&second, "SUCCEEDED");
    assert_eq!(lab.log(&second), "begun\nended\n", "it is not cleaned twice");
    assert_eq!(lab.run(&first)["state"], "SUCCEEDED");
}

/// And the one that comes later is the only one whose word counts.
#[test]
fn two_agents_for_one_board_in_the_middle_of_a_cleanup() {
    let lab = Lab::start();
    let mut first = lab.agent(&board(SLOW));
    lab.wait_until_free("n");
    lab.submit_script("true");
    wait_for_file(&first, "cleaned", "begun\n");
    let waits = lab.submit_script("true");
    let second = lab.agent(&board(SLOW));
    assert_eq!(first.ended().code(), Some(4));
    assert!(first.log().contains("another agent has taken node n over"), "{}", first.log());
    wait_for_file(&second, "cleaned", "begun\n");
    assert_eq!(lab.run(&waits)["state"], "QUEUED");
    second.touch("go");
    lab.wait_for_run(&waits, "SUCCEEDED");
}

#[test]
fn an_agent_that_is_told_to_end_ends_its_cleanup_first() {
    let lab = Lab::start();
    let mut agent = lab.agent(&board(SLOW));
    lab.wait_until_free("n");
    lab.submit_script("true");
    wait_for_file(&agent, "cleaned", "begun\n");
    agent.signal(Signal::TERM);
    agent.says("told to end");
    agent.touch("go");
    assert_eq!(agent.ended().code(), Some(0));
    assert_eq!(lab.node("n")["cleaning"], Value::Null);
}
