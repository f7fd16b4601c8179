//! The bucket: what it remembers, and what each command makes of it.
//!
//! Every method takes the time and changes nothing but `self`. The order of
//! steps is always the same: drop what has lapsed, take up the limit that came
//! with the call, decide, take. Names and symbols: the essay in `lib.rs`.

use crate::limit::{Limit, MAX_FILL_US, Moment, Rate, Tokens};
use crate::queue::{MAX_LATE_US, Queue, Ticket};
use crate::usual;

/// How long a bucket without a limit outlives the last thing it remembers, in
/// microseconds: nobody knows how fast it fills.
const BARE_LINGER_US: i64 = 3_600_000_000;

/// The least slack of a key's expiry, in milliseconds.
const MIN_SLACK_MS: i64 = 10_000;

/// All that is known of one budget. A bucket that does not exist is a full one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// The usual one: a call has brought its limit.
    Limited(Limited),
    /// The vendor spoke of it before anyone consumed.
    Bare(Bare),
}

/// A bucket with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    pub(crate) limit: Limit,
    /// The moment at which the level is, was or will be 0.
    pub(crate) zero: Moment,
    pub(crate) vendor: Vendor,
}

/// A bucket without a limit, as PENALISE and SYNC make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bare {
    pub(crate) level: BareLevel,
    pub(crate) vendor: Vendor,
}

/// What is known of a level that has no rate yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareLevel {
    /// Nothing: it is full, whatever that will be.
    Full,
    /// Empty at a moment.
    Empty { zero_us: i64 },
    /// The vendor said how much was left at a moment.
    Synced { tokens: Tokens, at_us: i64 },
}

/// What the vendor said and what holds until it lapses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vendor {
    /// The end of the freeze. Never after the zero moment while it lies ahead.
    pub(crate) thaw_us: Option<i64>,
    pub(crate) window: Option<Window>,
    pub(crate) limit: Option<VendorLimit>,
}

/// No more than `left` until the reset, whatever refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: Tokens,
    /// The last figure applied: a refund counts back up to it.
    pub(crate) applied: Tokens,
    pub(crate) reset_us: i64,
}

/// The most the vendor says it holds, until that lapses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VendorLimit {
    pub(crate) tokens: Tokens,
    pub(crate) until_us: i64,
}

// ---------------------------------------------------------------- the calls

/// One request for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consume {
    /// What the caller says the bucket keeps to.
    pub limit: Limit,
    /// How many; 0 asks without taking.
    pub tokens: Tokens,
    /// What to do where they are not there.
    pub mode: Mode,
}

/// What a call wants where the bucket has not all its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of them now, or none.
    Exactly,
    /// As many whole ones as there are.
    UpTo,
    /// All of them, whatever holds.
    Force,
    /// All of them, if they are there within so many microseconds.
    Reserve {
        /// The longest wait that is accepted.
        max_wait_us: u64,
    },
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Why.
    pub status: Status,
    /// How many times the call was granted: 0 or 1; with [`Mode::UpTo`] the tokens taken.
    pub allowed: u64,
    /// Whole tokens that a plain call could take now.
    pub remaining: u64,
    /// Microseconds, rounded up: granted, when to act; denied, when the same call
    /// is granted if nobody else takes tokens. `None`: never.
    pub wait_us: Option<u64>,
    /// Microseconds until the bucket is full, rounded up.
    pub full_us: u64,
}

/// The reason of a decision. Of several that apply, the first below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The tokens are the caller's, now.
    Granted,
    /// The tokens are the caller's, after the wait.
    Reserved,
    /// More than the capacity in the call.
    Never,
    /// The vendor said 429, and its time is not over.
    Frozen,
    /// The vendor's window or limit does not cover it.
    Window,
    /// The tokens have not come in yet.
    Empty,
}

/// Whether a bucket is another one after a call, so must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// As it was; also where only time has passed.
    Unchanged,
    /// Store it.
    Changed,
}

/// What is to be done for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This one has its tokens, or will never have them: it has left the queue.
    Of(Ticket, Decision),
    /// Nothing, for so many microseconds.
    In(u64),
    /// Nothing: nobody waits.
    Nobody,
}

/// A forced call that would take more than 100 years to pay back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebtTooLong;

/// What the vendor's headers say. All moments are on the bucket's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// What is left.
    pub remaining: Tokens,
    /// When the count jumps back, where it does.
    pub reset_us: Option<i64>,
    /// The most the vendor holds, and for how many microseconds to believe it.
    pub limit: Option<(Tokens, u64)>,
    /// By how much the bucket's own figure may be above `remaining`.
    pub tolerance: Tokens,
}

/// What [`Bucket::sync`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Whether anything was lowered.
    pub applied: bool,
    /// Whether anything changed (a vendor limit may be renewed and lower nothing).
    pub effect: Effect,
}

/// What [`Bucket::read`] shows. Durations in microseconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What only a bucket with a limit knows.
    pub limited: Option<LimitedReading>,
    /// Until the thaw; 0 where it is not frozen.
    pub frozen_us: u64,
    /// The most the vendor holds.
    pub vendor_limit: Option<Tokens>,
    /// What is left of the vendor's window, and until its reset.
    pub window: Option<(Tokens, u64)>,
}

