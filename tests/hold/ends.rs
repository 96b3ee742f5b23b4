//! Ends from outside: signals, and the death of `hold`.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mediator::clock::boottime_ms;
use rustix::process::Signal;

use crate::lab::{Lab, wait_for};

#[test]
fn signals_are_passed_on() {
    let lab = Lab::start("60");
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("USR1", Signal::USR1)] {
        let script = format!("trap 'echo got; exit 7' {name}; echo up > $DIR/{name}.up; while :; do sleep 0.1; done");
        let mut hold = lab.hold(name, &[], &["sh", "-c", &script]);
        lab.file(&format!("{name}.up"));
        hold.signal(signal);
        hold.expect(7);
        assert_eq!(hold.out(), "got\n", "{name}");
        assert_eq!(lab.run(name)["steps"][0]["result"]["exit_code"], 7);
        assert!(lab.is_free());
    }
}

#[test]
fn all_is_given_back_within_seven_seconds_of_a_sigterm() {
    let lab = Lab::start("60");
    let script = "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; echo up > $DIR/up; sleep 300; sleep 300' & wait; sleep 300";
    let mut hold = lab.hold("stubborn", &[], &["sh", "-c", script]);
    lab.file("up");
    let begun = boottime_ms();
    hold.signal(Signal::TERM);
    hold.expect(137);
    assert!(boottime_ms() - begun < 7_000, "{} ms", boottime_ms() - begun);
    assert!(lab.is_free());
    hold.nothing_left();
    assert_eq!(lab.run("stubborn")["steps"][0]["result"]["exit_code"], 137);
}

/// Also what left the process group and the session, and the file that the command was given.
#[test]
fn the_command_dies_with_a_hold_that_is_killed_and_the_nodes_come_back() {
    let lab = Lab::start("2");
    let script = "echo $MEDIATOR_ASSIGNED > $DIR/file; setsid sh -c 'echo up > $DIR/up; sleep 300' & sleep 300";
    let mut hold = lab.hold("killed", &[], &["sh", "-c", script]);
    lab.file("up");
    hold.signal(Signal::KILL);
    hold.ended();
    hold.nothing_left();
    wait_for("the node", || lab.is_free().then_some(()));
    assert_eq!(lab.run("killed")["verdict"]["kind"], "holder-gone");
    assert!(!std::path::Path::new(lab.file("file").trim()).exists());
}

#[test]
fn a_supervisor_that_is_killed_takes_the_command_with_it() {
    let lab = Lab::start("60");
    let script = "echo $PPID > $DIR/supervisor; setsid sleep 300 & sleep 300";
    let mut hold = lab.hold("supervisor", &[], &["sh", "-c", script]);
    let pid = lab.file("supervisor").trim().parse().ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
    hold.expect(125);
    hold.nothing_left();
    assert!(lab.is_free());
}

/// As some CI services end a job.
#[test]
fn a_process_group_that_is_killed_takes_with_it_what_had_left_it() {
    let lab = Lab::start("2");
    let mut program = Command::new(env!("CARGO_BIN_EXE_mediator"));
    let script = "setsid sh -c 'echo up > $DIR/up; sleep 300' & sleep 300";
    program.args(lab.words("group", &[], &["sh", "-c", script])).process_group(0);
    let mut hold = lab.begin(program, "group", Stdio::null());
    lab.file("up");
    let group = rustix::process::Pid::from_child(&hold.child);
    rustix::process::kill_process_group(group, Signal::KILL).expect("it is ours");
    hold.ended();
    hold.nothing_left();
    wait_for("the node", || lab.is_free().then_some(()));
}
