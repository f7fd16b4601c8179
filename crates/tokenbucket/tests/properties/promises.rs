//! What the contract promises, each against the bucket alone.

use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::{Bucket, Consume, Decimal, Decision, Limit, Mode, Rate, Status, Sync, Tokens};

use crate::cases;
use crate::histories::{
    Amount, Deed, Event, History, MOST, Order, Outcome, Span, Step, Way, amount, any_limit, history, in_floats, limit,
    log_uniform, option, span, start_us,
};
use crate::layout::{Layout, Window};
use crate::oracle::{Exact, Oracle, Terms, ceil, exact, floor};

/// What is counted of a grant: from when its tokens are used, and how many millionths.
pub(crate) struct Grant {
    pub(crate) at: Exact,
    pub(crate) millionths: i128,
}

impl Grant {
    /// The grant that an event is, if it is one that keeps to the limits: a forced one
    /// is the caller's.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        let Deed::Consume(call) = event.deed else { return None };
        let decision = event.outcome.decision().filter(|decision| decision.allowed > 0)?;
        let millionths = match call.mode {
            Mode::Force => return None,
            Mode::UpTo => i128::from(decision.allowed) * 1_000_000,
            Mode::Exactly | Mode::Reserve { .. } => call.tokens.millionths().into(),
        };
        let at = match decision.status {
            // To the part of a microsecond: when the tokens it took have come in.
            Status::Reserved => Oracle::from(&event.after).zero.unwrap(),
            _ => exact(event.now_us),
        };
        (millionths > 0).then_some(Self { at, millionths })
    }
}

fn consume(bucket: &mut Bucket, limit: Limit, tokens: Tokens, mode: Mode, now_us: i64) -> Decision {
    bucket.consume(&Consume { limit, tokens, mode }, now_us).unwrap().0
}

fn level_millionths(bucket: &Bucket, now_us: i64) -> i128 {
    bucket.read(now_us).limited.unwrap().level_millionths
}

fn window(bucket: &Bucket, now_us: i64) -> Option<Window> {
    Layout::of(bucket).window.filter(|window| now_us < window.reset_us)
}

/// The bucket after a history, and with a limit whatever happened.
fn with_limit(history: &History) -> (Bucket, Limit, i64) {
    let (mut bucket, now_us) = history.end();
    let limit = bucket.limit().copied().unwrap_or(history.limit(0));
    let most = Mode::Reserve { max_wait_us: u64::MAX };
    consume(&mut bucket, limit, Tokens::from_millionths(1).unwrap(), most, now_us);
    let limit = bucket.limit().copied().unwrap_or(limit);
    (bucket, limit, now_us)
}

// ---------------------------------------------------- 1. never too many

