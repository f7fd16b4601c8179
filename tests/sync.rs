//! TB.SYNC: what the vendor's headers say only ever lowers what a bucket
//! grants, and a window lapses at its reset.

use crate::connection::Connection;
use crate::server::{Server, wait_as_told, wait_until};
use crate::{LAG_MS, TOKEN_MS, assert_left_of};

/// Ten tokens at most and `level` in it, and next to no refill.
fn bucket_at(c: &mut Connection, level: i64) {
    c.ask("DEL k");
    c.take(&format!("k 10 1e-8 {}", 10 - level));
}

/// The vendor's part of a bucket: limit, remaining.
fn vendor(c: &mut Connection) -> (Option<i64>, Option<i64>) {
    let bucket = c.peek("k");
    (bucket.vendor_limit, bucket.vendor_remaining)
}

#[test]
fn the_reply_is_two_integers_in_both_protocols() {
    let server = Server::start();
    for (key, mut c) in [("a", server.connect()), ("b", server.connect_resp3())] {
        c.take(&format!("{key} 10 1e-8"));
        assert_eq!(c.wire(&format!("TB.SYNC {key} 4")), "*2\r\n:1\r\n:4\r\n");
        assert_eq!(c.wire(&format!("TB.SYNC {key} 7")), "*2\r\n:0\r\n:4\r\n");
    }
}

// ---- without a reset

#[test]
fn without_a_reset_the_level_becomes_what_the_vendor_says() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 3"), (1, 3));
    assert_eq!(c.peek("k").tokens(), "3");
    assert_eq!(vendor(&mut c), (None, None));
    assert_eq!(c.take("k 10 1e-8 3").remaining, 0);
    assert_eq!(c.consume("k 10 1e-8").verdict(), (0, "empty", 0));
}

#[test]
fn a_sync_never_raises_the_level() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 3);
    for call in ["k 4", "k 10", "k 1e12", "k 9 RESET 600", "k 9 TOLERANCE 5"] {
        let before = c.footprint("k");
        assert_eq!(c.sync(call), (0, 3), "{call}");
        assert_eq!(c.footprint("k"), before, "{call}");
    }
    assert_eq!(c.peek("k").tokens(), "3");
}

#[test]
fn a_decimal_figure_is_kept_and_reported_rounded_down() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 2.5"), (1, 2));
    assert_eq!(c.peek("k").tokens(), "2.5");
    assert_eq!(c.sync("k 1.9999999"), (1, 1));
    assert_eq!(c.peek("k").tokens(), "1.999999");
}

#[test]
fn a_bucket_goes_on_refilling_from_the_level_it_was_given() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1e12 1e6 1");
    let before = c.time_us();
    assert_eq!(c.sync("k 5"), (1, 5));
    let applied = c.time_us();
    let level = c.consume("k 1e12 1e6 0").remaining;
    let now = c.time_us();
    assert!(level >= 5, "{level}");
    assert!(level <= 5 + now - before + 1_000, "too many: {level}");
    let asked = c.time_us();
    let later = c.consume("k 1e12 1e6 0").remaining;
    assert!(later >= 5 + asked - applied - 1_000, "too few: {later}");
}

#[test]
fn a_sync_leaves_a_debt_alone() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.01 7 FORCE");
    assert_eq!(c.sync("k 0"), (0, 0));
    assert_left_of(300_000, c.consume("k 5 0.01").wait_ms);
}

// ---- tolerance

#[test]
fn a_figure_within_the_tolerance_is_not_applied() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8");
    assert_eq!(c.refund("k 5"), Some(10)); // full: the level is exactly 10
    let before = c.footprint("k");
    assert_eq!(c.sync("k 10"), (0, 10));
    assert_eq!(c.sync("k 8 TOLERANCE 2"), (0, 10));
    assert_eq!(c.sync("k 9.5 TOLERANCE 0.5"), (0, 10));
    assert_eq!(c.footprint("k"), before);
    // Once it is beyond the tolerance it is applied as it is.
    assert_eq!(c.sync("k 7.999999 TOLERANCE 2"), (1, 7));
    assert_eq!(c.sync("k 7 TOLERANCE 0"), (1, 7));
}

