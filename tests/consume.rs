//! TB.CONSUME: what it takes, what it answers, what a denial leaves alone, and
//! what becomes of a bucket whose limit changes.

use crate::connection::{Connection, error_text, field, int, time_us};
use crate::server::{Server, wait_as_told, wait_until};
use crate::{TOKEN_MS, assert_left_of};

/// How far the module's clock may be from the wall clock that TIME reads.
const JITTER_US: i64 = 1_000;

// ---- the bucket

#[test]
fn a_bucket_that_does_not_exist_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.consume("k 5 1e-8 5").verdict(), (1, "granted", 0));
    assert_eq!(c.consume("k 5 1e-8 1").verdict(), (0, "empty", 0));
}

#[test]
fn the_largest_burst_is_the_capacity_and_not_one_more() {
    let server = Server::start();
    let mut c = server.connect();
    for remaining in (0..5).rev() {
        assert_eq!(c.consume("k 5 1e-8").verdict(), (1, "granted", remaining));
    }
    assert_eq!(c.consume("k 5 1e-8").verdict(), (0, "empty", 0));
}

#[test]
fn a_full_bucket_does_not_fill_any_further() {
    let server = Server::start();
    let mut c = server.connect();
    // A million a second: had it gone on filling, there would be more than ten.
    c.take("k 10 1e6 1");
    c.keep("k");
    for _ in 0..20 {
        assert!(c.consume("k 10 1e6 0").remaining <= 10);
        assert_eq!(c.consume("k 10 1e6 11").status, "never");
    }
    assert_eq!(c.peek("k").tokens(), "10");
}

#[test]
fn a_call_takes_one_token_unless_it_says_how_many() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.take("k 10 1e-8").remaining, 9);
    assert_eq!(c.take("k 10 1e-8 4").remaining, 5);
    assert_eq!(c.take("k 10 1e-8 0.5").remaining, 4);
    assert_eq!(c.peek("k").tokens(), "4.5");
}

#[test]
fn a_call_takes_all_its_tokens_or_none() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    assert_eq!(c.consume("k 10 1e-8 7").verdict(), (0, "empty", 6));
    assert_eq!(c.take("k 10 1e-8 6").remaining, 0);
}

#[test]
fn the_key_is_of_the_native_type() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1");
    assert_eq!(c.text("TYPE k"), "tokbucket");
}

#[test]
fn a_deleted_bucket_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    assert_eq!(c.int("DEL k"), 1);
    assert_eq!(c.take("k 5 1e-8").remaining, 4);
}

#[test]
fn each_key_and_each_database_has_its_own_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    assert_eq!(c.take("other 5 1e-8").remaining, 4);
    c.ok("SELECT 1");
    assert_eq!(c.take("k 5 1e-8").remaining, 4);
}

#[test]
fn refill_is_the_rate_times_the_time_passed() {
    let server = Server::start();
    let mut c = server.connect();
    // A token each microsecond: what is there tells how much time was counted.
    let before = c.time_us();
    c.take("k 1e12 1e6 1e12");
    let emptied = c.time_us();
    for _ in 0..50 {
        let asked = c.time_us();
        let level = c.consume("k 1e12 1e6 0").remaining;
        let answered = c.time_us();
        assert!(level >= asked - emptied - JITTER_US, "too few: {level}");
        assert!(level <= answered - before + JITTER_US, "too many: {level}");
    }
}

#[test]
fn the_rate_is_per_second_or_per_so_many() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.take("a 5 2").full_ms, 500);
    assert_eq!(c.take("b 5 2 PER 60").full_ms, 30_000);
    assert_eq!(c.take("c 5 2 PER 0.5").full_ms, 250);
    assert_eq!(c.take("d 5 0.5 PER 60").full_ms, 120_000);
    assert_eq!(c.take("e 5 1 3 PER 31622400").full_ms, 3 * 31_622_400_000);
}

// ---- the reply

#[test]
fn a_reply_is_five_elements_in_both_protocols() {
    let server = Server::start();
    for (key, mut c) in [("a", server.connect()), ("b", server.connect_resp3())] {
        assert_eq!(c.wire(&format!("TB.CONSUME {key} 5 1 PER 3600")), "*5\r\n:1\r\n:4\r\n:0\r\n:3600000\r\n$7\r\ngranted\r\n");
        assert_eq!(c.wire(&format!("TB.CONSUME no-{key} 5 1 6 PER 3600")), "*5\r\n:0\r\n:5\r\n:-1\r\n:0\r\n$5\r\nnever\r\n");
    }
}

