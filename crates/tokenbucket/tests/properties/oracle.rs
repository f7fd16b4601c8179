//! The bucket in exact fractions: slow on purpose, and written from the contract
//! alone. Times are microseconds on the one clock, amounts millionths of a token,
//! so a rate of r tokens a second is r here too.
//!
//! It rounds only where the contract lets it: a change of limit cuts the level to a
//! millionth and counts a debt's end in parts of the new rate, and what is left of a
//! vendor window is kept in millionths.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive, Zero};
use tokenbucket::{Bucket, Limit, MAX_FILL_US, Mode, Status, Sync};

use crate::layout::{Layout, Level};

pub(crate) type Exact = BigRational;

pub(crate) fn exact(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}

pub(crate) fn floor(number: &Exact) -> i128 {
    number.floor().to_integer().to_i128().expect("within 128 bits")
}

pub(crate) fn ceil(number: &Exact) -> i128 {
    number.ceil().to_integer().to_i128().expect("within 128 bits")
}

/// A limit as two numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) capacity: Exact,
    pub(crate) rate: Exact,
}

impl From<&Limit> for Terms {
    fn from(limit: &Limit) -> Self {
        Self {
            capacity: exact(limit.capacity().millionths()),
            rate: Exact::new(limit.rate().tokens().into(), limit.rate().per().into()),
        }
    }
}

impl Terms {
    /// Whether the two differ by less than one part in 10^9.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let close = |a: &Exact, b: &Exact| a == b || (a - b).abs() * exact(1_000_000_000) < a.max(b).clone();
        close(&self.capacity, &other.capacity) && close(&self.rate, &other.rate)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Oracle {
    /// None: a bare bucket.
    pub(crate) terms: Option<Terms>,
    /// The zero moment; None: full, or synced.
    pub(crate) zero: Option<Exact>,
    pub(crate) thaw: Option<i64>,
    /// What is left, the highest figure applied, the reset.
    pub(crate) window: Option<(i128, i128, i64)>,
    /// The most it holds, until when.
    pub(crate) vendor_limit: Option<(i128, i64)>,
    /// Of a bare bucket: its level at a moment.
    pub(crate) synced: Option<(i128, i64)>,
}

/// What a call is answered, exact.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) allowed: u64,
    pub(crate) status: Status,
    /// Granted: when to act. Denied: from when it is granted. None: never.
    pub(crate) moment: Option<Exact>,
    pub(crate) remaining: u64,
    /// When it is full.
    pub(crate) full: Exact,
}

/// What a bucket with a limit shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) level: Exact,
    pub(crate) one_token: Option<Exact>,
    pub(crate) full: Exact,
}

/// A forced call that reaches further than 100 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooDeep;

impl From<&Bucket> for Oracle {
    /// All that a bucket remembers, read from its bytes.
    fn from(bucket: &Bucket) -> Self {
        let layout = Layout::of(bucket);
        let mut oracle = Self {
            thaw: layout.thaw_us,
            window: layout.window.map(|window| (window.left.into(), window.applied.into(), window.reset_us)),
            vendor_limit: layout.vendor_limit.map(|(tokens, until)| (tokens.into(), until)),
            ..Self::default()
        };
        match layout.level {
            Level::Limited { capacity, tokens, per, zero_us, part } => {
                oracle.terms = Some(Terms { capacity: exact(capacity), rate: Exact::new(tokens.into(), per.into()) });
                oracle.zero = Some(exact(zero_us) + Exact::new(part.into(), tokens.into()));
            }
            Level::Full => {}
            Level::Empty { zero_us } => oracle.zero = Some(exact(zero_us)),
            Level::Synced { tokens, at_us } => oracle.synced = Some((tokens.into(), at_us)),
        }
        oracle
    }
}

impl Oracle {
    // ---- reading

    pub(crate) fn is_frozen(&self, t: i64) -> bool {
        self.thaw.is_some_and(|thaw| t < thaw)
    }

    fn terms(&self) -> &Terms {
        self.terms.as_ref().expect("it has a limit")
    }

    fn zero(&self) -> &Exact {
        self.zero.as_ref().expect("it has a limit, so a zero moment")
    }

    /// The most it holds.
    pub(crate) fn holds(&self) -> Exact {
        let capacity = self.terms().capacity.clone();
        self.vendor_limit.map_or(capacity.clone(), |(most, _)| capacity.min(exact(most)))
    }

