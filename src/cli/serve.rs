//! `mediator serve`: the daemon. Lock, open, migrate, boot write, lease grace, one wake of the queue, listen.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{Exit, out};
use crate::clock::{Clock, boottime_ms};
use crate::config::{Config, Flags};
use crate::delivery;
use crate::http;
use crate::store::Store;
use crate::store::hub::Topic;
use crate::systemd::Manager;
use crate::tls::{self, Identity};

/// Flags of `mediator serve`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Keep everything in this folder (default: $STATE_DIRECTORY, else $XDG_STATE_HOME/mediator, else
    /// ~/.local/state/mediator)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Listen here (default: 127.0.0.1:7340; port 0 picks a free one)
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Speak TLS, with this certificate chain (PEM); read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Runs the daemon until it is told to stop.
pub fn run(args: &Args) -> ExitCode {
    // Before any file is made: what the daemon keeps is its owner's alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let flags = Flags {
        file: args.config.clone(),
        data: args.data.clone(),
        listen: args.listen.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
    };
    let config = match Config::load(flags, |name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => {
            out::note(&error.to_string());
            return Exit::Usage.into();
        }
    };
    http::raise_descriptor_limit();
    // A panic outside of a request's own handling leaves the daemon in an unknown state: being killed is safe.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            out::note(&format!("cannot start: {error}"));
            return Exit::Failed.into();
        }
    };
    let ended = runtime.block_on(serve(config));
    // Not dropped: that would wait for whoever still reads or copies a file. Being killed is as safe.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(&error.to_string());
            Exit::Failed.into()
        }
    }
}

