//! Where one rule ends and the next begins, to the microsecond and the millionth.

use tokenbucket::{Bucket, Consume, DebtTooLong, Decision, Effect, Limit, MAX_FILL_US, Mode, Rate, Status, Sync, Tokens};

use crate::layout::{Layout, Window};

const SECOND_US: i64 = 1_000_000;

fn tokens(whole: u64) -> Tokens {
    Tokens::from_whole(whole).unwrap()
}

fn limit(capacity: u64, rate: (u128, u128)) -> Limit {
    Limit::new(tokens(capacity), Rate::new(rate.0, rate.1).unwrap()).unwrap()
}

fn ask(bucket: &mut Bucket, limit: Limit, tokens: Tokens, mode: Mode, now_us: i64) -> Decision {
    bucket.consume(&Consume { limit, tokens, mode }, now_us).unwrap().0
}

/// A vendor window with so many left, until its reset.
fn close(bucket: &mut Bucket, left: u64, reset_us: i64, now_us: i64) -> Option<Window> {
    bucket.sync(&Sync { remaining: tokens(left), reset_us: Some(reset_us), limit: None, tolerance: Tokens::ZERO }, now_us);
    Layout::of(bucket).window
}

#[test]
fn a_penalty_of_0_seconds_empties_and_freezes_nothing() {
    let (limit, mut bucket) = (limit(10, (1, 1)), Bucket::UNKNOWN);
    ask(&mut bucket, limit, tokens(1), Mode::Exactly, 0);
    assert_eq!(bucket.penalise(SECOND_US, SECOND_US), (0, Effect::Changed));
    assert_eq!(Layout::of(&bucket).thaw_us, None);
    assert_eq!(bucket.read(SECOND_US).limited.unwrap().level_millionths, 0);
    assert_eq!(ask(&mut bucket, limit, tokens(1), Mode::Exactly, SECOND_US).status, Status::Empty);
}

#[test]
fn only_in_its_last_second_and_by_a_later_one_a_window_is_replaced() {
    let (limit, reset_us) = (limit(1_000, (1_000, 1)), 60 * SECOND_US);
    let next = |now_us, next_us| {
        let mut bucket = Bucket::UNKNOWN;
        ask(&mut bucket, limit, tokens(1), Mode::Exactly, 0);
        close(&mut bucket, 50_000, reset_us, 0);
        // A debt of 100 counts in a window that opens, not in one that goes on.
        ask(&mut bucket, limit, tokens(1_100), Mode::Force, now_us);
        let window = close(&mut bucket, 200, next_us, now_us).unwrap();
        assert_eq!(window.applied, 200_000_000);
        (window.left / 1_000_000, window.reset_us)
    };
    let (last_second_us, later_us) = (reset_us - SECOND_US, reset_us + 60 * SECOND_US);
    assert_eq!(next(last_second_us, later_us), (200, later_us));
    assert_eq!(next(last_second_us + 1, later_us), (100, later_us));
    assert_eq!(next(last_second_us + 1, reset_us + 1), (100, reset_us + 1));
    assert_eq!(next(last_second_us + 1, reset_us), (200, reset_us));
    assert_eq!(next(last_second_us + 1, reset_us - SECOND_US / 2), (200, reset_us));
}

#[test]
fn a_slot_at_the_very_reset_is_outside_of_the_window() {
    let (limit, reset_us) = (limit(10, (1, 1)), 5 * SECOND_US);
    let reserve = |count| {
        let mut bucket = Bucket::UNKNOWN;
        ask(&mut bucket, limit, tokens(10), Mode::Exactly, 0);
        close(&mut bucket, 3, reset_us, 0);
        let decision = ask(&mut bucket, limit, count, Mode::Reserve { max_wait_us: 60_000_000 }, 0);
        (decision.status, decision.wait_us, Layout::of(&bucket).window.unwrap().left)
    };
    let a_hair_less = Tokens::from_millionths(4_999_999).unwrap();
    assert_eq!(reserve(tokens(5)), (Status::Reserved, Some(5_000_000), 3_000_000));
    assert_eq!(reserve(a_hair_less), (Status::Window, Some(5_000_000), 3_000_000));
    assert_eq!(reserve(tokens(3)), (Status::Reserved, Some(3_000_000), 0));
}

#[test]
fn a_debt_of_a_hundred_years_is_the_deepest() {
    let (limit, mut bucket) = (limit(1, (1, 3_155_760_000)), Bucket::UNKNOWN);
    let mut force = |millionths, now_us| {
        let tokens = Tokens::from_millionths(millionths).unwrap();
        bucket.consume(&Consume { limit, tokens, mode: Mode::Force }, now_us).map(|(decision, effect)| (decision.full_us, effect))
    };
    assert_eq!(force(1_000_000, 0), Ok((MAX_FILL_US, Effect::Changed)));
    assert_eq!(force(1_000_001, 0), Err(DebtTooLong));
    assert_eq!(force(1_000_000, 0), Ok((2 * MAX_FILL_US, Effect::Changed)));
    assert_eq!(force(1, 0), Err(DebtTooLong));
    assert_eq!(force(1, 3_155_760_000), Ok((2 * MAX_FILL_US, Effect::Changed)));
    // Nothing can always be had by force, also where a clock that was ahead left more.
    assert_eq!(force(0, -1), Ok((2 * MAX_FILL_US + 3_155_760_001, Effect::Unchanged)));
}

#[test]
fn of_two_limits_that_are_the_same_the_other_is_taken_up_where_a_call_needs_its_billionth() {
    let [low, high] = [10_000_000_000, 10_000_000_001].map(|capacity| Tokens::from_millionths(capacity).unwrap());
    let [lower, higher] = [low, high].map(|capacity| Limit::new(capacity, Rate::new(1, 1).unwrap()).unwrap());
    let later_us = 60 * SECOND_US;
    let ask_for = |known, called, tokens| {
        let mut bucket = Bucket::UNKNOWN;
        ask(&mut bucket, known, Tokens::ONE, Mode::Exactly, 0);
        let decision = ask(&mut bucket, called, tokens, Mode::Exactly, later_us);
        (decision.status, decision.wait_us, *bucket.limit().unwrap())
    };
    assert_eq!(ask_for(lower, higher, low), (Status::Granted, Some(0), lower));
    assert_eq!(ask_for(higher, lower, low), (Status::Granted, Some(0), higher));
    assert_eq!(ask_for(higher, lower, high), (Status::Never, None, higher));
    // All it held is a millionth less.
    assert_eq!(ask_for(lower, higher, high), (Status::Empty, Some(1), higher));
}

#[test]
fn a_limit_that_is_the_same_is_not_taken_up() {
    let call = Consume { limit: limit(10, (1, 1)), tokens: Tokens::ONE, mode: Mode::Exactly };
    let mut bucket = Bucket::UNKNOWN;
    assert_eq!(bucket.change_limit(&call, 0), Effect::Changed);
    let known = bucket;
    assert_eq!(bucket.change_limit(&call, SECOND_US), Effect::Unchanged);
    assert_eq!(bucket, known);
}
