//! Contracts in JSON, YAML and TOML: `submit` and `lint`.

use std::path::PathBuf;

use serde_json::json;

use crate::fake::{Fake, Reply, run};
use crate::program::{Done, Program, mediator};

const YAML: &str = "\
requires:
  - {as: dut, capability: board}
steps:
  - id: look
    ask: {prompt: 'Green?', options: [yes, no], accept: [yes]}
  - id: flash
    uses: dut
    run:
      - ./flash.sh
";

const TOML: &str = "\
[[requires]]
as = 'dut'
capability = 'board'

[[steps]]
id = 'flash'
uses = 'dut'
run = ['./flash.sh', 4]
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        std::fs::write(&path, text).expect("writes");
        path.to_str().expect("text").to_owned()
    }
}

fn lint(args: &[&str], input: &str) -> Done {
    Program::start(&[&["lint"], args].concat(), &[], input).done()
}

#[test]
fn yaml_and_toml_reach_the_daemon_as_json() {
    let fake = Fake::start(|_| Reply::json(201, run("RUNNING", json!({}))));
    let folder = Folder::new();
    mediator(&fake, &["submit", &folder.file("c.yml", YAML)]).expect(0);
    assert_eq!(fake.asked()[0].body["steps"][0]["ask"]["options"], json!(["yes", "no"]));
    mediator(&fake, &["submit", &folder.file("c.TOML", TOML)]).expect(0);
    assert_eq!(fake.asked()[1].body["steps"][0]["run"], json!(["./flash.sh", 4]));
}

#[test]
fn flags_beat_what_the_contract_says() {
    let fake = Fake::start(|_| Reply::json(201, run("RUNNING", json!({}))));
    let folder = Folder::new();
    let file = folder.file("c.json", r#"{"name": "old", "steps": []}"#);
    let flags = ["--name", "new", "--run-id", "r-mine", "--work", "gerrit:1", "--priority", "-3"];
    mediator(&fake, &[&["submit", &file], &flags[..]].concat()).expect(0);
    assert_eq!(
        fake.asked()[0].body,
        json!({"name": "new", "run_id": "r-mine", "work": "gerrit:1", "priority": -3, "steps": []})
    );
}

#[test]
fn a_field_that_the_daemon_refuses_is_named_with_its_line() {
    let fake = Fake::start(|_| {
        let problem =
            json!({"status": 400, "code": "invalid-contract", "detail": "expected a string", "path": "/steps/1/run/0"});
        Reply::json(400, problem)
    });
    let file = Folder::new();
    let file = (file.file("c.yaml", YAML), file);
    let done = mediator(&fake, &["submit", &file.0]).expect(4);
    assert!(done.err.contains("c.yaml:9: /steps/1/run/0: expected a string [invalid-contract]"), "{done:?}");
}

#[test]
fn a_text_that_is_not_in_its_format_is_not_sent() {
    let fake = Fake::start(|_| Reply::json(201, run("RUNNING", json!({}))));
    let folder = Folder::new();
    for (name, text, place) in
        [("c.yaml", "name: a\nname: b\n", "c.yaml:2:"), ("c.toml", "name = 'a'\nx =\n", "c.toml:2:")]
    {
        let done = mediator(&fake, &["submit", &folder.file(name, text)]).expect(4);
        assert!(done.err.contains(place), "{done:?}");
    }
    assert!(fake.asked().is_empty());
}

#[test]
fn lint_needs_no_daemon_and_names_line_and_field() {
    let folder = Folder::new();
    let good = folder.file("good.yaml", YAML);
    let done = lint(&[&good], "").expect(0);
    assert!(done.out.ends_with("good.yaml: good: 1 required, 2 steps\n"), "{done:?}");
    let bad = folder.file("bad.toml", TOML);
    let done = lint(&[&good, &bad], "").expect(1);
    assert!(done.out.contains("bad.toml:8: /steps/0/run/1: "), "{done:?}");
    let done = lint(&[&bad, "--json"], "").expect(1);
    let complaint: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!((&complaint["line"], &complaint["path"]), (&json!(8), &json!("/steps/0/run/1")));
    lint(&["/nonexistent"], "").expect(2);
}

#[test]
fn lint_reads_standard_input() {
    lint(&["-"], YAML).expect(0);
    let done = lint(&["-"], r#"{"requires": [], "requires": []}"#).expect(1);
    assert!(done.out.starts_with("standard input:"), "{done:?}");
}
