//! TB.PENALISE: a freeze that nothing ends before its time, and what is left
//! of a bucket when it thaws.

use crate::server::{Server, wait_as_told};
use crate::{LAG_MS, TOKEN_MS, assert_left_of};

#[test]
fn the_reply_is_one_integer_in_both_protocols() {
    let server = Server::start();
    for (key, mut c) in [("a", server.connect()), ("b", server.connect_resp3())] {
        assert_eq!(c.wire(&format!("TB.PENALISE {key} 30")), ":30000\r\n");
    }
}

#[test]
fn a_penalty_is_in_seconds_and_its_reply_in_milliseconds_rounded_up() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.penalise("whole 30"), 30_000);
    assert_eq!(c.penalise("decimal 0.25"), 250);
    assert_eq!(c.penalise("micro 0.0001"), 1);
    assert_eq!(c.penalise("nano 1e-9"), 1);
    assert_eq!(c.penalise("none 0"), 0);
}

#[test]
fn a_penalised_bucket_is_frozen_until_the_end_given() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    assert_eq!(c.penalise("k 100"), 100_000);
    let denied = c.consume("k 5 0.1");
    assert_eq!(denied.verdict(), (0, "frozen", 0));
    assert_left_of(110_000, denied.wait_ms);
    assert_left_of(150_000, denied.full_ms);
    assert_left_of(100_000, c.peek("k").frozen_ms);
}

#[test]
fn a_penalty_until_a_moment_ends_at_that_moment() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1");
    let now_us = c.time_us();
    let end = now_us / 1_000_000 + 100;
    let until_end_ms = end * 1_000 - now_us / 1_000;
    assert_left_of(until_end_ms, c.penalise(&format!("k UNTIL {end}")));
    assert_left_of(until_end_ms, c.peek("k").frozen_ms);
    let later = format!("{}.75", end + 100);
    assert_left_of(until_end_ms + 100_750, c.penalise(&format!("k until {later}")));
}

#[test]
fn no_seconds_only_empty_the_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8");
    assert_eq!(c.penalise("k 0"), 0);
    let denied = c.consume("k 5 1e-8");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(TOKEN_MS, denied.wait_ms);
    let bucket = c.peek("k");
    assert_eq!((bucket.tokens(), bucket.frozen_ms), ("0", 0));
}

#[test]
fn a_moment_in_the_past_only_empties_the_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    let minute_ago = c.time_us() / 1_000_000 - 60;
    for past in ["0".to_owned(), "1.5".to_owned(), minute_ago.to_string()] {
        c.ask("DEL k");
        c.take("k 5 1e-8");
        assert_eq!(c.penalise(&format!("k UNTIL {past}")), 0);
        assert_eq!(c.consume("k 5 1e-8").verdict(), (0, "empty", 0));
    }
}

#[test]
fn there_is_no_burst_at_the_thaw() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    wait_as_told(c.penalise("k 0.2"));
    let denied = c.consume("k 5 0.1");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    // Nothing refilled before the thaw, so a whole token is missing at it.
    assert!(denied.wait_ms <= 10_000 && denied.wait_ms > 10_000 - LAG_MS);
    assert_eq!(c.peek("k").frozen_ms, 0);
}

#[test]
fn what_is_left_of_a_greater_debt_remains_at_the_thaw() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1 25 FORCE"); // 200 s of debt
    assert_left_of(200_000, c.penalise("k 50"));
    assert_left_of(50_000, c.peek("k").frozen_ms);
    assert_left_of(210_000, c.consume("k 5 0.1").wait_ms);
    // The debt that is paid off by then is not added to the freeze.
    assert_eq!(c.penalise("k 300"), 300_000);
    assert_left_of(310_000, c.consume("k 5 0.1").wait_ms);
}

#[test]
fn the_later_of_two_penalties_holds() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    assert_eq!(c.penalise("k 100"), 100_000);
    assert_left_of(100_000, c.penalise("k 20"));
    assert_left_of(100_000, c.penalise("k 0"));
    assert_left_of(100_000, c.penalise("k UNTIL 1"));
    assert_left_of(100_000, c.peek("k").frozen_ms);
    assert_eq!(c.penalise("k 200"), 200_000);
    assert_left_of(200_000, c.peek("k").frozen_ms);
}

