//! What a command takes for an argument, and the text of every error. An error
//! starts with `ERR`, names the argument as the documentation does, says what
//! it may be, and changes nothing.

use crate::connection::Connection;
use crate::server::Server;
use crate::{TOKEN_MS, assert_left_of};

/// What is no number, whatever the range.
const NOT_NUMBERS: [&[u8]; 44] = [
    b"",
    b" ",
    b" 1",
    b"1 ",
    b"1\t",
    b"1\n",
    b"1\r\n",
    b"1\0",
    b"\0",
    b"-1",
    b"-0",
    b"-0.0",
    b"+5",
    b"--1",
    b".5",
    b"5.",
    b".",
    b"1..2",
    b"1.2.3",
    b"1,5",
    b"1_000",
    b"1'000",
    b"0x10",
    b"0b1",
    b"1f",
    b"nan",
    b"NaN",
    b"inf",
    b"-inf",
    b"Infinity",
    b"e",
    b"e5",
    b"1e",
    b"1e+",
    b"1e-",
    b"1.e5",
    b"1e1.5",
    b"1e 5",
    b"1e5e5",
    b"1E++2",
    b"\xff\xfe",
    "\u{ff11}".as_bytes(), // a full-width 1
    "\u{0661}".as_bytes(), // an Arabic-Indic 1
    // 65 bytes, one more than a number may have
    b"00000000000000000000000000000000000000000000000000000000000000001",
];

/// A command with `?` in place of the argument that is tried.
struct Argument {
    command: &'static str,
    error: &'static str,
    /// Outside the range or not what the argument may be.
    bad: &'static [&'static str],
    /// At the ends of the range, and as other languages print them.
    good: &'static [&'static str],
}

const CAPACITY: &str = "ERR capacity must be a number from 0.000001 to 1000000000000";
const RATE: &str = "ERR rate must be a number above 0, at most 1000000000000";
const TOKENS: &str = "ERR tokens must be a number from 0 to 1000000000000";
const TOKENS_UPTO: &str = "ERR tokens must be a number from 1 to 1000000000000 with UPTO";
const PER: &str = "ERR PER must be a number of seconds from 0.001 to 31622400";
const MAXWAIT: &str = "ERR MAXWAIT must be a number of seconds from 0 to 31622400";
const TIMEOUT: &str = "ERR timeout must be a number of seconds from 0 to 31622400";
const SECONDS: &str = "ERR seconds must be a number of seconds from 0 to 100000000000";
const UNTIL: &str = "ERR UNTIL must be a unix time in seconds from 0 to 100000000000";
const REMAINING: &str = "ERR remaining must be a number from 0 to 1000000000000";
const REMAINING_ZERO: &str = "ERR remaining must be 0 or at least 0.000001";
const LIMIT: &str = "ERR LIMIT must be a number from 1 to 1000000000000";
const RESET: &str = "ERR RESET must be a number of seconds from 0 to 100000000000";
const RESETAT: &str = "ERR RESETAT must be a unix time in seconds from 0 to 100000000000";
const TOLERANCE: &str = "ERR TOLERANCE must be a number from 0 to 1000000000000";
const TOLERANCE_ZERO: &str = "ERR TOLERANCE must be 0 or at least 0.000001";
const FILL: &str = "ERR rate must be high enough to fill the capacity within 3155760000 seconds";
const PAY_BACK: &str = "ERR tokens must be few enough to be paid back within 3155760000 seconds";

