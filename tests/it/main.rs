//! What the daemon promises, seen through its door: one file for each behaviour, each test named as the promise.

mod sequence;
mod submit;
mod support;
mod sweep;
