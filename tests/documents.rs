//! The documents: what they show happens, and the tests they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use redis::Value;

use crate::server::Server;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The names of all tests, also those that a macro declares.
fn names_of_tests() -> BTreeSet<String> {
    let files = ["src", "tests", "crates"].iter().flat_map(|folder| sources(&root().join(folder)));
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
                if std::mem::take(&mut is_test) {
                    names.insert(rest.split('(').next().unwrap().to_owned());
                }
            } else if !line.starts_with("#[") {
                is_test = false;
            }
        }
    }
    names
}

#[test]
fn every_test_that_the_promises_name_exists() {
    let promises = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let lines = promises.lines().filter(|line| line.starts_with("- "));
    let named: Vec<&str> = lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 100, "only {} tests are named", named.len());
    let known = names_of_tests();
    let missing: Vec<&str> = named.into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/promises.md names tests that do not exist: {missing:?}");
}

#[test]
fn every_promise_and_rule_names_a_test() {
    let promises = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    for paragraph in promises.split("\n\n").filter(|paragraph| paragraph.starts_with("**")) {
        assert!(paragraph.contains("\n- `"), "names no test: {paragraph}");
    }
}

#[test]
fn the_instructions_in_the_readme_are_those_that_were_counted() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (readme, numbers) = (read("README.md"), read("benches/numbers.md"));
    let counted = |name: &str| {
        let line = numbers.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
        line.split('|').nth(2).unwrap().trim().to_owned()
    };
    let [incr, allowed, denied] = ["INCR", "TB.CONSUME, allowed", "TB.CONSUME, denied"].map(counted);
    let told = format!("| instructions of the whole server (`INCR`: {incr}) | {allowed} | {denied} |");
    assert!(readme.contains(&told), "README.md does not say {told}");
}

#[test]
fn the_recipes_are_the_files_that_are_tried() {
    let recipes = fs::read_to_string(root().join("docs/recipes.md")).unwrap();
    let shown: Vec<(&str, &str)> = recipes.split("<!-- ").skip(1).filter_map(|part| part.split_once(" -->\n")).collect();
    assert_eq!(shown.len(), recipes.matches("\nTried, with").count(), "a recipe that is tried shows its file");
    for (file, rest) in shown {
        let block = rest.split("```").nth(1).unwrap();
        let (_, text) = block.split_once('\n').unwrap();
        assert_eq!(text, fs::read_to_string(root().join(file)).unwrap(), "docs/recipes.md shows another {file}");
    }
}

/// One line of a session: what is sent, or one element of what comes back.
fn session(document: &str) -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let block = text.split("```").find(|block| block.contains("$ redis-cli")).unwrap().to_owned();
    let mut calls: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            calls.push((command.to_owned(), Vec::new()));
        } else if let Some((_, reply)) = calls.last_mut() {
            let shown = line.split_once(") ").map_or(line, |(number, rest)| if number.len() == 1 { rest } else { line });
            let value = match shown.strip_prefix("(integer) ") {
                Some(number) => number.split_whitespace().next().unwrap().to_owned(),
                None => shown.split('"').nth(1).unwrap_or_default().to_owned(),
            };
            reply.push(value);
        }
    }
    calls
}

#[test]
fn the_session_in_the_readme_is_what_a_server_answers() {
    let server = Server::start();
    let mut c = server.connect();
    let calls = session("README.md");
    assert!(calls.len() >= 8, "the session has only {} calls", calls.len());
    for (command, shown) in calls {
        let reply = match c.ask(&command) {
            Value::Array(elements) => elements,
            single => vec![single],
        };
        let shown: Vec<&String> = shown.iter().filter(|value| !value.is_empty()).collect();
        assert_eq!(reply.len(), shown.len(), "{command}");
        for (element, shown) in reply.iter().zip(shown) {
            match element {
                // Small numbers are counts; large ones are milliseconds, which run on.
                Value::Int(number) => {
                    let expected: i64 = shown.parse().unwrap();
                    let slack = if expected < 10 { 0 } else { 5_000 };
                    assert!((number - expected).abs() <= slack, "{command}: shown {expected}, found {number}");
                }
                Value::BulkString(text) => assert_eq!(String::from_utf8_lossy(text), *shown, "{command}"),
                other => panic!("{command}: {other:?}"),
            }
        }
    }
}
