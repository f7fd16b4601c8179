//! TB.CONSUME key capacity rate [tokens] [PER seconds] [UPTO | FORCE | MAXWAIT seconds]

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::args;
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::{clock, serving, stats};
use tokenbucket::{Consume, Decimal, Effect, MAX_FILL_US, Mode, Rounding, Tokens};

pub(super) const COMMAND: Command = Command {
    name: "TB.CONSUME",
    summary: "Takes tokens from a bucket, or says how long to wait for them.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Update,
    audience: Audience::Clients,
    blocks: false,
    arity: -4,
    arguments: &[
        KEY,
        Argument::required("capacity", Kind::Number, "the most tokens it holds, so the largest burst (0.000001 to 1e12)"),
        Argument::required("rate", Kind::Number, "tokens added per second, or per PER seconds (above 0, to 1e12)"),
        Argument::required("tokens", Kind::Number, "how many to take (0 to 1e12, 1 if not given); 0 asks without taking")
            .optional(),
        Argument::required("seconds", Kind::Number, "the period of the rate (0.001 to 31622400 s, 1 if not given)")
            .after("PER")
            .optional(),
        Argument::required(
            "mode",
            Kind::OneOf(&[
                Argument::required("upto", Kind::Flag, "take as many whole tokens as there are, at most `tokens`").after("UPTO"),
                Argument::required("force", Kind::Flag, "take them whatever holds: the level goes below 0").after("FORCE"),
                Argument::required(
                    "seconds",
                    Kind::Number,
                    "take them now for later, if they will be there within so many seconds (0 to 31622400)",
                )
                .after("MAXWAIT"),
            ]),
            "what to do where the bucket has not all of them",
        )
        .optional(),
    ],
    details: include_str!("consume.md"),
    run,
};

bitflags::bitflags! {
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Options: u8 {
        const PER = 1;
        const UPTO = 2;
        const FORCE = 4;
        const MAXWAIT = 8;
        /// Of these there can be one.
        const MODES = Self::UPTO.bits() | Self::FORCE.bits() | Self::MAXWAIT.bits();
    }
}

impl Options {
    #[inline]
    fn named(word: &[u8]) -> Option<(Self, &'static str)> {
        for (option, name) in [(Self::PER, "PER"), (Self::UPTO, "UPTO"), (Self::FORCE, "FORCE"), (Self::MAXWAIT, "MAXWAIT")] {
            if word.eq_ignore_ascii_case(name.as_bytes()) {
                return Some((option, name));
            }
        }
        None
    }
}

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let args = &mut call.args;
    let key = args.key()?;
    let (capacity, rate) = args::capacity_and_rate(args)?;
    let tokens = args.next_if(|word| Options::named(word).is_none());
    let tokens = tokens.map(|text| Decimal::parse(text).ok_or(args::TOKENS.error())).transpose()?;
    let (mut period, mut mode, mut seen) = (Decimal::ONE, (Mode::Exactly, ""), Options::empty());
    while let Some(word) = args.next() {
        let (option, name) = Options::named(word).ok_or_else(|| Error::unknown_option(word))?;
        if seen.contains(option) {
            return Err(Error::Twice(name));
        }
        if seen.intersects(Options::MODES) && Options::MODES.contains(option) {
            return Err(Error::Contradicts { option: name, other: mode.1 });
        }
        seen |= option;
        match option {
            Options::PER => period = args::period(args.value_of(name)?, args::PER)?,
            Options::UPTO => mode = (Mode::UpTo, name),
            Options::FORCE => mode = (Mode::Force, name),
            _ => {
                let max_wait_us = args::max_wait_us(args)?;
                mode = (Mode::Reserve { max_wait_us }, name);
            }
        }
    }
    let mode = mode.0;
    let tokens = match (tokens, mode) {
        (None, _) => Tokens::ONE,
        (Some(number), Mode::UpTo) => {
            args::tokens_of(number, args::TOKENS, Rounding::Down, Tokens::ONE).map_err(|_| Error::UpToNothing)?
        }
        (Some(number), _) => args::tokens_of(number, args::TOKENS, Rounding::Up, Tokens::ZERO)?,
    };
    let request = Consume { limit: args::limit(capacity, rate, period)?, tokens, mode };

    serving::catch_up(call.context, key);
    let place = Place::find(call.context, key, Access::Write)?;
    let now_us = clock::now_us();
    let mut bucket = place.bucket();
    let brings_another = bucket.limit().is_some_and(|known| *known != request.limit);
    let answer = place.consume(&mut bucket, &request, now_us);
    let (decision, effect) = answer.map_err(|_| Error::DebtTooLong { max_seconds: MAX_FILL_US / 1_000_000 })?;
    if effect == Effect::Changed {
        place.save(&bucket, now_us)?;
        if brings_another && bucket.limit() == Some(&request.limit) {
            stats::LIMIT_CHANGES.add_one();
        }
    }
    stats::count(&decision, mode);
    Ok(Reply::Decision(decision))
}