#[test]
fn remaining_is_whole_and_rounded_down() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.take("k 2.5 1e-8").remaining, 1);
    assert_eq!(c.take("k 2.5 1e-8 0.500001").remaining, 0);
    assert_eq!(c.peek("k").tokens(), "0.999999");
}

#[test]
fn the_wait_is_for_the_tokens_that_are_missing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 4");
    let denied = c.consume("k 5 1e-8 3");
    assert_eq!(denied.verdict(), (0, "empty", 1));
    assert_left_of(2 * TOKEN_MS, denied.wait_ms);
    assert_left_of(4 * TOKEN_MS, denied.full_ms);
}

#[test]
fn full_ms_is_the_time_until_the_bucket_is_full_again() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.take("k 5 1e-8 2").full_ms, 2 * TOKEN_MS);
    assert_left_of(3 * TOKEN_MS, c.take("k 5 1e-8").full_ms);
    assert_eq!(c.consume("full 5 1e-8 0").full_ms, 0);
}

#[test]
fn durations_are_rounded_up_to_whole_milliseconds() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.take("third 5 3").full_ms, 334);
    assert_eq!(c.take("micro 5 1e6").full_ms, 1);
    assert_eq!(c.take("exact 5 4").full_ms, 250);
}

#[test]
fn a_wait_is_never_reported_as_none() {
    let server = Server::start();
    let mut c = server.connect();
    // 200 microseconds a token: every denial comes with a wait below 1 ms.
    let script = "local waits = {} \
        for i = 1, 20000 do \
            local reply = redis.call('TB.CONSUME', KEYS[1], 1, 5000) \
            if reply[1] == 0 then waits[reply[3]] = (waits[reply[3]] or 0) + 1 end \
        end \
        local kinds = {} \
        for wait, times in pairs(waits) do kinds[#kinds + 1] = wait end \
        return kinds";
    let kinds = c.ask_bytes(&["EVAL", script, "1", "k"]);
    assert_eq!(kinds, redis::Value::Array(vec![redis::Value::Int(1)]));
}

#[test]
fn whoever_waits_what_it_was_told_is_granted_and_nobody_earlier() {
    let server = Server::start();
    let mut c = server.connect();
    for (setup, call) in [
        ("one 1 8", "one 1 8"),
        ("several 10 50 10", "several 10 50 5"),
        ("batch 10 8 10", "batch 10 8 9 UPTO"),
        ("reserve 10 10 10", "reserve 10 10 5 MAXWAIT 0.4"),
        ("debt 1 10 2 FORCE", "debt 1 10 0"),
        ("debt-then-one 1 20 2 FORCE", "debt-then-one 1 20"),
    ] {
        c.assert_wait_is_honest(&[&format!("TB.CONSUME {setup}")], call);
    }
    let full = "TB.CONSUME k 10 20 0.5";
    let empty = "TB.CONSUME k 10 20 10 FORCE";
    for last in [
        &["TB.PENALISE k 0.1"][..],
        &["TB.SYNC k 0 RESET 0.1"],
        &["TB.SYNC k 0 RESET 0.12", "TB.PENALISE k 0.1"],
        &[empty, "TB.SYNC k 0 RESET 0.07"],
        &["TB.SYNC k 0"],
    ] {
        c.ask("DEL k");
        let setup: Vec<_> = [full].iter().chain(last).copied().collect();
        c.assert_wait_is_honest(&setup, "k 10 20 2");
    }
}

#[test]
fn denied_calls_do_not_lose_the_fraction_that_has_refilled() {
    let server = Server::start();
    let mut c = server.connect();
    let before = c.time_us();
    c.take("k 1 8");
    let mut denials = 0;
    // Hundreds of denials between two tokens: were each to round the level down
    // to what it reports, the next token would never come.
    let granted = loop {
        let reply = c.consume("k 1 8");
        if reply.allowed == 1 {
            break c.time_us();
        }
        denials += 1;
        assert!(c.time_us() < before + 5_000_000, "no token after 5 s");
    };
    assert!(denials > 0);
    assert!(granted >= before + 125_000 - JITTER_US, "granted early");
}

// ---- never

#[test]
fn more_than_the_capacity_is_never_granted() {
    let server = Server::start();
    let mut c = server.connect();
    let denied = c.consume("k 5 1e-8 6");
    assert_eq!(denied.verdict(), (0, "never", 5));
    assert_eq!((denied.wait_ms, denied.full_ms), (-1, 0));
    assert_eq!(c.int("EXISTS k"), 0);

    c.take("k 5 1e-8 2");
    for call in ["k 5 1e-8 5.000001", "k 5 1e-8 6 MAXWAIT 31622400"] {
        let denied = c.consume(call);
        assert_eq!(denied.verdict(), (0, "never", 3), "{call}");
        assert_eq!(denied.wait_ms, -1, "{call}");
        assert_left_of(2 * TOKEN_MS, denied.full_ms);
    }
}

