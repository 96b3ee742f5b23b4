//! The command, its surroundings and its exit code.

use std::fs::File;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::lab::Lab;

#[test]
fn the_command_finds_its_nodes_in_its_environment_and_in_a_file_of_its_own() {
    let lab = Lab::start("60");
    std::fs::write(lab.dir.path().join("input"), "from standard input").expect("there is room");
    let input = File::open(lab.dir.path().join("input")).expect("it is there");
    let script = "echo $MEDIATOR_NODE_DUT $MEDIATOR_ATTR_DUT_MODEL $MEDIATOR_ATTR_DUT_PORT $MEDIATOR_STEP; \
                  echo $MEDIATOR_RUN_ID; stat -c %a $MEDIATOR_ASSIGNED; echo $MEDIATOR_ASSIGNED; cat $MEDIATOR_ASSIGNED; cat";
    let mut hold = lab.hold_on("env", &["--work", "gerrit:1"], &["sh", "-c", script], Stdio::from(input));
    hold.expect(0);
    let out = hold.out();
    let lines: Vec<&str> = out.lines().collect();
    let run = lab.run("env");
    assert_eq!(lines[0], "board-1 rpi4 /dev/ttyUSB0 hold");
    assert_eq!((lines[1], &run["work"]), (run["run_id"].as_str().expect("an id"), &json!("gerrit:1")));
    assert_eq!(lines[2], "600");
    assert!(!std::path::Path::new(lines[3]).exists(), "the file is removed: {}", lines[3]);
    let assigned: Value = serde_json::from_str(lines[4]).expect("JSON");
    assert_eq!(assigned[0]["nodes"][0]["attrs"]["port"], "/dev/ttyUSB0");
    assert_eq!(lines[5], "from standard input");
    assert_eq!(run["state"], "SUCCEEDED");
    assert!(lab.is_free());
    assert!(hold.err().contains("holds dut=board-1") && hold.err().contains("gave back dut=board-1"), "{}", hold.err());
}

#[test]
fn the_commands_code_is_ours_and_a_failing_one_fails_the_run() {
    let lab = Lab::start("60");
    let check = |name: &str, command: &[&str], code: i32, state: &str, result: Value| {
        lab.hold(name, &[], command).expect(code);
        let run = lab.run(name);
        assert_eq!((&run["state"], &run["steps"][0]["result"]), (&json!(state), &result), "{name}");
        assert!(lab.is_free(), "{name}");
    };
    check("zero", &["true"], 0, "SUCCEEDED", json!({"exit_code": 0}));
    check("three", &["sh", "-c", "exit 3"], 3, "FAILED", json!({"exit_code": 3}));
    check("signal", &["sh", "-c", "kill -TERM $$"], 143, "FAILED", json!({"exit_code": 143}));
    let gone = "cannot start /nonexistent/x: No such file or directory (os error 2)";
    check("missing", &["/nonexistent/x"], 127, "FAILED", json!({"error": gone}));
    let denied = "cannot start /etc/passwd: Permission denied (os error 13)";
    check("denied", &["/etc/passwd"], 126, "FAILED", json!({"error": denied}));
}

#[test]
fn what_the_command_leaves_behind_ends_with_it() {
    let lab = Lab::start("60");
    let mut hold = lab.hold("leaves", &[], &["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & sleep 0.2"]);
    hold.expect(0);
    hold.nothing_left();
}

#[test]
fn what_can_never_be_had_is_refused_at_once() {
    let lab = Lab::start("60");
    let output = lab.mediator(&["hold", "--require", "dut=scope", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-candidate"), "{output:?}");
    let output = lab.mediator(&["hold", "--require", "dut", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn json_is_the_run_at_the_end_of_standard_error() {
    let lab = Lab::start("60");
    let mut hold = lab.hold("json", &["--json"], &["echo", "hello"]);
    hold.expect(0);
    assert_eq!(hold.out(), "hello\n");
    let err = hold.err();
    let run: Value = serde_json::from_str(err.lines().last().expect("a line")).expect("JSON");
    assert_eq!(run["state"], "SUCCEEDED");
}
