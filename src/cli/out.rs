//! What people see: sentences on standard error, answers on standard output, and nothing that a terminal obeys.
//!
//! Names, labels and reasons come from others. A label with an escape sequence in it could otherwise rewrite the
//! screen, or make one run look like another. So every text goes through [`shown`]; only the output of commands
//! (`logs`, `exec`) and files (`record`, `artifacts --get`) pass as they are.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// Returns `text` with everything a terminal would obey, or that hides or reorders text, written as an escape.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_hostile(c) => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Controls (C0, DEL, C1), line separators, marks and overrides of direction, and characters without a shape.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}' | '\u{200e}'
            | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Writes one line of the answer.
///
/// # Errors
/// When standard output is gone; a broken pipe ends the command quietly.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", shown(text))?;
    out.flush()
}

/// Writes a document as the daemon sent it, with a newline at its end.
pub fn raw_json(body: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(body)?;
    if !body.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes a document on one line.
pub fn json(value: &Value) -> io::Result<()> {
    raw_json(value.to_string().as_bytes())
}

/// Tells people something on standard error. That nobody listens there is no reason to fail.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "mediator: {}", shown(text));
}

/// Writes a line that belongs to a question to standard error, as it is.
pub fn aside(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(text));
}

/// Says whether there is somebody who can be asked: a terminal to read the question on, and one to answer it from.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks; says whether the answer was yes.
///
/// # Errors
/// When the terminal is gone.
pub fn confirm(question: &str) -> io::Result<bool> {
    let mut err = io::stderr().lock();
    write!(err, "{} [y/N] ", shown(question))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// An aligned table.
pub struct Table {
    head: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table with these column names.
    pub fn new(head: &'static [&'static str]) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { shown(&cell).into_owned() };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Returns the table as lines, columns two spaces apart, nothing behind the last.
    pub fn lines(&self) -> Vec<String> {
        let head: Vec<String> = self.head.iter().map(|&name| name.to_owned()).collect();
        let all = || std::iter::once(&head).chain(&self.rows);
        let widths: Vec<usize> =
            (0..self.head.len()).map(|column| all().map(|row| row[column].width()).max().unwrap_or(0)).collect();
        let lay = |row: &Vec<String>| {
            let mut text = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                text.push_str(cell);
                text.push_str(&" ".repeat(width - cell.width() + 2));
            }
            text.truncate(text.trim_end().len());
            text
        };
        all().map(lay).collect()
    }

    /// Writes the table to standard output.
    pub fn print(&self) -> io::Result<()> {
        self.lines().iter().try_for_each(|text| line(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_not_sent() {
        let check = |text: &str, expect: &str| assert_eq!(shown(text), expect);
        check("board 1", "board 1");
        check("보드 é 🚦", "보드 é 🚦");
        check("\u{1b}[2Jgone", "\\x1b[2Jgone");
        check("a\nb\tc\r\u{7f}", "a\\nb\\tc\\r\\x7f");
        check("\u{9b}31m", "\\u{9b}31m");
        check("ab\u{202e}dc\u{2066}", "ab\\u{202e}dc\\u{2066}");
        check("a\u{2028}b\u{feff}", "a\\u{2028}b\\u{feff}");
    }

    #[test]
    fn columns_line_up_also_where_characters_are_wide() {
        let mut table = Table::new(&["NODE", "LABEL", "STATE"]);
        table.row(["b-1".into(), "보드".into(), "free".into()]);
        table.row(["board-22".into(), String::new(), "leased".into()]);
        assert_eq!(table.lines(), ["NODE      LABEL  STATE", "b-1       보드   free", "board-22  -      leased"]);
    }
}
