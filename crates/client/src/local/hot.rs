//! The usual bucket, a limit and a zero moment, kept so that threads need no lock to
//! take tokens from it: the zero moment in one word, in parts of a microsecond. A part
//! is the time in which one drop comes in, so counting in parts is counting in drops,
//! and as exact as the algorithm. Whatever is not usual (a vendor's word, another
//! limit, a number that does not fit) is left to that.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokenbucket::{Bucket, Limit};

use crate::{Decision, Origin, Status, Tokens};

#[derive(Debug)]
pub(crate) struct Hot {
    /// The moment at which the level is 0. It only ever moves on.
    zero: AtomicI64,
    terms: Arc<Terms>,
}

/// A limit in parts. One for all buckets that keep to it, so it is in the cache and
/// they are small.
#[derive(Debug)]
pub(super) struct Terms {
    limit: Limit,
    /// Parts of a microsecond.
    rate: i64,
    /// Parts in which a millionth of a token, a token and all it holds come in.
    millionth: i64,
    token: u64,
    capacity: i64,
    tokens: Divisor,
    milliseconds: Divisor,
}

impl Terms {
    /// `None` where they do not fit.
    pub(super) fn new(limit: Limit) -> Option<Self> {
        let rate = i64::try_from(limit.rate().tokens()).ok()?;
        let millionth = i64::try_from(limit.rate().per()).ok()?;
        let capacity = i64::try_from(limit.capacity().millionths()).ok()?.checked_mul(millionth)?;
        let token = millionth.checked_mul(1_000_000)?;
        let (tokens, milliseconds) = (Divisor::new(token)?, Divisor::new(rate.checked_mul(1000)?)?);
        Some(Self { limit, rate, millionth, token: token.unsigned_abs(), capacity, tokens, milliseconds })
    }
}

impl Hot {
    /// `None` for a bucket that is not usual; `terms` are those of its limit.
    pub(super) fn new(bucket: &Bucket, terms: impl FnOnce(Limit) -> Option<Arc<Terms>>) -> Option<Self> {
        let (limit, us, part) = bucket.plain()?;
        let terms = terms(limit)?;
        let zero = us.checked_mul(terms.rate)?.checked_add(i64::try_from(part).ok()?)?;
        Some(Self { zero: AtomicI64::new(zero), terms })
    }

    /// The same in the algorithm's form.
    pub(super) fn bucket(&self) -> Bucket {
        let Terms { limit, rate, .. } = *self.terms;
        let zero = self.zero.load(Ordering::Relaxed);
        let part = zero.rem_euclid(rate).unsigned_abs();
        // A part is below the rate, so there always is one.
        Bucket::from_plain(limit, zero.div_euclid(rate), u128::from(part)).unwrap_or(Bucket::UNKNOWN)
    }

    /// The answer to a plain request, where this is the place for it.
    #[inline]
    pub(super) fn consume(&self, limit: &Limit, tokens: Tokens, now_us: i64) -> Option<Told> {
        let terms = &*self.terms;
        let cost = i64::try_from(tokens.millionths()).ok()?.checked_mul(terms.millionth)?;
        if cost == 0 || cost > terms.capacity || *limit != terms.limit {
            return None;
        }
        let now = now_us.checked_mul(terms.rate)?;
        // What ran over before is gone.
        let fullest = now.checked_sub(terms.capacity)?;
        let mut known = self.zero.load(Ordering::Relaxed);
        loop {
            let zero = known.max(fullest);
            let after = zero.checked_add(cost)?;
            if after > now {
                return Some(terms.told(now, zero, after, zero.checked_add(terms.capacity)?));
            }
            let full = after.checked_add(terms.capacity)?;
            // Relaxed: nothing but this word is told by it.
            match self.zero.compare_exchange_weak(known, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(terms.told(now, after, now, full)),
                Err(other) => known = other,
            }
        }
    }
}