/// Panics where a stretch of time has more grants than the largest of the limits gives.
pub(crate) fn stays_within(limits: &[Limit], mut grants: Vec<Grant>) {
    let terms: Vec<Terms> = limits.iter().map(Terms::from).collect();
    let capacity = terms.iter().map(|terms| &terms.capacity).max().unwrap();
    let rate = terms.iter().map(|terms| &terms.rate).max().unwrap();
    grants.sort_by(|a, b| a.at.cmp(&b.at));
    // By how much the worst stretch that ends here is above its refill.
    let (mut above, mut last) = (Exact::zero(), exact(i64::MIN));
    for grant in &grants {
        above = (above - rate * (&grant.at - &last)).max(Exact::zero()) + exact(grant.millionths);
        assert!(above <= *capacity, "{above} of {capacity} in a stretch until {}", grant.at);
        last = grant.at.clone();
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn over_any_stretch_no_more_is_granted_than_capacity_and_refill(mut history in history(40)) {
        // What is given back may be taken again; that is the caller's.
        history.steps.retain(|step| !matches!(step.order, Order::Refund(_)));
        let mut grants = Vec::new();
        for event in history.play() {
            grants.extend(Grant::of(&event));
            if let Outcome::Penalised(..) = event.outcome {
                // Reservations that fall into the freeze are void.
                let thaw = exact(event.now_us) + exact(event.after.read(event.now_us).frozen_us);
                grants.retain(|grant| grant.at <= exact(event.now_us) || grant.at >= thaw);
            }
        }
        stays_within(&history.limits, grants);
    }

    #[test]
    fn limits_that_flap_grant_no_more_than_the_largest_of_them(
        (limits, start_us) in (vec(limit(), 2..=3), start_us()),
        calls in vec((0..3_usize, amount(), any::<bool>(), prop_oneof![3 => Just(Span::Micros(0)), 1 => span()]), 1..60),
    ) {
        // Nothing but calls, each with another limit than the one before.
        let steps = calls.into_iter().map(|(limit, amount, reserve, pause)| {
            let way = if reserve { Way::Reserve(Span::Until { which: 0, off: 0 }) } else { Way::UpTo };
            Step { pause, order: Order::Consume { limit, amount, way } }
        });
        let history = History { limits, start_us, steps: steps.collect() };
        stays_within(&history.limits, history.play().filter_map(|event| Grant::of(&event)).collect());
    }

    #[test]
    fn in_a_vendor_window_no_more_is_granted_than_the_vendor_left(mut history in history(40)) {
        history.steps.retain(|step| !matches!(step.order, Order::Refund(_)));
        struct Bound { left: i128, end: Exact, granted: i128 }
        let mut bounds: Vec<Bound> = Vec::new();
        for event in history.play() {
            if let Some(grant) = Grant::of(&event) {
                for bound in bounds.iter_mut().filter(|bound| grant.at < bound.end) {
                    bound.granted += grant.millionths;
                    prop_assert!(bound.granted <= bound.left, "{} of {}: {event:#?}", bound.granted, bound.left);
                }
            }
            if let Outcome::Synced(_) = event.outcome {
                let (before, after) = (window(&event.before, event.now_us), window(&event.after, event.now_us));
                let Some(after) = after else { continue };
                if before.is_some_and(|before| before.reset_us - event.now_us < 1_000_000 && after.reset_us > before.reset_us) {
                    bounds.clear(); // replaced in its last second
                }
                bounds.push(Bound { left: after.left.into(), end: exact(after.reset_us), granted: 0 });
            }
        }
    }

    #[test]
    fn a_change_of_limit_raises_no_level_and_costs_at_most_a_millionth(history in history(20), to in limit()) {
        let (bucket, from, now_us) = with_limit(&history);
        let mut changed = bucket;
        let call = Consume { limit: to, tokens: to.capacity(), mode: Mode::Exactly };
        let (decision, _) = changed.consume(&call, now_us).unwrap();
        if from.is_same_as(&to) {
            return Ok(());
        }
        let (mut before, after) = (Oracle::from(&bucket), Oracle::from(&changed));
        before.settle(now_us);
        if before.zero > Some(exact(now_us)) {
            let late = after.zero.unwrap() - before.zero.unwrap();
            prop_assert!(!late.is_negative() && late < exact(1), "a debt keeps its time, not {late} more");
        } else {
            let level = after.level(now_us) + exact(decision.allowed * to.capacity().millionths());
            let kept = before.level(now_us).min(exact(to.capacity().millionths()));
            prop_assert!(level <= kept && &kept - &level < exact(1), "{kept} became {level}");
        }
    }

    #[test]
    fn taking_and_giving_back_by_turns_is_not_a_way_to_more(history in history(20), tokens in log_uniform(1..=MOST)) {
        let (mut bucket, limit, now_us) = with_limit(&history);
        let before = bucket.read(now_us);
        let tokens = Tokens::from_millionths(tokens).unwrap();
        if consume(&mut bucket, limit, tokens, Mode::Exactly, now_us).allowed == 1 {
            bucket.refund(tokens, now_us);
            prop_assert_eq!(bucket.read(now_us), before);
        }
    }
}

// ----------------------------------------------------- 2. never too few

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn whoever_keeps_asking_gets_every_token_that_comes_in(
        limit in limit(),
        start_us in start_us(),
        pauses in vec(log_uniform(0..=u64::MAX), 1..40),
    ) {
        let terms = Terms::from(&limit);
        let mut bucket = Bucket::UNKNOWN;
        let (mut now_us, mut got) = (start_us, 0);
        let ask = Tokens::MAX;
        got += consume(&mut bucket, limit, ask, Mode::UpTo, now_us).allowed;
        // What is left of a token at first stays: never so long that it runs over.
        let spare_us = floor(&((&terms.capacity - exact(1_000_000)) / &terms.rate));
        if spare_us <= 0 {
            return Ok(());
        }
        for pause in pauses {
            now_us += i64::try_from(u128::from(pause) % spare_us.unsigned_abs()).unwrap();
            got += consume(&mut bucket, limit, ask, Mode::UpTo, now_us).allowed;
            let all = floor(&(&terms.capacity + &terms.rate * exact(now_us - start_us)));
            prop_assert_eq!(i128::from(got), all / 1_000_000, "{} µs after the start", now_us - start_us);
        }
    }

    #[test]
    fn reservations_follow_each_other_to_the_last_fraction(
        limit in limit(),
        start_us in start_us(),
        asks in vec((0..=16_u64, 0..=1_000_000_u64), 1..20),
    ) {
        let terms = Terms::from(&limit);
        let capacity = limit.capacity().millionths();
        let mut bucket = Bucket::UNKNOWN;
        let mut total = Exact::zero();
        for (sixteenths, off) in asks {
            let tokens = Tokens::from_millionths((capacity / 16 * sixteenths + off).clamp(1, capacity)).unwrap();
            let decision = consume(&mut bucket, limit, tokens, Mode::Reserve { max_wait_us: u64::MAX }, start_us);
            total += exact(tokens.millionths());
            let wait = ((&total - &terms.capacity) / &terms.rate).max(Exact::zero());
            prop_assert_eq!(decision.wait_us.map(i128::from), Some(ceil(&wait)));
        }
    }
}

