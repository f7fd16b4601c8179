//! TB.SYNC key remaining [LIMIT n] [RESET seconds | RESETAT unix-time] [TOLERANCE n]

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args::{self, FROM_0, IN_SECONDS, UNIX_TIME};
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::{clock, config, stats};
use tokenbucket::{Bucket, Effect, Rounding, Sync, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.SYNC",
    summary: "Lowers a bucket to what the vendor's response headers say is left.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: false,
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
const RESET: args::Argument = args::Argument { name: "RESET", must_be: IN_SECONDS };
const RESETAT: args::Argument = args::Argument { name: "RESETAT", must_be: UNIX_TIME };
const TOLERANCE: args::Argument = args::Argument { name: "TOLERANCE", must_be: FROM_0 };

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
        } else if is(RESET) || is(RESETAT) {
            let option = if is(RESET) { RESET } else { RESETAT };
            match reset {
                None => {}
                Some((given, _)) if given == option.name => return Err(Error::Twice(given)),
                Some((given, _)) => return Err(Error::Contradicts { option: option.name, other: given }),
            }
            let value = args.value_of(option.name)?;
            let when = if is(RESET) { args::in_seconds(value, RESET)? } else { args::unix_time(value, RESETAT)? };
            reset = Some((option.name, when));
        } else {
            return Err(Error::unknown_option(word));
        }
    }

    let (place, found) = Place::open(call.context, key, Access::Write)?;
    let (now_us, reset_us) = match reset {
        Some((_, when)) => {
            let (now_us, reset_us) = clock::now_and(when);
            (now_us, Some(reset_us))
        }
        None => (clock::now_us(), None),
    };
    let latest_us = now_us.saturating_add_unsigned(config::MAX_WINDOW.us());
    let said = Sync {
        remaining,
        reset_us: reset_us.map(|us| us.min(latest_us)),
        limit: limit.map(|tokens| (tokens, config::VENDOR_LIMIT_TTL.us())),
        tolerance: tolerance.unwrap_or(Tokens::ZERO),
    };
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let (synced, awaited) = (bucket.sync(&said, now_us), place.is_awaited());
    if synced.effect == Effect::Changed {
        place.save(&bucket, now_us)?;
        place.announce(c"tb.sync");
    }
    let counter = if synced.applied { &stats::SYNCS_APPLIED } else { &stats::SYNCS_IGNORED };
    counter.add_one();
    let remaining = match bucket.remaining(now_us) {
        _ if awaited => 0, // it is for those who wait
        Some(known) => known,
        // Nothing at all is known of the bucket: the vendor's word is the best there is.
        None => remaining.whole(),
    };
    Ok(Reply::Synced { applied: synced.applied, remaining })
}

const fn once(first: bool, option: args::Argument) -> Result<(), Error> {
    if first { Ok(()) } else { Err(Error::Twice(option.name)) }
}
