//! Amounts of tokens and limits as callers write them, and their form on the wire.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokenbucket::{Decimal, Rate, Rounding};

/// An amount of tokens, from 0 to 10^12, exact to a millionth.
///
/// Whole amounts up to `u32` convert by themselves; others are parsed or tried:
///
/// ```
/// use tokenbucket_client::Tokens;
///
/// let one = Tokens::from(1);
/// let part: Tokens = "0.25".parse()?;
/// let many = Tokens::try_from(5_000_000_000_u64)?;
/// assert!(part < one && one < many);
/// assert_eq!(part.to_string(), "0.25");
/// # Ok::<(), tokenbucket_client::OutOfRange>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub(crate) tokenbucket::Tokens);

impl Tokens {
    /// None at all: asks without taking.
    pub const ZERO: Self = Self(tokenbucket::Tokens::ZERO);
    /// One token.
    pub const ONE: Self = Self(tokenbucket::Tokens::ONE);
    /// 10^12 tokens, the most there can be.
    pub const MAX: Self = Self(tokenbucket::Tokens::MAX);

    /// `millionths` of a token.
    ///
    /// # Errors
    /// [`OutOfRange`] above [`Tokens::MAX`].
    pub fn from_millionths(millionths: u64) -> Result<Self, OutOfRange> {
        tokenbucket::Tokens::from_millionths(millionths).map(Self).ok_or(OutOfRange("tokens"))
    }

    /// The amount in millionths of a token.
    pub const fn millionths(self) -> u64 {
        self.0.millionths()
    }

    /// The whole tokens in it.
    pub const fn whole(self) -> u64 {
        self.0.whole()
    }

    /// `share` of it, rounded down. A share is from a thousandth to all; what is no
    /// number is a thousandth, which is the careful side.
    #[cfg(feature = "limiter")]
    pub(crate) fn share(self, share: f64) -> Self {
        if share >= 1.0 {
            return self;
        }
        // Millionths of the share: good to 10^18 · 10^6 in 128 bits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "10^3 to 10^6")]
        let part = if share > 0.001 { (share * 1e6) as u128 } else { 1000 };
        let millionths = u128::from(self.millionths()) * part / 1_000_000; // down: never more than the share
        u64::try_from(millionths).ok().and_then(|millionths| Self::from_millionths(millionths).ok()).unwrap_or(self)
    }
}

impl From<u32> for Tokens {
    fn from(whole: u32) -> Self {
        Self(tokenbucket::Tokens::from_whole(u64::from(whole)).unwrap_or(tokenbucket::Tokens::MAX)) // 2^32 < 10^12
    }
}

impl TryFrom<u64> for Tokens {
    type Error = OutOfRange;

    fn try_from(whole: u64) -> Result<Self, OutOfRange> {
        tokenbucket::Tokens::from_whole(whole).map(Self).ok_or(OutOfRange("tokens"))
    }
}

impl FromStr for Tokens {
    type Err = OutOfRange;

    /// Reads a decimal as the server does; digits beyond the sixth decimal are dropped.
    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        Decimal::parse(text.as_bytes())
            .and_then(|number| tokenbucket::Tokens::from_decimal(number, Rounding::Down))
            .map(Self)
            .ok_or(OutOfRange("tokens"))
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_fixed(f, self.whole(), self.millionths() % 1_000_000, 6)
    }
}

/// `whole`, and `part` of 10^`places` behind a dot where it is not 0.
fn write_fixed(f: &mut fmt::Formatter<'_>, whole: u64, part: u64, places: usize) -> fmt::Result {
    if part == 0 {
        return write!(f, "{whole}");
    }
    let digits = format!("{part:0places$}");
    write!(f, "{whole}.{}", digits.trim_end_matches('0'))
}

/// A duration as the server reads it: decimal seconds.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_fixed(f, self.0.as_secs(), u64::from(self.0.subsec_nanos()), 9)
    }
}

/// What a bucket is to keep: so many tokens every so often, and a burst.
///
/// A limit without a burst has one as large as its rate: 100 a minute may come
/// all at once, then one every 0.6 seconds. Most vendors that say "100 a minute"
/// allow just that; for one that counts in fixed windows [`Limit::with_burst`]
/// with a small figure keeps to the limit across any of their windows.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::Limit;
///
/// let limit = Limit::per_second(10)?;
/// let slow = Limit::per(100, Duration::from_secs(60))?.with_burst(5)?;
/// # Ok::<(), tokenbucket_client::OutOfRange>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    capacity: Tokens,
    tokens: Tokens,
    per: Duration,
    /// The same as the server makes of it.
    pub(crate) exact: tokenbucket::Limit,
}

impl Limit {
    /// `tokens` every second.
    ///
    /// # Errors
    /// [`OutOfRange`] where `tokens` is 0.
    pub fn per_second(tokens: impl Into<Tokens>) -> Result<Self, OutOfRange> {
        Self::per(tokens, Duration::from_secs(1))
    }

    /// `tokens` every `period`, which is a millisecond to 366 days.
    ///
    /// # Errors
    /// [`OutOfRange`] where `tokens` is 0 or the period is out of its range.
    pub fn per(tokens: impl Into<Tokens>, period: Duration) -> Result<Self, OutOfRange> {
        let tokens = tokens.into();
        Self::new(tokens, tokens, period)
    }

