//! What the daemon promises, seen through its door: one file for each behaviour, each test named as the promise.

mod acquire;
mod artifacts;
mod ask;
mod backup;
mod cancel;
mod claim;
mod cleaning;
mod clock;
mod drain;
mod events;
mod examples;
mod history;
mod hold;
mod lease;
mod lists;
mod log;
mod loops;
mod nodes;
mod outbox;
mod proxy;
mod record;
mod release;
mod retry;
mod roles;
mod scripts;
mod sequence;
mod service;
mod stop;
mod submit;
mod support;
mod sweep;
#[path = "../support/systemd.rs"]
mod systemd;
mod wake;
mod why;