#[test]
fn the_capacity_in_the_call_decides_what_is_never() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    assert_eq!(c.consume("k 3 1e-8 4").status, "never");
    assert_eq!(c.peek("k").limit(), ("10", "1", "100000000"));
    assert_eq!(c.take("k 10 1e-8 4").remaining, 5);
}

#[test]
fn never_comes_before_every_other_status() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    c.sync("k 0 RESET 600");
    c.penalise("k 100");
    assert_eq!(c.consume("k 5 1e-8 6").verdict(), (0, "never", 0));
}

// ---- the order of the statuses

#[test]
fn the_first_of_frozen_window_and_empty_that_applies_is_the_status() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 5");
    assert_eq!(c.consume("k 5 0.01").status, "empty");

    c.sync("k 0 RESET 600");
    let window = c.consume("k 5 0.01");
    assert_eq!(window.verdict(), (0, "window", 0));
    assert_left_of(600_000, window.wait_ms);

    c.penalise("k 50");
    let frozen = c.consume("k 5 0.01");
    assert_eq!(frozen.verdict(), (0, "frozen", 0));
    assert_left_of(600_000, frozen.wait_ms);
}

#[test]
fn the_wait_covers_the_freeze_the_window_the_debt_and_the_refill() {
    let server = Server::start();
    let mut c = server.connect();
    // Frozen for 100 s, then a token takes 20 s.
    c.take("freeze 5 0.05 5");
    c.penalise("freeze 100");
    assert_left_of(140_000, c.consume("freeze 5 0.05 2").wait_ms);
    // The window reopens after 300 s; by then the tokens are there.
    c.take("window 5 0.05 5");
    c.sync("window 0 RESET 300");
    assert_left_of(300_000, c.consume("window 5 0.05 2").wait_ms);
    // The window reopens after 30 s; by then only one of two tokens is there.
    c.take("both 5 0.05 5");
    c.sync("both 0 RESET 30");
    assert_left_of(40_000, c.consume("both 5 0.05 2").wait_ms);
    // Three tokens of debt and one to take.
    c.take("debt 5 0.05 8 FORCE");
    assert_left_of(80_000, c.consume("debt 5 0.05").wait_ms);
}

// ---- UPTO

#[test]
fn upto_takes_as_many_whole_tokens_as_there_are() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5.5 1e-8 2");
    let batch = c.consume("k 5.5 1e-8 10 UPTO");
    assert_eq!(batch.verdict(), (3, "granted", 0));
    assert_eq!(batch.wait_ms, 0);
    assert_eq!(c.peek("k").tokens(), "0.5");
}

#[test]
fn upto_takes_at_most_the_tokens_asked_for() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.consume("k 9 1e-8 4 UPTO").verdict(), (4, "granted", 5));
    assert_eq!(c.consume("k 9 1e-8 UPTO").verdict(), (1, "granted", 4));
    assert_eq!(c.consume("k 9 1e-8 2.9 UPTO").verdict(), (2, "granted", 2));
}

#[test]
fn upto_is_denied_only_when_there_is_not_one_token() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1.5 1e-8 0.75");
    let denied = c.consume("k 1.5 1e-8 5 UPTO");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(TOKEN_MS / 4, denied.wait_ms);
}

#[test]
fn upto_more_than_the_capacity_is_not_never() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.consume("k 5 1e-8 50 UPTO").verdict(), (5, "granted", 0));
    assert_eq!(c.consume("k 5 1e-8 50 UPTO").verdict(), (0, "empty", 0));
}

#[test]
fn upto_is_never_where_the_capacity_is_below_one() {
    let server = Server::start();
    let mut c = server.connect();
    let denied = c.consume("k 0.5 1e-8 1 UPTO");
    assert_eq!(denied.verdict(), (0, "never", 0));
    assert_eq!(denied.wait_ms, -1);
}

#[test]
fn upto_takes_no_more_than_the_window_has_left() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    c.sync("k 3 RESET 600");
    assert_eq!(c.consume("k 10 1e-8 8 UPTO").verdict(), (3, "granted", 0));
    let denied = c.consume("k 10 1e-8 8 UPTO");
    assert_eq!(denied.verdict(), (0, "window", 0));
    assert_left_of(600_000, denied.wait_ms);
}

