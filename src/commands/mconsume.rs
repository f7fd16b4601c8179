//! TB.MCONSUME numkeys key [key ...] capacity rate tokens per [capacity rate tokens per ...] [MAXWAIT seconds]

use super::Call;
use super::spec::{Argument, Audience, Command, KeyAccess, Keys, Kind};
use crate::args::{self, Args, MAX_KEYS};
use crate::error::Error;
use crate::ffi::Word;
use crate::keyspace::{Access, Place};
use crate::reply::{Member, Reply};
use crate::{clock, serving, stats};
use tokenbucket::{Bucket, Consume, Decision, Effect, Mode, Rounding, Status, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.MCONSUME",
    summary: "Takes tokens from several buckets, from all or from none.",
    complexity: "O(N) where N is the number of keys",
    since: "0.1.0",
    keys: Keys::Counted,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: false,
    arity: -7,
    arguments: &[
        Argument::required("numkeys", Kind::Integer, "how many buckets (1 to 64)"),
        Argument::required("key", Kind::Key, "a bucket; in a cluster they share a hash tag").repeated(),
        Argument::required(
            "limit",
            Kind::Block(&[
                Argument::required("capacity", Kind::Number, "the most tokens it holds (0.000001 to 1e12)"),
                Argument::required("rate", Kind::Number, "tokens added per `per` seconds (above 0, to 1e12)"),
                Argument::required("tokens", Kind::Number, "how many to take (0 to 1e12)"),
                Argument::required("per", Kind::Number, "the period of the rate (0.001 to 31622400 s)"),
            ]),
            "for each key in turn",
        )
        .repeated(),
        Argument::required(
            "seconds",
            Kind::Number,
            "take them now for later, if all will be there within so many seconds (0 to 31622400)",
        )
        .after("MAXWAIT")
        .optional(),
    ],
    details: include_str!("mconsume.md"),
    run,
};

/// A bucket with what is asked of it.
struct Part<'call> {
    place: Place<'call>,
    request: Consume,
    /// Before the call.
    bucket: Bucket,
}

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let (keys, requests) = parse(&mut call.args)?;
    let mut parts = Vec::with_capacity(keys.len());
    for (key, request) in keys.into_iter().zip(requests) {
        serving::catch_up(call.context, key);
        let (place, found) = Place::open(call.context, key, Access::Write)?;
        parts.push(Part { place, request, bucket: found.unwrap_or(Bucket::UNKNOWN) });
    }

    // Decided on copies: whether any of them is stored depends on all.
    let now_us = clock::now_us();
    let mut outcomes = Vec::with_capacity(parts.len());
    for part in &parts {
        let mut after = part.bucket;
        let (decision, effect) = part.answer(&part.request, &mut after, now_us)?;
        outcomes.push((after, decision, effect));
    }
    let decisions = outcomes.iter().map(|(_, decision, _)| *decision);
    let (together, each) = if decisions.clone().all(|decision| decision.allowed > 0) {
        let mut changed = Vec::with_capacity(parts.len());
        for (part, (after, ..)) in parts.iter().zip(&outcomes).filter(|(_, (.., effect))| *effect == Effect::Changed) {
            changed.push((part, after, part.place.check_room()?));
        }
        for (part, after, room) in changed {
            part.place.save_in(room, after, now_us);
            stats::count_limit(part.bucket.limit(), after.limit());
        }
        let together = decisions.clone().reduce(both).ok_or(Error::WrongArity)?;
        (together, decisions.map(Member::Decided).collect())
    } else {
        let together = decisions.clone().filter(|decision| decision.allowed == 0).reduce(worse).ok_or(Error::WrongArity)?;
        let mut each = Vec::with_capacity(parts.len());
        for (part, decision) in parts.iter().zip(decisions) {
            if together.status != Status::Never {
                part.keep_limit(now_us)?;
            }
            each.push(if decision.allowed > 0 { part.ready(now_us)? } else { Member::Decided(decision) });
        }
        (with_figures(together, &each), each)
    };
    stats::count(&together, Mode::Exactly);
    Ok(Reply::Joint { together, each })
}

