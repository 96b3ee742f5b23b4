//! The agent does a step's work: what it runs, in what environment, and what it tells of it.

mod support;

use serde_json::json;
use support::fake_daemon::{FakeDaemon, step};
use support::{Agent, marked, unique};

#[test]
fn output_reaches_the_daemon_while_the_command_runs() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.give("r", "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 3", json!({}));
    daemon.wait_log("r", "out\nerr\n");
    assert!(daemon.state().results.is_empty());
    std::fs::write(agent.work().join("go"), "").expect("the command runs there");
    let result = daemon.result("r");
    assert_eq!(result["exit_code"], 3);
    assert_eq!((result["node_id"].as_str(), result["nonce"].as_str()), (Some("n"), Some("nonce-r")));
    assert_eq!(result["attempt"], 1);
    assert_eq!(daemon.log("r"), "out\nerr\nend\n", "all output is sent before the result");
}

#[test]
fn a_node_advertises_what_its_file_says() {
    let daemon = FakeDaemon::start();
    let dir = tempfile::tempdir().expect("there is room");
    let file = "[[node]]\nid = \"n\"\nlabel = \"board\"\ndrain = \"graceful\"\nreason = \"dust\"\n\
                [[node]]\nid = \"m\"\ncapabilities = [{ capability = \"builder\", attrs = { cores = 8 } }]\n";
    let _agent = Agent::start_in(dir, &daemon.url(), file);
    let adverts = daemon.wait("an advert of each node", |state| {
        let of = |id: &str| state.adverts.iter().find(|(_, advert)| advert["node_id"] == id).map(|a| a.1.clone());
        Some((of("n")?, of("m")?))
    });
    assert_eq!(adverts.0["label"], "board");
    assert_eq!(adverts.0["policy"], json!({"drain": "graceful", "reason": "dust"}));
    assert_eq!(adverts.1["capabilities"], json!([{"capability": "builder", "attrs": {"cores": 8}}]));
    assert_eq!(adverts.1["policy"]["drain"], "");
    assert_ne!(adverts.0["instance"], adverts.1["instance"], "an instance is a node's own");
}

#[test]
fn the_environment_is_small_and_known() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start_with(&daemon, "offer_env = [\"OFFERED\"]");
    let more = json!({"env": {"SET": "by the contract"}, "pass_env": ["OFFERED"]});
    daemon.give(
        "r",
        "env | cut -d= -f1 | sort | tr '\\n' ' '; echo; echo $OFFERED, $SET, $MEDIATOR_NODE_DUT, \
                      $MEDIATOR_ATTR_DUT_MODEL; cat $MEDIATOR_ASSIGNED; echo; pwd; cat",
        more,
    );
    assert_eq!(daemon.result("r")["exit_code"], 0);
    let log = daemon.log("r");
    let lines: Vec<&str> = log.lines().collect();
    let optional = ["HOME", "LANG", "LC_ALL", "TMPDIR", "PWD", "SHLVL", "_"];
    let names: Vec<&str> = lines[0].split(' ').filter(|name| !name.is_empty() && !optional.contains(name)).collect();
    let expect = "MEDIATOR_ASSIGNED MEDIATOR_ATTEMPT MEDIATOR_ATTR_DUT_MODEL MEDIATOR_NODE_DUT MEDIATOR_RUN_ID \
                  MEDIATOR_STEP OFFERED PATH SET";
    assert_eq!(names.join(" "), expect);
    assert_eq!(lines[1], "from the agent, by the contract, n, rpi4");
    assert_eq!(serde_json::from_str::<serde_json::Value>(lines[2]).expect("it is JSON")[0]["as"], "dut");
    assert_eq!(lines[3], agent.work().canonicalize().expect("it is there").display().to_string());
    assert!(!log.contains("secret-token"));
}

#[test]
fn a_variable_that_is_not_offered_is_an_error_before_the_start() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start_with(&daemon, "offer_env = [\"OFFERED\"]");
    daemon.give("r", "touch started", json!({"pass_env": ["OFFERED", "PRIVATE"]}));
    assert_eq!(daemon.result("r")["error"], "pass_env PRIVATE is not offered by this agent");
    assert!(!agent.work().join("started").exists());
}

