//! `mediator agent --init`: from nothing to a node at work.

use std::process::{Command, Output};

use crate::lab::Lab;

fn init(dir: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
    command.current_dir(dir).args(["agent", "--init"]).args(args).output().expect("the binary is built")
}

#[test]
fn a_first_file_is_written_once_and_works_as_it_is() {
    let lab = Lab::start();
    let dir = tempfile::tempdir().expect("there is room");
    let output = init(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).expect("it is text");
    assert!(told.contains("wrote agent.toml") && told.contains("mediator agent --config agent.toml"), "{told}");
    let path = dir.path().join("agent.toml");
    let text = std::fs::read_to_string(&path).expect("it was written");
    let id =
        text.lines().find_map(|line| line.strip_prefix("id = ")).expect("it has a node").trim_matches('"').to_owned();

    std::fs::write(&path, format!("# mine\n{text}")).expect("there is room");
    let again = init(dir.path(), &[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("agent.toml is there already and stays as it is"));
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), format!("# mine\n{text}"));

    let elsewhere = init(dir.path(), &["--config", "other.toml", "--url", "http://lab:7340"]);
    assert!(elsewhere.status.success(), "{elsewhere:?}");
    let other = std::fs::read_to_string(dir.path().join("other.toml")).expect("it was written");
    assert!(other.contains("url = \"http://lab:7340\""));
    assert_eq!(init(dir.path(), &["--config", "none/other.toml"]).status.code(), Some(2));

    let agent = lab.agent_in(dir, &text);
    lab.wait_until_free(&id);
    assert!(lab.prints(&["nodes"]).contains("builder"));
    drop(agent);
}

#[test]
fn an_agent_without_a_file_is_told_how_to_get_one() {
    let output = Command::new(env!("CARGO_BIN_EXE_mediator")).arg("agent").output().expect("the binary is built");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--config <FILE>"));
}
