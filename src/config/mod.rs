//! Settings: defaults, then a TOML file, then `MEDIATOR_*` variables, then flags; the later beats the earlier.
//! Everything is checked once, before anything starts.

pub mod login;
mod webhook;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use webhook::{EVENTS, Secret, Webhook};

/// How much a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    /// Every commit is synced before it is answered: what was answered survives a power cut.
    Full,
    /// Commits survive a kill of the process; a power cut may take the last ones.
    Normal,
}

/// The daemon's settings. Lifetimes and limits in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `lease.ttl_seconds` (600): ten minutes let an agent's host reboot without losing the work's nodes to others.
    pub lease_ttl_ms: i64,
    /// `lease.renew_seconds` (20): how often agents are told to advertise.
    pub lease_renew_ms: i64,
    /// `lease.max_per_run` (16): the most different nodes one run may hold.
    pub lease_max_per_run: usize,
    /// `hold.ttl_seconds` (120): how long a holder may be silent; short, since a dead client keeps nodes that long.
    pub hold_ttl_ms: i64,
    /// `advert.ttl_seconds` (60): three missed adverts make a node silent.
    pub advert_ttl_ms: i64,
    /// `node.forget_days` (7): how long an absent node still counts as known, so that runs wait for it.
    pub node_forget_ms: i64,
    /// `run.limit_seconds` (86400): a run without a limit of its own ends after a day.
    pub run_limit_ms: i64,
    /// `ask.timeout_seconds` (86400): a question without a limit of its own is open for a day.
    pub ask_timeout_ms: i64,
    /// `idempotency.retention_seconds` (604800): how long a key's answer is kept: a week outlasts a weekend's outage.
    pub idempotency_retention_ms: i64,
    /// `idempotency.tombstone_days` (400): how long a forgotten key still refuses a late retry.
    pub idempotency_tombstone_ms: i64,
    /// `idempotency.required` (false): whether a request that changes something must carry a key.
    pub idempotency_required: bool,
    /// `history.retention_days` (365): how long a run is kept after its record was sealed.
    pub history_retention_ms: i64,
    /// `events.retention_days` (30): how long an event, and a notification that was delivered, is kept.
    pub events_retention_ms: i64,
    /// `limits.queued_per_principal` (0, none).
    pub queued_per_principal: i64,
    /// `storage.synchronous` (full).
    pub synchronous: Synchronous,
    /// `storage.network_filesystem` (false): whether a data folder on a network file system is accepted.
    pub network_filesystem: bool,
    /// `http.max_body_bytes` (262144): the most a JSON body may have.
    pub max_body_bytes: usize,
    /// `http.hosts` (none): names besides the loopback ones under which the daemon may be called.
    pub hosts: Vec<String>,
    /// `tls.cert` and `tls.key` (none): the daemon's certificate chain and key, PEM; both or none.
    pub tls_cert: Option<PathBuf>,
    /// See `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// `log.max_bytes` (67108864): the most that is kept of one attempt's output.
    pub log_max_bytes: u64,
    /// `artifact.max_bytes` (268435456): the most one artifact may have.
    pub artifact_max_bytes: u64,
    /// `[[webhook]]` (none): who is told of events.
    pub webhooks: Vec<Webhook>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl_ms: 600_000,
            lease_renew_ms: 20_000,
            lease_max_per_run: 16,
            hold_ttl_ms: 120_000,
            advert_ttl_ms: 60_000,
            node_forget_ms: 7 * 86_400_000,
            run_limit_ms: 86_400_000,
            ask_timeout_ms: 86_400_000,
            idempotency_retention_ms: 604_800_000,
            idempotency_tombstone_ms: 400 * 86_400_000,
            idempotency_required: false,
            history_retention_ms: 365 * 86_400_000,
            events_retention_ms: 30 * 86_400_000,
            queued_per_principal: 0,
            synchronous: Synchronous::Full,
            network_filesystem: false,
            max_body_bytes: 262_144,
            hosts: Vec::new(),
            tls_cert: None,
            tls_key: None,
            log_max_bytes: 64 << 20,
            artifact_max_bytes: 256 << 20,
            webhooks: Vec::new(),
        }
    }
}

