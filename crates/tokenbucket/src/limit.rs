//! What a bucket may hold and how fast it fills, and the exact arithmetic of
//! moments that follows from it. The unit is the drop: see the essay in `lib.rs`.

use crate::decimal::{Decimal, Rounding, power_of_ten};

/// The longest a bucket may take to fill, and the deepest a debt may reach:
/// 100 years, in microseconds. Every bound below follows from it.
pub const MAX_FILL_US: u64 = 3_155_760_000_000_000;

/// Millionths of a token in a token.
const MILLION: u64 = 1_000_000;

/// An amount of tokens, from 0 to 10^12, exact to a millionth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(u64);

impl Tokens {
    /// None at all.
    pub const ZERO: Self = Self(0);
    /// A millionth of a token, the least there can be.
    pub const MIN: Self = Self(1);
    /// One token.
    pub const ONE: Self = Self(MILLION);
    /// 10^12 tokens, the most there can be.
    pub const MAX: Self = Self(1_000_000_000_000 * MILLION);

    /// `millionths` of a token; `None` above [`Tokens::MAX`].
    pub fn from_millionths(millionths: u64) -> Option<Self> {
        (millionths <= Self::MAX.0).then_some(Self(millionths))
    }

    /// `whole` tokens; `None` above [`Tokens::MAX`].
    pub fn from_whole(whole: u64) -> Option<Self> {
        Self::from_millionths(whole.checked_mul(MILLION)?)
    }

    /// A decimal number of tokens; `None` above [`Tokens::MAX`].
    #[inline]
    pub fn from_decimal(number: Decimal, rounding: Rounding) -> Option<Self> {
        number.units(6, rounding, Self::MAX.0).map(Self)
    }

    /// The amount in millionths of a token.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// The whole tokens in it.
    pub const fn whole(self) -> u64 {
        self.0 / MILLION // down: a fraction of a token is not there yet
    }

    pub(crate) fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, or `most` where it would be more.
    pub(crate) fn add_up_to(self, other: Self, most: Self) -> Self {
        Self(self.0 + other.0).min(most)
    }

    /// So many millionths, or all there can be.
    pub(crate) fn at_most(millionths: u128) -> Self {
        u64::try_from(millionths).ok().and_then(Self::from_millionths).unwrap_or(Self::MAX)
    }

    /// The whole tokens of it.
    pub(crate) fn floor(self) -> Self {
        Self(self.whole() * MILLION)
    }
}

/// A rate in lowest terms: `tokens` every `per` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: u128,
    per: u128,
}

/// No rate is above 10^12 tokens per millisecond. Written as two numbers of 13
/// digits and a power of ten on one side, it is then at most 10^28 / 10^13; and
/// at least 10^13 / 10^29 where any capacity fills within 100 years. So the
/// capacity in drops is at most 10^31, and nothing below overflows 128 bits.
const MAX_PER_SECOND: u64 = 10_u64.pow(15);
const MAX_TOKENS: u128 = 10_u128.pow(28);
const MAX_PER: u128 = 10_u128.pow(29);
const MAX_LESSER: u128 = 10_u128.pow(13);

impl Rate {
    /// `tokens` every `per` seconds, brought to lowest terms. `None` for 0, for
    /// more than 10^15 tokens a second, or where it could not have been written
    /// as two numbers of 13 digits and a power of ten (the arithmetic counts on that).
    #[inline]
    pub fn new(tokens: u128, per: u128) -> Option<Self> {
        if tokens == 0 || per == 0 {
            return None;
        }
        let (tokens, per) = lowest_terms(tokens, per);
        let fits =
            tokens <= MAX_TOKENS && per <= MAX_PER && tokens.min(per) <= MAX_LESSER && tokens <= multiply(per, MAX_PER_SECOND);
        fits.then_some(Self { tokens, per })
    }

    /// A rate that [`Rate::new`] has made before.
    pub(crate) const fn from_lowest_terms(tokens: u128, per: u128) -> Self {
        Self { tokens, per }
    }

    /// A decimal number of tokens every decimal number of seconds, both exact to
    /// twelve significant digits; beyond, each may lower the rate by less than 1e-12.
    /// `None` for 0 and for what is out of every range.
    #[inline]
    pub fn from_decimals(tokens: Decimal, per: Decimal) -> Option<Self> {
        let (tokens, tokens_exponent) = tokens.significant(Rounding::Down);
        let (per, per_exponent) = per.significant(Rounding::Up);
        let exponent = tokens_exponent - per_exponent;
        let power = power_of_ten(exponent.unsigned_abs())?;
        let (tokens, per) = (u128::from(tokens), u128::from(per));
        match exponent {
            0 => Self::new(tokens, per),
            1.. => Self::new(tokens.checked_mul(power)?, per),
            _ => Self::new(tokens, per.checked_mul(power)?),
        }
    }

