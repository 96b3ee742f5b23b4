//! What the daemon promises, seen through its door: one file for each behaviour, each test named as the promise.

mod ask;
mod claim;
mod drain;
mod lease;
mod nodes;
mod sequence;
mod submit;
mod support;
mod sweep;
mod wake;
