//! The next input: one of the corpus, changed here and there, as text or as the tree that it is.

use serde_json::{Map, Number, Value};

use crate::random::Random;
use crate::seeds::{KEYS, NUMBERS, TEXTS, TOKENS};

/// Makes the next input from `begin`, of at most about `most` bytes.
pub fn next(random: &mut Random, begin: &[u8], corpus: &[Vec<u8>], most: usize) -> Vec<u8> {
    let mut input = begin.to_vec();
    if !random.once_in(3)
        && let Ok(mut value) = serde_json::from_slice::<Value>(&input)
    {
        // Mostly one change: with several hardly anything is accepted.
        let changes = if random.once_in(3) { 1 + random.below(4) } else { 1 };
        for _ in 0..changes {
            change(&mut value, random, corpus);
        }
        input = value.to_string().into_bytes();
        if !random.once_in(8) {
            input.truncate(most);
            return input;
        }
    }
    for _ in 0..=random.below(6) {
        spoil(&mut input, random, corpus, most);
    }
    input.truncate(most);
    input
}

/// Changes bytes, whatever they mean.
fn spoil(input: &mut Vec<u8>, random: &mut Random, corpus: &[Vec<u8>], most: usize) {
    let from = random.below(input.len() + 1);
    let upto = from + random.below(input.len() - from + 1).min(64);
    match random.below(9) {
        0 if from < input.len() => input[from] = u8::try_from(random.below(256)).expect("a byte"),
        1 if from < input.len() => input[from] ^= 1 << random.below(8),
        2 => drop(input.drain(from..upto)),
        3 => {
            let part = input[from..upto].to_vec();
            drop(input.splice(from..from, part));
        }
        4 => {
            // Much of the same: what is slow with many becomes slow here.
            let part =
                if random.once_in(2) { random.word(TOKENS).as_bytes().to_vec() } else { input[from..upto].to_vec() };
            let times = if random.once_in(200) { most / part.len().max(1) } else { random.below(40) };
            drop(input.splice(from..from, part.repeat(times)));
        }
        5 => {
            let other = random.of(corpus);
            let (a, b) = (random.below(other.len() + 1), random.below(other.len() + 1));
            let part = &other[a.min(b)..a.max(b)];
            drop(input.splice(from..upto, part[..part.len().min(2000)].iter().copied()));
        }
        6 => input.truncate(from),
        _ => drop(input.splice(from..from, random.word(TOKENS).bytes())),
    }
}

/// Changes one value somewhere in the tree.
fn change(value: &mut Value, random: &mut Random, corpus: &[Vec<u8>]) {
    // Down, more often than not.
    let inner = match value {
        Value::Array(list) if !list.is_empty() && !random.once_in(4) => {
            let at = random.below(list.len());
            list.get_mut(at)
        }
        Value::Object(map) if !map.is_empty() && !random.once_in(4) => {
            let at = random.below(map.len());
            map.values_mut().nth(at)
        }
        _ => None,
    };
    if let Some(inner) = inner {
        return change(inner, random, corpus);
    }
    match value {
        Value::Array(list) => change_list(list, random, corpus),
        Value::Object(map) => change_object(map, random, corpus),
        Value::String(text) if !random.once_in(3) => change_text(text, random),
        other => *other = any(random, corpus, 3),
    }
}

fn change_list(list: &mut Vec<Value>, random: &mut Random, corpus: &[Vec<u8>]) {
    let at = random.below(list.len() + 1);
    match random.below(6) {
        0 if at < list.len() => drop(list.remove(at)),
        1 if at < list.len() => {
            let same = list[at].clone();
            let times = if random.once_in(50) { random.below(1200) } else { 1 };
            drop(list.splice(at..at, std::iter::repeat_n(same, times)));
        }
        2 if at < list.len() => {
            let other = random.below(list.len());
            list.swap(at, other);
        }
        3 => list.reverse(),
        _ => list.insert(at, any(random, corpus, 3)),
    }
}

fn change_object(map: &mut Map<String, Value>, random: &mut Random, corpus: &[Vec<u8>]) {
    let key = map.keys().nth(random.below(map.len().max(1))).cloned();
    match (random.below(5), key) {
        (0, Some(key)) => drop(map.remove(&key)),
        (1, Some(key)) => {
            let value = map.remove(&key).expect("it was there");
            map.insert(random.word(KEYS).to_owned(), value);
        }
        (2, Some(key)) => drop(map.insert(key, any(random, corpus, 3))),
        _ => drop(map.insert(random.word(KEYS).to_owned(), any(random, corpus, 3))),
    }
}

fn change_text(text: &mut String, random: &mut Random) {
    match random.below(5) {
        0 => text.push_str(random.word(TEXTS)),
        1 => text.insert_str(0, random.word(TEXTS)),
        2 => drop(text.pop()),
        3 if random.once_in(20) => *text = text.repeat(random.below(3000)),
        _ => *text = random.word(TEXTS).to_owned(),
    }
}

/// Makes a value, or takes a part of another input.
fn any(random: &mut Random, corpus: &[Vec<u8>], depth: usize) -> Value {
    match random.below(if depth == 0 { 5 } else { 9 }) {
        0 => Value::Null,
        1 => Value::Bool(random.once_in(2)),
        2 => Value::Number(random.word(NUMBERS).parse::<Number>().expect("a number")),
        3 | 4 => Value::String(random.word(TEXTS).to_owned()),
        5 => (0..random.below(4)).map(|_| any(random, corpus, depth - 1)).collect(),
        6 => (0..random.below(4))
            .map(|_| (random.word(KEYS).to_owned(), any(random, corpus, depth - 1)))
            .collect::<Map<String, Value>>()
            .into(),
        _ => serde_json::from_slice(random.of(corpus).as_slice()).map_or(Value::Null, |other| part(other, random)),
    }
}

/// Goes down into a value, some way.
fn part(value: Value, random: &mut Random) -> Value {
    match value {
        Value::Array(mut list) if !list.is_empty() && !random.once_in(4) => {
            let inner = list.swap_remove(random.below(list.len()));
            part(inner, random)
        }
        Value::Object(map) if !map.is_empty() && !random.once_in(4) => {
            let at = random.below(map.len());
            part(map.into_values().nth(at).expect("it is there"), random)
        }
        other => other,
    }
}