/// The part of a [`Reading`] that needs a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedReading {
    /// The limit in force.
    pub limit: Limit,
    /// The level in millionths of a token, rounded down; below 0 in debt.
    pub level_millionths: i128,
    /// Until one token can be had; `None`: never.
    pub wait_us: Option<u64>,
    /// Until the bucket is full.
    pub full_us: u64,
}

// ---------------------------------------------------------------- the bucket

impl Bucket {
    /// A bucket of which nothing is known: a full one.
    pub const UNKNOWN: Self =
        Self::Bare(Bare { level: BareLevel::Full, vendor: Vendor { thaw_us: None, window: None, limit: None } });

    /// Takes tokens, or says when they can be had.
    ///
    /// # Errors
    /// [`DebtTooLong`] where a forced call would reach beyond 100 years; nothing changes.
    #[inline(always)]
    pub fn consume(&mut self, call: &Consume, now_us: i64) -> Result<(Decision, Effect), DebtTooLong> {
        if let Self::Limited(bucket) = self
            && let Some((decision, taken)) = usual::consume(bucket, call, now_us)
        {
            let Some(zero) = taken else { return Ok((decision, Effect::Unchanged)) };
            bucket.zero = zero;
            return Ok((decision, Effect::Changed));
        }
        self.consume_any(call, now_us)
    }

    /// [`Bucket::consume`], whatever the bucket remembers and the call wants.
    pub(crate) fn consume_any(&mut self, call: &Consume, now_us: i64) -> Result<(Decision, Effect), DebtTooLong> {
        let (mut bucket, known) = self.adopt_for(call, now_us);
        let (verdict, taken) = bucket.decide(call, now_us)?;
        let effect = match (taken, verdict) {
            (true, _) => Effect::Changed,
            (false, Verdict::Denied { .. }) if !known && call.tokens > Tokens::ZERO => Effect::Changed,
            (false, _) => Effect::Unchanged,
        };
        let decision = bucket.report(verdict, now_us);
        if effect == Effect::Changed {
            *self = Self::Limited(bucket);
        }
        Ok((decision, effect))
    }

    /// As [`Bucket::consume`], where others wait: they come first, so the call is denied
    /// until after the last of them. Only one that takes whatever holds, or takes
    /// nothing, is answered as if nobody did. Nothing remains for others.
    ///
    /// # Errors
    /// As [`Bucket::consume`].
    pub fn consume_behind(&mut self, call: &Consume, waiting: &Queue, now_us: i64) -> Result<(Decision, Effect), DebtTooLong> {
        if waiting.is_empty() {
            return self.consume(call, now_us);
        }
        if call.mode == Mode::Force || call.tokens == Tokens::ZERO {
            let (decision, effect) = self.consume(call, now_us)?;
            return Ok((Decision { remaining: 0, ..decision }, effect));
        }
        let (bucket, known) = self.adopt_for(call, now_us);
        let mut alone = bucket;
        let status = match alone.decide(call, now_us)?.0 {
            Verdict::Never => {
                return Ok((Decision { remaining: 0, ..bucket.report(Verdict::Never, now_us) }, Effect::Unchanged));
            }
            Verdict::Denied { status, .. } => status,
            Verdict::Granted { .. } => Status::Empty,
        };
        let (mut later, served_us) = bucket.after(waiting, now_us);
        let until_us = match later.decide(call, served_us)?.0 {
            Verdict::Denied { until_us, .. } => until_us,
            // Where it is nobody's turn but to be sent away, that is about to be done.
            Verdict::Granted { .. } | Verdict::Never => served_us.max(now_us.saturating_add(1)),
        };
        let decision = Decision { remaining: 0, ..bucket.report(Verdict::Denied { status, until_us }, now_us) };
        if known || *self == Self::UNKNOWN {
            return Ok((decision, Effect::Unchanged)); // it makes no bucket where there is none
        }
        *self = Self::Limited(bucket);
        Ok((decision, Effect::Changed))
    }

