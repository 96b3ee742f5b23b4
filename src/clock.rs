//! The one place that time comes from, and that a test can set.
//!
//! Everything durable uses one scale, milliseconds called `Ms`: it starts as Unix time and then runs by
//! CLOCK_BOOTTIME, which also counts while the machine is suspended. A stepped wall clock therefore ends no lease
//! and makes none immortal. How far the wall clock has since moved away from the scale is the *offset*; it is added
//! when a time is shown, and kept in the database so that the scale goes on over a restart.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Milliseconds on the daemon's own scale (see the module).
pub type Ms = i64;

/// How far the wall clock may wander from scale + offset before that counts as a step.
const STEP_MS: i64 = 500;

/// Tells the time. Clones share one clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: Source,
    offset: AtomicI64,
}

#[derive(Debug)]
enum Source {
    /// Scale = boottime + base.
    System { base: AtomicI64 },
    Manual {
        now: Mutex<Ms>,
        /// How far the wall clock is from the scale.
        wall: AtomicI64,
    },
}

/// Begins to measure how long something takes that nothing durable depends on.
#[allow(clippy::disallowed_methods, reason = "how long it took while awake is what is asked for")]
pub fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}

impl Clock {
    /// Returns the machine's clock: the scale starts at the wall clock's time.
    pub fn system() -> Self {
        let base = wall_ms() - boottime_ms();
        Self(Arc::new(Inner { source: Source::System { base: AtomicI64::new(base) }, offset: AtomicI64::new(0) }))
    }

    /// Returns a clock that stands at `now` until [`Clock::advance`] is called.
    pub fn manual(now: Ms) -> Self {
        Self(Arc::new(Inner {
            source: Source::Manual { now: Mutex::new(now), wall: AtomicI64::new(0) },
            offset: AtomicI64::new(0),
        }))
    }

    /// Moves a manual clock on. Whoever waits for a deadline must be told (`Store::poke`).
    ///
    /// # Panics
    /// On the machine's clock.
    pub fn advance(&self, by: Duration) {
        match &self.0.source {
            Source::Manual { now, .. } => {
                *now.lock().expect("no holder panics") += i64::try_from(by.as_millis()).unwrap_or(i64::MAX)
            }
            Source::System { .. } => panic!("only a manual clock can be set"),
        }
    }

    /// Steps the wall clock of a manual clock; the scale goes on as before.
    ///
    /// # Panics
    /// On the machine's clock.
    pub fn step_wall(&self, by: i64) {
        match &self.0.source {
            Source::Manual { wall, .. } => wall.fetch_add(by, Ordering::Relaxed),
            Source::System { .. } => panic!("only a manual clock can be set"),
        };
    }

    /// Returns the CLOCK_BOOTTIME at which the scale will show `at`; a manual clock has none.
    pub fn boottime_at(&self, at: Ms) -> Option<i64> {
        match &self.0.source {
            Source::System { base } => Some(at - base.load(Ordering::Relaxed)),
            Source::Manual { .. } => None,
        }
    }

    /// Says whether time stands still unless a test moves it: then nobody must wait by the machine's clock.
    pub fn is_manual(&self) -> bool {
        matches!(self.0.source, Source::Manual { .. })
    }

    /// Returns the time on the scale.
    pub fn now(&self) -> Ms {
        match &self.0.source {
            Source::System { base } => boottime_ms() + base.load(Ordering::Relaxed),
            Source::Manual { now, .. } => *now.lock().expect("no holder panics"),
        }
    }

    /// Returns what must be added to a time on the scale to show it.
    pub fn offset(&self) -> i64 {
        self.0.offset.load(Ordering::Relaxed)
    }

    /// Goes on from an earlier life: the scale is set so that showing it with `offset` gives the wall clock's time,
    /// but never before `not_before`, the latest time that life is known to have seen.
    pub fn resume(&self, offset: i64, not_before: Ms) {
        match &self.0.source {
            Source::System { base } => {
                let now = (wall_ms() - offset).max(not_before);
                base.store(now - boottime_ms(), Ordering::Relaxed);
            }
            Source::Manual { now, wall } => {
                let mut now = now.lock().expect("no holder panics");
                let shown = *now + wall.load(Ordering::Relaxed);
                *now = (shown - offset).max(not_before);
                wall.store(shown - *now, Ordering::Relaxed);
            }
        }
        self.0.offset.store(offset, Ordering::Relaxed);
        self.follow_wall_clock();
    }

    /// Looks whether the wall clock was stepped; returns the new offset if so.
    pub fn follow_wall_clock(&self) -> Option<i64> {
        // The scale is read first: a pause between the two must not look like time still to come.
        let scale = self.now();
        let offset = match &self.0.source {
            Source::System { .. } => wall_ms() - scale,
            Source::Manual { wall, .. } => wall.load(Ordering::Relaxed),
        };
        if (offset - self.offset()).abs() <= STEP_MS {
            return None;
        }
        self.0.offset.store(offset, Ordering::Relaxed);
        Some(offset)
    }
}

/// Returns CLOCK_BOOTTIME in milliseconds: it runs on while the machine is suspended.
pub fn boottime_ms() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    t.tv_sec * 1000 + t.tv_nsec / 1_000_000
}

/// Returns CLOCK_MONOTONIC in microseconds, as a service manager compares it.
pub fn monotonic_us() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec * 1_000_000 + t.tv_nsec / 1000
}

fn wall_ms() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    t.tv_sec * 1000 + t.tv_nsec / 1_000_000
}

/// Writes a time on the scale as RFC 3339 in UTC, with milliseconds.
pub fn rfc3339(at: Ms, offset: i64) -> String {
    const FORMAT: &str = "%Y-%m-%dT%H:%M:%S.%3fZ";
    let shown = jiff::Timestamp::from_millisecond(at.saturating_add(offset)).unwrap_or(jiff::Timestamp::MAX);
    shown.strftime(FORMAT).to_string()
}

/// Reads an RFC 3339 time into Unix milliseconds.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(|t| t.as_millisecond())
}
