//! TB.REFUND: tokens that were not needed go back, and nothing else does.

use redis::Value;

use crate::assert_left_of;
use crate::server::Server;

#[test]
fn the_reply_is_what_remains_in_both_protocols() {
    let server = Server::start();
    for (key, mut c) in [("a", server.connect()), ("b", server.connect_resp3())] {
        c.take(&format!("{key} 5 1e-8 4"));
        assert_eq!(c.wire(&format!("TB.REFUND {key} 2")), ":3\r\n");
    }
}

#[test]
fn the_reply_is_null_where_there_is_no_bucket() {
    let server = Server::start();
    assert_eq!(server.connect().wire("TB.REFUND k 1"), "$-1\r\n");
    let mut c = server.connect_resp3();
    assert_eq!(c.wire("TB.REFUND k 1"), "_\r\n");
    assert_eq!(c.int("DBSIZE"), 0);
}

#[test]
fn refunded_tokens_can_be_taken_again() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    assert_eq!(c.refund("k 2"), Some(2));
    assert_eq!(c.refund("k 0.5"), Some(2));
    assert_eq!(c.peek("k").tokens(), "2.5");
    assert_eq!(c.take("k 5 1e-8 2").remaining, 0);
    assert_eq!(c.consume("k 5 1e-8").verdict(), (0, "empty", 0));
}

#[test]
fn a_refund_never_fills_a_bucket_above_its_capacity() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 2");
    assert_eq!(c.refund("k 1e12"), Some(5));
    let bucket = c.peek("k");
    assert_eq!((bucket.tokens(), bucket.full_ms), ("5", Some(0)));
    assert_eq!(c.take("k 5 1e-8 5").remaining, 0);
}

#[test]
fn a_refund_never_fills_a_bucket_above_the_vendor_limit() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 2");
    c.sync("k 9 LIMIT 4");
    c.take("k 10 1e-8 3");
    assert_eq!(c.refund("k 100"), Some(4));
}

#[test]
fn a_refund_pays_off_debt() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1 15 FORCE"); // 10 tokens of debt, 100 s
    assert_eq!(c.refund("k 4"), Some(0));
    assert_left_of(70_000, c.consume("k 5 0.1").wait_ms);
    assert_eq!(c.refund("k 8"), Some(2));
}

#[test]
fn a_refund_while_frozen_only_pays_off_debt_beyond_the_thaw() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 0.1");
    c.penalise("k 100");
    c.take("k 5 0.1 5 FORCE"); // 50 s of debt after the thaw
    assert_eq!(c.refund("k 3"), Some(0));
    assert_left_of(130_000, c.consume("k 5 0.1").wait_ms);
    assert_eq!(c.refund("k 4"), Some(0));
    assert_left_of(110_000, c.consume("k 5 0.1").wait_ms);
    assert_left_of(100_000, c.peek("k").frozen_ms);
}

#[test]
fn a_refund_counts_back_into_the_window() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 1");
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    c.take("k 10 1e-8 3");
    assert_eq!(c.refund("k 2"), Some(4));
    assert_eq!(c.peek("k").vendor_remaining, Some(4));
}

#[test]
fn a_refund_never_raises_the_window_above_the_last_figure_applied() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 1");
    assert_eq!(c.sync("k 5 RESET 600"), (1, 5));
    c.take("k 10 1e-8 1");
    assert_eq!(c.refund("k 3"), Some(5));
    assert_eq!(c.sync("k 2 RESET 600"), (1, 2));
    c.take("k 10 1e-8 1");
    assert_eq!(c.refund("k 9"), Some(2));
    assert_eq!(c.peek("k").tokens(), "10");
}

#[test]
fn a_refund_on_a_bucket_without_a_limit_is_zero_and_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    for make in ["TB.PENALISE k 100", "TB.SYNC k 3", "TB.SYNC k 3 RESET 600"] {
        c.ask("DEL k");
        c.ask(make);
        let before = c.footprint("k");
        assert_eq!(c.refund("k 5"), Some(0), "{make}");
        assert_eq!(c.footprint("k"), before, "{make}");
    }
}

#[test]
fn a_refund_that_changes_nothing_writes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 2");
    let before = c.footprint("k");
    assert_eq!(c.refund("k 0"), Some(3));
    assert_eq!(c.footprint("k"), before);

    assert_eq!(c.refund("k 2"), Some(5));
    let full = c.footprint("k");
    assert_ne!(full, before);
    assert_eq!(c.refund("k 2"), Some(5));
    assert_eq!(c.footprint("k"), full);

    c.penalise("k 100");
    let frozen = c.footprint("k");
    assert_eq!(c.refund("k 2"), Some(0));
    assert_eq!(c.footprint("k"), frozen);

    assert_eq!(c.ask("TB.REFUND missing 1"), Value::Nil);
    assert_eq!(c.footprint("k"), frozen);
}

#[test]
fn a_refund_leaves_no_longer_ttl_than_the_bucket_needs() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 10");
    assert_eq!(c.refund("k 9"), Some(9));
    let ttl = c.int("PTTL k");
    assert!((90_000..=100_000 + 100_000).contains(&ttl), "{ttl}");
}
