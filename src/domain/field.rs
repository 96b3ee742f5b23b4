//! Typed reads out of strict JSON: every body that a client sends is read through these, so that every refusal names
//! the field by its path, and no unknown field passes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Invalid;
use super::ids::{ID_FORM, NodeId, RunId, is_id};
use super::json::{Json, number_text, push_pointer};

/// The longest name, label or reason, in bytes.
pub const MAX_TEXT: usize = 1024;

/// One value with its place.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    place: Place<'a>,
    value: &'a Json,
}

/// An object whose fields are taken one by one; [`Fields::finish`] refuses what nobody took.
#[derive(Debug)]
pub struct Fields<'a> {
    place: Place<'a>,
    map: &'a BTreeMap<String, Json>,
    taken: RefCell<Vec<&'static str>>,
}

/// Where a value stands, from the inside out. It is spelled only for an error: most bodies have none, and a contract has
/// hundreds of places.
#[derive(Clone, Debug, Default)]
struct Place<'a>(Option<Arc<(Place<'a>, Token<'a>)>>);

#[derive(Clone, Copy, Debug)]
enum Token<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Place<'a> {
    fn inner(&self, token: Token<'a>) -> Self {
        Self(Some(Arc::new((self.clone(), token))))
    }

    /// Returns the place as a JSON pointer.
    fn pointer(&self) -> String {
        let Some(own) = &self.0 else { return String::new() };
        let (outer, token) = &**own;
        let mut pointer = outer.pointer();
        match token {
            Token::Key(key) => push_pointer(&mut pointer, key),
            Token::Index(index) => push_pointer(&mut pointer, &index.to_string()),
        }
        pointer
    }
}

impl<'a> Field<'a> {
    /// Starts at the top of a body.
    pub fn root(value: &'a Json) -> Self {
        Self { place: Place::default(), value }
    }

    /// Makes the error for this field: `what` tells what was expected.
    pub fn invalid(&self, what: impl Into<String>) -> Invalid {
        Invalid { path: self.place.pointer(), what: what.into() }
    }

    fn expected(&self, what: &str) -> Invalid {
        self.invalid(format!("expected {what}, found {}", self.value.kind()))
    }

