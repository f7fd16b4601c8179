//! The only place where the shapes of replies are written.

use crate::ffi::Context;
use tokenbucket::joint::{Joint, Told};
use tokenbucket::{Decision, LimitedReading, Reading, Status, Tokens};

/// What a command answers.
pub(crate) enum Reply {
    /// allowed, remaining, wait, full, status.
    Decision(Decision),
    /// The same for several buckets together, then for each.
    Joint(Joint),
    /// A number.
    Integer(u64),
    /// A duration in microseconds, told in milliseconds.
    Duration(u64),
    /// applied and remaining.
    Synced { applied: bool, remaining: u64 },
    /// All there is to know, by name.
    Reading(Reading),
    /// There is no bucket.
    Null,
    /// Done.
    Ok,
    /// Nothing yet: the client waits.
    Later,
}

impl Reply {
    #[inline]
    pub(crate) fn write(&self, to: &Context) {
        match self {
            Self::Decision(decision) => write_decision(to, decision),
            Self::Joint(Joint { together, each }) => {
                to.reply_array(6);
                write_figures(to, together, word(together.status));
                to.reply_array(u8::try_from(each.len()).unwrap_or(u8::MAX)); // at most 64
                for outcome in each {
                    to.reply_array(5);
                    match &outcome.told {
                        Told::Decided(decision) => write_figures(to, decision, word(decision.status)),
                        Told::Ready(decision) => write_figures(to, decision, "ready"),
                    }
                }
            }
            Self::Integer(number) => to.reply_integer(integer(*number)),
            Self::Duration(us) => to.reply_integer(ms(*us)),
            Self::Synced { applied, remaining } => {
                to.reply_array(2);
                to.reply_integer(i64::from(*applied));
                to.reply_integer(integer(*remaining));
            }
            Self::Reading(reading) => write_reading(to, reading),
            Self::Null => to.reply_null(),
            Self::Ok => to.reply_simple(c"OK"),
            Self::Later => {}
        }
    }
}

/// The word for a status. Sent as a bulk string: some clients and Lua turn a
/// simple string into something else.
const fn word(status: Status) -> &'static str {
    match status {
        Status::Granted => "granted",
        Status::Reserved => "reserved",
        Status::Never => "never",
        Status::Frozen => "frozen",
        Status::Window => "window",
        Status::Empty => "empty",
    }
}

#[inline]
fn write_decision(to: &Context, decision: &Decision) {
    let mut reply = Protocol::NOTHING;
    reply.decision(decision);
    if !to.reply_whole(reply.as_bytes()) {
        to.reply_array(5);
        write_figures(to, decision, word(decision.status));
    }
}

/// 00 to 99.
#[expect(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "evaluated by the compiler")]
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

/// A reply as the protocol has it.
struct Protocol {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Protocol {
    /// Above the length of any reply: a head, four numbers and the longest word.
    const ROOM: usize = 128;
    /// No number has more digits.
    const DIGITS: usize = 20;

    const NOTHING: Self = Self { bytes: [0; Self::ROOM], len: 0 };

