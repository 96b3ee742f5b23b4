//! Mediator.
pub mod agent;
pub mod cli;
pub mod client;
pub mod clock;
pub mod domain;
