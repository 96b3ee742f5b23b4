//! What must hold for every input, whatever it is.

use mediator::domain::Invalid;
use mediator::domain::contract::Contract;
use mediator::domain::json::{self, Json};
use rustix::time::{ClockId, clock_gettime};

use crate::random::Random;
use crate::seeds::KEYS;

/// How long reading may take, of a debug build's own time: so much, and so much for each byte.
const BASE_NS: i64 = 100_000_000;
const BYTE_NS: i64 = 10_000;

/// Checks all promises on `input`. Returns in a few words how it was answered, without what differs from input to input.
///
/// # Errors
/// The promise that is broken.
pub fn check(input: &[u8]) -> Result<String, String> {
    let began = thread_ns();
    let parsed = json::parse(input);
    let contract = parsed.as_ref().ok().map(Contract::parse);
    let took = thread_ns() - began;
    if took > BASE_NS + BYTE_NS * i64::try_from(input.len()).expect("no length") {
        return Err(format!("too slow: {} ms for {} bytes", took / 1_000_000, input.len()));
    }
    let value = match parsed {
        Ok(value) => value,
        Err(invalid) => {
            points_into(&invalid, input)?;
            return Ok(format!("json {}", answer(&invalid)));
        }
    };
    let canonical = canonical(&value, input)?;
    match contract.expect("it was read") {
        Err(invalid) => {
            points_into(&invalid, input)?;
            Ok(format!("contract {}", answer(&invalid)))
        }
        Ok(contract) => {
            // What the store keeps is the canonical form; a promotion reads that.
            let kept = json::parse(canonical.as_bytes()).and_then(|value| Contract::parse(&value));
            match kept {
                Ok(kept) if kept == contract => {}
                other => return Err(format!("the store: what is kept reads as {other:?} and not as {contract:?}")),
            }
            let odd: Vec<String> = contract.odd().into_iter().map(|odd| kind(&odd.what)).collect();
            Ok(format!("accepted {} {}", shape(&value), odd.join(",")))
        }
    }
}

/// The canonical form is one that it stays in, and the same however the value was written.
fn canonical(value: &Json, input: &[u8]) -> Result<String, String> {
    let text = value.canonical();
    let again = json::parse(text.as_bytes()).map_err(|invalid| format!("canonical: is refused: {invalid}: {text}"))?;
    if again != *value || again.canonical() != text {
        return Err(format!("canonical: is no fixed point: {text} became {}", again.canonical()));
    }
    let mut random =
        Random(input.iter().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte))));
    let mut other = String::new();
    write_otherwise(value, &mut other, &mut random);
    match json::parse(other.as_bytes()) {
        Ok(same) if same.canonical() == text => Ok(text),
        Ok(same) => Err(format!("order: {other} became {} and not {text}", same.canonical())),
        Err(invalid) => Err(format!("order: {other} is refused: {invalid}")),
    }
}

/// Writes a value with its keys in another order, other white space, other escapes, numbers spelled otherwise.
fn write_otherwise(value: &Json, out: &mut String, random: &mut Random) {
    let space = |out: &mut String, random: &mut Random| {
        if random.once_in(4) {
            out.push_str(random.word(&[" ", "\n", "\t", "\r\n", "  "]));
        }
    };
    space(out, random);
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Json::Number(number) => match random.below(3) {
            0 if number.fract() == 0.0 => out.push_str(&format!("{number:.1}")),
            1 => out.push_str(&format!("{number:e}")),
            _ => out.push_str(&json::number_text(*number)),
        },
        Json::Text(text) => write_text(text, out, random),
        Json::List(list) => {
            out.push('[');
            for (at, value) in list.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write_otherwise(value, out, random);
            }
            space(out, random);
            out.push(']');
        }
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            for at in (1..entries.len()).rev() {
                entries.swap(at, random.below(at + 1));
            }
            out.push('{');
            for (at, (key, value)) in entries.into_iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                space(out, random);
                write_text(key, out, random);
                space(out, random);
                out.push(':');
                write_otherwise(value, out, random);
            }
            out.push('}');
        }
    }
    space(out, random);
}

