//! Single values as vendors write them. Whatever is not of a form listed here is
//! no value: never 0, never a guess. Nothing here panics or allocates in proportion
//! to what it reads.

use std::time::{Duration, SystemTime};

use crate::Tokens;

/// Longer than any number, date or duration that a vendor sends.
const MAX_TEXT: usize = 64;

/// The longest that is believed: what is longer was not meant as a duration. A
/// Unix time read as seconds is half a century.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(31_622_400);

/// Nanoseconds since 1970.
pub(super) type Moment = i128;

const SECOND: i128 = 1_000_000_000;

/// A moment of the system's clock.
pub(super) fn moment(time: SystemTime) -> Moment {
    let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    }
}

/// Digits, optionally a dot with digits on both sides; in billionths.
fn billionths(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |text: &str| !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    if text.len() > MAX_TEXT || !digits(whole) || fraction.is_some_and(|fraction| !digits(fraction)) {
        return None;
    }
    let mut number = whole.parse::<u128>().ok()?.checked_mul(1_000_000_000)?;
    let mut unit = 100_000_000;
    for digit in fraction.unwrap_or_default().bytes().take(9) {
        number += u128::from(digit - b'0') * unit; // below 10^9 in all
        unit /= 10;
    }
    Some(number)
}

fn nanoseconds(nanos: u128) -> Option<Duration> {
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).ok()?))
}

/// A duration that can be believed.
fn believable(duration: Duration) -> Option<Duration> {
    (duration <= MAX_DURATION).then_some(duration)
}

/// Decimal seconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    believable(nanoseconds(billionths(text)?)?)
}

/// Decimal milliseconds.
pub(super) fn milliseconds(text: &str) -> Option<Duration> {
    believable(nanoseconds(billionths(text)? / 1000)?)
}

/// An amount of tokens, to a millionth.
pub(super) fn tokens(text: &str) -> Option<Tokens> {
    let millionths = u64::try_from(billionths(text)? / 1000).ok()?; // down: never more than was said
    Tokens::from_millionths(millionths).ok()
}

/// Whether it is one number with separators (`5,000`), which reads like a list of two.
pub(super) fn has_thousands(text: &str) -> bool {
    let digits = |part: &str, least: usize| (least..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.split(',');
    parts.next().is_some_and(|first| digits(first, 1)) && text.contains(',') && parts.all(|part| digits(part, 3))
}

/// A duration as Go prints it: `1h2m3.5s`, `6m0s`, `12ms`, `150µs`.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    if text.is_empty() || text.len() > MAX_TEXT {
        return None;
    }
    let (mut rest, mut total, mut last) = (text, 0_u128, u128::MAX);
    while !rest.is_empty() {
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(end)?;
        let end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end)?;
        let unit = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            // Both signs for micro.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1000,
            "ns" => 1,
            _ => return None,
        };
        if unit >= last {
            return None; // from large to small, each once
        }
        total = total.checked_add(billionths(number)?.checked_mul(unit)? / 1_000_000_000)?;
        (rest, last) = (tail, unit);
    }
    believable(nanoseconds(total)?)
}

/// An HTTP date in any of its three forms.
pub(super) fn http_date(text: &str) -> Option<Moment> {
    // The library takes longer ones apart than there can be.
    if text.len() > MAX_TEXT || !text.is_ascii() {
        return None;
    }
    httpdate::parse_http_date(text).ok().map(moment)
}

/// A date as RFC 3339 has it: `2026-11-30T12:34:56.5Z`, `…+02:00`.
pub(super) fn rfc3339(text: &str) -> Option<Moment> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let sign = |place: usize, signs: &[u8]| text.as_bytes().get(place).is_some_and(|byte| signs.contains(byte));
    let separated = sign(4, b"-") && sign(7, b"-") && sign(10, b"Tt ") && sign(13, b":") && sign(16, b":");
    if text.len() > MAX_TEXT || !separated {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction.find(|c: char| !c.is_ascii_digit())?;
        let (digits, tail) = fraction.split_at_checked(end)?;
        nanos = i128::try_from(billionths(&format!("0.{digits}"))?).ok()?;
        rest = tail;
    }
    let offset_minutes = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let (hours, minutes) = (number(at, at + 2)?, number(at + 3, at + 5)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    // Days since 1970 of the civil calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day - 719_469;
    let seconds = days * 86_400 + (hour * 60 + minute - offset_minutes) * 60 + second;
    Some(i128::from(seconds) * SECOND + nanos)
}

/// When a count jumps back or is full again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    /// So long from the response on.
    In(Duration),
    /// At a moment that was written as a number.
    Epoch(Moment),
    /// At a moment that was written as a date.
    Date(Moment),
}

impl Reset {
    /// How far it lies ahead, in nanoseconds.
    pub(super) fn ahead_of(self, now: Moment) -> i128 {
        match self {
            Self::In(duration) => i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX),
            Self::Epoch(then) | Self::Date(then) => then.saturating_sub(now),
        }
    }
}

/// Any form of a reset. A number is a Unix time in seconds from 10^9 on (2001),
/// one in milliseconds from 10^12 on, else seconds from now.
pub(super) fn reset(text: &str) -> Option<Reset> {
    if let Some(number) = billionths(text) {
        return match number / 1_000_000_000 {
            0..1_000_000_000 => seconds(text).map(Reset::In),
            1_000_000_000..100_000_000_000 => Some(Reset::Epoch(i128::try_from(number).ok()?)),
            1_000_000_000_000..100_000_000_000_000 => Some(Reset::Epoch(i128::try_from(number / 1000).ok()?)),
            _ => None,
        };
    }
    go_duration(text).map(Reset::In).or_else(|| rfc3339(text).or_else(|| http_date(text)).map(Reset::Date))
}

