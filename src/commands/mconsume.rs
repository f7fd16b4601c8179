//! TB.MCONSUME numkeys key [key ...] capacity rate tokens per [capacity rate tokens per ...] [MAXWAIT seconds]

use super::Call;
use super::spec::{Argument, Audience, Command, KeyAccess, Keys, Kind};
use crate::args::{self, Args, MAX_KEYS};
use crate::error::Error;
use crate::ffi::Word;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::{clock, serving, stats};
use tokenbucket::joint::{self, Part};
use tokenbucket::{Bucket, Consume, Effect, Mode, Rounding, Tokens};

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

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let (keys, requests) = parse(&mut call.args)?;
    let mut parts = Vec::with_capacity(keys.len());
    for (key, request) in keys.into_iter().zip(requests) {
        serving::catch_up(call.context, key);
        let (place, found) = Place::open(call.context, key, Access::Write)?;
        parts.push(Part { place, found, request });
    }

    let now_us = clock::now_us();
    let joint = joint::consume(&parts, now_us, Place::consume).map_err(|_| Error::Internal)?; // only FORCE can
    let mut changed = Vec::with_capacity(parts.len());
    for (part, outcome) in parts.iter().zip(&joint.each).filter(|(_, outcome)| outcome.effect == Effect::Changed) {
        changed.push((part, outcome.after, part.place.check_room()?));
    }
    for (part, after, room) in changed {
        part.place.save_in(room, &after, now_us);
        stats::count_limit(part.found.as_ref().and_then(Bucket::limit), after.limit());
    }
    stats::count(&joint.together, Mode::Exactly);
    Ok(Reply::Joint(joint))
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
