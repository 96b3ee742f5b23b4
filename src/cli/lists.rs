//! Lists that the daemon gives in pages.

use serde_json::{Value, json};

use super::{Context, Stop, out};
use crate::client::{Error, encode};

/// The daemon's largest page.
pub const PAGE: usize = 500;
/// How many entries are fetched when no number is asked for: more than a person reads, and no surprise for a daemon
/// that keeps a year of runs.
const DEFAULT_LIMIT: usize = 1000;

/// The entries of a list, and where it goes on.
#[derive(Debug)]
pub struct List {
    /// The entries as the daemon sent them.
    pub entries: Vec<Value>,
    /// The cursor of the page behind them.
    pub next: Option<String>,
}

/// Fetches at most `limit` entries of the list `key` at `path`, following its pages.
///
/// When there are more than the default number and none was asked for, that is told on standard error.
pub async fn fetch(
    context: &Context,
    path: &str,
    key: &str,
    filters: &[(&str, Option<String>)],
    limit: Option<usize>,
) -> Result<List, Stop> {
    let wanted = limit.unwrap_or(DEFAULT_LIMIT);
    let query = query(filters);
    let mut entries: Vec<Value> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let size = PAGE.min(wanted - entries.len());
        let mut page = fetch_page(context, path, key, &query, size, next.as_deref()).await?;
        entries.append(&mut page.entries);
        next = page.next;
        if next.is_none() || entries.len() >= wanted {
            break;
        }
    }
    if next.is_some() && limit.is_none() {
        out::note(&format!("there are more: these are {} of them; ask for more with --limit", entries.len()));
    }
    Ok(List { entries, next })
}

/// Makes the part of a query that chooses entries.
pub fn query(filters: &[(&str, Option<String>)]) -> String {
    let chosen = filters.iter().filter_map(|(name, value)| Some(format!("&{name}={}", encode(value.as_ref()?))));
    chosen.collect()
}

/// Fetches one page of at most `size` entries behind `cursor`; `query` is what [`query`] makes.
pub async fn fetch_page(
    context: &Context,
    path: &str,
    key: &str,
    query: &str,
    size: usize,
    cursor: Option<&str>,
) -> Result<List, Stop> {
    let cursor = cursor.map(|cursor| format!("&cursor={}", encode(cursor))).unwrap_or_default();
    let mut document = context.client.get(&format!("{path}?limit={size}{query}{cursor}")).await?.json()?;
    let Value::Array(entries) = document[key].take() else {
        return Err(Error::Garbled(format!("expected a list '{key}'")).into());
    };
    // An empty page that claims to go on would be asked for without end.
    let next = document["next"].as_str().filter(|_| !entries.is_empty()).map(str::to_owned);
    Ok(List { entries, next })
}

impl List {
    /// Writes the list as the daemon would: `{KEY: [..], "next": cursor or null}`.
    pub fn print_json(self, key: &str) -> Result<(), Stop> {
        out::json(&json!({ key: self.entries, "next": self.next }))?;
        Ok(())
    }

    /// Returns the entries as `T`.
    pub fn read<T: serde::de::DeserializeOwned>(self) -> Result<Vec<T>, Stop> {
        let read = |entry| serde_json::from_value(entry).map_err(|error| Error::Garbled(error.to_string()).into());
        self.entries.into_iter().map(read).collect()
    }
}