    /// Tokens added every [`Rate::per`] seconds; 1 µs adds as many drops.
    pub const fn tokens(self) -> u128 {
        self.tokens
    }

    /// Seconds in which [`Rate::tokens`] are added; a millionth of a token is as
    /// many drops.
    pub const fn per(self) -> u128 {
        self.per
    }

    /// The drops that `us` microseconds add; the most there can be where that is
    /// more than a u128 holds, which is more than any bucket does.
    #[inline]
    pub(crate) fn drops_in(self, us: u64) -> u128 {
        multiply(self.tokens, us)
    }

    /// The drops in `tokens`. Saturates as [`Rate::drops_in`] does, but never
    /// where that does: one of `tokens` and `per` is at most 10^13.
    #[inline]
    pub(crate) fn drops_of(self, tokens: Tokens) -> u128 {
        multiply(self.per, tokens.0)
    }

    /// The tokens in `drops`, rounded down to a millionth: whoever changes the
    /// limit pays the rest. At most [`Tokens::MAX`].
    pub(crate) fn tokens_in(self, drops: u128) -> Tokens {
        Tokens::at_most(div_rem(drops, self.per).0)
    }

    /// The tokens that cover `drops`, rounded up to a millionth.
    pub(crate) fn tokens_for(self, drops: u128) -> Tokens {
        Tokens::at_most(drops.div_ceil(self.per))
    }

    /// The whole tokens in `drops`.
    #[inline]
    pub(crate) fn whole_in(self, drops: u128) -> u64 {
        let whole = div_rem(drops, self.per * u128::from(MILLION)).0; // per ≤ 10^29: fits
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    /// The moment at which `drops` more have come in than at `from`.
    #[inline]
    pub(crate) fn after(self, from: Moment, drops: u128) -> Moment {
        let (us, part) = div_rem(from.part.saturating_add(drops), self.tokens);
        Moment { us: from.us.saturating_add_unsigned(u64::try_from(us).unwrap_or(u64::MAX)), part }
    }

    /// The moment at which `drops` less had come in than at `from`.
    #[inline]
    pub(crate) fn before(self, from: Moment, drops: u128) -> Moment {
        let (us, part) = div_rem(drops, self.tokens);
        let us = from.us.saturating_sub_unsigned(u64::try_from(us).unwrap_or(u64::MAX));
        match from.part.checked_sub(part) {
            Some(part) => Moment { us, part },
            None => Moment { us: us.saturating_sub(1), part: from.part + self.tokens - part },
        }
    }

    /// The drops that come in from `from` until `until_us`; 0 where that is not later.
    #[inline]
    pub(crate) fn drops_between(self, from: Moment, until_us: i64) -> u128 {
        match until_us.checked_sub(from.us) {
            Some(us) if us > 0 => self.drops_in(us.unsigned_abs()) - from.part,
            _ => 0,
        }
    }

    /// A moment counted in this rate, put into the parts of `other`: rounded up
    /// by less than a part, so that no refill is won by a change of limit.
    pub(crate) fn translate(self, moment: Moment, other: Self) -> Moment {
        let part = multiply_divide(moment.part, other.tokens, self.tokens);
        if part >= other.tokens { Moment::at(moment.us.saturating_add(1)) } else { Moment { us: moment.us, part } }
    }

    /// Whether the two differ by less than one part in 10^9.
    fn is_close_to(self, other: Self) -> bool {
        let (a, a_shift) = cut_product(self.tokens, other.per);
        let (b, b_shift) = cut_product(other.tokens, self.per);
        // Bring both to the larger unit; what is far off becomes 0 or stays far off.
        let unit = a_shift.max(b_shift);
        let (a, b) = (shift_down(a, unit - a_shift), shift_down(b, unit - b_shift));
        are_close(a, b)
    }
}

/// Whether the two differ by less than one part in 10^9.
fn are_close(a: u128, b: u128) -> bool {
    a == b || a.abs_diff(b) < a.max(b).div_ceil(1_000_000_000) // up, for a whole number is below n where it is below ⌈n⌉
}

/// `a`·`b` / 2^shift, good to 60 significant bits.
fn cut_product(a: u128, b: u128) -> (u128, u32) {
    let cut = |n: u128| (128 - n.leading_zeros()).saturating_sub(62);
    ((a >> cut(a)) * (b >> cut(b)), cut(a) + cut(b))
}

fn shift_down(n: u128, by: u32) -> u128 {
    n.checked_shr(by).unwrap_or(0)
}

/// What a bucket is to keep: at most `capacity` tokens, filled at `rate`.
///
/// Every `Limit` is usable: the capacity is above 0 and filled within 100 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    capacity: Tokens,
    rate: Rate,
}