    /// Its level, below 0 in debt.
    pub(crate) fn level(&self, t: i64) -> Exact {
        (&self.terms().rate * (exact(t) - self.zero())).min(self.holds())
    }

    fn full_zero(&self, t: i64) -> Exact {
        exact(t) - self.holds() / &self.terms().rate
    }

    fn remaining_now(&self, t: i64) -> u64 {
        let level = floor(&self.level(t)).max(0);
        let most = self.window.map_or(level, |(left, ..)| level.min(left));
        u64::try_from(most / 1_000_000).unwrap()
    }

    fn full(&self) -> Exact {
        self.zero() + self.holds() / &self.terms().rate
    }

    /// Whole tokens to be had now, as far as anything remembered says so.
    pub(crate) fn remaining(&self, t: i64) -> Option<u64> {
        let mut now = self.clone();
        now.settle(t);
        if now.terms.is_some() {
            return Some(now.remaining_now(t));
        }
        let level = now.synced.map(|(level, _)| level).or(now.zero.as_ref().map(|_| 0));
        let figures = [level, now.window.map(|(left, ..)| left), now.vendor_limit.map(|(most, _)| most)];
        figures.into_iter().flatten().min().map(|millionths| u64::try_from(millionths / 1_000_000).unwrap())
    }

    pub(crate) fn read(&self, t: i64) -> Option<Reading> {
        let mut now = self.clone();
        now.settle(t);
        let terms = now.terms.clone()?;
        let (level, full) = (now.level(t), now.full());
        let (answer, _) = now.consume(&terms, 1_000_000, Mode::Exactly, t).unwrap();
        Some(Reading { level, one_token: answer.moment, full })
    }

    /// From when on it is like one that does not exist. None: it is already.
    pub(crate) fn forgotten(&self) -> Option<i128> {
        let vendor = [self.thaw, self.window.map(|w| w.2), self.vendor_limit.map(|l| l.1)];
        let vendor = vendor.into_iter().flatten().max().map(i128::from);
        match &self.terms {
            Some(terms) => {
                let mut last = self.clone();
                last.settle(i64::MAX); // the cut that a vendor limit leaves behind counts
                Some(ceil(&(last.zero() + &terms.capacity / &terms.rate))).max(vendor)
            }
            None => {
                let level = self.zero.as_ref().map(ceil).max(self.synced.map(|(_, at)| at.into()));
                level.max(vendor).map(|last| last + 3_600_000_000)
            }
        }
    }

    // ---- keeping up

    /// Drops what has lapsed. A vendor limit had cut the level until it did.
    pub(crate) fn settle(&mut self, t: i64) {
        if let Some((most, until)) = self.vendor_limit.filter(|(_, until)| t >= *until) {
            if let Some(terms) = self.terms.as_ref().filter(|terms| exact(most) < terms.capacity) {
                self.zero = self.zero.take().max(Some(exact(until) - exact(most) / &terms.rate));
            }
            self.vendor_limit = None;
        }
        self.window = self.window.filter(|(.., reset)| t < *reset);
        self.thaw = self.thaw.filter(|thaw| t < *thaw);
    }

    /// Lets what is above the most it holds run over.
    pub(crate) fn spill(&mut self, t: i64) {
        if self.terms.is_some() {
            self.zero = self.zero.take().max(Some(self.full_zero(t)));
        }
    }

    /// Takes up the limit that came with a call; tells whether it is another one.
    pub(crate) fn adopt(&mut self, terms: &Terms, t: i64) -> bool {
        self.settle(t);
        match self.terms.clone() {
            Some(known) if known.is_same_as(terms) => return false,
            Some(_) => self.change(terms, t),
            None => {
                self.terms = Some(terms.clone());
                if let Some((level, at)) = self.synced.take() {
                    self.zero = Some(exact(at) - exact(level) / &terms.rate);
                } else if self.zero.is_none() {
                    self.zero = Some(exact(t) - &terms.capacity / &terms.rate);
                }
            }
        }
        self.spill(t);
        true
    }