#[test]
fn upto_is_denied_where_the_window_has_less_than_one_token_left() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    c.sync("k 0.5 RESET 600");
    let denied = c.consume("k 10 1e-8 8 UPTO");
    assert_eq!(denied.verdict(), (0, "window", 0));
    assert_left_of(600_000, denied.wait_ms);
    assert_eq!(c.take("k 10 1e-8 0.5").remaining, 0);
}

#[test]
fn upto_is_denied_while_frozen() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.1");
    c.penalise("k 100");
    let denied = c.consume("k 10 0.1 5 UPTO");
    assert_eq!(denied.verdict(), (0, "frozen", 0));
    assert_left_of(110_000, denied.wait_ms);
}

// ---- MAXWAIT

#[test]
fn maxwait_reserves_tokens_that_will_be_there_in_time() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01");
    let reserved = c.consume("k 1 0.01 1 MAXWAIT 100");
    assert_eq!(reserved.verdict(), (1, "reserved", 0));
    assert_left_of(100_000, reserved.wait_ms);
    assert_left_of(200_000, reserved.full_ms);
}

#[test]
fn two_reservations_never_count_on_the_same_tokens() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 2 0.01 2");
    for moment in [100_000, 200_000, 300_000] {
        let reserved = c.consume("k 2 0.01 1 MAXWAIT 1000");
        assert_eq!(reserved.verdict(), (1, "reserved", 0));
        assert_left_of(moment, reserved.wait_ms);
    }
    let plain = c.consume("k 2 0.01");
    assert_eq!(plain.verdict(), (0, "empty", 0));
    assert_left_of(400_000, plain.wait_ms);
}

#[test]
fn maxwait_is_granted_at_once_where_the_tokens_are_there() {
    let server = Server::start();
    let mut c = server.connect();
    let granted = c.take("k 5 1e-8 2 MAXWAIT 100");
    assert_eq!((granted.remaining, granted.full_ms), (3, 2 * TOKEN_MS));
}

#[test]
fn a_reservation_beyond_maxwait_is_denied_until_it_would_do() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01");
    let denied = c.consume("k 1 0.01 1 MAXWAIT 30");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(70_000, denied.wait_ms);
    assert_left_of(100_000, c.consume("k 1 0.01 1 MAXWAIT 0").wait_ms);
    assert_left_of(100_000, c.peek("k").wait_ms.unwrap());
}

#[test]
fn a_reservation_during_a_freeze_lies_after_the_thaw() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    c.penalise("k 100");
    for moment in [110_000, 130_000] {
        let tokens = (moment - 90_000) / 20_000; // one, then two
        let reserved = c.consume(&format!("k 5 0.1 {tokens} MAXWAIT 300"));
        assert_eq!(reserved.verdict(), (1, "reserved", 0));
        assert_left_of(moment, reserved.wait_ms);
    }
    let denied = c.consume("k 5 0.1 1 MAXWAIT 120");
    assert_eq!(denied.verdict(), (0, "frozen", 0));
    assert_left_of(20_000, denied.wait_ms);
}

#[test]
fn a_penalty_voids_the_reservations_that_fall_before_its_end() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.1");
    assert_left_of(10_000, c.consume("k 1 0.1 1 MAXWAIT 60").wait_ms);
    assert_left_of(20_000, c.consume("k 1 0.1 1 MAXWAIT 60").wait_ms);
    // Both fall within the freeze: their debt is not added to it.
    assert_left_of(100_000, c.penalise("k 100"));
    assert_left_of(110_000, c.consume("k 1 0.1").wait_ms);
}

#[test]
fn a_reservation_beyond_the_end_of_a_penalty_stands() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01");
    assert_left_of(100_000, c.consume("k 1 0.01 1 MAXWAIT 600").wait_ms);
    assert_left_of(100_000, c.penalise("k 50"));
    let denied = c.consume("k 1 0.01");
    assert_eq!(denied.status, "frozen");
    assert_left_of(200_000, denied.wait_ms);
}

#[test]
fn a_worker_that_asks_with_no_tokens_learns_that_its_reservation_is_void() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 4");
    let reserved = c.consume("k 1 4 1 MAXWAIT 1");
    assert_eq!(reserved.status, "reserved");
    wait_as_told(reserved.wait_ms);
    assert_eq!(c.consume("k 1 4 0").verdict().1, "granted");
    c.penalise("k 100");
    assert_eq!(c.consume("k 1 4 0").verdict(), (0, "frozen", 0));
}

// ---- FORCE

