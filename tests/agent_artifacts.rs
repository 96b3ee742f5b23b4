//! Files that a step's contract wants kept.

mod support;

use serde_json::json;
use support::Agent;
use support::fake_daemon::FakeDaemon;

#[test]
fn artifacts_are_sent_before_the_result_whatever_the_exit_code() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let script =
        "mkdir -p out; printf image > out/image.bin; printf 'a b' > 'a b'; head -c 1000000 /dev/zero > big; exit 9";
    daemon.give("r", script, json!({"artifacts": ["out/image.bin", "a b", "big"]}));
    assert_eq!(daemon.result("r")["exit_code"], 9);
    let state = daemon.state();
    assert_eq!(state.artifacts["r/1/out/image.bin"], b"image");
    assert_eq!(state.artifacts["r/1/a%20b"], b"a b");
    assert_eq!(state.artifacts["r/1/big"], vec![0; 1_000_000]);
}

#[test]
fn what_cannot_be_kept_is_noted_and_no_failure() {
    let daemon = FakeDaemon::start();
    daemon.set(|state| state.artifact_max = 10);
    let agent = Agent::start(&daemon);
    std::fs::write(agent.dir.path().join("secret"), "s").expect("there is room");
    let script = "ln -s ../../secret link; ln -s /etc folder; mkfifo fifo; echo more than ten > big; printf done";
    let names = ["none", "link", "folder/passwd", "../../secret", "/etc/passwd", "fifo", "big"];
    daemon.give("r", script, json!({"artifacts": names}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    let expect = "done\n\
        [mediator: artifact none: not found]\n\
        [mediator: artifact link: leads out of the work folder]\n\
        [mediator: artifact folder/passwd: leads out of the work folder]\n\
        [mediator: artifact ../../secret: not a path inside the work folder]\n\
        [mediator: artifact /etc/passwd: not a path inside the work folder]\n\
        [mediator: artifact fifo: not a file]\n\
        [mediator: artifact big: too large (14 bytes)]\n";
    assert_eq!(daemon.log("r"), expect);
    assert!(daemon.state().artifacts.is_empty());
}

#[test]
fn a_step_over_its_time_still_sends_what_it_made() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let more = json!({"artifacts": ["half"], "timeout_seconds": 0.5});
    daemon.give("r", "echo half > half; sleep 300", more);
    assert!(daemon.result("r")["error"].is_string());
    assert_eq!(daemon.state().artifacts["r/1/half"], b"half\n");
}