    /// Serves the first who waits, if its turn has come. Which limit decides is remembered;
    /// `limit` does where nothing is. Whoever wants more than its capacity has no turn to
    /// wait for.
    ///
    /// A turn that is served late, by [`MAX_LATE_US`] at most, counts from when it came:
    /// what came in since is there for the next, also where the bucket could not have
    /// held it. So a queue is served at the full rate by a timer that is never on time.
    pub fn serve(&mut self, waiting: &mut Queue, limit: &Limit, now_us: i64) -> (Turn, Effect) {
        let limit = *self.limit().unwrap_or(limit);
        let too_large = waiting.first_above(limit.capacity());
        let Some((ticket, tokens)) = too_large.or_else(|| waiting.first()) else { return (Turn::Nobody, Effect::Unchanged) };
        let mut at_us = waiting.unserved_since_us().clamp(now_us.saturating_sub(MAX_LATE_US), now_us);
        loop {
            let (mut bucket, known) = self.adopt(&limit, at_us);
            let ask = |mode| Consume { limit, tokens, mode };
            let until_now = Mode::Reserve { max_wait_us: until(at_us, now_us) };
            let (verdict, effect) = match bucket.decide(&ask(until_now), at_us) {
                Ok((Verdict::Granted { allowed, .. }, taken)) => {
                    let effect = if taken { Effect::Changed } else { Effect::Unchanged };
                    (Verdict::Granted { allowed, acts_us: now_us }, effect)
                }
                Ok((Verdict::Never, _)) | Err(DebtTooLong) => (Verdict::Never, Effect::Unchanged),
                Ok((Verdict::Denied { until_us: lapses_us, .. }, _)) => {
                    let until_us = match bucket.decide(&ask(Mode::Exactly), at_us) {
                        Ok((Verdict::Denied { until_us, .. }, _)) => until_us,
                        _ => now_us,
                    };
                    if until_us > now_us {
                        // As one that is denied for now: its limit is stored where it is news.
                        let effect = if known || tokens == Tokens::ZERO { Effect::Unchanged } else { Effect::Changed };
                        if effect == Effect::Changed {
                            *self = Self::Limited(bucket);
                        }
                        return (Turn::In(until(now_us, until_us)), effect);
                    }
                    // The vendor's word has lapsed since. It does so once, so this ends.
                    at_us = lapses_us.max(at_us.saturating_add(1));
                    continue;
                }
            };
            if effect == Effect::Changed {
                *self = Self::Limited(bucket);
            }
            waiting.remove(ticket, at_us);
            bucket.settle(now_us);
            let decision = bucket.report(verdict, now_us);
            let remaining = if waiting.is_empty() { decision.remaining } else { 0 };
            return (Turn::Of(ticket, Decision { remaining, ..decision }), effect);
        }
    }

    /// Settles the level so far under the limit that is remembered and takes up the one of
    /// a call, as one that is denied for now does.
    pub fn change_limit(&mut self, call: &Consume, now_us: i64) -> Effect {
        let (bucket, known) = self.adopt_for(call, now_us);
        if known {
            return Effect::Unchanged;
        }
        *self = Self::Limited(bucket);
        Effect::Changed
    }

    /// The vendor said 429: nothing before `end_us`, and from 0 then. Returns the
    /// microseconds until the level is 0 again, rounded up.
    pub fn penalise(&mut self, end_us: i64, now_us: i64) -> (u64, Effect) {
        let mut bucket = *self;
        bucket.settle(now_us);
        let settled = bucket;
        let zero_us = bucket.freeze(end_us.max(now_us), now_us);
        if bucket == settled {
            return (until(now_us, zero_us), Effect::Unchanged);
        }
        *self = bucket;
        (until(now_us, zero_us), Effect::Changed)
    }

    /// Moves zero moment and thaw to `end_us`, where they are not later already;
    /// returns the zero moment, rounded up.
    fn freeze(&mut self, end_us: i64, now_us: i64) -> i64 {
        if end_us > now_us {
            let vendor = self.vendor_mut();
            vendor.thaw_us = vendor.thaw_us.max(Some(end_us));
        }
        match self {
            Self::Limited(bucket) => {
                bucket.zero = bucket.zero.max(Moment::at(end_us));
                bucket.zero.ceil_us()
            }
            Self::Bare(bucket) => {
                let zero_us = match bucket.level {
                    BareLevel::Empty { zero_us } => zero_us.max(end_us),
                    BareLevel::Full | BareLevel::Synced { .. } => end_us,
                };
                bucket.level = BareLevel::Empty { zero_us };
                zero_us
            }
        }
    }

    /// What the vendor's headers say: lowers what is above it.
    pub fn sync(&mut self, said: &Sync, now_us: i64) -> Synced {
        let mut bucket = *self;
        bucket.settle(now_us);
        let limit = said.limit.and_then(|(tokens, ttl_us)| bucket.remember_limit(tokens, ttl_us, now_us));
        let lowered = bucket.lower(said, now_us);
        let effect = if limit.is_some() || lowered { Effect::Changed } else { Effect::Unchanged };
        if effect == Effect::Changed {
            *self = bucket;
        }
        Synced { applied: lowered || limit == Some(Lowered::Yes), effect }
    }

    /// Gives tokens back.
    pub fn refund(&mut self, tokens: Tokens, now_us: i64) -> Effect {
        let Self::Limited(mut bucket) = *self else { return Effect::Unchanged };
        bucket.settle(now_us);
        let settled = bucket;
        bucket.refund(tokens, now_us);
        if bucket == settled {
            return Effect::Unchanged;
        }
        *self = Self::Limited(bucket);
        Effect::Changed
    }

    /// Whole tokens that a plain call could take now. `None` where nothing that
    /// is remembered says so.
    pub fn remaining(&self, now_us: i64) -> Option<u64> {
        let mut bucket = *self;
        bucket.settle(now_us);
        match bucket {
            Self::Limited(bucket) => Some(bucket.remaining(now_us)),
            Self::Bare(Bare { level, vendor }) => {
                let level = match level {
                    BareLevel::Full => None,
                    BareLevel::Empty { .. } => Some(Tokens::ZERO),
                    BareLevel::Synced { tokens, .. } => Some(tokens),
                };
                let figures = [level, vendor.window.map(|window| window.left), vendor.limit.map(|limit| limit.tokens)];
                figures.into_iter().flatten().min().map(Tokens::whole)
            }
        }
    }