/// Takes one token at a time, each reserved as soon as the one before is used, and
/// returns how long that took.
fn drain(limit: Limit, grants: u64) -> u64 {
    let call = Consume { limit, tokens: Tokens::ONE, mode: Mode::Reserve { max_wait_us: u64::MAX } };
    let (mut bucket, start_us) = (Bucket::UNKNOWN, 1_700_000_000_000_000);
    let mut now_us = start_us;
    for _ in 0..grants {
        let (decision, _) = bucket.consume(&call, now_us).unwrap();
        assert_eq!(decision.allowed, 1);
        now_us = now_us.saturating_add_unsigned(decision.wait_us.unwrap());
    }
    now_us.abs_diff(start_us)
}

#[test]
fn ten_million_grants_add_up_to_the_microsecond() {
    let limit = Limit::new(Tokens::from_whole(10).unwrap(), Rate::new(1_000_003, 7).unwrap()).unwrap();
    // The last one is had when all but the first ten have come in.
    assert_eq!(drain(limit, 10_000_000), (9_999_990_u64 * 7_000_000).div_ceil(1_000_003));
}

#[test]
fn from_a_token_a_month_to_ten_million_a_second_nothing_is_lost() {
    for (tokens, per) in
        [(1, 2_592_000), (1, 86_400), (7, 3_600), (1, 1), (3, 7), (1_000, 1), (999_983, 1), (9_999_991, 13), (10_000_000, 1)]
    {
        let limit = Limit::new(Tokens::from_whole(50).unwrap(), Rate::new(tokens, per).unwrap()).unwrap();
        assert_eq!(u128::from(drain(limit, 20_050)), (20_000 * 1_000_000 * per).div_ceil(tokens), "{tokens} per {per}");
    }
}

