//! Several buckets asked together: tokens from all of them, or from none.
//!
//! A vendor has several limits at once: per second and per day, per tenant and for the
//! whole account. Whether one bucket is charged depends on all of them, so each is asked
//! on a copy, and where one denies the copies are dropped: nothing has to be given back.
//!
//! Whoever calls brings the buckets as they are, and stores those that have changed: all
//! of them, or none where one cannot be stored.

use crate::bucket::{Bucket, Consume, DebtTooLong, Decision, Effect, Status};
use crate::limit::Tokens;

/// One of the buckets, with what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct Part<P> {
    /// Where it is kept, which only the caller understands.
    pub place: P,
    /// As it was found; `None` where there is none.
    pub found: Option<Bucket>,
    /// What is asked of it: all the tokens, now or within a wait.
    pub request: Consume,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    /// The decision on all of them: that of the bucket which decides, with the least
    /// that remains and the longest time to full.
    pub together: Decision,
    /// In the order of the parts.
    pub each: Vec<Outcome>,
}

/// What came of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the caller is told of it.
    pub told: Told,
    /// The bucket after the call.
    pub after: Bucket,
    /// Whether that must be stored.
    pub effect: Effect,
}

/// What is told of one of the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// As if it were alone.
    Decided(Decision),
    /// It has the tokens and keeps them, for another has not.
    Ready(Decision),
}

/// Of no bucket at all: nothing holds the call up.
const OF_NONE: Decision = Decision { status: Status::Granted, allowed: 1, remaining: 0, wait_us: Some(0), full_us: 0 };

/// Takes tokens from all the buckets, or says when they can be had from all. `ask` is
/// [`Bucket::consume`] where nobody waits for a bucket.
///
/// No bucket may be among them twice, since each is asked as it was found; and a request for
/// a part of the tokens, or by force, has no meaning here.
///
/// # Errors
/// As `ask`, of which only a forced request is refused.
pub fn consume<P>(
    parts: &[Part<P>],
    now_us: i64,
    ask: impl Fn(&P, &mut Bucket, &Consume, i64) -> Result<(Decision, Effect), DebtTooLong>,
) -> Result<Joint, DebtTooLong> {
    let mut each = Vec::with_capacity(parts.len());
    for part in parts {
        let mut after = part.bucket();
        let (decision, effect) = ask(&part.place, &mut after, &part.request, now_us)?;
        each.push(Outcome { told: Told::Decided(decision), after, effect });
    }
    let decisions = each.iter().map(|outcome| outcome.told.decision());
    let denial = longest(decisions.clone().filter(|decision| decision.allowed == 0));
    let decides = denial.or_else(|| longest(decisions)).unwrap_or(OF_NONE);
    if let Some(denial) = denial {
        for (part, outcome) in parts.iter().zip(&mut each) {
            if outcome.told.decision().allowed > 0 {
                let for_none = Consume { tokens: Tokens::ZERO, ..part.request };
                let (asked, _) = ask(&part.place, &mut part.bucket(), &for_none, now_us)?;
                outcome.told = Told::Ready(Decision { allowed: 0, wait_us: Some(0), ..asked });
            }
            (outcome.after, outcome.effect) = part.uncharged(denial.status, now_us);
        }
    }
    let told = each.iter().map(|outcome| outcome.told.decision());
    let remaining = told.clone().map(|decision| decision.remaining).min().unwrap_or(0);
    let full_us = told.map(|decision| decision.full_us).max().unwrap_or(0);
    Ok(Joint { together: Decision { remaining, full_us, ..decides }, each })
}

/// The decision with the longest wait, and never is longer than any; the first of those
/// that are as long.
fn longest(decisions: impl Iterator<Item = Decision>) -> Option<Decision> {
    let wait = |decision: &Decision| decision.wait_us.unwrap_or(u64::MAX);
    decisions.reduce(|one, other| if wait(&other) > wait(&one) { other } else { one })
}

impl Told {
    /// The figures of either.
    pub const fn decision(&self) -> Decision {
        match self {
            Self::Decided(decision) | Self::Ready(decision) => *decision,
        }
    }
}

impl<P> Part<P> {
    fn bucket(&self) -> Bucket {
        self.found.unwrap_or(Bucket::UNKNOWN)
    }

    /// The bucket after a call that is denied. Where that is for now, it keeps the limit that
    /// came with it, as after a request of its own: so the wait that was told holds for the
    /// next call, which comes with it again. A denial makes no bucket where there is none.
    fn uncharged(&self, denial: Status, now_us: i64) -> (Bucket, Effect) {
        let mut after = self.bucket();
        let is_for_now = denial != Status::Never;
        let effect = if is_for_now && self.found.is_some() && self.request.tokens > Tokens::ZERO {
            after.change_limit(&self.request, now_us)
        } else {
            Effect::Unchanged
        };
        (after, effect)
    }
}
