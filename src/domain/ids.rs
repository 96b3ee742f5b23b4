//! Identifiers: newtypes, so that a node's id cannot be taken for a run's.

use std::fmt;

/// Says whether `text` matches `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`, the form of every id on the wire.
pub fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=64).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
}

/// What an id must look like, for error messages.
pub const ID_FORM: &str = "an id: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit";

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes `text` if it has the form of an id ([`is_id`]).
            pub fn new(text: impl Into<String>) -> Option<Self> {
                let text = text.into();
                is_id(&text).then_some(Self(text))
            }

            /// Takes a text that was checked when it was stored.
            pub fn from_stored(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// A run: chosen by the client, or made by the daemon at submission.
    RunId
);
id!(
    /// A node, as its agent or `mediator node add` names it.
    NodeId
);
