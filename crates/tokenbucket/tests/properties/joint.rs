//! Several buckets asked together: none is charged where one denies, an honest wait for
//! all of them, and who decides.

use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::joint::{self, Joint, Outcome, Part, Told};
use tokenbucket::{Bucket, Consume, DebtTooLong, Decision, Effect, Limit, Mode, Queue, Rate, Status, Sync, Tokens};

use crate::cases;
use crate::histories::{Amount, Deed, History, Order, Span, Way, amount, history, option, span};

/// One of the buckets: its life, or that there is none, and what is asked of it.
type Lot = (History, bool, usize, Amount);

fn lots() -> impl Strategy<Value = (Vec<Lot>, Option<Span>)> {
    (vec((history(12), prop::bool::weighted(0.9), 0..3_usize, amount()), 1..=4), option(span()))
}

/// The buckets, all at the end of the longest life, and when that is.
fn parts(lots: &[Lot], max_wait: Option<Span>) -> (Vec<Part<()>>, i64) {
    let now_us = lots.iter().map(|(history, ..)| history.end().1).max().unwrap();
    let mut parts: Vec<_> = lots
        .iter()
        .map(|(history, there, limit, amount)| {
            let mut player = history.play();
            player.by_ref().for_each(drop);
            player.now_us = now_us;
            let way = max_wait.map_or(Way::Exactly, Way::Reserve);
            let Deed::Consume(request) = player.deed(Order::Consume { limit: *limit, amount: *amount, way }) else {
                unreachable!()
            };
            Part { place: (), found: there.then_some(player.bucket), request }
        })
        .collect();
    // What is accepted is the same for all of a call.
    let mode = parts[0].request.mode;
    parts.iter_mut().for_each(|part| part.request.mode = mode);
    (parts, now_us)
}

fn alone(_: &(), bucket: &mut Bucket, request: &Consume, now_us: i64) -> Result<(Decision, Effect), DebtTooLong> {
    bucket.consume(request, now_us)
}

/// What each would be answered by itself, with the bucket after it.
fn one_by_one(parts: &[Part<()>], now_us: i64) -> Vec<(Decision, Bucket, Effect)> {
    let each = parts.iter().map(|part| {
        let mut after = part.found.unwrap_or(Bucket::UNKNOWN);
        let (decision, effect) = after.consume(&part.request, now_us).unwrap();
        (decision, after, effect)
    });
    each.collect()
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn all_are_charged_as_each_alone_or_none_is((lots, max_wait) in lots()) {
        let (parts, now_us) = parts(&lots, max_wait);
        let (joint, each) = (joint::consume(&parts, now_us, alone).unwrap(), one_by_one(&parts, now_us));
        prop_assert_eq!(joint.each.len(), parts.len());
        let is_granted = each.iter().all(|(decision, ..)| decision.allowed == 1);
        prop_assert_eq!(joint.together.allowed, u64::from(is_granted));
        for ((part, outcome), (decision, after, effect)) in parts.iter().zip(joint.each).zip(each) {
            if is_granted {
                prop_assert_eq!(outcome, Outcome { told: Told::Decided(decision), after, effect });
                continue;
            }
            let Some(found) = part.found else {
                prop_assert_eq!((outcome.after, outcome.effect), (Bucket::UNKNOWN, Effect::Unchanged), "a bucket was made");
                continue;
            };
            let mut kept = found;
            if joint.together.status != Status::Never && part.request.tokens > Tokens::ZERO {
                kept.change_limit(&part.request, now_us);
            }
            let effect = if kept == found { Effect::Unchanged } else { Effect::Changed };
            prop_assert_eq!((outcome.after, outcome.effect), (kept, effect));
        }
    }

    #[test]
    fn each_is_told_what_it_is_told_alone_or_that_it_is_ready((lots, max_wait) in lots()) {
        let (parts, now_us) = parts(&lots, max_wait);
        let (joint, each) = (joint::consume(&parts, now_us, alone).unwrap(), one_by_one(&parts, now_us));
        for ((part, outcome), (decision, ..)) in parts.iter().zip(&joint.each).zip(each) {
            match outcome.told {
                Told::Decided(told) => {
                    prop_assert_eq!(told, decision);
                    prop_assert_eq!(told.allowed, joint.together.allowed);
                }
                Told::Ready(told) => {
                    prop_assert!(decision.allowed == 1 && joint.together.allowed == 0);
                    prop_assert_eq!((told.allowed, told.wait_us), (0, Some(0)));
                    // Its figures are those of a bucket that nothing was taken from.
                    let mut untouched = part.found.unwrap_or(Bucket::UNKNOWN);
                    untouched.change_limit(&Consume { tokens: Tokens::ZERO, ..part.request }, now_us);
                    prop_assert_eq!(untouched.remaining(now_us), Some(told.remaining));
                    prop_assert_eq!(untouched.read(now_us).limited.map(|read| read.full_us), Some(told.full_us));
                }
            }
        }
    }

    #[test]
    fn the_longest_wait_decides_and_the_least_remains((lots, max_wait) in lots()) {
        let (parts, now_us) = parts(&lots, max_wait);
        let Joint { together, each } = joint::consume(&parts, now_us, alone).unwrap();
        let told: Vec<Decision> = each.iter().map(|outcome| outcome.told.decision()).collect();
        prop_assert!(told.iter().all(|one| one.remaining >= together.remaining && one.full_us <= together.full_us));
        prop_assert!(told.iter().any(|one| one.remaining == together.remaining));
        prop_assert!(told.iter().any(|one| one.full_us == together.full_us));
        let is_never = told.iter().any(|one| one.status == Status::Never);
        prop_assert_eq!((together.wait_us.is_none(), together.status == Status::Never), (is_never, is_never));
        if let Some(wait_us) = together.wait_us {
            prop_assert!(told.iter().all(|one| one.wait_us <= Some(wait_us)));
            // Of those that wait as long the first says why.
            let decides = each.iter().find(|outcome| {
                matches!(outcome.told, Told::Decided(decision) if decision.wait_us == Some(wait_us))
            });
            prop_assert_eq!(decides.map(|outcome| outcome.told.decision().status), Some(together.status));
        }
    }

    #[test]
    fn whoever_waits_what_all_told_has_them_all_and_not_a_microsecond_sooner((lots, max_wait) in lots()) {
        let (mut parts, now_us) = parts(&lots, max_wait);
        let joint = joint::consume(&parts, now_us, alone).unwrap();
        let Joint { together: Decision { allowed: 0, wait_us: Some(wait_us), .. }, each } = joint else { return Ok(()) };
        let then_us = now_us.saturating_add_unsigned(wait_us);
        for (part, outcome) in parts.iter_mut().zip(each) {
            part.found = part.found.map(|_| outcome.after);
        }
        prop_assert_eq!(joint::consume(&parts, then_us - 1, alone).unwrap().together.allowed, 0);
        prop_assert_eq!(joint::consume(&parts, then_us, alone).unwrap().together.allowed, 1);
    }
}

