//! Buckets in this process: the algorithm of the server without a server.
//!
//! What to know before changing it: every answer is made under the lock of one
//! shard, so nothing slow may happen there; the time is read and the key hashed
//! before. Figures are rounded as the server rounds them, which the vectors that
//! both pass hold us to.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tokenbucket::{Bucket, Effect};

use crate::request::{Mode, When};
use crate::{
    Consume, Decision, Error, Origin, Peek, Penalise, Penalised, Reading, Refund, Request, Status, Sync, Synced, Tokens,
};

/// The server's defaults: the longest penalty and window, and how long a vendor's
/// limit is believed, in microseconds.
const MAX_PENALTY_US: u64 = 604_800_000_000;
const MAX_WINDOW_US: u64 = 2_678_400_000_000;
const VENDOR_LIMIT_TTL_US: u64 = 3_600_000_000;

/// A shard is swept of full buckets when it has grown to this many, and then each
/// time it has doubled.
const FIRST_SWEEP: usize = 64;

/// Buckets in this process, with the same requests and the same answers as the
/// server: for a program that runs alone, for tests, and for when Redis is away.
///
/// Thread-safe; share it by reference or in an `Arc`. A bucket that is full again
/// is forgotten, so memory follows the keys in use.
///
/// ```
/// use tokenbucket_client::{Consume, Limit, Local};
///
/// let buckets = Local::new();
/// let request = Consume::new("vendor", Limit::per_second(2)?);
/// assert!(buckets.answer(&request)?.is_allowed());
/// assert!(buckets.answer(&request)?.is_allowed());
/// let decision = buckets.answer(&request)?;
/// assert!(!decision.is_allowed());
/// assert!(decision.wait.unwrap().as_millis() <= 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Local {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    start: Instant,
}

#[derive(Debug, Default)]
struct Shard {
    buckets: HashTable<(Box<[u8]>, Bucket)>,
    sweep_at: usize,
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl Local {
    /// No buckets yet, so all are full.
    pub fn new() -> Self {
        let shards = (0..64).map(|_| Mutex::new(Shard { buckets: HashTable::new(), sweep_at: FIRST_SWEEP }));
        Self { shards: shards.collect(), hasher: RandomState::new(), start: Instant::now() }
    }

    /// Answers as the server would.
    ///
    /// # Errors
    /// [`Error::Redis`] for a request that the server refuses as well: an
    /// [`up_to`](Consume::up_to) of less than one token, a
    /// [`force`](Consume::force) that takes over 100 years to pay back, a vendor's
    /// limit below one token.
    pub fn answer<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let now_us = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX); // 290,000 years
        self.answer_at(request, now_us)
    }

    fn answer_at<R: Request>(&self, request: &R, now_us: i64) -> Result<R::Reply, Error> {
        let key = request.key();
        let hash = self.hasher.hash_one(key);
        // The table takes the high and the low bits; these are of the middle.
        let shard = usize::try_from(hash >> 24 & 63).unwrap_or(0);
        let Some(shard) = self.shards.get(shard) else { return Err(Error::invalid("no shards")) };
        // No answer panics halfway through a change: what is behind a poisoned lock is whole.
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let Shard { buckets, sweep_at } = &mut *shard;
        if let Some((_, bucket)) = buckets.find_mut(hash, |(known, _)| **known == *key) {
            return request.answer(Some(bucket), now_us).map(|(reply, _)| reply);
        }
        let mut bucket = Bucket::UNKNOWN;
        if R::READS {
            return request.answer(None, now_us).map(|(reply, _)| reply);
        }
        let (reply, effect) = request.answer(Some(&mut bucket), now_us)?;
        if effect == Effect::Changed {
            let hasher = |(key, _): &(Box<[u8]>, Bucket)| self.hasher.hash_one(&**key);
            if buckets.len() >= *sweep_at {
                buckets.retain(|(_, bucket)| bucket.forgotten_us() > now_us);
                buckets.shrink_to(FIRST_SWEEP, hasher);
                *sweep_at = (buckets.len() * 2).max(FIRST_SWEEP);
            }
            if let Entry::Vacant(place) = buckets.entry(hash, |(known, _)| **known == *key, hasher) {
                place.insert((key.into(), bucket));
            }
        }
        Ok(reply)
    }

    /// How many buckets are kept.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().buckets.len()).sum()
    }
}

