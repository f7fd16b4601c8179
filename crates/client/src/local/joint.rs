//! Several buckets together, from all of which tokens are taken or from none, by the same
//! rules as TB.MCONSUME: here they are only fetched and kept.
//!
//! What to know before changing it: all shards concerned are locked, in the order in
//! which they stand, or two who ask would wait for each other.

use std::sync::PoisonError;
use std::time::Duration;

use tokenbucket::joint::{self, Joint, Part, Told};
use tokenbucket::{Effect, Mode};

use super::{Answer, Local, microseconds_up};
use crate::{Decision, Error, JointDecision, MultiConsume, Origin, Status};

/// As the server has it.
const MOST_KEYS: usize = 64;

/// Where a bucket of the request is kept.
struct Place<'r> {
    key: &'r [u8],
    hash: u64,
    /// Its shard among those that are locked.
    shard: usize,
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

        let mode = self.max_wait.map_or(Mode::Exactly, |wait| Mode::Reserve { max_wait_us: microseconds_up(wait) });
        let mut parts = Vec::with_capacity(self.buckets.len());
        for (key, limit, tokens) in &self.buckets {
            let place = local.place(key);
            let shard = shards.binary_search(&place.nth).unwrap_or(0); // it is one of them
            let found = locked.get(shard).and_then(|shard| shard.bucket(place.hash, key));
            let request = tokenbucket::Consume { limit: limit.exact, tokens: tokens.0, mode };
            parts.push(Part { place: Place { key, hash: place.hash, shard }, found, request });
        }
        // Only a forced request is ever refused.
        let joint = joint::consume(&parts, now_us, |_, bucket, request, now_us| bucket.consume(request, now_us))
            .map_err(|tokenbucket::DebtTooLong| Error::invalid("it would take too long to pay back"))?;
        for (Part { place, .. }, outcome) in parts.iter().zip(&joint.each) {
            if let (Effect::Changed, Some(shard)) = (outcome.effect, locked.get_mut(place.shard)) {
                local.keep(shard, place.hash, place.key, &outcome.after, now_us);
            }
        }
        Ok(joint.into())
    }

    fn without_redis(&self, open: bool) -> JointDecision {
        const OF_NONE: Decision = Decision {
            allowed: 0,
            remaining: 0,
            wait: None,
            full: Duration::ZERO,
            status: Status::Never,
            origin: Origin::FailClosed,
        };
        let each: Vec<_> = self.each().map(|request| request.without_redis(open)).collect();
        // What is told of one then is told of each, and so of all.
        JointDecision { together: each.first().copied().unwrap_or(OF_NONE), each }
    }

    fn share(&self, share: f64) -> Self {
        let buckets = self.each().map(|request| request.share(share)).map(|request| (request.key, request.limit, request.tokens));
        Self { buckets: buckets.collect(), ..*self }
    }
}

impl From<Joint> for JointDecision {
    fn from(joint: Joint) -> Self {
        let decision = |told| match told {
            Told::Decided(decision) => decision.into(),
            Told::Ready(decision) => Decision { status: Status::Ready, ..decision.into() },
        };
        Self { together: joint.together.into(), each: joint.each.into_iter().map(|outcome| decision(outcome.told)).collect() }
    }
}