#[test]
fn the_tolerance_holds_for_a_window_too() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 7.5 RESET 600 TOLERANCE 2"), (0, 9));
    assert_eq!(vendor(&mut c), (None, None));
    assert_eq!(c.sync("k 6 RESET 600 TOLERANCE 2"), (1, 6));
    assert_eq!(c.sync("k 5 RESET 600 TOLERANCE 2"), (0, 6));
    assert_eq!(c.sync("k 3 RESET 600 TOLERANCE 2"), (1, 3));
}

// ---- with a reset

#[test]
fn a_window_grants_what_the_vendor_says_is_left_and_no_more() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 3 RESET 600"), (1, 3));
    let bucket = c.peek("k");
    assert_eq!(bucket.tokens(), "9");
    assert_eq!(bucket.vendor_remaining, Some(3));
    assert_left_of(600_000, bucket.vendor_reset_ms.unwrap());

    assert_eq!(c.take("k 10 1e-8").remaining, 2);
    let too_many = c.consume("k 10 1e-8 3");
    assert_eq!(too_many.verdict(), (0, "window", 2));
    assert_left_of(600_000, too_many.wait_ms);
    assert_eq!(c.take("k 10 1e-8 2").remaining, 0);
    let used_up = c.consume("k 10 1e-8");
    assert_eq!(used_up.verdict(), (0, "window", 0));
    assert_left_of(600_000, used_up.wait_ms);
}

#[test]
fn a_window_holds_whatever_refills() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e6");
    assert_eq!(c.sync("k 3 RESET 600"), (1, 3));
    for left in [2, 1, 0] {
        assert_eq!(c.take("k 10 1e6").remaining, left);
    }
    for _ in 0..100 {
        assert_eq!(c.consume("k 10 1e6").verdict(), (0, "window", 0));
    }
    assert_eq!(c.peek("k").tokens(), "10");
}

#[test]
fn full_ms_does_not_count_the_window() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.1");
    assert_eq!(c.sync("k 0 RESET 600"), (1, 0));
    assert_left_of(10_000, c.consume("k 10 0.1").full_ms);
    assert_left_of(10_000, c.peek("k").full_ms.unwrap());
}

#[test]
fn a_window_is_compared_with_all_that_would_be_granted_until_its_reset() {
    let server = Server::start();
    let mut c = server.connect();
    // An empty bucket, but 60 tokens will come before the reset.
    c.take("k 10 0.1 10");
    assert_eq!(c.sync("k 61 RESET 600"), (0, 0));
    assert_eq!(vendor(&mut c), (None, None));
    assert_eq!(c.sync("k 50 RESET 600"), (1, 0));
    assert_eq!(vendor(&mut c), (None, Some(50)));

    // In debt until 300 s from now: only 30 tokens will.
    c.ask("DEL k");
    c.take("k 10 0.1 40 FORCE");
    assert_eq!(c.sync("k 31 RESET 600"), (0, 0));
    assert_eq!(c.sync("k 29 RESET 600"), (1, 0));
}

#[test]
fn a_debt_counts_against_the_window_when_it_opens() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 14 FORCE"); // 4 tokens
    assert_eq!(c.sync("k 5.5 RESET 1000"), (1, 0));
    assert_eq!(vendor(&mut c), (None, Some(1)));
    c.ask("DEL k");
    c.take("k 10 0.01 14 FORCE");
    assert_eq!(c.sync("k 3 RESET 1000"), (1, 0));
    assert_eq!(vendor(&mut c), (None, Some(0)));
}

#[test]
fn a_freeze_is_no_debt_to_the_window() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01");
    c.penalise("k 400");
    assert_eq!(c.sync("k 5 RESET 1000"), (1, 0));
    assert_eq!(vendor(&mut c), (None, Some(5)));
}

#[test]
fn a_reservation_that_acts_before_the_reset_counts_against_the_window() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01");
    assert_eq!(c.sync("k 3 RESET 500"), (1, 0));
    for (moment, left) in [(100_000, 2), (200_000, 1), (300_000, 0)] {
        let reserved = c.consume("k 1 0.01 1 MAXWAIT 600");
        assert_eq!(reserved.verdict(), (1, "reserved", 0));
        assert_left_of(moment, reserved.wait_ms);
        assert_eq!(vendor(&mut c), (None, Some(left)));
    }
}

