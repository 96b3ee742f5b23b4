//! The sweep: in order, all that fits, and nothing else (I6, I7).

use std::collections::BTreeMap;

use mediator::domain::contract::{Contract, Kind};
use mediator::domain::ids::{NodeId, RunId};
use mediator::domain::json;
use mediator::domain::matching::{self, Node, Requirement};
use mediator::store::cancel::cancel;
use mediator::store::submit::{Submission, submit};
use mediator::store::{Error, Refusal};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Lab, available, contract, id_of, one_step, requires, step, with};

/// Gives every node back to the queue at once: all drains are lifted while the daemon is down, and its start sweeps.
fn sweep_all(lab: &mut Lab) {
    lab.stop();
    let lift =
        "UPDATE nodes SET operator_mode = NULL, operator_reason = NULL, operator_by = NULL, operator_since = NULL";
    lab.outside().execute(lift, []).expect("the drains are lifted");
    lab.start();
}

fn drain_all(lab: &Lab, nodes: &[&str]) {
    for node in nodes {
        lab.post(&format!("/v1/nodes/{node}/drain"), &json!({"mode": "graceful"})).expect(200);
    }
}

/// What each promoted run got: its roles' nodes, in order.
type Outcome = BTreeMap<String, Vec<(String, Vec<String>)>>;

/// The plain procedure: each run in order is promoted if it fits what is left, and is not too wide; then it takes what
/// it acquires at once. Nothing is remembered between two runs but what was taken.
fn plainly(lab: &Lab, mut left: Vec<Node>) -> Outcome {
    let settings = lab.settings();
    let mut outcome = Outcome::new();
    let query = "SELECT run_id, contract FROM runs WHERE state = 'QUEUED' ORDER BY priority DESC, arrival";
    let mut statement = lab.rows().prepare(query).expect("SQL");
    let queue = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    for (run, text) in queue.expect("rows").map(|row| row.expect("a row")) {
        let contract = contract(&text);
        let nodes: Vec<&Node> = left.iter().collect();
        let Some(chosen) = matching::fit(&contract.requires, &nodes) else { continue };
        if matching::width(&chosen) > settings.lease_max_per_run {
            continue;
        }
        let name = |at: &usize| left[*at].id.as_str().to_owned();
        let mut got: Vec<(String, Vec<String>)> = (contract.requires.roles.iter().zip(&chosen))
            .map(|(role, own)| (role.name.clone(), own.iter().map(name).collect()))
            .collect();
        let mut held = matching::width(&chosen);
        left.retain(|node| !got.iter().any(|(_, nodes)| nodes.iter().any(|own| own == node.id.as_str())));
        for step in &contract.steps {
            let Kind::Acquire(acquire) = &step.kind else { continue };
            let wanted = Requirement { roles: vec![acquire.want.clone()], distinct_nodes: None };
            let nodes: Vec<&Node> = left.iter().collect();
            let Some(chosen) = matching::fit(&wanted, &nodes).filter(|_| held < settings.lease_max_per_run) else {
                continue;
            };
            let node = left.remove(chosen[0][0]).id.as_str().to_owned();
            got.push((acquire.want.name.clone(), vec![node]));
            held += 1;
        }
        outcome.insert(run, got);
    }
    outcome
}

fn free(lab: &Lab) -> Vec<Node> {
    available(lab.rows(), lab.now(), lab.settings())
}

/// The nodes that will be free once the drain of `node`, which nobody holds, is lifted.
fn free_with(lab: &Lab, node: &str) -> Vec<Node> {
    let mut statement = lab.rows().prepare("SELECT capabilities FROM nodes WHERE node_id = ?1").expect("SQL");
    let text: String = statement.query_row([node], |row| row.get(0)).expect("a node");
    let capabilities = serde_json::from_str(&text).expect("JSON");
    let own = Node { id: NodeId::new(node).expect("an id"), agent: true, capabilities };
    let mut nodes = free(lab);
    nodes.push(own);
    nodes.sort_by(|a, b| (a.weight(), &a.id).cmp(&(b.weight(), &b.id)));
    nodes
}

