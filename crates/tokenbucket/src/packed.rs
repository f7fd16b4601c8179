//! A bucket as words in memory. Almost all buckets are a zero moment and a limit,
//! and the limit is mostly one that many share: 16 bytes hold such a bucket, 32
//! one with a limit of its own, and the rest is kept as encoded in `state.rs`.
//!
//! The low byte of the first word tells the form, so a server can keep the words
//! behind one untyped pointer.
//!
//! ```text
//! shared  us:56 form:8   part:44 index:20
//! lone    us:56 form:8   part:44 per-high:20   capacity:64   tokens:44 per-low:20
//! ```
//!
//! `form` of a lone bucket has, above its low three bits, a power of ten: `per` is
//! a whole number below 2^40 times that. That covers every rate that was written
//! with at most 13 digits per a round number of seconds.

use crate::bucket::{Bucket, Limited, Vendor};
use crate::limit::{Limit, Moment, Rate, Tokens};
use crate::state::{self, Encoded};

/// Indexes of shared limits are below this.
pub const MAX_SHARED: u32 = 1 << LOW_BITS;

const PART_BITS: u32 = 44;
const LOW_BITS: u32 = 20;
const LOW: u64 = (1 << LOW_BITS) - 1;
const PER_BITS: u32 = 2 * LOW_BITS;
const US_BITS: u32 = 56;

const FORM: u64 = 0b111;
const FORM_BITS: u32 = 8;
const SHARED: u64 = 1;
const LONE: u64 = 2;
const POWER_SHIFT: u32 = 3;
const MAX_POWER: u32 = 31;

/// A bucket in its smallest form.
#[derive(Clone, Copy, Debug)]
pub enum Packed {
    /// Its limit is kept elsewhere, under an index.
    Shared([u64; 2]),
    /// Its limit is its own.
    Lone([u64; 4]),
    /// It remembers more than a level, or its numbers are unusual.
    Encoded(Encoded),
}

/// Which form words have, told by the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// [`Packed::Shared`].
    Shared,
    /// [`Packed::Lone`].
    Lone,
    /// [`Packed::Encoded`], or something else altogether.
    Other,
}

impl Form {
    /// The form that a first word tells.
    pub const fn of(first: u64) -> Self {
        match first & FORM {
            SHARED => Self::Shared,
            LONE => Self::Lone,
            _ => Self::Other,
        }
    }
}

/// Packs `bucket`. `index_of` is asked where its limit is kept, if it is shared,
/// and only where the answer is then used.
#[inline]
pub fn pack(bucket: &Bucket, index_of: impl FnOnce(&Limit) -> Option<u32>) -> Packed {
    match bucket {
        Bucket::Limited(bucket) => pack_limited(bucket, index_of),
        Bucket::Bare(_) => None,
    }
    .unwrap_or_else(|| Packed::Encoded(state::encode(bucket)))
}

#[inline]
fn pack_limited(bucket: &Limited, index_of: impl FnOnce(&Limit) -> Option<u32>) -> Option<Packed> {
    let us = bucket.zero.us;
    if !bucket.vendor.is_empty() || us.unsigned_abs() >= 1 << (US_BITS - 1) {
        return None;
    }
    let part = u64::try_from(bucket.zero.part).ok().filter(|part| *part < 1 << PART_BITS)?;
    let (first, second) = (us.cast_unsigned() << FORM_BITS, part << LOW_BITS);
    match index_of(&bucket.limit) {
        Some(index) => {
            debug_assert!(index < MAX_SHARED);
            Some(Packed::Shared([first | SHARED, second | u64::from(index)]))
        }
        None => {
            let rate = bucket.limit.rate();
            let tokens = u64::try_from(rate.tokens()).ok().filter(|tokens| *tokens < 1 << PART_BITS)?;
            let (per, power) = mantissa(rate.per())?;
            Some(Packed::Lone([
                first | u64::from(power) << POWER_SHIFT | LONE,
                second | per >> LOW_BITS,
                bucket.limit.capacity().millionths(),
                tokens << LOW_BITS | (per & LOW),
            ]))
        }
    }
}

/// `per` as a number below 2^40 and a power of ten.
#[inline]
fn mantissa(per: u128) -> Option<(u64, u32)> {
    let (mut per, mut power) = (per, 0);
    while per >= 1 << PER_BITS {
        if per % 10 != 0 || power == MAX_POWER {
            return None;
        }
        per /= 10;
        power += 1;
    }
    u64::try_from(per).ok().map(|per| (per, power))
}

/// The index in a shared bucket's words.
pub const fn shared_index(words: [u64; 2]) -> u32 {
    (words[1] & LOW) as u32 // 20 bits fit into 32
}

/// The bucket in a shared bucket's words, given the limit at their index.
#[inline]
pub fn unpack_shared(words: [u64; 2], limit: Limit) -> Bucket {
    limited(limit, words[0], words[1])
}

/// The bucket in a lone bucket's words; `None` where [`pack`] has not made them.
#[inline]
pub fn unpack_lone(words: [u64; 4]) -> Option<Bucket> {
    let [first, second, capacity, fourth] = words;
    let power = u32::try_from(first >> POWER_SHIFT & u64::from(MAX_POWER)).ok()?;
    let per = u128::from((second & LOW) << LOW_BITS | (fourth & LOW)).checked_mul(10_u128.checked_pow(power)?)?;
    let rate = Rate::from_lowest_terms(u128::from(fourth >> LOW_BITS), per);
    let limit = Limit::from_parts(Tokens::from_millionths(capacity)?, rate);
    Some(limited(limit, first, second))
}

#[inline]
fn limited(limit: Limit, first: u64, second: u64) -> Bucket {
    let zero = Moment { us: first.cast_signed() >> FORM_BITS, part: u128::from(second >> LOW_BITS) };
    Bucket::Limited(Limited { limit, zero, vendor: Vendor::default() })
}