const ARGUMENTS: &[Argument] = &[
    Argument {
        command: "TB.CONSUME k ? 1e12 0",
        error: CAPACITY,
        bad: &["0", "0.0", "0e5", "0.0000009", "9e-7", "1e-400", "1e13", "1000000000000.1", "1e400"],
        good: &["0.000001", "1e-6", "1", "1.5", "1e12", "1000000000000", "1E+2", "1e05", "12.50"],
    },
    Argument {
        command: "TB.CONSUME k 0.000001 ? 0",
        error: RATE,
        bad: &["0", "0.0", "0e-5", "0e5", "1e13", "1000000000000.1", "1e400"],
        good: &[
            "1e12",
            "1",
            "1e-7",
            "1.1574074074074073e-05",
            "1.1574074074074073E-05",
            "0.000011574074074074073",
            "1E+2",
            "3.3333333333333335",
            "0000000000000000000000000000000000000000000000000000000000000001",
        ],
    },
    Argument {
        command: "TB.CONSUME k 5 1 ?",
        error: TOKENS,
        bad: &["1e13", "1000000000000.1", "1000000000000.0000001", "1e400", "1e99999999999999999999"],
        good: &["0", "0.0", "0e9", "1e-400", "1e-7", "0.0000001", "1", "5", "1e12", "6"],
    },
    Argument { command: "TB.CONSUME k 5 1 ? FORCE", error: TOKENS, bad: &["1e13"], good: &["0", "1e-7", "9"] },
    Argument { command: "TB.CONSUME k 5 1 ? UPTO", error: TOKENS, bad: &[], good: &["1", "1.5", "1e12"] },
    Argument {
        command: "TB.CONSUME k 5 1 ? UPTO",
        error: TOKENS_UPTO,
        bad: &["0", "0.0", "0.5", "0.999", "1e-7", "1e13"],
        good: &["1.0", "1e0"],
    },
    Argument {
        command: "TB.CONSUME k 0.001 1 0 PER ?",
        error: PER,
        bad: &["0", "0.0009", "0.00099999999", "1e-400", "31622401", "31622400.1", "1e9", "1e400"],
        good: &["0.001", "1e-3", "1", "60", "86400", "31622400", "3.16224e7", "0.3333333333333333"],
    },
    Argument {
        command: "TB.CONSUME k 5 1 0 MAXWAIT ?",
        error: MAXWAIT,
        bad: &["31622401", "31622400.1", "1e9", "1e400"],
        good: &["0", "0.0", "1e-400", "1e-9", "0.5", "30", "31622400"],
    },
    Argument { command: "TB.BCONSUME k ? 1e12 0 1", error: CAPACITY, bad: &["0", "1e-7", "1e13"], good: &["1e-6", "1e12"] },
    Argument { command: "TB.BCONSUME k 1e-6 ? 0 1", error: RATE, bad: &["0", "1e13"], good: &["1e12", "1e-9"] },
    Argument { command: "TB.BCONSUME k 5 1 ? 1", error: TOKENS, bad: &["1e13"], good: &["0", "1e-7", "1", "6"] },
    Argument {
        command: "TB.BCONSUME k 5 1 0 ?",
        error: TIMEOUT,
        bad: &["31622401", "31622400.1", "1e9", "1e400"],
        good: &["0", "0.0", "1e-9", "0.5", "31622400"],
    },
    Argument { command: "TB.BCONSUME k 1e-3 1 0 1 PER ?", error: PER, bad: &["0", "31622401"], good: &["0.001", "31622400"] },
    Argument {
        command: "TB.PENALISE penalised ?",
        error: SECONDS,
        bad: &["100000000001", "100000000000.1", "1e12", "1e400"],
        good: &["0", "0.5", "1e-9", "1e-400", "30", "1e11"],
    },
    Argument {
        command: "TB.PENALISE penalised UNTIL ?",
        error: UNTIL,
        bad: &[],
        good: &["0", "1.5", "1700000000", "1700000000.123", "1e11"],
    },
    Argument {
        command: "TB.SYNC k ?",
        error: REMAINING,
        bad: &["1e13", "1000000000000.1", "1e400"],
        good: &["0", "0.0", "0.000001", "1", "2.5", "2.5000009", "1e12"],
    },
    Argument { command: "TB.SYNC k ?", error: REMAINING_ZERO, bad: &["0.0000009", "1e-7", "1e-400"], good: &["0e-9"] },
    Argument {
        command: "TB.SYNC k 5 LIMIT ?",
        error: LIMIT,
        bad: &["0", "0.5", "0.9999999", "1e-7", "1e13", "1000000000000.1", "1e400"],
        good: &["1", "1.5", "100", "1e12"],
    },
    Argument {
        command: "TB.SYNC k 5 RESET ?",
        error: RESET,
        bad: &["100000000001", "100000000000.1", "1e12", "1e400"],
        good: &["0", "0.25", "1e-9", "3600", "1e11"],
    },
    Argument { command: "TB.SYNC k 5 RESETAT ?", error: RESETAT, bad: &[], good: &["0", "1700000000", "1700000000.5", "1e11"] },
    Argument {
        command: "TB.SYNC k 5 TOLERANCE ?",
        error: TOLERANCE,
        bad: &["1e13", "1000000000000.1", "1e400"],
        good: &["0", "0.000001", "0.5", "1e12"],
    },
    Argument { command: "TB.SYNC k 5 TOLERANCE ?", error: TOLERANCE_ZERO, bad: &["0.0000009", "1e-7", "1e-400"], good: &["0.0"] },
    Argument {
        command: "TB.REFUND k ?",
        error: TOKENS,
        bad: &["1e13", "1000000000000.1", "1e400"],
        good: &["0", "0.5", "1", "1e12"],
    },
];

