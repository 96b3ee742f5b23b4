//! Receivers of notifications, as the daemon's file names them.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// The events that can be sent.
pub const EVENTS: [&str; 5] = ["run.queued", "run.started", "run.ended", "ask.raised", "node.lost"];

/// One receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// How the outbox speaks of it; unique.
    pub name: String,
    /// Where to post.
    pub url: String,
    /// What signatures are made with.
    pub secret: Secret,
    /// The events it wants.
    pub events: Vec<String>,
}

/// The key of a receiver's signatures: never printed.
#[derive(Clone, PartialEq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Returns the key.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads `whsec_` and base64, as Standard Webhooks writes a secret.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.strip_prefix("whsec_").and_then(|encoded| BASE64_STANDARD.decode(encoded).ok());
        match bytes {
            Some(bytes) if (24..=64).contains(&bytes.len()) => Ok(Self(bytes)),
            _ => Err("expected `whsec_` and the base64 of 24 to 64 random bytes".to_owned()),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Reads the `[[webhook]]` tables.
///
/// # Errors
/// What is wrong, with the number of the table and the key.
pub(super) fn read(value: &toml::Value) -> Result<Vec<Webhook>, String> {
    let tables = value.as_array().ok_or("expected tables: [[webhook]]")?;
    let mut webhooks: Vec<Webhook> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let webhook = table.as_table().ok_or_else(|| "expected a table".to_owned()).and_then(one);
        let webhook = webhook.map_err(|what| format!("number {}: {what}", at + 1))?;
        if webhooks.iter().any(|other| other.name == webhook.name) {
            return Err(format!("number {}: another webhook is called `{}`", at + 1, webhook.name));
        }
        webhooks.push(webhook);
    }
    Ok(webhooks)
}

const KEYS: [&str; 5] = ["name", "url", "secret", "secret_file", "events"];

fn one(table: &toml::Table) -> Result<Webhook, String> {
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(toml::Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("{key}: expected a text, found {other}")),
    };
    if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("{unknown}: no such key; known here: {}", KEYS.join(", ")));
    }
    let name = text("name")?.filter(|name| crate::domain::ids::is_id(name)).ok_or("name: expected an id")?;
    let url = text("url")?.ok_or("url: missing")?;
    let parsed: Option<hyper::Uri> = url.parse().ok();
    if !parsed.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()) {
        return Err(format!("url: `{url}` is no http:// or https:// address"));
    }
    let secret = match (text("secret")?, text("secret_file")?) {
        (Some(secret), None) => secret,
        (None, Some(file)) => {
            std::fs::read_to_string(&file).map_err(|error| format!("secret_file: cannot read {file}: {error}"))?
        }
        _ => return Err("expected one of secret, secret_file".to_owned()),
    };
    let secret = Secret::parse(secret.trim()).map_err(|what| format!("secret: {what}"))?;
    let events = match table.get("events") {
        None => EVENTS.map(str::to_owned).to_vec(),
        Some(toml::Value::Array(list)) => {
            let known = |value: &toml::Value| value.as_str().filter(|event| EVENTS.contains(event)).map(str::to_owned);
            let events: Option<Vec<String>> = list.iter().map(known).collect();
            events.ok_or_else(|| format!("events: expected some of {}", EVENTS.join(", ")))?
        }
        Some(other) => return Err(format!("events: expected a list, found {other}")),
    };
    Ok(Webhook { name, url, secret, events })
}
