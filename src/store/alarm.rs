//! Wakes the writer at a deadline, on the clock that runs on while the machine is suspended.
//!
//! A condition variable's time-out stands still in suspend, so a deadline that passed meanwhile would be met late by
//! as much as was left of the wait. A timerfd on CLOCK_BOOTTIME fires at once on resume.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::waiting::Waiting;

/// A timer that pokes the writer.
pub(super) struct Alarm {
    timer: Arc<OwnedFd>,
    set_for: Option<i64>,
}

impl Alarm {
    /// Makes the timer, and the thread that waits for it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(waiting: Arc<Waiting>) -> std::io::Result<Self> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        let timer = Arc::new(timer);
        let own = Arc::clone(&timer);
        std::thread::Builder::new().name("alarm".into()).spawn(move || {
            let mut count = [0; 8];
            // Ends with the process; a read that fails for another reason than a signal never succeeds again.
            while let Ok(_) | Err(rustix::io::Errno::INTR) = rustix::io::read(&*own, &mut count) {
                waiting.poke();
            }
        })?;
        Ok(Self { timer, set_for: None })
    }

    /// Sets the timer for a CLOCK_BOOTTIME in milliseconds; `None` for never.
    pub(super) fn set(&mut self, at_ms: Option<i64>) {
        if self.set_for == at_ms {
            return;
        }
        // A time of zero would disarm it; one that has passed fires at once.
        let at = at_ms.map_or(0, |ms| ms.max(1));
        let value = Timespec { tv_sec: at / 1000, tv_nsec: at % 1000 * 1_000_000 };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        match rustix::time::timerfd_settime(&*self.timer, TimerfdTimerFlags::ABSTIME, &spec) {
            Ok(_) => self.set_for = at_ms,
            Err(error) => log::error!("cannot set the alarm cause={error}"),
        }
    }
}