fn parse<'call>(args: &mut Args<'call>) -> Result<(Vec<Word<'call>>, Vec<Consume>), Error> {
    let count = args.required()?;
    let count = args::key_count(count).ok_or(Error::KeyCount { most: MAX_KEYS })?;
    let mut keys: Vec<Word<'call>> = Vec::with_capacity(count);
    for _ in 0..count {
        let key = args.key()?;
        if keys.iter().any(|known| known.bytes() == key.bytes()) {
            return Err(Error::SameKeyTwice);
        }
        keys.push(key);
    }
    let mut requests = Vec::with_capacity(count);
    for _ in 0..count {
        let (capacity, rate) = args::capacity_and_rate(args)?;
        let tokens = args::tokens(args.required()?, args::TOKENS, Rounding::Up, Tokens::ZERO)?;
        let period = args::period(args.required()?, args::PERIOD)?;
        requests.push(Consume { limit: args::limit(capacity, rate, period)?, tokens, mode: Mode::Exactly });
    }
    if let Some(max_wait_us) = args::only_option(args, args::MAXWAIT.name, args::max_wait_us)? {
        for request in &mut requests {
            request.mode = Mode::Reserve { max_wait_us };
        }
    }
    Ok((keys, requests))
}

impl Part<'_> {
    fn answer(&self, request: &Consume, bucket: &mut Bucket, now_us: i64) -> Result<(Decision, Effect), Error> {
        self.place.consume(bucket, request, now_us).map_err(|_| Error::Internal) // only FORCE can
    }

    /// What a call that is denied for now may write: the limit that came with it. So
    /// the wait that it was told holds for the next call, which comes with it again.
    fn keep_limit(&self, now_us: i64) -> Result<(), Error> {
        let mut after = self.bucket;
        if self.place.is_occupied()
            && self.request.tokens > Tokens::ZERO
            && after.change_limit(&self.request.limit, now_us) == Effect::Changed
        {
            self.place.save(&after, now_us)?;
            stats::count_limit(self.bucket.limit(), after.limit());
        }
        Ok(())
    }

    /// The figures of a bucket that has the tokens and keeps them.
    fn ready(&self, now_us: i64) -> Result<Member, Error> {
        let ask = Consume { tokens: Tokens::ZERO, ..self.request };
        let mut untouched = self.bucket;
        let (asked, _) = self.answer(&ask, &mut untouched, now_us)?;
        Ok(Member::Ready(Decision { allowed: 0, wait_us: Some(0), ..asked }))
    }
}

/// Two grants as one: it acts when the later does.
fn both(one: Decision, other: Decision) -> Decision {
    Decision {
        status: if one.status == Status::Reserved { one.status } else { other.status },
        allowed: 1,
        remaining: one.remaining.min(other.remaining),
        wait_us: one.wait_us.max(other.wait_us),
        full_us: one.full_us.max(other.full_us),
    }
}

/// Of two denials the one that decides: never, or else the longer wait.
fn worse(one: Decision, other: Decision) -> Decision {
    match (one.wait_us, other.wait_us) {
        (None, _) => one,
        (_, None) => other,
        (Some(wait_us), Some(other_us)) if wait_us >= other_us => one,
        _ => other,
    }
}

/// The least remaining and the longest time to full, of those that are ready, too.
fn with_figures(together: Decision, each: &[Member]) -> Decision {
    let decisions = each.iter().map(|member| match member {
        Member::Decided(decision) | Member::Ready(decision) => decision,
    });
    Decision {
        remaining: decisions.clone().map(|decision| decision.remaining).min().unwrap_or(0),
        full_us: decisions.map(|decision| decision.full_us).max().unwrap_or(0),
        ..together
    }
}
