//! SIGHUP: the owner's file is read again, and nobody's work is touched.

use serde_json::{Value, json};

use crate::lab::Lab;
use crate::support::{unique, wait_for};

/// Nodes of a file: id, capability, and more lines.
fn nodes(all: &[(&str, &str, &str)]) -> String {
    let node = |(id, capability, more): &(&str, &str, &str)| {
        format!("[[node]]\nid = {id:?}\ncapabilities = [{{ capability = {capability:?} }}]\n{more}\n")
    };
    all.iter().map(node).collect()
}

const UNTIL_GO: &str = "echo ready; while [ ! -e go ]; do sleep 0.05; done; pwd";

#[test]
fn nodes_come_change_and_go_while_another_works() {
    let lab = Lab::start();
    let agent = lab.agent(&nodes(&[("n", "board", ""), ("b", "scope", "")]));
    lab.wait_until_free("n");
    lab.wait_until_free("b");
    let run = lab.submit_script(UNTIL_GO);
    wait_for("the work", || (lab.log(&run) == "ready\n").then_some(()));
    let before = lab.node("n");
    let changed = "label = \"left\"\ndrain = \"graceful\"\nreason = \"dust\"\nwork_dir = \"elsewhere\"";
    agent.reload(&nodes(&[("n", "camera", changed), ("c", "board", "")]));
    agent.says("the file is taken over added=c changed=n retired=b");
    let node = lab.wait_for_node("n", "its new label", |node| node["label"] == "left");
    assert_eq!(node["capabilities"], json!([{"capability": "camera", "attrs": {}}]));
    assert_eq!(node["drains"][0]["reason"], "dust");
    assert_eq!(node["instance"], before["instance"], "it is the same life");
    lab.wait_until_free("c");
    lab.wait_for_node("b", "retired", |node| {
        node["drain"] == "at-boundary" && node["drains"][0]["reason"] == "retired by its owner"
    });
    agent.says("node retired node=b");
    agent.touch("go");
    lab.wait_for_run(&run, "SUCCEEDED");
    let old = agent.work().canonicalize().expect("it is there");
    assert_eq!(lab.log(&run), format!("ready\n{}\n", old.display()), "the step ended where it began");
    // The next step begins in the new folder.
    agent.reload(&nodes(&[("n", "board", "work_dir = \"elsewhere\"")]));
    lab.wait_until_free("n");
    let next = lab.submit_script("pwd");
    lab.wait_for_run(&next, "SUCCEEDED");
    let new = agent.dir.path().join("elsewhere").canonicalize().expect("it is there");
    assert_eq!(lab.log(&next), format!("{}\n", new.display()));
}

#[test]
fn a_node_that_retires_ends_its_step_is_cleaned_and_leaves() {
    let lab = Lab::start();
    let board = nodes(&[("n", "board", "cleanup = [\"sh\", \"-c\", \"echo cleaned >> cleaned\"]")]);
    let other = nodes(&[("other", "scope", "")]);
    let agent = lab.agent(&format!("{board}{other}"));
    lab.wait_until_free("n");
    let step = |id: &str| json!({"id": id, "uses": "dut", "run": ["sh", "-c", UNTIL_GO]});
    let run = lab.submit(&json!([step("one"), step("two")]));
    wait_for("the work", || (lab.log(&run) == "ready\n").then_some(()));
    agent.reload(&other);
    agent.says("retired=n");
    lab.wait_for_node("n", "draining", |node| node["drain"] == "at-boundary");
    agent.touch("go");
    let run = lab.wait_for_run(&run, "CANCELLED");
    assert_eq!(run["verdict"]["kind"], "drained");
    assert_eq!((&run["steps"][0]["state"], &run["steps"][1]["state"]), (&json!("DONE"), &json!("CANCELLED")));
    agent.says("node retired node=n");
    assert_eq!(agent.file("cleaned"), "cleaned\n");
    assert_eq!(lab.node("n")["cleaning"], Value::Null);
    // It may come back, and takes runs again.
    agent.reload(&format!("{board}{other}"));
    lab.wait_until_free("n");
    let again = lab.submit_script("true");
    lab.wait_for_run(&again, "SUCCEEDED");
}