impl Settings {
    /// Returns how often agents are to advertise, in milliseconds: at most a third of both lifetimes, so that two
    /// adverts may be lost.
    pub fn renew_ms(&self) -> i64 {
        self.lease_renew_ms.min(self.lease_ttl_ms / 3).min(self.advert_ttl_ms / 3).max(1)
    }
}

/// A setting that makes no sense: which, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// One setting: its name in the file, and how its text is taken.
struct Setting {
    name: &'static str,
    take: fn(&mut Settings, &toml::Value) -> Result<(), String>,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "lease.ttl_seconds", take: |s, v| seconds(v).map(|v| s.lease_ttl_ms = v) },
    Setting { name: "lease.renew_seconds", take: |s, v| seconds(v).map(|v| s.lease_renew_ms = v) },
    Setting { name: "lease.max_per_run", take: |s, v| whole(v, 1, 1024).map(|v| s.lease_max_per_run = v as usize) },
    Setting { name: "hold.ttl_seconds", take: |s, v| seconds(v).map(|v| s.hold_ttl_ms = v) },
    Setting { name: "advert.ttl_seconds", take: |s, v| seconds(v).map(|v| s.advert_ttl_ms = v) },
    Setting { name: "node.forget_days", take: |s, v| days(v).map(|v| s.node_forget_ms = v) },
    Setting { name: "run.limit_seconds", take: |s, v| seconds(v).map(|v| s.run_limit_ms = v) },
    Setting { name: "ask.timeout_seconds", take: |s, v| seconds(v).map(|v| s.ask_timeout_ms = v) },
    Setting { name: "idempotency.retention_seconds", take: |s, v| seconds(v).map(|v| s.idempotency_retention_ms = v) },
    Setting { name: "idempotency.tombstone_days", take: |s, v| days(v).map(|v| s.idempotency_tombstone_ms = v) },
    Setting { name: "idempotency.required", take: |s, v| boolean(v).map(|v| s.idempotency_required = v) },
    Setting { name: "history.retention_days", take: |s, v| days(v).map(|v| s.history_retention_ms = v) },
    Setting { name: "events.retention_days", take: |s, v| days(v).map(|v| s.events_retention_ms = v) },
    Setting {
        name: "limits.queued_per_principal",
        take: |s, v| whole(v, 0, i64::MAX).map(|v| s.queued_per_principal = v),
    },
    Setting { name: "storage.synchronous", take: |s, v| synchronous(v).map(|v| s.synchronous = v) },
    Setting { name: "storage.network_filesystem", take: |s, v| boolean(v).map(|v| s.network_filesystem = v) },
    Setting {
        name: "http.max_body_bytes",
        take: |s, v| whole(v, 1024, 1 << 30).map(|v| s.max_body_bytes = v as usize),
    },
    Setting { name: "http.hosts", take: |s, v| words(v).map(|v| s.hosts = v) },
    Setting { name: "tls.cert", take: |s, v| text_of(v).map(|v| s.tls_cert = Some(v.into())) },
    Setting { name: "tls.key", take: |s, v| text_of(v).map(|v| s.tls_key = Some(v.into())) },
    Setting { name: "log.max_bytes", take: |s, v| whole(v, 1, i64::MAX).map(|v| s.log_max_bytes = v as u64) },
    Setting { name: "artifact.max_bytes", take: |s, v| whole(v, 1, i64::MAX).map(|v| s.artifact_max_bytes = v as u64) },
];

/// Where a daemon keeps its data and listens, with its settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder.
    pub data: PathBuf,
    /// The address to listen on.
    pub listen: String,
    /// Everything else.
    pub settings: Settings,
}

