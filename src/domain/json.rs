//! Strict JSON: what is read from a request, and its canonical form.
//!
//! A general parser is too kind for a daemon whose clients write by hand: it keeps the last of two equal keys, turns
//! large integers into floats, and lets control characters through. Here each of these is an error that names the
//! place. The canonical form is RFC 8785, by which two bodies are "the same".

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::Invalid;

/// How deep values may be nested.
pub const MAX_DEPTH: usize = 32;

/// The largest integer that every JSON reader keeps exactly, 2^53 - 1.
pub const MAX_INTEGER: f64 = 9_007_199_254_740_991.0;

/// A JSON value as received. Numbers are kept as doubles: the bounds make that exact for integers.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`; counts as absent wherever a field may be absent.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// Any number; integers at most [`MAX_INTEGER`] in size.
    Number(f64),
    /// A string without control characters other than tab and newline.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object; a key appears once.
    Object(BTreeMap<String, Json>),
}

/// Parses a request's body. An empty body counts as `{}`.
///
/// # Errors
/// [`Invalid`] with the JSON pointer of the offending value, or an empty path where the text is no JSON at all.
pub fn parse(body: &[u8]) -> Result<Json, Invalid> {
    if body.is_empty() {
        return Ok(Json::Object(BTreeMap::new()));
    }
    let place = RefCell::new(String::new());
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Value { place: &place, depth: 0 }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        let syntax = error.is_syntax() || error.is_eof();
        let path = if syntax { String::new() } else { place.into_inner() };
        // The library adds "at line L column C" to every message: useful in a text that a person wrote.
        Invalid { path, what: if syntax { format!("not JSON: {error}") } else { error.to_string() } }
    })
}

impl Json {
    /// Says what kind of value this is, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// Returns the canonical form (RFC 8785): keys by UTF-16 code units, numbers as ECMAScript writes them.
    pub fn canonical(&self) -> String {
        let mut out = String::with_capacity(256);
        self.write_canonical(&mut out);
        out
    }

    fn write_canonical(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(&number_text(*number)),
            Self::Text(text) => write_string(text, out),
            Self::List(list) => {
                out.push('[');
                for (index, value) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    value.write_canonical(out);
                }
                out.push(']');
            }
            Self::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
                out.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(key, out);
                    out.push(':');
                    value.write_canonical(out);
                }
                out.push('}');
            }
        }
    }
}

/// Writes a number as ECMAScript does (RFC 8785, 3.2.2.3): `4`, `0.5`, `1e+21`.
pub fn number_text(number: f64) -> String {
    ryu_js::Buffer::new().format(number).to_owned()
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escaped = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\t' => "\\t",
            // No other control character can be in a parsed string.
            _ => continue,
        };
        out.push_str(&text[plain_from..at]);
        out.push_str(escaped);
        plain_from = at + 1;
    }
    out.push_str(&text[plain_from..]);
    out.push('"');
}

/// Appends one reference token to a JSON pointer (RFC 6901).
pub fn push_pointer(path: &mut String, token: &str) {
    path.push('/');
    if token.contains(['~', '/']) {
        path.push_str(&token.replace('~', "~0").replace('/', "~1"));
    } else {
        path.push_str(token);
    }
}

/// Reads one value; `place` is where, for the error that may stop the reading.
#[derive(Clone, Copy)]
struct Value<'a> {
    place: &'a RefCell<String>,
    depth: usize,
}

