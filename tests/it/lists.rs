//! Lists of runs: whatever is asked for, each page holds what the rows say, newest first, and the pages together all.

use serde_json::{Value, json};

use crate::support::{Lab, id_of, one_step, requires, step, with};

/// Runs in each state, of two principals, with and without work, the waiting ones of several priorities; arrivals of all
/// kinds lie among each other.
fn many_kinds() -> Lab {
    let lab = Lab::new();
    lab.node("b1", &["board"]);
    lab.node("b2", &["board"]);
    let works = [None, Some("w1"), Some("w2")];
    let contract = |at: i64| {
        let contract = with(one_step(), "priority", at % 3 - 1);
        match works[usize::try_from(at % 7 % 3).expect("small")] {
            Some(work) => with(contract, "work", work),
            None => contract,
        }
    };
    let mut at = 0;
    for round in 0..6 {
        let mut own = Vec::new();
        for _ in 0..5 {
            own.push(id_of(&lab.submit(&contract(at)).body));
            at += 1;
        }
        lab.submit(&json!({"requires": requires(&["x=laser"]), "steps": [step("s", "x")]}))
            .problem(422, "no-candidate");
        lab.cancel(&own[4]);
        lab.work(if round % 2 == 0 { "b1" } else { "b2" }, round % 3 / 2);
    }
    // There are tokens of one principal alone.
    let alices = "UPDATE runs SET principal = 'alice'
        WHERE CASE state WHEN 'RUNNING' THEN run_id = (SELECT run_id FROM leases WHERE node_id = 'b1') ELSE arrival % 5 < 2 END";
    lab.outside().execute(alices, []).expect("rows");
    lab.settle();
    lab
}

#[test]
fn every_filter_lists_what_the_rows_say() {
    let lab = many_kinds();
    let kinds = lab.number("SELECT count(DISTINCT state || principal) FROM runs");
    assert_eq!(kinds, 10, "each state of each principal");
    let states = [None, Some("QUEUED"), Some("RUNNING"), Some("SUCCEEDED"), Some("FAILED"), Some("CANCELLED")];
    let principals = [None, Some("alice"), Some("operator"), Some("nobody")];
    let works = [None, Some("w1"), Some("none")];
    let mut listed = 0;
    for state in states {
        for principal in principals {
            for work in works {
                let given = [("state", state), ("principal", principal), ("work", work)];
                let given: Vec<(&str, &str)> =
                    given.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect();
                let condition: String = given.iter().map(|(name, value)| format!(" AND {name} = '{value}'")).collect();
                let query: String = given.iter().map(|(name, value)| format!("&{name}={value}")).collect();
                let wanted: Option<String> = lab.row(
                    &format!(
                        "SELECT group_concat(run_id) FROM (SELECT run_id FROM runs WHERE 1{condition} ORDER BY arrival DESC)"
                    ),
                    [],
                    |row| row.get(0),
                );
                let wanted = wanted.unwrap_or_default();
                let mut found: Vec<String> = Vec::new();
                let mut cursor = Value::Null;
                loop {
                    let from = cursor.as_str().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
                    let page = lab.get(&format!("/v1/runs?limit=4{query}{from}")).expect(200);
                    let runs = page["runs"].as_array().expect("a list");
                    found.extend(runs.iter().map(id_of));
                    runs.iter().for_each(|run| has_its_position(&lab, run));
                    cursor = page["next"].clone();
                    if cursor.is_null() {
                        break;
                    }
                    assert_eq!(runs.len(), 4, "{query}");
                }
                assert_eq!(found.join(","), wanted, "{query}");
                listed += found.len();
            }
        }
    }
    assert!(listed > 150, "{listed}");
}

/// The position in the queue, of those that wait: by priority, then arrival, counted from 1.
#[track_caller]
fn has_its_position(lab: &Lab, run: &Value) {
    let wanted: Option<i64> = lab.row(
        "SELECT iif(own.state = 'QUEUED', (SELECT count(*) FROM runs WHERE state = 'QUEUED'
             AND (priority > own.priority OR priority = own.priority AND arrival <= own.arrival)), NULL)
         FROM runs AS own WHERE run_id = ?1",
        [run["run_id"].as_str().expect("an id")],
        |row| row.get(0),
    );
    assert_eq!(run["queue"]["position"].as_i64(), wanted, "{run}");
}
