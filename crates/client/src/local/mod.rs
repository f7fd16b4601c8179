//! Buckets in this process: the algorithm of the server without a server.
//!
//! What to know before changing it: a plain request for a usual bucket is answered by
//! `hot.rs` while others read the same shard; every other answer is made alone in its
//! shard, by the algorithm, so nothing slow may happen there. Figures are rounded as
//! the server rounds them, which the vectors that both pass hold us to.

mod hot;
mod joint;

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use hashbrown::{DefaultHashBuilder, HashTable};
use hot::{Hot, Terms};
use quanta::Clock;
use tokenbucket::{Bucket, Effect};

use crate::request::{Mode, When};
use crate::{
    Consume, Decision, Error, Limit, Origin, Peek, Penalise, Penalised, Reading, Refund, Request, Status, Sync, Synced, Tokens,
};

/// The server's defaults: the longest penalty and window, and how long a vendor's
/// limit is believed, in microseconds.
const MAX_PENALTY_US: u64 = 604_800_000_000;
const MAX_WINDOW_US: u64 = 2_678_400_000_000;
const VENDOR_LIMIT_TTL_US: u64 = 3_600_000_000;

/// A shard is swept of full buckets when it has grown to this many, and then each
/// time it has doubled.
const FIRST_SWEEP: usize = 64;

/// A bucket that has been full for less long, in microseconds, is left: where each is
/// soon full again, those in use would come and go all the time.
const LINGER_US: i64 = 1_000_000;

/// More than there are threads that ask at the same moment.
const SHARDS: usize = 64;

/// Buckets in this process, with the same requests and the same answers as the
/// server: for a program that runs alone, for tests, and for when Redis is away.
///
/// Thread-safe; share it by reference or in an `Arc`. A bucket that has been full for a
/// second is forgotten, so memory follows the keys in use.
///
/// Its clock is the processor's, compared with the system's once. Where that is off by some
/// parts in a million (tens are usual), so is the pace: over a day at 50 of them 4 s worth of
/// tokens more or less than the limit has. "Never too many" holds to that, by its own clock.
///
/// ```
/// use tokenbucket_client::{Consume, Limit, Local};
///
/// let buckets = Local::new();
/// let limit = Limit::per_second(2)?;
/// assert!(buckets.check("vendor", &limit, 1).is_allowed());
/// assert!(buckets.answer(&Consume::new("vendor", limit))?.is_allowed());
/// let decision = buckets.check("vendor", &limit, 1);
/// assert!(!decision.is_allowed());
/// assert!(decision.wait.unwrap().as_millis() <= 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Local {
    shards: Box<[Apart]>,
    limits: Limits,
    hasher: DefaultHashBuilder,
    /// The processor's: reading the system's costs more than all the rest.
    clock: Clock,
    start: u64,
}

/// A shard on cache lines of its own: threads on two of them do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
struct Apart(RwLock<Shard>);

#[derive(Debug)]
struct Shard {
    buckets: HashTable<(Key, Kept)>,
    sweep_at: usize,
}

impl Shard {
    fn bucket(&self, hash: u64, key: &[u8]) -> Option<Bucket> {
        self.buckets.find(hash, |(known, _)| known.bytes() == key).map(|(_, kept)| kept.bucket())
    }
}

/// A key; a short one, as most are, without another line of memory to be fetched.
#[derive(Debug)]
enum Key {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

/// As much as fits beside the length in the room of a long one and its mark.
const SHORT: usize = 22;

impl Key {
    fn new(key: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        match (bytes.get_mut(..key.len()), u8::try_from(key.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(key);
                Self::Short { length, bytes }
            }
            _ => Self::Long(key.into()),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => bytes.get(..usize::from(*length)).unwrap_or(bytes),
            Self::Long(bytes) => bytes,
        }
    }
}

/// A bucket as it is kept.
#[derive(Debug)]
enum Kept {
    Hot(Hot),
    Cold(Box<Bucket>),
}

impl Kept {
    fn new(bucket: &Bucket, known: &Limits) -> Self {
        Hot::new(bucket, |limit| known.terms(limit)).map_or_else(|| Self::Cold(Box::new(*bucket)), Self::Hot)
    }