impl Limit {
    /// A millionth of a token in a second, to stand where a limit is to come.
    pub const LEAST: Self = Self { capacity: Tokens::MIN, rate: Rate { tokens: 1, per: 1_000_000 } };

    /// `None` where the capacity is 0 or takes more than 100 years to fill.
    #[inline]
    pub fn new(capacity: Tokens, rate: Rate) -> Option<Self> {
        let limit = Self { capacity, rate };
        (capacity > Tokens::ZERO && limit.fills_within(MAX_FILL_US)).then_some(limit)
    }

    /// A limit that [`Limit::new`] has made before.
    pub(crate) const fn from_parts(capacity: Tokens, rate: Rate) -> Self {
        Self { capacity, rate }
    }

    /// The most a bucket holds, so the largest burst.
    pub const fn capacity(&self) -> Tokens {
        self.capacity
    }

    /// How fast it fills.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether an empty bucket is full after `us` microseconds. (By multiplying: a
    /// division costs more.)
    #[inline]
    pub fn fills_within(&self, us: u64) -> bool {
        self.rate.drops_of(self.capacity) <= self.rate.drops_in(us)
    }

    /// How long an empty bucket takes to fill, in microseconds, rounded up.
    #[inline]
    pub fn fill_us(&self) -> u64 {
        let (us, rest) = div_rem(self.rate.drops_of(self.capacity), self.rate.tokens);
        u64::try_from(us).map_or(u64::MAX, |us| us.saturating_add(u64::from(rest > 0)))
    }

    /// Whether the two differ by less than one part in 10^9, as the same limit
    /// does that two languages wrote (100 per 10 and 10 per 1; 1/86400 and 1 per
    /// 86400).
    #[inline]
    pub fn is_same_as(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        are_close(self.capacity.0.into(), other.capacity.0.into()) && self.rate.is_close_to(other.rate)
    }
}

/// A moment, exact in the parts of one rate: `us` microseconds and
/// `part`/[`Rate::tokens`] of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub(crate) us: i64,
    pub(crate) part: u128,
}

impl Moment {
    /// A whole microsecond.
    pub const fn at(us: i64) -> Self {
        Self { us, part: 0 }
    }

    /// The first whole microsecond that is not before it.
    pub fn ceil_us(self) -> i64 {
        self.us.saturating_add(i64::from(self.part > 0))
    }
}

/// ⌈`a`·`b`/`by`⌉, where `a` is below `by`, and both below 10^30.
fn multiply_divide(a: u128, b: u128, by: u128) -> u128 {
    if let Some(product) = a.checked_mul(b) {
        return product.div_ceil(by);
    }
    // 10^28·10^28 is too much for 128 bits: by hand, in binary. What is carried is
    // below 3·`by`.
    let (mut quotient, mut rest) = (0, 0);
    for bit in (0..u128::BITS - b.leading_zeros()).rev() {
        let carried = 2 * rest + if (b >> bit) & 1 == 1 { a } else { 0 };
        (quotient, rest) = (2 * quotient + carried / by, carried % by);
    }
    quotient + u128::from(rest > 0)
}

/// The product, or the most there can be. Nearly all factors here are below 2^64, and
/// then it fits, by one instruction of the processor's.
#[inline]
fn multiply(a: u128, b: u64) -> u128 {
    match u64::try_from(a) {
        Ok(a) => u128::from(a) * u128::from(b),
        Err(_) => a.saturating_mul(u128::from(b)),
    }
}

/// Quotient and remainder. Nearly all divisions here are of numbers below 2^64,
/// which the processor does in one instruction where 128 bits take a function.
#[inline]
fn div_rem(n: u128, by: u128) -> (u128, u128) {
    match (u64::try_from(n), u64::try_from(by)) {
        (Ok(n), Ok(by)) => (u128::from(n / by), u128::from(n % by)),
        _ => (n / by, n % by),
    }
}