    /// Settles the level under the limit before and keeps it, or a debt's time, under
    /// the new one.
    fn change(&mut self, terms: &Terms, t: i64) {
        let level = self.level(t);
        let known = self.terms.replace(terms.clone()).expect("it has a limit");
        if level.is_negative() {
            // A moment is counted in parts as many as the rate has tokens.
            let parts = Exact::from(terms.rate.numer().clone());
            self.zero = Some((self.zero() * &parts).ceil() / parts);
        } else {
            // Drops of the same size need no rounding.
            let level = if known.rate == terms.rate { level } else { level.floor() };
            self.zero = Some(exact(t) - level.min(self.holds()) / &terms.rate);
        }
    }

    // ---- taking

    /// The first moment at which refill, debt and freeze allow it, and what is in the way.
    fn due(&self, tokens: i128, t: i64) -> (Exact, Status) {
        let at = self.zero() + exact(tokens) / &self.terms().rate;
        match self.thaw.filter(|_| self.is_frozen(t)) {
            Some(thaw) => (at.max(exact(thaw)), Status::Frozen),
            None if at > exact(t) => (at, Status::Empty),
            None => (exact(t), Status::Granted),
        }
    }

    /// The reset of a window that does not cover it for one who acts at `at`.
    fn closed_until(&self, tokens: i128, at: &Exact) -> Option<i64> {
        let window = self.window.filter(|(left, _, reset)| *at < exact(*reset) && (tokens > *left || *left == 0));
        window.map(|(.., reset)| reset)
    }

    /// From when on the vendor's word allows it to one who would act at `at`.
    fn held_up(&self, tokens: i128, at: &Exact, max_wait: &Exact) -> Option<Exact> {
        let Some((_, lapse)) = self.vendor_limit.filter(|(most, _)| tokens > *most) else {
            return self.closed_until(tokens, at).map(exact);
        };
        let mut later = self.clone(); // what it is when the limit has lapsed
        later.settle(lapse);
        let at = later.due(tokens, lapse).0;
        let reset = later.closed_until(tokens, &at).map(exact);
        Some(reset.unwrap_or((at - max_wait).max(exact(lapse))))
    }

    /// Takes them for one who acts at `at`.
    fn take(&mut self, tokens: i128, t: i64, at: &Exact) {
        if let Some((left, ..)) = self.window.as_mut().filter(|(.., reset)| *at < exact(*reset)) {
            *left = (*left - tokens).max(0);
        }
        self.spill(t);
        self.zero = Some(self.zero() + exact(tokens) / &self.terms().rate);
    }

    fn answer(&self, allowed: u64, status: Status, moment: Option<Exact>, t: i64) -> Answer {
        Answer { allowed, status, moment, remaining: self.remaining_now(t), full: self.full() }
    }

    /// The answer, and whether the bucket is another one then.
    pub(crate) fn consume(&mut self, terms: &Terms, tokens: i128, mode: Mode, t: i64) -> Result<(Answer, bool), TooDeep> {
        let mut now = self.clone();
        let mut other = now.adopt(terms, t);
        if now.terms().capacity < exact(tokens) && exact(tokens) <= terms.capacity {
            now.change(terms, t); // the same to a billionth, which this call needs
            other = true;
        }
        let (answer, changed) = now.decide(terms, tokens, mode, t)?;
        // A call denied for now stores a limit that is news.
        let changed = changed || other && answer.allowed == 0 && tokens > 0 && answer.status != Status::Never;
        if changed {
            *self = now;
        }
        Ok((answer, changed))
    }

    fn decide(&mut self, terms: &Terms, tokens: i128, mode: Mode, t: i64) -> Result<(Answer, bool), TooDeep> {
        let (mut tokens, mut max_wait) = (tokens, exact(0));
        match mode {
            Mode::Exactly => {}
            Mode::Reserve { max_wait_us } => max_wait = exact(max_wait_us),
            Mode::UpTo => {
                let most = floor(&self.level(t)).min(self.window.map_or(tokens, |(left, ..)| left)).min(tokens);
                let whole = most.div_euclid(1_000_000);
                if whole >= 1 {
                    self.take(whole * 1_000_000, t, &exact(t));
                    let allowed = u64::try_from(whole).unwrap();
                    return Ok((self.answer(allowed, Status::Granted, Some(exact(t)), t), true));
                }
                tokens = 1_000_000;
            }
            Mode::Force => {
                if tokens > 0 {
                    self.take(tokens, t, &exact(t));
                    if self.zero() - exact(t) > exact(MAX_FILL_US) {
                        return Err(TooDeep);
                    }
                }
                return Ok((self.answer(1, Status::Granted, Some(exact(t)), t), tokens > 0));
            }
        }
        if exact(tokens) > terms.capacity || exact(tokens) > self.terms().capacity {
            return Ok((self.answer(0, Status::Never, None, t), false));
        }
        let (at, why) = self.due(tokens, t);
        if let Some(moment) = self.held_up(tokens, &at, &max_wait) {
            let status = if why == Status::Frozen { why } else { Status::Window };
            return Ok((self.answer(0, status, Some(moment), t), false));
        }
        if &at - exact(t) > max_wait {
            return Ok((self.answer(0, why, Some(at - max_wait), t), false));
        }
        if !tokens.is_zero() {
            self.take(tokens, t, &at);
        }
        let status = if at > exact(t) { Status::Reserved } else { Status::Granted };
        Ok((self.answer(1, status, Some(at), t), tokens > 0))
    }