/// Asks with `value` in place of the `?`.
fn ask_with(c: &mut Connection, command: &str, value: &[u8]) -> redis::Value {
    let words: Vec<&[u8]> = command.split_whitespace().map(|word| if word == "?" { value } else { word.as_bytes() }).collect();
    c.ask_bytes(&words)
}

#[track_caller]
fn error_with(c: &mut Connection, command: &str, value: &[u8]) -> String {
    let reply = ask_with(c, command, value);
    crate::connection::error_text(&reply)
        .unwrap_or_else(|| panic!("{command} with {:?}: {reply:?}", value.escape_ascii().to_string()))
}

#[test]
fn what_is_no_number_is_an_error_that_names_the_argument_and_its_range() {
    let server = Server::start();
    let mut c = server.connect();
    for argument in ARGUMENTS {
        // The range with UPTO, and what is too small, are told of numbers only.
        if [TOKENS_UPTO, REMAINING_ZERO, TOLERANCE_ZERO].contains(&argument.error) {
            continue;
        }
        for value in NOT_NUMBERS {
            let error = error_with(&mut c, argument.command, value);
            let shown = value.escape_ascii();
            assert_eq!(error, argument.error, "{} with {shown}", argument.command);
        }
    }
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn a_number_out_of_range_is_an_error_that_says_the_range() {
    let server = Server::start();
    let mut c = server.connect();
    for argument in ARGUMENTS {
        for value in argument.bad {
            let error = error_with(&mut c, argument.command, value.as_bytes());
            assert_eq!(error, argument.error, "{} with {value}", argument.command);
        }
    }
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn a_number_within_its_range_is_taken_as_any_language_prints_it() {
    let server = Server::start();
    let mut c = server.connect();
    for argument in ARGUMENTS {
        for value in argument.good {
            let reply = ask_with(&mut c, argument.command, value.as_bytes());
            let error = crate::connection::error_text(&reply);
            assert_eq!(error, None, "{} with {value}", argument.command);
        }
    }
}

#[test]
fn an_error_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 4");
    let before = c.footprint("k");
    for argument in ARGUMENTS {
        for value in argument.bad.iter().copied().chain(["-1"]) {
            error_with(&mut c, argument.command, value.as_bytes());
            assert_eq!(c.footprint("k"), before, "{} with {value}", argument.command);
        }
    }
    for command in [
        "TB.CONSUME k 20 0.02 1 UPTO FORCE",
        "TB.CONSUME k 20 0.02 1 PER 5 PER 5",
        "TB.CONSUME k 20 0.02 1 MAXWAIT",
        "TB.PENALISE k 5 UNTIL 9",
        "TB.SYNC k 1 LIMIT 2 RESET 5 RESETAT 9",
        "TB.SYNC k 1 FOO",
        "TB.REFUND k 1 2",
        "TB.PEEK k k",
    ] {
        c.error(command);
        assert_eq!(c.footprint("k"), before, "{command}");
    }
}

#[test]
fn a_number_has_at_most_64_bytes() {
    let server = Server::start();
    let mut c = server.connect();
    let longest = format!("2.{}", "0".repeat(62));
    assert_eq!(c.consume(&format!("k 5 1e-8 {longest}")).remaining, 3);
    assert_eq!(c.error(&format!("TB.CONSUME k 5 1e-8 {longest}0")), TOKENS);
    let long = "1".repeat(1_000_000);
    assert_eq!(c.error(&format!("TB.CONSUME k 5 1e-8 {long}")), TOKENS);
}

// ---- what is kept of a number

#[test]
fn tokens_beyond_the_sixth_decimal_are_rounded_up() {
    let server = Server::start();
    let mut c = server.connect();
    for tokens in ["1e-400", "0.0000001", "0.000001", "1e-6"] {
        c.ask("DEL k");
        c.take(&format!("k 10 1e-8 {tokens}"));
        assert_eq!(c.peek("k").tokens(), "9.999999", "{tokens}");
    }
    c.take("k 10 1e-8 2.0000001");
    assert_eq!(c.peek("k").tokens(), "7.999998");
    assert_eq!(c.refund("k 0.0000001"), Some(7));
    assert_eq!(c.peek("k").tokens(), "7.999999");
    // Rounded up it is more than the capacity.
    assert_eq!(c.consume("k 2.5 1e-8 2.5000001").status, "never");
}

#[test]
fn everything_else_beyond_the_sixth_decimal_is_rounded_down() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10.9999999 1e-8 0.000001");
    assert_eq!(c.peek("k").limit().0, "10.999999");
    c.sync("k 5.0000009");
    assert_eq!(c.peek("k").tokens(), "5");
    c.sync("k 5 LIMIT 4.0000009");
    assert_eq!(c.peek("k").tokens(), "4");
    // The tolerance as well: rounded up it would cover two millionths.
    assert_eq!(c.sync("k 3.999998 TOLERANCE 0.0000015"), (1, 3));
    assert_eq!(c.sync("k 3.9999979 TOLERANCE 0"), (1, 3));
    assert_eq!(c.peek("k").tokens(), "3.999997");
}