impl Terms {
    /// What is told now (not before 0) of a level that is 0 at `zero`, where the tokens are
    /// `there` and the bucket is `full`.
    #[inline]
    fn told(&self, now: i64, zero: i64, there: i64, full: i64) -> Told {
        let level = if zero < now { now.abs_diff(zero) } else { 0 };
        Told {
            is_granted: there <= now,
            // Down: a fraction is not there yet. One who is denied is mostly spared it.
            remaining: if level < self.token { 0 } else { self.tokens.in_whole(level) },
            wait_ms: self.until_ms(there, now),
            full_ms: self.until_ms(full, now),
        }
    }

    /// From now until a moment; up, as the server does. (It rounds up to microseconds
    /// first, which comes to the same; and now is a whole one.)
    #[inline]
    fn until_ms(&self, then: i64, now: i64) -> u64 {
        if then <= now { 0 } else { self.milliseconds.in_whole(then.abs_diff(now) - 1) + 1 }
    }
}

/// A [`Decision`] in so few words that it leaves the lock in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    is_granted: bool,
    remaining: u64,
    wait_ms: u64,
    full_ms: u64,
}

impl From<Told> for Decision {
    #[inline]
    fn from(told: Told) -> Self {
        Self {
            allowed: u64::from(told.is_granted),
            remaining: told.remaining,
            wait: Some(Duration::from_millis(told.wait_ms)),
            full: Duration::from_millis(told.full_ms),
            status: if told.is_granted { Status::Granted } else { Status::Empty },
            origin: Origin::Local,
        }
    }
}

/// What is divided by for every answer, as a factor and a shift: a division takes as
/// long as all the rest.
///
/// For a divisor d of at most 2^s the factor is 2^(63+s) / d rounded up, which is off by
/// less than 1, so a quotient by less than n / 2^(63+s): less than 1 / d for an n below
/// 2^63, and so never as much as it is to the next whole number.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    factor: u64,
    shift: u32,
}

impl Divisor {
    /// `None` for what is not above 0.
    fn new(divisor: i64) -> Option<Self> {
        let divisor = u64::try_from(divisor).ok().filter(|divisor| *divisor > 0)?;
        let shift = (divisor - 1).checked_ilog2().map_or(0, |log| log + 1);
        // Below 2^64, since the divisor is above half of 2^s.
        let factor = u64::try_from((1_u128 << (63 + shift)).div_ceil(u128::from(divisor))).ok()?;
        Some(Self { factor, shift })
    }

    /// How many times it is in `number`, which is below 2^63.
    #[inline]
    fn in_whole(self, number: u64) -> u64 {
        // Twice, for the upper half is to be had for nothing.
        let product = u128::from(number << 1) * u128::from(self.factor);
        let upper = (product >> 64) as u64; // of 128 bits: fits
        upper.wrapping_shr(self.shift) // at most 63
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divisor_divides_as_the_processor_does() {
        use proptest::prelude::*;
        use proptest::test_runner::{Config, TestRunner};

        // Of all sizes, and beside the powers of two.
        let any = (0_u32..63, any::<i64>()).prop_map(|(bits, any)| ((any & i64::MAX) >> bits).max(1));
        let near = (0_u32..63, -2_i64..3).prop_map(|(bits, near)| (1_i64 << bits).saturating_add(near).max(1));
        let numbers = prop_oneof![any, near, Just(i64::MAX)];
        TestRunner::new(Config { failure_persistence: None, cases: 20_000, ..Config::default() })
            .run(&(numbers.clone(), numbers, -1_i64..2), |(divisor, factor, near)| {
                let by = Divisor::new(divisor).unwrap();
                // Where a quotient is close to a whole number.
                let multiple = divisor.saturating_mul(factor).saturating_add(near).max(0);
                for number in [factor, multiple, 0, i64::MAX - i64::MAX % divisor, i64::MAX] {
                    prop_assert_eq!(
                        by.in_whole(number.unsigned_abs()),
                        (number / divisor).unsigned_abs(),
                        "{} / {}",
                        number,
                        divisor
                    );
                }
                Ok(())
            })
            .unwrap();
        assert!(Divisor::new(0).is_none() && Divisor::new(-1).is_none());
    }
}