/// From `now` until `then`; `None` where that is not later, or too late to believe.
pub(super) fn until(then: Moment, now: Moment) -> Option<Duration> {
    let nanos = u128::try_from(then.checked_sub(now)?).ok().filter(|nanos| *nanos > 0)?;
    believable(nanoseconds(nanos)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn seconds_are_digits_with_or_without_a_fraction() {
        for (text, ms) in [("0", 0), ("120", 120_000), ("1.5", 1500), ("0.001", 1), ("007", 7000), ("31622400", 31_622_400_000)] {
            assert_eq!(seconds(text), Some(MS(ms)), "{text}");
        }
        for text in [
            "",
            " ",
            "-1",
            "+1",
            "-0",
            "1.",
            ".5",
            "1e3",
            "0x10",
            "1_000",
            "1,5",
            "nan",
            "inf",
            "5s",
            "1 2",
            "1.2.3",
            "१",
            "31622401",
            "1764508247",
            "99999999999999999999999999999",
            "1.123456789012345678901234567890",
        ] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn separators_are_told_from_lists() {
        for text in ["5,000", "1,234,567", "100,000"] {
            assert!(has_thousands(text), "{text}");
        }
        for text in ["", ",", "5000", "5, 000", "10, 100", "10,100;w=60", "10,1000", "1000,100", "9,4", ",000", "5,000,"] {
            assert!(!has_thousands(text), "{text}");
        }
    }

    #[test]
    fn go_durations_are_read_and_nothing_like_them() {
        for (text, ms) in [
            ("1s", 1000),
            ("6m0s", 360_000),
            ("12ms", 12),
            ("1h2m3.5s", 3_723_500),
            ("0s", 0),
            ("2000us", 2),
            ("1.5h", 5_400_000),
        ] {
            assert_eq!(go_duration(text), Some(MS(ms)), "{text}");
        }
        assert_eq!(go_duration("150\u{b5}s"), Some(Duration::from_micros(150)));
        assert_eq!(go_duration("150\u{3bc}s"), Some(Duration::from_micros(150)));
        for text in ["", "s", "5", "-5s", "1d", "1s1m", "1s1s", "1.s", ".5s", "1 s", "1h 2m", "99999999999h", "9000h"] {
            assert_eq!(go_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn dates_are_read_in_every_form_http_and_rfc_3339_have() {
        let expected = 784_111_777 * SECOND;
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(http_date(text), Some(expected), "{text}");
        }
        for text in ["1994-11-06T08:49:37Z", "1994-11-06t08:49:37z", "1994-11-06T10:49:37+02:00", "1994-11-06T03:19:37.000-05:30"]
        {
            assert_eq!(rfc3339(text), Some(expected), "{text}");
        }
        assert_eq!(rfc3339("1970-01-01T00:00:00.25Z"), Some(SECOND / 4));
        assert_eq!(rfc3339("2024-02-29T00:00:00Z"), Some(1_709_164_800 * SECOND));
        for text in [
            "",
            "1994-11-06",
            "1994-11-06T08:49:37",
            "1994-13-06T08:49:37Z",
            "1994-02-30T08:49:37Z",
            "2023-02-29T00:00:00Z",
            "1994-11-06T24:00:00Z",
            "1994-11-06T08:49:37+2:00",
            "1994-11-06T08:49:37.Z",
            "94-11-06T08:49:37Z",
            "1994-11-06T08:49:37+25:00",
            "１994-11-06T08:49:37Z",
            "1994-11-06T08:49:37é",
        ] {
            assert_eq!(rfc3339(text), None, "{text:?}");
        }
        for text in ["", "yesterday", "Sun, 06 Nov 1994 08:49:37", "Sun, 31 Feb 1994 08:49:37 GMT"] {
            assert_eq!(http_date(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_reset_is_told_by_its_size_and_form() {
        assert_eq!(reset("59.5"), Some(Reset::In(MS(59_500))));
        assert_eq!(reset("6m0s"), Some(Reset::In(MS(360_000))));
        assert_eq!(reset("1764508247"), Some(Reset::Epoch(1_764_508_247 * SECOND)));
        assert_eq!(reset("1764508247.5"), Some(Reset::Epoch(1_764_508_247 * SECOND + SECOND / 2)));
        assert_eq!(reset("1764508247500"), Some(Reset::Epoch(1_764_508_247 * SECOND + SECOND / 2)));
        assert_eq!(reset("1970-01-01T00:00:01Z"), Some(Reset::Date(SECOND)));
        for text in ["-1", "", "soon", "40000000", "500000000000", "1764508247500000", "99999999999999999999"] {
            assert_eq!(reset(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_past_or_too_far_is_no_duration() {
        assert_eq!(until(5 * SECOND, 3 * SECOND), Some(MS(2000)));
        assert_eq!(until(3 * SECOND, 3 * SECOND), None);
        assert_eq!(until(3 * SECOND, 5 * SECOND), None);
        assert_eq!(until(31_622_401 * SECOND, 0), None);
        assert_eq!(until(i128::MAX, i128::MIN), None);
    }
}