#[test]
fn durations_are_kept_to_a_microsecond_and_rounded_up() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.penalise("a 0.0000001"), 1);
    assert_eq!(c.penalise("b 0.001"), 1);
    assert_eq!(c.penalise("c 0.0010001"), 2);
    assert_eq!(c.penalise("d 1.5"), 1_500);
}

#[test]
fn rates_are_kept_exactly_to_twelve_digits() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("twelve 1 123.456789012");
    c.keep("twelve");
    assert_eq!(c.peek("twelve").limit(), ("1", "30864197253", "250000000"));
    // Beyond them a rate is a trillionth off at most, either way.
    let full_ms = c.take("third 1 0.3333333333333333").full_ms;
    assert!((3_000..=3_001).contains(&full_ms), "{full_ms}");
    let full_ms = c.take("long 1 1 PER 31622399.9999999999").full_ms;
    assert!((31_622_400_000..=31_622_400_001).contains(&full_ms), "{full_ms}");
}

// ---- beyond one argument

#[test]
fn a_limit_that_takes_too_long_to_fill_is_an_error() {
    let server = Server::start();
    let mut c = server.connect();
    for limit in [
        "1e12 1",
        "1e12 1 1 PER 31622400",
        "1 1e-10",
        "3155760000.000001 1",
        "3155760001 1 1 FORCE",
        "3155760001 1 1 UPTO",
        "3155760001 1 0",
        "189345600001 3600 PER 60",
    ] {
        assert_eq!(c.error(&format!("TB.CONSUME k {limit}")), FILL, "{limit}");
    }
    // Not 0, and far below what any capacity allows.
    assert!(c.error("TB.CONSUME k 1 1e-400").starts_with("ERR rate must be"));
    assert_eq!(c.int("DBSIZE"), 0);
    assert_eq!(c.consume("most 3155760000 1 0").status, "granted");
    assert_eq!(c.consume("most 189345600000 3600 0 PER 60").status, "granted");
    assert_eq!(c.consume("most 1 1 0 PER 31622400").status, "granted");
}

#[test]
fn the_time_to_fill_is_bounded_by_the_setting() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 61 1");
    c.config_set("tokenbucket.max-fill-time", "60");
    let text = "ERR rate must be high enough to fill the capacity within 60 seconds";
    assert_eq!(c.error("TB.CONSUME k 61 1"), text);
    assert_eq!(c.error("TB.CONSUME k 60.000001 1"), text);
    assert_eq!(c.consume("k 60 1").allowed, 1);
}

