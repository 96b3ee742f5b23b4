//! Mediator.
pub mod agent;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod domain;
