//! What `mediator login` keeps: where the daemon is, and the token to show it. In the user's own configuration, for the
//! user alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A daemon that the user has logged in to.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Its address.
    pub url: String,
    /// The token.
    pub token: String,
    /// The authorities that vouch for it, if not those that browsers trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl Login {
    /// Returns where it is kept: `$XDG_CONFIG_HOME/mediator/login.toml`, else `~/.config/mediator/login.toml`.
    pub fn path() -> PathBuf {
        let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
        base.unwrap_or_else(|| "/".into()).join("mediator/login.toml")
    }

    /// Reads it, if there is one.
    ///
    /// # Errors
    /// A sentence for people: it cannot be read, others may read it, or it is none.
    pub fn read() -> Result<Option<Self>, String> {
        let path = Self::path();
        let failed = |what: String| format!("cannot use {}: {what} (`mediator login` makes it anew)", path.display());
        let mut file = match File::open(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            other => other.map_err(|error| failed(error.to_string()))?,
        };
        let mode = file.metadata().map_err(|error| failed(error.to_string()))?.mode();
        if mode & 0o077 != 0 {
            return Err(failed("others may read it, and it has a token".into()));
        }
        let mut text = String::new();
        io::Read::read_to_string(&mut file, &mut text).map_err(|error| failed(error.to_string()))?;
        toml::from_str(&text).map(Some).map_err(|error| failed(error.message().to_owned()))
    }

    /// Keeps it: whole, or not at all.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(&self) -> io::Result<PathBuf> {
        let path = Self::path();
        let folder = path.parent().unwrap_or(&path);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let temporary = path.with_extension("toml.new");
        let _ = std::fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(toml::to_string(self).map_err(io::Error::other)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(temporary, &path)?;
        Ok(path)
    }

    /// Forgets it; says whether there was one.
    ///
    /// # Errors
    /// The system's.
    pub fn forget() -> io::Result<bool> {
        match std::fs::remove_file(Self::path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        }
    }
}
