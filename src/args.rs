//! A cursor over the arguments of a call. Numbers are read from the client's bytes
//! in place; an error names the argument as the documentation does.

use crate::clock::When;
use crate::config;
use crate::error::Error;
use crate::ffi::{Locked, Word, Words};
use tokenbucket::{Decimal, Limit, Rate, Rounding, Tokens};

/// The arguments that are left.
pub(crate) struct Args<'call> {
    words: Words<'call>,
}

/// The name of an argument and what it has to be, as an error says it.
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) must_be: &'static str,
}

const CAPACITY: Argument = Argument { name: "capacity", must_be: "a number from 0.000001 to 1000000000000" };
const RATE: Argument = Argument { name: "rate", must_be: "a number above 0, at most 1000000000000" };
/// The period of a rate as an option, and as a number among others.
pub(crate) const PER: Argument = Argument { name: "PER", must_be: "a number of seconds from 0.001 to 31622400" };
pub(crate) const PERIOD: Argument = Argument { name: "per", ..PER };

/// How many tokens.
pub(crate) const TOKENS: Argument = Argument { name: "tokens", must_be: FROM_0 };
/// The longest wait that is accepted.
pub(crate) const MAXWAIT: Argument = Argument { name: "MAXWAIT", must_be: "a number of seconds from 0 to 31622400" };

/// What most amounts have to be.
pub(crate) const FROM_0: &str = "a number from 0 to 1000000000000";

/// The most keys of one call.
pub(crate) const MAX_KEYS: usize = 64;

/// The highest rate, in millionths of a token.
const MAX_RATE: u64 = Tokens::MAX.millionths();
/// The longest period, in milliseconds.
const MAX_PER_MS: u64 = 31_622_400_000;
/// How long a client is willing to wait on the server; 0 is as long as it takes.
pub(crate) const TIMEOUT: Argument = Argument { name: "timeout", ..MAXWAIT };
/// The most that [`MAXWAIT`] and [`TIMEOUT`] may be, in seconds.
const MAX_WAIT: u64 = 31_622_400;
/// What a duration or moment that a vendor told has to be ...
pub(crate) const IN_SECONDS: &str = "a number of seconds from 0 to 100000000000";
pub(crate) const UNIX_TIME: &str = "a unix time in seconds from 0 to 100000000000";
/// ... in seconds.
const MAX_SECONDS: u64 = 100_000_000_000;

impl<'call> Args<'call> {
    pub(crate) const fn new(words: Words<'call>) -> Self {
        Self { words }
    }

    /// The next argument, as the name of a key.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<Word<'call>, Error> {
        self.words.next().ok_or(Error::WrongArity)
    }

    /// The next argument, which has to be there.
    #[inline]
    pub(crate) fn required(&mut self) -> Result<&'call [u8], Error> {
        self.next().ok_or(Error::WrongArity)
    }

    /// The next argument, if `wanted` says so of it.
    #[inline]
    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&[u8]) -> bool) -> Option<&'call [u8]> {
        let mut ahead = self.words.clone();
        let word = ahead.next()?.bytes();
        if !wanted(word) {
            return None;
        }
        self.words = ahead;
        Some(word)
    }

    /// What follows an option.
    pub(crate) fn value_of(&mut self, option: &'static str) -> Result<&'call [u8], Error> {
        self.next().ok_or(Error::NeedsValue(option))
    }
}

impl<'call> Iterator for Args<'call> {
    type Item = &'call [u8];

    #[inline]
    fn next(&mut self) -> Option<&'call [u8]> {
        self.words.next().map(Word::bytes)
    }
}

/// What is given with the option that is all a command may end with, if it is there.
pub(crate) fn only_option<T>(
    args: &mut Args<'_>,
    name: &'static str,
    read: impl Fn(&mut Args<'_>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut given = None;
    while let Some(word) = args.next() {
        if !word.eq_ignore_ascii_case(name.as_bytes()) {
            return Err(Error::unknown_option(word));
        }
        if given.is_some() {
            return Err(Error::Twice(name));
        }
        given = Some(read(args)?);
    }
    Ok(given)
}

/// How many keys follow; `None` for what is no such number. It is read as the server
/// reads it: one that the server cannot read ("01") would have the keys checked by
/// nobody, neither for the user nor for the slot.
pub(crate) fn key_count(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|count| plain && (1..=MAX_KEYS).contains(count))
}

/// An amount of tokens from `least` on.
#[inline]
pub(crate) fn tokens(text: &[u8], argument: Argument, rounding: Rounding, least: Tokens) -> Result<Tokens, Error> {
    let number = Decimal::parse(text).ok_or(argument.error())?;
    tokens_of(number, argument, rounding, least)
}

/// [`tokens`], of a number that is read already.
#[inline]
pub(crate) fn tokens_of(number: Decimal, argument: Argument, rounding: Rounding, least: Tokens) -> Result<Tokens, Error> {
    let tokens = Tokens::from_decimal(number, rounding).ok_or(argument.error())?;
    if tokens < least {
        return Err(argument.error());
    }
    if tokens == Tokens::ZERO && !number.is_zero() {
        return Err(Error::Vanishes { argument: argument.name });
    }
    Ok(tokens)
}

/// A duration in seconds; in microseconds, rounded up so that nobody is early.
fn duration_us(text: &[u8], argument: Argument, max_seconds: u64) -> Result<u64, Error> {
    let max_us = max_seconds.saturating_mul(1_000_000);
    Decimal::parse(text).and_then(|number| number.units(6, Rounding::Up, max_us)).ok_or(argument.error())
}

