//! Mediator.
pub mod agent;
pub mod backup;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod delivery;
pub mod domain;
pub mod failpoint;
pub mod http;
mod random;
pub mod store;
pub mod systemd;
pub mod tls;
