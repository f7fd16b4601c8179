//! What the random histories have found, each as the shortest story that shows it.

use tokenbucket::{Bucket, Consume, Decision, Limit, Mode, Rate, Status, Sync, Tokens};

const SECOND_US: i64 = 1_000_000;

fn limit(capacity: u64, per_second: u128) -> Limit {
    Limit::new(Tokens::from_whole(capacity).unwrap(), Rate::new(per_second, 1).unwrap()).unwrap()
}

fn ask(bucket: &mut Bucket, limit: Limit, tokens: u64, mode: Mode, now_us: i64) -> Decision {
    bucket.consume(&Consume { limit, tokens: Tokens::from_whole(tokens).unwrap(), mode }, now_us).unwrap().0
}

fn vendor_limit(bucket: &mut Bucket, most: u64, seconds: u64, now_us: i64) {
    let limit = Some((Tokens::from_whole(most).unwrap(), seconds * 1_000_000));
    bucket.sync(&Sync { remaining: Tokens::MAX, reset_us: None, limit, tolerance: Tokens::ZERO }, now_us);
}

fn window(bucket: &mut Bucket, left: u64, reset_us: i64, now_us: i64) {
    let remaining = Tokens::from_whole(left).unwrap();
    bucket.sync(&Sync { remaining, reset_us: Some(reset_us), limit: None, tolerance: Tokens::ZERO }, now_us);
}

#[test]
fn a_vendor_limit_that_rises_brings_back_nothing_that_ran_over() {
    let (limit, mut bucket) = (limit(10, 1), Bucket::UNKNOWN);
    assert_eq!(ask(&mut bucket, limit, 1, Mode::Exactly, 0).remaining, 9);
    vendor_limit(&mut bucket, 3, 3600, 0);
    let now_us = 60 * SECOND_US;
    assert_eq!(bucket.remaining(now_us), Some(3));
    vendor_limit(&mut bucket, 5, 3600, now_us);
    assert_eq!(bucket.remaining(now_us), Some(3));
    assert_eq!(bucket.remaining(now_us + SECOND_US), Some(4));
}

#[test]
fn a_slot_after_the_reset_is_had_as_soon_as_the_vendors_limit_has_lapsed() {
    let (limit, mut bucket) = (limit(10, 1), Bucket::UNKNOWN);
    assert_eq!(ask(&mut bucket, limit, 1, Mode::Exactly, 0).remaining, 9);
    vendor_limit(&mut bucket, 2, 10, 0);
    window(&mut bucket, 1, 11 * SECOND_US, 0);
    let soon = Mode::Reserve { max_wait_us: 5_000_000 };
    // After 10 s the limit lapses at a level of 2; five are there 3 s later, when the
    // window is over too. So it is the limit that holds it up, not the window.
    let denied = ask(&mut bucket, limit, 5, soon, SECOND_US);
    assert_eq!((denied.status, denied.wait_us), (Status::Window, Some(9_000_000)));
    let reserved = ask(&mut bucket, limit, 5, soon, 10 * SECOND_US);
    assert_eq!((reserved.status, reserved.wait_us), (Status::Reserved, Some(3_000_000)));
}

#[test]
fn limits_of_few_digits_are_the_same_within_a_billionth_too() {
    let limit = |capacity, tokens| Limit::new(Tokens::from_millionths(capacity).unwrap(), Rate::new(tokens, 1).unwrap()).unwrap();
    let known = limit(1_500_000_000, 1_500_000_000);
    for same in [limit(1_500_000_001, 1_500_000_000), limit(1_500_000_000, 1_500_000_001)] {
        assert!(known.is_same_as(&same) && same.is_same_as(&known));
    }
    for other in [limit(1_500_000_002, 1_500_000_000), limit(1_500_000_000, 1_500_000_002)] {
        assert!(!known.is_same_as(&other) && !other.is_same_as(&known));
    }
}