// ------------------------------------------------------------------ by name

const HOUR_US: i64 = 3_600_000_000;

/// So many tokens at the most, one an hour.
fn hourly(capacity: u64) -> Limit {
    Limit::new(Tokens::from_whole(capacity).unwrap(), Rate::new(1, 3600).unwrap()).unwrap()
}

fn request(limit: Limit, tokens: u64) -> Consume {
    Consume { limit, tokens: Tokens::from_whole(tokens).unwrap(), mode: Mode::Exactly }
}

/// One whose tokens were taken at 0, so many.
fn used(limit: Limit, tokens: u64) -> Bucket {
    let mut bucket = Bucket::UNKNOWN;
    bucket.consume(&request(limit, tokens), 0).unwrap();
    bucket
}

fn ask(parts: &[(Option<Bucket>, Consume)]) -> Joint {
    let parts: Vec<_> = parts.iter().map(|(found, request)| Part { place: (), found: *found, request: *request }).collect();
    joint::consume(&parts, 0, alone).unwrap()
}

#[test]
fn of_denials_that_last_as_long_the_first_decides() {
    let mut frozen = used(hourly(1), 0);
    frozen.penalise(HOUR_US, 0);
    let window = Sync { remaining: Tokens::ZERO, reset_us: Some(HOUR_US), limit: None, tolerance: Tokens::ZERO };
    let mut used_up = used(hourly(1), 0);
    used_up.sync(&window, 0);
    let ask_for = |bucket| (Some(bucket), request(hourly(2), 0));
    let (frozen, used_up) = (ask_for(frozen), ask_for(used_up));
    for (parts, status) in [([frozen, used_up], Status::Frozen), ([used_up, frozen], Status::Window)] {
        let Joint { together, each } = ask(&parts);
        assert!(each.iter().all(|outcome| outcome.told.decision().wait_us == Some(HOUR_US.unsigned_abs())), "{each:?}");
        assert_eq!((together.status, together.wait_us), (status, Some(HOUR_US.unsigned_abs())));
    }
}

