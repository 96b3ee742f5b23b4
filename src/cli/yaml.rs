//! YAML, reduced to what JSON can say, with the line of everything.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use super::contract_file::Malformed;

/// A YAML value with the places of everything in it.
pub enum Node {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    /// A sequence.
    List(Vec<Spanned<Node>>),
    /// A mapping: a key appears once.
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

/// Parses one document, as strictly as JSON is read.
pub fn parse(text: &str) -> Result<Spanned<Node>, Malformed> {
    let options = serde_saphyr::options! {
        // YAML 1.2: `yes` and `no` are answers, `010` and `1_000` no numbers.
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let what = error.to_string();
        Malformed {
            line: error.location().map(line),
            what: format!("not YAML: {}", what.lines().next().unwrap_or_default()),
        }
    })
}

/// Returns the line of a place, counted from 1.
pub fn line(place: Location) -> usize {
    usize::try_from(place.line()).unwrap_or(usize::MAX)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON has too")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Node, E> {
        let number = serde_json::Number::from_f64(value).ok_or_else(|| E::custom("JSON has no such number"))?;
        Ok(Node::Scalar(number.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Node, D::Error> {
        Node::deserialize(source)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = source.next_element()? {
            list.push(entry);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Node, A::Error> {
        let mut map: Vec<(Spanned<String>, Spanned<Node>)> = Vec::new();
        while let Some(key) = source.next_key::<Spanned<String>>()? {
            if map.iter().any(|(known, _)| known.value == key.value) {
                return Err(A::Error::custom(format!("duplicate key '{}'", key.value)));
            }
            map.push((key, source.next_value()?));
        }
        Ok(Node::Map(map))
    }
}
