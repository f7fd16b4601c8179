//! The usual bucket, a limit and a zero moment, kept so that threads need no lock to
//! take tokens from it: the zero moment in one word, in parts of a microsecond. A part
//! is the time in which one drop comes in, so counting in parts is counting in drops,
//! and as exact as the algorithm. Whatever is not usual (a vendor's word, another
//! limit, a number that does not fit) is left to that.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokenbucket::{Bucket, Limit};

use super::milliseconds_up;
use crate::{Decision, Origin, Status, Tokens};

/// Millionths of a token in a token.
const MILLION: i64 = 1_000_000;

#[derive(Debug)]
pub struct Hot {
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
    token: i64,
    capacity: i64,
}

impl Terms {
    /// `None` where they do not fit.
    pub(super) fn new(limit: Limit) -> Option<Self> {
        let rate = i64::try_from(limit.rate().tokens()).ok()?;
        let millionth = i64::try_from(limit.rate().per()).ok()?;
        let capacity = i64::try_from(limit.capacity().millionths()).ok()?.checked_mul(millionth)?;
        let token = millionth.checked_mul(MILLION)?;
        Some(Self { limit, rate, millionth, token, capacity })
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
    pub(super) fn consume(&self, limit: &Limit, tokens: Tokens, now_us: i64) -> Option<Decision> {
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
                return Some(terms.report(zero, now, Some(after)));
            }
            // Relaxed: nothing but this word is told by it.
            match self.zero.compare_exchange_weak(known, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(terms.report(after, now, None)),
                Err(other) => known = other,
            }
        }
    }
}

impl Terms {
    /// What is told of a level that is 0 at `zero`, to one who has to wait until
    /// `granted` or need not wait.
    #[inline]
    fn report(&self, zero: i64, now: i64, granted: Option<i64>) -> Decision {
        let level = now.saturating_sub(zero).max(0).unsigned_abs();
        Decision {
            allowed: u64::from(granted.is_none()),
            // Down: a fraction is not there yet. One who is denied is mostly spared the division.
            remaining: if level < self.token.unsigned_abs() { 0 } else { level / self.token.unsigned_abs() },
            wait: Some(granted.map_or(Duration::ZERO, |granted| self.until(granted, now))),
            full: self.until(zero.saturating_add(self.capacity), now),
            status: if granted.is_none() { Status::Granted } else { Status::Empty },
            origin: Origin::Local,
        }
    }

    /// From now until a moment in parts, which is not past; up, first to microseconds,
    /// as the server does.
    #[inline]
    fn until(&self, then: i64, now: i64) -> Duration {
        // Now is a whole microsecond, so what is rounded up from there is so from 0, too.
        let (ahead, rate) = (then.saturating_sub(now).max(0).unsigned_abs(), self.rate.unsigned_abs());
        // Most are small, and a division of 32 bits takes half the time.
        milliseconds_up(match (u32::try_from(ahead), u32::try_from(rate)) {
            (Ok(ahead), Ok(rate)) => u64::from(ahead.div_ceil(rate)),
            _ => ahead.div_ceil(rate),
        })
    }
}