#[test]
fn what_is_denied_for_now_keeps_its_limits_and_what_never_comes_keeps_none() {
    let (full, empty) = (used(hourly(9), 6), used(hourly(9), 9));
    for (tokens, capacity) in [(1, 4), (5, 9)] {
        // Of the empty one a token is not there now, and five of four never are.
        let joint =
            ask(&[(Some(full), request(hourly(4), 1)), (Some(empty), request(hourly(4), tokens)), (None, request(hourly(1), 1))]);
        assert_eq!(joint.together.allowed, 0);
        let limits = joint.each.iter().map(|outcome| outcome.after.limit().copied());
        assert_eq!(limits.collect::<Vec<_>>(), [Some(hourly(capacity)), Some(hourly(capacity)), None]);
    }
}

#[test]
fn a_call_for_the_last_millionth_of_a_limit_that_is_the_same_is_granted_after_its_wait() {
    let limit = |millionths| Limit::new(Tokens::from_millionths(millionths).unwrap(), Rate::new(1, 1).unwrap()).unwrap();
    let (known, wider) = (limit(5_000_000_000), limit(5_000_000_001));
    let request = Consume { limit: wider, tokens: wider.capacity(), mode: Mode::Exactly };
    let mut part = Part { place: (), found: Some(used(known, 0)), request };
    part.found.as_mut().unwrap().change_limit(&Consume { limit: known, ..request }, 0);
    let Joint { together, each } = joint::consume(&[part], 0, alone).unwrap();
    assert_eq!((together.status, together.wait_us), (Status::Empty, Some(1)));
    part.found = Some(each[0].after);
    assert_eq!(joint::consume(&[part], 1, alone).unwrap().together.status, Status::Granted);
}

#[test]
fn one_that_asks_for_none_keeps_no_limit() {
    let joint = ask(&[(Some(used(hourly(9), 6)), request(hourly(4), 0)), (Some(used(hourly(1), 1)), request(hourly(1), 1))]);
    assert_eq!(joint.together.status, Status::Empty);
    assert_eq!(joint.each[0].after, used(hourly(9), 6));
}

#[test]
fn one_that_others_wait_for_is_answered_behind_them_also_where_it_is_ready() {
    let mut queue = Queue::default();
    queue.push(Tokens::ONE);
    let behind = |_: &(), bucket: &mut Bucket, request: &Consume, now_us| bucket.consume_behind(request, &queue, now_us);
    let part = |found, request| Part { place: (), found: Some(found), request };
    let parts = [part(used(hourly(9), 0), request(hourly(9), 0)), part(used(hourly(9), 9), request(hourly(9), 1))];
    let joint = joint::consume(&parts, 0, behind).unwrap();
    let Told::Ready(told) = joint.each[0].told else { panic!("{joint:?}") };
    assert_eq!(told.remaining, 0, "it is for those who wait");
    assert_eq!(joint.together.wait_us, Some(2 * HOUR_US.unsigned_abs()));
}

#[test]
fn one_that_is_ready_is_told_what_it_has_and_keeps() {
    let joint = ask(&[(Some(used(hourly(9), 3)), request(hourly(9), 2)), (Some(used(hourly(9), 9)), request(hourly(9), 1))]);
    let Told::Ready(told) = joint.each[0].told else { panic!("{joint:?}") };
    assert_eq!((told.remaining, told.full_us), (6, 3 * HOUR_US.unsigned_abs()));
}

#[test]
fn one_that_would_be_reserved_is_ready_without_a_wait() {
    let mut indebted = Bucket::UNKNOWN;
    indebted.consume(&Consume { mode: Mode::Force, ..request(hourly(9), 10) }, 0).unwrap();
    let within =
        |tokens| Consume { mode: Mode::Reserve { max_wait_us: 2 * HOUR_US.unsigned_abs() }, ..request(hourly(9), tokens) };
    // The debt alone lasts an hour, also for a call for nothing.
    assert_eq!(indebted.consume(&within(0), 0).unwrap().0.wait_us, Some(HOUR_US.unsigned_abs()));
    let joint = ask(&[(Some(indebted), within(1)), (Some(used(hourly(9), 9)), within(9))]);
    let Told::Ready(told) = joint.each[0].told else { panic!("{joint:?}") };
    assert_eq!((told.allowed, told.wait_us), (0, Some(0)));
}

#[test]
fn a_forced_request_among_them_can_be_refused() {
    let forced = Consume { mode: Mode::Force, ..request(hourly(1), 1_000_000_000_000) };
    let part = Part { place: (), found: None, request: forced };
    assert_eq!(joint::consume(&[part], 0, alone), Err(DebtTooLong));
}

#[test]
fn of_no_bucket_nothing_holds_the_call_up() {
    let Joint { together, each } = ask(&[]);
    assert_eq!((together.status, together.allowed, together.wait_us, each), (Status::Granted, 1, Some(0), Vec::new()));
}
