//! Every example contract is submitted as a person would, and carried to its end.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Daemon, wait_for};

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = fs::read_dir(folder).expect("there are examples").map(|entry| entry.expect("readable").path());
    let is_contract = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        matches!(extension, "json" | "yaml" | "toml") && !path.ends_with("agent.toml")
    };
    let mut files: Vec<PathBuf> = files.filter(is_contract).collect();
    files.sort();
    files
}

/// A lab for all of them: an agent with four nodes, and an outlet that has none.
struct Agent(Child);

impl Agent {
    fn start(daemon: &Daemon) -> Self {
        let folder = daemon.dir.path();
        let nodes = [
            ("board-1", r#"capability = "board", attrs = { model = "rpi4" }"#),
            ("board-2", r#"capability = "board", attrs = { model = "rpi4" }"#),
            ("host-1", r#"capability = "builder""#),
            ("scope-1", r#"capability = "instrument", attrs = { kind = "scope" }"#),
        ];
        let [(_, url), _] = daemon.env();
        let mut file = format!(
            "url = \"{url}\"\ntoken_file = \"operator.token\"\nwork_dir = \"work\"\noffer_env = [\"CROSS_COMPILE\"]\n"
        );
        for (node, capability) in nodes {
            file.push_str(&format!("[[node]]\nid = \"{node}\"\ncapabilities = [{{ {capability} }}]\n"));
            scripts(&folder.join("work").join(node));
        }
        let path = folder.join("agent.toml");
        fs::write(&path, file).expect("there is room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.arg("agent").arg("--config").arg(&path).env("CROSS_COMPILE", "aarch64-linux-gnu-");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the agent starts");
        for (node, _) in nodes {
            wait_for("the agent's nodes", || (daemon.get(&format!("/v1/nodes/{node}")).status == 200).then_some(()));
        }
        let outlet =
            json!({"node_id": "outlet-1", "static": true, "capabilities": [{"capability": "outlet", "attrs": {}}]});
        daemon.call("POST", "/v1/nodes", &outlet).expect(200);
        Self(child)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the examples expect to find on a node.
fn scripts(folder: &Path) {
    fs::create_dir_all(folder.join("firmware")).expect("there is room");
    fs::write(folder.join("firmware/Makefile"), "image.bin:\n\techo image > image.bin\n").expect("there is room");
    for name in ["boot", "flash", "led", "lint", "measure", "report", "reset", "verify"] {
        let path = folder.join(format!("{name}.sh"));
        fs::write(&path, "#!/bin/sh\necho \"$0 $*\"\n").expect("there is room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
}

/// Answers what is asked and ends what is held, until the run has ended.
fn carry(daemon: &Daemon, run: &str) -> Value {
    wait_for(run, || {
        let view = daemon.get(&format!("/v1/runs/{run}")).expect(200);
        for step in view["steps"].as_array().expect("steps") {
            match (step["kind"].as_str(), step["state"].as_str()) {
                (Some("ask"), Some("ASKED")) => {
                    let asks = daemon.get("/v1/asks").expect(200);
                    let options = asks["asks"].as_array().into_iter().flatten().find(|ask| ask["run_id"] == run);
                    let answer = options.and_then(|ask| ask["options"][0].as_str()).unwrap_or("k.m.");
                    daemon.mediator(&["answer", run, step["id"].as_str().expect("an id"), answer]).expect(0);
                }
                (Some("hold"), Some("CLAIMED")) => {
                    let result = json!({"attempt": step["attempt"], "exit_code": 0});
                    daemon.call("POST", &format!("/v1/runs/{run}/steps/{}/result", step["seq"]), &result).expect(200);
                }
                _ => {}
            }
        }
        (!view["ended_at"].is_null()).then_some(view)
    })
}

/// All formats, all kinds of step: each is good for `lint`, taken by `submit`, and succeeds.
#[test]
fn every_example_is_carried_to_its_end() {
    let daemon = Daemon::start();
    let agent = Agent::start(&daemon);
    let (mut formats, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    let files = examples();
    assert!(files.len() >= 8, "found only {files:?}");
    for file in &files {
        let (name, text) =
            (file.file_name().and_then(|name| name.to_str()).expect("text"), file.to_str().expect("text"));
        let lint = daemon.mediator(&["lint", text]).expect(0);
        assert!(lint.out.contains("good"), "{lint:?}");
        let dry = daemon.mediator(&["submit", "--dry-run", text]).expect(0);
        assert!(!dry.out.is_empty(), "{dry:?}");
        daemon.mediator(&["submit", "--run-id", name, text]).expect(0);
        let run = carry(&daemon, name);
        let logs = || daemon.mediator(&["logs", name]);
        assert_eq!(run["verdict"]["kind"], "succeeded", "{name}: {run:#}\n{:?}", logs());
        for step in run["steps"].as_array().expect("steps") {
            assert_ne!(step["state"], "FAILED", "{name}: {step}\n{:?}", logs());
            kinds.insert(step["kind"].as_str().expect("a kind").to_owned());
        }
        assert!(daemon.mediator(&["record", "--verify", name]).expect(0).out.contains("is whole"));
        formats.insert(file.extension().expect("it has one").to_owned());
    }
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), ["acquire", "ask", "hold", "run"]);
    assert_eq!(formats.len(), 3);
    let kept = daemon.get("/v1/runs/flaky.yaml/artifacts/statistics.txt");
    assert_eq!(&kept.bytes[..], b"tries: 2\n");
    drop(agent);
}
