//! What mediator decides, as pure functions: no I/O, no clock, no threads, no SQL.

pub mod ids;
pub mod variables;