    fn bucket(&self) -> Bucket {
        match self {
            Self::Hot(hot) => hot.bucket(),
            Self::Cold(bucket) => **bucket,
        }
    }
}

/// The limits in use.
#[derive(Debug, Default)]
struct Limits(Mutex<HashMap<tokenbucket::Limit, Arc<Terms>>>);

/// More limits than this are swept of those that no bucket keeps to.
const MOST_LIMITS: usize = 1000;

impl Limits {
    fn terms(&self, limit: tokenbucket::Limit) -> Option<Arc<Terms>> {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(terms) = limits.get(&limit) {
            return Some(Arc::clone(terms));
        }
        let terms = Arc::new(Terms::new(limit)?);
        if limits.len() >= MOST_LIMITS {
            limits.retain(|_, terms| Arc::strong_count(terms) > 1);
        }
        // Where that many are in use, this bucket has its own.
        if limits.len() < MOST_LIMITS {
            limits.insert(limit, Arc::clone(&terms));
        }
        Some(terms)
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl Local {
    /// No buckets yet, so all are full. The first of a process compares the processor's
    /// clock with the system's, which takes up to a fifth of a second.
    pub fn new() -> Self {
        let clock = Clock::new();
        let shard = || Apart(RwLock::new(Shard { buckets: HashTable::new(), sweep_at: FIRST_SWEEP }));
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, limits: Limits::default(), hasher: DefaultHashBuilder::default(), start: clock.raw(), clock }
    }

    /// Takes tokens if they are there now: a plain [`Consume`] that needs no value of its
    /// own, for a hot path.
    pub fn check(&self, key: impl AsRef<[u8]>, limit: &Limit, tokens: impl Into<Tokens>) -> Decision {
        let (key, tokens, now_us) = (key.as_ref(), tokens.into(), self.now_us());
        let place = self.place(key);
        if let Some(told) = self.hot(place, key, |hot| hot.consume(&limit.exact, tokens, now_us)) {
            return told.into();
        }
        let call = tokenbucket::Consume { limit: limit.exact, tokens: tokens.0, mode: tokenbucket::Mode::Exactly };
        self.alone(place, key, now_us, false, |bucket| {
            let mut full = Bucket::UNKNOWN;
            // Only a forced request is ever refused.
            match bucket.unwrap_or(&mut full).consume(&call, now_us) {
                Ok((decision, effect)) => (Decision::from(decision), effect),
                Err(tokenbucket::DebtTooLong) => (Consume::new(key, *limit).without_redis(false), Effect::Unchanged),
            }
        })
    }

    /// Answers as the server would.
    ///
    /// # Errors
    /// [`Error::Redis`] for a request that the server refuses as well: an
    /// [`up_to`](Consume::up_to) of less than one token, a
    /// [`force`](Consume::force) that takes over 100 years to pay back, a vendor's
    /// limit below one token.
    pub fn answer<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.answer_at(request, self.now_us())
    }

    fn answer_at<R: Request>(&self, request: &R, now_us: i64) -> Result<R::Reply, Error> {
        request.answered_by(self, now_us)
    }

    /// Answers a request about one bucket.
    fn one<Reply, R: OfOne<Reply>>(&self, request: &R, now_us: i64) -> Result<Reply, Error> {
        let (key, place) = (request.key(), self.place(request.key()));
        if let Some(reply) = self.hot(place, key, |hot| request.hot(hot, now_us)) {
            return Ok(reply);
        }
        self.alone(place, key, now_us, R::READS, |bucket| match request.answer(bucket, now_us) {
            Ok((reply, effect)) => (Ok(reply), effect),
            Err(error) => (Err(error), Effect::Unchanged),
        })
    }

    fn now_us(&self) -> i64 {
        let nanos = self.clock.delta_as_nanos(self.start, self.clock.raw());
        (nanos / 1000).cast_signed() // a thousandth of a u64: fits
    }

