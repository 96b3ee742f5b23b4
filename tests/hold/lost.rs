//! Holds that are lost, and daemons that are away.

use crate::lab::{Lab, wait_for};

#[test]
fn the_command_of_a_cancelled_hold_is_stopped_at_once() {
    let lab = Lab::start("60");
    let mut hold = lab.hold("cancelled", &[], &["sh", "-c", "trap '' TERM; echo up > $DIR/up; sleep 300; sleep 300"]);
    lab.file("up");
    let run = lab.run("cancelled")["run_id"].as_str().expect("an id").to_owned();
    let output = lab.mediator(&["cancel", &run, "--reason", "the board is on fire"]);
    assert!(output.status.success(), "{output:?}");
    hold.expect(125);
    hold.nothing_left();
    assert!(hold.err().contains("was lost") && hold.err().contains("the board is on fire"), "{}", hold.err());
}

#[test]
fn a_restart_of_the_daemon_does_not_disturb_the_command() {
    let mut lab = Lab::start("20");
    let mut hold =
        lab.hold("restart", &[], &["sh", "-c", "echo up > $DIR/up; while ! test -e $DIR/go; do sleep 0.1; done"]);
    lab.file("up");
    lab.down();
    lab.up();
    let id = lab.wait_for_state("restart", "RUNNING")["run_id"].as_str().expect("an id").to_owned();
    lab.touch("go");
    hold.expect(0);
    let run = lab.run("restart");
    assert_eq!((&run["state"], &run["run_id"]), (&"SUCCEEDED".into(), &id.into()));
}

#[test]
fn a_result_is_reported_again_until_it_is_heard() {
    let mut lab = Lab::start("20");
    let mut hold =
        lab.hold("late", &[], &["sh", "-c", "echo up > $DIR/up; while ! test -e $DIR/go; do sleep 0.1; done; exit 4"]);
    lab.file("up");
    lab.down();
    lab.touch("go");
    hold.nothing_left_but_hold();
    lab.up();
    hold.expect(4);
    assert_eq!(lab.run("late")["steps"][0]["result"]["exit_code"], 4);
}

#[test]
fn a_hold_that_cannot_be_renewed_is_over_when_its_lifetime_is() {
    let mut lab = Lab::start("2");
    let mut hold = lab.hold("away", &[], &["sh", "-c", "echo up > $DIR/up; setsid sleep 300 & sleep 300"]);
    lab.file("up");
    lab.down();
    hold.expect(125);
    hold.nothing_left();
    assert!(hold.err().contains("could not be renewed"), "{}", hold.err());
}

/// SIGSTOP: `hold` can neither renew nor stop anything, its supervisor can.
#[test]
fn the_command_of_a_hold_that_was_stopped_does_not_outlive_the_hold() {
    let lab = Lab::start("2");
    let mut hold = lab.hold("stopped", &[], &["sh", "-c", "echo up > $DIR/up; setsid sleep 300 & sleep 300"]);
    lab.file("up");
    hold.signal(rustix::process::Signal::STOP);
    hold.nothing_left_but_hold();
    wait_for("the node", || lab.is_free().then_some(()));
    hold.signal(rustix::process::Signal::CONT);
    hold.expect(125);
}
