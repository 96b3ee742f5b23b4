//! The agent's file: TOML, read and checked as a whole before anything starts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::client::{Client, Token};
use crate::config::default_data_dir;
use crate::domain::ids::{ID_FORM, is_id};

/// How much of a step's output is kept on this host until the daemon has it: a little more than the daemon's own
/// default limit, so that it is the daemon that cuts and marks.
const DEFAULT_SPOOL_BYTES: u64 = 68 * 1024 * 1024;

/// The agent's settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The daemon's address, if the file has one.
    pub url: Option<String>,
    /// The token, if the file has one.
    pub token: Option<TokenSource>,
    /// Names that a step's `pass_env` may pass through from the agent's environment.
    pub offer_env: Vec<String>,
    /// How much of a step's output is kept on this host, in bytes.
    pub spool_bytes: u64,
    /// The nodes, at least one.
    pub nodes: Vec<NodeConfig>,
}

/// Where the file says that the token is.
#[derive(Clone)]
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

/// One node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its id.
    pub id: String,
    /// What people call it; may be empty.
    pub label: String,
    /// Where its steps run: absolute, and no other node's.
    pub work_dir: PathBuf,
    /// What it offers.
    pub capabilities: Vec<Capability>,
    /// The owner's side of draining: `""`, `graceful` or `at-boundary`.
    pub drain: String,
    /// Why.
    pub reason: String,
}

/// One thing that a node can do.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Capability {
    /// Its name, as a contract's `requires` says it.
    pub capability: String,
    /// What is special about it.
    #[serde(default)]
    pub attrs: BTreeMap<String, Attr>,
}

/// The value of an attribute.
#[derive(Clone, Debug, Serialize, PartialEq)]
#[serde(untagged)]
pub enum Attr {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A boolean.
    Flag(bool),
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
    work_dir: Option<PathBuf>,
    #[serde(default)]
    offer_env: Vec<String>,
    spool_bytes: Option<u64>,
    #[serde(default)]
    node: Vec<FileNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    id: String,
    #[serde(default)]
    label: String,
    work_dir: Option<PathBuf>,
    #[serde(default)]
    capabilities: Vec<Capability>,
    drain: Option<DrainMode>,
    #[serde(default)]
    reason: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DrainMode {
    Graceful,
    AtBoundary,
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
        Self::parse(&text, absolute.parent().unwrap_or(Path::new("/"))).map_err(invalid)
    }

    /// Checks a file's text; `folder` is where relative paths start, and must be absolute.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
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
        for name in &file.offer_env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("offer_env: {name:?} is not the name of a variable"));
            }
            if name == "MEDIATOR_TOKEN" {
                return Err("offer_env: MEDIATOR_TOKEN is the agent's own and is never passed to a step".into());
            }
        }
        if file.spool_bytes == Some(0) {
            return Err("spool_bytes: must be above 0".into());
        }
        let base = file.work_dir.map(|base| folder.join(base));
        let base = || base.clone().unwrap_or_else(|| default_data_dir().join("agent"));
        let mut nodes: Vec<NodeConfig> = Vec::new();
        for node in file.node {
            let node = node.check(folder, &base)?;
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
        let spool_bytes = file.spool_bytes.unwrap_or(DEFAULT_SPOOL_BYTES);
        Ok(Self { url: file.url, token, offer_env: file.offer_env, spool_bytes, nodes })
    }
}

impl FileNode {
    fn check(self, folder: &Path, base: &dyn Fn() -> PathBuf) -> Result<NodeConfig, String> {
        if !is_id(&self.id) {
            return Err(format!("node.id: {:?} is not {ID_FORM}", self.id));
        }
        if self.capabilities.iter().any(|entry| entry.capability.is_empty()) {
            return Err(format!("node {}: capability: is empty", self.id));
        }
        if self.capabilities.iter().any(|entry| entry.attrs.keys().any(|key| key.is_empty() || key == "node")) {
            return Err(format!("node {}: attrs: a key is not empty, and `node` is always the node's own id", self.id));
        }
        if self.drain.is_none() && !self.reason.is_empty() {
            return Err(format!("node {}: reason: goes with drain", self.id));
        }
        let drain = match self.drain {
            None => "",
            Some(DrainMode::Graceful) => "graceful",
            Some(DrainMode::AtBoundary) => "at-boundary",
        };
        let work_dir = self.work_dir.map_or_else(|| base().join(&self.id), |own| folder.join(own));
        Ok(NodeConfig {
            work_dir: settled(&work_dir),
            id: self.id,
            label: self.label,
            capabilities: self.capabilities,
            drain: drain.to_owned(),
            reason: self.reason,
        })
    }
}

/// Returns a path by which two names of one folder can be told: without links where the folder exists, else without
/// `.` and `..`.
fn settled(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

impl<'de> Deserialize<'de> for Attr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AttrVisitor;
        impl Visitor<'_> for AttrVisitor {
            type Value = Attr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an integer or a boolean")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Attr, E> {
                Ok(Attr::Text(value.to_owned()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Attr, E> {
                Ok(Attr::Integer(value))
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Attr, E> {
                Ok(Attr::Flag(value))
            }
        }
        // A visitor and not an untagged enum: that would lose the line of a value that is none of these.
        from.deserialize_any(AttrVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/lab"))
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
        assert_eq!(config.nodes[1].drain, "at-boundary");
        assert!(matches!(&config.token, Some(TokenSource::File(path)) if path == Path::new("/etc/lab/token")));
        let sent = serde_json::to_value(&config.nodes[0].capabilities).expect("it is plain data");
        assert_eq!(
            sent,
            serde_json::json!([{"capability": "board", "attrs": {"model": "rpi4", "slots": 2, "hot": true}}])
        );
    }

    #[test]
    fn the_example_is_right() {
        let config = check(include_str!("../../examples/agent.toml")).expect("it is right");
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
        refused("offer_env = [\"MEDIATOR_TOKEN\"]\n[[node]]\nid = \"a\"\n", &["never passed"]);
    }
}
