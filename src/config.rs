//! Settings.

use std::path::PathBuf;

/// Returns the data folder that is used when none is named: `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/mediator`,
/// else `~/.local/state/mediator`.
pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("STATE_DIRECTORY")
        .or_else(|| set("XDG_STATE_HOME").map(|state| state.join("mediator")))
        .or_else(|| set("HOME").map(|home| home.join(".local/state/mediator")))
        .unwrap_or_else(|| PathBuf::from("mediator-data"))
}