// --------------------------------------------------- 3. an honest wait

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn whoever_waits_what_it_was_told_is_granted_and_not_a_microsecond_sooner(history in history(30)) {
        for event in history.play() {
            let Deed::Consume(call) = event.deed else { continue };
            let Some(decision) = event.outcome.decision().filter(|decision| decision.allowed == 0) else { continue };
            prop_assert_eq!(decision.wait_us.is_none(), decision.status == Status::Never, "{:#?}", event);
            let granted = |now_us| {
                let mut bucket = event.after;
                bucket.consume(&call, now_us).unwrap().0.allowed > 0
            };
            let Some(wait_us) = decision.wait_us else {
                prop_assert!(!granted(i64::MAX / 2), "never came: {event:#?}");
                continue;
            };
            let then_us = event.now_us.saturating_add_unsigned(wait_us);
            prop_assert!(granted(then_us), "denied at {then_us}: {event:#?}");
            prop_assert!(wait_us > 0 && !granted(then_us - 1), "granted before {then_us}: {event:#?}");
        }
    }

    #[test]
    fn a_reserved_slot_comes_when_it_was_said_and_not_a_microsecond_sooner(history in history(30)) {
        for event in history.play() {
            let Deed::Consume(call) = event.deed else { continue };
            let reserved = event.outcome.decision().filter(|decision| decision.status == Status::Reserved);
            let Some(wait_us) = reserved.and_then(|decision| decision.wait_us) else { continue };
            // Who reserves asks with 0 tokens when its moment has come.
            let come = |now_us| consume(&mut event.after.clone(), call.limit, Tokens::ZERO, Mode::Exactly, now_us).allowed == 1;
            let then_us = event.now_us.saturating_add_unsigned(wait_us);
            prop_assert!(!come(then_us - 1), "{event:#?}");
            if window(&event.after, then_us).is_none_or(|window| window.left > 0) {
                prop_assert!(come(then_us), "{event:#?}");
            }
        }
    }

    #[test]
    fn what_remains_is_granted_and_not_one_token_more(history in history(30)) {
        for event in history.play() {
            let limit = event.after.limit().copied().unwrap_or(history.limit(0));
            let remaining = match (event.after.limit(), event.deed, event.outcome) {
                (Some(_), ..) => event.after.remaining(event.now_us).unwrap(),
                // Nothing was stored; the figure is what held for the call.
                (None, Deed::Consume(call), Outcome::Consumed(Ok((decision, _)))) if call.limit == limit => decision.remaining,
                _ => continue,
            };
            let granted = |whole| {
                let tokens = Tokens::from_whole(whole).unwrap_or(Tokens::MAX);
                consume(&mut event.after.clone(), limit, tokens, Mode::Exactly, event.now_us).allowed == 1
            };
            prop_assert!(remaining == 0 || granted(remaining), "not even {remaining}: {event:#?}");
            let one_more = Tokens::from_whole(remaining + 1).is_some() && granted(remaining + 1);
            prop_assert!(!one_more, "more than {remaining}: {event:#?}");
            let most = consume(&mut event.after.clone(), limit, Tokens::MAX, Mode::UpTo, event.now_us).allowed;
            prop_assert_eq!(most, remaining, "{:#?}", event);
        }
    }

    #[test]
    fn a_bucket_is_full_when_it_was_said_and_not_a_microsecond_sooner(history in history(30)) {
        for event in history.play() {
            let (after, now_us) = (event.after, event.now_us);
            let Some(limited) = after.read(now_us).limited else { continue };
            let full_us = now_us.saturating_add_unsigned(limited.full_us);
            let level = |now_us| level_millionths(&after, now_us);
            let vendor_limit = after.read(now_us).vendor_limit.unwrap_or(Tokens::MAX);
            let holds = i128::from(limited.limit.capacity().min(vendor_limit).millionths());
            if after.read(full_us).vendor_limit == after.read(now_us).vendor_limit {
                prop_assert_eq!(level(full_us), holds, "{:#?}", event);
            }
            prop_assert!(limited.full_us == 0 || level(full_us - 1) < holds, "{event:#?}");
        }
    }
}

// ------------------------------------------------ equal calls, equal answers

