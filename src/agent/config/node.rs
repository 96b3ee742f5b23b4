//! One node's section of the agent's file.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Component, Path, PathBuf};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Variables;
use crate::agent::secrets::Secrets;
use crate::agent::user::{Identity, User};
use crate::clock::Ms;
use crate::domain::contract::attributes;
use crate::domain::field::Field;
use crate::domain::ids::{ID_FORM, is_id};
use crate::domain::{Invalid, json};

/// How many capabilities the daemon takes in an advert.
const MAX_CAPABILITIES: usize = 256;

/// How long a cleanup may take by default, in seconds: time to flash a board anew.
const CLEANUP_TIMEOUT_SECONDS: f64 = 300.0;

/// How often a check runs by default, in seconds.
const CHECK_INTERVAL_SECONDS: f64 = 300.0;

/// How long a check may take by default, in seconds: a step that was granted meanwhile waits for its end.
const CHECK_TIMEOUT_SECONDS: f64 = 60.0;

/// One node, with everything that its steps need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// Its id.
    pub id: String,
    /// What people call it; may be empty.
    pub label: String,
    /// Where its steps run: absolute, and no other node's.
    pub work_dir: PathBuf,
    /// What it offers.
    pub capabilities: Vec<Capability>,
    /// The owner's side of draining.
    pub drain: Drain,
    /// Why.
    pub reason: String,
    /// What cleans it between two users.
    pub cleanup: Option<Errand>,
    /// What tells whether it works.
    pub check: Option<Check>,
    /// Who runs its steps; none: the agent's own user.
    pub run_as: Option<User>,
    /// Names that a step's `pass_env` may pass through from the agent's environment.
    pub offer_env: Vec<String>,
    /// What every step gets, and is masked.
    pub secrets: Secrets,
    /// How much of a step's output is kept on this host, in bytes.
    pub spool_bytes: u64,
}

/// A command of the owner's.
#[derive(Clone, Debug, PartialEq)]
pub struct Errand {
    /// The argument vector.
    pub argv: Vec<String>,
    /// How long it may take.
    pub timeout_ms: Ms,
}

/// A command that tells whether the node works.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The command.
    pub errand: Errand,
    /// The pause between two, while the node is idle.
    pub interval_ms: Ms,
}

/// How a node drains; the strictest is the greatest.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Drain {
    /// It does not.
    #[default]
    #[serde(skip)]
    No,
    /// Its run goes on to its end.
    Graceful,
    /// Its run ends at the next step boundary.
    AtBoundary,
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

/// The section as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileNode {
    id: String,
    #[serde(default)]
    label: String,
    work_dir: Option<PathBuf>,
    #[serde(default)]
    capabilities: Vec<Capability>,
    drain: Option<Drain>,
    #[serde(default)]
    reason: String,
    cleanup: Option<Vec<String>>,
    cleanup_timeout_seconds: Option<f64>,
    check: Option<Vec<String>>,
    check_interval_seconds: Option<f64>,
    check_timeout_seconds: Option<f64>,
    run_as: Option<String>,
    #[serde(default)]
    secret_env: Vec<String>,
}

/// What a section takes from the rest of the file, and from where the file is.
pub(super) struct Around<'a> {
    /// Where relative paths start.
    pub folder: &'a Path,
    /// Where work folders are by default.
    pub base: &'a dyn Fn() -> PathBuf,
    pub variables: Variables<'a>,
    /// What every node offers and gets.
    pub offer_env: &'a [String],
    pub secret_env: &'a [String],
    pub spool_bytes: u64,
}

impl Drain {
    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "",
            Self::Graceful => "graceful",
            Self::AtBoundary => "at-boundary",
        }
    }
}

impl FileNode {
    pub(super) fn check(self, around: &Around<'_>) -> Result<NodeConfig, String> {
        let id = self.id;
        if !is_id(&id) {
            return Err(format!("node.id: {id:?} is not {ID_FORM}"));
        }
        let wrong = |what: String| format!("node {id}: {what}");
        if self.capabilities.iter().any(|entry| entry.capability.is_empty()) {
            return Err(wrong("capability: is empty".into()));
        }
        if self.capabilities.iter().any(|entry| entry.attrs.keys().any(|key| key.is_empty() || key == "node")) {
            return Err(wrong("attrs: a key is not empty, and `node` is always the node's own id".into()));
        }
        as_the_daemon_takes_it(&self.label, &self.reason, &self.capabilities).map_err(wrong)?;
        if self.drain.is_none() && !self.reason.is_empty() {
            return Err(wrong("reason: goes with drain".into()));
        }
        let times = [
            ("cleanup_timeout_seconds", self.cleanup_timeout_seconds, self.cleanup.is_some()),
            ("check_interval_seconds", self.check_interval_seconds, self.check.is_some()),
            ("check_timeout_seconds", self.check_timeout_seconds, self.check.is_some()),
        ];
        for (name, seconds, has_command) in times {
            match seconds {
                Some(_) if !has_command => {
                    let command = name.split('_').next().unwrap_or_default();
                    return Err(wrong(format!("{name}: goes with {command}")));
                }
                Some(seconds) if !seconds.is_finite() || seconds <= 0.0 => {
                    return Err(wrong(format!("{name}: must be above 0")));
                }
                _ => {}
            }
        }
        let errand = |name: &str, argv: Vec<String>, seconds: Option<f64>, default: f64| {
            let argv = words(argv, around.folder).map_err(|what| wrong(format!("{name}: {what}")))?;
            Ok::<_, String>(Errand { argv, timeout_ms: milliseconds(seconds.unwrap_or(default)) })
        };
        let cleanup = self
            .cleanup
            .map(|argv| errand("cleanup", argv, self.cleanup_timeout_seconds, CLEANUP_TIMEOUT_SECONDS))
            .transpose()?;
        let check = self
            .check
            .map(|argv| errand("check", argv, self.check_timeout_seconds, CHECK_TIMEOUT_SECONDS))
            .transpose()?;
        let interval_ms = milliseconds(self.check_interval_seconds.unwrap_or(CHECK_INTERVAL_SECONDS));
        let check = check.map(|errand| Check { errand, interval_ms });
        let run_as = self.run_as.map(|name| User::find(&name)).transpose();
        let run_as = run_as.map_err(|what| wrong(format!("run_as: {what}")))?;
        let names = [around.secret_env, &self.secret_env].concat();
        let secrets = names.iter().try_for_each(|name| around.variables.may_pass(name));
        let secrets = secrets.and_then(|()| Secrets::read(&names, around.variables.own));
        let secrets = secrets.map_err(|what| wrong(format!("secret_env: {what}")))?;
        let work_dir = self.work_dir.map_or_else(|| (around.base)().join(&id), |own| around.folder.join(own));
        Ok(NodeConfig {
            work_dir: settled(&work_dir),
            label: self.label,
            capabilities: self.capabilities,
            drain: self.drain.unwrap_or_default(),
            reason: self.reason,
            cleanup,
            check,
            run_as,
            offer_env: around.offer_env.to_vec(),
            secrets,
            spool_bytes: around.spool_bytes,
            id,
        })
    }
}