impl Value<'_> {
    /// Returns how to read what is in this value, which is an array or an object.
    fn inner(self) -> Result<Self, &'static str> {
        if self.depth >= MAX_DEPTH {
            return Err("nested deeper than 32 levels");
        }
        Ok(Self { place: self.place, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Json, E> {
        #[allow(clippy::cast_precision_loss, reason = "what is not exact is over the bound")]
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Json, E> {
        #[allow(clippy::cast_precision_loss, reason = "what is not exact is over the bound")]
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        // Beyond 2^53 every double is an integer, so the bound on integers is a bound on all.
        if value.abs() > MAX_INTEGER { Err(E::custom("a number beyond 2^53-1")) } else { Ok(Json::Number(value)) }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Json, E> {
        plain(value).map_err(E::custom)?;
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        // Before its first value, which may not be there: the place is this array's.
        let inner = self.inner().map_err(A::Error::custom)?;
        let mark = self.place.borrow().len();
        let mut list = Vec::new();
        loop {
            push_pointer(&mut self.place.borrow_mut(), &list.len().to_string());
            let Some(value) = seq.next_element_seed(inner)? else { break };
            list.push(value);
            self.place.borrow_mut().truncate(mark);
        }
        self.place.borrow_mut().truncate(mark);
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let inner = self.inner().map_err(A::Error::custom)?;
        let mark = self.place.borrow().len();
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key_seed(Key)? {
            push_pointer(&mut self.place.borrow_mut(), &key);
            if map.contains_key(&key) {
                return Err(A::Error::custom("the key is there twice"));
            }
            let value = access.next_value_seed(inner)?;
            map.insert(key, value);
            self.place.borrow_mut().truncate(mark);
        }
        Ok(Json::Object(map))
    }
}

struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let key = String::deserialize(deserializer)?;
        plain(&key).map_err(D::Error::custom)?;
        Ok(key)
    }
}

fn plain(text: &str) -> Result<(), &'static str> {
    // C1 controls count too: terminals obey them.
    match text.chars().find(|c| c.is_control() && !matches!(c, '\t' | '\n')) {
        Some(_) => Err("a control character other than tab and newline"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        parse(text.as_bytes()).expect(text).canonical()
    }

    fn refused(text: &str) -> (String, String) {
        let invalid = parse(text.as_bytes()).expect_err(text);
        (invalid.path, invalid.what)
    }

    #[test]
    fn key_order_space_and_number_spelling_do_not_matter() {
        assert_eq!(
            canonical(r#" {"b": 1.0, "a": [1e2, -0, 0.50, "\u00e9\n"]} "#),
            "{\"a\":[100,0,0.5,\"é\\n\"],\"b\":1}"
        );
        // RFC 8785, 3.2.3: U+20AC sorts before U+1F600, whose first UTF-16 unit is D83D, before U+FB33.
        assert_eq!(
            canonical("{\"\u{fb33}\":3,\"\u{1f600}\":2,\"\u{20ac}\":1}"),
            "{\"\u{20ac}\":1,\"\u{1f600}\":2,\"\u{fb33}\":3}"
        );
        assert_eq!(parse(b"").unwrap().canonical(), "{}");
        // Every digit counts: what is written is read as the double that is nearest.
        assert_eq!(canonical("[9007199254740991.0,4503599627370495.5]"), "[9007199254740991,4503599627370495.5]");
    }

    #[test]
    fn what_other_readers_would_repair_is_refused_with_its_place() {
        assert_eq!(refused(r#"{"a":{"x":1,"x":2}}"#).0, "/a/x");
        assert_eq!(refused(r#"{"a":[1,9007199254740992]}"#).0, "/a/1");
        assert_eq!(refused(r#"{"a~/b":"\u0000"}"#).0, "/a~0~1b");
        assert_eq!(refused("{\"a\":\"\u{9b}31m\"}").0, "/a");
        assert_eq!(refused(r#"{"a":1e400}"#).0, "");
        assert_eq!(refused("{\"a\":1} x").0, "");
        assert!(refused("{\"a\":\n oops}").1.contains("line 2"));
    }

    #[test]
    fn depth_is_bounded_at_32() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(32).as_bytes()).is_ok());
        // The place is that of the array that is too deep, which may be empty.
        assert_eq!(refused(&nested(33)).0, "/0".repeat(32));
        assert!(refused(&nested(33)).1.contains("32"));
        assert!(refused(&"[".repeat(1_000_000)).1.contains("32"));
    }
}
