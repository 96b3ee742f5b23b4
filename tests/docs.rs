//! The documents say what the code says: what has a table in the code is listed in its document, links lead somewhere,
//! and the examples keep the grammar. The code's side is read as text, so that nothing has to be public for it.

use std::fs;
use std::path::{Path, PathBuf};

use mediator::domain::contract::Contract;
use mediator::domain::json;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the texts between each `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0)).collect()
}

#[test]
fn every_route_is_in_the_reference() {
    let source = read("src/http/routes.rs");
    let table = between(&source, "\nroutes! {\n", "\n}\n")[0];
    // `{id}`, `{seq}` and `{path}` are what the table calls `*` and `**`.
    let mut document = read("docs/http.md");
    for variable in ["{id}", "{seq}", "{path}", "{key}"] {
        document = document.replace(variable, "*");
    }
    let mut routes = 0;
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        let (method, rest) = line.split_once(' ').expect("a method first");
        let pattern = rest.split('"').nth(1).expect("then a pattern").replace("**", "*");
        let wanted = format!("{method} /{pattern}");
        let mut places = document.match_indices(&wanted);
        // Followed by more of a path it is another route.
        let listed = places.any(|(at, _)| !document[at + wanted.len()..].starts_with('/'));
        assert!(listed, "docs/http.md does not have `{wanted}`");
        routes += 1;
    }
    assert!(routes > 20, "found only {routes} routes: has the table moved?");
}

#[test]
fn every_problem_is_in_the_reference() {
    let (source, document) = (read("src/http/problem.rs"), read("docs/http.md"));
    let table = between(&source, "const CODES", "\n];")[0];
    let entries = between(table, "    (\"", "Retry::");
    assert!(entries.len() > 20, "found only {} problems: has the table moved?", entries.len());
    for entry in entries {
        let (code, rest) = entry.split_once("\", ").expect("a code first");
        let status = &rest[..3];
        let wanted = format!("| {status} | `{code}` |");
        assert!(document.contains(&wanted), "docs/http.md does not have `{wanted}`");
    }
}

#[test]
fn every_setting_is_in_the_reference() {
    let (source, document) = (read("src/config/mod.rs"), read("docs/configuration.md"));
    let table = between(&source, "const SETTINGS", "\n];")[0];
    let names = between(table, "name: \"", "\"");
    assert!(names.len() > 10, "found only {} settings: has the table moved?", names.len());
    for name in names {
        assert!(document.contains(&format!("| `{name}` |")), "docs/configuration.md does not have `{name}`");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut files = markdown(root());
    for folder in ["docs", "docs/decisions"] {
        files.extend(markdown(&root().join(folder)));
    }
    assert!(files.len() > 10, "found only {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("it was listed");
        for target in between(&text, "](", ")").into_iter().filter(|target| !target.contains("://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.clone() } else { file.parent().expect("in a folder").join(path) };
            assert!(path.exists(), "{}: {target} is not there", file.display());
            if !anchor.is_empty() {
                let other = fs::read_to_string(&path).expect("an anchor is in a text");
                let mut headings = other.lines().filter(|line| line.starts_with('#')).map(anchor_of);
                assert!(headings.any(|own| own == anchor), "{}: {target} has no such heading", file.display());
            }
        }
    }
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns a heading's anchor, as the common renderers make it.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || "- _".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_example_keeps_the_grammar() {
    let mut examples = 0;
    for entry in fs::read_dir(root().join("examples")).expect("there are examples") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let body = json::parse(&fs::read(&path).expect("readable"));
            let contract = body.and_then(|body| Contract::parse(&body));
            assert!(contract.is_ok(), "{}: {}", path.display(), contract.unwrap_err());
            examples += 1;
        }
    }
    assert!(examples >= 5, "found only {examples} examples");
}

/// `make mutants` removes one guard at a time. What it looks for must be there, or its table would promise nothing.
#[test]
fn every_guard_of_the_table_of_mutants_is_where_it_says() {
    let table: toml::Table = read("tests/mutants/table.toml").parse().expect("TOML");
    let mutants = table["mutant"].as_array().expect("a list");
    assert!(mutants.len() >= 26, "only {} mutants", mutants.len());
    let tests = ["tests/it", "tests/crash", "src"].map(|folder| sources(&root().join(folder))).concat();
    for mutant in mutants {
        let text = |name: &str| mutant[name].as_str().unwrap_or_else(|| panic!("{mutant}: {name}"));
        let (name, old) = (text("name"), text("old"));
        assert_eq!(read(text("file")).matches(old).count(), 1, "{name}: the old text must be in its file once");
        assert_ne!(old, text("new"), "{name}: nothing is changed");
        for field in ["guard", "rule"] {
            assert!(!text(field).is_empty() && !text(field).contains('|'), "{name}: {field}");
        }
        let red = mutant["red"].as_array().expect("a list");
        assert!(!red.is_empty(), "{name}: nothing must turn red");
        for command in red {
            let (_, filters) = command.as_str().expect("a text").split_once(" -- ").expect("a filter");
            for filter in filters.split(' ') {
                let (module, test) = filter.rsplit_once("::").expect("module::test");
                let is_there = match test {
                    "" => tests.contains(&format!("mod {};", module.rsplit("::").next().expect("one at least"))),
                    test => tests.contains(&format!("fn {test}")),
                };
                assert!(is_there, "{name}: there is no test {filter}");
            }
        }
    }
}

/// Returns all Rust of a folder.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all += &fs::read_to_string(&path).expect("readable");
        }
    }
    all
}