#[test]
fn maxwait_does_not_reserve_past_a_reset_that_holds_the_call_up() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 2 RESET 500"), (1, 2));
    let denied = c.consume("k 10 1e-8 3 MAXWAIT 3600");
    assert_eq!(denied.verdict(), (0, "window", 2));
    assert_left_of(500_000, denied.wait_ms);

    // Empty as well: the token comes before the reset, but not to this window.
    c.ask("DEL k");
    c.take("k 5 0.004 5");
    assert_eq!(c.sync("k 0 RESET 500"), (1, 0));
    let denied = c.consume("k 5 0.004 1 MAXWAIT 3600");
    assert_eq!(denied.verdict(), (0, "window", 0));
    assert_left_of(500_000, denied.wait_ms);
}

#[test]
fn a_reservation_that_acts_after_the_reset_leaves_the_window_alone() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 1 0.01");
    assert_eq!(c.sync("k 0 RESET 50"), (1, 0));
    let reserved = c.consume("k 1 0.01 1 MAXWAIT 200");
    assert_eq!(reserved.verdict(), (1, "reserved", 0));
    assert_left_of(100_000, reserved.wait_ms);
    assert_eq!(vendor(&mut c), (None, Some(0)));
}

#[test]
fn a_window_lapses_at_its_reset() {
    let server = Server::start();
    let mut c = server.connect();
    c.assert_wait_is_honest(&["TB.CONSUME k 10 1e-8", "TB.SYNC k 0 RESET 0.2"], "k 10 1e-8 9");
    let bucket = c.peek("k");
    assert_eq!((bucket.vendor_remaining, bucket.vendor_reset_ms), (None, None));
}

#[test]
fn a_reset_is_given_in_seconds_or_as_a_moment() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 5 RESET 100.5"), (1, 5));
    assert_left_of(100_500, c.peek("k").vendor_reset_ms.unwrap());

    bucket_at(&mut c, 9);
    let now_us = c.time_us();
    let reset = now_us / 1_000_000 + 100;
    assert_eq!(c.sync(&format!("k 5 RESETAT {reset}.5")), (1, 5));
    let until_ms = reset * 1_000 + 500 - now_us / 1_000;
    assert_left_of(until_ms, c.peek("k").vendor_reset_ms.unwrap());
}

#[test]
fn while_a_window_is_in_force_what_is_left_is_only_lowered() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    assert_eq!(c.sync("k 6 RESET 600"), (0, 5));
    assert_eq!(c.sync("k 6 RESET 6000"), (0, 5));
    assert_left_of(600_000, c.peek("k").vendor_reset_ms.unwrap());
    assert_eq!(c.sync("k 3 RESET 600"), (1, 3));
    assert_eq!(c.take("k 10 1e-8").remaining, 2);
    assert_eq!(c.sync("k 3 RESET 600"), (0, 2));
}

#[test]
fn while_a_window_is_in_force_its_reset_only_moves_later() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    assert_eq!(c.sync("k 4 RESET 100"), (1, 4));
    assert_left_of(600_000, c.peek("k").vendor_reset_ms.unwrap());
    assert_eq!(c.sync("k 3 RESET 1000"), (1, 3));
    assert_left_of(1_000_000, c.peek("k").vendor_reset_ms.unwrap());
}

#[test]
fn a_debt_counts_once_while_the_window_that_opened_with_it_is_in_force() {
    let server = Server::start();
    let mut c = server.connect();
    // Empty; 2000 tokens reserved, 2 s of debt.
    c.take("k 10000 1000 10000");
    assert_eq!(c.sync("k 50000 RESET 60").0, 1);
    assert_eq!(c.consume("k 10000 1000 2000 MAXWAIT 9").allowed, 1);
    assert_eq!(c.sync("k 40000 RESET 600").0, 1);
    assert_eq!(vendor(&mut c), (None, Some(40_000)));
}

#[test]
fn in_the_last_second_before_its_reset_a_window_gives_way_to_a_later_one() {
    let server = Server::start();
    let mut c = server.connect();
    // As above, but the debt is counted again: another window opens.
    c.take("k 10000 100 10000");
    assert_eq!(c.sync("k 50 RESET 0.9").0, 1);
    assert_eq!(c.consume("k 10000 100 2000 MAXWAIT 30").allowed, 1);
    assert_eq!(c.sync("k 40 RESET 600").0, 1);
    assert_eq!(vendor(&mut c), (None, Some(0)));
}

#[test]
fn a_sync_without_a_reset_leaves_the_window_alone() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    assert_eq!(c.sync("k 7"), (1, 5));
    assert_eq!(c.peek("k").tokens(), "7");
    assert_eq!(vendor(&mut c), (None, Some(5)));
    assert_eq!(c.sync("k 2"), (1, 2));
    assert_eq!(vendor(&mut c), (None, Some(5)));
}

