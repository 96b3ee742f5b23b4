//! Tokens: who calls. The database keeps hashes; the operator's token is in a file that only its owner can read.

use rusqlite::{Connection, named_params};
use sha2::{Digest as _, Sha256};

use super::Error;
use super::folder::Folder;
use crate::clock::Ms;
use crate::failpoint;
use crate::random;

/// Who a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name; keys and runs belong to it, not to the token.
    pub name: String,
    /// Whether it may do what only operators may.
    pub operator: bool,
}

/// The tokens that are in force.
#[derive(Debug, Default)]
pub struct Tokens(Vec<Stored>);

#[derive(Debug)]
struct Stored {
    id: String,
    hash: [u8; 32],
    principal: Principal,
}

impl Tokens {
    /// Returns whose token `text` is.
    pub fn check(&self, text: &str) -> Option<&Principal> {
        // Found by its public part; what is compared then are hashes, so that time tells nothing about the secret.
        let (id, _) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let stored = self.0.iter().find(|stored| stored.id == id)?;
        (hash(text) == stored.hash).then_some(&stored.principal)
    }
}

/// What every token begins with, so that scanners of public code recognise one.
const PREFIX: &str = "mdt_";

/// The operator's token, in the data folder.
const FILE: &str = "operator.token";

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Reads the tokens in force; makes the operator's anew, and revokes the old one, when its file is missing.
///
/// # Errors
/// The database's, or a sentence about the file.
pub(super) fn load(conn: &Connection, folder: &Folder, now: Ms) -> Result<Tokens, Error> {
    let path = folder.path().join(FILE);
    let present = std::fs::read_to_string(&path)
        .is_ok_and(|text| read(conn).is_ok_and(|tokens| tokens.check(text.trim()).is_some()));
    if !present {
        let id = random::text(10);
        let text = format!("{PREFIX}{id}_{}", random::text(52));
        conn.execute("UPDATE tokens SET revoked_at = ?1 WHERE principal = 'operator' AND revoked_at IS NULL", [now])?;
        conn.execute(
            "INSERT INTO tokens (token_id, principal, role, hash, created_at)
             VALUES (:id, 'operator', 'operator', :hash, :now)",
            named_params! { ":id": id, ":hash": hash(&text), ":now": now },
        )?;
        failpoint!("token.after_row");
        folder
            .write_private(FILE, &format!("{text}\n"))
            .map_err(|error| Error::Disk(format!("writing {}: {error}", path.display())))?;
        failpoint!("token.after_file");
    }
    read(conn)
}

fn read(conn: &Connection) -> Result<Tokens, Error> {
    let mut statement = conn.prepare("SELECT token_id, hash, principal, role FROM tokens WHERE revoked_at IS NULL")?;
    let rows = statement.query_map([], |row| {
        Ok(Stored {
            id: row.get(0)?,
            hash: row.get(1)?,
            principal: Principal { name: row.get(2)?, operator: row.get::<_, String>(3)? == "operator" },
        })
    })?;
    Ok(Tokens(rows.collect::<Result<_, _>>()?))
}