#[test]
fn nothing_moves_a_thaw_earlier() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    c.penalise("k 100");
    for command in [
        "TB.PENALISE k 1",
        "TB.PENALISE k UNTIL 1",
        "TB.CONSUME k 5 0.1",
        "TB.CONSUME k 5 0.1 0",
        "TB.CONSUME k 5 0.1 3 UPTO",
        "TB.CONSUME k 5 0.1 1 FORCE",
        "TB.CONSUME k 5 0.1 1 MAXWAIT 1000",
        "TB.CONSUME k 50 1000",
        "TB.CONSUME k 5 0.1",
        "TB.SYNC k 5",
        "TB.SYNC k 0",
        "TB.SYNC k 3 RESET 10",
        "TB.SYNC k 3 RESET 0 LIMIT 1000",
        "TB.REFUND k 1",
        "TB.REFUND k 1000",
        "TB.PEEK k",
    ] {
        c.ask(command);
        assert_left_of(100_000, c.peek("k").frozen_ms);
        assert_eq!(c.consume("k 5 0.1").verdict(), (0, "frozen", 0), "{command}");
    }
}

#[test]
fn a_penalty_is_cut_to_max_penalty() {
    let server = Server::start();
    let mut c = server.connect();
    let week_ms = 604_800_000;
    assert_eq!(c.penalise("default 604801"), week_ms);
    assert_eq!(c.penalise("most 1e11"), week_ms);
    assert_left_of(week_ms, c.penalise("moment UNTIL 1e11"));
    c.config_set("tokenbucket.max-penalty", "60");
    assert_eq!(c.penalise("cut 100"), 60_000);
    assert_left_of(60_000, c.peek("cut").frozen_ms);
    assert_eq!(c.penalise("whole 59"), 59_000);
    // What was given before the setting stands.
    assert_left_of(week_ms, c.penalise("most 30"));
}

// ---- a bucket without a limit

#[test]
fn a_penalty_works_on_a_bucket_that_does_not_exist() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.penalise("k 100"), 100_000);
    assert_eq!(c.text("TYPE k"), "tokbucket");
    let bare = c.peek("k");
    assert_left_of(100_000, bare.frozen_ms);
    assert_eq!((&bare.capacity, &bare.rate, &bare.per), (&None, &None, &None));
    assert_eq!((&bare.tokens, bare.wait_ms, bare.full_ms), (&None, None, None));
}

#[test]
fn the_first_call_finds_the_freeze_of_a_bucket_without_a_limit() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("k 100");
    let denied = c.consume("k 5 0.1");
    assert_eq!(denied.verdict(), (0, "frozen", 0));
    assert_left_of(110_000, denied.wait_ms);
    assert_eq!(c.peek("k").limit(), ("5", "1", "10"));
}

#[test]
fn the_first_call_finds_what_refilled_since_a_bucket_was_emptied() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("slow 0");
    assert_eq!(c.consume("slow 5 1e-8").verdict(), (0, "empty", 0));

    let before = c.time_us();
    c.penalise("fast 0");
    let emptied = c.time_us();
    let level = c.consume("fast 1e12 1e6 0").remaining;
    let now = c.time_us();
    assert!(level >= 0 && level <= now - before + 1_000, "too many: {level}");
    let asked_again = c.time_us();
    let later = c.consume("fast 1e12 1e6 0").remaining;
    assert!(later >= asked_again - emptied - 1_000, "too few: {later}");
}

#[test]
fn later_penalties_hold_on_a_bucket_without_a_limit_too() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("k 100");
    assert_left_of(100_000, c.penalise("k 10"));
    assert_eq!(c.penalise("k 200"), 200_000);
    assert_left_of(200_000, c.peek("k").frozen_ms);
}

#[test]
fn a_penalised_bucket_without_a_limit_goes_an_hour_after_the_thaw() {
    let server = Server::start();
    let mut c = server.connect();
    for seconds in [0, 100, 100_000] {
        c.ask("DEL k");
        c.penalise(&format!("k {seconds}"));
        let ttl = c.int("PTTL k");
        let least = seconds * 1_000 + 3_600_000;
        assert!((least - LAG_MS..=least + 10_000).contains(&ttl), "{ttl}");
    }
}

#[test]
fn a_penalty_keeps_the_key_until_it_is_over_and_the_bucket_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1");
    c.penalise("k 10000");
    let ttl = c.int("PTTL k");
    let full = 10_000_000 + 5_000;
    assert!((full - LAG_MS..=full + 10_000).contains(&ttl), "{ttl}");
    assert_eq!(c.int("PERSIST k"), 1);
    c.penalise("k 20000");
    let ttl = c.int("PTTL k");
    assert!(ttl > 20_000_000 - LAG_MS, "the TTL is not mended: {ttl}");
}
