//! The signals that `mediator hold` is sent, and where each came from.
//!
//! A terminal sends Ctrl-C to the whole foreground group: the command, which is in the group of `hold`, has had it as
//! well. Passing it on would tell the command twice, and many programs take the second Ctrl-C for "leave without
//! clearing up". A signal that a process sent to `hold` alone must be passed on. Only `siginfo_t` tells the two apart.

use rustix::process::Signal;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::agent::here::ignored_signals;
use crate::cli::{Exit, Stop};

/// One signal.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// Whether the kernel sent it, for a key or because the terminal is gone.
    from_terminal: bool,
}

impl Received {
    /// Says whether it ends the hold whatever the command does: SIGTERM, SIGHUP.
    pub fn is_final(self) -> bool {
        [Signal::TERM, Signal::HUP].contains(&self.signal)
    }

    /// Says whether it asks to end: SIGINT and SIGQUIT too.
    pub fn asks_to_end(self) -> bool {
        self.is_final() || [Signal::INT, Signal::QUIT].contains(&self.signal)
    }

    /// Says whether the command has not had it yet. A hang-up is passed on in any case: it also starts the time after
    /// which the command is killed.
    pub fn is_to_pass(self) -> bool {
        self.is_final() || !self.from_terminal
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self.signal {
            Signal::TERM => "SIGTERM",
            Signal::HUP => "SIGHUP",
            Signal::INT => "SIGINT",
            Signal::QUIT => "SIGQUIT",
            _ => "a signal",
        }
    }
}

/// The signals as they come.
pub struct Signals(UnboundedReceiver<Received>);

impl Signals {
    /// Takes over every signal that is to be passed on, from now on. One that was ignored at the start stays ignored
    /// (`nohup`, the background jobs of a script); SIGTERM never is.
    pub fn listen() -> Result<Self, Stop> {
        let ignored = ignored_signals();
        let heard = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2]
            .into_iter()
            .filter(|signal| *signal == Signal::TERM || !ignored.contains(signal))
            .map(Signal::as_raw);
        let mut signals = SignalsInfo::<WithOrigin>::new(heard)
            .map_err(|error| Stop::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
        let (send, receive) = unbounded_channel();
        std::thread::spawn(move || {
            for origin in signals.forever() {
                let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
                if send.send(Received { signal, from_terminal: origin.cause == Cause::Kernel }).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receive))
    }

    /// Returns the next signal. May be dropped and called again.
    pub async fn next(&mut self) -> Received {
        match self.0.recv().await {
            Some(received) => received,
            None => std::future::pending().await,
        }
    }

    /// Returns the next signal that asks to end.
    pub async fn end(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.asks_to_end() {
                return received;
            }
        }
    }
}