#[test]
fn a_window_is_cut_to_max_window() {
    let server = Server::start();
    let mut c = server.connect();
    for reset in ["RESET 1e11", "RESETAT 1e11"] {
        bucket_at(&mut c, 9);
        assert_eq!(c.sync(&format!("k 5 {reset}")), (1, 5));
        assert_left_of(2_678_400_000, c.peek("k").vendor_reset_ms.unwrap());
    }
    c.config_set("tokenbucket.max-window", "60");
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 5 RESET 100"), (1, 5));
    assert_left_of(60_000, c.peek("k").vendor_reset_ms.unwrap());
}

// ---- a reset that is past

#[test]
fn a_reset_that_is_not_in_the_future_makes_the_figure_stale() {
    let server = Server::start();
    let mut c = server.connect();
    let minute_ago = c.time_us() / 1_000_000 - 60;
    bucket_at(&mut c, 9);
    let before = c.footprint("k");
    for reset in ["RESET 0".to_owned(), format!("RESETAT {minute_ago}"), "RESETAT 0".to_owned()] {
        assert_eq!(c.sync(&format!("k 0 {reset}")), (0, 9), "{reset}");
        assert_eq!(c.footprint("k"), before, "{reset}");
    }
}

#[test]
fn the_limit_holds_though_the_reset_is_past() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 0 LIMIT 4 RESET 0"), (1, 4));
    assert_eq!(vendor(&mut c), (Some(4), None));
}

// ---- the vendor's limit

#[test]
fn a_vendor_limit_is_the_most_the_bucket_holds() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 100 LIMIT 4"), (1, 4));
    let bucket = c.peek("k");
    assert_eq!((bucket.tokens(), bucket.full_ms), ("4", Some(0)));
    assert_eq!(bucket.limit().0, "10");
    assert_eq!(c.take("k 10 1e-8").full_ms, TOKEN_MS);
}

#[test]
fn a_vendor_limit_above_the_capacity_changes_nothing_about_the_level() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 100 LIMIT 500").1, 9);
    assert_eq!(c.peek("k").tokens(), "9");
    assert_eq!(c.refund("k 5"), Some(10));
    assert_eq!(c.consume("k 10 1e-8 11").status, "never");
}

#[test]
fn a_call_for_more_than_the_vendor_limit_waits_until_it_lapses() {
    let server = Server::start();
    let mut c = server.connect();
    c.config_set("tokenbucket.vendor-limit-ttl", "1");
    c.take("k 10 1000");
    assert_eq!(c.sync("k 100 LIMIT 4"), (1, 4));
    let denied = c.consume("k 10 1000 8");
    assert_eq!(denied.verdict(), (0, "window", 4));
    assert!((1..=1_004).contains(&denied.wait_ms), "{denied:?}");
    // At most the limit is granted as before.
    c.take("k 10 1000 3");
    wait_as_told(c.consume("k 10 1000 8").wait_ms);
    c.take("k 10 1000 8");
}

#[test]
fn a_vendor_limit_holds_whatever_the_options_but_force() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    c.sync("k 9 LIMIT 4");
    let denied = c.consume("k 10 1e-8 5 MAXWAIT 31622400");
    assert_eq!(denied.verdict(), (0, "window", 4));
    assert_eq!(c.consume("k 20 1e-8 5").verdict(), (0, "window", 4));
    assert_eq!(c.consume("k 10 1e-8 8 UPTO").verdict(), (4, "granted", 0));

    bucket_at(&mut c, 9);
    c.sync("k 9 LIMIT 4");
    c.take("k 10 1e-8 6 FORCE");
    assert_eq!(c.peek("k").tokens(), "-2");
}

#[test]
fn no_tokens_appear_when_a_vendor_limit_lapses() {
    let server = Server::start();
    let mut c = server.connect();
    c.config_set("tokenbucket.vendor-limit-ttl", "1");
    bucket_at(&mut c, 9);
    c.sync("k 9 LIMIT 4");
    wait_until("the limit to lapse", || c.peek("k").vendor_limit.is_none());
    assert_eq!(c.peek("k").tokens(), "4");
    assert_eq!(c.consume("k 10 1e-8 5").verdict(), (0, "empty", 4));
}