    /// All that can be read of it.
    pub fn read(&self, now_us: i64) -> Reading {
        let mut bucket = *self;
        bucket.settle(now_us);
        let vendor = *bucket.vendor();
        Reading {
            limited: match bucket {
                Self::Limited(bucket) => Some(bucket.read(now_us)),
                Self::Bare(_) => None,
            },
            frozen_us: vendor.thaw_us.map_or(0, |thaw_us| until(now_us, thaw_us)),
            vendor_limit: vendor.limit.map(|limit| limit.tokens),
            window: vendor.window.map(|window| (window.left, until(now_us, window.reset_us))),
        }
    }

    /// The first microsecond from which it is like a bucket that does not exist.
    #[inline(always)]
    pub fn forgotten_us(&self) -> i64 {
        match self {
            Self::Limited(Limited { limit, zero, vendor }) if vendor.is_empty() => {
                limit.rate().after(*zero, limit.rate().drops_of(limit.capacity())).ceil_us()
            }
            _ => self.all_forgotten_us(),
        }
    }

    /// [`Bucket::forgotten_us`], whatever it remembers.
    fn all_forgotten_us(&self) -> i64 {
        let level_us = match self {
            Self::Limited(Limited { limit, zero, vendor }) => {
                // Where a vendor limit cuts the level until it lapses, it fills from there.
                let zero = vendor.limit.map_or(*zero, |cut| cut.zero_after(limit, *zero));
                limit.rate().after(zero, limit.rate().drops_of(limit.capacity())).ceil_us()
            }
            Self::Bare(Bare { level: BareLevel::Full, .. }) => i64::MIN,
            Self::Bare(Bare { level: BareLevel::Empty { zero_us: us } | BareLevel::Synced { at_us: us, .. }, .. }) => *us,
        };
        let vendor = self.vendor();
        let moments = [vendor.thaw_us, vendor.window.map(|window| window.reset_us), vendor.limit.map(|limit| limit.until_us)];
        let last_us = moments.into_iter().flatten().fold(level_us, i64::max);
        match self {
            Self::Limited(_) => last_us,
            Self::Bare(_) => last_us.saturating_add(BARE_LINGER_US),
        }
    }

    /// When its key may go: Unix time in milliseconds, at or after
    /// [`Bucket::forgotten_us`] and later by less than 10 s or a tenth of the time
    /// to fill, whichever is more.
    ///
    /// It lies on steps of that length; `phase`, different from key to key, sets where the steps lie, so that
    /// buckets made at the same moment do not all go at the same moment.
    #[inline]
    pub fn expire_at_ms(&self, phase: u64) -> i64 {
        let (step, first_ms) = (self.expiry_step_ms(), self.first_expiry_ms());
        let phase = i64::try_from(phase % step.unsigned_abs()).unwrap_or(0);
        first_ms.saturating_add((phase - first_ms).rem_euclid(step))
    }

    /// Whether [`Bucket::expire_at_ms`] gives that for some phase.
    #[inline]
    pub fn may_expire_at(&self, at_ms: i64) -> bool {
        let slack_ms = at_ms.saturating_sub(self.first_expiry_ms());
        slack_ms >= 0 && (slack_ms < MIN_SLACK_MS || slack_ms < self.expiry_step_ms())
    }

    /// The slack of the key's expiry.
    #[inline]
    fn expiry_step_ms(&self) -> i64 {
        let tenth_ms = self.limit().map_or(0, |limit| limit.fill_us() / 10_000);
        i64::try_from(tenth_ms).unwrap_or(i64::MAX).max(MIN_SLACK_MS)
    }

    /// The first millisecond after [`Bucket::forgotten_us`].
    #[inline]
    fn first_expiry_ms(&self) -> i64 {
        self.forgotten_us().div_euclid(1000).saturating_add(1)
    }

    /// Limit and zero moment of a bucket that remembers nothing else, as
    /// [`Bucket::from_plain`] takes them; for whoever keeps those in a form of his own.
    pub fn plain(&self) -> Option<(Limit, i64, u128)> {
        match self {
            Self::Limited(bucket) if bucket.vendor.is_empty() => Some((bucket.limit, bucket.zero.us, bucket.zero.part)),
            _ => None,
        }
    }

    /// A bucket that remembers nothing but a limit and its zero moment, `us`
    /// microseconds and `part`/[`Rate::tokens`] of another. `None` where that is more
    /// than a whole one.
    pub fn from_plain(limit: Limit, us: i64, part: u128) -> Option<Self> {
        let zero = Moment { us, part };
        (part < limit.rate().tokens()).then_some(Self::Limited(Limited { limit, zero, vendor: Vendor::default() }))
    }

