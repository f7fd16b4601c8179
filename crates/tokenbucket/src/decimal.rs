//! Decimal numbers as people and languages print them, read without a float.
//!
//! Nothing here allocates or rounds silently: a [`Decimal`] remembers whether
//! digits were dropped, and whoever turns it into units says which way to round.

/// The longest text that is read as a number, in bytes.
pub const MAX_TEXT: usize = 64;

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const POWERS: [u64; 20] = {
    let mut powers = [1; 20];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// Significant digits of a rate or period that are kept. Cutting at the
/// thirteenth keeps twelve exact and the relative error below 1e-12.
const SIGNIFICANT: u64 = POWERS[13];

/// From here on another digit would not fit into [`Decimal::digits`].
const FULL: u64 = POWERS[18];

/// Which way a number goes that does not fit its unit exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Towards 0.
    Down,
    /// Away from 0.
    Up,
}

/// A number from 0 on: `digits`·10^`exponent`, and a little more where
/// `inexact` (digits beyond the nineteenth that were not all 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u64,
    exponent: i32,
    inexact: bool,
}

impl Decimal {
    /// The number 1.
    pub const ONE: Self = Self { digits: 1, exponent: 0, inexact: false };

    /// Reads digits, optionally a dot with digits on both sides, optionally an
    /// exponent (`10`, `0.5`, `1e-7`, `1E+2`). `None` for anything else: a sign,
    /// white space, `.5`, `5.`, `inf`, `0x10`, no text, more than 64 bytes.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let mut number = Self { digits: 0, exponent: 0, inexact: false };
        let mut rest = number.push_digits(text, Part::Whole)?;
        if let [b'.', fraction @ ..] = rest {
            rest = number.push_digits(fraction, Part::Fraction)?;
        }
        if let [b'e' | b'E', exponent @ ..] = rest {
            number.exponent += parse_exponent(exponent)?;
        } else if !rest.is_empty() {
            return None;
        }
        Some(number)
    }

    /// Reads the digits at the head of `text` and gives back what follows them;
    /// `None` where there is not one.
    #[inline]
    fn push_digits<'t>(&mut self, text: &'t [u8], part: Part) -> Option<&'t [u8]> {
        let mut rest = text;
        while let [byte @ b'0'..=b'9', tail @ ..] = rest {
            let digit = u64::from(byte - b'0');
            let kept = self.digits < FULL;
            if kept {
                self.digits = self.digits * 10 + digit;
            } else {
                self.inexact |= digit != 0;
            }
            match part {
                Part::Whole if !kept => self.exponent += 1,
                Part::Fraction if kept => self.exponent -= 1,
                _ => {}
            }
            rest = tail;
        }
        (rest.len() != text.len()).then_some(rest)
    }

    /// Whether it was written as 0.
    pub const fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// The number in units of 10^-`places`, rounded as told; `None` above `max`
    /// units (compared before rounding down, so 1e12 and a bit is above 1e12).
    #[inline]
    pub fn units(self, places: u8, rounding: Rounding, max: u64) -> Option<u64> {
        if self.is_zero() {
            return Some(0);
        }
        let shift = self.exponent.saturating_add(i32::from(places));
        let power = usize::try_from(shift.unsigned_abs()).ok().and_then(|s| POWERS.get(s));
        let (units, exact) = match (shift >= 0, power) {
            (true, Some(power)) => (self.digits.checked_mul(*power)?, !self.inexact),
            (true, None) => return None,
            // Rounds down here; `rounding` below decides what becomes of the rest.
            (false, Some(power)) => (self.digits / power, self.digits.is_multiple_of(*power) && !self.inexact),
            (false, None) => (0, false),
        };
        if units > max || (units == max && !exact) {
            return None;
        }
        Some(if rounding == Rounding::Up && !exact { units + 1 } else { units })
    }

    /// (digits, exponent) with digits up to 10^13.
    #[inline]
    pub(crate) fn significant(self, rounding: Rounding) -> (u64, i32) {
        let (mut digits, mut exponent, mut exact) = (self.digits, self.exponent, !self.inexact);
        while digits >= SIGNIFICANT {
            exact &= digits.is_multiple_of(10);
            digits /= 10;
            exponent += 1;
        }
        if rounding == Rounding::Up && !exact {
            digits += 1;
        }
        (digits, exponent)
    }
}

