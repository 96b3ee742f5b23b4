//! The agent's way to the daemon: one client for all nodes, pauses between attempts, and one voice for "away" and
//! "back".

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use log::{error, info, warn};

use super::config::{Config, TokenSource};
use crate::client::{Client, Error, Token};
use crate::config::default_data_dir;
use crate::tls::Trust;

/// What the command line says about where the daemon is.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Its address.
    pub url: Option<String>,
    /// The data folder that its address and token are read from.
    pub data: Option<PathBuf>,
}

/// The daemon, as all nodes of one agent see it.
#[derive(Debug)]
pub struct Link {
    url: Option<String>,
    token: Option<TokenSource>,
    ca_file: Option<PathBuf>,
    /// The data folder, if one was named.
    data: Option<PathBuf>,
    client: Mutex<Client>,
    away: AtomicBool,
    unauthorized: AtomicBool,
}

impl Link {
    /// Finds the daemon. Flags beat `MEDIATOR_URL`, `MEDIATOR_TOKEN` and `MEDIATOR_CA_FILE`, these beat the file; what none
    /// tells is as `mediator login` has kept it, else read from the data folder of this machine.
    ///
    /// # Errors
    /// [`Error::Setup`], telling what is missing or makes no sense.
    pub fn new(config: &Config, flags: &Flags) -> Result<Self, Error> {
        let url = flags.url.clone().or_else(|| variable("MEDIATOR_URL")).or_else(|| config.url.clone());
        let data = flags.data.clone().or_else(|| variable("MEDIATOR_DATA").map(PathBuf::from));
        let client = find(url.as_deref(), config.token.as_ref(), config.ca_file.as_deref(), data.as_deref())?;
        Ok(Self {
            url,
            token: config.token.clone(),
            ca_file: config.ca_file.clone(),
            data,
            client: Mutex::new(client),
            away: AtomicBool::new(false),
            unauthorized: AtomicBool::new(false),
        })
    }

    /// Returns the client to use for the next call.
    pub fn client(&self) -> Client {
        self.client.lock().expect("no holder panics").clone()
    }

    /// Says whether the last advert had no answer.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// Takes note of how an advert went, and tells people once when that changes. Adverts alone do this: they are
    /// short, and there is always a next one.
    pub fn note(&self, failure: Option<&Error>) {
        let unauthorized = matches!(failure, Some(Error::Refused(p)) if p.status == StatusCode::UNAUTHORIZED);
        let away = matches!(failure, Some(Error::Unreachable { .. }));
        if unauthorized && !self.unauthorized.swap(true, Ordering::Relaxed) {
            error!("the daemon refuses this agent's token; trying again url={}", self.client().url());
        }
        match failure {
            Some(failure) if away => {
                if !self.away.swap(true, Ordering::Relaxed) {
                    warn!("the daemon is away, trying again until it is back: {failure}");
                }
            }
            _ => {
                if self.away.swap(false, Ordering::Relaxed) {
                    info!("the daemon is back url={}", self.client().url());
                }
            }
        }
        if !unauthorized && !away {
            self.unauthorized.store(false, Ordering::Relaxed);
            return;
        }
        // A daemon that was started again may have another port, and made its token anew. Also without that the client
        // is a new one: of the connections that the old one keeps, each that is dead would cost an advert's limit.
        if let Ok(client) =
            find(self.url.as_deref(), self.token.as_ref(), self.ca_file.as_deref(), self.data.as_deref())
        {
            *self.client.lock().expect("no holder panics") = client;
        }
    }
}

fn find(
    url: Option<&str>,
    token: Option<&TokenSource>,
    ca_file: Option<&Path>,
    named: Option<&Path>,
) -> Result<Client, Error> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| Error::Setup(format!("reading {}: {error}", path.display())))
    };
    let token = match (variable("MEDIATOR_TOKEN"), token) {
        (Some(token), _) => Some(token),
        (None, Some(TokenSource::Text(token))) => Some(token.clone()),
        (None, Some(TokenSource::File(path))) => Some(read(path)?),
        (None, None) => None,
    };
    let trust = match (Trust::of_environment(), ca_file) {
        (Trust::Public, Some(file)) => Trust::File(file.to_owned()),
        (given, _) => given,
    };
    let data = named.map_or_else(default_data_dir, Path::to_owned);
    match (url, token) {
        (Some(url), Some(token)) => Client::trusting(url, Token::new(&token), &trust),
        (None, None) => Client::discover(named),
        (Some(url), None) => Client::trusting(url, Token::new(&read(&data.join("operator.token"))?), &trust),
        (None, Some(token)) => {
            Client::trusting(&read(&data.join("url"))?, Token::new(&token), &Trust::of_folder(&data))
        }
    }
}

/// Returns a variable of the environment; an empty one counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Says whether asking again can help: there was no answer, or one that speaks of the moment and not of the request.
/// A refused token counts too: it may be put right while the work waits.
pub fn is_passing(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::Garbled(_) => true,
        Error::Setup(_) => false,
        Error::Refused(problem) => {
            problem.status.is_server_error()
                || matches!(
                    problem.status,
                    StatusCode::UNAUTHORIZED
                        | StatusCode::FORBIDDEN
                        | StatusCode::REQUEST_TIMEOUT
                        | StatusCode::TOO_MANY_REQUESTS
                        | StatusCode::MISDIRECTED_REQUEST
                )
        }
    }
}

/// Returns the status and code of a refusal.
pub fn refusal(error: &Error) -> Option<(StatusCode, &str)> {
    match error {
        Error::Refused(problem) => Some((problem.status, problem.code.as_str())),
        _ => None,
    }
}

/// Growing pauses between attempts, each a little different so that nodes do not ask in step.
#[derive(Debug, Default)]
pub struct Pause(u32);

impl Pause {
    /// Waits: about 0.2 s at first, about 4 s at last.
    pub async fn wait(&mut self) {
        let base = 200 << self.0.min(4);
        self.0 += 1;
        let jitter = getrandom::u32().unwrap_or(0) % (base / 4);
        tokio::time::sleep(Duration::from_millis(u64::from(base + jitter))).await;
    }

    /// The same, but no longer than `most`.
    pub async fn wait_at_most(&mut self, most: Duration) {
        let _ = tokio::time::timeout(most, self.wait()).await;
    }

    /// Starts again with short pauses.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}
