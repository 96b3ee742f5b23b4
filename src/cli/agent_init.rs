//! `mediator agent --init`: a first file for an agent, with what this host tells of itself.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::{Exit, Stop, out};
use crate::domain::ids::is_id;

/// Writes a file that describes this host as one node, and says what to do next.
pub fn write(path: &Path, url: Option<&str>) -> Result<Exit, Stop> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let id = id_of(host.trim());
    let shown = path.display();
    // Only if it is not there: what somebody wrote is never written over.
    let written = File::options().write(true).create_new(true).open(path).and_then(|mut file| {
        file.write_all(text(&id, url).as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Stop::new(Exit::Usage, format!("{shown} is there already and stays as it is")),
        _ => Stop::new(Exit::Usage, format!("cannot write {shown}: {error}")),
    })?;
    for line in [
        format!("wrote {shown}, with one node: {id}"),
        "next:".to_owned(),
        "  1. say in it what the node can do, and where the daemon is if that is another machine".to_owned(),
        format!("  2. mediator agent --config {shown}"),
        "  3. mediator nodes    (the node is there)".to_owned(),
        "After a change of the file send the agent SIGHUP: it reads it again, and work goes on.".to_owned(),
    ] {
        out::line(&line)?;
    }
    Ok(Exit::Done)
}

/// Returns an id for a node from a host's name: its first part, in the form of an id.
fn id_of(host: &str) -> String {
    let name = host.split('.').next().unwrap_or_default();
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '-' }).take(64).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    if is_id(name) { name.to_owned() } else { "host-1".to_owned() }
}

fn text(id: &str, url: Option<&str>) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arch = std::env::consts::ARCH;
    let url = match url {
        Some(url) => format!("url = {url:?}\n# token_file = \"agent.token\""),
        None => "# url = \"http://lab:7340\"\n# token_file = \"agent.token\"".to_owned(),
    };
    format!(
        r#"# What this host offers to the lab. docs/agent.md has every key.
# After a change: `kill -HUP` the agent. It reads this file again; work goes on.

# Where the daemon is, and the token for it. On the daemon's own machine neither is needed.
{url}

# Each node works in a folder of its own below this one, named after its id.
# work_dir = "/var/tmp/mediator"

# Variables of the agent's environment: those that a contract may ask for with `pass_env`, and those that every step
# gets and whose values are masked in logs.
# offer_env = ["CROSS_COMPILE"]
# secret_env = ["LAB_PASSWORD"]

[[node]]
id = "{id}"
# label = "left shelf"
# What contracts ask for: `mediator exec --require x=builder,arch={arch} -- uname -a`
capabilities = [{{ capability = "builder", attrs = {{ arch = "{arch}", cores = {cores} }} }}]

# Steps run as this user (the agent must be root).
# run_as = "lab"
# Runs after every user of the node. Nobody gets it before this has ended with 0.
# cleanup = ["./clean.sh"]
# cleanup_timeout_seconds = 300
# Runs at the start and at intervals while the node is idle. When it fails, the node takes no run until it passes.
# check = ["./check.sh"]
# check_interval_seconds = 300

# One more node for each board or instrument at this host.
# [[node]]
# id = "board-1"
# capabilities = [{{ capability = "board", attrs = {{ model = "rpi4", serial = "/dev/ttyUSB0" }} }}]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::config::Config;

    #[test]
    fn a_host_s_name_becomes_an_id() {
        let cases = [
            ("lab-3.example.org", "lab-3"),
            ("Bench_2", "Bench_2"),
            ("-x", "x"),
            ("bürotisch", "b-rotisch"),
            ("", "host-1"),
            ("(none)", "none-"),
            ("...", "host-1"),
        ];
        for (host, id) in cases {
            assert_eq!(id_of(host), id, "{host:?}");
        }
    }

    #[test]
    fn the_file_is_right_also_with_everything_in_it_that_is_left_out() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("agent.toml");
        for url in [None, Some("http://lab:7340")] {
            std::fs::write(&path, text("lab-3", url)).expect("there is room");
            let config = Config::load(&path).expect("it is right");
            assert_eq!((config.nodes[0].id.as_str(), config.url.as_deref()), ("lab-3", url));
        }
        // What is a setting behind its `# `, and needs neither root nor a variable of this host.
        let is_setting = |line: &str| {
            let key = line.split(" = ").next().unwrap_or_default();
            line.starts_with('[')
                || (line.contains(" = ") && !key.contains(' ') && !["run_as", "secret_env"].contains(&key))
        };
        let whole: Vec<String> = text("lab-3", None)
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|line| is_setting(line)).unwrap_or(line).to_owned())
            .collect();
        std::fs::write(&path, whole.join("\n")).expect("there is room");
        let config = Config::load(&path).expect("it is right");
        assert_eq!(config.nodes.len(), 2);
        assert!(config.nodes[0].cleanup.is_some() && config.nodes[0].check.is_some() && config.url.is_some());
    }
}