    /// The limit it remembers.
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Limited(bucket) => Some(&bucket.limit),
            Self::Bare(_) => None,
        }
    }

    /// Drops what has lapsed. Nothing that can be observed changes.
    fn settle(&mut self, now_us: i64) {
        match self {
            Self::Limited(bucket) => bucket.settle(now_us),
            Self::Bare(bucket) => {
                bucket.vendor.settle(now_us);
            }
        }
    }

    /// The bucket under the limit that came with a call, and whether it was under
    /// that before.
    #[inline]
    fn adopt(&self, limit: &Limit, now_us: i64) -> (Limited, bool) {
        match self {
            Self::Limited(bucket) => {
                let mut bucket = *bucket;
                bucket.settle(now_us);
                let known = bucket.limit.is_same_as(limit);
                if !known {
                    bucket.change_limit(limit, now_us);
                }
                (bucket, known)
            }
            Self::Bare(bare) => {
                let mut vendor = bare.vendor;
                vendor.settle(now_us);
                let rate = limit.rate();
                let zero = match bare.level {
                    BareLevel::Full => rate.before(Moment::at(now_us), rate.drops_of(limit.capacity())),
                    BareLevel::Empty { zero_us } => Moment::at(zero_us),
                    BareLevel::Synced { tokens, at_us } => {
                        rate.before(Moment::at(at_us), rate.drops_of(tokens.min(limit.capacity())))
                    }
                };
                let mut bucket = Limited { limit: *limit, zero, vendor };
                bucket.cut(now_us);
                (bucket, false)
            }
        }
    }

    /// [`Bucket::adopt`] for a call, which may need the capacity to the millionth.
    #[inline]
    fn adopt_for(&self, call: &Consume, now_us: i64) -> (Limited, bool) {
        let (mut bucket, mut known) = self.adopt(&call.limit, now_us);
        if known && call.tokens > bucket.limit.capacity() && call.tokens <= call.limit.capacity() {
            // The same limit to a billionth, and this call needs the billionth.
            bucket.change_limit(&call.limit, now_us);
            known = false;
        }
        (bucket, known)
    }

    /// Spills what is above the most it holds, where that is known.
    fn cut(&mut self, now_us: i64) {
        if let Self::Limited(bucket) = self {
            bucket.cut(now_us);
        }
    }

    /// Stores what the vendor says it holds, where that is news or soon lapses.
    fn remember_limit(&mut self, tokens: Tokens, ttl_us: u64, now_us: i64) -> Option<Lowered> {
        let lowered = match self.vendor().limit {
            Some(known) if known.tokens == tokens && until(now_us, known.until_us) >= ttl_us.div_ceil(2) => return None,
            Some(known) if known.tokens <= tokens => Lowered::No,
            _ => Lowered::Yes,
        };
        // What ran over under the limit before is gone, also where this one is higher.
        self.cut(now_us);
        self.vendor_mut().limit = Some(VendorLimit { tokens, until_us: now_us.saturating_add_unsigned(ttl_us) });
        self.cut(now_us);
        Some(lowered)
    }

    /// Applies `remaining` where it is below the bucket's own figure.
    fn lower(&mut self, said: &Sync, now_us: i64) -> bool {
        if said.reset_us.is_some_and(|reset_us| reset_us <= now_us) {
            return false; // it speaks of a window that is over
        }
        if !self.is_above(said, now_us) {
            return false;
        }
        let Some(reset_us) = said.reset_us else {
            self.set_level(said.remaining, now_us);
            return true;
        };
        let opened = match self.vendor().window {
            // In force, it only closes further; in its last second a later one replaces it.
            Some(known) if until(now_us, known.reset_us) >= 1_000_000 || reset_us <= known.reset_us => {
                let left = known.left.min(said.remaining);
                Window { left, applied: left, reset_us: known.reset_us.max(reset_us) }
            }
            _ => Window { left: self.left_after_debt(said.remaining, now_us), applied: said.remaining, reset_us },
        };
        self.vendor_mut().window = Some(opened);
        true
    }

    /// Whether the bucket's own figure is above `remaining` by more than the tolerance.
    fn is_above(&self, said: &Sync, now_us: i64) -> bool {
        // Counted in drops of the bucket's rate; in millionths where it has none.
        let figure = match self {
            Self::Limited(bucket) => Some(bucket.figure(said.reset_us, now_us)),
            Self::Bare(Bare { level: BareLevel::Full, .. }) => None,
            Self::Bare(Bare { level: BareLevel::Empty { .. }, .. }) => Some(0),
            Self::Bare(Bare { level: BareLevel::Synced { tokens, .. }, .. }) => Some(u128::from(tokens.millionths())),
        };
        let drops = |tokens: Tokens| match self {
            Self::Limited(bucket) => bucket.limit.rate().drops_of(tokens),
            Self::Bare(_) => u128::from(tokens.millionths()),
        };
        let left = self.vendor().window.filter(|_| said.reset_us.is_some()).map(|window| drops(window.left));
        match figure.into_iter().chain(left).min() {
            None => true,
            Some(figure) => drops(said.remaining).saturating_add(drops(said.tolerance)) < figure,
        }
    }

    /// The level becomes `tokens`, which is less than it was.
    fn set_level(&mut self, tokens: Tokens, now_us: i64) {
        match self {
            Self::Limited(bucket) => {
                let rate = bucket.limit.rate();
                bucket.zero = bucket.zero.max(rate.before(Moment::at(now_us), rate.drops_of(tokens)));
            }
            Self::Bare(bucket) => bucket.level = BareLevel::Synced { tokens, at_us: now_us },
        }
    }

    /// `remaining` less the debt that is due in the window that opens; rounded
    /// down, so never more than the vendor said.
    fn left_after_debt(&self, remaining: Tokens, now_us: i64) -> Tokens {
        let Self::Limited(Limited { limit, zero, vendor }) = self else { return remaining };
        let from_us = vendor.thaw_us.map_or(now_us, |thaw_us| thaw_us.max(now_us));
        let debt = drops_from(limit.rate(), from_us, *zero);
        remaining.saturating_sub(limit.rate().tokens_for(debt))
    }

    pub(crate) const fn vendor(&self) -> &Vendor {
        match self {
            Self::Limited(bucket) => &bucket.vendor,
            Self::Bare(bucket) => &bucket.vendor,
        }
    }

    const fn vendor_mut(&mut self) -> &mut Vendor {
        match self {
            Self::Limited(bucket) => &mut bucket.vendor,
            Self::Bare(bucket) => &mut bucket.vendor,
        }
    }
}

