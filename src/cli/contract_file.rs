//! A contract as a person wrote it: JSON, YAML or TOML, and which line each of its fields is on.
//!
//! The daemon takes JSON and judges alone. A JSON file goes to it byte for byte; the other two become JSON here, as
//! strictly as the daemon reads: duplicate keys, values without a JSON form and YAML's old spellings of booleans
//! (`yes` stays a string) are not guessed at. When the daemon names a field, its line is looked up here.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;
use toml::de::{DeTable, DeValue};

use super::yaml::{self, Node};
use super::{Exit, Stop};

/// A contract that was read from a file or from standard input.
#[derive(Debug)]
pub struct ContractFile {
    name: String,
    /// What the daemon is sent.
    pub json: Vec<u8>,
    /// Lines, counted from 1, by JSON pointer.
    lines: BTreeMap<String, usize>,
}

/// What is wrong with a contract, and where.
#[derive(Debug, Serialize)]
pub struct Complaint {
    /// What the file is called in messages.
    pub file: String,
    /// Counted from 1. A field that is missing has no line; then it is that of what it is missing from.
    pub line: Option<usize>,
    /// JSON pointer to the field; empty for the text as a whole.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, path, what } = self;
        write!(f, "{file}:")?;
        if let Some(line) = line {
            write!(f, "{line}:")?;
        }
        if !path.is_empty() {
            write!(f, " {path}:")?;
        }
        write!(f, " {what}")
    }
}

/// A text that is not in its format.
#[derive(Debug, PartialEq)]
pub struct Malformed {
    /// Where, if the parser knows.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    Yaml,
    Toml,
}

impl ContractFile {
    /// Reads the file; `-` is standard input.
    ///
    /// The format is told by the name's end. Without one that is known, JSON is tried, then YAML.
    ///
    /// # Errors
    /// [`Exit::Usage`] if it cannot be read, [`Exit::Refused`] if it is not in its format: that names the line.
    pub fn read(path: &Path) -> Result<Self, Stop> {
        Self::load(path)?.map_err(|complaint| Stop::new(Exit::Refused, complaint.to_string()))
    }

    /// Reads the file as [`ContractFile::read`] does, but tells one that is not in its format apart.
    ///
    /// # Errors
    /// [`Exit::Usage`] if it cannot be read.
    pub fn load(path: &Path) -> Result<Result<Self, Complaint>, Stop> {
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let mut bytes = Vec::new();
        let read =
            if is_stdin { std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes) } else { std::fs::read(path) };
        let bytes = read.map_err(|error| Stop::new(Exit::Usage, format!("cannot read {name}: {error}")))?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("json") => Some(Format::Json),
            Some("yaml" | "yml") => Some(Format::Yaml),
            Some("toml") => Some(Format::Toml),
            _ => None,
        };
        let parsed = Self::parse(name.clone(), bytes, format);
        Ok(parsed.map_err(|Malformed { line, what }| Complaint { file: name, line, path: String::new(), what }))
    }

    fn parse(name: String, bytes: Vec<u8>, format: Option<Format>) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| Malformed { line: None, what: format!("not UTF-8 text: {error}") })?;
        let starts_as_object = text.trim_start().starts_with('{');
        let format = format.unwrap_or_else(|| {
            let is_json = starts_as_object || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            if is_json { Format::Json } else { Format::Yaml }
        });
        let mut lines = Lines::default();
        let json = match format {
            Format::Json => {
                // JSON is YAML, nearly; where it is not, the daemon's message goes without a line.
                if let Ok(root) = yaml::parse(text) {
                    lines.yaml(root).ok();
                }
                bytes
            }
            Format::Yaml => lines.yaml(yaml::parse(text)?)?.to_string().into_bytes(),
            Format::Toml => {
                let table = DeTable::parse(text).map_err(|error| Malformed {
                    line: error.span().map(|span| line_at(text, span.start)),
                    what: format!("not TOML: {}", error.message()),
                })?;
                lines.toml_table(text, table.get_ref())?.to_string().into_bytes()
            }
        };
        Ok(Self { name, json, lines: lines.found })
    }

    /// Sets fields of the contract, instead of what the file says.
    ///
    /// Only a text that the daemon would read as it is written can be changed; any other stays, to be refused there.
    pub fn set(&mut self, fields: Map<String, Value>) {
        if fields.is_empty() || crate::domain::json::parse(&self.json).is_err() {
            return;
        }
        if let Ok(Value::Object(mut contract)) = serde_json::from_slice(&self.json) {
            contract.extend(fields);
            self.json = Value::Object(contract).to_string().into_bytes();
        }
    }

    /// Says what is wrong at a field, with its line.
    pub fn complaint(&self, path: &str, what: &str) -> Complaint {
        Complaint { file: self.name.clone(), line: self.line_of(path), path: path.to_owned(), what: what.to_owned() }
    }

    /// Returns the line of the field, or of the nearest that it is in.
    fn line_of(&self, pointer: &str) -> Option<usize> {
        let mut pointer = pointer;
        loop {
            match self.lines.get(pointer) {
                Some(&line) => return Some(line),
                None => pointer = &pointer[..pointer.rfind('/')?],
            }
        }
    }
}