/// The two divided by all they have in common; neither is 0.
#[inline]
fn lowest_terms(a: u128, b: u128) -> (u128, u128) {
    if a == 1 || b == 1 {
        return (a, b); // so are most rates
    }
    let (mut common, mut rest) = (a, b);
    while rest > 0 {
        (common, rest) = (rest, div_rem(common, rest).1);
    }
    (div_rem(a, common).0, div_rem(b, common).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(tokens: &str, per: &str) -> Option<Rate> {
        Rate::from_decimals(Decimal::parse(tokens.as_bytes())?, Decimal::parse(per.as_bytes())?)
    }

    fn limit(capacity: u64, tokens: &str, per: &str) -> Limit {
        Limit::new(Tokens::from_whole(capacity).unwrap(), rate(tokens, per).unwrap()).unwrap()
    }

    #[test]
    fn a_rate_is_kept_in_lowest_terms() {
        for (tokens, per, expected) in [
            ("100", "10", (10, 1)),
            ("0.5", "1", (1, 2)),
            ("1", "86400", (1, 86400)),
            ("1e12", "0.001", (1_000_000_000_000_000, 1)),
            ("1.25", "0.5", (5, 2)),
            ("0.000001", "31622400", (1, 31_622_400_000_000)),
            ("1e12", "0.00123456789012", (25_000_000_000_000_000_000_000_000, 30_864_197_253)),
        ] {
            let rate = rate(tokens, per).unwrap();
            assert_eq!((rate.tokens(), rate.per()), expected, "{tokens} per {per}");
        }
    }

    #[test]
    fn rates_out_of_range_are_none() {
        for (tokens, per) in [("0", "1"), ("1e-40", "1"), ("1e-100000", "1"), ("1e30", "1"), ("1e12", "0.0001"), ("1", "0")] {
            assert_eq!(rate(tokens, per), None, "{tokens} per {per}");
        }
        assert_eq!(Rate::new(MAX_TOKENS + 1, 10_u128.pow(14)), None);
        assert_eq!(Rate::new(1, MAX_PER + 1), None);
        let fastest = u128::from(MAX_PER_SECOND);
        assert!(Rate::new(fastest, 1).is_some());
        assert_eq!(Rate::new(fastest + 1, 1), None);
        assert_eq!(Rate::new(2 * fastest + 1, 2), None);
    }

    #[test]
    fn the_same_limit_in_two_languages_is_the_same() {
        let day = limit(10, "1", "86400");
        for (tokens, per) in
            [("1.1574074074074073e-05", "1"), ("0.000694444444444", "60"), ("7", "604800"), ("1.000000000999", "86400")]
        {
            assert!(day.is_same_as(&limit(10, tokens, per)), "{tokens} per {per}");
        }
        for (tokens, per) in
            [("1.0000000011", "86400"), ("0.9999999989", "86400"), ("1", "86401"), ("1e12", "0.001"), ("1e-6", "31622400")]
        {
            let other = Limit::new(Tokens::from_millionths(1).unwrap(), rate(tokens, per).unwrap()).unwrap();
            let tiny_day = Limit::new(Tokens::from_millionths(1).unwrap(), day.rate()).unwrap();
            assert!(!tiny_day.is_same_as(&other), "{tokens} per {per}");
            assert!(!other.is_same_as(&tiny_day), "{tokens} per {per}");
        }
        assert!(!day.is_same_as(&limit(11, "1", "86400")));
        assert!(limit(1_000_000_000_000, "1e12", "1").is_same_as(&limit(999_999_999_001, "1e12", "1")));
        assert!(!limit(1_000_000_000_000, "1e12", "1").is_same_as(&limit(999_999_999_000, "1e12", "1")));
        let capacity = |millionths| Limit::new(Tokens::from_millionths(millionths).unwrap(), day.rate()).unwrap();
        assert!(capacity(1_000_000_001).is_same_as(&capacity(1_000_000_000)));
        assert!(!capacity(1_000_000_000).is_same_as(&capacity(999_999_999)));
        // Terms too large to multiply in 128 bits, and of very different size.
        let wide = |tokens, per| Limit::new(Tokens::ONE, Rate::new(tokens * 10_u128.pow(15), per).unwrap()).unwrap();
        let widest = wide(9_999_999_999_971, 9_999_999_999_973);
        assert!(widest.is_same_as(&wide(9_999_999_999_971, 9_999_999_999_989)));
        assert!(!widest.is_same_as(&wide(9_999_989_999_977, 9_999_999_999_973)));
        assert!(limit(1, "1e12", "0.00123456789012").is_same_as(&limit(1, "810000007290", "0.001")));
        assert!(!limit(1, "1e12", "0.00123456789012").is_same_as(&limit(1, "810000009", "0.000001e3")));
    }

    #[test]
    fn a_limit_fills_within_a_hundred_years() {
        let slowest = Rate::new(1, 3_155_760_000).unwrap();
        assert!(Limit::new(Tokens::ONE, slowest).is_some());
        assert_eq!(Limit::new(Tokens::from_millionths(1_000_001).unwrap(), slowest), None);
        assert_eq!(Limit::new(Tokens::ZERO, slowest), None);
        assert_eq!(limit(3, "1", "7").fill_us(), 21_000_000);
        assert_eq!(limit(1, "3", "1").fill_us(), 333_334);
    }

    #[test]
    fn before_and_after_are_inverse() {
        let rate = Rate::new(3, 7).unwrap();
        for drops in [0, 1, 2, 3, 4, 1_000_000_007] {
            let then = rate.before(Moment::at(5_000), drops);
            assert_eq!(rate.after(then, drops), Moment::at(5_000), "{drops}");
            assert_eq!(rate.drops_between(then, 5_000), drops);
        }
    }

    #[test]
    fn a_moment_in_other_parts_is_never_earlier() {
        let rates = [(3, 7), (7, 3), (1, 1), (999_999_999_989, 1), (9_999_999_999_971 * 10_u128.pow(13), 9_999_999_999_973)];
        for (from, to) in rates.into_iter().flat_map(|a| rates.map(|b| (a, b))) {
            let (from, to) = (Rate::new(from.0, from.1).unwrap(), Rate::new(to.0, to.1).unwrap());
            for part in [0, 1, from.tokens / 3, from.tokens - 1] {
                let moment = Moment { us: 5, part: part.min(from.tokens - 1) };
                let there = from.translate(moment, to);
                assert!(there.part < to.tokens);
                let exact = |m: Moment, r: Rate| (m.us - 5) as f64 + m.part as f64 / r.tokens as f64;
                let (before, after) = (exact(moment, from), exact(there, to));
                assert!(after >= before - 1e-15, "{moment:?} {from:?} {to:?} {there:?}");
                assert!(after - before <= 1.0 / to.tokens as f64 + 1e-15, "{moment:?} {from:?} {to:?} {there:?}");
            }
        }
    }

    #[test]
    fn a_moment_in_parts_of_the_same_size_is_the_same() {
        let tokens = 9_999_999_999_971 * 10_u128.pow(13);
        let (from, to) = (Rate::new(tokens, 9_999_999_999_973).unwrap(), Rate::new(tokens, 9_999_999_999_959).unwrap());
        let moment = Moment { us: 5, part: 12_345_678_901_234_567_890_123_457 };
        assert_eq!(from.translate(moment, to), moment);
    }

    #[test]
    fn a_moment_in_wide_parts_is_rounded_up_by_less_than_one() {
        let narrow = Rate::new(3, 7).unwrap();
        let wide = Rate::new(9_999_999_999_971 * 10_u128.pow(13), 9_999_999_999_973).unwrap();
        let wider = Rate::new(9_999_999_999_967 * 10_u128.pow(14), 9_999_999_999_973).unwrap();
        let third = wide.tokens / 3;
        for (from, part, to, expected) in [
            (narrow, 1, wide, third + 1),
            (wide, third, narrow, 1),
            (wide, third + 1, narrow, 2),
            (wide, wide.tokens / 2, wider, wider.tokens / 2),
            (wide, wide.tokens / 2 + 1, wider, wider.tokens / 2 + 10),
            (wider, wider.tokens / 2, wide, wide.tokens / 2),
            (wider, wider.tokens / 2 + 1, wide, wide.tokens / 2 + 1),
        ] {
            let there = from.translate(Moment { us: 5, part }, to);
            assert_eq!(there, Moment { us: 5, part: expected }, "{part} of {from:?} in {to:?}");
        }
        let last = Moment { us: 5, part: wide.tokens - 1 };
        assert_eq!(wide.translate(last, narrow), Moment::at(6));
    }

    #[test]
    fn tokens_are_bounded_and_whole_ones_round_down() {
        assert_eq!(Tokens::from_whole(1_000_000_000_001), None);
        assert_eq!(Tokens::from_whole(u64::MAX), None);
        assert_eq!(Tokens::from_millionths(1_999_999).unwrap().whole(), 1);
        assert_eq!(Tokens::from_millionths(1_999_999).unwrap().floor(), Tokens::ONE);
        assert_eq!(Tokens::from_decimal(Decimal::ONE, Rounding::Up), Some(Tokens::ONE));
    }
}