/// Whether a vendor limit that was stored is lower than the one before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lowered {
    Yes,
    No,
}

/// A decision without its figures.
#[derive(Clone, Copy)]
enum Verdict {
    /// So many, to be used from a moment on.
    Granted {
        allowed: u64,
        acts_us: i64,
    },
    /// Not before a moment.
    Denied {
        status: Status,
        until_us: i64,
    },
    Never,
}

impl Limited {
    /// Decides and takes; the second value says whether it took anything.
    #[inline]
    fn decide(&mut self, call: &Consume, now_us: i64) -> Result<(Verdict, bool), DebtTooLong> {
        let now = Verdict::Granted { allowed: 1, acts_us: now_us };
        let (tokens, max_wait_us) = match call.mode {
            Mode::Exactly => (call.tokens, 0),
            Mode::Reserve { max_wait_us } => (call.tokens, max_wait_us),
            Mode::UpTo => {
                let most = self.available(now_us).min(call.tokens).floor();
                if most > Tokens::ZERO {
                    self.take(most, now_us, Moment::at(now_us));
                    return Ok((Verdict::Granted { allowed: most.whole(), acts_us: now_us }, true));
                }
                (Tokens::ONE, 0)
            }
            Mode::Force => {
                let takes = call.tokens > Tokens::ZERO;
                self.take(call.tokens, now_us, Moment::at(now_us));
                if takes && until(now_us, self.zero.ceil_us()) > MAX_FILL_US {
                    return Err(DebtTooLong);
                }
                return Ok((now, takes));
            }
        };
        if tokens > call.limit.capacity() || tokens > self.limit.capacity() {
            return Ok((Verdict::Never, false));
        }
        let (at, status) = self.due(tokens, now_us);
        if let Some(until_us) = self.held_up(tokens, at, max_wait_us) {
            let status = if status == Status::Frozen { status } else { Status::Window };
            return Ok((Verdict::Denied { status, until_us }, false));
        }
        let acts_us = at.ceil_us();
        if until(now_us, acts_us) > max_wait_us {
            return Ok((Verdict::Denied { status, until_us: acts_us.saturating_sub_unsigned(max_wait_us) }, false));
        }
        self.take(tokens, now_us, at);
        Ok((Verdict::Granted { allowed: 1, acts_us }, tokens > Tokens::ZERO))
    }

    /// The first moment from now at which freeze, debt and refill allow `tokens`,
    /// and what is in the way. (A freeze needs no look of its own: the zero moment
    /// is never before the thaw.)
    #[inline]
    fn due(&self, tokens: Tokens, now_us: i64) -> (Moment, Status) {
        let rate = self.limit.rate();
        let drops = rate.drops_of(tokens);
        if self.zero <= Moment::at(now_us) && rate.drops_between(self.zero, now_us) >= drops {
            return (Moment::at(now_us), Status::Granted);
        }
        (rate.after(self.zero, drops), if self.is_frozen(now_us) { Status::Frozen } else { Status::Empty })
    }

    /// From when a call is granted that the vendor's word forbids to a caller who
    /// acts at `at`; `None` where it does not.
    #[inline]
    fn held_up(&self, tokens: Tokens, at: Moment, max_wait_us: u64) -> Option<i64> {
        match self.vendor.limit {
            Some(limit) if tokens > limit.tokens => Some(self.when_lapsed(limit, tokens, max_wait_us)),
            _ => self.closed_until(tokens, at),
        }
    }

    /// From when a call is granted that is for more than the vendor's limit. Its
    /// tokens may not come in before the window's reset even then, so that the window
    /// does not hold it up.
    fn when_lapsed(&self, limit: VendorLimit, tokens: Tokens, max_wait_us: u64) -> i64 {
        let mut later = *self;
        later.settle(limit.until_us);
        let (at, _) = later.due(tokens, limit.until_us);
        match later.closed_until(tokens, at) {
            Some(reset_us) => reset_us,
            None => at.ceil_us().saturating_sub_unsigned(max_wait_us).max(limit.until_us),
        }
    }

    /// The reset of a window that does not cover `tokens` for a caller who acts at `at`.
    #[inline]
    fn closed_until(&self, tokens: Tokens, at: Moment) -> Option<i64> {
        let window = self.vendor.window?;
        let closed = at < Moment::at(window.reset_us) && (tokens > window.left || window.left == Tokens::ZERO);
        closed.then_some(window.reset_us)
    }

