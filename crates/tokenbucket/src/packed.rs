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

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(capacity: u64, (tokens, per): (u128, u128), us: i64, part: u128) -> Bucket {
        let limit = Limit::from_parts(Tokens::from_millionths(capacity).unwrap(), Rate::from_lowest_terms(tokens, per));
        Bucket::Limited(Limited { limit, zero: Moment { us, part }, vendor: Vendor::default() })
    }

    fn lone(bucket: &Bucket) -> Option<[u64; 4]> {
        match pack(bucket, |_| None) {
            Packed::Lone(words) => {
                assert_eq!(unpack_lone(words), Some(*bucket));
                assert_eq!(Form::of(words[0]), Form::Lone);
                Some(words)
            }
            Packed::Encoded(bytes) => {
                assert_eq!(state::decode(bytes.as_bytes(), 0), Ok(*bucket));
                None
            }
            Packed::Shared(words) => panic!("{words:?}"),
        }
    }

    #[test]
    fn a_lone_bucket_is_four_words() {
        let words = lone(&bucket(0x77, (0x5, 0x0030_0007), 0x1234_5678, 0x4)).unwrap();
        assert_eq!(words, [0x12_3456_7802, 0x40_0003, 0x77, 0x50_0007]);
        // 10^15 is 10^12·10^3, and 10^12 is below 2^40.
        let words = lone(&bucket(1, (3, 1_000_000_000_000_000), -1, 2)).unwrap();
        let per = 1_000_000_000_000;
        assert_eq!(words, [0xffff_ffff_ffff_ff00 | 3 << 3 | 2, 2 << 20 | per >> 20, 1, 3 << 20 | per & 0xf_ffff]);
    }

    #[test]
    fn a_shared_bucket_is_two_words() {
        let bucket = bucket(0x77, (0x50, 1), 0x1234_5678, 0x44);
        let Bucket::Limited(Limited { limit, .. }) = bucket else { panic!() };
        let Packed::Shared(words) = pack(&bucket, |_| Some(MAX_SHARED - 1)) else { panic!() };
        assert_eq!(words, [0x12_3456_7801, 0x44f_ffff]);
        assert_eq!((Form::of(words[0]), shared_index(words)), (Form::Shared, 0xf_ffff));
        assert_eq!(unpack_shared(words, limit), bucket);
    }

    #[test]
    fn the_greatest_numbers_that_have_room_are_packed_and_the_next_are_not() {
        const US: i64 = 1 << 55;
        const PART: u128 = 1 << 44;
        const PER: u128 = 1 << 40;
        let fits = |rate, us, part| lone(&bucket(1, rate, us, part)).is_some();
        assert!(fits((1, 1), US - 1, 0) && fits((1, 1), 1 - US, 0));
        assert!(!fits((1, 1), US, 0) && !fits((1, 1), -US, 0));
        assert!(fits((PART - 1, 1), 7, PART - 2) && !fits((PART + 1, 2), 7, 1));
        assert!(!fits((PART, 1), 7, 1));
        assert!(fits((1, PER - 1), 7, 0) && !fits((1, PER + 1), 7, 0));
        assert!(!fits((1, PER), 7, 0) && fits((1, 10 * (PER - 1)), 7, 0));
        // Where its limit is elsewhere only the part counts.
        let shared = |part| matches!(pack(&bucket(1, (10_u128.pow(15), 1), 7, part), |_| Some(0)), Packed::Shared(_));
        assert!(shared(PART - 1) && !shared(PART));
    }

    #[test]
    fn a_bucket_that_remembers_more_is_encoded() {
        let mut frozen = bucket(1_000_000, (1, 1), 0, 0);
        frozen.penalise(10, 5);
        for index in [None, Some(3)] {
            let Packed::Encoded(bytes) = pack(&frozen, |_| index) else { panic!() };
            assert_eq!(bytes.as_bytes(), state::encode(&frozen).as_bytes());
            assert!(matches!(pack(&Bucket::UNKNOWN, |_| index), Packed::Encoded(_)));
        }
        assert_eq!(Form::of(0), Form::Other);
        assert_eq!(Form::of(8 | 4), Form::Other);
    }
}
