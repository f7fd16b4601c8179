//! Numbers as texts, held against fractions of any size.

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::{Decimal, MAX_TEXT, Rate, Rounding, Tokens};

use crate::cases;
use crate::histories::MOST;
use crate::oracle::{Exact, exact};

/// The number that a text is by the contract's grammar: digits, optionally a dot with
/// digits on both sides, optionally an exponent; at most 64 bytes.
fn read(text: &[u8]) -> Option<BigRational> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_TEXT)?;
    let digits = |text: &str| (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.to_owned());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (digits(whole)?, digits(fraction)?),
        None => (digits(mantissa)?, String::new()),
    };
    let exponent: BigInt = match exponent {
        Some(exponent) => {
            let sign = if exponent.starts_with('-') { -1 } else { 1 };
            let unsigned = digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))?;
            unsigned.parse::<BigInt>().unwrap() * sign
        }
        None => BigInt::zero(),
    };
    let number: BigInt = (whole + &fraction).parse().unwrap();
    if number.is_zero() {
        return Some(BigRational::zero());
    }
    // Beyond this it is out of every range or next to nothing, whatever its digits.
    let exponent = exponent.to_i32().unwrap_or(if exponent < BigInt::zero() { -200 } else { 200 }).clamp(-200, 200);
    Some(BigRational::from(number) * BigRational::from(BigInt::from(10)).pow(exponent - fraction.len() as i32))
}

/// A number in units of 10^-`places`, by the fraction that it is.
fn units(number: &BigRational, places: u8, rounding: Rounding, max: u64) -> Option<u64> {
    let units = number * BigRational::from(BigInt::from(10)).pow(places.into());
    if units > exact(max) {
        return None;
    }
    match rounding {
        Rounding::Down => units.floor(),
        Rounding::Up => units.ceil(),
    }
    .to_integer()
    .to_u64()
}

fn digits(most: usize) -> BoxedStrategy<String> {
    prop_oneof![
        3 => vec(0..10_u8, 1..=most),
        1 => vec(prop_oneof![4 => Just(0_u8), 1 => Just(9), 1 => 0..10_u8], 1..=most),
        1 => vec(0..10_u8, 1..=3),
    ]
    .prop_map(|digits| digits.into_iter().map(|digit| char::from(b'0' + digit)).collect())
    .boxed()
}

