//! TB.REFUND key tokens

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args;
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::{clock, stats};
use tokenbucket::{Effect, Rounding, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.REFUND",
    summary: "Gives back tokens of a call that was not made, or the unused part of an estimate.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: false,
    arity: 3,
    arguments: &[KEY, Argument::required("tokens", Kind::Number, "how many to give back (0 to 1e12)")],
    details: include_str!("refund.md"),
    run,
};

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let key = call.args.key()?;
    let tokens = args::tokens(call.args.required()?, args::TOKENS, Rounding::Up, Tokens::ZERO)?;

    let (place, found) = Place::open(call.context, key, Access::Write)?;
    let Some(mut bucket) = found else { return Ok(Reply::Null) };
    let now_us = clock::now_us();
    if bucket.refund(tokens, now_us) == Effect::Changed {
        place.save(&bucket, now_us)?;
    }
    stats::REFUNDS.add_one();
    let remaining = bucket.limit().and_then(|_| bucket.remaining(now_us));
    let remaining = remaining.filter(|_| !place.is_awaited()); // it is for those who wait
    Ok(Reply::Integer(remaining.unwrap_or(0)))
}
