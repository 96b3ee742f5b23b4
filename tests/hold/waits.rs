//! Waiting for nodes.

use rustix::process::Signal;

use crate::lab::Lab;

#[test]
fn one_that_waits_tells_where_it_stands_and_why_and_then_gets_its_node() {
    let lab = Lab::start("60");
    let script = "while ! test -e $DIR/go; do sleep 0.1; done";
    let mut first = lab.hold("first", &[], &["sh", "-c", script]);
    let first_id = lab.wait_for_state("first", "RUNNING")["run_id"].as_str().expect("an id").to_owned();
    let mut second = lab.hold("second", &[], &["echo", "mine"]);
    second.tells("waits at position 1");
    second.tells(&format!("run {first_id} has to give back board-1"));
    lab.touch("go");
    first.expect(0);
    second.expect(0);
    assert_eq!(second.out(), "mine\n");
    assert_eq!(second.err().matches("waits at position").count(), 1, "a state is told once: {}", second.err());
}

#[test]
fn one_that_gives_up_says_124() {
    let lab = Lab::start("60");
    let _first = lab.hold("first", &[], &["sleep", "300"]);
    lab.wait_for_state("first", "RUNNING");
    let mut second = lab.hold("second", &["--wait-timeout", "1"], &["true"]);
    second.expect(124);
    assert_eq!(lab.run("second")["verdict"]["kind"], "queue-timeout");
    assert!(second.err().contains("queue-timeout"), "{}", second.err());
}

#[test]
fn a_signal_cancels_one_that_waits() {
    let lab = Lab::start("60");
    let _first = lab.hold("first", &[], &["sleep", "300"]);
    lab.wait_for_state("first", "RUNNING");
    for (name, signal) in [("int", Signal::INT), ("term", Signal::TERM), ("hup", Signal::HUP)] {
        let mut second = lab.hold(name, &[], &["true"]);
        second.tells("waits at position");
        second.signal(signal);
        second.expect(125);
        let run = lab.run(name);
        assert_eq!((&run["state"], &run["verdict"]["kind"]), (&"CANCELLED".into(), &"cancelled".into()), "{run}");
    }
}

#[test]
fn one_that_is_killed_while_it_waits_is_cancelled_within_the_lifetime() {
    let lab = Lab::start("2");
    let _first = lab.hold("first", &[], &["sleep", "300"]);
    lab.wait_for_state("first", "RUNNING");
    let mut second = lab.hold("second", &[], &["true"]);
    second.tells("waits at position");
    second.signal(Signal::KILL);
    second.ended();
    assert_eq!(lab.wait_for_state("second", "CANCELLED")["verdict"]["kind"], "holder-gone");
}

#[test]
fn one_that_waits_outlives_a_restart_of_the_daemon() {
    let mut lab = Lab::start("2");
    let mut first = lab.hold("first", &[], &["sh", "-c", "while ! test -e $DIR/go; do sleep 0.1; done"]);
    lab.wait_for_state("first", "RUNNING");
    let mut second = lab.hold("second", &[], &["echo", "mine"]);
    second.tells("waits at position");
    lab.down();
    second.tells("is away");
    lab.up();
    lab.touch("go");
    first.ended();
    second.expect(0);
    assert_eq!(second.out(), "mine\n");
}