    /// Takes `tokens` now for a caller who acts at `at`.
    #[inline]
    fn take(&mut self, tokens: Tokens, now_us: i64, at: Moment) {
        if let Some(window) = &mut self.vendor.window
            && at < Moment::at(window.reset_us)
        {
            window.left = window.left.saturating_sub(tokens);
        }
        self.cut(now_us);
        let rate = self.limit.rate();
        self.zero = rate.after(self.zero, rate.drops_of(tokens));
    }

    /// The bucket when all who wait have been served, and when the last of them is.
    fn after(mut self, waiting: &Queue, now_us: i64) -> (Self, i64) {
        let (mut at_us, mut served_us, mut from) = (now_us, now_us, 0);
        loop {
            self.settle(at_us);
            // A run that the vendor's word does not hold up: only the refill counts, so it
            // is served when the sum of it has come in.
            let left = self.vendor.window.map_or(u128::MAX, |window| window.left.millionths().into());
            let holds = self.holds();
            let run = waiting.run(from, |sum| sum.requests > 0 && (sum.millionths >= left || sum.largest > holds));
            if run.sum.requests > 0 {
                if let Some(window) = &mut self.vendor.window {
                    window.left = window.left.saturating_sub(Tokens::at_most(run.sum.millionths));
                }
                self.cut(at_us);
                let rate = self.limit.rate();
                // Each is for no more than the capacity, of at most 10^31 drops.
                self.zero = rate.after(self.zero, rate.per().saturating_mul(run.sum.millionths));
                served_us = served_us.max(self.zero.ceil_us());
            }
            let Some((leaf, tokens)) = run.stopped_at else {
                self.settle(served_us);
                return (self, served_us);
            };
            from = leaf + 1;
            if tokens > self.limit.capacity() {
                continue; // it is about to be sent away
            }
            at_us = at_us.max(self.zero.us);
            self.settle(at_us);
            // Window and vendor limit can hold one up, each until it lapses.
            let ask = Consume { limit: self.limit, tokens, mode: Mode::Reserve { max_wait_us: u64::MAX } };
            for _ in 0..3 {
                match self.decide(&ask, at_us) {
                    Ok((Verdict::Denied { until_us, .. }, _)) => {
                        at_us = at_us.max(until_us);
                        self.settle(at_us);
                    }
                    Ok((Verdict::Granted { acts_us, .. }, _)) => {
                        served_us = served_us.max(acts_us);
                        break;
                    }
                    Ok((Verdict::Never, _)) | Err(DebtTooLong) => break,
                }
            }
            at_us = at_us.max(self.zero.us);
        }
    }

    /// Gives tokens back, up to what it holds; while frozen no further than to the thaw.
    fn refund(&mut self, tokens: Tokens, now_us: i64) {
        let rate = self.limit.rate();
        let lowest = match self.vendor.thaw_us {
            Some(thaw_us) => Moment::at(thaw_us),
            None => self.full_zero(now_us),
        };
        // Where the level has run over, the zero moment is before the lowest, and stays.
        self.zero = self.zero.min(rate.before(self.zero, rate.drops_of(tokens)).max(lowest));
        if let Some(window) = &mut self.vendor.window {
            window.left = window.left.add_up_to(tokens, window.applied);
        }
    }

    /// The figures that go with a verdict.
    #[inline]
    fn report(&self, verdict: Verdict, now_us: i64) -> Decision {
        let (status, allowed, wait_us) = match verdict {
            Verdict::Granted { allowed, acts_us } if acts_us > now_us => {
                (Status::Reserved, allowed, Some(until(now_us, acts_us)))
            }
            Verdict::Granted { allowed, .. } => (Status::Granted, allowed, Some(0)),
            Verdict::Denied { status, until_us } => (status, 0, Some(until(now_us, until_us))),
            Verdict::Never => (Status::Never, 0, None),
        };
        Decision { status, allowed, remaining: self.remaining(now_us), wait_us, full_us: self.full_us(now_us) }
    }

    /// Whole tokens that a plain call could take now.
    #[inline]
    fn remaining(&self, now_us: i64) -> u64 {
        let whole = self.limit.rate().whole_in(self.level(now_us));
        match self.vendor.window {
            Some(window) => whole.min(window.left.whole()),
            None => whole,
        }
    }

    /// What could be taken now, to the millionth.
    fn available(&self, now_us: i64) -> Tokens {
        let level = self.limit.rate().tokens_in(self.level(now_us));
        match self.vendor.window {
            Some(window) => level.min(window.left),
            None => level,
        }
    }

    /// Until the level is all it holds.
    #[inline]
    fn full_us(&self, now_us: i64) -> u64 {
        let rate = self.limit.rate();
        until(now_us, rate.after(self.zero, rate.drops_of(self.holds())).ceil_us())
    }