    fn place(&self, key: &[u8]) -> Place<'_> {
        let hash = self.hasher.hash_one(key);
        // The table takes the highest and the lowest bits; these are of the middle.
        let nth = usize::try_from(hash >> 24).unwrap_or(0) % SHARDS;
        Place { hash, nth, shard: self.shards.get(nth).map(|shard| &shard.0) }
    }

    /// Asks the bucket at `key` without a lock of its own, where that is a usual one.
    fn hot<T>(&self, place: Place<'_>, key: &[u8], ask: impl FnOnce(&Hot) -> Option<T>) -> Option<T> {
        // No answer panics halfway through a change: what is behind a poisoned lock is whole.
        let shard = place.shard?.read().unwrap_or_else(PoisonError::into_inner);
        match shard.buckets.find(place.hash, |(known, _)| known.bytes() == key) {
            Some((_, Kept::Hot(hot))) => ask(hot),
            _ => None,
        }
    }

    /// Answers about the bucket at `key`, alone in its shard: a full one where there is
    /// none, or nothing for one who only reads.
    fn alone<T>(
        &self,
        place: Place<'_>,
        key: &[u8],
        now_us: i64,
        reads: bool,
        answer: impl FnOnce(Option<&mut Bucket>) -> (T, Effect),
    ) -> T {
        let Some(shard) = place.shard else { return answer(None).0 };
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        let mut bucket = shard.bucket(place.hash, key);
        if reads && bucket.is_none() {
            return answer(None).0;
        }
        let bucket = bucket.get_or_insert(Bucket::UNKNOWN);
        let (reply, effect) = answer(Some(&mut *bucket));
        if effect == Effect::Changed {
            self.keep(&mut shard, place.hash, key, bucket, now_us);
        }
        reply
    }

    fn keep(&self, shard: &mut Shard, hash: u64, key: &[u8], bucket: &Bucket, now_us: i64) {
        let kept = Kept::new(bucket, &self.limits);
        let Shard { buckets, sweep_at } = shard;
        if let Some((_, known)) = buckets.find_mut(hash, |(known, _)| known.bytes() == key) {
            *known = kept;
            return;
        }
        let hasher = |(key, _): &(Key, Kept)| self.hasher.hash_one(key.bytes());
        if buckets.len() >= *sweep_at {
            buckets.retain(|(_, kept)| kept.bucket().forgotten_us().saturating_add(LINGER_US) > now_us);
            buckets.shrink_to(FIRST_SWEEP, hasher);
            *sweep_at = (buckets.len() * 2).max(FIRST_SWEEP);
        }
        buckets.insert_unique(hash, (Key::new(key), kept), hasher);
    }

    /// How many buckets are kept.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().unwrap().buckets.len()).sum()
    }
}

/// Where a key lies.
#[derive(Clone, Copy)]
struct Place<'l> {
    hash: u64,
    nth: usize,
    shard: Option<&'l RwLock<Shard>>,
}

/// How a request is answered without a server. Sealed: implemented by the requests
/// of this crate alone.
#[doc(hidden)]
pub trait Answer<Reply> {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Reply, Error>;

    /// What it is answered where Redis is away.
    fn without_redis(&self, open: bool) -> Reply;

    /// The same for a fallback that has only a share of the budget.
    #[must_use]
    fn share(&self, share: f64) -> Self;
}

/// A request about one bucket.
pub(crate) trait OfOne<Reply> {
    /// Whether it reads, so that a bucket that does not exist is told apart from a full one.
    const READS: bool = false;

    fn key(&self) -> &[u8];

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Reply, Effect), Error>;

    /// The answer of a usual bucket to a usual request, without a lock.
    fn hot(&self, _: &Hot, _: i64) -> Option<Reply> {
        None
    }
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

impl From<tokenbucket::Decision> for Decision {
    fn from(decision: tokenbucket::Decision) -> Self {
        Self {
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
        }
    }
}

impl OfOne<Decision> for Consume {
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
        Ok((Decision::from(decision), effect))
    }

    fn hot(&self, hot: &Hot, now_us: i64) -> Option<Decision> {
        matches!(self.mode, Mode::Exactly).then(|| hot.consume(&self.limit.exact, self.tokens, now_us))?.map(Decision::from)
    }
}