/// Turns what was parsed into JSON, noting the line of every field on the way.
#[derive(Default)]
struct Lines {
    found: BTreeMap<String, usize>,
    at: String,
}

impl Lines {
    fn yaml(&mut self, node: Spanned<Node>) -> Result<Value, Malformed> {
        self.found.entry(self.at.clone()).or_insert_with(|| yaml::line(node.referenced));
        match node.value {
            Node::Scalar(value) => Ok(value),
            Node::List(list) => {
                let mut out = Vec::with_capacity(list.len());
                for (index, entry) in list.into_iter().enumerate() {
                    out.push(self.below(&index.to_string(), yaml::line(entry.referenced), |lines| lines.yaml(entry))?);
                }
                Ok(out.into())
            }
            Node::Map(map) => {
                let mut out = Map::new();
                for (key, value) in map {
                    let value = self.below(&key.value, yaml::line(key.referenced), |lines| lines.yaml(value))?;
                    out.insert(key.value, value);
                }
                Ok(out.into())
            }
        }
    }

    fn toml_table(&mut self, text: &str, table: &DeTable<'_>) -> Result<Value, Malformed> {
        let mut out = Map::new();
        for (key, value) in table {
            let line = line_at(text, key.span().start);
            let value = self.below(key.get_ref(), line, |lines| lines.toml(text, value.get_ref(), line))?;
            out.insert(key.get_ref().clone().into_owned(), value);
        }
        Ok(out.into())
    }

    fn toml(&mut self, text: &str, value: &DeValue<'_>, line: usize) -> Result<Value, Malformed> {
        let wrong = |what: &str| Malformed { line: Some(line), what: format!("{}: {what}", self.at) };
        Ok(match value {
            DeValue::String(value) => value.as_ref().into(),
            DeValue::Integer(value) => {
                i64::from_str_radix(value.as_str(), value.radix()).map_err(|_| wrong("the number is too large"))?.into()
            }
            DeValue::Float(value) => {
                let number = value.as_str().parse().ok().and_then(serde_json::Number::from_f64);
                number.ok_or_else(|| wrong("JSON has no such number"))?.into()
            }
            DeValue::Boolean(value) => (*value).into(),
            DeValue::Datetime(_) => return Err(wrong("a contract has no dates; quote it if it is meant as text")),
            DeValue::Array(array) => {
                let mut out = Vec::with_capacity(array.len());
                for (index, entry) in array.iter().enumerate() {
                    let line = line_at(text, entry.span().start);
                    let entry =
                        self.below(&index.to_string(), line, |lines| lines.toml(text, entry.get_ref(), line))?;
                    out.push(entry);
                }
                out.into()
            }
            DeValue::Table(table) => self.toml_table(text, table)?,
        })
    }

    fn below<T>(&mut self, token: &str, line: usize, visit: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.at.len();
        crate::domain::json::push_pointer(&mut self.at, token);
        self.found.insert(self.at.clone(), line);
        let result = visit(self);
        self.at.truncate(length);
        result
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str, format: Option<Format>) -> Result<ContractFile, Malformed> {
        ContractFile::parse("c".to_owned(), text.as_bytes().to_vec(), format)
    }

    #[track_caller]
    fn check(text: &str, format: Option<Format>, expect: Value) {
        let file = parse(text, format).expect("parses");
        assert_eq!(serde_json::from_slice::<Value>(&file.json).expect("JSON"), expect);
    }

    #[track_caller]
    fn refuses(text: &str, format: Format, line: usize, what: &str) {
        let malformed = parse(text, Some(format)).expect_err("is refused");
        assert_eq!(malformed.line, Some(line), "{malformed:?}");
        assert!(malformed.what.contains(what), "{malformed:?}");
    }

    #[test]
    fn yaml_becomes_json() {
        check(
            "name: 밤 smoke\nrequires:\n- {as: dut, capability: board, attrs: {cores: 4, poe: true, rev: '4'}}\nsteps:\n  - id: look\n    ask:\n      options: [yes, no]\n      timeout_seconds: 1.5\n    needs: []\n    loop: ~\n",
            Some(Format::Yaml),
            json!({"name": "밤 smoke",
                "requires": [{"as": "dut", "capability": "board", "attrs": {"cores": 4, "poe": true, "rev": "4"}}],
                "steps": [{"id": "look", "ask": {"options": ["yes", "no"], "timeout_seconds": 1.5}, "needs": [], "loop": null}]}),
        );
        check("a: &x {k: v}\nb: *x\n", Some(Format::Yaml), json!({"a": {"k": "v"}, "b": {"k": "v"}}));
        check("a: 010\nb: 1_000\nc: 0x10\n", Some(Format::Yaml), json!({"a": "010", "b": "1_000", "c": 16}));
        check("a: |\n  two\n  lines\n", Some(Format::Yaml), json!({"a": "two\nlines\n"}));
    }

