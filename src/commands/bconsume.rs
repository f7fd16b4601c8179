//! TB.BCONSUME key capacity rate tokens timeout [PER seconds]

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args;
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::waiting::{self, Arrival};
use crate::{clock, serving, stats};
use tokenbucket::{Bucket, Consume, Decimal, Effect, Mode, Rounding, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.BCONSUME",
    summary: "Takes tokens from a bucket, or waits for them on the server. First come, first served.",
    complexity: "O(log(N)) where N is the number of clients that wait",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: true,
    arity: -6,
    arguments: &[
        KEY,
        Argument::required("capacity", Kind::Number, "the most tokens it holds, so the largest burst (0.000001 to 1e12)"),
        Argument::required("rate", Kind::Number, "tokens added per second, or per PER seconds (above 0, to 1e12)"),
        Argument::required("tokens", Kind::Number, "how many to take (0 to 1e12)"),
        Argument::required("timeout", Kind::Number, "how long to wait at most (0 to 31622400 s); 0 is as long as it takes"),
        Argument::required("seconds", Kind::Number, "the period of the rate (0.001 to 31622400 s, 1 if not given)")
            .after("PER")
            .optional(),
    ],
    details: include_str!("bconsume.md"),
    run,
};

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let args = &mut call.args;
    let key = args.key()?;
    let (capacity, rate) = args::capacity_and_rate(args)?;
    let tokens = args::tokens(args.required()?, args::TOKENS, Rounding::Up, Tokens::ZERO)?;
    let timeout_us = args::timeout_us(args.required()?)?;
    let period = args::only_option(args, args::PER.name, |args| args::period(args.value_of(args::PER.name)?, args::PER))?;
    let limit = args::limit(capacity, rate, period.unwrap_or(Decimal::ONE))?;
    let request = Consume { limit, tokens, mode: Mode::Exactly };

    serving::catch_up(call.context, key);
    let (place, found) = Place::open(call.context, key, Access::Write)?;
    let now_us = clock::now_us();
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let limit_before = bucket.limit().copied();
    let answer = place.consume(&mut bucket, &request, now_us);
    let (decision, effect) = answer.map_err(|_| Error::Internal)?; // only FORCE can
    if effect == Effect::Changed {
        place.save(&bucket, now_us)?;
        stats::count_limit(limit_before.as_ref(), bucket.limit());
    }
    if let (0, Some(wait_us)) = (decision.allowed, decision.wait_us) {
        // From here on the remembered limit decides, also of its own turn.
        let limit = *bucket.limit().unwrap_or(&limit);
        let arrival = Arrival { tokens, limit, timeout_us, now_us, wait_us };
        if waiting::enter(call.context, key, &arrival) {
            return Ok(Reply::Later);
        }
    }
    stats::count(&decision, Mode::Exactly);
    Ok(Reply::Decision(decision))
}
