//! Drives the built program against a scripted daemon, and looks at its output and exit code.

mod exec;
mod fake;
mod logs;
mod nodes;
mod program;
mod runs;
mod submit;
mod usage;
