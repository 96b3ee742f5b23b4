//! Releasing roles in the middle of a run.

use serde_json::{Value, json};

use crate::support::{Lab, requires, step, with};

fn lab(nodes: &[(&str, &[&str])]) -> Lab {
    let lab = Lab::new();
    nodes.iter().for_each(|(node, capabilities)| drop(lab.node(node, capabilities)));
    lab
}

fn pair(steps: Value) -> Value {
    json!({"requires": requires(&["dut=board", "pc=host"]), "steps": steps})
}

/// Given back when the step is done or failed-but-allowed; then its lease is gone, and the run goes on.
#[test]
fn a_role_is_given_back_when_its_step_is_over() {
    for (exit_code, allow) in [(0, false), (1, true)] {
        let lab = lab(&[("b1", &["board"]), ("h1", &["host"])]);
        let build = with(with(step("build", "pc"), "release", json!(["pc"])), "allow_failure", allow);
        let run = lab.placed(&pair(json!([build, step("test", "dut")])));
        lab.work("h1", exit_code);
        assert_eq!((lab.holder("h1"), lab.holder("b1")), (None, Some(run.clone())));
        assert_eq!(lab.node("h1", &["host"])["leases"], json!([]));
        let assigned = lab.run(&run)["assigned"].clone();
        assert_eq!(assigned[1]["nodes"][0]["node_id"], "h1", "released ones are still shown");
        lab.work("b1", 0);
        assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
    }
}

/// A node that serves two roles goes when none of them is left.
#[test]
fn a_node_goes_when_none_of_its_roles_is_left() {
    let lab = lab(&[("both", &["board", "host"])]);
    let run = lab.placed(&pair(json!([
        with(step("build", "pc"), "release", json!(["pc"])),
        with(step("test", "dut"), "release", json!(["dut"])),
        {"id": "q", "ask": {"prompt": "?"}},
    ])));
    lab.work("both", 0);
    assert_eq!(lab.holder("both"), Some(run.clone()));
    lab.work("both", 0);
    assert_eq!(lab.holder("both"), None);
    assert_eq!(lab.steps(&run), "DONE DONE ASKED", "a run without nodes goes on");
    lab.answer(&run, 3, "fine").expect(200);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// In `release` a role means all its nodes, `dut.1` means one.
#[test]
fn a_role_means_all_its_nodes_and_a_number_one() {
    for (release, free) in [("dut", vec!["b1", "b2", "b3"]), ("dut.1", vec!["b2"]), ("dut.0", vec!["b1"])] {
        let lab = lab(&[("b1", &["board"]), ("b2", &["board"]), ("b3", &["board"]), ("h1", &["host"])]);
        let run = lab.placed(&json!({
            "requires": [{"as": "dut", "capability": "board", "count": 3}, {"as": "pc", "capability": "host"}],
            "steps": [with(step("a", "pc"), "release", json!([release])), step("b", "pc")],
        }));
        lab.work("h1", 0);
        let freed: Vec<&str> = ["b1", "b2", "b3"].into_iter().filter(|node| lab.holder(node).is_none()).collect();
        assert_eq!(freed, free);
        assert_eq!(lab.state(&run), "RUNNING");
    }
}

/// A role that was never had is released as nothing; a skipped step releases nothing.
#[test]
fn a_skipped_step_releases_nothing() {
    let lab = lab(&[("b1", &["board"]), ("h1", &["host"])]);
    let run = lab.placed(&pair(json!([
        {"id": "get", "acquire": {"want": {"as": "x", "capability": "meter"}, "acquired": "use", "unavailable": "not"}},
        with(step("use", "x"), "release", json!(["pc"])),
        with(step("not", "dut"), "needs", json!(["get"])),
        with(with(step("end", "dut"), "needs", json!(["use", "not"])), "release", json!(["x"])),
        step("last", "dut"),
    ])));
    let held = Some(run.clone());
    assert_eq!((lab.steps(&run).as_str(), lab.holder("h1")), ("DONE SKIPPED PENDING PENDING PENDING", held.clone()));
    lab.work("b1", 0);
    lab.work("b1", 0);
    assert_eq!((lab.holder("b1"), lab.holder("h1")), (held.clone(), held));
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// Questions and holds release, too; a rollback does not.
#[test]
fn every_kind_of_step_releases_and_a_rollback_does_not() {
    let lab = lab(&[("b1", &["board"]), ("h1", &["host"])]);
    let hold = json!({"id": "h", "hold": {}, "release": ["pc"], "loop": {"back_to": "h", "max": 2}});
    let run = lab.placed(&pair(json!([hold, step("end", "dut")])));
    let close = |attempt: i64, exit_code: i64| {
        let body = json!({"attempt": attempt, "exit_code": exit_code});
        lab.post(&format!("/v1/runs/{run}/steps/1/result"), &body).expect(200);
    };
    close(1, 1);
    assert_eq!(lab.holder("h1"), Some(run.clone()));
    close(2, 0);
    assert_eq!(lab.holder("h1"), None);
    let (to, why): (i64, String) =
        lab.row("SELECT \"to\", why FROM lease_history WHERE node_id = 'h1'", [], |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!((to, why.as_str()), (lab.now(), "released"));
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}

/// A released node's silence is not the run's any more.
#[test]
fn a_released_node_may_go_away() {
    let lab = lab(&[("b1", &["board"]), ("h1", &["host"])]);
    let run = lab.placed(&pair(json!([with(step("build", "pc"), "release", json!(["pc"])), step("test", "dut")])));
    lab.work("h1", 0);
    lab.delete("/v1/nodes/h1").expect(200);
    lab.pass(2000.0, &["b1"]);
    lab.work("b1", 0);
    assert_eq!(lab.state(&run), "SUCCEEDED succeeded");
}