#[test]
fn force_takes_tokens_that_are_not_there() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 4");
    let forced = c.take("k 5 0.01 3 FORCE");
    assert_eq!(forced.remaining, 0);
    assert_left_of(700_000, forced.full_ms);
    assert_left_of(300_000, c.consume("k 5 0.01").wait_ms);
}

#[test]
fn force_takes_more_than_the_capacity() {
    let server = Server::start();
    let mut c = server.connect();
    let forced = c.take("k 5 0.01 9 FORCE");
    assert_eq!((forced.remaining, forced.full_ms), (0, 900_000));
    let tokens: f64 = c.peek("k").tokens().parse().unwrap();
    assert!((-4.0..-3.9).contains(&tokens), "{tokens}");
}

#[test]
fn force_takes_tokens_while_frozen_and_adds_them_to_the_freeze() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    c.penalise("k 100");
    assert_left_of(170_000, c.take("k 5 0.1 2 FORCE").full_ms);
    assert_left_of(130_000, c.consume("k 5 0.1").wait_ms);
    assert_left_of(100_000, c.peek("k").frozen_ms);
}

#[test]
fn force_takes_tokens_whatever_the_window_has_left() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    c.sync("k 3 RESET 600");
    assert_eq!(c.take("k 10 1e-8 2 FORCE").remaining, 1);
    assert_eq!(c.take("k 10 1e-8 2 FORCE").remaining, 0);
    assert_eq!(c.peek("k").vendor_remaining, Some(0));
    assert_eq!(c.peek("k").tokens(), "5");
}

// ---- 0 tokens

#[test]
fn no_tokens_ask_without_creating_anything() {
    let server = Server::start();
    let mut c = server.connect();
    let asked = c.consume("k 5 1e-8 0");
    assert_eq!(asked.verdict(), (1, "granted", 5));
    assert_eq!((asked.wait_ms, asked.full_ms), (0, 0));
    c.take("k 5 1e-8 0 FORCE");
    c.take("k 5 1e-8 0 MAXWAIT 5");
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn no_tokens_are_granted_at_level_zero_and_denied_in_debt() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 5");
    assert_eq!(c.consume("k 5 0.01 0").verdict(), (1, "granted", 0));
    c.take("k 5 0.01 2 FORCE");
    let denied = c.consume("k 5 0.01 0");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(200_000, denied.wait_ms);
}

#[test]
fn no_tokens_are_denied_while_frozen() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01");
    c.penalise("k 100");
    let denied = c.consume("k 5 0.01 0");
    assert_eq!(denied.verdict(), (0, "frozen", 0));
    assert_left_of(100_000, denied.wait_ms);
}

#[test]
fn no_tokens_are_denied_with_the_window_used_up() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    c.sync("k 1 RESET 600");
    assert_eq!(c.consume("k 10 1e-8 0").verdict(), (1, "granted", 1));
    c.take("k 10 1e-8");
    let denied = c.consume("k 10 1e-8 0");
    assert_eq!(denied.verdict(), (0, "window", 0));
    assert_left_of(600_000, denied.wait_ms);
}

#[test]
fn no_tokens_with_maxwait_are_told_when_the_bucket_is_out_of_debt() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01 2 FORCE");
    let before = c.footprint("k");
    let reserved = c.consume("k 1 0.01 0 MAXWAIT 200");
    assert_eq!(reserved.verdict(), (1, "reserved", 0));
    assert_left_of(100_000, reserved.wait_ms);
    let denied = c.consume("k 1 0.01 0 MAXWAIT 30");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(70_000, denied.wait_ms);
    assert_eq!(c.footprint("k"), before);
    c.sync("k 0 RESET 500");
    let denied = c.consume("k 1 0.01 0 MAXWAIT 3600");
    assert_eq!(denied.verdict(), (0, "window", 0));
    assert_left_of(500_000, denied.wait_ms);
}

#[test]
fn no_tokens_compute_as_if_the_limit_of_the_call_held_and_do_not_store_it() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 2");
    let before = c.footprint("k");
    let asked = c.consume("k 4 0.01 0");
    assert_eq!(asked.verdict(), (1, "granted", 4));
    assert_eq!(asked.full_ms, 0);
    assert_eq!(c.peek("k").limit().0, "10");
    assert_eq!(c.footprint("k"), before);
}

#[test]
fn no_tokens_write_nothing_whatever_the_options() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 2");
    let before = c.footprint("k");
    for call in ["k 5 0.01 0", "k 5 0.01 0 FORCE", "k 5 0.01 0 MAXWAIT 9"] {
        c.take(call);
        assert_eq!(c.footprint("k"), before, "{call}");
    }
}