async fn serve(config: Config) -> Result<(), String> {
    let manager = Manager::of_environment();
    let (stop, stopping) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| format!("cannot watch SIGTERM: {error}"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| format!("cannot watch SIGINT: {error}"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot watch SIGHUP: {error}"))?;
    // Before the folder is touched: a wrong file is no reason to have been up.
    let identity = match (&config.settings.tls_cert, &config.settings.tls_key) {
        (Some(certificate), Some(key)) => Some(Identity::load(certificate, key)?),
        _ => None,
    };
    let store = Store::open(&config.data, config.settings, Clock::system())?;
    store.sweep_records();
    store.sweep_backups();
    // What a kill left behind. A longer backlog is worked off beside the service: nobody waits for it.
    store.seal_owed(SEALS_FIRST).await;
    let listener =
        http::bind(&config.listen).await.map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    let address = listener.local_addr().map_err(|error| format!("cannot tell the address: {error}"))?;
    let scheme = if identity.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    // Who listens on all addresses is found by the commands on this machine on its own.
    let local = match address.ip() {
        ip if !ip.is_unspecified() => url.clone(),
        std::net::IpAddr::V4(_) => format!("{scheme}://127.0.0.1:{}", address.port()),
        std::net::IpAddr::V6(_) => format!("{scheme}://[::1]:{}", address.port()),
    };
    if !address.ip().is_loopback() && identity.is_none() {
        log::warn!("listening beyond this machine without encryption (tls.cert, tls.key) address={address}");
    }
    if let Some(identity) = &identity {
        show_certificate(&store, identity)?;
    }
    store
        .folder()
        .write_private("url", &format!("{local}\n"))
        .map_err(|error| format!("cannot write the daemon's address to {}: {error}", config.data.display()))?;
    {
        let mut stdout = std::io::stdout().lock();
        // Whoever started the daemon may have closed its end: that is no reason not to serve.
        let _ = writeln!(stdout, "listening on {url}").and_then(|()| stdout.flush());
    }
    manager.ready(&format!("serving {url}"));
    let keeper = tokio::spawn(keep_records(store.clone()));
    let watched = tokio::spawn(keep_watched(store.clone(), manager.clone()));
    let delivery = tokio::spawn(delivery::run(store.clone()));
    log::info!("serving url={url} data={:?}", config.data);
    let tls = identity.as_ref().map(Identity::acceptor);
    let serving = http::serve(listener, tls, store.clone(), stopping);
    tokio::pin!(serving);
    let reload = async {
        while hangup.recv().await.is_some() {
            manager.reloading();
            reload(&store, identity.as_deref());
            manager.ready(&format!("serving {url}"));
        }
        std::future::pending::<()>().await;
    };
    let signal = tokio::select! {
        () = &mut serving => "none",
        () = reload => "SIGHUP",
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        ended = keeper => {
            // Being killed is safe, being deaf is not.
            log::error!("the keeper of records ended: ending cause={ended:?}");
            std::process::abort();
        }
        ended = delivery => {
            log::error!("the sender of notifications ended: ending cause={ended:?}");
            std::process::abort();
        }
        ended = watched => {
            log::error!("the watch over the writer ended: ending cause={ended:?}");
            std::process::abort();
        }
    };
    log::info!("stopping signal={signal}");
    manager.stopping("answering what was begun");
    let began = boottime_ms();
    let _ = stop.send(true);
    serving.await;
    close(store).await;
    log::info!("stopped took_ms={}", boottime_ms() - began);
    Ok(())
}

/// Ends the writer, which first does what waits. What takes it longer than [`CLOSE_LIMIT`] is a disk that hangs: ending
/// is as safe then as being killed. Not so when the disk has failed: then the writer ends the process, once that is safe.
async fn close(store: Store) {
    let (send, closed) = tokio::sync::oneshot::channel();
    let own = store.clone();
    // A thread of its own: those for blocking calls may all be taken by readers that hang as well.
    let closing = std::thread::Builder::new().name("close".into()).spawn(move || {
        own.close();
        let _ = send.send(());
    });
    if let Err(error) = closing {
        return log::error!("cannot close the store: ending as it is cause={error}");
    }
    tokio::select! {
        _ = closed => {}
        () = tokio::time::sleep(CLOSE_LIMIT) => {
            if store.has_failed() {
                log::error!("the disk has failed: ending when the WAL is empty");
                std::future::pending::<()>().await;
            }
            log::warn!("the writer does not end: ending without it");
        }
    }
}

/// Tells the service manager that the daemon lives, each time that the writer has answered: with anything, for a full disk
/// is no reason to end, and a failed one is none to end before the WAL is empty.
async fn keep_watched(store: Store, manager: Manager) -> std::convert::Infallible {
    let Some(every) = manager.watch_every() else { return std::future::pending().await };
    loop {
        store.writer_answers().await;
        manager.alive();
        tokio::time::sleep(every).await;
    }
}

/// Reads the certificate and its key again. What was read before stays if they cannot be used.
fn reload(store: &Store, identity: Option<&Identity>) {
    let Some(identity) = identity else {
        return log::info!("nothing to read again: settings take a restart");
    };
    match identity.reload().and_then(|()| show_certificate(store, identity)) {
        Ok(()) => log::info!("the certificate was read again"),
        Err(error) => log::error!("the certificate stays as it was: {error}"),
    }
}

/// Keeps the certificate where the commands on this machine find it.
fn show_certificate(store: &Store, identity: &Identity) -> Result<(), String> {
    store
        .folder()
        .write_private(tls::CERTIFICATE, &identity.shown())
        .map_err(|error| format!("cannot keep the certificate in the data folder: {error}"))
}

/// Seals the record of each run soon after its end, and removes those of runs that were pruned; what fails is tried
/// again.
async fn keep_records(store: Store) -> std::convert::Infallible {
    loop {
        let waiter = store.hub().wait_for(Topic::Records);
        store.seal_owed(usize::MAX).await;
        store.remove_pruned_files().await;
        let _ = tokio::time::timeout(RECORDS_RETRY, waiter.told()).await;
        tokio::time::sleep(SEAL_PAUSE).await;
    }
}

/// How long the writer may take to end.
const CLOSE_LIMIT: Duration = Duration::from_millis(800);

/// How many records are sealed before the daemon listens.
const SEALS_FIRST: usize = 100;

/// How long a seal waits after the end of a run: what the end has set free is to be at work first, and it needs the disk
/// as well. Whoever asks for a record before has it sealed at once.
const SEAL_PAUSE: Duration = Duration::from_secs(1);

/// When a seal or a removal that failed is tried again.
const RECORDS_RETRY: Duration = Duration::from_secs(30);
