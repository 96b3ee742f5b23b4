//! Values that steps get and nobody may read: masked wherever a command's words leave this host.
//!
//! Masked are the values as they are, and the longer lines of one that has several, not what a program makes of them
//! (base64, a hash).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// What is shown instead of a value.
const MASK: &[u8] = b"***";

/// The shortest value that can be masked, in bytes: a shorter one would be found all over a log.
const SHORTEST: usize = 6;

/// Variables with their values, which are masked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    variables: Vec<(String, String)>,
    patterns: Arc<[Vec<u8>]>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.variables.iter().map(|(name, _)| name)).finish()
    }
}

/// Masks what goes through it in pieces.
#[derive(Debug, Default)]
pub struct Masker {
    secrets: Secrets,
    /// What may be the beginning of a value: it waits for what follows.
    pending: Vec<u8>,
    /// How much of `pending` belongs to a value that was found, and whose mask was written.
    covered: usize,
}

impl Secrets {
    /// Reads variables from the agent's own environment.
    ///
    /// # Errors
    /// What is wrong with one: it is not set, or its value is too short to be masked.
    pub fn read(names: &[String], own: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut variables: Vec<(String, String)> = Vec::new();
        for name in names {
            let value = own(name).ok_or_else(|| format!("{name} is not set in the agent's environment"))?;
            if value.len() < SHORTEST {
                return Err(format!(
                    "the value of {name} has less than {SHORTEST} bytes: masking it would mask half of every log"
                ));
            }
            if !variables.iter().any(|(other, _)| other == name) {
                variables.push((name.clone(), value));
            }
        }
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for (_, value) in &variables {
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST);
            for pattern in [value.as_str()].into_iter().chain(lines) {
                if !patterns.iter().any(|other| other == pattern.as_bytes()) {
                    patterns.push(pattern.as_bytes().to_vec());
                }
            }
        }
        Ok(Self { variables, patterns: patterns.into() })
    }

    /// Returns the variables, for a step.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Returns `text` with every value masked.
    pub fn mask(&self, text: &str) -> String {
        let mut masker = self.masker();
        let mut out = masker.pass(text.as_bytes()).into_owned();
        out.extend(masker.finish());
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Returns what masks a stream.
    pub fn masker(&self) -> Masker {
        Masker { secrets: self.clone(), pending: Vec::new(), covered: 0 }
    }
}

impl Masker {
    /// Takes the next piece; returns what can go on by now. A value that is cut between two pieces is found: what may
    /// be the beginning of one is kept until more comes.
    pub fn pass<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.secrets.patterns.is_empty() {
            return Cow::Borrowed(bytes);
        }
        self.pending.extend_from_slice(bytes);
        Cow::Owned(self.go_on(false))
    }

    /// Returns what was kept: there is no more to come.
    pub fn finish(&mut self) -> Vec<u8> {
        self.go_on(true)
    }

    fn go_on(&mut self, all: bool) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.pending);
        let patterns = &self.secrets.patterns;
        let mut out = Vec::with_capacity(bytes.len());
        let (mut at, mut covered) = (0, self.covered);
        while at < bytes.len() {
            let rest = &bytes[at..];
            let mut here = patterns.iter().filter(|pattern| pattern[0] == rest[0]).peekable();
            if here.peek().is_some() {
                if !all && here.clone().any(|pattern| pattern.len() > rest.len() && pattern.starts_with(rest)) {
                    break;
                }
                // Values may overlap: what belongs to any of them is covered, with one mask for all.
                if let Some(longest) = here.filter(|pattern| rest.starts_with(pattern)).map(Vec::len).max() {
                    if at >= covered {
                        out.extend_from_slice(MASK);
                    }
                    covered = covered.max(at + longest);
                }
            }
            if at >= covered {
                out.push(rest[0]);
            }
            at += 1;
        }
        self.covered = covered.saturating_sub(at);
        self.pending = bytes[at..].to_vec();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let names: Vec<String> = (0..values.len()).map(|at| at.to_string()).collect();
        let own = |name: &str| Some(values[name.parse::<usize>().expect("it is a number")].to_owned());
        Secrets::read(&names, &own).expect("they are long enough")
    }

    #[test]
    fn a_value_is_masked_wherever_the_pieces_are_cut() {
        let cases = [
            (&["hunter22"][..], "user hunter22, again: hunter22hunter22!", "user ***, again: ******!"),
            (&["secret", "secret-long"], "secret secret-lon secret-long", "*** ***-lon ***"),
            (&["abcdef", "defghi"], "abcdefghi abcdefgh", "*** ***gh"),
            (&["aXaXaXa"], "aXaXaXaXaXa.", "***."),
            (&["hunter22"], "hunter2", "hunter2"),
            (&["first line\nsecond line\nx"], "a second line, x", "a ***, x"),
        ];
        for (values, text, expect) in cases {
            let secrets = secrets(values);
            assert_eq!(secrets.mask(text), expect);
            for size in 1..text.len() {
                let mut masker = secrets.masker();
                let mut out = Vec::new();
                for piece in text.as_bytes().chunks(size) {
                    out.extend_from_slice(&masker.pass(piece));
                }
                out.extend(masker.finish());
                assert_eq!(String::from_utf8(out).expect("it is text"), expect, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn what_cannot_begin_a_value_goes_on_at_once() {
        let mut masker = secrets(&["hunter22"]).masker();
        assert_eq!(&*masker.pass(b"login: hunt"), b"login: ");
        assert_eq!(&*masker.pass(b"ing\n"), b"hunting\n");
        assert_eq!(&*masker.pass(b"bytes \xff\xfe"), b"bytes \xff\xfe");
    }

    #[test]
    fn a_value_that_cannot_be_masked_is_refused() {
        let read = |value: Option<&str>| {
            let value = value.map(str::to_owned);
            Secrets::read(&["PASSWORD".to_owned()], &|_| value.clone()).map(|_| ())
        };
        assert_eq!(read(None), Err("PASSWORD is not set in the agent's environment".to_owned()));
        assert!(read(Some("short")).is_err_and(|error| error.contains("PASSWORD") && error.contains("6 bytes")));
        assert_eq!(read(Some("enough")), Ok(()));
    }

    #[test]
    fn nobody_reads_it_in_a_log_of_ours() {
        assert!(!format!("{:?}", secrets(&["hunter22"])).contains("hunter22"));
    }
}