// ---- a denial writes nothing

/// Buckets that deny what is called for each reason there is.
fn denials(c: &mut Connection) -> Vec<(&'static str, &'static str, &'static str)> {
    c.take("empty 5 0.01 5");
    c.take("debt 5 0.01 9 FORCE");
    c.take("frozen 5 0.01");
    c.penalise("frozen 100");
    c.take("window 5 0.01");
    c.sync("window 0 RESET 600");
    c.take("vendor 5 0.01");
    c.sync("vendor 5 LIMIT 2");
    vec![
        ("empty", "empty 5 0.01", "empty"),
        ("empty", "empty 5 0.01 3 UPTO", "empty"),
        ("empty", "empty 5 0.01 1 MAXWAIT 1", "empty"),
        ("empty", "empty 5 0.01 6", "never"),
        ("empty", "empty 4 0.02 5", "never"),
        ("debt", "debt 5 0.01 0", "empty"),
        ("debt", "debt 5 0.02 0", "empty"),
        ("frozen", "frozen 5 0.01", "frozen"),
        ("frozen", "frozen 5 0.01 0", "frozen"),
        ("frozen", "frozen 5 0.01 2 UPTO", "frozen"),
        ("window", "window 5 0.01", "window"),
        ("window", "window 5 0.01 2 UPTO", "window"),
        ("window", "window 5 0.01 1 MAXWAIT 9", "window"),
        ("vendor", "vendor 5 0.01 3", "window"),
    ]
}

#[test]
fn a_denied_call_writes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    for (key, call, status) in denials(&mut c) {
        let before = c.footprint(key);
        let denied = c.consume(call);
        assert_eq!((denied.allowed, denied.status.as_str()), (0, status), "{call}");
        assert_eq!(c.footprint(key), before, "{call}");
    }
}

#[test]
fn a_denied_call_creates_no_key() {
    let server = Server::start();
    let mut c = server.connect();
    for call in ["k 5 1 6", "k 5 1 6 MAXWAIT 9", "k 0.5 1 3 UPTO"] {
        assert_eq!(c.consume(call).status, "never");
        assert_eq!(c.int("DBSIZE"), 0, "{call}");
    }
    assert_eq!(c.info("persistence", "rdb_changes_since_last_save"), "0");
}

#[test]
fn a_denied_call_does_not_mend_a_ttl() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 5");
    assert_eq!(c.int("PERSIST k"), 1);
    assert_eq!(c.consume("k 5 0.01").status, "empty");
    assert_eq!(c.int("PTTL k"), -1);
}

#[test]
fn a_denied_call_does_not_move_the_replication_offset() {
    let primary = Server::builder().tcp().conf("repl-ping-replica-period 3600").start();
    let replica = Server::builder().tcp().start();
    let mut c = primary.connect();
    let calls = denials(&mut c);
    replica.replicate(&primary);
    let offset = |c: &mut Connection| c.info("replication", "master_repl_offset");
    let before = offset(&mut c);
    for (_, call, status) in calls {
        assert_eq!(c.consume(call).status, status, "{call}");
        assert_eq!(offset(&mut c), before, "{call}");
    }
    c.take("k 5 0.01");
    assert_ne!(offset(&mut c), before, "a grant must be replicated");
}

#[test]
fn a_denied_call_does_not_grow_the_append_only_file() {
    let server = Server::builder().append_only().start();
    let mut c = server.connect();
    let calls = denials(&mut c);
    let size = |c: &mut Connection| c.info("persistence", "aof_current_size");
    let before = size(&mut c);
    for (_, call, status) in calls {
        assert_eq!(c.consume(call).status, status, "{call}");
    }
    assert_eq!(size(&mut c), before);
    c.take("k 5 0.01");
    assert_ne!(size(&mut c), before, "a grant must be written");
}

// ---- a change of limit

#[test]
fn a_call_denied_for_now_stores_its_limit_where_it_differs() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 5");
    let ttl = c.int("PTTL k");
    let denied = c.consume("k 20 0.001 3");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert_left_of(3_000_000, denied.wait_ms);
    assert_eq!(c.peek("k").limit(), ("20", "1", "1000"));
    assert!(c.int("PTTL k") > ttl + 1_000_000, "no new TTL");
}

#[test]
fn a_call_that_is_never_granted_does_not_store_its_limit() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 5");
    let before = c.footprint("k");
    assert_eq!(c.consume("k 20 0.001 21").status, "never");
    assert_eq!(c.peek("k").limit(), ("5", "1", "100"));
    assert_eq!(c.footprint("k"), before);
}