/// The answer to the last of some calls, and the bucket then; `None` where not all are
/// granted.
fn taken(bucket: &Bucket, limit: Limit, calls: &[Tokens], mode: Mode, now_us: i64) -> Option<(Decision, Bucket)> {
    let mut bucket = *bucket;
    let mut last = None;
    for tokens in calls {
        let (decision, _) = bucket.consume(&Consume { limit, tokens: *tokens, mode }, now_us).ok()?;
        last = Some(decision).filter(|decision| decision.allowed == 1);
        last?;
    }
    last.map(|decision| (decision, bucket))
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn taking_a_and_then_b_is_taking_both_at_once(history in history(20), parts in (0..=16_u64, 0..=16_u64), off in 0..=1_u64) {
        let (bucket, limit, now_us) = with_limit(&history);
        // Sixteenths of what is there, so that the sum is about all of it.
        let level = u64::try_from(level_millionths(&bucket, now_us).max(16)).unwrap();
        let [a, b] = [parts.0, parts.1].map(|sixteenths| (level / 16 * sixteenths + off).max(1));
        let Some(both) = Tokens::from_millionths(a + b) else { return Ok(()) };
        let [a, b] = [a, b].map(|millionths| Tokens::from_millionths(millionths).unwrap());
        for mode in [Mode::Exactly, Mode::Force] {
            let by_turns = taken(&bucket, limit, &[a, b], mode, now_us);
            prop_assert_eq!(by_turns, taken(&bucket, limit, &[both], mode, now_us), "{:?}", mode);
        }
    }

    #[test]
    fn a_rate_written_with_another_period_is_the_same_rate(
        (tokens, per) in (log_uniform(1..=999_999_999), log_uniform(1..=999)),
        times in log_uniform(1..=9_999),
        (shift, other_shift) in (-6..=3_i32, -6..=3_i32),
    ) {
        let number = |digits: u64, exponent: i32| Decimal::parse(format!("{digits}e{exponent}").as_bytes()).unwrap();
        let rate = Rate::from_decimals(number(tokens, shift), number(per, other_shift));
        let Some(known) = rate else { return Ok(()) };
        prop_assert_eq!(Rate::from_decimals(number(tokens * times, shift), number(per * times, other_shift)), rate);
        prop_assert_eq!(Rate::from_decimals(number(tokens, shift + 1), number(per, other_shift + 1)), rate);
        let exact = Exact::new(known.tokens().into(), known.per().into());
        let shift = Exact::from_integer(10.into()).pow(shift - other_shift);
        prop_assert_eq!(exact, Exact::new(tokens.into(), per.into()) * shift);
    }

    #[test]
    fn languages_that_divide_first_share_a_bucket_with_those_that_do_not(history in history(30), who in vec(any::<bool>(), 30)) {
        let mut history = history;
        history.limits.truncate(1);
        let limit = history.limits[0];
        let Some(likeness) = in_floats(&limit) else { return Ok(()) };
        prop_assert!(limit.is_same_as(&likeness) && likeness.is_same_as(&limit), "{limit:?} {likeness:?}");
        let mut bucket = Bucket::UNKNOWN;
        for (event, likely) in history.play().zip(who) {
            let deed = match event.deed {
                Deed::Consume(call) if likely && bucket.limit().is_some() => Deed::Consume(Consume { limit: likeness, ..call }),
                deed => deed,
            };
            prop_assert_eq!(deed.apply(&mut bucket, event.now_us), event.outcome);
            prop_assert_eq!(bucket, event.after);
        }
    }

    #[test]
    fn limits_are_the_same_that_differ_by_less_than_a_billionth(
        one in any_limit(),
        (capacity_off, tokens_off, per_off) in (log_uniform(0..=1 << 50), log_uniform(0..=1 << 50), log_uniform(0..=1 << 50)),
    ) {
        // Each off by a part in 2^50 to 1.
        let off = |n: u128, by: u64| n + (n >> 50) * u128::from(by) + (((n & ((1 << 50) - 1)) * u128::from(by)) >> 50);
        let other = Rate::new(off(one.rate().tokens(), tokens_off), off(one.rate().per(), per_off)).and_then(|rate| {
            let capacity = off(one.capacity().millionths().into(), capacity_off);
            Limit::new(Tokens::from_millionths(u64::try_from(capacity).ok()?)?, rate)
        });
        let Some(other) = other else { return Ok(()) };
        let (a, b) = (Terms::from(&one), Terms::from(&other));
        // Of terms that are too large to multiply the last bits are not looked at.
        let apart = |a: &Exact, b: &Exact| ((a - b).abs() * exact(1_000_000_000) / a.max(b) - exact(1)).abs();
        if apart(&a.rate, &b.rate) < Exact::new(1.into(), 1_000_000_000_000_u64.into()) {
            return Ok(());
        }
        prop_assert_eq!(one.is_same_as(&other), a.is_same_as(&b), "{:?} {:?}", one, other);
        prop_assert_eq!(other.is_same_as(&one), a.is_same_as(&b), "{:?} {:?}", one, other);
    }
}

