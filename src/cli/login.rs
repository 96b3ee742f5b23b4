//! `mediator login` and `logout`: where the daemon is, kept in the user's own configuration.

use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;

use super::{Exit, Stop, out};
use crate::client::{Client, Error, Token};
use crate::config::login::Login;
use crate::tls::Trust;

/// Flags of `mediator login`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The daemon's address, e.g. https://lab.example:7340
    #[arg(value_name = "URL")]
    url: String,
    /// Read the token from this file (default: $MEDIATOR_TOKEN, else standard input)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file, and no others (default: $MEDIATOR_CA_FILE, else those that browsers trust)
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Tries the address and the token, and keeps them if they are right.
pub async fn login(args: Args) -> Result<Exit, Stop> {
    let usage = |what: String| Stop::new(Exit::Usage, what);
    let ca_file = match args.ca_file.map_or_else(Trust::of_environment, Trust::File) {
        Trust::File(file) => Some(std::path::absolute(&file).map_err(|error| usage(error.to_string()))?),
        _ => None,
    };
    let token = token(args.token_file).map_err(usage)?;
    let trust = ca_file.clone().map_or(Trust::Public, Trust::File);
    let client = Client::trusting(&args.url, Token::new(&token), &trust)?;
    match client.get("/v1/nodes?limit=1").await {
        Ok(_) => {}
        Err(Error::Refused(problem)) => return Err(Stop::new(Exit::Refused, format!("{}: {problem}", client.url()))),
        Err(error) => return Err(error.into()),
    }
    let login = Login { url: client.url().to_owned(), token: token.trim().to_owned(), ca_file };
    let path = login
        .keep()
        .map_err(|error| Stop::new(Exit::Failed, format!("cannot keep it in {}: {error}", Login::path().display())))?;
    out::line(&format!("logged in to {}; kept in {}", client.url(), path.display()))?;
    if client.url().starts_with("http://") && !is_loopback(client.url()) {
        out::note("the address is http://: the token and all output go over the network as they are");
    }
    Ok(Exit::Done)
}

/// Forgets what `login` has kept. The token stays valid.
pub fn logout() -> Result<Exit, Stop> {
    let path = Login::path();
    let forgotten = Login::forget()
        .map_err(|error| Stop::new(Exit::Failed, format!("cannot remove {}: {error}", path.display())))?;
    out::line(if forgotten { "logged out" } else { "you were not logged in" })?;
    Ok(Exit::Done)
}

fn token(file: Option<PathBuf>) -> Result<String, String> {
    let from_environment = std::env::var("MEDIATOR_TOKEN").ok().filter(|token| !token.is_empty());
    let text = match (file, from_environment) {
        (Some(file), _) => {
            std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?
        }
        (None, Some(token)) => token,
        (None, None) => typed().map_err(|error| format!("cannot read the token: {error}"))?,
    };
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err("the token is one word: it is in `operator.token` in the daemon's data folder".into());
    }
    Ok(token.to_owned())
}

/// Reads a line; a terminal does not show it.
fn typed() -> std::io::Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let input = std::io::stdin();
    if !input.is_terminal() {
        let mut text = String::new();
        input.lock().take(4096).read_to_string(&mut text)?;
        return Ok(text);
    }
    eprint!("token: ");
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &hidden)?;
    let mut line = String::new();
    let read = input.read_line(&mut line);
    tcsetattr(&input, OptionalActions::Flush, &shown)?;
    eprintln!();
    read.map(|_| line)
}

fn is_loopback(url: &str) -> bool {
    let host = url.trim_start_matches("http://");
    host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]")
}