/// What the daemon made of the same queue.
fn as_it_is(lab: &Lab) -> Outcome {
    let query = "SELECT run_id, assigned FROM runs WHERE state = 'RUNNING'";
    let mut statement = lab.rows().prepare(query).expect("SQL");
    let runs = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let read = |text: String| {
        let assigned: Value = serde_json::from_str(&text).expect("JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let nodes =
            |role: &Value| role["nodes"].as_array().expect("nodes").iter().map(|n| text(&n["node_id"])).collect();
        assigned.as_array().expect("roles").iter().map(|role| (text(&role["as"]), nodes(role))).collect()
    };
    runs.expect("rows").map(|row| row.expect("a row")).map(|(run, text)| (run, read(text))).collect()
}

fn any_role(name: &'static str) -> impl Strategy<Value = Value> {
    let attrs = prop_oneof![
        3 => Just(json!({})),
        1 => Just(json!({"model": "a"})),
        1 => Just(json!({"model": "b"})),
        1 => (0..6usize).prop_map(|at| json!({"node": format!("n{at}")})),
    ];
    (prop_oneof![Just("board"), Just("board"), Just("host")], attrs, 1..3i64).prop_map(
        move |(capability, attrs, count)| json!({"as": name, "capability": capability, "attrs": attrs, "count": count}),
    )
}

fn any_contract() -> impl Strategy<Value = Value> {
    let distinct = prop_oneof![3 => Just(Value::Null), 1 => Just(json!(true)), 1 => Just(json!(false))];
    (any_role("a"), proptest::option::of(any_role("b")), distinct, -2..3i64, 0..4u8).prop_map(
        |(first, second, distinct, priority, kind)| {
            let roles: Vec<Value> = std::iter::once(first).chain(second).collect();
            let steps = if kind == 0 {
                json!([
                    {"id": "get", "acquire": {"want": {"as": "x", "capability": "board"}, "acquired": "use", "unavailable": "not"}},
                    {"id": "use", "uses": "x", "run": ["true"]},
                    {"id": "not", "uses": "a", "run": ["true"], "needs": ["get"]},
                ])
            } else {
                json!([step("work", "a")])
            };
            json!({"requires": roles, "distinct_nodes": distinct, "priority": priority, "steps": steps})
        },
    )
}

fn any_fleet() -> impl Strategy<Value = Vec<Vec<&'static str>>> {
    let node = prop_oneof![
        2 => Just(vec!["board model=a"]),
        2 => Just(vec!["board model=b"]),
        2 => Just(vec!["host"]),
        1 => Just(vec!["board model=a", "host"]),
        1 => Just(vec!["board model=a", "board model=b"]),
    ];
    proptest::collection::vec(node, 3..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// I6, I7: skipping runs of a shape that was refused changes the cost of a sweep, never its outcome.
    #[test]
    fn the_outcome_is_that_of_the_plain_procedure(
        fleet in any_fleet(),
        contracts in proptest::collection::vec(any_contract(), 1..24),
        late in proptest::collection::vec(any_contract(), 0..8),
        most in 1..5usize,
    ) {
        let mut lab = Lab::with(|settings| settings.lease_max_per_run = most);
        let names: Vec<String> = (0..fleet.len()).map(|at| format!("n{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (name, capabilities) in names.iter().zip(&fleet) {
            lab.node(name, capabilities);
        }
        drain_all(&lab, &names);
        for contract in &contracts {
            let status = lab.submit(contract).status;
            prop_assert!(matches!(status, 202 | 422), "{status}");
        }
        // The nodes are free for the test's own look at them before the daemon gets to see them.
        lab.stop();
        let (now, then) = names.split_at(names.len() / 2);
        for node in now {
            lab.outside()
                .execute("UPDATE nodes SET operator_mode = NULL, operator_by = NULL, operator_since = NULL
                          WHERE node_id = ?1", [node])
                .expect("the drains are lifted");
        }
        let mut expected = plainly(&lab, free(&lab));
        lab.start();
        prop_assert_eq!(as_it_is(&lab), expected.clone());
        // The rest one by one, in a daemon that knows its queue; and with runs that came meanwhile, which may be placed.
        for contract in &late {
            let status = lab.submit(contract).status;
            prop_assert!(matches!(status, 201 | 202 | 422), "{status}");
        }
        expected = as_it_is(&lab);
        for node in then {
            expected.append(&mut plainly(&lab, free_with(&lab, node)));
            lab.delete(&format!("/v1/nodes/{node}/drain")).expect(200);
            prop_assert_eq!(as_it_is(&lab), expected.clone());
        }
    }
}

/// I7: higher priority first, then earlier arrival.
#[test]
fn the_order_is_priority_then_arrival() {
    let mut lab = Lab::new();
    let boards = ["b1", "b2", "b3"];
    boards.iter().for_each(|board| drop(lab.node(board, &["board"])));
    drain_all(&lab, &boards);
    let runs: Vec<String> =
        [0, 0, 5, -1, 5].iter().map(|priority| lab.queued(&with(one_step(), "priority", *priority))).collect();
    let positions: Vec<i64> =
        runs.iter().map(|run| lab.run(run)["queue"]["position"].as_i64().expect("a position")).collect();
    assert_eq!(positions, [3, 4, 1, 5, 2]);
    sweep_all(&mut lab);
    let states: Vec<String> = runs.iter().map(|run| lab.state(run)).collect();
    assert_eq!(states, ["RUNNING", "QUEUED", "RUNNING", "QUEUED", "RUNNING"]);
    assert_eq!(lab.run(&runs[1])["queue"]["position"], 1, "who is left moves up");
}

/// I7: a run that cannot start never blocks one behind it that can.
#[test]
fn a_run_that_does_not_fit_lets_the_next_pass() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    lab.node("h1", &["host"]);
    drain_all(&lab, &["b1", "b2", "h1"]);
    let pair = json!({"requires": [{"as": "dut", "capability": "board", "count": 2}], "steps": [step("work", "dut")]});
    let busy = "UPDATE nodes SET operator_mode = NULL, operator_by = NULL, operator_since = NULL WHERE node_id <> 'b2'";
    let (wide, small) = (lab.queued(&pair), lab.queued(&one_step()));
    let host = lab.queued(&json!({"requires": requires(&["h=host"]), "steps": [step("work", "h")]}));
    lab.stop();
    lab.outside().execute(busy, []).expect("two drains are lifted");
    lab.start();
    assert_eq!(
        (lab.state(&wide), lab.state(&small), lab.state(&host)),
        ("QUEUED".into(), "RUNNING".into(), "RUNNING".into())
    );
    lab.delete("/v1/nodes/b2/drain").expect(200);
    assert_eq!(lab.state(&wide), "QUEUED", "one board is not two");
    lab.work("b1", 0);
    assert_eq!(lab.state(&wide), "RUNNING", "no node is kept back, but at last both are free at once");
}

/// A failure of one promotion is logged, and the next run is tried; it holds nothing (I3, I4).
#[test]
fn a_promotion_that_fails_does_not_stop_the_sweep() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    drain_all(&lab, &["b1"]);
    let (broken, sound) = (lab.queued(&one_step()), lab.queued(&one_step()));
    lab.is_broken = true;
    lab.outside()
        .execute("UPDATE runs SET contract = '{\"requires\":[]}' WHERE run_id = ?1", [&broken])
        .expect("the row is broken");
    lab.delete("/v1/nodes/b1/drain").expect(200);
    assert_eq!(lab.state(&broken), "QUEUED");
    assert_eq!(lab.state(&sound), "RUNNING");
    // Neither does it at the next start, when nothing of it is remembered.
    lab.cancel(&sound);
    let next = lab.placed(&one_step());
    lab.restart();
    assert_eq!((lab.state(&broken), lab.state(&next)), ("QUEUED".into(), "RUNNING".into()));
    lab.cancel(&broken);
    assert_eq!(lab.state(&broken), "CANCELLED cancelled", "it can still be got rid of");
}

/// A run that somebody else has moved since the sweep saw it waiting is not granted anything (I3, I4).
#[test]
fn a_run_that_somebody_else_has_moved_is_not_promoted() {
    let mut lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("h1", &["host"]);
    drain_all(&lab, &["b1", "h1"]);
    let first = lab.queued(&one_step());
    let second = lab.queued(&json!({"requires": requires(&["pc=host"]), "steps": [step("work", "pc")]}));
    // Nobody is beside the writer; so it is planted that with the first also the second begins to run, elsewhere.
    lab.is_broken = true;
    let plant = format!(
        "CREATE TRIGGER plant AFTER UPDATE OF state ON runs WHEN NEW.run_id = '{first}' AND NEW.state = 'RUNNING'
         BEGIN UPDATE runs SET state = 'RUNNING', assigned = '[]', started_at = 1 WHERE run_id = '{second}'; END"
    );
    lab.outside().execute_batch(&plant).expect("a trigger");
    sweep_all(&mut lab);
    assert_eq!((lab.holder("b1"), lab.holder("h1")), (Some(first), None));
    let started: i64 = lab.row("SELECT started_at FROM runs WHERE run_id = ?1", [&second], |row| row.get(0));
    assert_eq!(started, 1, "left as it was found");
}

/// What a write that is undone has moved into the queue, or out of it, is as it was: nobody counts the one, and nothing
/// forgets the other (I6).
#[test]
fn what_is_undone_neither_waits_nor_is_forgotten() {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    drain_all(&lab, &["b1", "b2"]);
    let first = lab.queued(&one_step());
    let undo = || Err::<(), _>(Error::Refused(Refusal::new("undone", "on purpose")));
    let body = json::parse(one_step().to_string().as_bytes()).expect("JSON");
    let submission = Submission::new("operator", Contract::parse(&body).expect("a contract"), &body, false);
    let run = RunId::from_stored(&first);
    let undone = lab.http.rt.block_on(lab.store().write(move |tx| {
        submit(tx, &submission)?;
        cancel(tx, &run, "test", None, None)?;
        undo()
    }));
    assert!(matches!(undone, Err(Error::Refused(refusal)) if refusal.code == "undone"));
    let second = lab.submit(&one_step()).expect(202);
    assert_eq!(second["queue"]["position"], 2);
    lab.delete("/v1/nodes/b1/drain").expect(200);
    lab.delete("/v1/nodes/b2/drain").expect(200);
    assert_eq!((lab.state(&first), lab.state(&id_of(&second))), ("RUNNING".to_owned(), "RUNNING".to_owned()));
    assert_eq!(lab.number("SELECT count(*) FROM runs"), 2);
}

/// A fleet in which `m` alone serves both roles, and comes first in the order; without it two nodes are needed.
fn wide_lab() -> (Lab, Value) {
    let lab = Lab::with(|settings| settings.lease_max_per_run = 1);
    lab.node("m", &["board", "host"]);
    lab.node("b", &["board a=1 b=2"]);
    lab.node("h", &["host a=1 b=2"]);
    (lab, json!({"requires": requires(&["dut=board", "pc=host"]), "steps": [step("work", "dut")]}))
}

/// A run that fits only with more nodes than one may hold waits for another combination.
#[test]
fn a_run_too_wide_for_what_is_free_is_left_in_the_queue() {
    let (lab, both) = wide_lab();
    let first = lab.placed(&both);
    assert_eq!(lab.holder("m"), Some(first.clone()));
    let second = lab.queued(&both);
    let host = lab.placed(&json!({"requires": requires(&["pc=host"]), "steps": [step("work", "pc")]}));
    lab.work("h", 0);
    assert_eq!(lab.state(&host), "SUCCEEDED succeeded");
    assert_eq!(lab.state(&second), "QUEUED", "two nodes are free, and it may hold one");
    lab.work("m", 0);
    assert_eq!(lab.state(&first), "SUCCEEDED succeeded");
    assert_eq!(lab.state(&second), "RUNNING");
    assert_eq!(lab.number("SELECT count(*) FROM leases"), 1, "a node that serves two roles is leased once");
}

/// A run left for its width says nothing about the next with equal requirements, once another took a node.
#[test]
fn the_next_of_a_shape_left_for_its_width_is_tried_again() {
    let (mut lab, both) = wide_lab();
    lab.node("b2", &["board"]);
    // b2 comes first: the pair is too wide as long as b2 is there, and takes m alone once it is gone.
    drain_all(&lab, &["m", "b", "h", "b2"]);
    let first = lab.submit(&both);
    // With every known node available it needs two, so it is refused for good.
    first.problem(422, "too-wide");
    lab.delete("/v1/nodes/b2").expect(200);
    let (left, small, next) = (lab.queued(&both), lab.queued(&one_step()), lab.queued(&both));
    lab.node("b2", &["board"]);
    assert_eq!(lab.state(&left), "QUEUED");
    assert_eq!(lab.state(&small), "RUNNING", "a new node is for whoever fits");
    assert_eq!(lab.holder("b2"), Some(small));
    sweep_all(&mut lab);
    assert_eq!(lab.state(&left), "RUNNING", "now m comes first");
    assert_eq!(lab.state(&next), "QUEUED");
}

/// I7: with a wide run left, a later one takes the plain board, and the next equal one takes what then comes first.
#[test]
fn within_one_sweep_a_run_behind_may_make_room_for_the_next_of_a_wide_shape() {
    let (mut lab, both) = wide_lab();
    drain_all(&lab, &["m", "b", "h"]);
    let (left, small, next) = (lab.queued(&both), lab.queued(&one_step()), lab.queued(&both));
    drain_all(&lab, &["m"]);
    lab.node("b2", &["board"]);
    assert_eq!(lab.holder("b2"), Some(small.clone()));
    lab.cancel(&small);
    let (small, last) = (lab.queued_or_placed(&one_step()), lab.queued(&one_step()));
    assert_eq!(lab.state(&small), "RUNNING");
    drain_all(&lab, &["b2"]);
    lab.cancel(&small);
    sweep_all(&mut lab);
    // In order: `left` sees b2 and h, which are two: left. `next` likewise. `last` takes b2. Then m comes first for the
    // next of the shape behind `last`: there is none, and `left` waits for the next sweep.
    assert_eq!(lab.holder("b2"), Some(last));
    assert_eq!((lab.state(&left), lab.state(&next)), ("QUEUED".into(), "QUEUED".into()));
    lab.heartbeat("b");
    lab.static_node("s", &["plug"]);
    assert_eq!(lab.state(&left), "RUNNING", "the next sweep");
}