// ----------------------------------------------------------- 4. clocks

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_clock_that_steps_ahead_leaves_a_bucket_at_most_full(history in history(20), ahead_us in log_uniform(0..=1 << 62)) {
        let (bucket, limit, now_us) = with_limit(&history);
        let then_us = now_us.saturating_add_unsigned(ahead_us);
        prop_assert!(level_millionths(&bucket, then_us) <= limit.capacity().millionths().into());
        let call = Consume { limit, tokens: limit.capacity(), mode: Mode::Exactly };
        let mut emptied = bucket;
        if emptied.consume(&call, then_us).unwrap().0.allowed == 1 {
            prop_assert_eq!(level_millionths(&emptied, then_us), 0);
        }
    }

    #[test]
    fn a_clock_that_steps_back_grants_nothing_extra(
        limit in limit(),
        start_us in start_us(),
        steps in vec((any::<bool>(), span(), amount(), any::<bool>()), 1..40),
    ) {
        // The module's clock never does; should it once, this is all that comes of it.
        let history = History { limits: vec![limit], start_us, steps: Vec::new() };
        let mut player = history.play();
        let (mut granted, mut earliest_us, mut latest_us) = (0, start_us, start_us);
        for (back, pause, amount, up_to) in steps {
            let before_us = player.now_us;
            player.wait(pause);
            if back {
                player.now_us = (2 * before_us).saturating_sub(player.now_us);
            }
            (earliest_us, latest_us) = (earliest_us.min(player.now_us), latest_us.max(player.now_us));
            let way = if up_to { Way::UpTo } else { Way::Exactly };
            let event = player.act(player.deed(Order::Consume { limit: 0, amount, way }));
            granted += Grant::of(&event).map_or(0, |grant| grant.millionths);
            let terms = Terms::from(&limit);
            let most = &terms.capacity + &terms.rate * exact(latest_us - earliest_us);
            prop_assert!(exact(granted) <= most, "{granted} of {most}");
        }
    }
}