#[test]
fn what_cannot_be_started_is_an_error_and_a_signal_is_128_and_more() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.set(|state| {
        state.steps.push_back(step("missing", &["./no-such-program"], json!({})));
        state.steps.push_back(step("folder", &["/"], json!({})));
    });
    daemon.give("signal", "kill -9 $$", json!({}));
    daemon.set(|state| state.steps.push_back(step("words", &["printf", "%s|", "a b", "$HOME", ""], json!({}))));
    let missing = daemon.result("missing");
    let error = missing["error"].as_str().expect("it is an error").to_owned();
    assert!(error.contains("./no-such-program") && error.contains("No such file"), "{error}");
    assert!(daemon.result("folder")["error"].as_str().is_some_and(|error| error.contains("Permission denied")));
    assert_eq!(daemon.result("signal")["exit_code"], 137);
    assert_eq!(daemon.result("words")["exit_code"], 0);
    assert_eq!(daemon.log("words"), "a b|$HOME||", "no shell has seen the words");
    drop(agent);
}

#[test]
fn a_step_over_its_time_is_stopped_whatever_it_does_with_sigterm() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let (polite, stubborn) = (unique("polite"), unique("stubborn"));
    daemon.give(
        "polite",
        "trap 'echo told; exit 0' TERM; sleep 300 & wait",
        json!({"timeout_seconds": 0.5, "env": {"MARK": polite}}),
    );
    daemon.give("stubborn", "trap '' TERM; sleep 300 & wait", json!({"timeout_seconds": 1, "env": {"MARK": stubborn}}));
    assert_eq!(daemon.result("polite")["error"], "ran over its time of 0.5 s");
    assert_eq!(daemon.log("polite"), "told\n");
    assert_eq!(daemon.result("stubborn")["error"], "ran over its time of 1 s");
    assert_eq!(marked(&polite), [0; 0]);
    assert_eq!(marked(&stubborn), [0; 0]);
}

#[test]
fn what_a_command_leaves_behind_neither_lives_on_nor_holds_the_step_up() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start(&daemon);
    let mark = unique("left");
    let script = "setsid sleep 300 & (setsid sh -c 'sleep 300; sleep 300' &) ; nohup sleep 300 & echo started";
    daemon.give("r", script, json!({"env": {"MARK": mark}}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    assert_eq!(daemon.log("r"), "started\n");
    assert_eq!(marked(&mark), [0; 0]);
}

#[test]
fn a_flood_is_bounded_and_told() {
    let daemon = FakeDaemon::start();
    let _agent = Agent::start_with(&daemon, "spool_bytes = 100000");
    daemon.give("r", "head -c 3000000 /dev/zero | tr '\\0' x", json!({}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    let log = daemon.log("r");
    assert!(log.ends_with("\n[mediator: 2900000 bytes of output were dropped on the node]\n"), "{}", &log[100_000..]);
    assert!(log.starts_with(&"x".repeat(100_000)));
}

/// The output goes through a file: memory does not grow with it, the disk only to a limit, and the command is not held up.
#[test]
fn a_flood_fills_neither_the_agent_s_memory_nor_its_disk() {
    let daemon = FakeDaemon::start();
    let agent = Agent::start(&daemon);
    daemon.give("r", "head -c 314572800 /dev/zero", json!({}));
    assert_eq!(daemon.result("r")["exit_code"], 0);
    let mark = "\n[mediator: 243269632 bytes of output were dropped on the node]\n";
    assert_eq!(daemon.state().logs["r/1/1"].len(), 71_303_168 + mark.len());
    assert!(daemon.state().logs["r/1/1"].ends_with(mark.as_bytes()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak: u64 = peak.and_then(|peak| peak.trim().parse().ok()).expect("Linux tells the peak");
    assert!(peak < 40_000, "the agent took {peak} kB");
}
