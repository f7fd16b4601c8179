//! The only place where the shapes of replies are written.

use crate::ffi::Context;
use tokenbucket::{Decision, LimitedReading, Reading, Status, Tokens};

/// The answer for one bucket of several.
pub(crate) enum Member {
    /// As if it were alone.
    Decided(Decision),
    /// It has the tokens, but another has not.
    Ready(Decision),
}

/// What a command answers.
pub(crate) enum Reply {
    /// allowed, remaining, wait, full, status.
    Decision(Decision),
    /// The same for several buckets together, then for each.
    Joint { together: Decision, each: Vec<Member> },
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
            Self::Joint { together, each } => {
                to.reply_array(6);
                write_figures(to, together, word(together.status));
                to.reply_array(u8::try_from(each.len()).unwrap_or(u8::MAX)); // at most 64
                for member in each {
                    to.reply_array(5);
                    match member {
                        Member::Decided(decision) => write_figures(to, decision, word(decision.status)),
                        Member::Ready(decision) => write_figures(to, decision, "ready"),
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
    to.reply_array(5);
    write_figures(to, decision, word(decision.status));
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
