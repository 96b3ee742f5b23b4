//! Finding the daemon, help, and what goes wrong before anything is asked.

use serde_json::json;

use crate::fake::{Fake, Reply};
use crate::program::{Program, mediator};

#[test]
fn a_daemon_that_is_not_there_is_exit_code_3_and_names_the_next_step() {
    let fake = Fake::start(|_| Reply::json(200, json!({})));
    let url = format!("http://{}", fake.addr);
    drop(fake);
    let done = Program::start(&["runs"], &[("MEDIATOR_URL", &url), ("MEDIATOR_TOKEN", "t")], "").done().expect(3);
    assert!(done.err.contains(&format!("cannot reach the daemon at {url}: is `mediator serve` running?")), "{done:?}");
    assert_eq!(done.out, "");
}

#[test]
fn without_an_address_the_message_says_where_it_was_looked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("text");
    let done = Program::start(&["runs"], &[("MEDIATOR_DATA", data)], "").done().expect(3);
    assert!(done.err.contains(&format!("{data}/url is not readable")), "{done:?}");
    assert!(done.err.contains("mediator serve"), "{done:?}");
}

#[test]
fn a_flag_beats_the_environment() {
    let fake = Fake::start(|_| Reply::json(200, json!({"runs": [], "next": null})));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("url"), format!("http://{}\n", fake.addr)).expect("writes");
    std::fs::write(folder.path().join("operator.token"), "from-folder\n").expect("writes");
    let elsewhere = [("MEDIATOR_URL", "http://127.0.0.1:1"), ("MEDIATOR_TOKEN", "from-environment")];
    let data = folder.path().to_str().expect("text");
    Program::start(&["runs", "--data", data], &elsewhere, "").done().expect(0);
    Program::start(&["--url", &format!("http://{}", fake.addr), "runs"], &elsewhere, "").done().expect(0);
    Program::start(&["runs"], &[("MEDIATOR_DATA", data)], "").done().expect(0);
    let tokens: Vec<String> = fake.asked().into_iter().map(|asked| asked.token).collect();
    assert_eq!(tokens, ["Bearer from-folder", "Bearer from-environment", "Bearer from-folder"]);
}

#[test]
fn wrong_usage_is_exit_code_2_and_help_is_0() {
    let fake = Fake::start(|_| Reply::json(200, json!({})));
    for args in [
        &["nonsense"][..],
        &[],
        &["runs", "--limit", "0"],
        &["runs", "--since", "yesterday"],
        &["submit"],
        &["submit", "/nonexistent/contract.json"],
        &["exec", "--require", "dut", "--", "true"],
        &["exec", "--", "true"],
        &["exec", "--require", "dut=board"],
        &["hold", "--require", "dut", "--", "true"],
        &["hold", "--require", "dut=board"],
        &["hold", "--require", "dut=board", "--priority", "11", "--", "true"],
        &["drain", "board-1"],
        &["node", "add", "board-1"],
        &["logs", "r-1", "--attempt", "1"],
    ] {
        let done = mediator(&fake, args).expect(2);
        assert!(!done.err.is_empty() && done.out.is_empty(), "{args:?}: {done:?}");
    }
    assert!(fake.asked().is_empty());
    let done = mediator(&fake, &["--help"]).expect(0);
    assert!(done.out.contains("Exit codes"), "{done:?}");
}

#[test]
fn a_wrong_token_says_where_tokens_come_from() {
    let fake = Fake::start(|_| Reply::problem(401, "unauthorized", "unknown token"));
    let done = mediator(&fake, &["nodes"]).expect(4);
    assert!(done.err.contains("unknown token") && done.err.contains("MEDIATOR_TOKEN"), "{done:?}");
}

#[test]
fn programs_get_the_problem_as_json() {
    let fake = Fake::start(|_| Reply::problem(404, "not-found", "no run r-9"));
    let done = mediator(&fake, &["show", "r-9", "--json"]).expect(4);
    assert!(done.out.contains("\"not-found\"") && done.err.contains("no run r-9"), "{done:?}");
    let done = mediator(&fake, &["show", "r-9"]).expect(4);
    assert_eq!(done.out, "");
}
