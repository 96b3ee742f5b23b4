//! What the daemon promises, seen through its door: one file for each behaviour, each test named as the promise.

mod acquire;
mod artifacts;
mod ask;
mod claim;
mod clock;
mod drain;
mod events;
mod examples;
mod hold;
mod lease;
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
mod submit;
mod support;
mod sweep;
mod wake;
mod why;
