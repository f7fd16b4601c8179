//! Several buckets together, from all of which tokens are taken or from none, as
//! TB.MCONSUME does it.
//!
//! What to know before changing it: all shards concerned are locked, in the order in
//! which they stand, or two who ask would wait for each other.

use std::sync::PoisonError;
use std::time::Duration;

use tokenbucket::{Bucket, Effect, Mode};

use super::{Answer, Local, microseconds_up};
use crate::{Decision, Error, JointDecision, MultiConsume, Origin, Status, Tokens};

/// As the server has it.
const MOST_KEYS: usize = 64;

/// A bucket with what is asked of it and what comes of that.
struct Part<'r> {
    key: &'r [u8],
    hash: u64,
    /// Its shard among those that are locked.
    shard: usize,
    call: tokenbucket::Consume,
    before: Option<Bucket>,
    after: Bucket,
    decision: tokenbucket::Decision,
    effect: Effect,
}

impl Part<'_> {
    /// Where another bucket has not its tokens. Of one that is denied for now the limit it
    /// came with is kept, as of a request about it alone.
    fn take_nothing(&mut self, is_never: bool, now_us: i64) {
        self.after = self.before.unwrap_or(Bucket::UNKNOWN);
        self.effect = if self.before.is_some() && !is_never && self.call.tokens > Tokens::ZERO.0 {
            self.after.change_limit(&self.call.limit, now_us)
        } else {
            Effect::Unchanged
        };
    }

    /// What is told of it where another has not its tokens.
    fn told(&self, now_us: i64) -> Result<Decision, Error> {
        if self.decision.allowed == 0 {
            return Ok(self.decision.into());
        }
        let ask = tokenbucket::Consume { tokens: Tokens::ZERO.0, ..self.call };
        let (asked, _) = decide(&mut self.before.unwrap_or(Bucket::UNKNOWN), &ask, now_us)?;
        let ready = tokenbucket::Decision { allowed: 0, wait_us: Some(0), ..asked };
        Ok(Decision { status: Status::Ready, ..ready.into() })
    }
}

fn decide(bucket: &mut Bucket, call: &tokenbucket::Consume, now_us: i64) -> Result<(tokenbucket::Decision, Effect), Error> {
    // Only a forced request is ever refused.
    bucket.consume(call, now_us).map_err(|tokenbucket::DebtTooLong| Error::invalid("it would take too long to pay back"))
}

impl Answer<JointDecision> for MultiConsume {
    fn answered_by(&self, local: &Local, now_us: i64) -> Result<JointDecision, Error> {
        if !(1..=MOST_KEYS).contains(&self.buckets.len()) {
            return Err(Error::invalid("it needs from 1 to 64 buckets"));
        }
        let keys = || self.buckets.iter().map(|(key, ..)| key.as_slice());
        if keys().enumerate().any(|(nth, key)| keys().take(nth).any(|before| before == key)) {
            return Err(Error::invalid("the same key was given twice"));
        }
        let mut shards: Vec<_> = keys().map(|key| local.place(key).nth).collect();
        shards.sort_unstable();
        shards.dedup();
        let locked = shards.iter().filter_map(|nth| local.shards.get(*nth));
        let mut locked: Vec<_> = locked.map(|shard| shard.0.write().unwrap_or_else(PoisonError::into_inner)).collect();

        // Decided on copies: whether any of them is kept depends on all.
        let mode = self.max_wait.map_or(Mode::Exactly, |wait| Mode::Reserve { max_wait_us: microseconds_up(wait) });
        let mut parts = Vec::with_capacity(self.buckets.len());
        for (key, limit, tokens) in &self.buckets {
            let place = local.place(key);
            let shard = shards.binary_search(&place.nth).unwrap_or(0); // it is one of them
            let before = locked.get(shard).and_then(|shard| shard.bucket(place.hash, key));
            let call = tokenbucket::Consume { limit: limit.exact, tokens: tokens.0, mode };
            let mut after = before.unwrap_or(Bucket::UNKNOWN);
            let (decision, effect) = decide(&mut after, &call, now_us)?;
            parts.push(Part { key, hash: place.hash, shard, call, before, after, decision, effect });
        }
        let denials = parts.iter().map(|part| part.decision).filter(|decision| decision.allowed == 0);
        // The first of those that wait longest; never is longer than any.
        let decides = denials.reduce(|one, other| if lasts(&other) > lasts(&one) { other } else { one });
        if let Some(denial) = decides {
            for part in &mut parts {
                part.take_nothing(denial.wait_us.is_none(), now_us);
            }
        }
        for part in &parts {
            if let (Effect::Changed, Some(shard)) = (part.effect, locked.get_mut(part.shard)) {
                local.keep(shard, part.hash, part.key, &part.after, now_us);
            }
        }
        drop(locked);

        let each: Vec<Decision> = match decides {
            Some(_) => parts.iter().map(|part| part.told(now_us)).collect::<Result<_, _>>()?,
            None => parts.iter().map(|part| part.decision.into()).collect(),
        };
        Ok(together(decides.map(Decision::from), each))
    }