#[test]
fn a_change_of_limit_keeps_the_tokens() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    // What it held, and never what the new capacity or rate would have given.
    assert_eq!(c.take("k 20 2e-8").remaining, 5);
    assert_eq!(c.peek("k").limit(), ("20", "1", "50000000"));
    assert_eq!(c.take("k 10 1e-8 5").remaining, 0);
    assert_eq!(c.consume("k 20 2e-8").verdict(), (0, "empty", 0));
}

#[test]
fn a_change_of_limit_cuts_the_tokens_to_the_new_capacity() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 1");
    assert_eq!(c.take("k 3 1e-8").remaining, 2);
    assert_eq!(c.take("k 10 1e-8").remaining, 1);
}

#[test]
fn a_change_of_limit_settles_the_past_under_the_old_one() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("slow 5 1e-8 5");
    // A million a second from now on, and none for the time before.
    let denied = c.consume("slow 1e6 1e6 1e6");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    assert!((990..=1_000).contains(&denied.wait_ms), "{denied:?}");

    c.take("fast 10 20 10");
    let wait = c.consume("fast 10 20 6").wait_ms;
    wait_as_told(wait);
    // Six tokens came under the old limit, and stay though the new one is slow.
    let granted = c.consume("fast 10 1e-8 6");
    assert_eq!((granted.allowed, granted.status.as_str()), (1, "granted"));
}

#[test]
fn a_change_of_limit_leaves_a_debt_where_it_is_in_time() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1 15 FORCE"); // out of debt after 100 s
    assert_left_of(100_500, c.consume("k 5 2").wait_ms);
    assert_left_of(200_000, c.consume("k 5 0.01").wait_ms);
}

#[test]
fn a_change_of_limit_leaves_a_freeze_where_it_is_in_time() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    c.penalise("k 100");
    assert_left_of(100_500, c.consume("k 5 2").wait_ms);
    assert_left_of(200_000, c.consume("k 5 0.01").wait_ms);
    assert_left_of(100_000, c.peek("k").frozen_ms);
}

#[test]
fn limits_that_take_turns_gain_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    let mut granted = 0;
    for _ in 0..40 {
        granted += c.consume("k 10 1e-8").allowed;
        granted += c.consume("k 20 3e-8").allowed;
        granted += c.consume("k 7.5 2e-8").allowed;
    }
    // The smallest cuts the level to 7.5 as soon as it is asked, after two grants.
    assert_eq!(granted, 2 + 7);
}

#[test]
fn a_change_of_limit_loses_at_most_a_millionth_of_a_token() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 2.5");
    c.take("k 10 3e-8 1e-6");
    let tokens: f64 = c.peek("k").tokens().parse().unwrap();
    assert!((7.499_998..=7.499_999).contains(&tokens), "{tokens}");
}

#[test]
fn limits_that_differ_by_less_than_a_billionth_are_the_same() {
    let server = Server::start();
    let mut c = server.connect();
    let same = [
        ("1e6", "100", "10"),
        ("1e6", "10", "1"),
        ("1e6", "0.01", "0.001"),
        ("1e6", "9.9999999999", "1"),
        ("1000000.0001", "10", "1"),
    ];
    c.take("k 1e6 100 2e6 FORCE PER 10");
    let before = c.footprint("k");
    for (capacity, rate, per) in same {
        let denied = c.consume(&format!("k {capacity} {rate} PER {per}"));
        assert_eq!(denied.status, "empty");
        assert_eq!(c.footprint("k"), before, "{capacity} {rate} PER {per}");
    }
    assert_eq!(c.info("tokenbucket", "tokenbucket_limit_changes"), "0");
    assert_eq!(c.consume("k 1e6 10.00001").status, "empty");
    assert_eq!(c.info("tokenbucket", "tokenbucket_limit_changes"), "1");
}

#[test]
fn a_rate_as_python_prints_it_is_the_rate_as_go_gives_it() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 1 PER 86400");
    let before = c.footprint("k");
    let denied = c.consume("k 1 1.1574074074074073e-05");
    assert_eq!(denied.status, "empty");
    assert_left_of(86_400_000, denied.wait_ms);
    assert_eq!(c.footprint("k"), before);
    assert_eq!(c.peek("k").limit(), ("1", "1", "86400"));
}

// ---- the TTL

