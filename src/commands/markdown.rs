//! docs/commands.md, made from [`COMMANDS`]. A test fails where the file is stale;
//! `./dev docs` writes it anew.

use std::fmt::Write;

use super::COMMANDS;
use super::spec::{Argument, Audience, Command, KeyAccess, Keys, Kind};

const HEAD: &str = "\
<!-- Made from src/commands by `./dev docs`; changes here are lost. -->

# Commands

What holds for all of them:

- Amounts of tokens are decimals, kept to a millionth: `tokens` is rounded up, all else
  down, and what was not written as 0 and would become 0 is an error. Rates and periods
  are exact to twelve digits. Durations are seconds, decimals allowed, rounded up to a
  microsecond; moments are Unix time in seconds.
- Pass numbers from Lua as strings: Redis prints a Lua number with 17 digits, so `0.3`
  arrives as 0.29999999999999999 and is a millionth less as a capacity.
- A number is digits, optionally with a dot and an exponent (`10`, `0.5`,
  `1e-7`), at most 64 bytes. Anything else, or out of range, is an error that names
  the argument and its range. An error changes nothing. Besides, what Redis answers to
  any write: `WRONGTYPE`, `OOM` (only where the bucket is new), `READONLY`, `NOREPLICAS`,
  `MISCONF`, `MOVED`, `CROSSSLOT`.
- In replies every duration is in whole **milliseconds**, rounded up, and every
  token count is whole, rounded down. The exact values are in `TB.PEEK`.
- A bucket that does not exist is a full one. A bucket is a key of type
  `tokbucket`; it goes by itself when it is full and nothing else is remembered.

";

/// The whole file.
fn render() -> String {
    let mut text = HEAD.to_owned();
    for command in &COMMANDS {
        write(&mut text, command).unwrap();
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn write(text: &mut String, command: &Command) -> std::fmt::Result {
    let syntax: Vec<_> = command.arguments.iter().map(syntax).collect();
    writeln!(text, "## {}\n\n```\n{} {}\n```\n", command.name, command.name, syntax.join(" "))?;
    writeln!(text, "{}\n", command.summary)?;
    for argument in command.arguments {
        describe(text, argument, "")?;
    }
    let access = match (command.access, command.audience) {
        (KeyAccess::Read, _) => "reads its key; works on a replica",
        (_, Audience::Clients) if command.keys == Keys::Counted => "writes its keys",
        (_, Audience::Clients) if command.blocks => "writes its key; may block its client",
        (_, Audience::Clients) => "writes its key",
        (_, Audience::Servers) => "writes its key; for servers",
    };
    writeln!(text, "\nSince {}; {access}; {}.\n\n{}\n", command.since, command.complexity, command.details.trim())
}

fn describe(text: &mut String, argument: &Argument, indent: &str) -> std::fmt::Result {
    let parts = match argument.kind {
        Kind::OneOf(choices) => Some(("one of", choices)),
        Kind::Block(parts) => Some(("together", parts)),
        _ => None,
    };
    if let Some((relation, parts)) = parts {
        writeln!(text, "{indent}- {relation}, {}:", argument.summary)?;
        return parts.iter().try_for_each(|choice| describe(text, choice, &format!("{indent}  ")));
    }
    writeln!(text, "{indent}- `{}`: {}.", bare_syntax(argument), argument.summary)
}

fn syntax(argument: &Argument) -> String {
    let inner = bare_syntax(argument);
    let inner = if argument.repeats { format!("{inner} [{inner} ...]") } else { inner };
    if argument.optional { format!("[{inner}]") } else { inner }
}

fn bare_syntax(argument: &Argument) -> String {
    match (argument.kind, argument.token) {
        (Kind::Block(parts), _) => parts.iter().map(syntax).collect::<Vec<_>>().join(" "),
        (Kind::OneOf(choices), _) => choices.iter().map(syntax).collect::<Vec<_>>().join(" | "),
        (Kind::Flag, Some(token)) => token.to_owned(),
        (_, Some(token)) => format!("{token} {}", argument.name),
        (_, None) => argument.name.to_owned(),
    }
}

#[test]
fn docs_commands_md_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/commands.md");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(path, render()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == render(), "docs/commands.md is stale: run ./dev docs");
}

#[test]
fn the_arity_of_every_command_is_that_of_its_arguments() {
    for command in &COMMANDS {
        let required = command.arguments.iter().filter(|argument| !argument.optional);
        let words = required.map(|argument| if let Kind::Block(parts) = argument.kind { parts.len() } else { 1 }).sum::<usize>();
        let words = i32::try_from(words + 1).unwrap();
        let fixed = command
            .arguments
            .iter()
            .all(|argument| !argument.optional && !argument.repeats && !matches!(argument.kind, Kind::OneOf(_)));
        assert_eq!(command.arity, if fixed { words } else { -words }, "{}", command.name);
    }
}
