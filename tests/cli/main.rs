//! Drives the built program against a scripted daemon, and looks at its output and exit code.

mod cancel;
mod contracts;
mod exec;
mod fake;
mod hold;
mod inbox;
mod kept;
mod logs;
mod nodes;
mod program;
mod retries;
mod runs;
mod submit;
mod usage;