#[test]
fn a_node_that_is_back_in_the_file_before_it_left_stays() {
    let lab = Lab::start();
    let (board, other) = (nodes(&[("n", "board", "")]), nodes(&[("other", "scope", "")]));
    let agent = lab.agent(&format!("{board}{other}"));
    lab.wait_until_free("n");
    let run = lab.submit_script(UNTIL_GO);
    wait_for("the work", || (lab.log(&run) == "ready\n").then_some(()));
    let instance = lab.node("n")["instance"].clone();
    agent.reload(&other);
    lab.wait_for_node("n", "draining", |node| node["drain"] == "at-boundary");
    agent.reload(&format!("{board}{other}"));
    lab.wait_for_node("n", "not draining", |node| node["drain"].is_null());
    agent.touch("go");
    lab.wait_for_run(&run, "SUCCEEDED");
    let next = lab.submit_script("true");
    lab.wait_for_run(&next, "SUCCEEDED");
    assert_eq!(lab.node("n")["instance"], instance);
}

#[test]
fn a_file_that_is_wrong_changes_nothing() {
    let lab = Lab::start();
    let agent = lab.agent(&nodes(&[("n", "board", "")]));
    lab.wait_until_free("n");
    let user = format!("run_as = {:?}", unique("nobody"));
    let wrong = [
        (nodes(&[("n", "board", ""), ("n", "board", "")]), "two nodes have the id n"),
        ("[[node]]\nid = \"n\"\ncolour = 3\n".to_owned(), "unknown field `colour`"),
        (nodes(&[("n", "board", &user)]), "this host has no user"),
        (nodes(&[("n", "board", "secret_env = [\"NOT_THERE\"]")]), "NOT_THERE is not set"),
        (nodes(&[("n", "camera", ""), ("m", "board", "work_dir = \"/proc/none\"")]), "node m: work_dir: /proc/none"),
    ];
    for (file, what) in &wrong {
        agent.reload(file);
        agent.says(what);
    }
    wait_for("as many words", || {
        (agent.log().matches("the file is not taken over, everything stays as it was").count() == wrong.len())
            .then_some(())
    });
    std::fs::remove_file(agent.dir.path().join("agent.toml")).expect("it is there");
    agent.signal(rustix::process::Signal::HUP);
    agent.says("No such file or directory");
    let run = lab.submit_script("true");
    lab.wait_for_run(&run, "SUCCEEDED");
    assert_eq!(lab.node("m")["node_id"], Value::Null);
}

#[test]
fn another_daemon_is_for_a_restart() {
    let lab = Lab::start();
    let agent = lab.agent(&nodes(&[("n", "board", "")]));
    lab.wait_until_free("n");
    let text = format!("url = \"http://127.0.0.1:9\"\n{}", nodes(&[("n", "board", "label = \"new\"")]));
    std::fs::write(agent.dir.path().join("agent.toml"), text).expect("there is room");
    agent.signal(rustix::process::Signal::HUP);
    agent.says("another url, token or ca_file is taken over by a restart only");
    lab.wait_for_node("n", "its new label", |node| node["label"] == "new");
}

#[test]
fn a_node_that_another_agent_took_over_is_not_taken_back_by_a_reload() {
    let lab = Lab::start();
    let (board, other) = (nodes(&[("n", "board", "")]), nodes(&[("other", "scope", "")]));
    let first = lab.agent(&format!("{board}{other}"));
    lab.wait_until_free("n");
    let _second = lab.agent(&board);
    first.says("another agent has taken node n over");
    first.reload(&format!("{board}{other}"));
    first.says("only a restart of this one takes it back node=n");
    let run = lab.submit_script("true");
    lab.wait_for_run(&run, "SUCCEEDED");
}