/// What the command line gives; it beats the file and the variables.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--data`.
    pub data: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--tls-cert`.
    pub tls_cert: Option<PathBuf>,
    /// `--tls-key`.
    pub tls_key: Option<PathBuf>,
}

impl Config {
    /// Puts the configuration together. `variable` looks up an environment variable.
    ///
    /// # Errors
    /// The first unknown key or senseless value, with the file or variable it came from.
    pub fn load(flags: Flags, variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut settings = Settings::default();
        let (mut data, mut listen) = (None, None);
        if let Some(file) = &flags.file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| ConfigError(format!("cannot read {}: {error}", file.display())))?;
            let table: toml::Table =
                text.parse().map_err(|error| ConfigError(format!("{}: {error}", file.display())))?;
            for (name, value) in flatten(table) {
                let taken = match name.as_str() {
                    "data" => text_of(&value).map(|text| data = Some(PathBuf::from(text))),
                    "listen" => text_of(&value).map(|text| listen = Some(text)),
                    "webhook" => webhook::read(&value).map(|webhooks| settings.webhooks = webhooks),
                    name => take(&mut settings, name, &value),
                };
                taken.map_err(|what| ConfigError(format!("{}: {name}: {what}", file.display())))?;
            }
        }
        for setting in SETTINGS {
            let name = format!("MEDIATOR_{}", setting.name.replace('.', "_").to_uppercase());
            if let Some(text) = variable(&name).filter(|text| !text.is_empty()) {
                // A variable has no type: what reads as TOML is that, everything else is a text.
                let value = format!("v = {text}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v"));
                let value = value.unwrap_or(toml::Value::String(text));
                (setting.take)(&mut settings, &value).map_err(|what| ConfigError(format!("{name}: {what}")))?;
            }
        }
        settings.tls_cert = flags.tls_cert.or(settings.tls_cert);
        settings.tls_key = flags.tls_key.or(settings.tls_key);
        if settings.tls_cert.is_some() != settings.tls_key.is_some() {
            return Err(ConfigError("tls.cert and tls.key: give both, or none".into()));
        }
        let set = |name| variable(name).filter(|text| !text.is_empty());
        let data = flags.data.or_else(|| set("MEDIATOR_DATA").map(PathBuf::from)).or(data);
        let listen = flags.listen.or_else(|| set("MEDIATOR_LISTEN")).or(listen);
        Ok(Self {
            data: data.unwrap_or_else(default_data_dir),
            listen: listen.unwrap_or_else(|| "127.0.0.1:7340".to_owned()),
            settings,
        })
    }
}

/// Returns the data folder when none is given: `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/mediator`, else
/// `~/.local/state/mediator`.
pub fn default_data_dir() -> PathBuf {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("STATE_DIRECTORY")
        .or_else(|| folder("XDG_STATE_HOME").map(|state| state.join("mediator")))
        .unwrap_or_else(|| folder("HOME").unwrap_or_else(|| Path::new("/").into()).join(".local/state/mediator"))
}

fn take(settings: &mut Settings, name: &str, value: &toml::Value) -> Result<(), String> {
    match SETTINGS.iter().find(|setting| setting.name == name) {
        Some(setting) => (setting.take)(settings, value),
        None => Err("no such setting".to_owned()),
    }
}

/// Turns `[lease] ttl_seconds = 5` into `lease.ttl_seconds`.
fn flatten(table: toml::Table) -> Vec<(String, toml::Value)> {
    let mut flat = Vec::new();
    for (section, value) in table {
        match value {
            toml::Value::Table(inner) => {
                flat.extend(inner.into_iter().map(|(name, value)| (format!("{section}.{name}"), value)));
            }
            value => flat.push((section, value)),
        }
    }
    flat
}

fn number(value: &toml::Value) -> Result<f64, String> {
    match value {
        #[allow(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
        toml::Value::Integer(number) => Ok(*number as f64),
        toml::Value::Float(number) => Ok(*number),
        other => Err(format!("expected a number, found {other}")),
    }
}

fn seconds(value: &toml::Value) -> Result<i64, String> {
    let seconds = number(value)?;
    // At least a millisecond: a lifetime of zero would be an endless lease by accident. At most a century.
    if !(0.001..=3_155_760_000.0).contains(&seconds) {
        return Err(format!("expected seconds above 0, found {seconds}"));
    }
    #[allow(clippy::cast_possible_truncation, reason = "checked above")]
    let ms = (seconds * 1000.0).round() as i64;
    Ok(ms)
}

fn days(value: &toml::Value) -> Result<i64, String> {
    let days = number(value)?;
    if !(0.00001..=36525.0).contains(&days) {
        return Err(format!("expected days above 0, found {days}"));
    }
    #[allow(clippy::cast_possible_truncation, reason = "checked above")]
    let ms = (days * 86_400_000.0).round() as i64;
    Ok(ms)
}

fn whole(value: &toml::Value, least: i64, most: i64) -> Result<i64, String> {
    match value {
        toml::Value::Integer(number) if (least..=most).contains(number) => Ok(*number),
        other if most == i64::MAX => Err(format!("expected an integer of at least {least}, found {other}")),
        other => Err(format!("expected an integer from {least} to {most}, found {other}")),
    }
}

fn boolean(value: &toml::Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("expected true or false, found {value}"))
}

fn text_of(value: &toml::Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("expected a text, found {value}"))
}

fn words(value: &toml::Value) -> Result<Vec<String>, String> {
    match value {
        toml::Value::Array(list) => list.iter().map(text_of).collect(),
        toml::Value::String(text) => {
            Ok(text.split(',').map(|word| word.trim().to_owned()).filter(|w| !w.is_empty()).collect())
        }
        other => Err(format!("expected a list of names, found {other}")),
    }
}

fn synchronous(value: &toml::Value) -> Result<Synchronous, String> {
    match value.as_str() {
        Some("full") => Ok(Synchronous::Full),
        Some("normal") => Ok(Synchronous::Normal),
        _ => Err(format!("expected \"full\" or \"normal\", found {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mediator.toml");
        std::fs::write(&path, file).unwrap();
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let variable = |name: &str| variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
        Config::load(Flags { file: Some(path), ..Flags::default() }, variable)
    }

    #[test]
    fn the_later_source_beats_the_earlier() {
        let config =
            load("[lease]\nttl_seconds = 5\nmax_per_run = 3", &[("MEDIATOR_LEASE_TTL_SECONDS", "0.5")]).unwrap();
        assert_eq!((config.settings.lease_ttl_ms, config.settings.lease_max_per_run), (500, 3));
        assert_eq!(config.settings.renew_ms(), 166, "a third of the lease");
        let config = load("listen = \"a:1\"", &[("MEDIATOR_HTTP_HOSTS", "lab.example, lab2")]).unwrap();
        assert_eq!((config.listen.as_str(), config.settings.hosts.len()), ("a:1", 2));
    }

    #[test]
    fn unknown_keys_and_senseless_values_are_errors_that_name_their_place() {
        for (file, variables, wanted) in [
            ("[lease]\nttl = 5", vec![], "lease.ttl: no such setting"),
            ("[lease]\nttl_seconds = 0", vec![], "lease.ttl_seconds: expected seconds above 0"),
            ("[storage]\nsynchronous = \"off\"", vec![], "storage.synchronous"),
            ("", vec![("MEDIATOR_LEASE_MAX_PER_RUN", "many")], "MEDIATOR_LEASE_MAX_PER_RUN: expected an integer"),
            ("[lease\n", vec![], "mediator.toml"),
            ("[tls]\ncert = \"c.pem\"", vec![], "tls.cert and tls.key: give both"),
        ] {
            let error = load(file, &variables).unwrap_err();
            assert!(error.0.contains(wanted), "{error}");
        }
        assert!(load("", &[("MEDIATOR_SOMETHING_ELSE", "x")]).is_ok(), "unknown variables are no errors");
    }
}