/// 10^`exponent`, where that fits.
#[inline]
pub(crate) fn power_of_ten(exponent: u32) -> Option<u128> {
    match POWERS.get(exponent as usize) {
        Some(power) => Some(u128::from(*power)),
        None => 10_u128.checked_pow(exponent),
    }
}

#[derive(Clone, Copy)]
enum Part {
    Whole,
    Fraction,
}

/// An exponent's digits with an optional sign. Beyond five digits the exact
/// figure no longer matters: with 64 bytes of mantissa the number is out of
/// every range, or 0.
fn parse_exponent(text: &[u8]) -> Option<i32> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut exponent: i32 = 0;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        exponent = (exponent * 10 + i32::from(byte - b'0')).min(100_000);
    }
    Some(sign * exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millionths(text: &str, rounding: Rounding) -> Option<u64> {
        Decimal::parse(text.as_bytes())?.units(6, rounding, 1_000_000_000_000_000_000)
    }

    #[test]
    fn what_languages_print_is_read() {
        for (text, down) in [
            ("0", 0),
            ("1", 1_000_000),
            ("007", 7_000_000),
            ("0.5", 500_000),
            ("1e-6", 1),
            ("1E+2", 100_000_000),
            ("1.5e3", 1_500_000_000),
            ("1000000000000", 1_000_000_000_000_000_000),
            ("0e999999999999", 0),
            ("0.0000000000000000000000000000000001e34", 1_000_000),
            ("10000000000000000000000000000000000e-34", 1_000_000),
        ] {
            assert_eq!(millionths(text, Rounding::Down), Some(down), "{text}");
            assert_eq!(millionths(text, Rounding::Up), Some(down), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "", " ", "1 ", " 1", "-1", "-0", "+5", ".5", "5.", ".", "e", "e5", "1e", "1e+", "1e-", "1e1.5", "1.e5", "1..2",
            "1.2.3", "nan", "inf", "infinity", "0x10", "1_000", "1,5", "१", "1\n", "1\0", "1f", "1e5e5", "--1", "1-", "1e++5",
        ] {
            assert_eq!(Decimal::parse(text.as_bytes()), None, "{text:?}");
        }
        assert!(Decimal::parse(&[b'1'; MAX_TEXT]).is_some());
        assert_eq!(Decimal::parse(&[b'1'; MAX_TEXT + 1]), None);
        assert_eq!(Decimal::parse(b"\xff\xfe"), None);
    }

    #[test]
    fn digits_beyond_the_unit_go_the_way_they_are_told() {
        assert_eq!(millionths("0.0000019", Rounding::Down), Some(1));
        assert_eq!(millionths("0.0000011", Rounding::Up), Some(2));
        assert_eq!(millionths("0.0000001", Rounding::Down), Some(0));
        assert_eq!(millionths("1e-99999999", Rounding::Down), Some(0));
        assert_eq!(millionths("1e-99999999", Rounding::Up), Some(1));
        assert_eq!(millionths("1.00000000000000000000000000000001", Rounding::Up), Some(1_000_001));
        assert_eq!(millionths("1.00000000000000000000000000000001", Rounding::Down), Some(1_000_000));
    }

    #[test]
    fn a_number_above_the_most_is_refused_however_little_it_is() {
        for text in
            ["1000000000000.0000001", "1000000000000.00000000000000000000001", "1e13", "1e99999", "99999999999999999999999"]
        {
            assert_eq!(millionths(text, Rounding::Down), None, "{text}");
            assert_eq!(millionths(text, Rounding::Up), None, "{text}");
        }
    }

    #[test]
    fn thirteen_digits_of_a_rate_are_kept() {
        let significant = |text: &str, rounding| Decimal::parse(text.as_bytes()).unwrap().significant(rounding);
        assert_eq!(significant("1.1574074074074073e-05", Rounding::Down), (1_157_407_407_407, -17));
        assert_eq!(significant("1.1574074074074073e-05", Rounding::Up), (1_157_407_407_408, -17));
        assert_eq!(significant("9999999999999", Rounding::Down), (9_999_999_999_999, 0));
        assert_eq!(significant("10", Rounding::Up), (10, 0));
        assert_eq!(significant("99999999999999.5", Rounding::Up), (10_000_000_000_000, 1));
        assert_eq!(significant("12345678901230000", Rounding::Up), (1_234_567_890_123, 4));
        assert_eq!(significant("0", Rounding::Up), (0, 0));
    }
}