/// Checks what goes into adverts by the daemon's own rules: after SIGHUP an advert that is refused would cost the lease of
/// a node at work.
fn as_the_daemon_takes_it(label: &str, reason: &str, capabilities: &[Capability]) -> Result<(), String> {
    let told = json!({"label": label, "reason": reason, "capabilities": capabilities});
    let check = || -> Result<(), Invalid> {
        let told = json::parse(told.to_string().as_bytes())?;
        let fields = Field::root(&told).object()?;
        fields.req("label")?.text()?;
        fields.req("reason")?.text()?;
        for entry in fields.req("capabilities")?.list(0..=MAX_CAPABILITIES)? {
            let entry = entry.object()?;
            entry.req("capability")?.text()?;
            attributes(&entry.req("attrs")?)?;
        }
        Ok(())
    };
    check().map_err(|invalid| invalid.to_string())
}

/// Checks an argument vector. A program with a `/` in its name is found from `folder`, as every path of the file is.
fn words(mut argv: Vec<String>, folder: &Path) -> Result<Vec<String>, String> {
    match argv.first_mut() {
        None => return Err("there is no command".into()),
        Some(program) if program.is_empty() => return Err("the first word is empty".into()),
        Some(program) if program.contains('/') => *program = folder.join(&*program).to_string_lossy().into_owned(),
        Some(_) => {}
    }
    if argv.iter().any(|word| word.contains('\0')) { Err("a word holds a NUL".into()) } else { Ok(argv) }
}

fn milliseconds(seconds: f64) -> Ms {
    // Not 0, which would be no time at all; the cast saturates.
    ((seconds * 1000.0).ceil() as Ms).max(1)
}

impl NodeConfig {
    /// Returns what the step's command has to become.
    pub fn identity(&self) -> Option<&Identity> {
        self.run_as.as_ref()?.identity.as_ref()
    }

    /// Makes the work folder and the folder where the agent keeps what it needs for a step; returns the latter. That is
    /// `.mediator` in the work folder; beside it if the work folder belongs to another user, who could put anything else
    /// in its place for the agent to write to.
    ///
    /// # Errors
    /// The system's.
    pub fn make_state_dir(&self) -> io::Result<PathBuf> {
        std::fs::create_dir_all(&self.work_dir)?;
        let dir = match (self.identity(), self.work_dir.parent(), self.work_dir.file_name()) {
            (Some(_), Some(parent), Some(name)) => parent.join(format!(".mediator-{}", name.to_string_lossy())),
            _ => self.work_dir.join(".mediator"),
        };
        // Open to read, whatever the umask: the step finds MEDIATOR_ASSIGNED there.
        match std::fs::DirBuilder::new().mode(0o755).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(dir),
        }
    }

    /// Gives the work folder to the user that its steps run as, but not what is in it.
    ///
    /// # Errors
    /// The system's.
    pub fn hand_over(&self) -> io::Result<()> {
        let Some(identity) = self.identity() else { return Ok(()) };
        chown(&self.work_dir, Some(identity.uid), Some(identity.gid))
    }

    /// Makes sure that steps can run here, so that a wrong path or user is found now and not at the first step.
    ///
    /// # Errors
    /// What is wrong.
    pub fn prepare(&self) -> Result<(), String> {
        let shown = self.work_dir.display();
        let failed = |error: io::Error| format!("node {}: work_dir: {shown}: {error}", self.id);
        self.make_state_dir().map_err(failed)?;
        let (Some(user), Some(identity)) = (&self.run_as, self.identity()) else { return Ok(()) };
        // Not whether it is theirs: that it becomes when a step begins.
        identity.run(|| std::fs::metadata(&self.work_dir)).map(|_| ()).map_err(|error| {
            format!("node {}: run_as: {} cannot get to its work folder {shown}: {error}", self.id, user.name)
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