#[test]
fn a_vendor_limit_lasts_an_hour_unless_configured() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    c.sync("k 9 LIMIT 4");
    // An hour, and then a second for the fifth token.
    let denied = c.consume("k 10 1 5");
    assert_eq!(denied.status, "window");
    assert_left_of(3_601_000, denied.wait_ms);
}

#[test]
fn a_vendor_limit_is_stored_though_the_figure_was_not_applied() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 3);
    let (_, remaining) = c.sync("k 8 LIMIT 5 RESET 600");
    assert_eq!(remaining, 3);
    assert_eq!(vendor(&mut c), (Some(5), None));
}

#[test]
fn a_later_sync_replaces_the_vendor_limit() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 9 LIMIT 5"), (1, 5));
    assert_eq!(c.sync("k 9 LIMIT 3"), (1, 3));
    assert_eq!(c.sync("k 9 LIMIT 8"), (0, 3));
    assert_eq!(vendor(&mut c), (Some(8), None));
    assert_eq!(c.refund("k 20"), Some(8));
    assert_eq!(c.sync("k 7 LIMIT 7.5"), (1, 7));
    assert_eq!(vendor(&mut c), (Some(7), None));
}

#[test]
fn a_vendor_limit_is_renewed_once_less_than_half_its_time_is_left() {
    let server = Server::start();
    let mut c = server.connect();
    let lapses = |c: &mut Connection| c.consume("k 10 1000 8").wait_ms;
    c.take("k 10 1000");
    c.sync("k 4 LIMIT 4");
    c.config_set("tokenbucket.vendor-limit-ttl", "7000");
    c.sync("k 4 LIMIT 4"); // 3600 s left: more than half
    assert_left_of(3_600_004, lapses(&mut c));
    c.config_set("tokenbucket.vendor-limit-ttl", "7300");
    c.sync("k 4 LIMIT 4"); // less than half
    assert_left_of(7_300_004, lapses(&mut c));
}

#[test]
fn a_limit_and_a_window_come_in_one_call() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    assert_eq!(c.sync("k 3 LIMIT 5 RESET 600"), (1, 3));
    let bucket = c.peek("k");
    assert_eq!((bucket.vendor_limit, bucket.vendor_remaining), (Some(5), Some(3)));
    assert_eq!(bucket.tokens(), "5");
}

// ---- a freeze

#[test]
fn a_freeze_stands_whatever_the_vendor_says() {
    let server = Server::start();
    let mut c = server.connect();
    for call in ["k 0", "k 9", "k 9 LIMIT 4", "k 0 RESET 10", "k 5 RESET 1000"] {
        c.ask("DEL k");
        c.take("k 10 0.1");
        c.penalise("k 100");
        assert_eq!(c.sync(call).1, 0, "{call}");
        assert_left_of(100_000, c.peek("k").frozen_ms);
        assert_eq!(c.consume("k 10 0.1").verdict(), (0, "frozen", 0), "{call}");
    }
}

// ---- what is written

#[test]
fn a_sync_that_changes_nothing_writes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    bucket_at(&mut c, 9);
    c.sync("k 3 LIMIT 5 RESET 600");
    let before = c.footprint("k");
    for call in
        ["k 3 LIMIT 5 RESET 600", "k 3 RESET 6000", "k 4 RESET 10", "k 8", "k 5 LIMIT 5", "k 0 RESET 0", "k 0 TOLERANCE 5"]
    {
        assert_eq!(c.sync(call), (0, 3), "{call}");
        assert_eq!(c.footprint("k"), before, "{call}");
    }
}

#[test]
fn a_sync_that_changes_nothing_creates_no_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 5 RESET 0"), (0, 5));
    assert_eq!(c.sync("k 5.9 RESETAT 1"), (0, 5));
    assert_eq!(c.int("DBSIZE"), 0);
    assert_eq!(c.info("persistence", "rdb_changes_since_last_save"), "0");
}

#[test]
fn the_key_stays_as_long_as_the_vendor_s_word_holds() {
    let server = Server::start();
    let mut c = server.connect();
    // The bucket is full within 10 s.
    c.take("window 10 1");
    c.sync("window 3 RESET 5000");
    let ttl = c.int("PTTL window");
    assert!((5_000_000 - LAG_MS..=5_000_000 + 10_000).contains(&ttl), "{ttl}");
    c.take("limit 10 1");
    c.sync("limit 3 LIMIT 5");
    let ttl = c.int("PTTL limit");
    // From the 5 tokens that it held until then it is full 5 s after the limit lapsed.
    assert!((3_605_000 - LAG_MS..=3_605_000 + 10_000).contains(&ttl), "{ttl}");
}