    fn without_redis(&self, open: bool) -> JointDecision {
        together(None, self.each().map(|request| request.without_redis(open)).collect())
    }

    fn share(&self, share: f64) -> Self {
        let buckets = self.each().map(|request| request.share(share)).map(|request| (request.key, request.limit, request.tokens));
        Self { buckets: buckets.collect(), ..*self }
    }
}

fn lasts(denial: &tokenbucket::Decision) -> u64 {
    denial.wait_us.unwrap_or(u64::MAX)
}

/// What is told of all of them: what the one that `decides` says, or else, where all are
/// granted, the last to come; with the least remaining and the longest to full.
fn together(decides: Option<Decision>, each: Vec<Decision>) -> JointDecision {
    const OF_NONE: Decision = Decision {
        allowed: 0,
        remaining: 0,
        wait: None,
        full: Duration::ZERO,
        status: Status::Never,
        origin: Origin::FailClosed,
    };
    let decides = decides.or_else(|| each.iter().max_by_key(|decision| decision.wait).copied()).unwrap_or(OF_NONE);
    let remaining = each.iter().map(|decision| decision.remaining).min().unwrap_or(0);
    let full = each.iter().map(|decision| decision.full).max().unwrap_or_default();
    JointDecision { together: Decision { remaining, full, ..decides }, each }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Consume, Limit, Peek, Penalise};

    #[test]
    fn of_denials_that_last_as_long_the_first_decides() {
        let local = Local::new();
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let (hour, half) = (Limit::per(1, minutes(60)).unwrap(), Limit::per(1, minutes(30)).unwrap());
        let of = |joint: MultiConsume| joint.answered_by(&local, 0).unwrap();
        assert!(of(MultiConsume::new().and("empty", hour, 1)).together.is_allowed());
        Penalise::new("frozen", minutes(30)).answered_by(&local, 0).unwrap();
        let first = of(MultiConsume::new().and("empty", hour, 1).and("frozen", half, 1)).together;
        let second = of(MultiConsume::new().and("frozen", half, 1).and("empty", hour, 1)).together;
        assert_eq!((first.status, second.status), (Status::Empty, Status::Frozen));
        assert_eq!((first.wait, second.wait), (Some(minutes(60)), Some(minutes(60))));
    }

    #[test]
    fn what_is_denied_for_now_keeps_its_limits_and_what_never_comes_keeps_none() {
        let hour = Limit::per(1, Duration::from_secs(3600)).unwrap();
        let burst = |burst: u32| hour.with_burst(burst).unwrap();
        for (tokens, capacity) in [(2, 9.0), (1, 4.0)] {
            let local = Local::new();
            for key in ["a", "b"] {
                Consume::new(key, burst(9)).tokens(6).answered_by(&local, 0).unwrap();
            }
            Consume::new("b", burst(9)).tokens(3).answered_by(&local, 0).unwrap();
            // Of "b" one is not there now, and two never are.
            let joint = MultiConsume::new().and("a", burst(4), 1).and("b", hour, tokens).and("none", hour, 1);
            assert!(!joint.answered_by(&local, 0).unwrap().together.is_allowed());
            let reading = Peek::new("a").answered_by(&local, 0).unwrap().unwrap();
            assert_eq!(reading.capacity, Some(capacity));
            assert_eq!(Peek::new("none").answered_by(&local, 0).unwrap(), None);
        }
    }
}
