//! Where it begins: the examples, a contract with everything in it, and what JSON is known to hurt with (as
//! tests/hostile/json.py, which asks a whole daemon).

use std::path::Path;

/// A contract that has every field of the grammar.
const WHOLE: &str = r#"{"name":"all","run_id":"r-1","work":"gerrit:4711","distinct_nodes":true,"priority":-3,
 "queue_timeout_seconds":0.5,"limit_seconds":3600,"attended":true,
 "requires":[{"as":"dut","capability":"board","attrs":{"model":"rpi4","slots":2,"hot":true},"count":2},
             {"as":"host","capability":"build"}],
 "steps":[{"id":"get","acquire":{"want":{"as":"extra","capability":"scope","attrs":{"bw":100}},"acquired":"a","unavailable":"b"}},
  {"id":"a","uses":"dut.1","run":["sh","-c","true"],"env":{"K":"v","N":1,"B":false},"pass_env":["PATH"],"timeout_seconds":1.5,
   "artifacts":["out/x.log"],"needs":["get"],"release":["host"],"allow_failure":true,"loop":{"back_to":"a","max":3}},
  {"id":"b","ask":{"prompt":"ok?","options":["y","n"],"accept":["y"],"answerers":["kim"],"timeout_seconds":60},"needs":[]},
  {"id":"c","hold":{"timeout_seconds":5},"needs":["a","b"],"release":["dut.0","extra"]}]}"#;

/// Keys of the grammar, and some that are none.
pub const KEYS: &[&str] = &[
    "name",
    "run_id",
    "work",
    "requires",
    "steps",
    "priority",
    "queue_timeout_seconds",
    "limit_seconds",
    "attended",
    "distinct_nodes",
    "as",
    "capability",
    "attrs",
    "count",
    "id",
    "uses",
    "run",
    "ask",
    "acquire",
    "hold",
    "needs",
    "release",
    "allow_failure",
    "loop",
    "env",
    "pass_env",
    "timeout_seconds",
    "artifacts",
    "prompt",
    "options",
    "accept",
    "answerers",
    "want",
    "acquired",
    "unavailable",
    "back_to",
    "max",
    "node",
    "",
    "a/b",
    "a~b",
    "~1",
    "~",
    "é",
    "\u{1f600}",
    "\u{fb33}",
    "0",
    "-1",
    "dut",
    "A=B",
    "NUL",
    "__proto__",
    " ",
];

/// Texts: ids, references, paths, and what is none of them.
pub const TEXTS: &[&str] = &[
    "",
    "a",
    "b",
    "c",
    "get",
    "dut",
    "dut.0",
    "dut.1",
    "dut.31",
    "dut.32",
    "dut.01",
    "dut.+1",
    "dut.",
    ".",
    "..",
    "host",
    "extra",
    "board",
    "true",
    "../x",
    "/abs",
    "a//b",
    "a/./b",
    "a\\b",
    "C:\\x",
    "-",
    "-a",
    "_",
    "x/",
    "\t",
    "\n",
    "é",
    "\u{1f600}",
    "\u{ffff}",
    "\u{2028}",
    "\u{feff}",
    "\u{200b}",
    "A=B",
    "=",
    "PATH",
    "MEDIATOR_RUN_ID",
    "{\"a\":1}",
    "[[[[",
    "0",
    "1e9",
    "null",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Numbers at the edges of what is taken.
pub const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "-0.0",
    "1",
    "2",
    "-1",
    "10",
    "11",
    "-10",
    "-11",
    "32",
    "33",
    "100",
    "101",
    "500",
    "0.5",
    "1.5",
    "1e0",
    "1e-3",
    "5e-324",
    "1e-7",
    "1e21",
    "0.1",
    "1e15",
    "1e16",
    "1e308",
    "86400",
    "2592000",
    "31536000000",
    "9007199254740991",
    "9007199254740992",
    "-9007199254740991",
    "-9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "123456789.123456789",
    "4503599627370496.5",
    "0.000001",
    "3.0000000000000004",
];

/// Pieces of text that mean something in JSON, or nearly.
pub const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\\"",
    "\\\\",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\ud83d\\ude00",
    "\\u00e9",
    "\\/",
    "\\b",
    "\\x41",
    "\\r",
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-",
    "+",
    ".",
    "e",
    "1e400",
    "01",
    "0x10",
    "9007199254740992",
    "9007199254740991.0",
    "-0.0",
    "0.",
    " ",
    "\n",
    "\r",
    "\t",
    "\u{c}",
    "\0",
    "\u{7f}",
    "\u{9b}",
    "\u{2028}",
    "\u{feff}",
    "//",
    "/*",
    "#",
    "'",
    "[[",
    "]]",
    "{\"a\":",
    "\"a\":1,",
    "\"a\":1,\"a\":2",
    "\"steps\":[],",
    "\"requires\":[],",
    "\"id\":\"a\",",
    "\"needs\":[\"a\"],",
    "\"hold\":{},",
    "\"uses\":\"dut\",",
    "\"attrs\":{\"a\":1},",
    "0,",
    "\"\",",
    "null,",
];

/// What is there at the beginning.
pub fn all() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    let mut folder: Vec<_> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"))
        .expect("there are examples")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    // The same order on every machine: a seed is to repeat it.
    folder.sort();
    seeds.extend(folder.iter().map(|path| std::fs::read(path).expect("readable")));
    seeds.push(WHOLE.into());
    let field = |text: &str| format!("{},{text}}}", WHOLE.trim_end_matches('}')).into_bytes();
    let nested = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count));
    for text in [
        "",
        "{}",
        "[]",
        "null",
        "1",
        "\"x\"",
        "{",
        "[",
        "\"",
        " \n",
        "{\"a\":1,\"a\":2}",
        "{\"a\":{\"b\":1,\"b\":2}}",
        "\u{feff}{}",
    ] {
        seeds.push(text.into());
    }
    seeds.extend([31, 32, 33, 34, 127, 128, 129].map(|count| nested(count).into_bytes()));
    seeds.extend([31, 32, 33].map(|count| format!("{}1{}", "{\"a\":".repeat(count), "}".repeat(count)).into_bytes()));
    seeds.push("[".repeat(5000).into());
    seeds.push(nested(200).into_bytes());
    seeds.extend(NUMBERS.iter().map(|number| field(&format!("\"work\":{number}"))));
    seeds.push(field("\"name\":null,\"name\":\"x\""));
    seeds.push(field("\"na\\u006de\":\"y\""));
    for bytes in [
        &b"\xff"[..],
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\\ud800",
        b"\\udc00\\ud800",
        b"\\u004",
        b"\0",
    ] {
        seeds.push([b"{\"name\":\"", bytes, b"\"}"].concat());
    }
    let many = |count: usize, step: &dyn Fn(usize) -> String| {
        let steps: Vec<String> = (0..count).map(step).collect();
        format!("{{\"requires\":[{{\"as\":\"dut\",\"capability\":\"b\"}}],\"steps\":[{}]}}", steps.join(","))
            .into_bytes()
    };
    seeds.push(many(500, &|at| format!("{{\"id\":\"s{at}\",\"uses\":\"dut\",\"run\":[\"true\"]}}")));
    seeds.push(many(40, &|at| {
        let needs: Vec<String> = (0..at).map(|before| format!("\"s{before}\"")).collect();
        format!("{{\"id\":\"s{at}\",\"hold\":{{}},\"needs\":[{}]}}", needs.join(","))
    }));
    seeds
}
