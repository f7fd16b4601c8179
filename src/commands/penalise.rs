//! TB.PENALISE key seconds | TB.PENALISE key UNTIL unix-time

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args::{self, IN_SECONDS, UNIX_TIME};
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::{clock, config, stats};
use tokenbucket::{Bucket, Effect};

pub(super) const COMMAND: Command = Command {
    name: "TB.PENALISE",
    summary: "Freezes a bucket, because the vendor said 429: nothing is granted until then, and no burst after.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: false,
    arity: -3,
    arguments: &[
        KEY,
        Argument::required(
            "until",
            Kind::OneOf(&[
                Argument::required("seconds", Kind::Number, "how long, as Retry-After has it (0 to 1e11 s, cut to max-penalty)"),
                Argument::required("unix-time", Kind::UnixTime, "until when, in Unix seconds (0 to 1e11, cut to max-penalty)")
                    .after("UNTIL"),
            ]),
            "the end of the freeze",
        ),
    ],
    details: include_str!("penalise.md"),
    run,
};

const SECONDS: args::Argument = args::Argument { name: "seconds", must_be: IN_SECONDS };
const UNTIL: args::Argument = args::Argument { name: "UNTIL", must_be: UNIX_TIME };

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let args = &mut call.args;
    let key = args.key()?;
    let word = args.required()?;
    let end = if word.eq_ignore_ascii_case(UNTIL.name.as_bytes()) {
        args::unix_time(args.value_of(UNTIL.name)?, UNTIL)?
    } else {
        args::in_seconds(word, SECONDS)?
    };
    if let Some(word) = args.next() {
        return Err(Error::unknown_option(word));
    }

    let (place, found) = Place::open(call.context, key, Access::Write)?;
    let (now_us, asked_us) = clock::now_and(end);
    let end_us = asked_us.min(now_us.saturating_add_unsigned(config::MAX_PENALTY.us()));
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let (zero_us, effect) = bucket.penalise(end_us, now_us);
    if effect == Effect::Changed {
        place.save(&bucket, now_us)?;
        place.announce(c"tb.penalise");
    }
    stats::PENALTIES.add_one();
    if end_us < asked_us {
        stats::PENALTIES_CUT.add_one();
    }
    Ok(Reply::Duration(zero_us))
}