/// What follows [`MAXWAIT`], in microseconds.
pub(crate) fn max_wait_us(args: &mut Args<'_>) -> Result<u64, Error> {
    duration_us(args.value_of(MAXWAIT.name)?, MAXWAIT, MAX_WAIT)
}

/// A [`TIMEOUT`] in microseconds; `None` where it never comes.
pub(crate) fn timeout_us(text: &[u8]) -> Result<Option<u64>, Error> {
    duration_us(text, TIMEOUT, MAX_WAIT).map(|us| (us > 0).then_some(us))
}

/// A moment that is so many seconds from now, see [`IN_SECONDS`].
pub(crate) fn in_seconds(text: &[u8], argument: Argument) -> Result<When, Error> {
    Ok(When::In { us: duration_us(text, argument, MAX_SECONDS)? })
}

/// A moment in Unix seconds, see [`UNIX_TIME`]; rounded up to a microsecond.
pub(crate) fn unix_time(text: &[u8], argument: Argument) -> Result<When, Error> {
    let number = Decimal::parse(text).ok_or(argument.error())?;
    match number.units(6, Rounding::Up, MAX_SECONDS * 1_000_000).map(i64::try_from) {
        Some(Ok(wall_us)) => Ok(When::At { wall_us }),
        _ => Err(Error::Milliseconds { argument: argument.name, must_be: argument.must_be }),
    }
}

/// The first two numbers of a limit.
#[inline(always)]
pub(crate) fn capacity_and_rate(args: &mut Args<'_>) -> Result<(Tokens, Decimal), Error> {
    let (capacity, rate) = (args.required()?, args.required()?);
    match LAST.with(|last| last.numbers(capacity, rate)) {
        Some(numbers) => Ok(numbers),
        None => read_capacity_and_rate(capacity, rate),
    }
}

fn read_capacity_and_rate(capacity_text: &[u8], rate_text: &[u8]) -> Result<(Tokens, Decimal), Error> {
    let capacity = tokens(capacity_text, CAPACITY, Rounding::Down, Tokens::MIN)?;
    let rate = Decimal::parse(rate_text).filter(|rate| !rate.is_zero() && rate.units(6, Rounding::Down, MAX_RATE).is_some());
    let numbers = (capacity, rate.ok_or(RATE.error())?);
    LAST.with(|last| last.keep(capacity_text, rate_text, numbers));
    Ok(numbers)
}

/// The period of a rate.
pub(crate) fn period(text: &[u8], argument: Argument) -> Result<Decimal, Error> {
    let period = Decimal::parse(text).ok_or(argument.error())?;
    match period.units(3, Rounding::Down, MAX_PER_MS) {
        Some(1..) => Ok(period),
        _ => Err(argument.error()),
    }
}

/// A limit of numbers that are in their ranges.
#[inline(always)]
pub(crate) fn limit(capacity: Tokens, rate: Decimal, period: Decimal) -> Result<Limit, Error> {
    let terms = Terms { capacity, rate, period, max_fill_us: config::MAX_FILL_TIME.us() };
    match LAST.with(|last| last.limit(&terms)) {
        Some(limit) => Ok(limit),
        None => make_limit(terms),
    }
}

fn make_limit(terms: Terms) -> Result<Limit, Error> {
    let Terms { capacity, rate, period, max_fill_us } = terms;
    let limit = Rate::from_decimals(rate, period)
        .and_then(|rate| Limit::new(capacity, rate))
        .filter(|limit| limit.fills_within(max_fill_us))
        .ok_or_else(|| Error::FillTime { max_seconds: config::MAX_FILL_TIME.get() })?;
    LAST.with(|last| last.made = Some((terms, limit)));
    Ok(limit)
}

/// What a limit is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Terms {
    capacity: Tokens,
    rate: Decimal,
    period: Decimal,
    max_fill_us: u64,
}

/// The limit that was read last. A fleet writes the same one in every call, and to find
/// that out takes 400 instructions less, of a call's 10,000, than to read it anew.
struct Last {
    /// The texts of capacity and rate, one after the other.
    text: [u8; Self::ROOM],
    lens: [usize; 2],
    numbers: (Tokens, Decimal),
    made: Option<(Terms, Limit)>,
}

static LAST: Locked<Last> = Locked::new(Last {
    text: [0; Last::ROOM],
    lens: [usize::MAX; 2], // of none
    numbers: (Tokens::ZERO, Decimal::ONE),
    made: None,
});

impl Last {
    /// Longer texts are not kept; nobody writes them.
    const ROOM: usize = 32;

    #[inline]
    fn numbers(&self, capacity: &[u8], rate: &[u8]) -> Option<(Tokens, Decimal)> {
        let [first, second] = self.lens;
        let same = capacity.len() == first
            && rate.len() == second
            && self.text.get(..first) == Some(capacity)
            && self.text.get(first..first + second) == Some(rate);
        same.then_some(self.numbers)
    }

    fn keep(&mut self, capacity: &[u8], rate: &[u8], numbers: (Tokens, Decimal)) {
        if let Some((first, rest)) = self.text.split_at_mut_checked(capacity.len())
            && let Some(second) = rest.get_mut(..rate.len())
        {
            first.copy_from_slice(capacity);
            second.copy_from_slice(rate);
            (self.lens, self.numbers) = ([capacity.len(), rate.len()], numbers);
        }
    }

    #[inline]
    fn limit(&self, terms: &Terms) -> Option<Limit> {
        self.made.filter(|(made_of, _)| made_of == terms).map(|(_, limit)| limit)
    }
}

impl Argument {
    pub(crate) const fn error(self) -> Error {
        Error::Number { argument: self.name, must_be: self.must_be }
    }
}
