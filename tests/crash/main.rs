//! Kills the built daemon at every named point and sees what is left. Needs the feature `failpoints` (`make crash`);
//! README.md in this folder tells what is tried and how to repeat a failure.

mod daemon;
mod disk;
mod group;
mod matrix;
mod scenarios;
mod seal;
mod soak;
#[path = "../it/support.rs"]
mod support;
mod syncs;
mod syscalls;
