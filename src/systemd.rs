//! What the service manager is told (sd_notify(3)): that it is ready, reloads, stops, lives, and in a few words how it is.
//!
//! A datagram to the socket that `NOTIFY_SOCKET` names. Without the variable nobody listens, and nothing is sent. That
//! nobody hears it is never a reason to fail.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::clock;

/// The service manager, if there is one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Manager(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

impl Manager {
    /// Finds the service manager that started this process.
    pub fn of_environment() -> Self {
        let own = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(name) = own("NOTIFY_SOCKET") else { return Self(None) };
        match Inner::new(&name, watchdog(&own)) {
            Ok(inner) => Self(Some(Arc::new(inner))),
            Err(error) => {
                log::warn!("cannot tell the service manager anything socket={name:?} cause={error}");
                Self(None)
            }
        }
    }

    /// Says that the service is up, or that it has read its files again.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Says that the service reads its files again; [`Manager::ready`] must follow.
    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reading again", clock::monotonic_us()));
    }

    /// Says that the service ends.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// Says how the service is.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status)));
    }

    /// Says that the service lives. Whoever calls this has just seen that it does.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Returns how often [`Manager::alive`] is to be called: twice in the time after which the manager would end the
    /// service. None if it does not watch.
    pub fn watch_every(&self) -> Option<Duration> {
        self.0.as_ref()?.watchdog.map(|limit| limit / 2)
    }

    fn send(&self, text: &str) {
        if let Some(Inner { socket, address, .. }) = self.0.as_deref()
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            log::debug!("the service manager was not told cause={error}");
        }
    }
}

impl Inner {
    fn new(name: &str, watchdog: Option<Duration>) -> std::io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold the service up.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address, watchdog })
    }
}

/// Returns after which silence the manager ends this process, as sd_watchdog_enabled(3) reads it.
fn watchdog(own: &dyn Fn(&str) -> Option<String>) -> Option<Duration> {
    let is_ours = own("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let limit = own("WATCHDOG_USEC")?.parse().ok().filter(|&limit: &u64| limit > 0)?;
    is_ours.then(|| Duration::from_micros(limit))
}

/// A line break would begin another assignment.
fn line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], expect: Option<u64>) {
        let own = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        assert_eq!(watchdog(&own), expect.map(Duration::from_micros), "{variables:?}");
    }

    #[test]
    fn the_watchdog_is_for_the_process_it_names() {
        let own = std::process::id().to_string();
        check(&[("WATCHDOG_USEC", "5000000")], Some(5_000_000));
        check(&[("WATCHDOG_USEC", "5000000"), ("WATCHDOG_PID", &own)], Some(5_000_000));
        check(&[("WATCHDOG_USEC", "5000000"), ("WATCHDOG_PID", "1")], None);
        for wrong in ["0", "-1", "soon"] {
            check(&[("WATCHDOG_USEC", wrong)], None);
        }
        check(&[], None);
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(line("serving\nWATCHDOG=trigger"), "serving WATCHDOG=trigger");
    }
}
