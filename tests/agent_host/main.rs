//! A lab host at work: the built agent and the built daemon, with real processes, killed in the middle where that
//! matters.

mod check;
mod cleanup;
mod host;
mod init;
mod lab;
mod reload;
#[path = "../support/mod.rs"]
mod support;
