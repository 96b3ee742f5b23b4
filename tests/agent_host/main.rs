//! A lab host at work: the built agent and the built daemon, with real processes, killed in the middle where that
//! matters.

mod check;
mod cleanup;
mod host;
mod init;
mod lab;
mod reload;
mod service;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/systemd.rs"]
mod systemd;