// ------------------------------------------------------ what the vendor said

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn nothing_moves_a_thaw_earlier_and_before_it_nothing_is_granted(history in history(40)) {
        let mut thaw_us = i64::MIN;
        for event in history.play() {
            let now_us = event.now_us;
            if let Outcome::Penalised(us, _) = event.outcome {
                let Deed::Penalise { end_us } = event.deed else { unreachable!() };
                thaw_us = thaw_us.max(end_us);
                prop_assert!(now_us.saturating_add_unsigned(us) >= thaw_us);
            }
            prop_assert_eq!(event.after.read(now_us).frozen_us, u64::try_from(thaw_us.saturating_sub(now_us)).unwrap_or(0));
            if now_us >= thaw_us {
                continue;
            }
            if let (Deed::Consume(call), Some(decision)) = (event.deed, event.outcome.decision()) {
                match decision.status {
                    Status::Granted => prop_assert_eq!(call.mode, Mode::Force),
                    Status::Reserved => prop_assert!(now_us.saturating_add_unsigned(decision.wait_us.unwrap()) >= thaw_us),
                    status => prop_assert!(matches!(status, Status::Frozen | Status::Never), "{:?}", status),
                }
                prop_assert_eq!(decision.remaining, 0);
            }
            // No burst: the level at the thaw is 0 or a debt.
            let least = Tokens::from_millionths(1).unwrap();
            let limit = event.after.limit().copied().unwrap_or(history.limit(0));
            prop_assert_eq!(consume(&mut event.after.clone(), limit, least, Mode::Exactly, thaw_us).allowed, 0);
        }
    }

    #[test]
    fn what_the_vendor_says_only_ever_lowers(
        history in history(20),
        said in (amount(), option(span()), option((amount(), log_uniform(1..=1 << 40)).boxed())),
        (wait, ask) in (span(), amount()),
    ) {
        let mut player = history.play();
        player.by_ref().for_each(drop);
        let (remaining, reset, limit) = said;
        let event = player.act(player.deed(Order::Sync { remaining, reset, limit, tolerance: Amount::Whole(0) }));
        let (before, now_us) = (window(&event.before, event.now_us), event.now_us);
        if before.is_some_and(|window| window.reset_us - now_us < 1_000_000) {
            return Ok(()); // in its last second a window makes room for the next one
        }
        player.wait(wait);
        // A limit of the vendor's that follows another one may be higher or lapse sooner.
        let follows = event.before.read(now_us).vendor_limit.is_some() && limit.is_some();
        if follows && event.before.limit().is_none() {
            return Ok(()); // nobody knows what has come in, so neither what ran over
        }
        let moments = if follows { vec![now_us] } else { vec![now_us, player.now_us] };
        let limit = event.after.limit().copied().unwrap_or(history.limit(0));
        let asks = [ask, Amount::Level { off: 0 }];
        for (now_us, amount) in moments.into_iter().flat_map(|now_us| asks.map(|amount| (now_us, amount))) {
            let Deed::Consume(call) = player.deed(Order::Consume { limit: 0, amount, way: Way::Exactly }) else { unreachable!() };
            let call = Consume { limit, ..call };
            let granted = |bucket: &Bucket| bucket.clone().consume(&call, now_us).unwrap().0.allowed == 1;
            prop_assert!(!granted(&event.after) || granted(&event.before), "{call:?} at {now_us}: {event:#?}");
        }
        if let (Some(old), Some(new)) = (event.before.read(now_us).limited, event.after.read(now_us).limited) {
            prop_assert!(new.level_millionths <= old.level_millionths, "{event:#?}");
            prop_assert!(event.after.remaining(now_us) <= event.before.remaining(now_us), "{event:#?}");
        }
        if let (Some(old), Some(new)) = (before, window(&event.after, now_us)) {
            prop_assert!(new.left <= old.left && new.reset_us >= old.reset_us && new.applied <= old.applied, "{event:#?}");
        }
    }

    #[test]
    fn what_is_given_back_is_never_more_than_there_was(history in history(30), millionths in log_uniform(0..=MOST)) {
        let (mut bucket, now_us) = history.end();
        let (before, old) = (bucket, bucket.read(now_us));
        bucket.refund(Tokens::from_millionths(millionths).unwrap(), now_us);
        let new = bucket.read(now_us);
        prop_assert_eq!((old.frozen_us, old.vendor_limit), (new.frozen_us, new.vendor_limit));
        if let (Some(old_level), Some(new_level)) = (old.limited, new.limited) {
            let holds = new_level.limit.capacity().min(old.vendor_limit.unwrap_or(Tokens::MAX)).millionths();
            let most = (old_level.level_millionths + i128::from(millionths)).min(holds.into());
            let level = new_level.level_millionths;
            prop_assert!(level <= most + 1, "{level} above {most}"); // both are rounded down
            if old.frozen_us > 0 {
                // The debt beyond the thaw is paid off, the freeze is not.
                prop_assert!(ceil(&(Oracle::from(&bucket).zero.unwrap() - exact(now_us))) >= old.frozen_us.into());
            } else {
                prop_assert!(level >= most, "{level} below {most}");
            }
        }
        let (old, new) = (window(&before, now_us), window(&bucket, now_us));
        let refilled = old.filter(|_| bucket.limit().is_some()).map(|old| {
            let left = old.left.saturating_add(millionths).min(old.applied);
            Window { left, ..old }
        });
        prop_assert_eq!(new, refilled.or(old));
    }

    #[test]
    fn a_window_lapses_and_blocks_nothing_after_its_reset(history in history(20), reset_us in log_uniform(1..=1 << 50)) {
        let (bucket, limit, now_us) = with_limit(&history);
        let reset_us = now_us.saturating_add_unsigned(reset_us);
        let said = Sync { remaining: Tokens::ZERO, reset_us: Some(reset_us), limit: None, tolerance: Tokens::ZERO };
        let mut closed = bucket;
        closed.sync(&said, now_us);
        let Some(Window { left, reset_us, .. }) = window(&closed, now_us) else { return Ok(()) };
        let ask = |bucket: &Bucket, now_us| {
            consume(&mut bucket.clone(), limit, Tokens::from_millionths(1).unwrap(), Mode::Exactly, now_us).allowed
        };
        prop_assert!(left > 0 || ask(&closed, reset_us - 1) == 0);
        prop_assert_eq!(ask(&closed, reset_us), ask(&bucket, reset_us));
    }
}

