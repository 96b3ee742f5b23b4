//! What a step may see, who it is, and what its host has room for.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::support::{marked, unique, wait_for};

const BOARD: &str = "[[node]]\nid = \"n\"\ncapabilities = [{ capability = \"board\" }]\n";

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_mediator"))
}

#[test]
fn a_secret_reaches_the_step_and_nobody_else() {
    let lab = Lab::start();
    let file = format!(
        "secret_env = [\"PASSWORD\"]\n{BOARD}cleanup = [\"sh\", \"-c\", \"echo cannot log in: $PASSWORD; exit 1\"]\n"
    );
    let dir = tempfile::tempdir().expect("there is room");
    let agent = lab.agent_by(program().env("PASSWORD", "hunter22"), dir, &file);
    lab.wait_until_free("n");
    let script =
        "[ $PASSWORD = hunter22 ] || exit 9; echo whole $PASSWORD; printf 'two hunt'; sleep 0.6; echo er22.; exit 3";
    let run = lab.submit(&json!([
        {"id": "work", "uses": "dut", "run": ["sh", "-c", script], "artifacts": ["hunter22"], "allow_failure": true},
        {"id": "none", "uses": "dut", "run": ["./hunter22"]},
    ]));
    let run = lab.wait_for_run(&run, "FAILED");
    let id = run["run_id"].as_str().expect("it has one");
    assert_eq!(run["steps"][0]["result"]["exit_code"], 3);
    assert_eq!(lab.log(id), "whole ***\ntwo ***.\n[mediator: artifact ***: not found]\n");
    let error = run["steps"][1]["result"]["error"].as_str().expect("it could not be started");
    assert!(error.starts_with("cannot start ./***:"), "{error}");
    lab.wait_for_reason("n", "cleanup: ended with exit code 1: cannot log in: ***");
    assert!(!agent.log().contains("hunter22"), "{}", agent.log());
}

#[test]
fn a_secret_that_cannot_be_kept_ends_the_agent_before_it_begins() {
    let lab = Lab::start();
    let file = format!("secret_env = [\"PASSWORD\"]\n{BOARD}");
    for (value, what) in
        [(None, "PASSWORD is not set in the agent's environment"), (Some("short"), "less than 6 bytes")]
    {
        let dir = tempfile::tempdir().expect("there is room");
        let mut command = program();
        command.env_remove("PASSWORD").envs(value.map(|value| ("PASSWORD", value)));
        let mut agent = lab.agent_by(&mut command, dir, &file);
        assert_eq!(agent.ended().code(), Some(2));
        assert!(agent.log().contains(what), "{}", agent.log());
    }
    assert_eq!(lab.node("n")["node_id"], Value::Null);
}

#[test]
fn the_agent_s_own_token_is_passed_to_nobody() {
    let lab = Lab::start();
    let token = std::fs::read_to_string(lab.dir.path().join("data/operator.token")).expect("it is there");
    let dir = tempfile::tempdir().expect("there is room");
    let mut agent = lab.agent_by(program().env("ALIAS", token), dir, &format!("offer_env = [\"ALIAS\"]\n{BOARD}"));
    assert_eq!(agent.ended().code(), Some(2));
    assert!(agent.log().contains("ALIAS holds the agent's own token"), "{}", agent.log());
}

fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED, only root can test it: {what}");
    }
    is_root
}