    /// The same rate with another burst: the most tokens the bucket holds.
    ///
    /// # Errors
    /// [`OutOfRange`] where `burst` is 0 or takes more than 100 years to fill.
    pub fn with_burst(self, burst: impl Into<Tokens>) -> Result<Self, OutOfRange> {
        Self::new(burst.into(), self.tokens, self.per)
    }

    fn new(capacity: Tokens, tokens: Tokens, per: Duration) -> Result<Self, OutOfRange> {
        if per < Duration::from_millis(1) || per > MAX_PERIOD {
            return Err(OutOfRange("period"));
        }
        // Through the text that goes over the wire, so both sides read the same.
        let decimal = |text: String| Decimal::parse(text.as_bytes());
        let rate = decimal(tokens.to_string())
            .zip(decimal(Seconds(per).to_string()))
            .and_then(|(tokens, per)| Rate::from_decimals(tokens, per))
            .ok_or(OutOfRange("rate"))?;
        let exact = tokenbucket::Limit::new(capacity.0, rate).ok_or(OutOfRange("burst"))?;
        Ok(Self { capacity, tokens, per, exact })
    }

    /// The most tokens the bucket holds, so the largest burst.
    pub const fn capacity(&self) -> Tokens {
        self.capacity
    }

    /// Tokens added every [`Limit::period`].
    pub const fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// How often [`Limit::tokens`] are added.
    pub const fn period(&self) -> Duration {
        self.per
    }

    /// `share` of rate and burst, with a burst of at least `least` where this has that. All
    /// of it where the share is a limit that no bucket can keep: a token in a century.
    #[cfg(feature = "limiter")]
    pub(crate) fn share(&self, share: f64, least: Tokens) -> Self {
        let capacity = self.capacity.share(share).max(least.min(self.capacity));
        Self::new(capacity, self.tokens.share(share), self.per).unwrap_or(*self)
    }
}

/// 366 days, as the server has it.
const MAX_PERIOD: Duration = Duration::from_secs(31_622_400);

/// A figure that no bucket can have; holds the name of the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange(pub(crate) &'static str);

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = match self.0 {
            "period" => "0.001 to 31622400 seconds",
            "rate" => "above 0, to 1000000000000 tokens",
            "burst" => "above 0 and filled within 100 years",
            _ => "a number from 0 to 1000000000000",
        };
        write!(f, "{} must be {range}", self.0)
    }
}

impl std::error::Error for OutOfRange {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_exactly() {
        for (millionths, text) in [
            (0, "0"),
            (1, "0.000001"),
            (250_000, "0.25"),
            (1_000_000, "1"),
            (12_500_000, "12.5"),
            (10_u64.pow(18), "1000000000000"),
        ] {
            let tokens = Tokens::from_millionths(millionths).unwrap();
            assert_eq!(tokens.to_string(), text);
            assert_eq!(text.parse(), Ok(tokens));
        }
        assert!(Tokens::from_millionths(10_u64.pow(18) + 1).is_err());
        assert!(Tokens::try_from(u64::MAX).is_err());
        assert!("-1".parse::<Tokens>().is_err());
        assert_eq!(Seconds(Duration::new(1, 500)).to_string(), "1.0000005");
    }

    #[test]
    fn a_limit_without_a_burst_has_one_as_large_as_its_rate() {
        let limit = Limit::per(100, Duration::from_secs(60)).unwrap();
        assert_eq!(limit.capacity(), Tokens::from(100));
        assert_eq!(limit.with_burst(5).unwrap().capacity(), Tokens::from(5));
    }

    #[test]
    fn a_limit_that_no_bucket_can_keep_is_refused() {
        let text = |limit: Result<Limit, OutOfRange>| limit.unwrap_err().to_string();
        assert_eq!(text(Limit::per_second(0)), "rate must be above 0, to 1000000000000 tokens");
        assert_eq!(text(Limit::per(1, Duration::from_micros(999))), "period must be 0.001 to 31622400 seconds");
        assert_eq!(text(Limit::per(1, MAX_PERIOD + Duration::from_secs(1))), "period must be 0.001 to 31622400 seconds");
        let slow = Limit::per(1, MAX_PERIOD).unwrap();
        assert_eq!(text(slow.with_burst(101)), "burst must be above 0 and filled within 100 years");
        assert_eq!(text(slow.with_burst(0)), "burst must be above 0 and filled within 100 years");
    }

    #[cfg(feature = "limiter")]
    #[test]
    fn a_share_is_of_rate_and_burst_but_leaves_room_for_the_call() {
        let limit = Limit::per_second(100).unwrap();
        let half = limit.share(0.5, Tokens::ONE);
        assert_eq!((half.tokens(), half.capacity()), (Tokens::from(50), Tokens::from(50)));
        assert_eq!(limit.share(0.001, Tokens::ONE).capacity(), Tokens::ONE);
        assert_eq!(limit.share(0.001, Tokens::from(200)).capacity(), Tokens::from(100));
        for share in [1.0, 7.0, f64::INFINITY] {
            assert_eq!(limit.share(share, Tokens::ONE), limit, "{share}");
        }
        for share in [0.001, 0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(limit.share(share, Tokens::ONE).tokens().millionths(), 100_000, "{share}");
        }
        let yearly = Limit::per(1, MAX_PERIOD).unwrap();
        assert_eq!(yearly.share(0.001, Tokens::ONE), yearly);
    }
}
