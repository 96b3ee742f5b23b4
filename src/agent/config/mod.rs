//! The agent's file: TOML, read and checked as a whole before anything starts.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::client::{Client, Token};
use crate::config::default_data_dir;

mod node;

use node::{Around, FileNode};
pub use node::{Attr, Capability, Check, Drain, Errand, NodeConfig};

/// How much of a step's output is kept on this host until the daemon has it: a little more than the daemon's own
/// default limit, so that it is the daemon that cuts and marks.
const DEFAULT_SPOOL_BYTES: u64 = 68 * 1024 * 1024;

/// The agent's own token.
const OWN_TOKEN: &str = "MEDIATOR_TOKEN";

/// The agent's settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The daemon's address, if the file has one.
    pub url: Option<String>,
    /// The token, if the file has one.
    pub token: Option<TokenSource>,
    /// The authorities that may vouch for the daemon, PEM, if the file names them.
    pub ca_file: Option<PathBuf>,
    /// The nodes, at least one.
    pub nodes: Vec<NodeConfig>,
}

/// Where the file says that the token is.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// In the file itself.
    Text(String),
    /// In a file of its own, read again whenever the daemon refuses the token.
    File(PathBuf),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Why the file is not accepted: the file, the place in it where that is known, and what is wrong.
#[derive(Debug)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    work_dir: Option<PathBuf>,
    #[serde(default)]
    offer_env: Vec<String>,
    #[serde(default)]
    secret_env: Vec<String>,
    spool_bytes: Option<u64>,
    #[serde(default)]
    node: Vec<FileNode>,
}

impl Config {
    /// Reads and checks the file at `path`. Relative paths in it are taken from the folder that it is in.
    ///
    /// # Errors
    /// [`Invalid`], naming the key and, for what the grammar refuses, the line.
    pub fn load(path: &Path) -> Result<Self, Invalid> {
        let invalid = |what: String| Invalid(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        let absolute = std::path::absolute(path).map_err(|error| invalid(error.to_string()))?;
        let own = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::parse(&text, absolute.parent().unwrap_or(Path::new("/")), &own).map_err(invalid)
    }

    /// Checks a file's text; `folder` is where relative paths start, and must be absolute; `own` is the agent's
    /// environment.
    fn parse(text: &str, folder: &Path, own: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        if let Some(url) = &file.url {
            Client::new(url, Token::new("")).map_err(|error| format!("url: {error}"))?;
        }
        let token = match (file.token, file.token_file) {
            (Some(_), Some(_)) => return Err("token and token_file: give one of them".into()),
            (Some(text), None) if text.trim().is_empty() => return Err("token: is empty".into()),
            (Some(text), None) => Some(TokenSource::Text(text)),
            (None, path) => path.map(|path| TokenSource::File(folder.join(path))),
        };
        let own_token = own(OWN_TOKEN).or_else(|| match &token {
            Some(TokenSource::Text(text)) => Some(text.clone()),
            Some(TokenSource::File(path)) => std::fs::read_to_string(path).ok(),
            None => None,
        });
        let variables = Variables { own, own_token: own_token.as_deref().map_or("", str::trim) };
        for (key, names) in [("offer_env", &file.offer_env), ("secret_env", &file.secret_env)] {
            names.iter().try_for_each(|name| variables.may_pass(name)).map_err(|what| format!("{key}: {what}"))?;
        }
        if file.spool_bytes == Some(0) {
            return Err("spool_bytes: must be above 0".into());
        }
        let base = file.work_dir.map(|base| folder.join(base));
        let base = || base.clone().unwrap_or_else(|| default_data_dir().join("agent"));
        let around = Around {
            folder,
            base: &base,
            variables,
            offer_env: &file.offer_env,
            secret_env: &file.secret_env,
            spool_bytes: file.spool_bytes.unwrap_or(DEFAULT_SPOOL_BYTES),
        };
        let mut nodes: Vec<NodeConfig> = Vec::new();
        for node in file.node {
            let node = node.check(&around)?;
            if nodes.iter().any(|other| other.id == node.id) {
                return Err(format!("node: two nodes have the id {}", node.id));
            }
            if let Some(other) = nodes.iter().find(|other| other.work_dir == node.work_dir) {
                let folder = node.work_dir.display();
                return Err(format!("node: {} and {} have the same work_dir, {folder}", other.id, node.id));
            }
            nodes.push(node);
        }
        if nodes.is_empty() {
            return Err("node: there is none; describe each with a [[node]] section".into());
        }
        Ok(Self { url: file.url, token, ca_file: file.ca_file.map(|path| folder.join(path)), nodes })
    }

    /// Makes sure that the steps of all nodes can run on this host.
    ///
    /// # Errors
    /// What is wrong with one.
    pub fn prepare(&self) -> Result<(), String> {
        self.nodes.iter().try_for_each(NodeConfig::prepare)
    }
}

/// The agent's own environment, and what of it steps may get.
#[derive(Clone, Copy)]
struct Variables<'a> {
    own: &'a dyn Fn(&str) -> Option<String>,
    /// Empty if it is not known.
    own_token: &'a str,
}