/// How a request is answered without a server. Sealed: implemented by the requests
/// of this crate alone.
#[doc(hidden)]
pub trait Answer<Reply> {
    /// Whether it reads, so that a bucket that does not exist is told apart from a full one.
    const READS: bool = false;

    fn key(&self) -> &[u8];

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Reply, Effect), Error>;

    /// What it is answered where Redis is away.
    fn without_redis(&self, open: bool) -> Reply;

    /// The same for a fallback that has only a share of the budget.
    #[must_use]
    fn share(&self, share: f64) -> Self;
}

/// Whole milliseconds, up: a wait is never reported as 0.
const fn milliseconds_up(us: u64) -> Duration {
    Duration::from_millis(us.div_ceil(1000))
}

fn microseconds_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

impl When {
    /// On the buckets' clock; a moment is turned into "from now" by the wall clock.
    fn on_clock(self, now_us: i64, longest_us: u64) -> i64 {
        let us = match self {
            Self::In(duration) => microseconds_up(duration),
            Self::At(moment) => moment.duration_since(SystemTime::now()).map_or(0, microseconds_up),
        };
        now_us.saturating_add_unsigned(us.min(longest_us))
    }
}

impl Answer<Decision> for Consume {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Decision, Effect), Error> {
        let mode = match self.mode {
            Mode::Exactly => tokenbucket::Mode::Exactly,
            Mode::UpTo if self.tokens < Tokens::ONE => return Err(Error::invalid("up_to needs at least one token")),
            Mode::UpTo => tokenbucket::Mode::UpTo,
            Mode::Force => tokenbucket::Mode::Force,
            Mode::Reserve(wait) => tokenbucket::Mode::Reserve { max_wait_us: microseconds_up(wait) },
        };
        let call = tokenbucket::Consume { limit: self.limit.exact, tokens: self.tokens.0, mode };
        let mut full = Bucket::UNKNOWN;
        let (decision, effect) = bucket
            .unwrap_or(&mut full)
            .consume(&call, now_us)
            .map_err(|_| Error::invalid("a forced request would take more than 100 years to pay back"))?;
        let decision = Decision {
            allowed: decision.allowed,
            remaining: decision.remaining,
            wait: decision.wait_us.map(milliseconds_up),
            full: milliseconds_up(decision.full_us),
            status: match decision.status {
                tokenbucket::Status::Granted => Status::Granted,
                tokenbucket::Status::Reserved => Status::Reserved,
                tokenbucket::Status::Never => Status::Never,
                tokenbucket::Status::Frozen => Status::Frozen,
                tokenbucket::Status::Window => Status::Window,
                tokenbucket::Status::Empty => Status::Empty,
            },
            origin: Origin::Local,
        };
        Ok((decision, effect))
    }

    fn without_redis(&self, open: bool) -> Decision {
        let allowed = if matches!(self.mode, Mode::UpTo) { self.tokens.whole() } else { 1 };
        Decision {
            allowed: if open { allowed } else { 0 },
            remaining: 0,
            wait: Some(if open { Duration::ZERO } else { ASK_AGAIN }),
            full: Duration::ZERO,
            status: if open { Status::Granted } else { Status::Unavailable },
            origin: if open { Origin::FailOpen } else { Origin::FailClosed },
        }
    }

    #[cfg(feature = "limiter")]
    fn share(&self, share: f64) -> Self {
        // The burst has room for the request, or it would be told "never" where it is not so.
        Self { limit: self.limit.share(share, self.tokens.max(Tokens::ONE)), ..self.clone() }
    }

    #[cfg(not(feature = "limiter"))]
    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

