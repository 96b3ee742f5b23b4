//! `mediator hold`: the built program against the built daemon.

mod ends;
mod lab;
mod lost;
mod terminal;
mod waits;
mod works;
