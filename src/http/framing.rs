//! Where requests end, watched beside the parser: what it repairs or keeps to itself is refused.
//!
//! The parser drops a length that comes with a coding, and the second of two equal lengths, and takes a bare line feed
//! for the end of a line. Whoever stands before the daemon may read the same bytes differently, and then a part of one
//! client's request is another's. The parser tells nothing of these, so they are looked for in the bytes on their way
//! to it. What is refused in a head is overwritten, and the parser does the rest: it
//! answers 400, and ends the connection. A body ends there as if its client had gone.

use std::mem::take;

/// The longest line that is kept to be looked at: longer than any head may be.
const LONGEST_LINE: usize = 64 << 10;

/// The requests of one connection, as far as they were read.
#[derive(Debug, Default)]
pub struct Framing {
    state: State,
    /// What was read before of the line that is being read.
    line: Vec<u8>,
    /// Whether the first line of a head was there: line breaks before it are no head's end.
    in_head: bool,
    /// Whether it was in a body that something was refused.
    in_body: bool,
    length: Option<u64>,
    is_chunked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    Body(u64),
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Refused,
}

impl Framing {
    /// Says whether a body was cut off, and nothing more is let through.
    pub fn is_cut(&self) -> bool {
        self.in_body
    }

    /// Says whether a part of a head was read, and not all of it.
    pub fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head) && (self.in_head || !self.line.is_empty())
    }

    /// Looks at what was read next; returns how much of it may be read on. In a head all from the first byte on that is
    /// refused are overwritten. In a body they are cut off instead, and nothing more is let through.
    pub fn check(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Refused if self.in_body => return at,
                State::Refused => {
                    bytes[at..].fill(0);
                    return bytes.len();
                }
                State::Body(left) => {
                    let (passed, left) = pass(left, bytes.len() - at);
                    at += passed;
                    self.state = if left == 0 { State::Head } else { State::Body(left) };
                }
                State::Data(left) => {
                    let (passed, left) = pass(left, bytes.len() - at);
                    at += passed;
                    self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                }
                State::Head | State::Size | State::DataEnd | State::Trailers => {
                    let (passed, is_good) = self.take_line(&bytes[at..]);
                    at += passed;
                    if !is_good {
                        self.in_body = !matches!(self.state, State::Head);
                        self.state = State::Refused;
                    }
                }
            }
        }
        at
    }

    /// Takes the rest of the line, or as much of it as is there; returns how many bytes pass, and whether all is well.
    fn take_line(&mut self, bytes: &[u8]) -> (usize, bool) {
        let room = LONGEST_LINE - self.line.len();
        let end = bytes.iter().take(room + 1).position(|byte| *byte == b'\n');
        let Some(end) = end else {
            let here = bytes.len().min(room);
            self.line.extend_from_slice(&bytes[..here]);
            return (here, here == bytes.len());
        };
        let is_good = if self.line.is_empty() {
            self.whole_line(&bytes[..=end])
        } else {
            let mut line = take(&mut self.line);
            line.extend_from_slice(&bytes[..=end]);
            self.whole_line(&line)
        };
        (end + usize::from(is_good), is_good)
    }

    /// Looks at a line with its end; says whether all is well.
    fn whole_line(&mut self, line: &[u8]) -> bool {
        let Some(line) = line.strip_suffix(b"\r\n") else { return false };
        match self.state {
            State::Head => self.head_line(line),
            State::Size => self.size_line(line),
            State::DataEnd => {
                self.state = State::Size;
                line.is_empty()
            }
            _ => {
                if line.is_empty() {
                    self.state = State::Head;
                }
                true
            }
        }
    }

    fn head_line(&mut self, line: &[u8]) -> bool {
        if line.is_empty() {
            if take(&mut self.in_head) {
                let length = self.length.take().unwrap_or(0);
                self.state = match (take(&mut self.is_chunked), length) {
                    (true, _) => State::Size,
                    (false, 0) => State::Head,
                    (false, length) => State::Body(length),
                };
            }
            return true;
        }
        if !self.in_head {
            self.in_head = true;
            return true;
        }
        // A line without a colon, and a length that is no number, are refused by the parser.
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return true };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let is_new = self.length.is_none() && !self.is_chunked;
            self.length = Some(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0));
            return is_new;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
            return self.length.is_none();
        }
        true
    }

    fn size_line(&mut self, line: &[u8]) -> bool {
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (digits, rest) = line.split_at(digits);
        let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        self.state = match size {
            None => return false,
            Some(0) => State::Trailers,
            Some(size) => State::Data(size),
        };
        // Behind it may be an extension, which nobody reads.
        rest.first().is_none_or(|byte| *byte == b';')
    }
}

/// Returns how many of `here` bytes belong to the `left` ones, and how many are left then.
fn pass(left: u64, here: usize) -> (usize, u64) {
    let passed = usize::try_from(left).map_or(here, |left| left.min(here));
    (passed, left - passed as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `text` in pieces of `size` bytes; returns what the parser sees.
    fn seen(text: &str, size: usize) -> String {
        let mut framing = Framing::default();
        let mut out = String::new();
        for piece in text.as_bytes().chunks(size) {
            let mut piece = piece.to_vec();
            let good = framing.check(&mut piece);
            out.push_str(&String::from_utf8_lossy(&piece[..good]));
        }
        out
    }

    const NEXT: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn what_is_clear_passes_whole_in_pieces_of_any_size() {
        for text in [
            NEXT.to_owned(),
            format!("\r\n{NEXT}\r\n{NEXT}"),
            format!("POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\nab\ncd\r\n\r\nef\n{NEXT}"),
            format!("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n{NEXT}"),
            format!(
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\nA;x=y\r\n0123\n56789\r\n0\r\nX: y\r\n\r\n{NEXT}"
            ),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(seen(&text, size), text);
            }
        }
    }

    #[test]
    fn what_is_unclear_is_overwritten_before_its_head_ends_and_all_that_follows() {
        for (text, last) in [
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\nX: y\r\ncontent-length: 2\r\n\r\n{}", "content-length: 2\r"),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked\r"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", "Content-Length: 2\r"),
            ("GET / HTTP/1.1\nHost: x\r\n\r\n", "HTTP/1.1"),
            ("GET / HTTP/1.1\r\nHost: x\r\n\n", "Host: x\r\n"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n", "2 \r"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", "\r\n\r\n2"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{} \r\n0\r\n\r\n", "{} \r"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n", "0\r\n"),
        ] {
            for size in [1, 5, 1000] {
                let out = seen(&format!("{text}{NEXT}"), size);
                let kept = out.trim_end_matches('\0');
                assert!(kept.ends_with(last), "{text:?} became {out:?}");
                assert!(out.len() == text.len() + NEXT.len() || !out.contains('\0'), "{out:?}");
            }
        }
    }

    #[test]
    fn a_line_passes_up_to_its_bound() {
        for (length, passes) in [(LONGEST_LINE, true), (LONGEST_LINE + 1, false)] {
            let text = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(length - 4));
            for size in [1000, LONGEST_LINE + 500, 3 * LONGEST_LINE] {
                let out = seen(&text, size);
                assert_eq!(out == text, passes, "{length} in pieces of {size}");
                let kept = out.trim_end_matches('\0').len();
                assert!(passes || kept == "GET / HTTP/1.1\r\n".len() + LONGEST_LINE, "{kept} of {length}, {size}");
            }
        }
    }
}