impl Variables<'_> {
    /// Checks the name of a variable that steps are to get.
    fn may_pass(&self, name: &str) -> Result<(), String> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("{name:?} is not the name of a variable"));
        }
        if name == OWN_TOKEN {
            return Err(format!("{OWN_TOKEN} is the agent's own and is never passed to a step"));
        }
        if !self.own_token.is_empty() && (self.own)(name).is_some_and(|value| value.trim() == self.own_token) {
            return Err(format!("{name} holds the agent's own token, which is never passed to a step"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        let own = |name: &str| match name {
            "PASSWORD" => Some("hunter22".to_owned()),
            "ALIAS" | "MEDIATOR_TOKEN" => Some("t0ken-text".to_owned()),
            _ => None,
        };
        Config::parse(text, Path::new("/etc/lab"), &own)
    }

    fn refused(text: &str, expect: &[&str]) {
        let error = check(text).expect_err("this file is wrong");
        for part in expect {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = r#"
            url = "http://lab:7340"
            token_file = "token"
            work_dir = "/srv/work"
            offer_env = ["CROSS_COMPILE"]
            [[node]]
            id = "board-1"
            capabilities = [{ capability = "board", attrs = { model = "rpi4", slots = 2, hot = true } }]
            [[node]]
            id = "host"
            label = "the build host"
            work_dir = "./build/../host"
            drain = "at-boundary"
            reason = "a new disk"
        "#;
        let config = check(text).expect("it is right");
        assert_eq!(config.nodes[0].work_dir, Path::new("/srv/work/board-1"));
        assert_eq!(config.nodes[1].work_dir, Path::new("/etc/lab/host"));
        assert_eq!(config.nodes[1].drain, Drain::AtBoundary);
        assert!(matches!(&config.token, Some(TokenSource::File(path)) if path == Path::new("/etc/lab/token")));
        let sent = serde_json::to_value(&config.nodes[0].capabilities).expect("it is plain data");
        assert_eq!(
            sent,
            serde_json::json!([{"capability": "board", "attrs": {"model": "rpi4", "slots": 2, "hot": true}}])
        );
    }

    #[test]
    fn the_example_is_right() {
        let config = check(include_str!("../../../examples/agent.toml")).expect("it is right");
        assert_eq!(config.nodes.len(), 3);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        refused("url = \"http://a:1\"\nulr = 3\n", &["line 2", "ulr"]);
        refused("[[node]]\nid = \"a\"\ncapability = []\n", &["line 3", "capability"]);
        refused("[[node]]\nid = \"a\"\ncapabilities = [{ capability = \"b\", attr = {} }]\n", &["line 3", "attr"]);
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_named_with_its_line() {
        let text = "[[node]]\nid = \"a\"\ncapabilities = [{ capability = \"b\", attrs = { x = 1.5 } }]\n";
        refused(text, &["line 3", "a string, an integer or a boolean"]);
        refused("[[node]]\nid = \"a\"\ndrain = \"now\"\n", &["line 3", "at-boundary"]);
    }

    #[test]
    fn nodes_share_neither_id_nor_work_folder() {
        refused("[[node]]\nid = \"a\"\n[[node]]\nid = \"a\"\n", &["two nodes have the id a"]);
        refused(
            "[[node]]\nid = \"a\"\nwork_dir = \"/w/x\"\n[[node]]\nid = \"b\"\nwork_dir = \"/w/./y/../x\"\n",
            &["a and b have the same work_dir"],
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        refused("", &["there is none"]);
        refused("token = \"t\"\ntoken_file = \"f\"\n[[node]]\nid = \"a\"\n", &["one of them"]);
        refused("[[node]]\nid = \"-a\"\n", &["node.id"]);
        refused("[[node]]\nid = \"a\"\nreason = \"x\"\n", &["goes with drain"]);
        for key in ["offer_env", "secret_env"] {
            for name in ["MEDIATOR_TOKEN", "ALIAS"] {
                refused(&format!("{key} = [{name:?}]\n[[node]]\nid = \"a\"\n"), &[key, name, "never passed"]);
            }
        }
        refused("[[node]]\nid = \"a\"\nsecret_env = [\"ALIAS\"]\n", &["node a: secret_env: ALIAS", "never passed"]);
    }

    #[test]
    fn what_the_daemon_would_refuse_is_refused_here() {
        let node = |more: &str| format!("[[node]]\nid = \"a\"\n{more}\n");
        let long = "x".repeat(1025);
        refused(&node(&format!("label = {long:?}")), &["node a: /label: longer than 1024 bytes"]);
        refused(&node(&format!("drain = \"graceful\"\nreason = {long:?}")), &["node a: /reason: longer"]);
        refused(&node("label = \"a\\u0007b\""), &["node a: ", "control character"]);
        let big = "capabilities = [{ capability = \"b\", attrs = { x = 9007199254740993 } }]";
        refused(&node(big), &["node a: /capabilities/0/attrs/x"]);
    }

    #[test]
    fn a_node_has_commands_of_its_owner() {
        let text = r#"
            secret_env = ["PASSWORD"]
            [[node]]
            id = "a"
            cleanup = ["./clean", "./all"]
            cleanup_timeout_seconds = 10
            check = ["true"]
            check_interval_seconds = 0.5
        "#;
        let node = check(text).expect("it is right").nodes.remove(0);
        let cleanup = node.cleanup.expect("it has one");
        assert_eq!(cleanup.argv, ["/etc/lab/./clean", "./all"], "the program's path starts at the file");
        assert_eq!(cleanup.timeout_ms, 10_000);
        let check = node.check.expect("it has one");
        assert_eq!((check.errand.argv, check.errand.timeout_ms, check.interval_ms), (vec!["true".into()], 60_000, 500));
        assert_eq!(node.secrets.variables(), [("PASSWORD".to_owned(), "hunter22".to_owned())]);
    }

    #[test]
    fn a_command_of_the_owner_s_that_makes_no_sense_is_refused() {
        let node = |more: &str| format!("[[node]]\nid = \"a\"\n{more}\n");
        refused(&node("cleanup = []"), &["node a: cleanup: there is no command"]);
        refused(&node("check = [\"\"]"), &["node a: check: the first word is empty"]);
        refused(&node("cleanup = \"true\""), &["line 3", "cleanup"]);
        refused(&node("cleanup_timeout_seconds = 3"), &["cleanup_timeout_seconds: goes with cleanup"]);
        refused(&node("check_interval_seconds = 3"), &["check_interval_seconds: goes with check"]);
        refused(&node("check = [\"true\"]\ncheck_timeout_seconds = 0"), &["check_timeout_seconds: must be above 0"]);
        refused(&node("run_as = \"no-such-user\""), &["node a: run_as: this host has no user"]);
        refused(&node("secret_env = [\"MISSING\"]"), &["node a: secret_env: MISSING is not set"]);
        refused(&node("secret_env = [\"A=B\"]"), &["node a: secret_env:", "not the name of a variable"]);
    }
}