#[test]
fn a_debt_that_takes_over_a_hundred_years_is_an_error() {
    let server = Server::start();
    let mut c = server.connect();
    let before = c.footprint("k");
    assert_eq!(c.error("TB.CONSUME k 1 1 3155760002 FORCE"), PAY_BACK);
    assert_eq!(c.error("TB.CONSUME k 1 0.001 1e12 FORCE"), PAY_BACK);
    assert_eq!(c.footprint("k"), before);
    c.take("k 1 1 3155000000 FORCE");
    let before = c.footprint("k");
    assert_eq!(c.error("TB.CONSUME k 1 1 1000000 FORCE"), PAY_BACK);
    assert_eq!(c.footprint("k"), before);
    c.take("k 1 1 1000 FORCE");
}

#[test]
fn a_moment_in_milliseconds_is_an_error_that_says_so() {
    let server = Server::start();
    let mut c = server.connect();
    for moment in ["1700000000000", "100000000001", "100000000000.1", "1e12", "1e13", "1e300"] {
        let until = c.error(&format!("TB.PENALISE k UNTIL {moment}"));
        assert_eq!(until, format!("{UNTIL}: this looks like milliseconds"));
        let reset = c.error(&format!("TB.SYNC k 5 RESETAT {moment}"));
        assert_eq!(reset, format!("{RESETAT}: this looks like milliseconds"));
    }
    assert_eq!(c.int("DBSIZE"), 0);
}

// ---- options