/// A number as a person or a language writes it.
fn number() -> BoxedStrategy<String> {
    let fraction = prop_oneof![Just(String::new()), digits(30).prop_map(|digits| format!(".{digits}"))];
    let exponent = prop_oneof![
        2 => Just(String::new()),
        2 => (prop_oneof![Just('e'), Just('E')], prop_oneof![Just(""), Just("+"), Just("-")], 0..40_u32, 0..3_usize)
            .prop_map(|(e, sign, exponent, zeros)| format!("{e}{sign}{}{exponent}", "0".repeat(zeros))),
        1 => digits(20).prop_map(|digits| format!("e-{digits}")),
        1 => digits(20).prop_map(|digits| format!("e{digits}")),
    ];
    (digits(30), fraction, exponent).prop_map(|(whole, fraction, exponent)| format!("{whole}{fraction}{exponent}")).boxed()
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn a_number_is_read_as_the_fraction_it_is(
        text in number(),
        places in prop_oneof![Just(6_u8), Just(3), Just(0), 0..=12_u8],
        max in prop_oneof![Just(MOST), 0..=MOST],
    ) {
        let (number, expected) = (Decimal::parse(text.as_bytes()), read(text.as_bytes()));
        prop_assert_eq!(number.is_some(), expected.is_some(), "{}", text);
        let Some((number, expected)) = number.zip(expected) else { return Ok(()) };
        prop_assert_eq!(number.is_zero(), expected.is_zero(), "{}", text);
        for rounding in [Rounding::Down, Rounding::Up] {
            let expected = units(&expected, places, rounding, max);
            prop_assert_eq!(number.units(places, rounding, max), expected, "{} {:?}", text, rounding);
        }
    }

    #[test]
    fn the_most_there_may_be_is_just_allowed(most in 0..=MOST, tail in digits(20), nines in any::<bool>()) {
        // A whole number of millionths, and a hair more.
        let text = format!("{}.{:06}", most / 1_000_000, most % 1_000_000);
        let more = format!("{text}{}1", if nines { "0".repeat(20) } else { tail });
        let units = |text: &str, rounding| Decimal::parse(text.as_bytes()).unwrap().units(6, rounding, most);
        for rounding in [Rounding::Down, Rounding::Up] {
            prop_assert_eq!(units(&text, rounding), Some(most));
            prop_assert_eq!(units(&more, rounding), None, "{}", more);
        }
    }

    #[test]
    fn what_is_not_a_number_is_refused(text in vec(prop::sample::select(b"0123456789.eE+-".to_vec()), 0..12)) {
        prop_assert_eq!(Decimal::parse(&text).is_some(), read(&text).is_some(), "{:?}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn any_bytes_are_a_number_or_refused(text in vec(any::<u8>(), 0..80), digits in vec(b'0'..=b'9', 60..70)) {
        prop_assert_eq!(Decimal::parse(&text).is_some(), read(&text).is_some());
        prop_assert_eq!(Decimal::parse(&digits).is_some(), digits.len() <= 64);
    }

    #[test]
    fn one_byte_too_many_makes_a_number_none(text in number(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = text.into_bytes();
        text.insert(place.index(text.len() + 1), byte);
        prop_assert_eq!(Decimal::parse(&text).is_some(), read(&text).is_some(), "{:?}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn a_rate_is_exact_to_twelve_digits_and_never_too_high(texts in (number(), number())) {
        let [exact_tokens, exact_per] = [&texts.0, &texts.1].map(|text| read(text.as_bytes()));
        let (Some(exact_tokens), Some(exact_per)) = (exact_tokens, exact_per) else { return Ok(()) };
        // Where an exponent is not one that `read` has cut.
        let far = exact(10).pow(100);
        if [&exact_tokens, &exact_per].into_iter().any(|number| *number > far || *number < far.recip()) {
            return Ok(());
        }
        let [tokens, per] = [&texts.0, &texts.1].map(|text| Decimal::parse(text.as_bytes()).unwrap());
        let billionth = Exact::new(1.into(), 1_000_000_000.into());
        let Some(rate) = Rate::from_decimals(tokens, per) else {
            // Of the ranges there are only such missing as fill nothing within 100 years.
            let in_range = (Exact::new(1.into(), 1000.into())..=exact(31_622_400)).contains(&exact_per)
                && exact_tokens > Exact::zero() && exact_tokens <= exact(1_000_000_000_000_u64);
            prop_assert!(!in_range || exact_tokens / exact_per < billionth.pow(2) * exact(316));
            return Ok(());
        };
        let (exact_rate, rate) = (exact_tokens / exact_per, Exact::new(rate.tokens().into(), rate.per().into()));
        // Of both numbers less than 1e-12 is lost.
        let lost = exact(1) - &rate / &exact_rate;
        prop_assert!(lost >= Exact::zero() && lost < billionth / exact(500), "{lost}");
        if is_short(&texts.0) && is_short(&texts.1) {
            prop_assert_eq!(rate, exact_rate);
        }
    }

    #[test]
    fn a_rate_is_in_lowest_terms_or_none_at_all(tokens in any::<u128>(), per in any::<u128>(), bits in (0..128_u32, 0..128_u32)) {
        let (tokens, per) = (tokens >> bits.0, per >> bits.1);
        let Some(rate) = Rate::new(tokens, per) else { return Ok(()) };
        prop_assert_eq!(rate.tokens().gcd(&rate.per()), 1);
        let [a, b, c, d] = [rate.tokens(), per, tokens, rate.per()].map(BigInt::from);
        prop_assert_eq!(a * b, c * d);
    }

    #[test]
    fn tokens_are_the_number_rounded_as_told(text in number()) {
        let Some(number) = Decimal::parse(text.as_bytes()) else { return Ok(()) };
        for rounding in [Rounding::Down, Rounding::Up] {
            let tokens = Tokens::from_decimal(number, rounding);
            prop_assert_eq!(tokens.map(Tokens::millionths), units(&read(text.as_bytes()).unwrap(), 6, rounding, MOST));
            prop_assert!(tokens.is_none_or(|tokens| tokens.whole() == tokens.millionths() / 1_000_000));
        }
    }
}

/// Whether twelve significant digits say all of it.
fn is_short(number: &str) -> bool {
    let mantissa = number.split(['e', 'E']).next().unwrap().replace('.', "");
    mantissa.trim_matches('0').len() <= 12
}
