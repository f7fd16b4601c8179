//! TB.PEEK: the exact state of a bucket, and nothing written.

use redis::Value;

use crate::connection::{array, int, text};
use crate::server::Server;
use crate::{TOKEN_MS, assert_left_of};

const FIELDS: [&str; 10] = [
    "capacity",
    "rate",
    "per",
    "tokens",
    "wait-ms",
    "frozen-ms",
    "full-ms",
    "vendor-limit",
    "vendor-remaining",
    "vendor-reset-ms",
];

#[test]
fn the_reply_is_a_flat_array_in_resp2() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    c.sync("k 7 LIMIT 9 RESET 600");
    let reply = array(c.ask("TB.PEEK k"));
    let names: Vec<_> = reply.iter().step_by(2).map(text).collect();
    assert_eq!(names, FIELDS);
    assert_eq!(reply.len(), 2 * FIELDS.len());
}

#[test]
fn the_reply_is_a_map_in_resp3() {
    let server = Server::start();
    let mut c = server.connect_resp3();
    c.take("k 10 1e-8 4");
    let Value::Map(reply) = c.ask("TB.PEEK k") else { panic!("not a map") };
    let names: Vec<_> = reply.iter().map(|(name, _)| text(name)).collect();
    assert_eq!(names, FIELDS);
}

#[test]
fn decimals_are_bulk_strings_and_durations_integers() {
    let server = Server::start();
    for (key, null, mut c) in [("a", "$-1\r\n", server.connect()), ("b", "_\r\n", server.connect_resp3())] {
        c.take(&format!("{key} 10 0.001 5"));
        c.refund(&format!("{key} 10"));
        let head = if null == "_\r\n" { "%10\r\n" } else { "*20\r\n" };
        let fields = [
            ("capacity", "$2\r\n10\r\n"),
            ("rate", "$1\r\n1\r\n"),
            ("per", "$4\r\n1000\r\n"),
            ("tokens", "$2\r\n10\r\n"),
            ("wait-ms", ":0\r\n"),
            ("frozen-ms", ":0\r\n"),
            ("full-ms", ":0\r\n"),
            ("vendor-limit", null),
            ("vendor-remaining", null),
            ("vendor-reset-ms", null),
        ];
        let body = fields.map(|(name, value)| format!("${}\r\n{name}\r\n{value}", name.len()));
        // Whether a name is a bulk or a simple string is the same to a client.
        let simple = fields.map(|(name, value)| format!("+{name}\r\n{value}"));
        let wire = c.wire(&format!("TB.PEEK {key}"));
        let either = [body, simple].map(|fields| format!("{head}{}", fields.concat()));
        assert!(either.contains(&wire), "{wire}");
    }
}

#[test]
fn the_reply_is_null_where_there_is_no_bucket() {
    let server = Server::start();
    assert_eq!(server.connect().wire("TB.PEEK k"), "$-1\r\n");
    assert_eq!(server.connect_resp3().wire("TB.PEEK k"), "_\r\n");
}

#[test]
fn peeking_writes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.ask("TB.PEEK missing"), Value::Nil);
    assert_eq!(c.int("DBSIZE"), 0);
    c.take("k 10 0.01 4");
    c.sync("k 7 LIMIT 9 RESET 600");
    c.penalise("k 100");
    c.penalise("bare 100");
    for key in ["k", "bare"] {
        c.int(&format!("PEXPIRE {key} 99999999")); // wrong, and not to be mended
        let before = c.footprint(key);
        c.peek(key);
        assert_eq!(c.footprint(key), before, "{key}");
    }
}

#[test]
fn rate_and_per_are_in_lowest_terms() {
    let server = Server::start();
    let mut c = server.connect();
    for (limit, rate, per) in [
        ("100 PER 10", "10", "1"),
        ("0.5", "1", "2"),
        ("1e-7", "1", "10000000"),
        ("10 PER 0.5", "20", "1"),
        ("2.5", "5", "2"),
        ("1 PER 2.5", "2", "5"),
        ("1 PER 86400", "1", "86400"),
        ("7 PER 31622400", "7", "31622400"),
        ("0.123456789012", "30864197253", "250000000000"),
        ("1.00000000001 PER 3", "100000000001", "300000000000"),
        ("3 PER 1.00000000001", "300000000000", "100000000001"),
        ("1e12", "1000000000000", "1"),
        ("1 PER 0.001", "1000", "1"),
    ] {
        c.ask("DEL k");
        c.take(&format!("k 1 {limit}"));
        c.keep("k");
        let bucket = c.peek("k");
        assert_eq!(bucket.limit(), ("1", rate, per), "{limit}");
    }
}