// ---- a bucket without a limit

#[test]
fn a_sync_works_on_a_bucket_that_does_not_exist() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 5"), (1, 5));
    assert_eq!(c.text("TYPE k"), "tokbucket");
    let bare = c.peek("k");
    assert_eq!((&bare.capacity, &bare.rate, &bare.per), (&None, &None, &None));
    assert_eq!((&bare.tokens, bare.wait_ms, bare.full_ms), (&None, None, None));
    assert_eq!((bare.frozen_ms, bare.vendor_limit), (0, None));
    assert_eq!((bare.vendor_remaining, bare.vendor_reset_ms), (None, None));
}

#[test]
fn the_first_call_finds_the_level_that_a_sync_set() {
    let server = Server::start();
    let mut c = server.connect();
    c.sync("k 5");
    assert_eq!(c.consume("k 10 1e-8").verdict(), (1, "granted", 4));
    assert_eq!(c.peek("k").limit(), ("10", "1", "100000000"));
    c.sync("more 50");
    assert_eq!(c.consume("more 10 1e-8").verdict(), (1, "granted", 9));
}

#[test]
fn the_first_call_finds_what_refilled_since_a_sync() {
    let server = Server::start();
    let mut c = server.connect();
    let before = c.time_us();
    c.sync("k 0");
    let synced = c.time_us();
    let asked = c.time_us();
    let level = c.consume("k 1e12 1e6 0").remaining;
    let now = c.time_us();
    assert!(level >= asked - synced - 1_000, "too few: {level}");
    assert!(level <= now - before + 1_000, "too many: {level}");
}

#[test]
fn the_first_call_finds_a_full_bucket_where_only_a_window_is_known() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    assert_eq!(c.peek("k").vendor_remaining, Some(5));
    assert_eq!(c.consume("k 10 1e-8").verdict(), (1, "granted", 4));
    assert_eq!(c.peek("k").tokens(), "9");
    assert_eq!(c.consume("k 10 1e-8 5").verdict(), (0, "window", 4));
}

#[test]
fn the_first_call_finds_a_full_bucket_where_only_a_vendor_limit_is_known() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 5 LIMIT 3 RESET 0"), (1, 3));
    assert_eq!(vendor(&mut c), (Some(3), None));
    assert_eq!(c.consume("k 10 1e-8").verdict(), (1, "granted", 2));
}

#[test]
fn a_second_sync_without_a_limit_only_lowers_too() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 5"), (1, 5));
    let before = c.footprint("k");
    assert_eq!(c.sync("k 7"), (0, 5));
    assert_eq!(c.sync("k 5"), (0, 5));
    assert_eq!(c.footprint("k"), before);
    assert_eq!(c.sync("k 3.5"), (1, 3));
    assert_eq!(c.sync("k 3 TOLERANCE 1"), (0, 3));
}

#[test]
fn what_remains_without_a_limit_is_the_least_of_what_is_remembered() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.sync("k 8"), (1, 8));
    assert_eq!(c.sync("k 6 RESET 600"), (1, 6));
    assert_eq!(c.sync("k 7 LIMIT 4"), (1, 4));
    assert_eq!(c.sync("k 2"), (1, 2));
    assert_eq!(vendor(&mut c), (Some(4), Some(6)));
}

#[test]
fn a_penalised_bucket_without_a_limit_is_empty_to_a_sync() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("k 100");
    assert_eq!(c.sync("k 5"), (0, 0));
    assert_eq!(c.sync("k 0"), (0, 0));
    c.sync("late 5");
    c.penalise("late 0");
    assert_eq!(c.consume("late 10 1e-8").verdict(), (0, "empty", 0));
}

#[test]
fn a_bucket_without_a_limit_goes_an_hour_after_the_last_thing_remembered() {
    let server = Server::start();
    let mut c = server.connect();
    for (call, last_ms) in
        [("k 5", 0), ("k 5 RESET 600", 600_000), ("k 5 LIMIT 5 RESET 0", 3_600_000), ("k 5 LIMIT 5 RESET 6000", 6_000_000)]
    {
        c.ask("DEL k");
        c.sync(call);
        let ttl = c.int("PTTL k");
        let least = last_ms + 3_600_000;
        assert!((least - LAG_MS..=least + 10_000).contains(&ttl), "{call}: {ttl}");
    }
}