/// When to ask again while nobody knows how long Redis will be away.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Answer<Penalised> for Penalise {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Penalised, Effect), Error> {
        let mut full = Bucket::UNKNOWN;
        let end_us = self.end.on_clock(now_us, MAX_PENALTY_US);
        let (empty_us, effect) = bucket.unwrap_or(&mut full).penalise(end_us, now_us);
        Ok((Penalised { empty: milliseconds_up(empty_us) }, effect))
    }

    fn without_redis(&self, _: bool) -> Penalised {
        Penalised { empty: Duration::ZERO }
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl Answer<Synced> for Sync {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Synced, Effect), Error> {
        if self.limit.is_some_and(|limit| limit < Tokens::ONE) {
            return Err(Error::invalid("a vendor's limit is at least one token"));
        }
        let said = tokenbucket::Sync {
            remaining: self.remaining.0,
            reset_us: self.reset.map(|reset| reset.on_clock(now_us, MAX_WINDOW_US)),
            limit: self.limit.map(|limit| (limit.0, VENDOR_LIMIT_TTL_US)),
            tolerance: self.tolerance.0,
        };
        let mut full = Bucket::UNKNOWN;
        let bucket = bucket.unwrap_or(&mut full);
        let synced = bucket.sync(&said, now_us);
        let remaining = bucket.remaining(now_us).unwrap_or(self.remaining.whole());
        Ok((Synced { applied: synced.applied, remaining }, synced.effect))
    }

    fn without_redis(&self, _: bool) -> Synced {
        Synced { applied: false, remaining: self.remaining.whole() }
    }

    #[cfg(feature = "limiter")]
    fn share(&self, share: f64) -> Self {
        Self { remaining: self.remaining.share(share), ..self.clone() }
    }

    #[cfg(not(feature = "limiter"))]
    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl Answer<Option<u64>> for Refund {
    const READS: bool = true; // a refund never makes a bucket

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Option<u64>, Effect), Error> {
        // A bucket that is full again is one that does not exist.
        let Some(bucket) = bucket.filter(|bucket| bucket.forgotten_us() > now_us) else { return Ok((None, Effect::Unchanged)) };
        let effect = bucket.refund(self.tokens.0, now_us);
        let remaining = bucket.limit().and_then(|_| bucket.remaining(now_us)).unwrap_or(0);
        Ok((Some(remaining), effect))
    }

    fn without_redis(&self, _: bool) -> Option<u64> {
        None
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl Answer<Option<Reading>> for Peek {
    const READS: bool = true;

    fn key(&self) -> &[u8] {
        &self.key
    }

    #[expect(clippy::cast_precision_loss, reason = "readings are for people; 53 bits are enough")]
    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Option<Reading>, Effect), Error> {
        let Some(bucket) = bucket.filter(|bucket| bucket.forgotten_us() > now_us) else { return Ok((None, Effect::Unchanged)) };
        let read = bucket.read(now_us);
        let limited = read.limited;
        let limit = limited.map(|limited| limited.limit);
        let reading = Reading {
            capacity: limit.map(|limit| limit.capacity().millionths() as f64 / 1e6),
            rate: limit.map(|limit| limit.rate().tokens() as f64),
            per: limit.map(|limit| limit.rate().per() as f64),
            tokens: limited.map(|limited| limited.level_millionths as f64 / 1e6),
            wait: limited.and_then(|limited| limited.wait_us).map(milliseconds_up),
            frozen: milliseconds_up(read.frozen_us),
            full: limited.map(|limited| milliseconds_up(limited.full_us)),
            vendor_limit: read.vendor_limit.map(tokenbucket::Tokens::whole),
            vendor_remaining: read.window.map(|(left, _)| left.whole()),
            vendor_reset: read.window.map(|(_, reset_us)| milliseconds_up(reset_us)),
        };
        Ok((Some(reading), Effect::Unchanged))
    }

    fn without_redis(&self, _: bool) -> Option<Reading> {
        None
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}