    /// Returns the value as received.
    pub fn json(&self) -> &'a Json {
        self.value
    }

    /// Reads an object.
    pub fn object(&self) -> Result<Fields<'a>, Invalid> {
        match self.value {
            Json::Object(map) => Ok(Fields { place: self.place.clone(), map, taken: RefCell::default() }),
            _ => Err(self.expected("an object")),
        }
    }

    /// Reads an array of `range` items.
    pub fn list(&self, range: std::ops::RangeInclusive<usize>) -> Result<Vec<Field<'a>>, Invalid> {
        let Json::List(list) = self.value else { return Err(self.expected("an array")) };
        if !range.contains(&list.len()) {
            return Err(self.invalid(format!(
                "expected {} to {} items, found {}",
                range.start(),
                range.end(),
                list.len()
            )));
        }
        Ok(list.iter().enumerate().map(|(index, value)| self.at(Token::Index(index), value)).collect())
    }

    /// Reads the entries of an object whose keys are free.
    pub fn entries(&self) -> Result<Vec<(&'a str, Field<'a>)>, Invalid> {
        let Json::Object(map) = self.value else { return Err(self.expected("an object")) };
        Ok(map.iter().map(|(key, value)| (key.as_str(), self.at(Token::Key(key), value))).collect())
    }

    fn at(&self, token: Token<'a>, value: &'a Json) -> Field<'a> {
        Field { place: self.place.inner(token), value }
    }

    /// Reads a string of at most [`MAX_TEXT`] bytes, possibly empty.
    pub fn text(&self) -> Result<&'a str, Invalid> {
        let text = self.long_text()?;
        if text.len() > MAX_TEXT {
            return Err(self.invalid(format!("longer than {MAX_TEXT} bytes")));
        }
        Ok(text)
    }

    /// Reads a string of any length: the body's limit bounds it.
    pub fn long_text(&self) -> Result<&'a str, Invalid> {
        match self.value {
            Json::Text(text) => Ok(text),
            _ => Err(self.expected("a string")),
        }
    }

    /// Reads a string that is not empty.
    pub fn word(&self) -> Result<&'a str, Invalid> {
        match self.text()? {
            "" => Err(self.invalid("expected a string that is not empty")),
            text => Ok(text),
        }
    }

    /// Reads an id.
    pub fn id(&self) -> Result<&'a str, Invalid> {
        let text = self.text()?;
        if is_id(text) { Ok(text) } else { Err(self.invalid(format!("expected {ID_FORM}"))) }
    }

    /// Reads a node's id.
    pub fn node_id(&self) -> Result<NodeId, Invalid> {
        self.id().map(NodeId::from_stored)
    }

    /// Reads a run's id.
    pub fn run_id(&self) -> Result<RunId, Invalid> {
        self.id().map(RunId::from_stored)
    }

    /// Reads a boolean.
    pub fn boolean(&self) -> Result<bool, Invalid> {
        match self.value {
            Json::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    /// Reads an integer of `range`.
    pub fn integer(&self, range: std::ops::RangeInclusive<i64>) -> Result<i64, Invalid> {
        let wanted = || format!("an integer from {} to {}", range.start(), range.end());
        let Json::Number(number) = self.value else { return Err(self.expected(&wanted())) };
        #[allow(clippy::cast_possible_truncation, reason = "within 2^53 and without a fraction")]
        let integer = *number as i64;
        if number.fract() != 0.0 || !range.contains(&integer) {
            return Err(self.invalid(format!("expected {}", wanted())));
        }
        Ok(integer)
    }

    /// Reads seconds above 0, fractions allowed; returns milliseconds, rounded up.
    pub fn seconds_ms(&self) -> Result<i64, Invalid> {
        match self.value {
            Json::Number(number) if *number > 0.0 => {
                #[allow(clippy::cast_possible_truncation, reason = "at most 2^53 * 1000, which i64 holds")]
                let ms = (number * 1000.0).ceil() as i64;
                Ok(ms)
            }
            Json::Number(_) => Err(self.invalid("expected seconds above 0")),
            _ => Err(self.expected("seconds above 0")),
        }
    }

    /// Reads a string, a number or a boolean as its canonical text, so that `4` and `"4"` are one.
    pub fn scalar(&self, integers_only: bool) -> Result<String, Invalid> {
        match self.value {
            Json::Text(_) => self.long_text().map(str::to_owned),
            Json::Bool(value) => Ok(value.to_string()),
            Json::Number(number) if !integers_only || number.fract() == 0.0 => Ok(number_text(*number)),
            Json::Number(_) => Err(self.invalid("expected a string, an integer or a boolean")),
            _ => Err(self.expected("a string, an integer or a boolean")),
        }
    }
}

impl<'a> Fields<'a> {
    /// Takes a field that may be absent or null.
    pub fn opt(&self, name: &'static str) -> Option<Field<'a>> {
        self.taken.borrow_mut().push(name);
        let value = self.map.get(name).filter(|value| **value != Json::Null)?;
        Some(Field { place: self.place.inner(Token::Key(name)), value })
    }

    /// Takes a field that must be there.
    pub fn req(&self, name: &'static str) -> Result<Field<'a>, Invalid> {
        self.opt(name).ok_or_else(|| Invalid { path: self.path_of(name), what: "missing".into() })
    }

    /// Makes an error that points at the object itself.
    pub fn invalid(&self, what: impl Into<String>) -> Invalid {
        Invalid { path: self.place.pointer(), what: what.into() }
    }

    /// Makes an error that points at one of its fields.
    pub fn invalid_at(&self, name: &str, what: impl Into<String>) -> Invalid {
        Invalid { path: self.path_of(name), what: what.into() }
    }

    /// Refuses every field that nobody took, so that a typo is seen.
    pub fn finish(self) -> Result<(), Invalid> {
        let mut known = self.taken.take();
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                known.sort_unstable();
                known.dedup();
                let what = format!("unknown field; known here: {}", known.join(", "));
                Err(Invalid { path: self.path_of(unknown), what })
            }
        }
    }

    fn path_of(&self, name: &str) -> String {
        self.place.inner(Token::Key(name)).pointer()
    }
}