#[test]
fn a_step_runs_as_the_user_that_the_file_names() {
    if !is_root("run_as") {
        return;
    }
    let lab = Lab::start();
    let dir = tempfile::tempdir().expect("there is room");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let file = format!("{BOARD}run_as = \"daemon\"\ncleanup = [\"sh\", \"-c\", \"id -un > cleaner\"]\n");
    let agent = lab.agent_in(dir, &file);
    lab.wait_until_free("n");
    std::fs::write(agent.work().join("root-only"), "s").expect("there is room");
    std::fs::set_permissions(agent.work().join("root-only"), Permissions::from_mode(0o600)).expect("it is ours");
    let script = "id -un; id -gn; [ \"$(id -G)\" = \"$(id -G daemon)\" ] && echo its groups; echo $HOME $USER $LOGNAME; \
                  echo error > /dev/stderr; touch made; grep -c node_id $MEDIATOR_ASSIGNED; cat root-only";
    let steps = json!([{"id": "work", "uses": "dut", "run": ["sh", "-c", script], "artifacts": ["root-only", "made"]}]);
    let run = lab.submit(&steps);
    lab.wait_for_run(&run, "FAILED");
    let home = Command::new("sh").args(["-c", "echo ~daemon"]).output().expect("sh is there");
    let home = String::from_utf8(home.stdout).expect("it is text");
    let log = lab.log(&run);
    let expect = format!("daemon\ndaemon\nits groups\n{} daemon daemon\nerror\n1\n", home.trim());
    assert!(log.starts_with(&expect), "{log}");
    assert!(log.contains("artifact root-only: cannot be read: Permission denied"), "{log}");
    assert!(!log.contains("artifact made"), "{log}");
    let owner = |name: &str| std::fs::metadata(agent.work().join(name)).expect("it is there").uid();
    assert_eq!((owner("."), owner("made")), (1, 1));
    // The owner's commands stay the agent's.
    wait_for("the cleanup", || (agent.file("cleaner") == "root\n").then_some(()));
    lab.wait_until_free("n");
    // What it leaves behind does not outlive it either.
    let mark = unique("daemon");
    let script = "setsid sleep 300 & (setsid sleep 300 &) ; echo ready; wait";
    let run = lab.submit(&json!([{"id": "work", "uses": "dut", "run": ["sh", "-c", script], "env": {"MARK": mark}}]));
    wait_for("the work", || (lab.log(&run) == "ready\n").then_some(()));
    wait_for("all of it", || (marked(&mark).len() >= 3).then_some(()));
    lab.prints(&["cancel", &run]);
    lab.wait_until_free("n");
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_user_that_cannot_work_there_is_told_at_the_start() {
    if !is_root("run_as in a folder that is closed") {
        return;
    }
    let lab = Lab::start();
    let dir = tempfile::tempdir().expect("there is room");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("it is ours");
    let mut agent = lab.agent_in(dir, &format!("{BOARD}run_as = \"daemon\"\n"));
    assert_eq!(agent.ended().code(), Some(2));
    assert!(agent.log().contains("run_as: daemon cannot get to its work folder"), "{}", agent.log());
    let mut agent = lab.agent(&format!("{BOARD}run_as = \"daemon:no-such-group\"\n"));
    assert_eq!(agent.ended().code(), Some(2));
    assert!(agent.log().contains("this host has no group"), "{}", agent.log());
}

/// A disk of its own, small, in a mount namespace of the agent's.
#[test]
fn a_full_disk_is_reported_and_the_agent_lives() {
    let lab = Lab::start();
    let dir = tempfile::tempdir().expect("there is room");
    let work = dir.path().join("work/n");
    std::fs::create_dir_all(&work).expect("there is room");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_mediator")]).env("WORK", &work);
        command
    };
    let mount = "mount -t tmpfs -o size=1m none \"$WORK\"";
    if !unshare(mount).status().is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED, a small disk cannot be mounted here: a full disk");
    }
    let agent = lab.agent_by(&mut unshare(&format!("{mount} && exec \"$0\" \"$@\"")), dir, BOARD);
    lab.wait_until_free("n");
    let script = "echo before; sleep 0.5; cat /dev/zero > big 2>/dev/null; head -c 200000 /dev/zero; exit 5";
    let run = lab.submit(&json!([{"id": "work", "uses": "dut", "run": ["sh", "-c", script], "artifacts": ["none"]}]));
    let run = lab.wait_for_run(&run, "FAILED");
    let log = lab.log(run["run_id"].as_str().expect("it has one"));
    assert_eq!(run["steps"][0]["result"]["exit_code"], 5, "the step's own end counts: {log}");
    assert!(log.starts_with("before\n") && log.contains("[mediator: artifact none: not found]"), "{log:?}");
    assert!(log.contains("bytes of output were dropped on the node: No space left on device"), "{log:?}");
    // Full to the last byte, also that of a file which the agent replaces: the next step cannot even begin.
    let inside = |name: &str| format!("/proc/{}/root{}/{name}", agent.child.id(), work.display());
    std::fs::remove_file(inside(".mediator/assigned.json")).expect("it is there");
    let mut big = std::fs::File::options().append(true).open(inside("big")).expect("it is there");
    while big.write(&[0; 4096]).is_ok() {}
    drop(big);
    let run = lab.submit_script("echo never");
    let run = lab.wait_for_run(&run, "FAILED");
    let error = run["steps"][0]["result"]["error"].as_str().unwrap_or_else(|| panic!("{run}"));
    assert!(error.contains("there is no room on the node's host") && error.contains("No space left"), "{error}");
    // And then somebody makes room.
    std::fs::remove_file(inside("big")).expect("it is there");
    let run = lab.submit_script("echo again");
    lab.wait_for_run(&run, "SUCCEEDED");
    assert_eq!(lab.log(&run), "again\n");
}