impl Answer<Decision> for Consume {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Decision, Error> {
        buckets.one(self, now_us)
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

impl OfOne<Penalised> for Penalise {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn answer(&self, bucket: Option<&mut Bucket>, now_us: i64) -> Result<(Penalised, Effect), Error> {
        let mut full = Bucket::UNKNOWN;
        let end_us = self.end.on_clock(now_us, MAX_PENALTY_US);
        let (empty_us, effect) = bucket.unwrap_or(&mut full).penalise(end_us, now_us);
        Ok((Penalised { empty: milliseconds_up(empty_us) }, effect))
    }
}

impl Answer<Penalised> for Penalise {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Penalised, Error> {
        buckets.one(self, now_us)
    }

    fn without_redis(&self, _: bool) -> Penalised {
        Penalised { empty: Duration::ZERO }
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl OfOne<Synced> for Sync {
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
}

impl Answer<Synced> for Sync {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Synced, Error> {
        buckets.one(self, now_us)
    }

    fn without_redis(&self, _: bool) -> Synced {
        Synced { applied: false, remaining: self.remaining.whole() }
    }

    #[cfg(feature = "limiter")]
    fn share(&self, share: f64) -> Self {
        // A limit below one token would be refused.
        let limit = self.limit.map(|limit| limit.share(share).max(Tokens::ONE.min(limit)));
        Self { remaining: self.remaining.share(share), limit, ..self.clone() }
    }

    #[cfg(not(feature = "limiter"))]
    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl OfOne<Option<u64>> for Refund {
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
}

impl Answer<Option<u64>> for Refund {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Option<u64>, Error> {
        buckets.one(self, now_us)
    }

    fn without_redis(&self, _: bool) -> Option<u64> {
        None
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

impl OfOne<Option<Reading>> for Peek {
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
}

impl Answer<Option<Reading>> for Peek {
    fn answered_by(&self, buckets: &Local, now_us: i64) -> Result<Option<Reading>, Error> {
        buckets.one(self, now_us)
    }

    fn without_redis(&self, _: bool) -> Option<Reading> {
        None
    }

    fn share(&self, _: f64) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::MultiConsume;

    const SECOND_US: i64 = 1_000_000;

    /// The number of a fraction (`7/2`) in units of 1/`scale`, which it must hit.
    fn units(text: &str, scale: i128) -> i128 {
        let (above, below) = parts(text);
        assert_eq!(above * scale % below, 0, "{text}");
        above * scale / below
    }

    fn parts(text: &str) -> (i128, i128) {
        let (above, below) = text.split_once('/').unwrap_or((text, "1"));
        (above.parse().unwrap(), below.parse().unwrap())
    }

    struct Step<'v>(&'v Value);

    impl Step<'_> {
        fn word(&self, field: &str) -> Option<&str> {
            self.0[field].as_str()
        }

        fn tokens(&self, field: &str) -> Option<Tokens> {
            let millionths = units(self.word(field)?, 1_000_000);
            Some(Tokens::from_millionths(u64::try_from(millionths).unwrap()).unwrap())
        }

        fn duration(&self, field: &str) -> Option<Duration> {
            Some(Duration::from_micros(u64::try_from(units(self.word(field)?, 1_000_000)).unwrap()))
        }

        /// As the server rounds it.
        fn milliseconds(&self, field: &str) -> Option<Duration> {
            let (above, below) = parts(self.word(field)?);
            let us = (above * 1_000_000 + below - 1) / below;
            Some(milliseconds_up(u64::try_from(us).unwrap()))
        }

        /// Whether the zero moment is not ahead.
        fn above_zero(&self, now_us: i64) -> Option<bool> {
            let (above, below) = parts(self.word("zero_moment")?);
            Some(above.checked_mul(1_000_000)? <= i128::from(now_us).checked_mul(below)?)
        }

        fn limit(&self) -> Limit {
            let rate = Limit::per(self.tokens("rate").unwrap(), self.duration("per").unwrap());
            rate.unwrap().with_burst(self.tokens("capacity").unwrap()).unwrap()
        }
    }

    /// The vectors that the algorithm passes, as it passes them: until the limit changes to the
    /// last fraction, from then on a level may be rounded, by as much as the algorithm rounds it,
    /// which its own tests bound. So it stands beside, and has to be in the same state.
    #[test]
    fn the_vectors_of_the_server_are_passed() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tokenbucket/tests/vectors.jsonl");
        let (mut steps, mut exact_steps) = (0, 0);
        for (line, history) in std::fs::read_to_string(file).unwrap().lines().enumerate() {
            let history: Vec<Value> = serde_json::from_str(history).unwrap();
            let (local, mut plain, mut limit, mut is_exact) = (Local::new(), Bucket::UNKNOWN, None, true);
            for step in &history {
                let name = format!("history {}: {step}", line + 1);
                let step = Step(step);
                let now_us = step.0["t_us"].as_i64().unwrap();
                match step.word("op").unwrap() {
                    "consume" => {
                        let mut request = Consume::new("k", step.limit()).tokens(step.tokens("tokens").unwrap());
                        if let Some(wait) = step.duration("maxwait") {
                            request = request.max_wait(wait);
                        } else if step.word("upto").is_some() {
                            request = request.up_to();
                        } else if step.word("force").is_some() {
                            request = request.force();
                        }
                        is_exact &= *limit.get_or_insert_with(|| step.limit()) == step.limit();
                        // Of nothing by force this one makes nothing; there the limit was taken up.
                        let is_nothing = step.word("force").is_some() && request.tokens == Tokens::ZERO;
                        if is_nothing && plain.limit() != Some(&request.limit.exact) {
                            break;
                        }
                        let decision = local.answer_at(&request, now_us).unwrap();
                        assert_eq!(decision, request.answer(Some(&mut plain), now_us).unwrap().0, "{name}");
                        assert_eq!(Some(decision.allowed), step.0["allowed"].as_u64(), "{name}");
                        // Who asks with 0 tokens and waits is told how long; there, that it is granted.
                        if request.tokens > Tokens::ZERO || decision.status != Status::Reserved {
                            assert_eq!(Some(decision.status.to_string().as_str()), step.word("status"), "{name}");
                            assert_eq!(decision.wait.is_some(), step.milliseconds("wait").is_some(), "{name}");
                            assert!(decision.wait >= step.milliseconds("wait"), "{decision:?}, {name}");
                            assert!(!is_exact || decision.wait == step.milliseconds("wait"), "{decision:?}, {name}");
                        }
                    }
                    "penalise" => {
                        let request = Penalise::new("k", step.duration("seconds").unwrap());
                        let penalised = local.answer_at(&request, now_us).unwrap();
                        assert_eq!(penalised, request.answer(Some(&mut plain), now_us).unwrap().0, "{name}");
                        assert!(Some(penalised.empty) >= step.milliseconds("until_zero"), "{name}");
                        assert!(!is_exact || Some(penalised.empty) == step.milliseconds("until_zero"), "{name}");
                    }
                    "sync" => {
                        let mut request =
                            Sync::new("k", step.tokens("remaining").unwrap()).tolerance(step.tokens("tolerance").unwrap());
                        if let Some(limit) = step.tokens("limit") {
                            request = request.limit(limit);
                        }
                        if let Some(reset) = step.duration("reset") {
                            request = request.reset(reset);
                        }
                        let synced = local.answer_at(&request, now_us).unwrap();
                        assert_eq!(synced, request.answer(Some(&mut plain), now_us).unwrap().0, "{name}");
                        assert_eq!(Some(u64::from(synced.applied)), step.0["applied"].as_u64(), "{name}");
                    }
                    _ => {
                        let request = Refund::new("k", step.tokens("tokens").unwrap());
                        let refunded = local.answer_at(&request, now_us).unwrap();
                        assert_eq!(refunded, request.answer(Some(&mut plain), now_us).unwrap().0, "{name}");
                    }
                }
                // All that is remembered, to the last part of a microsecond.
                let place = local.place(b"k");
                let kept = place.shard.and_then(|shard| shard.read().unwrap().bucket(place.hash, b"k"));
                assert_eq!(kept.unwrap_or(Bucket::UNKNOWN).plain(), plain.plain(), "{name}");
                let reading = local.answer_at(&Peek::new("k"), now_us).unwrap();
                assert_eq!(reading, Peek::new("k").answer(Some(&mut plain), now_us).unwrap().0, "{name}");
                let reading = reading.unwrap_or_default();
                assert_eq!(Some(!reading.frozen.is_zero()), step.0["frozen"].as_bool(), "{name}");
                // Where it lies a fraction of a microsecond ahead, it is told rounded up.
                if let Some(zero) = step.above_zero(now_us).filter(|_| is_exact && reading.capacity.is_some()) {
                    let level = reading.tokens.unwrap();
                    assert_eq!(level >= 0.0, zero, "{level}, {name}");
                }
                let window = step.0["window"].as_array().map(|window| {
                    let fraction = |place: usize| parts(window[place].as_str().unwrap());
                    let ((left, of), (reset, below)) = (fraction(0), fraction(2));
                    let reset_us = reset * 1_000_000 / below - i128::from(now_us);
                    (u64::try_from(left.div_euclid(of)).unwrap(), milliseconds_up(u64::try_from(reset_us).unwrap()))
                });
                assert_eq!(reading.vendor_reset, window.map(|(_, reset)| reset), "{name}");
                match (reading.vendor_remaining, window.map(|(left, _)| left)) {
                    (left, expected) if is_exact => assert_eq!(left, expected, "{name}"),
                    (left, expected) => assert!(left <= expected && left.is_some() == expected.is_some(), "{left:?}, {name}"),
                }
                steps += 1;
                exact_steps += usize::from(is_exact);
            }
        }
        assert_eq!((steps, exact_steps), (10_462, 7_715), "steps that were compared");
    }

    /// A usual bucket is answered by `hot.rs`; here beside the algorithm itself.
    #[test]
    fn the_short_way_answers_as_the_algorithm() {
        use proptest::prelude::*;
        use proptest::test_runner::{Config, TestRunner};

        // Tokens and a burst in thousandths, and milliseconds; odd ones hardly ever fit.
        let usual = (1_u64..100, 1_u64..60).prop_map(|(tokens, seconds)| (tokens * 1000, seconds * 1000));
        let odd = (1_u64..10_000_000_000, 1_u64..40_000_000);
        let bursts = prop_oneof![(1_u64..80).prop_map(|quarters| quarters * 250), 1_u64..20_000];
        let limits = (prop_oneof![4 => usual, 1 => odd], bursts).prop_filter_map("a limit", |((tokens, ms), burst)| {
            let limit = Limit::per(Tokens::from_millionths(tokens * 1000).ok()?, Duration::from_millis(ms)).ok()?;
            limit.with_burst(Tokens::from_millionths(burst * 1000).ok()?).ok()
        });
        let steps = proptest::collection::vec((prop_oneof![Just(0), 0_u32..2_000_000], 0_u64..12, 0_u8..20), 1..60);
        let config = Config { failure_persistence: None, ..Config::default() };
        let short = std::cell::Cell::new(0);
        TestRunner::new(config)
            .run(&(limits, steps, 0_i64..1_000_000_000_000), |(limit, steps, start)| {
                let (local, mut plain, mut now_us) = (Local::new(), Bucket::UNKNOWN, start);
                for (us, quarters, what) in steps {
                    now_us += i64::from(us);
                    let tokens = Tokens::from_millionths(quarters * 250_000).unwrap();
                    let mut request = Consume::new("k", limit).tokens(tokens);
                    match what {
                        0 => request = request.force(),
                        // Another limit of the same bucket: the next is asked for with the first.
                        1 => request.limit = limit.with_burst(3).unwrap_or(limit),
                        _ => {}
                    }
                    // As an answer is made, but for the count.
                    let answer = match local.hot(local.place(b"k"), b"k", |hot| request.hot(hot, now_us)) {
                        Some(answer) => {
                            short.set(short.get() + 1);
                            answer
                        }
                        None => local.answer_at(&request, now_us).unwrap(),
                    };
                    let expected = request.answer(Some(&mut plain), now_us).unwrap().0;
                    prop_assert_eq!(answer, expected);
                }
                Ok(())
            })
            .unwrap();
        assert!(short.get() > 1000, "the short way was taken {} times only", short.get());
    }

    #[test]
    fn a_wait_is_never_told_too_short() {
        let burst: Tokens = "0.003001".parse().unwrap();
        let limit = Limit::per_second(3).unwrap().with_burst(burst).unwrap();
        let request = Consume::new("k", limit).tokens(burst);
        for wait in [0, 2] {
            // 1000 µs and a third: a whole microsecond more, and so a millisecond.
            let local = Local::new();
            local.answer_at(&request, 0).unwrap();
            let told = local.answer_at(&request, if wait == 0 { 1001 } else { 0 }).unwrap();
            assert_eq!(told.wait, Some(Duration::from_millis(wait)));
        }
    }

    #[test]
    fn a_usual_bucket_takes_the_short_way_and_is_small() {
        let local = Local::new();
        local.check("k", &limit(3), 1);
        let is_hot = |local: &Local| local.hot(local.place(b"k"), b"k", |_| Some(())).is_some();
        assert!(is_hot(&local));
        local.answer(&Penalise::new("k", Duration::from_millis(1))).unwrap();
        assert!(!is_hot(&local));
        std::thread::sleep(Duration::from_millis(2));
        local.answer(&Consume::new("k", limit(3)).force()).unwrap();
        assert!(is_hot(&local));
        assert!(size_of::<(Key, Kept)>() <= 40, "{}", size_of::<(Key, Kept)>());
    }

    #[test]
    fn many_limits_are_not_kept_for_ever() {
        let local = Local::new();
        for burst in 1..5_000 {
            local.check("k", &limit(burst), 1);
        }
        assert!(local.limits.0.lock().unwrap().len() <= MOST_LIMITS);
    }

    fn limit(burst: u32) -> Limit {
        Limit::per_second(1).unwrap().with_burst(burst).unwrap()
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let local = Local::new();
        for key in 0..100_000 {
            // A bucket of one token is full after a second; a tenth of them come in each.
            let now_us = key * SECOND_US / 10_000;
            assert!(local.answer_at(&Consume::new(key.to_string(), limit(1)), now_us).unwrap().is_allowed());
        }
        assert!(local.len() < 50_000, "{}", local.len());
        // Those that are not full are kept.
        let denied = local.answer_at(&Consume::new("99999", limit(1)), 10 * SECOND_US).unwrap();
        assert_eq!(denied.status, Status::Empty);
    }

    #[test]
    fn buckets_in_use_do_not_come_and_go_though_they_are_full_in_between() {
        let (local, count) = (Local::new(), 20_000);
        let fast = Limit::per_second(1_000_000).unwrap();
        let ask = |key: i64, now_us: i64| local.answer_at(&Consume::new(key.to_string(), fast), now_us).unwrap();
        for key in 0..count {
            ask(key, key * 25); // half a second for all
        }
        assert_eq!(local.len(), 20_000);
        // A second later others come, and those go.
        for key in 0..count {
            ask(-1 - key, 2 * SECOND_US + key * 25);
        }
        assert!(local.len() < 35_000, "{}", local.len());
    }

    #[test]
    fn keys_of_any_length_are_told_apart() {
        let local = Local::new();
        let text = [0_u8, 0, b'k'].repeat(100);
        let keys = (0..=SHORT + 3).chain([255, 256, 257, 300]).filter_map(|length| text.get(..length));
        for is_first in [true, false] {
            for key in keys.clone() {
                let decision = local.answer_at(&Consume::new(key, limit(1)), 0).unwrap();
                assert_eq!(decision.is_allowed(), is_first, "{} bytes", key.len());
            }
        }
        assert_eq!(local.len(), keys.count());
        assert!(matches!(Key::new(&text[..SHORT]), Key::Short { .. }));
    }

    #[test]
    fn a_denied_request_makes_no_bucket_and_neither_does_a_question() {
        let local = Local::new();
        for request in [Consume::new("k", limit(1)).tokens(2), Consume::new("k", limit(1)).tokens(0)] {
            local.answer(&request).unwrap();
        }
        local.answer(&Peek::new("k")).unwrap();
        assert_eq!(local.answer(&Refund::new("k", 1)).unwrap(), None);
        assert_eq!(local.len(), 0);
        // A bucket that is full again reads as one that does not exist, swept or not.
        local.answer_at(&Consume::new("k", limit(1)), 0).unwrap();
        assert!(local.answer_at(&Peek::new("k"), SECOND_US - 1).unwrap().is_some());
        assert_eq!(local.answer_at(&Peek::new("k"), SECOND_US).unwrap(), None);
        assert_eq!(local.answer_at(&Refund::new("k", 1), SECOND_US).unwrap(), None);
    }

    #[test]
    fn what_the_server_refuses_is_refused() {
        let local = Local::new();
        let century = Limit::per(1, Duration::from_secs(31_536_000)).unwrap();
        let half: Tokens = "0.5".parse().unwrap();
        let error = local.answer(&Consume::new("k", century).tokens(102).force()).unwrap_err();
        assert!(error.to_string().contains("more than 100 years"), "{error}");
        assert!(local.answer(&Consume::new("k", century).tokens(half).up_to()).is_err());
        assert!(local.answer(&Sync::new("k", 1).limit(half)).is_err());
        assert_eq!(local.len(), 0);
    }

    #[cfg(feature = "limiter")]
    #[test]
    fn a_share_is_of_all_that_the_vendor_says() {
        let local = Local::new();
        let shared = Sync::new("k", 40).limit(20).share(0.25);
        assert_eq!((shared.remaining, shared.limit), (Tokens::from(10), Some(Tokens::from(5))));
        local.answer(&shared).unwrap();
        assert_eq!(local.check("k", &limit(100), 0).remaining, 5);
        assert_eq!(Sync::new("k", 1).limit(2).share(0.25).limit, Some(Tokens::ONE));
    }

    #[test]
    fn no_token_is_granted_twice_to_threads() {
        let local = Local::new();
        let slow = Limit::per(1, Duration::from_secs(31_622_400)).unwrap().with_burst(50).unwrap();
        let granted = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let decision = local.answer(&Consume::new("k", slow)).unwrap();
                        granted.fetch_add(decision.allowed, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(granted.into_inner(), 50);
    }

    #[test]
    fn threads_that_ask_for_the_same_buckets_in_any_order_do_not_wait_for_each_other() {
        let local = Local::new();
        let hour = Limit::per(1, Duration::from_secs(3600)).unwrap();
        let granted = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (local, granted) = (&local, &granted);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        // Each pair of the ten, in both orders; the first has tokens for all.
                        let (a, b) = (round % 10, (round / 10 + thread) % 10);
                        if a != b {
                            let and = |joint: MultiConsume, key: i32| {
                                joint.and(key.to_string(), hour.with_burst(if key == 0 { 1000 } else { 20 }).unwrap(), 1)
                            };
                            let decision = local.answer(&and(and(MultiConsume::new(), a), b)).unwrap();
                            granted.fetch_add(decision.together.allowed, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        // What was taken is what was granted: two tokens each.
        let left = |key: i32| local.answer(&Peek::new(key.to_string())).unwrap().unwrap();
        let taken: f64 = (0..10).map(left).map(|reading| reading.capacity.unwrap() - reading.tokens.unwrap()).sum();
        assert!((taken.round() - 2.0 * granted.into_inner() as f64).abs() < 0.1, "{taken}");
        assert!(taken > 100.0);
    }

    #[test]
    fn moments_are_turned_into_from_now() {
        let local = Local::new();
        let until = SystemTime::now() + Duration::from_secs(60);
        let empty = local.answer(&Penalise::until("k", until)).unwrap().empty;
        assert!(empty > Duration::from_secs(59) && empty <= Duration::from_secs(60), "{empty:?}");
        let past = local.answer(&Penalise::until("other", SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(past.empty, Duration::ZERO);
        // Longer than the server believes.
        let week = local.answer(&Penalise::new("k", Duration::MAX)).unwrap().empty;
        assert_eq!(week, Duration::from_secs(604_800));
    }
}