    /// What [`write_figures`] writes, in an array.
    #[inline]
    fn decision(&mut self, decision: &Decision) {
        self.push(b"*5\r\n", 4);
        self.number(decision.allowed);
        self.number(decision.remaining);
        match decision.wait_us {
            Some(wait_us) => self.number(wait_us.div_ceil(1000)),
            None => self.push(b":-1\r\n", 5),
        }
        self.number(decision.full_us.div_ceil(1000));
        match decision.status {
            Status::Granted => self.push(b"$7\r\ngranted\r\n", 13),
            Status::Reserved => self.push(b"$8\r\nreserved\r\n", 14),
            Status::Never => self.push(b"$5\r\nnever\r\n", 11),
            Status::Frozen => self.push(b"$6\r\nfrozen\r\n", 12),
            Status::Window => self.push(b"$6\r\nwindow\r\n", 12),
            Status::Empty => self.push(b"$5\r\nempty\r\n", 11),
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    #[inline]
    fn number(&mut self, number: u64) {
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            return self.push(&[b':', b'0' + digit, b'\r', b'\n'], 4); // two of three are
        }
        // From the last two to the first, then all at once: what follows them is written over.
        let mut digits = [0; 2 * Self::DIGITS];
        let (mut rest, mut start) = (number, Self::DIGITS);
        while let Some(place) = digits.get_mut(..start).and_then(<[u8]>::last_chunk_mut)
            && let Some(pair) = PAIRS.get(usize::from((rest % 100).to_le_bytes()[0]))
            && rest > 0
        {
            *place = *pair;
            rest /= 100;
            start -= 2;
        }
        if digits.get(start) == Some(&b'0') {
            start += 1;
        }
        self.push(b":", 1);
        if let Some(digits) = digits.get(start..).and_then(<[u8]>::first_chunk) {
            self.push::<{ Self::DIGITS }>(digits, Self::DIGITS - start);
        }
        self.push(b"\r\n", 2);
    }

    /// The first `len` of `text`, all of which is written.
    #[inline]
    fn push<const N: usize>(&mut self, text: &[u8; N], len: usize) {
        if let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            *place = *text;
            self.len += len;
        }
    }
}

#[inline]
fn write_figures(to: &Context, decision: &Decision, status: &str) {
    to.reply_integer(integer(decision.allowed));
    to.reply_integer(integer(decision.remaining));
    to.reply_integer(wait_ms(decision.wait_us));
    to.reply_integer(ms(decision.full_us));
    to.reply_bulk(status.as_bytes());
}

fn write_reading(to: &Context, reading: &Reading) {
    let Reading { limited, frozen_us, vendor_limit, window } = reading;
    let text = |name: &str, value: Option<String>| {
        to.reply_bulk(name.as_bytes());
        match value {
            Some(text) => to.reply_bulk(text.as_bytes()),
            None => to.reply_null(),
        }
    };
    let number = |name: &str, value: Option<i64>| {
        to.reply_bulk(name.as_bytes());
        match value {
            Some(number) => to.reply_integer(number),
            None => to.reply_null(),
        }
    };
    let limit = |part: fn(&LimitedReading) -> String| limited.as_ref().map(part);
    to.reply_map(10);
    text("capacity", limit(|known| decimal(known.limit.capacity().millionths().into())));
    text("rate", limit(|known| known.limit.rate().tokens().to_string()));
    text("per", limit(|known| known.limit.rate().per().to_string()));
    text("tokens", limit(|known| decimal(known.level_millionths)));
    number("wait-ms", limited.as_ref().map(|known| wait_ms(known.wait_us)));
    number("frozen-ms", Some(ms(*frozen_us)));
    number("full-ms", limited.as_ref().map(|known| ms(known.full_us)));
    number("vendor-limit", vendor_limit.map(|tokens| integer(Tokens::whole(tokens))));
    number("vendor-remaining", window.map(|(left, _)| integer(left.whole())));
    number("vendor-reset-ms", window.map(|(_, reset_us)| ms(reset_us)));
}

/// Whole milliseconds, rounded up: a wait is never told as 0, nor too short.
fn ms(us: u64) -> i64 {
    integer(us.div_ceil(1000))
}

fn wait_ms(wait_us: Option<u64>) -> i64 {
    wait_us.map_or(-1, ms)
}

/// All figures are far below 2^63.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Millionths as a plain decimal without trailing zeros.
fn decimal(millionths: i128) -> String {
    let (sign, amount) = (if millionths < 0 { "-" } else { "" }, millionths.unsigned_abs());
    let text = format!("{sign}{}.{:06}", amount / 1_000_000, amount % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_reply_is_what_its_parts_are() {
        let powers = (0..19).map(|power| 10_u64.pow(power));
        let numbers: Vec<u64> = powers.flat_map(|n| [n - 1, n, n + 1, n * 9]).chain([u64::MAX]).collect();
        let statuses =
            [Status::Granted, Status::Reserved, Status::Never, Status::Frozen, Status::Window, Status::Empty].into_iter().cycle();
        for (number, status) in numbers.into_iter().flat_map(|number| [number; 6]).zip(statuses) {
            for wait_us in [None, Some(0), Some(number)] {
                let decision = Decision { status, allowed: number, remaining: number / 7, wait_us, full_us: number / 3 };
                let wait = wait_us.map_or(-1, |us| i128::from(us.div_ceil(1000)));
                let (full, word) = (decision.full_us.div_ceil(1000), word(status));
                let expected =
                    format!("*5\r\n:{number}\r\n:{}\r\n:{wait}\r\n:{full}\r\n${}\r\n{word}\r\n", number / 7, word.len());
                let mut reply = Protocol::NOTHING;
                reply.decision(&decision);
                assert_eq!(String::from_utf8_lossy(reply.as_bytes()), expected);
            }
        }
    }

    #[test]
    fn decimals_are_plain_and_short() {
        for (millionths, text) in
            [(0, "0"), (1, "0.000001"), (1_500_000, "1.5"), (-1, "-0.000001"), (-2_000_000, "-2"), (10_000_000, "10")]
        {
            assert_eq!(decimal(millionths), text);
        }
    }

    #[test]
    fn a_wait_is_rounded_up_to_a_millisecond() {
        assert_eq!([0, 1, 999, 1000, 1001].map(ms), [0, 1, 1, 1, 2]);
        assert_eq!(wait_ms(None), -1);
    }
}