    fn read(&self, now_us: i64) -> LimitedReading {
        let ask = Consume { limit: self.limit, tokens: Tokens::ONE, mode: Mode::Exactly };
        let mut scratch = *self;
        LimitedReading {
            limit: self.limit,
            level_millionths: self.level_millionths(now_us),
            wait_us: scratch.decide(&ask, now_us).ok().and_then(|(verdict, _)| self.report(verdict, now_us).wait_us),
            full_us: self.full_us(now_us),
        }
    }

    /// What a SYNC is compared with, in drops: the level, or with a reset what
    /// could be granted until then.
    fn figure(&self, reset_us: Option<i64>, now_us: i64) -> u128 {
        let level = self.level(now_us);
        let Some(reset_us) = reset_us else { return level };
        let rate = self.limit.rate();
        level.saturating_add(rate.drops_between(self.zero.max(Moment::at(now_us)), reset_us))
    }

    // ------------------------------------------------------------ its level

    /// The most it holds: its capacity, or what the vendor says if that is less.
    #[inline]
    fn holds(&self) -> Tokens {
        let capacity = self.limit.capacity();
        self.vendor.limit.map_or(capacity, |limit| limit.tokens.min(capacity))
    }

    /// The level in drops; 0 in debt.
    #[inline]
    fn level(&self, now_us: i64) -> u128 {
        let rate = self.limit.rate();
        rate.drops_between(self.zero, now_us).min(rate.drops_of(self.holds()))
    }

    /// The level in millionths, rounded down, below 0 in debt.
    fn level_millionths(&self, now_us: i64) -> i128 {
        if self.zero <= Moment::at(now_us) {
            return i128::from(self.limit.rate().tokens_in(self.level(now_us)).millionths());
        }
        // tokens·us/per, where the product may not fit: by whole part and rest.
        let rate = self.limit.rate();
        let us = u128::from(self.zero.us.abs_diff(now_us));
        let (whole, rest) = (rate.tokens() / rate.per(), rate.tokens() % rate.per());
        let debt = whole * us + (rest * us + self.zero.part).div_ceil(rate.per());
        i128::try_from(debt).map_or(i128::MIN, |debt| -debt)
    }

    /// The zero moment of a full bucket.
    #[inline]
    fn full_zero(&self, now_us: i64) -> Moment {
        let rate = self.limit.rate();
        rate.before(Moment::at(now_us), rate.drops_of(self.holds()))
    }

    /// Spills what is above the most it holds.
    #[inline]
    fn cut(&mut self, now_us: i64) {
        let rate = self.limit.rate();
        if rate.drops_between(self.zero, now_us) > rate.drops_of(self.holds()) {
            self.zero = self.full_zero(now_us);
        }
    }

    /// The level so far is settled under the old limit; then it is kept in tokens,
    /// while a debt or freeze keeps its time.
    fn change_limit(&mut self, limit: &Limit, now_us: i64) {
        let (old, new) = (self.limit.rate(), limit.rate());
        if self.zero > Moment::at(now_us) {
            self.zero = old.translate(self.zero, new);
        } else if old == new {
            self.cut(now_us); // the same drops, so nothing to round
        } else {
            let level = old.tokens_in(self.level(now_us));
            self.zero = new.before(Moment::at(now_us), new.drops_of(level.min(limit.capacity())));
        }
        self.limit = *limit;
        self.cut(now_us);
    }

    /// Drops what has lapsed. A vendor limit had cut the level until it did.
    #[inline]
    fn settle(&mut self, now_us: i64) {
        if let Some(lapsed) = self.vendor.settle(now_us) {
            self.zero = lapsed.zero_after(&self.limit, self.zero);
        }
    }

    pub(crate) const fn is_frozen(&self, now_us: i64) -> bool {
        matches!(self.vendor.thaw_us, Some(thaw_us) if now_us < thaw_us)
    }
}

impl Vendor {
    /// Drops what has lapsed and gives back the vendor limit that did.
    #[inline]
    fn settle(&mut self, now_us: i64) -> Option<VendorLimit> {
        self.thaw_us = self.thaw_us.filter(|thaw_us| now_us < *thaw_us);
        self.window = self.window.filter(|window| now_us < window.reset_us);
        self.limit.take_if(|limit| now_us >= limit.until_us)
    }

    /// Whether nothing is remembered.
    pub(crate) const fn is_empty(&self) -> bool {
        self.thaw_us.is_none() && self.window.is_none() && self.limit.is_none()
    }
}

impl VendorLimit {
    /// The zero moment once it has lapsed: the level was no more than it till then.
    fn zero_after(self, limit: &Limit, zero: Moment) -> Moment {
        if self.tokens >= limit.capacity() {
            return zero;
        }
        zero.max(limit.rate().before(Moment::at(self.until_us), limit.rate().drops_of(self.tokens)))
    }
}

/// Microseconds from `now_us` until `then_us`; 0 where that has passed.
fn until(now_us: i64, then_us: i64) -> u64 {
    u64::try_from(then_us.saturating_sub(now_us)).unwrap_or(0)
}

/// The drops that come in from a whole microsecond until `zero`; 0 where that is
/// not later.
fn drops_from(rate: Rate, from_us: i64, zero: Moment) -> u128 {
    match zero.us.checked_sub(from_us) {
        Some(us) if us >= 0 => rate.drops_in(us.unsigned_abs()).saturating_add(zero.part),
        _ => 0,
    }
}