    #[test]
    fn yaml_that_would_have_to_be_guessed_at_is_refused() {
        refuses("a: 1\nb: 2\na: 3\n", Format::Yaml, 3, "a");
        refuses("a:\n  b: 1\n  c: {d: 1, d: 2}\n", Format::Yaml, 3, "d");
        refuses("a: 1\nb: [1\n", Format::Yaml, 2, "not YAML");
        refuses("a: 1\nb: .nan\n", Format::Yaml, 2, "not YAML");
        refuses("a: 1\nb: !!python/object x\n", Format::Yaml, 2, "tag");
        assert!(parse("a: 1\n---\na: 2\n", Some(Format::Yaml)).is_err());
    }

    #[test]
    fn toml_becomes_json() {
        check(
            "name = 'n'\npriority = -3\n[[requires]]\nas = 'dut'\nattrs = { cores = 0x4 }\n[[steps]]\nid = 'a'\nask.timeout_seconds = 1.5\n[[steps]]\nid = 'b'\nallow_failure = true\n",
            Some(Format::Toml),
            json!({"name": "n", "priority": -3, "requires": [{"as": "dut", "attrs": {"cores": 4}}],
                "steps": [{"id": "a", "ask": {"timeout_seconds": 1.5}}, {"id": "b", "allow_failure": true}]}),
        );
        refuses("a = 1\na = 2\n", Format::Toml, 2, "duplicate key");
        refuses("a = 1\nb = 2026-01-01\n", Format::Toml, 2, "/b: a contract has no dates");
        refuses("a = 1\nb = inf\n", Format::Toml, 2, "/b: JSON has no such number");
        refuses("a = 1\nb = \n", Format::Toml, 2, "not TOML");
    }

    #[test]
    fn json_is_sent_byte_for_byte_for_the_daemon_to_judge() {
        for text in ["{\"a\": 1, \"a\": 2}", "{\"a\": 1e400", "[1]", ""] {
            assert_eq!(parse(text, Some(Format::Json)).expect("parses").json, text.as_bytes());
        }
    }

    #[test]
    fn a_flag_sets_a_field_but_hides_no_mistake() {
        let set = |text: &str| {
            let mut file = parse(text, Some(Format::Json)).expect("parses");
            file.set(Map::from_iter([("name".to_owned(), json!("n"))]));
            String::from_utf8(file.json).expect("text")
        };
        assert_eq!(set(r#"{"name": "m", "work": "w"}"#), r#"{"name":"n","work":"w"}"#);
        for wrong in [r#"{"work": 1, "work": 2}"#, "{", "[]"] {
            assert_eq!(set(wrong), wrong);
        }
    }

    #[test]
    fn a_text_without_a_name_is_json_or_else_yaml() {
        check(" {\"a\": 1}", None, json!({"a": 1}));
        check("a: 1", None, json!({"a": 1}));
        assert_eq!(parse("{\"a\": ", None).expect("parses").json, b"{\"a\": ", "broken JSON is no YAML");
    }

    #[test]
    fn a_field_has_a_line_in_every_format() {
        let check = |text: &str, format: Format, pointer: &str, line: usize| {
            let file = parse(text, Some(format)).expect("parses");
            assert_eq!(file.line_of(pointer), Some(line), "{pointer} in {text}");
        };
        let yaml = "name: x\nsteps:\n  - id: a\n    run:\n      - make\n      - 4\n  - id: b\n    odd/key: 1\n";
        check(yaml, Format::Yaml, "/name", 1);
        check(yaml, Format::Yaml, "/steps/0/run", 4);
        check(yaml, Format::Yaml, "/steps/0/run/1", 6);
        check(yaml, Format::Yaml, "/steps/1", 7);
        check(yaml, Format::Yaml, "/steps/1/odd~1key", 8);
        check(yaml, Format::Yaml, "/steps/1/uses", 7);
        check(yaml, Format::Yaml, "/requires", 1);
        let json = "{\n  \"name\": \"x\",\n\t\"steps\": [\n    {\"id\": \"a\"},\n    {\n      \"run\": [\"\\n\"]}]}";
        check(json, Format::Json, "/name", 2);
        check(json, Format::Json, "/steps/1/run/0", 6);
        let toml = "name = 'x'\n\n[[steps]]\nid = 'a'\n[[steps]]\nid = 'b'\nrun = [\n  'x',\n  4,\n]\n";
        check(toml, Format::Toml, "/name", 1);
        check(toml, Format::Toml, "/steps/1/id", 6);
        check(toml, Format::Toml, "/steps/1/run/1", 9);
        check(toml, Format::Toml, "/steps/1/uses", 5);
    }

    #[test]
    fn a_complaint_names_file_line_and_field() {
        let file = parse("name: x\nsteps: 3\n", Some(Format::Yaml)).expect("parses");
        assert_eq!(file.complaint("/steps", "expected an array").to_string(), "c:2: /steps: expected an array");
        assert_eq!(file.complaint("", "too large").to_string(), "c:1: too large");
    }
}