#[test]
fn an_unknown_option_is_a_syntax_error() {
    let server = Server::start();
    let mut c = server.connect();
    for command in
        ["TB.CONSUME k 5 1 1", "TB.CONSUME k 5 1 1 PER 5", "TB.BCONSUME k 5 1 1 1", "TB.SYNC k 5", "TB.SYNC k 5 LIMIT 9"]
    {
        for option in ["FOO", "PERS", "NX", "5"] {
            let error = c.error(&format!("{command} {option}"));
            assert_eq!(error, format!("ERR syntax error: unknown option '{option}'"));
        }
    }
    let error = c.error("TB.SYNC k 5 MAXWAIT 5");
    assert_eq!(error, "ERR syntax error: unknown option 'MAXWAIT'");
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn an_unknown_option_is_echoed_to_64_bytes_and_cannot_break_the_protocol() {
    let server = Server::start();
    let mut c = server.connect();
    let long = "x".repeat(100);
    let error = c.error(&format!("TB.SYNC k 5 {long}"));
    assert!(error.contains(&"x".repeat(60)), "{error}");
    assert!(!error.contains(&"x".repeat(65)), "{error}");
    for option in [
        &b"FOO\r\n+OK"[..],
        b"\r\n",
        b"\n",
        b"\0\0",
        b"%n%s%n",
        b"\xff\xfe\xfd",
        "\u{e9}".repeat(40).as_bytes(), // cut within a character
        b"",
        b"'",
    ] {
        let wire = {
            let words: [&[u8]; 4] = [b"TB.SYNC", b"k", b"5", option];
            c.send(&words);
            c.send(&["PING"]);
            // Lossy: what is echoed need not be text, but must be one line.
            c.lines(2)
        };
        assert!(wire[0].starts_with("-ERR syntax error: unknown option '"), "{wire:?}");
        assert_eq!(wire[1], "+PONG");
    }
}

#[test]
fn an_option_given_twice_is_a_syntax_error() {
    let server = Server::start();
    let mut c = server.connect();
    for (command, option) in [
        ("TB.CONSUME k 5 1 1 PER 5 PER 5", "PER"),
        ("TB.CONSUME k 5 1 PER 5 UPTO PER 6", "PER"),
        ("TB.CONSUME k 5 1 1 UPTO UPTO", "UPTO"),
        ("TB.CONSUME k 5 1 1 FORCE FORCE", "FORCE"),
        ("TB.CONSUME k 5 1 1 MAXWAIT 1 MAXWAIT 1", "MAXWAIT"),
        ("TB.BCONSUME k 5 1 1 1 PER 5 per 5", "PER"),
        ("TB.SYNC k 5 LIMIT 9 LIMIT 9", "LIMIT"),
        ("TB.SYNC k 5 RESET 9 RESET 9", "RESET"),
        ("TB.SYNC k 5 RESETAT 9 RESETAT 9", "RESETAT"),
        ("TB.SYNC k 5 TOLERANCE 0 tolerance 0", "TOLERANCE"),
    ] {
        let error = c.error(command);
        assert_eq!(error, format!("ERR syntax error: {option} is given twice"));
    }
}

#[test]
fn options_that_contradict_each_other_are_a_syntax_error() {
    let server = Server::start();
    let mut c = server.connect();
    for (command, later, earlier) in [
        ("TB.CONSUME k 5 1 1 UPTO MAXWAIT 5", "MAXWAIT", "UPTO"),
        ("TB.CONSUME k 5 1 1 MAXWAIT 5 UPTO", "UPTO", "MAXWAIT"),
        ("TB.CONSUME k 5 1 1 UPTO FORCE", "FORCE", "UPTO"),
        ("TB.CONSUME k 5 1 1 FORCE UPTO", "UPTO", "FORCE"),
        ("TB.CONSUME k 5 1 1 FORCE PER 5 MAXWAIT 5", "MAXWAIT", "FORCE"),
        ("TB.CONSUME k 5 1 MAXWAIT 5 force", "FORCE", "MAXWAIT"),
        ("TB.SYNC k 5 RESET 5 RESETAT 5", "RESETAT", "RESET"),
        ("TB.SYNC k 5 RESETAT 5 LIMIT 9 RESET 5", "RESET", "RESETAT"),
    ] {
        let error = c.error(command);
        assert_eq!(error, format!("ERR syntax error: {later} contradicts {earlier}"));
    }
}

#[test]
fn an_option_without_its_value_is_a_syntax_error() {
    let server = Server::start();
    let mut c = server.connect();
    for (command, option) in [
        ("TB.CONSUME k 5 1 1 PER", "PER"),
        ("TB.CONSUME k 5 1 PER", "PER"),
        ("TB.CONSUME k 5 1 1 MAXWAIT", "MAXWAIT"),
        ("TB.BCONSUME k 5 1 1 1 PER", "PER"),
        ("TB.PENALISE k UNTIL", "UNTIL"),
        ("TB.SYNC k 5 LIMIT", "LIMIT"),
        ("TB.SYNC k 5 RESET", "RESET"),
        ("TB.SYNC k 5 RESETAT", "RESETAT"),
        ("TB.SYNC k 5 TOLERANCE", "TOLERANCE"),
    ] {
        let error = c.error(command);
        assert_eq!(error, format!("ERR syntax error: {option} needs a value"));
    }
}

#[test]
fn what_follows_a_penalty_is_a_syntax_error() {
    let server = Server::start();
    let mut c = server.connect();
    for command in ["TB.PENALISE k 5 6", "TB.PENALISE k UNTIL 5 6", "TB.PENALISE k 5 UNTIL 6"] {
        let error = c.error(command);
        assert!(error.starts_with("ERR syntax error") || error.starts_with("ERR wrong number"), "{command}: {error}");
    }
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn options_come_in_any_order_and_any_case() {
    let server = Server::start();
    let mut c = server.connect();
    for call in
        ["k 5 1 1 PER 100 MAXWAIT 200", "k 5 1 1 MAXWAIT 200 PER 100", "k 5 1 per 100 maxwait 200", "k 5 1 MaxWait 200 Per 100"]
    {
        c.ask("DEL k");
        c.take("k 5 1 5 PER 100");
        let reserved = c.consume(call);
        assert_eq!(reserved.verdict(), (1, "reserved", 0), "{call}");
        assert_left_of(100_000, reserved.wait_ms);
    }
    c.ask("DEL k");
    c.take("k 9 1e-8");
    assert_eq!(c.sync("k 4 tolerance 1 Reset 60 limit 6"), (1, 4));
    assert_eq!(c.peek("k").vendor_limit, Some(6));
    c.ask("tb.consume k 9 1e-8 force");
    assert_eq!(c.peek("k").vendor_remaining, Some(3));
}

#[test]
fn the_argument_after_the_rate_is_tokens_unless_it_is_an_option() {
    let server = Server::start();
    let mut c = server.connect();
    for call in ["k 5 1e-8 UPTO", "k 5 1e-8 FORCE", "k 5 1e-8 force", "k 5 1e-8 MAXWAIT 5", "k 5 0.1 PER 1e7", "k 5 0.1 Per 1e7"]
    {
        c.ask("DEL k");
        assert_eq!(c.consume(call).verdict(), (1, "granted", 4), "{call}");
    }
    assert_eq!(c.error("TB.CONSUME k 5 1 FOO"), TOKENS);
    assert_eq!(c.error("TB.CONSUME k 5 1 UPTO 5"), "ERR syntax error: unknown option '5'");
    c.ask("DEL k");
    assert_left_of(5 * TOKEN_MS, c.take("k 5 1e-8 5").full_ms);
}

#[test]
fn a_wrong_number_of_arguments_is_redis_own_error() {
    let server = Server::start();
    let mut c = server.connect();
    for command in [
        "TB.CONSUME",
        "TB.CONSUME k",
        "TB.CONSUME k 5",
        "TB.BCONSUME",
        "TB.BCONSUME k 5 1 1",
        "TB.PENALISE",
        "TB.PENALISE k",
        "TB.SYNC",
        "TB.SYNC k",
        "TB.REFUND k",
        "TB.REFUND k 1 2",
        "TB.PEEK",
        "TB.PEEK k k",
        "TB.STATE",
        "TB.STATE k",
        "TB.STATE k blob more",
    ] {
        let name = command.split_whitespace().next().unwrap();
        let error = c.error(command).to_lowercase();
        let expected = format!("err wrong number of arguments for '{}' command", name.to_lowercase());
        assert_eq!(error, expected, "{command}");
    }
}

#[test]
fn a_request_is_parsed_whole_before_its_key_is_opened() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET k text");
    assert_eq!(c.error("TB.CONSUME k 0 1"), CAPACITY);
    assert_eq!(c.error("TB.CONSUME k 1 1 1 PER 0"), PER);
    assert_eq!(c.error("TB.BCONSUME k 1 1 1 x"), TIMEOUT);
    assert_eq!(c.error("TB.PENALISE k -1"), SECONDS);
    assert_eq!(c.error("TB.SYNC k 5 TOLERANCE x"), TOLERANCE);
    assert_eq!(c.error("TB.REFUND k x"), TOKENS);
    assert!(c.error("TB.CONSUME k 1 1").starts_with("WRONGTYPE"));
    assert!(c.error("TB.BCONSUME k 1 1 1 0").starts_with("WRONGTYPE"));
}

#[test]
fn a_limit_is_read_as_it_is_written_whatever_was_read_before() {
    let server = Server::start();
    let mut c = server.connect();
    // Before anything was read, and after what looks like it.
    for before in ["", "TB.CONSUME k 1 11", "TB.CONSUME k 11 1"] {
        if !before.is_empty() {
            c.ask(before);
        }
        for (capacity, rate) in [("", ""), ("1", "1x"), ("1x", "1"), ("11", ""), ("", "11"), ("111", "")] {
            let error = c.error_bytes(&["TB.CONSUME", "k", capacity, rate]);
            assert!(error.contains(" must be a number "), "{capacity:?} {rate:?}: {error}");
        }
    }
    let mut limit = |call: &str| {
        c.ask("DEL k");
        c.take(&format!("k {call}"));
        let peeked = c.peek("k");
        let (capacity, rate, per) = peeked.limit();
        format!("{capacity} {rate} {per}")
    };
    for _ in 0..2 {
        for (call, expected) in [
            ("1 11", "1 11 1"),
            ("11 1", "11 1 1"),
            ("11 1 PER 60", "11 1 60"),
            ("11 1 PER 61", "11 1 61"),
            ("11 1", "11 1 1"),
            ("12 1", "12 1 1"),
            ("12 0.5", "12 1 2"),
            ("00000000000000000000000000000000000000000000000012 0.5", "12 1 2"),
            ("00000000000000000000000000000000000000000000000013 0.5", "13 1 2"),
        ] {
            assert_eq!(limit(call), expected, "{call}");
        }
    }
    // What was in range is not for ever.
    let mut c = server.connect();
    c.take("other 12 0.5");
    c.config_set("tokenbucket.max-fill-time", "23");
    assert!(c.error("TB.CONSUME other 12 0.5").contains("23"), "the old setting holds");
    c.config_set("tokenbucket.max-fill-time", "24");
    c.take("other 12 0.5");
}
