//! Settings.

use std::path::PathBuf;

/// Returns the data folder of this machine: `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/mediator`, else
/// `~/.local/state/mediator`.
pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("STATE_DIRECTORY")
        .or_else(|| set("XDG_STATE_HOME").map(|state| state.join("mediator")))
        .unwrap_or_else(|| set("HOME").unwrap_or_else(|| PathBuf::from("/")).join(".local/state/mediator"))
}
