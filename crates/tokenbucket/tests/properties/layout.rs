//! The encoding of a bucket once more, as the head of `state.rs` documents it: a
//! reader that sees all that a bucket remembers, and a writer that also writes what
//! no bucket is.

use tokenbucket::{Bucket, state};

/// A bucket's bytes, field by field. Moments and amounts in the units of the bytes:
/// microseconds and millionths of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) level: Level,
    pub(crate) thaw_us: Option<i64>,
    pub(crate) window: Option<Window>,
    pub(crate) vendor_limit: Option<(u64, i64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Limited { capacity: u64, tokens: u128, per: u128, zero_us: i64, part: u128 },
    Full,
    Empty { zero_us: i64 },
    Synced { tokens: u64, at_us: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: u64,
    pub(crate) applied: u64,
    pub(crate) reset_us: i64,
}

impl Layout {
    pub(crate) fn of(bucket: &Bucket) -> Self {
        Self::read(state::encode(bucket).as_bytes())
    }

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut bytes = bytes;
        let head = take_byte(&mut bytes);
        let rest = &mut bytes;
        let level = match head & 0b11 {
            0 => Level::Limited {
                capacity: narrow(rest),
                tokens: wide(rest),
                per: wide(rest),
                zero_us: signed(rest),
                part: wide(rest),
            },
            1 => Level::Full,
            2 => Level::Empty { zero_us: signed(rest) },
            _ => Level::Synced { tokens: narrow(rest), at_us: signed(rest) },
        };
        let thaw_us = (head & 0b100 != 0).then(|| signed(rest));
        let window = (head & 0b1000 != 0).then(|| Window { left: narrow(rest), applied: narrow(rest), reset_us: signed(rest) });
        let vendor_limit = (head & 0b1_0000 != 0).then(|| (narrow(rest), signed(rest)));
        assert!(rest.is_empty(), "{rest:?} is left over");
        Self { level, thaw_us, window, vendor_limit }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let kind = match self.level {
            Level::Limited { .. } => 0,
            Level::Full => 1,
            Level::Empty { .. } => 2,
            Level::Synced { .. } => 3,
        };
        let parts = [(self.thaw_us.is_some(), 0b100), (self.window.is_some(), 0b1000), (self.vendor_limit.is_some(), 0b1_0000)];
        let mut bytes = vec![parts.into_iter().filter(|(there, _)| *there).fold(kind, |head, (_, flag)| head | flag)];
        match self.level {
            Level::Limited { capacity, tokens, per, zero_us, part } => {
                for number in [u128::from(capacity), tokens, per, zigzag(zero_us), part] {
                    push(&mut bytes, number);
                }
            }
            Level::Full => {}
            Level::Empty { zero_us } => push(&mut bytes, zigzag(zero_us)),
            Level::Synced { tokens, at_us } => {
                push(&mut bytes, tokens.into());
                push(&mut bytes, zigzag(at_us));
            }
        }
        if let Some(us) = self.thaw_us {
            push(&mut bytes, zigzag(us));
        }
        if let Some(Window { left, applied, reset_us }) = self.window {
            push(&mut bytes, left.into());
            push(&mut bytes, applied.into());
            push(&mut bytes, zigzag(reset_us));
        }
        if let Some((tokens, until_us)) = self.vendor_limit {
            push(&mut bytes, tokens.into());
            push(&mut bytes, zigzag(until_us));
        }
        bytes
    }
}

/// The bytes of a message, whose `state` counts its moments from the clock.
pub(crate) fn message_bytes(version: u8, clock_us: i64, expire_at_ms: i64, state: &Layout) -> Vec<u8> {
    let mut bytes = vec![version];
    push(&mut bytes, zigzag(clock_us));
    push(&mut bytes, zigzag(expire_at_ms - clock_us / 1000));
    bytes.extend(state.bytes());
    bytes
}

fn zigzag(number: i64) -> u128 {
    let doubled = i128::from(number) * 2;
    u128::try_from(if number < 0 { -doubled - 1 } else { doubled }).unwrap()
}

/// Its length and its bytes, as few as hold it.
fn push(bytes: &mut Vec<u8>, number: u128) {
    let all = number.to_le_bytes();
    let len = all.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.push(len as u8);
    bytes.extend(&all[..len]);
}

fn take_byte(bytes: &mut &[u8]) -> u8 {
    let (byte, rest) = bytes.split_first().expect("the bytes go on");
    *bytes = rest;
    *byte
}

fn wide(bytes: &mut &[u8]) -> u128 {
    let len = take_byte(bytes);
    (0..len).fold(0, |number, place| number | u128::from(take_byte(bytes)) << (8 * place))
}

fn narrow(bytes: &mut &[u8]) -> u64 {
    u64::try_from(wide(bytes)).unwrap()
}

fn signed(bytes: &mut &[u8]) -> i64 {
    let zigzag = narrow(bytes);
    (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
}