    // ---- what the vendor said

    /// Until when the level is below 0.
    pub(crate) fn penalise(&mut self, end: i64, t: i64) -> Exact {
        self.settle(t);
        let end = end.max(t);
        self.synced = None;
        self.zero = self.zero.take().max(Some(exact(end)));
        self.thaw = self.thaw.max(Some(end)).filter(|thaw| t < *thaw);
        self.zero().clone()
    }

    /// Whether anything was lowered, and whether anything changed.
    pub(crate) fn sync(&mut self, said: &Sync, t: i64) -> (bool, bool) {
        self.settle(t);
        let (mut lowered, mut changed) = (false, false);
        if let Some((most, ttl_us)) = said.limit {
            let most = i128::from(most.millionths());
            let stands = self
                .vendor_limit
                .filter(|(known, until)| *known == most && 2 * (i128::from(*until) - i128::from(t)) >= i128::from(ttl_us));
            if stands.is_none() {
                (lowered, changed) = (self.vendor_limit.is_none_or(|(known, _)| most < known), true);
                self.spill(t); // under the limit before: a higher one brings nothing back
                self.vendor_limit = Some((most, t + i64::try_from(ttl_us).unwrap()));
                self.spill(t);
            }
        }
        let remaining = i128::from(said.remaining.millionths());
        if said.reset_us.is_some_and(|reset| reset <= t) || !self.is_above(remaining, said, t) {
            return (lowered, changed);
        }
        let Some(reset) = said.reset_us else {
            match &self.terms {
                Some(terms) => self.zero = self.zero.take().max(Some(exact(t) - exact(remaining) / &terms.rate)),
                None => (self.synced, self.zero) = (Some((remaining, t)), None),
            }
            return (true, true);
        };
        self.window = Some(match self.window {
            Some((left, _, known)) if known - t >= 1_000_000 || reset <= known => {
                let left = left.min(remaining);
                (left, left, known.max(reset))
            }
            _ => {
                let due = match &self.terms {
                    Some(terms) => {
                        let from = self.thaw.map_or(t, |thaw| thaw.max(t));
                        ceil(&(&terms.rate * (self.zero() - exact(from)).max(exact(0))))
                    }
                    None => 0,
                };
                ((remaining - due).max(0), remaining, reset)
            }
        });
        (true, true)
    }

    fn is_above(&self, remaining: i128, said: &Sync, t: i64) -> bool {
        let own = match (&self.terms, said.reset_us) {
            (None, _) => self.synced.map(|(level, _)| exact(level)).or(self.zero.as_ref().map(|_| exact(0))),
            (Some(_), None) => Some(self.level(t)),
            (Some(terms), Some(reset)) => {
                let from = self.zero().clone().max(exact(t));
                Some(self.level(t).max(exact(0)) + &terms.rate * (exact(reset) - from).max(exact(0)))
            }
        };
        let left = self.window.filter(|_| said.reset_us.is_some()).map(|(left, ..)| exact(left));
        let figure = own.into_iter().chain(left).min();
        figure.is_none_or(|figure| exact(remaining) < figure - exact(said.tolerance.millionths()))
    }

    pub(crate) fn refund(&mut self, tokens: i128, t: i64) {
        self.settle(t);
        let Some(terms) = self.terms.clone() else { return };
        let lowest = self.thaw.map_or_else(|| self.full_zero(t), exact);
        self.zero = Some((self.zero() - exact(tokens) / &terms.rate).max(lowest));
        if let Some((left, applied, _)) = &mut self.window {
            *left = (*left + tokens).min(*applied);
        }
    }
}
