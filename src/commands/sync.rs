//! TB.SYNC key remaining [LIMIT n] [RESET seconds | RESETAT unix-time] [TOLERANCE n]

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args::{self, FROM_0, MAX_SECONDS};
use crate::error::Error;
use crate::ffi::Access;
use crate::keyspace::Place;
use crate::reply::Reply;
use crate::{clock, config, stats};
use tokenbucket::{Bucket, Effect, Rounding, Sync, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.SYNC",
    summary: "Lowers a bucket to what the vendor's response headers say is left.",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    arity: -3,
    arguments: &[
        KEY,
        Argument::required("remaining", Kind::Number, "the tokens that the vendor says are left (0 to 1e12)"),
        Argument::required("limit", Kind::Number, "the most that the vendor says it holds (1 to 1e12)").after("LIMIT").optional(),
        Argument::required(
            "reset",
            Kind::OneOf(&[
                Argument::required(
                    "seconds",
                    Kind::Number,
                    "in how many seconds the count jumps back (0 to 1e11, cut to max-window)",
                )
                .after("RESET"),
                Argument::required("unix-time", Kind::UnixTime, "when it does, in Unix seconds (0 to 1e11, cut to max-window)")
                    .after("RESETAT"),
            ]),
            "the end of the vendor's window",
        )
        .optional(),
        Argument::required("tolerance", Kind::Number, "how far above `remaining` the bucket may be (0 to 1e12, 0 if not given)")
            .after("TOLERANCE")
            .optional(),
    ],
    details: include_str!("sync.md"),
    run,
};

const REMAINING: args::Argument = args::Argument { name: "remaining", must_be: FROM_0 };
const LIMIT: args::Argument = args::Argument { name: "LIMIT", must_be: "a number from 1 to 1000000000000" };
const RESET: args::Argument = args::Argument { name: "RESET", must_be: "a number of seconds from 0 to 100000000000" };
const RESETAT: args::Argument = args::Argument { name: "RESETAT", must_be: "a unix time in seconds from 0 to 100000000000" };
const TOLERANCE: args::Argument = args::Argument { name: "TOLERANCE", must_be: FROM_0 };

/// A reset as the caller gave it.
enum Reset {
    In { us: u64 },
    At { wall_us: i64 },
}

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let args = &mut call.args;
    let key = args.key()?;
    let remaining = args::tokens(args.required()?, REMAINING, Rounding::Down, Tokens::ZERO)?;
    let (mut limit, mut reset, mut tolerance) = (None, None, None);
    while let Some(word) = args.next() {
        let is = |option: args::Argument| word.eq_ignore_ascii_case(option.name.as_bytes());
        if is(LIMIT) {
            once(limit.is_none(), LIMIT)?;
            limit = Some(args::tokens(args.value_of(LIMIT.name)?, LIMIT, Rounding::Down, Tokens::ONE)?);
        } else if is(TOLERANCE) {
            once(tolerance.is_none(), TOLERANCE)?;
            tolerance = Some(args::tokens(args.value_of(TOLERANCE.name)?, TOLERANCE, Rounding::Down, Tokens::ZERO)?);
        } else if is(RESET) {
            match reset {
                Some(Reset::In { .. }) => return Err(Error::Twice(RESET.name)),
                Some(Reset::At { .. }) => return Err(Error::Contradicts { option: RESET.name, other: RESETAT.name }),
                None => reset = Some(Reset::In { us: args::duration_us(args.value_of(RESET.name)?, RESET, MAX_SECONDS)? }),
            }
        } else if is(RESETAT) {
            match reset {
                Some(Reset::At { .. }) => return Err(Error::Twice(RESETAT.name)),
                Some(Reset::In { .. }) => return Err(Error::Contradicts { option: RESETAT.name, other: RESET.name }),
                None => reset = Some(Reset::At { wall_us: args::moment_us(args.value_of(RESETAT.name)?, RESETAT)? }),
            }
        } else {
            return Err(Error::unknown_option(word));
        }
    }

    let (place, found) = Place::open(call.context, key, Access::Write)?;
    let now_us = clock::now_us();
    let reset_us = reset.map(|reset| match reset {
        Reset::In { us } => now_us.saturating_add_unsigned(us),
        Reset::At { wall_us } => clock::from_wall(wall_us, now_us).unwrap_or(now_us),
    });
    let latest_us = now_us.saturating_add_unsigned(config::MAX_WINDOW.us());
    let said = Sync {
        remaining,
        reset_us: reset_us.map(|reset_us| reset_us.min(latest_us)),
        limit: limit.map(|tokens| (tokens, config::VENDOR_LIMIT_TTL.us())),
        tolerance: tolerance.unwrap_or(Tokens::ZERO),
    };
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let synced = bucket.sync(&said, now_us);
    if synced.effect == Effect::Changed {
        place.save(&bucket, now_us)?;
        place.notify(c"tb.sync");
    }
    let counter = if synced.applied { &stats::SYNCS_APPLIED } else { &stats::SYNCS_IGNORED };
    counter.add_one();
    // Where nothing at all is known of the bucket, the vendor's word is the best there is.
    let remaining = bucket.remaining(now_us).unwrap_or(remaining.whole());
    Ok(Reply::Synced { applied: synced.applied, remaining })
}

const fn once(first: bool, option: args::Argument) -> Result<(), Error> {
    if first { Ok(()) } else { Err(Error::Twice(option.name)) }
}