#[test]
fn capacity_is_a_plain_decimal_without_trailing_zeros() {
    let server = Server::start();
    let mut c = server.connect();
    for (given, shown) in [
        ("10", "10"),
        ("2.500", "2.5"),
        ("1e3", "1000"),
        ("0.000001", "0.000001"),
        ("1e-6", "0.000001"),
        ("1e12", "1000000000000"),
        ("007.10", "7.1"),
        ("123456.789012", "123456.789012"),
    ] {
        c.ask("DEL k");
        c.take(&format!("k {given} 1e4 0.000001"));
        c.keep("k");
        assert_eq!(c.peek("k").limit().0, shown, "{given}");
    }
}

#[test]
fn tokens_have_six_decimals_at_most_and_are_rounded_down() {
    let server = Server::start();
    let mut c = server.connect();
    for (taken, tokens) in [("1", "9"), ("0.5", "9.5"), ("0.000001", "9.999999"), ("9.99", "0.01"), ("10", "0")] {
        c.ask("DEL k");
        c.take(&format!("k 10 1e-8 {taken}"));
        assert_eq!(c.peek("k").tokens(), tokens, "{taken}");
    }
    // A third of a token each second: no level is a round number for long.
    c.take("fine 10 1 10 PER 3");
    let tokens = c.peek("fine").tokens().to_owned();
    let decimals = tokens.split_once('.').map_or("", |(_, decimals)| decimals);
    assert!(decimals.len() <= 6 && !decimals.ends_with('0'), "{tokens}");
}

#[test]
fn tokens_are_negative_in_debt() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 14 FORCE");
    assert_eq!(c.peek("k").tokens(), "-4");
    c.take("k 10 1e-8 0.25 FORCE");
    assert_eq!(c.peek("k").tokens(), "-4.25");
    c.penalise("frozen 100");
    c.consume("frozen 10 1"); // brings the limit: 100 s at 1 token a second
    let tokens: f64 = c.peek("frozen").tokens().parse().unwrap();
    assert!((-100.0..=-95.0).contains(&tokens), "{tokens}");
}

#[test]
fn wait_ms_is_until_there_is_one_token() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 8.5");
    assert_eq!(c.peek("k").wait_ms, Some(0));
    c.take("k 10 0.01");
    assert_left_of(50_000, c.peek("k").wait_ms.unwrap());
    c.take("k 10 0.01 1.5 FORCE");
    assert_left_of(200_000, c.peek("k").wait_ms.unwrap());
    c.sync("k 0 RESET 900");
    assert_left_of(900_000, c.peek("k").wait_ms.unwrap());
    c.penalise("k 1000");
    assert_left_of(1_100_000, c.peek("k").wait_ms.unwrap());
}

#[test]
fn wait_ms_is_minus_one_where_the_capacity_is_below_one() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 0.5 1 0.25");
    assert_eq!(c.peek("k").wait_ms, Some(-1));
}

#[test]
fn full_ms_is_until_the_bucket_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    assert_left_of(4 * TOKEN_MS, c.peek("k").full_ms.unwrap());
    c.sync("k 10 LIMIT 8");
    assert_left_of(2 * TOKEN_MS, c.peek("k").full_ms.unwrap());
    c.take("fast 10 1e6");
    c.keep("fast");
    assert_eq!(c.peek("fast").full_ms, Some(0));
}

#[test]
fn frozen_ms_is_zero_where_nothing_is_frozen_and_the_vendor_s_part_null() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 20 FORCE");
    let bucket = c.peek("k");
    assert_eq!(bucket.frozen_ms, 0);
    assert_eq!(bucket.vendor_limit, None);
    assert_eq!(bucket.vendor_remaining, None);
    assert_eq!(bucket.vendor_reset_ms, None);
}

#[test]
fn the_vendor_s_part_is_whole_and_rounded_down() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    c.sync("k 3.75 LIMIT 8.5 RESET 600.5");
    let bucket = c.peek("k");
    assert_eq!(bucket.vendor_limit, Some(8));
    assert_eq!(bucket.vendor_remaining, Some(3));
    assert_left_of(600_500, bucket.vendor_reset_ms.unwrap());
}

#[test]
fn a_bucket_without_a_limit_shows_what_it_remembers() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("k 100");
    c.sync("k 3 LIMIT 8 RESET 0");
    let reply = c.ask("TB.PEEK k");
    for (name, value) in crate::connection::pairs(reply) {
        match text(&name).as_str() {
            "frozen-ms" => assert_left_of(100_000, int(&value)),
            "vendor-limit" => assert_eq!(int(&value), 8),
            name => assert_eq!(value, Value::Nil, "{name}"),
        }
    }
}
