//! What `mediator hold` tells on standard error.
//!
//! A thread of its own writes it: a terminal that was stopped with Ctrl-S, or a pipe that nobody reads, blocks whoever
//! writes, and that must not be who renews the hold.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use unicode_width::UnicodeWidthChar;

use crate::cli::{out, text};
use crate::clock::{Ms, boottime_ms};

/// How often a state that does not change is told again where that takes a new line: a log that stands still looks dead,
/// and some CI services end jobs without output.
const AGAIN_MS: Ms = 5 * 60 * 1000;
/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Says things in order. Dropped without [`Teller::close`], the last ones may be lost.
pub struct Teller {
    said: Sender<Said>,
    silent: Receiver<()>,
    since: Ms,
}

enum Said {
    /// Where things stand, and for how long they have been waited for.
    Status(String, Ms),
    /// Something that happened.
    Note(String),
    /// Nothing more.
    Last,
}

impl Teller {
    /// Starts; the time that is told with each status counts from now.
    pub fn start() -> Self {
        let (said, receive) = channel();
        let (done, silent) = channel();
        std::thread::spawn(move || {
            write(&receive);
            let _ = done.send(());
        });
        Self { said, silent, since: boottime_ms() }
    }

    /// Tells where things stand: on a terminal in one line that changes, elsewhere in a line for each change and every
    /// five minutes.
    pub fn status(&self, sentence: String) {
        let _ = self.said.send(Said::Status(sentence, boottime_ms() - self.since));
    }

    /// Tells something that happened, in a line of its own.
    pub fn note(&self, sentence: impl Into<String>) {
        let _ = self.said.send(Said::Note(sentence.into()));
    }

    /// Waits until everything was told, if there is somebody to read it.
    pub fn close(&self) {
        let _ = self.said.send(Said::Last);
        let _ = self.silent.recv_timeout(LAST_WORDS);
    }
}

fn write(said: &Receiver<Said>) {
    let is_terminal = io::stderr().is_terminal();
    let mut lines = Lines::default();
    // A line that is to be overwritten stands there.
    let mut is_open = false;
    while let Ok(said) = said.recv() {
        let mut text = String::new();
        match said {
            Said::Status(sentence, waited_ms) if is_terminal => {
                // The time comes first: it is what moves, and the end of a long line is not shown.
                let line = format!("mediator: {}: {}", text::span(waited_ms), out::shown(&sentence));
                text = format!("\r\x1b[K{}", fitting(&line, columns()));
                is_open = true;
            }
            Said::Status(sentence, waited_ms) => {
                if let Some(line) = lines.next(&sentence, waited_ms) {
                    text = format!("mediator: {}\n", out::shown(&line));
                }
            }
            Said::Note(sentence) if is_terminal => {
                // The command may have switched off that a line feed returns to the first column.
                let erase = if is_open { "\r\x1b[K" } else { "" };
                text = format!("{erase}mediator: {}\r\n", out::shown(&sentence));
                is_open = false;
            }
            Said::Note(sentence) => text = format!("mediator: {}\n", out::shown(&sentence)),
            Said::Last => {
                if is_open {
                    let _ = io::stderr().write_all(b"\r\x1b[K");
                }
                return;
            }
        }
        // That nobody listens is no reason to fail.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// Decides which states take a line where lines stay.
#[derive(Default)]
struct Lines {
    last: Option<(String, Ms)>,
}

impl Lines {
    fn next(&mut self, sentence: &str, waited_ms: Ms) -> Option<String> {
        let is_again = match &self.last {
            Some((last, told_at)) if last == sentence => {
                if waited_ms - told_at < AGAIN_MS {
                    return None;
                }
                true
            }
            _ => false,
        };
        self.last = Some((sentence.to_owned(), waited_ms));
        Some(if is_again { format!("{sentence} (for {})", text::span(waited_ms)) } else { sentence.to_owned() })
    }
}

/// Returns how wide the terminal is.
fn columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col))
}

/// Cuts a line so that it does not wrap, which could not be overwritten.
fn fitting(line: &str, columns: usize) -> &str {
    if columns == 0 {
        return line;
    }
    let mut width = 0;
    for (at, c) in line.char_indices() {
        width += c.width().unwrap_or(0);
        if width >= columns {
            return &line[..at];
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_takes_a_line_when_it_changes_and_every_five_minutes() {
        let mut lines = Lines::default();
        let mut check = |sentence: &str, seconds: i64, expect: Option<&str>| {
            assert_eq!(lines.next(sentence, seconds * 1000).as_deref(), expect, "{sentence} {seconds}");
        };
        check("position 2", 0, Some("position 2"));
        check("position 2", 299, None);
        check("position 2", 300, Some("position 2 (for 5 min)"));
        check("position 2", 599, None);
        check("position 1", 600, Some("position 1"));
        check("position 1", 899, None);
        check("position 1", 900, Some("position 1 (for 15 min)"));
    }

    #[test]
    fn a_line_never_wraps() {
        assert_eq!(fitting("mediator", 0), "mediator");
        assert_eq!(fitting("mediator", 9), "mediator");
        assert_eq!(fitting("mediator", 8), "mediato");
        assert_eq!(fitting("보드보드", 5), "보드");
    }
}
