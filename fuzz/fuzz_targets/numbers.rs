//! Numbers and limits as clients write them: nothing panics, both roundings are next to
//! each other, what is taken is within its range, and std's floats agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenbucket::{Decimal, Limit, MAX_FILL_US, MAX_TEXT, Rate, Rounding, Tokens};

const MAX_UNITS: u64 = 1_000_000_000_000_000_000;

fuzz_target!(|words: [&[u8]; 3]| {
    let [first, rate, per] = words.map(Decimal::parse);
    for (word, number) in words.into_iter().zip([first, rate, per]) {
        let Some(number) = number else { continue };
        assert!(word.len() <= MAX_TEXT);
        let text = std::str::from_utf8(word).expect("only digits, a dot and an exponent are taken");
        let float: f64 = text.parse().expect("what is taken is a number to everybody");
        assert!(number.is_zero() || float >= 0.0);
        for places in [0, 3, 6] {
            let [down, up] = [Rounding::Down, Rounding::Up].map(|rounding| number.units(places, rounding, MAX_UNITS));
            assert_eq!(down.is_some(), up.is_some(), "{text}");
            let Some((down, up)) = down.zip(up) else { continue };
            assert!(up - down <= 1, "{text}: {down} and {up}");
            let units = float * 10_f64.powi(i32::from(places));
            #[expect(clippy::cast_precision_loss, reason = "compared with a float")]
            let (least, most) = (down as f64, up as f64);
            let slack = units * 1e-14 + 1e-300;
            assert!(least <= units + slack && units <= most + slack, "{text}: {least} to {most}, {units}");
        }
    }
    let tokens = first.and_then(|first| Tokens::from_decimal(first, Rounding::Down));
    let rate = rate.zip(per).and_then(|(rate, per)| Rate::from_decimals(rate, per));
    if let Some((tokens, rate)) = tokens.zip(rate)
        && let Some(limit) = Limit::new(tokens, rate)
    {
        assert!(limit.fill_us() <= MAX_FILL_US && limit.is_same_as(&limit));
        assert_eq!(limit.rate(), Rate::new(rate.tokens(), rate.per()).expect("its own terms"));
    }
});