/// Writes, and asserts that the key goes after its bucket is full, and not long
/// after. In one transaction, or a bucket that fills soon might be gone.
#[track_caller]
fn assert_goes_when_full(c: &mut Connection, write: &str, fill_ms: i64) {
    let replies = c.transaction(&["TIME", write, "TB.PEEK k", "PEXPIRETIME k", "TIME"]);
    assert_eq!(error_text(&replies[1]), None, "{write}");
    let [before_ms, after_ms] = [&replies[0], &replies[4]].map(|time| time_us(time) / 1_000);
    let full_ms = int(&field(&replies[2], "full-ms"));
    let expires_ms = int(&replies[3]);
    let slack_ms = 10_000.max(fill_ms / 10);
    assert!(expires_ms >= before_ms + full_ms, "{write}: gone before it is full");
    // Two roundings up to a millisecond.
    let late_ms = expires_ms - after_ms - full_ms - 2;
    assert!(late_ms <= slack_ms, "{write}: there {late_ms} ms after it is full");
}

#[test]
fn a_grant_leaves_a_ttl_until_the_bucket_is_full_and_little_more() {
    let server = Server::start();
    let mut c = server.connect();
    for (call, fill_ms) in [
        ("k 5 5", 1_000),
        ("k 5 0.05", 100_000),
        ("k 10 0.001 4", 10_000_000),
        ("k 5 0.01 9 FORCE", 500_000),
        ("k 10 1e-8 5", 10 * TOKEN_MS),
        ("k 1 100 MAXWAIT 5", 10),
    ] {
        c.ask("DEL k");
        assert_goes_when_full(&mut c, &format!("TB.CONSUME {call}"), fill_ms);
        // Again and again: the slack does not add up.
        let more = call.replace(" FORCE", "").replace(" MAXWAIT 5", "");
        for _ in 0..3 {
            assert_goes_when_full(&mut c, &format!("TB.CONSUME {more} FORCE"), fill_ms);
        }
    }
}

#[test]
fn a_grant_mends_a_ttl_that_is_missing_or_wrong() {
    let server = Server::start();
    let mut c = server.connect();
    for damage in ["PERSIST k", "PEXPIRE k 5000", "EXPIRE k 100000000", "PEXPIREAT k 99999999999999"] {
        c.take("k 10 0.01");
        assert_eq!(c.int(damage), 1);
        assert_goes_when_full(&mut c, "TB.CONSUME k 10 0.01", 1_000_000);
    }
}

#[test]
fn an_expired_bucket_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    assert_eq!(c.int("PEXPIRE k 1"), 1);
    wait_until("the bucket to expire", || c.int("EXISTS k") == 0);
    assert_eq!(c.take("k 5 1e-8").remaining, 4);
}

#[test]
fn a_reply_is_the_same_where_the_server_takes_it_only_in_parts() {
    let (whole, parts) = (Server::start(), Server::builder().conf("rename-command COMMAND \"\"").start());
    let (mut whole, mut parts) = (whole.connect(), parts.connect());
    for (i, call) in [
        "1 1 0",
        "1 1",
        "10 1 10",
        "1000000000000 1e-6 0",
        "3155760000 1 3155760000",
        "1000000000000 1e12 999999999999 UPTO",
        "12345678 100 2345678.9 UPTO",
        "1 1 2",
        "1e12 1e12 1e12 FORCE",
        "1 0.001 1000000 FORCE",
        "1 0.000001 3155 FORCE",
        "5 7 2 PER 31622400 MAXWAIT 5",
    ]
    .into_iter()
    .enumerate()
    {
        // Of new buckets, so that no time has passed that differs.
        let command = format!("TB.CONSUME k{i} {call}");
        assert_eq!(whole.wire(&command), parts.wire(&command), "{command}");
    }
    for (setup, call) in [
        ("TB.CONSUME k 10 1e-5 10", "10 1e-5"),
        ("TB.CONSUME k 10 1e-5 10", "10 1e-5 MAXWAIT 31622400"),
        ("TB.PENALISE k 500000", "10 1"),
        ("TB.SYNC k 0 RESET 1000000", "10 1"),
    ] {
        let ask = |c: &mut Connection| {
            c.ask("DEL k");
            c.ask(setup);
            c.consume(&format!("k {call}"))
        };
        let (whole, parts) = (ask(&mut whole), ask(&mut parts));
        assert_eq!(whole.verdict().1, parts.verdict().1, "{call}");
        assert_eq!((whole.allowed, whole.remaining), (parts.allowed, parts.remaining), "{call}");
        assert!(whole.wait_ms.abs_diff(parts.wait_ms) < 10_000 && whole.wait_ms > 10_000, "{call}: {whole:?} {parts:?}");
        assert!(whole.full_ms.abs_diff(parts.full_ms) < 10_000, "{call}: {whole:?} {parts:?}");
    }
}
