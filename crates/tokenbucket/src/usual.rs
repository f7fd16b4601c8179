//! The usual call in 64 bits: its limit is the one that is remembered, nothing else
//! is, and there is no debt.
//!
//! `bucket.rs` decides it just so, and everything else; here is only what is left of
//! that when all the rest is known to be absent, and every number short. (It takes 150
//! instructions instead of 800, of the server's 10,000 for a call.) Whatever does not fit is
//! left to `bucket.rs`, so this may give up anywhere. A test holds the two together.

use crate::bucket::{Consume, Decision, Limited, Mode, Status};
use crate::limit::{Moment, Tokens};

/// The answer to a call, and the zero moment after it where tokens were taken; `None`
/// where it is not a usual one.
#[inline(always)]
pub(crate) fn consume(bucket: &Limited, call: &Consume, now_us: i64) -> Option<(Decision, Option<Moment>)> {
    let Limited { limit, zero, vendor } = bucket;
    let tokens = call.tokens;
    let usual = call.mode == Mode::Exactly
        && *limit == call.limit
        && vendor.is_empty()
        && tokens > Tokens::ZERO
        && tokens <= limit.capacity();
    if !usual {
        return None;
    }
    let rate = u64::try_from(limit.rate().tokens()).ok()?;
    let per = u64::try_from(limit.rate().per()).ok()?;
    let part = u64::try_from(zero.part).ok()?;
    // All in drops, as the essay in `lib.rs` counts.
    let one = per.checked_mul(Tokens::ONE.millionths())?;
    let most = per.checked_mul(limit.capacity().millionths())?;
    let wanted = per.checked_mul(tokens.millionths())?;
    let since_us = u64::try_from(now_us.checked_sub(zero.us)?).ok()?;
    let refilled = rate.checked_mul(since_us)?.checked_sub(part)?;

    // Rounded up: nobody is told to come before the drops are there.
    let us_for = |drops: u64| drops.div_ceil(rate);
    if refilled < wanted {
        let decision = Decision {
            status: Status::Empty,
            allowed: 0,
            remaining: refilled / one,
            wait_us: Some(us_for(wanted - refilled)),
            full_us: us_for(most - refilled),
        };
        return Some((decision, None));
    }
    let left = refilled.min(most) - wanted;
    let zero = if refilled < most {
        let filled = part.checked_add(wanted)?;
        Moment { us: zero.us.checked_add_unsigned(filled / rate)?, part: u128::from(filled % rate) }
    } else {
        // What ran over is spilled: as far back as what is left takes to fill.
        let (us, rest) = (now_us.checked_sub_unsigned(left / rate)?, left % rate);
        if rest == 0 { Moment::at(us) } else { Moment { us: us.checked_sub(1)?, part: u128::from(rate - rest) } }
    };
    let decision =
        Decision { status: Status::Granted, allowed: 1, remaining: left / one, wait_us: Some(0), full_us: us_for(most - left) };
    Some((decision, Some(zero)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::{Bucket, Vendor};
    use crate::limit::{Limit, Rate};
    use proptest::prelude::*;

    /// Limits of every size, so that some overflow, and moments about those at which
    /// the bucket is empty, has what is wanted, or is full.
    fn usual_and_not() -> impl Strategy<Value = (Limited, Consume, i64)> {
        let terms = prop_oneof![1..=100_u64, 1..=10_000_000_u64, 1..=1_000_000_000_000_000_u64];
        let amount = || prop_oneof![1..=20_000_000_u64, 1..=1_000_000_000_000_000_000_u64];
        let limit = (amount(), terms.clone(), terms).prop_filter_map("no limit", |(capacity, tokens, per)| {
            Limit::new(Tokens::from_millionths(capacity)?, Rate::new(tokens.into(), per.into())?)
        });
        let wanted = prop_oneof![2 => Just(Tokens::ONE), 1 => amount().prop_map(|n| Tokens::from_millionths(n).unwrap())];
        (limit, wanted, any::<bool>(), any::<u64>(), 0..=5_usize, any::<u64>(), -2..=2_i64).prop_map(
            |(limit, wanted, all, part, about, some, off)| {
                let rate = limit.rate();
                let tokens = if all { limit.capacity() } else { wanted.min(limit.capacity()) };
                let known = Moment { us: 1_700_000_000_000_000, part: u128::from(part) % rate.tokens() };
                let fill_us = limit.fill_us();
                let (zero, since) = match about {
                    0 => (known, 0),
                    1 => (known, rate.after(Moment::at(0), rate.drops_of(tokens)).us.unsigned_abs()),
                    2 => (known, fill_us),
                    // To the drop.
                    3 => (rate.before(Moment::at(known.us), rate.drops_of(tokens)), 0),
                    4 => (rate.before(Moment::at(known.us), rate.drops_of(limit.capacity())), 0),
                    _ => (known, some % (2 * fill_us + 2)),
                };
                let now_us = known.us.saturating_add_unsigned(since).saturating_add(off);
                (Limited { limit, zero, vendor: Vendor::default() }, Consume { limit, tokens, mode: Mode::Exactly }, now_us)
            },
        )
    }

    proptest! {
        // Two in five of the numbers make no limit.
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            max_local_rejects: u32::MAX,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_usual_call_is_answered_as_any_other((limited, call, now_us) in usual_and_not()) {
            if let Some((decision, zero)) = consume(&limited, &call, now_us) {
                let mut bucket = Bucket::Limited(limited);
                let (expected, _) = bucket.consume_any(&call, now_us).unwrap();
                prop_assert_eq!(decision, expected);
                prop_assert_eq!(bucket, Bucket::Limited(Limited { zero: zero.unwrap_or(limited.zero), ..limited }));
            }
        }
    }

    #[test]
    fn what_is_not_usual_is_left_to_the_rest() {
        let limit = Limit::new(Tokens::ONE, Rate::new(1, 1).unwrap()).unwrap();
        let bucket = Limited { limit, zero: Moment::at(0), vendor: Vendor::default() };
        let call = Consume { limit, tokens: Tokens::ONE, mode: Mode::Exactly };
        assert!(consume(&bucket, &call, 0).is_some() && consume(&bucket, &call, 2_000_000).is_some());
        let other = Limit::new(Tokens::ONE, Rate::new(2, 1).unwrap()).unwrap();
        let mut frozen = bucket;
        frozen.vendor.thaw_us = Some(1);
        for (bucket, call, now_us) in [
            (bucket, call, -1),
            (Limited { zero: Moment { us: 0, part: 1 }, ..bucket }, call, 0),
            (frozen, call, 2_000_000),
            (bucket, Consume { limit: other, ..call }, 0),
            (bucket, Consume { tokens: Tokens::ZERO, ..call }, 0),
            (bucket, Consume { tokens: Tokens::MAX, ..call }, 0),
            (bucket, Consume { mode: Mode::UpTo, ..call }, 0),
            (bucket, Consume { mode: Mode::Force, ..call }, 0),
            (bucket, Consume { mode: Mode::Reserve { max_wait_us: 1 }, ..call }, 0),
            (Limited { zero: Moment::at(-1), ..bucket }, call, i64::MAX),
        ] {
            assert_eq!(consume(&bucket, &call, now_us), None, "{bucket:?} {call:?} {now_us}");
        }
    }
}
