//! On a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::lab::{Hold, Lab, wait_for, with_plain_signals};

/// A terminal, and what was shown on it.
struct Terminal {
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// Holds as the leader of a session on a terminal of its own, as `setsid -c` makes one.
fn hold_on_terminal(lab: &Lab, name: &str, script: &str) -> (Hold, Terminal) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are terminals");
    grantpt(&ours).expect("it is ours");
    unlockpt(&ours).expect("it is ours");
    let path = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("text");
    let theirs = File::options().read(true).write(true).open(path).expect("it is there");
    let mut program = with_plain_signals();
    program.arg("setsid");
    // Standard error goes to the terminal as well; the lab gives it a file.
    program.args(["-c", "-w", "sh", "-c", "exec \"$@\" 2>&0", "sh", env!("CARGO_BIN_EXE_mediator")]);
    program.args(lab.words(name, &[], &["sh", "-c", script]));
    let hold = lab.begin(program, name, Stdio::from(OwnedFd::from(theirs)));
    let mut from = File::from(ours);
    let keys = from.try_clone().expect("there is room");
    let shown = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&shown);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            log.lock().expect("no holder panics").extend_from_slice(&buffer[..count]);
        }
    });
    (hold, Terminal { keys, shown })
}

impl Terminal {
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no holder panics")).into_owned()
    }
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let lab = Lab::start("60");
    let script = "trap 'echo int >> $DIR/ints' INT; trap 'exit 9' USR1; echo up > $DIR/up; while :; do sleep 0.1; done";
    let (mut hold, mut terminal) = hold_on_terminal(&lab, "ctrl-c", script);
    lab.file("up");
    terminal.keys.write_all(b"\x03").expect("it is open");
    lab.file("ints");
    // A second one would have come by now if one had been passed on: what follows takes the same way.
    let holder = wait_for("hold", || holder(&hold));
    rustix::process::kill_process(holder, rustix::process::Signal::USR1).expect("it is there");
    hold.expect(9);
    assert_eq!(lab.file("ints"), "int\n");
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let lab = Lab::start("60");
    let (mut hold, mut terminal) =
        hold_on_terminal(&lab, "reads", "echo up > $DIR/up; read line; echo $line > $DIR/line");
    lab.file("up");
    terminal.keys.write_all(b"typed\n").expect("it is open");
    hold.expect(0);
    assert_eq!(lab.file("line"), "typed\n");
}

#[test]
fn where_one_stands_is_one_line_that_changes() {
    let lab = Lab::start("60");
    let _first = lab.hold("first", &[], &["sleep", "300"]);
    lab.wait_for_state("first", "RUNNING");
    let (mut hold, mut terminal) = hold_on_terminal(&lab, "second", "true");
    wait_for("two states", || (terminal.shown().matches("waits at position 1").count() >= 2).then_some(()));
    assert!(!terminal.shown().contains('\n'), "{:?}", terminal.shown());
    terminal.keys.write_all(b"\x03").expect("it is open");
    hold.expect(125);
}

/// Finds the `hold` below `setsid`.
fn holder(hold: &Hold) -> Option<rustix::process::Pid> {
    let is_hold = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"hold".as_slice()))
    };
    let pid = crate::lab::marked(&hold.mark).into_iter().find(is_hold)?;
    rustix::process::Pid::from_raw(pid.cast_signed())
}