fn write_text(text: &str, out: &mut String, random: &mut Random) {
    out.push('"');
    for c in text.chars() {
        let must = c.is_control() || matches!(c, '"' | '\\');
        if must || random.once_in(8) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&if random.once_in(2) { format!("\\u{unit:04x}") } else { format!("\\u{unit:04X}") });
            }
        } else if c == '/' && random.once_in(2) {
            out.push_str("\\/");
        } else {
            out.push(c);
        }
    }
    out.push('"');
}

/// An error's place is in the input; or it is the place of something that is missing from an object there.
fn points_into(invalid: &Invalid, input: &[u8]) -> Result<(), String> {
    if invalid.what.is_empty() {
        return Err(format!("words: nothing is said of {}", invalid.path));
    }
    let wrong = |why: &str| Err(format!("pointer: {:?} {why} ({})", invalid.path, invalid.what));
    let mut tokens = Vec::new();
    match invalid.path.split_at_checked(1) {
        None => return Ok(()),
        Some(("/", rest)) => tokens.extend(rest.split('/')),
        Some(_) => return wrong("does not begin with a slash"),
    }
    // What others read of it. If they read nothing, there is nothing to compare with.
    let Ok(tree) = serde_json::from_slice::<Tree>(input) else { return Ok(()) };
    let mut places = vec![&tree];
    for (at, token) in tokens.iter().enumerate() {
        let plain = token.replace("~1", "/").replace("~0", "~");
        if token.replace("~0", "").replace("~1", "").contains('~') {
            return wrong("has a wrong escape");
        }
        let is_last = at + 1 == tokens.len();
        let found: Vec<&Tree> = places.iter().flat_map(|place| place.at(&plain)).collect();
        if found.is_empty() && !(is_last && places.iter().any(|place| matches!(place, Tree::Object(_)))) {
            return wrong(&format!("leads nowhere at {token:?}"));
        }
        places = found;
    }
    Ok(())
}

/// A value with all that is in it, keys that are there twice included.
enum Tree {
    Leaf,
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn at(&self, token: &str) -> Vec<&Tree> {
        match self {
            Self::Leaf => Vec::new(),
            Self::List(list) => token.parse().ok().and_then(|at: usize| list.get(at)).into_iter().collect(),
            Self::Object(entries) => entries.iter().filter(|(key, _)| key == token).map(|(_, value)| value).collect(),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Tree {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        macro_rules! leaves {
            ($($name:ident: $kind:ty),*) => { $(fn $name<E>(self, _: $kind) -> Result<Tree, E> { Ok(Tree::Leaf) })* };
        }
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Tree;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("JSON")
            }
            leaves!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
            fn visit_unit<E>(self) -> Result<Tree, E> {
                Ok(Tree::Leaf)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = seq.next_element()? {
                    list.push(value);
                }
                Ok(Tree::List(list))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Tree::Object(entries))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// Leaves of a refusal what tells one check from another: the words, and of which field of the grammar.
fn answer(invalid: &Invalid) -> String {
    let field = invalid.path.split('/').rev().find(|token| KEYS.contains(token));
    format!("{} {}", field.unwrap_or_default(), kind(&invalid.what))
}

/// Leaves what tells one kind of answer from another: neither numbers nor what is quoted.
fn kind(text: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    for c in text.chars().take(300) {
        match c {
            '`' | '"' => quoted = !quoted,
            _ if quoted => {}
            c if c.is_ascii_digit() => {
                if !out.ends_with('0') {
                    out.push('0');
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// Names the fields of a value, each once.
fn shape(value: &Json) -> String {
    fn walk(value: &Json, names: &mut std::collections::BTreeSet<String>, depth: usize) {
        match value {
            Json::List(list) => list.iter().for_each(|value| walk(value, names, depth)),
            Json::Object(map) if depth < 4 => map.iter().for_each(|(key, value)| {
                if KEYS.contains(&key.as_str()) {
                    names.insert(format!("{key} {}", value.kind()));
                }
                walk(value, names, depth + 1);
            }),
            _ => {}
        }
    }
    let mut names = std::collections::BTreeSet::new();
    walk(value, &mut names, 0);
    names.into_iter().take(40).collect::<Vec<_>>().join(" ")
}

fn thread_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