// ----------------------------------------------------- 6. idle buckets go

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_bucket_expires_once_all_is_forgotten_and_soon_after(history in history(20), phase in log_uniform(0..=u64::MAX)) {
        for event in history.play() {
            let after = event.after;
            if after == Bucket::UNKNOWN {
                continue;
            }
            let forgotten_us = i128::from(after.forgotten_us());
            let expire_us = i128::from(after.expire_at_ms(phase)) * 1000;
            let tenth_us = after.limit().map_or(0, |limit| i128::from(limit.fill_us()) / 10);
            prop_assert!(expire_us >= forgotten_us, "{event:#?}");
            prop_assert!(expire_us - forgotten_us <= tenth_us.max(10_000_000), "{event:#?}");
            // A moment is one of the bucket's in one step and in no other.
            let (at_ms, step_ms) = (after.expire_at_ms(phase), tenth_us.max(10_000_000) as i64 / 1000);
            prop_assert!(after.may_expire_at(at_ms), "{event:#?}");
            prop_assert!(!after.may_expire_at(at_ms - step_ms) && !after.may_expire_at(at_ms + step_ms), "{event:#?}");
        }
    }

    #[test]
    fn once_forgotten_it_is_like_one_that_does_not_exist_and_not_a_microsecond_sooner(
        history in history(20),
        amount in amount(),
    ) {
        let (bucket, limit, now_us) = with_limit(&history);
        let forgotten_us = bucket.forgotten_us();
        let history = History { limits: vec![limit], start_us: forgotten_us.max(now_us), steps: Vec::new() };
        let player = history.play();
        let deed = player.deed(Order::Consume { limit: 0, amount, way: Way::Exactly });
        let (mut forgotten, mut unknown) = (bucket, Bucket::UNKNOWN);
        let outcomes = [&mut forgotten, &mut unknown].map(|bucket| deed.apply(bucket, player.now_us).decision());
        prop_assert_eq!(outcomes[0], outcomes[1]);
        if forgotten_us > now_us {
            let reading = bucket.read(forgotten_us - 1);
            let level = reading.limited.unwrap().level_millionths;
            let known = reading.frozen_us > 0 || reading.vendor_limit.is_some() || reading.window.is_some();
            prop_assert!(known || level < limit.capacity().millionths().into());
        }
    }

    #[test]
    fn the_moment_of_expiry_stands_still_while_a_bucket_is_in_use(
        limit in any_limit(),
        phase in any::<u64>(),
        start_us in start_us(),
    ) {
        // A bucket that is kept about empty for one step of its expiry.
        let step_us = (limit.fill_us() / 10).max(10_000_000);
        let call = Consume { limit, tokens: limit.capacity(), mode: Mode::Exactly };
        let mut moments = Vec::new();
        for sixteenth in 0..16 {
            let mut bucket = Bucket::UNKNOWN;
            bucket.consume(&call, start_us.saturating_add_unsigned(step_us / 16 * sixteenth)).unwrap();
            moments.push(bucket.expire_at_ms(phase));
        }
        prop_assert!(moments.is_sorted());
        moments.dedup();
        prop_assert!(moments.len() <= 2, "{moments:?}");
    }

    #[test]
    fn buckets_made_at_the_same_moment_do_not_expire_at_the_same(start_us in start_us()) {
        let limit = Limit::new(Tokens::ONE, Rate::new(1, 1).unwrap()).unwrap();
        let mut bucket = Bucket::UNKNOWN;
        bucket.consume(&Consume { limit, tokens: Tokens::ONE, mode: Mode::Exactly }, start_us).unwrap();
        let mut moments: Vec<i64> = (0..10).map(|tenth| bucket.expire_at_ms(tenth * 1_000 + 7)).collect();
        moments.sort_unstable();
        moments.dedup();
        prop_assert_eq!(moments.len(), 10);
    }
}
