//! A bucket as bytes: one encoding for RDB, AOF and replication.
//!
//! Version 1. A number is a byte that says how many follow, and so many, the least
//! significant first; moments are zigzag and counted from an origin: 0 in an RDB,
//! the sender's clock in a message, which makes them short, and shifting a bucket in
//! time a matter of decoding it from another origin. There is one encoding for
//! every bucket: what decodes encodes to the same bytes.
//!
//! ```text
//! state:   kind-and-parts  [capacity tokens per zero.us zero.part]   limited
//!                          [zero.us]                                 bare, empty
//!                          [tokens at.us]                            bare, synced
//!                          [thaw.us] [left applied reset.us] [tokens until.us]
//! message: version  clock.us  expire-at.ms from the clock  state from the clock
//! ```
//!
//! Old bytes are read for ever; a change of layout is a new version.

use crate::bucket::{Bare, BareLevel, Bucket, Limited, Vendor, VendorLimit, Window};
use crate::limit::{Limit, Moment, Rate, Tokens};

/// The version that is written.
pub const VERSION: u8 = 1;

/// Moments are within 2^55 µs (1141 years) of 1970: far beyond any that a clock
/// up to [`MAX_CLOCK_US`] leads to, and near enough to count with.
const MAX_MOMENT_US: u64 = 1 << 55;

/// The latest reading of a clock, in microseconds since 1970 (the year 2540).
pub const MAX_CLOCK_US: i64 = 1 << 54;

const KIND: u8 = 0b0000_0011;
const LIMITED: u8 = 0;
const BARE_FULL: u8 = 1;
const BARE_EMPTY: u8 = 2;
const BARE_SYNCED: u8 = 3;
const THAW: u8 = 0b0000_0100;
const WINDOW: u8 = 0b0000_1000;
const VENDOR_LIMIT: u8 = 0b0001_0000;

/// No encoding is longer, in bytes.
pub const MAX_LEN: usize = 136;

/// Room for [`MAX_LEN`] and for writing all bytes of the last number at once.
const ROOM: usize = MAX_LEN + 24;

/// Bytes that are not a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Written by a version that this one does not know.
    Version(u8),
    /// Cut short, too long, or values that no bucket has.
    Damaged,
}

/// A bucket's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; ROOM],
    len: usize,
}

impl Encoded {
    /// No bytes yet.
    pub const EMPTY: Self = Self { bytes: [0; ROOM], len: 0 };

    /// The bytes of a [`Message`] with these parts. (Written where they are: to return
    /// them would copy them.)
    #[inline]
    pub fn message(&mut self, bucket: &Bucket, expire_at_ms: i64, clock_us: i64) -> &[u8] {
        self.len = 0;
        self.byte(VERSION);
        self.signed(clock_us);
        self.signed(expire_at_ms.saturating_sub(clock_us / 1000));
        self.bucket(bucket, clock_us);
        self.as_bytes()
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// A bucket on its way to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's clock at the change.
    pub clock_us: i64,
    /// When the key expires: Unix time in milliseconds.
    pub expire_at_ms: i64,
    /// The bucket after the change.
    pub bucket: Bucket,
}

/// The bytes of a bucket, moments counted from 1970.
pub fn encode(bucket: &Bucket) -> Encoded {
    let mut bytes = Encoded::EMPTY;
    bytes.bucket(bucket, 0);
    bytes
}

/// The bucket in `bytes`, all its moments `shift_us` later than they were written.
///
/// # Errors
/// [`Malformed`] for anything that [`encode`] does not write.
pub fn decode(bytes: &[u8], shift_us: i64) -> Result<Bucket, Malformed> {
    let mut reader = Reader { rest: bytes };
    let bucket = reader.bucket(shift_us)?;
    reader.finish(bucket)
}

/// The effect in `bytes`. `shift` says by how many microseconds the bucket's
/// moments move, given the sender's clock.
///
/// # Errors
/// [`Malformed`] for anything that [`Encoded::message`] does not write.
pub fn decode_message(bytes: &[u8], shift: impl FnOnce(i64) -> i64) -> Result<Message, Malformed> {
    let mut reader = Reader { rest: bytes };
    match reader.byte()? {
        VERSION => {}
        version => return Err(Malformed::Version(version)),
    }
    let clock_us = reader.clock()?;
    let expire_at_ms = reader.signed()?.checked_add(clock_us / 1000).ok_or(Malformed::Damaged)?;
    require(expire_at_ms >= 0)?;
    let shift_us = shift(clock_us);
    let bucket = reader.bucket(clock_us.saturating_add(shift_us))?;
    reader.finish(Message { clock_us, expire_at_ms, bucket })
}

// ------------------------------------------------------------------- writing

impl Encoded {
    #[inline]
    fn bucket(&mut self, bucket: &Bucket, origin_us: i64) {
        let moment = |us: i64| us.saturating_sub(origin_us);
        let Vendor { thaw_us, window, limit: vendor_limit } = *bucket.vendor();
        let kind = match bucket {
            Bucket::Limited(_) => LIMITED,
            Bucket::Bare(Bare { level: BareLevel::Full, .. }) => BARE_FULL,
            Bucket::Bare(Bare { level: BareLevel::Empty { .. }, .. }) => BARE_EMPTY,
            Bucket::Bare(Bare { level: BareLevel::Synced { .. }, .. }) => BARE_SYNCED,
        };
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        self.byte(
            kind | flag(thaw_us.is_some(), THAW) | flag(window.is_some(), WINDOW) | flag(vendor_limit.is_some(), VENDOR_LIMIT),
        );
        match bucket {
            Bucket::Limited(Limited { limit, zero, .. }) => {
                self.tokens(limit.capacity());
                self.number(limit.rate().tokens());
                self.number(limit.rate().per());
                self.signed(moment(zero.us));
                self.number(zero.part);
            }
            Bucket::Bare(Bare { level: BareLevel::Full, .. }) => {}
            Bucket::Bare(Bare { level: BareLevel::Empty { zero_us }, .. }) => self.signed(moment(*zero_us)),
            Bucket::Bare(Bare { level: BareLevel::Synced { tokens, at_us }, .. }) => {
                self.tokens(*tokens);
                self.signed(moment(*at_us));
            }
        }
        if let Some(thaw_us) = thaw_us {
            self.signed(moment(thaw_us));
        }
        if let Some(Window { left, applied, reset_us }) = window {
            self.tokens(left);
            self.tokens(applied);
            self.signed(moment(reset_us));
        }
        if let Some(VendorLimit { tokens, until_us }) = vendor_limit {
            self.tokens(tokens);
            self.signed(moment(until_us));
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        // The longest bucket fits (a test says so), so nothing is ever cut off.
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    #[inline]
    fn tokens(&mut self, tokens: Tokens) {
        self.number(tokens.millionths().into());
    }

    /// Zigzag: numbers near 0 are short, whatever their sign.
    #[inline]
    fn signed(&mut self, number: i64) {
        self.number(((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()).into());
    }

    /// How many bytes follow, and these. All that there is room for are written, in one
    /// store; what is too many is written over. No number is above 2^120.
    #[inline]
    fn number(&mut self, number: u128) {
        let len = match u64::try_from(number) {
            Ok(number) => (u64::BITS - number.leading_zeros()).div_ceil(8),
            Err(_) => (u128::BITS - number.leading_zeros()).div_ceil(8),
        };
        if let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            *place = (number << 8 | u128::from(len)).to_le_bytes();
            self.len += 1 + len as usize;
        }
    }
}

// ------------------------------------------------------------------- reading

struct Reader<'b> {
    rest: &'b [u8],
}

impl Reader<'_> {
    fn finish<T>(self, value: T) -> Result<T, Malformed> {
        if self.rest.is_empty() { Ok(value) } else { Err(Malformed::Damaged) }
    }

    fn bucket(&mut self, origin_us: i64) -> Result<Bucket, Malformed> {
        let head = self.byte()?;
        if head & !(KIND | THAW | WINDOW | VENDOR_LIMIT) != 0 {
            return Err(Malformed::Damaged);
        }
        let vendor = Vendor::default();
        let mut bucket = match head & KIND {
            LIMITED => {
                let limit = self.limit()?;
                let zero = Moment { us: self.moment(origin_us)?, part: self.wide()? };
                require(zero.part < limit.rate().tokens())?;
                // So that no change of rate rounds it up to a moment that is out of range.
                require(zero <= Moment::at(MAX_MOMENT_US.cast_signed()))?;
                Bucket::Limited(Limited { limit, zero, vendor })
            }
            BARE_FULL => Bucket::Bare(Bare { level: BareLevel::Full, vendor }),
            BARE_EMPTY => Bucket::Bare(Bare { level: BareLevel::Empty { zero_us: self.moment(origin_us)? }, vendor }),
            _ => {
                Bucket::Bare(Bare { level: BareLevel::Synced { tokens: self.tokens()?, at_us: self.moment(origin_us)? }, vendor })
            }
        };
        let vendor = self.vendor(head, origin_us)?;
        if let Some(thaw_us) = vendor.thaw_us {
            // While frozen the zero moment is never before the thaw.
            require(match &bucket {
                Bucket::Limited(bucket) => bucket.zero >= Moment::at(thaw_us),
                Bucket::Bare(bucket) => matches!(bucket.level, BareLevel::Empty { zero_us } if zero_us >= thaw_us),
            })?;
        }
        match &mut bucket {
            Bucket::Limited(bucket) => bucket.vendor = vendor,
            Bucket::Bare(bucket) => {
                require(bucket.level != BareLevel::Full || !vendor.is_empty())?; // nothing is not stored
                bucket.vendor = vendor;
            }
        }
        Ok(bucket)
    }

    fn limit(&mut self) -> Result<Limit, Malformed> {
        let capacity = self.tokens()?;
        let (tokens, per) = (self.wide()?, self.wide()?);
        let rate = Rate::new(tokens, per).ok_or(Malformed::Damaged)?;
        require(rate.tokens() == tokens)?; // in lowest terms
        Limit::new(capacity, rate).ok_or(Malformed::Damaged)
    }

    fn vendor(&mut self, head: u8, origin_us: i64) -> Result<Vendor, Malformed> {
        let mut vendor = Vendor::default();
        if head & THAW != 0 {
            vendor.thaw_us = Some(self.moment(origin_us)?);
        }
        if head & WINDOW != 0 {
            let window = Window { left: self.tokens()?, applied: self.tokens()?, reset_us: self.moment(origin_us)? };
            require(window.left <= window.applied)?;
            vendor.window = Some(window);
        }
        if head & VENDOR_LIMIT != 0 {
            let limit = VendorLimit { tokens: self.tokens()?, until_us: self.moment(origin_us)? };
            require(limit.tokens >= Tokens::ONE)?;
            vendor.limit = Some(limit);
        }
        Ok(vendor)
    }

    fn moment(&mut self, origin_us: i64) -> Result<i64, Malformed> {
        let us = self.signed()?.checked_add(origin_us).ok_or(Malformed::Damaged)?;
        require(us.unsigned_abs() <= MAX_MOMENT_US)?;
        Ok(us)
    }

    fn clock(&mut self) -> Result<i64, Malformed> {
        let us = self.signed()?;
        require((0..=MAX_CLOCK_US).contains(&us))?;
        Ok(us)
    }

    fn tokens(&mut self) -> Result<Tokens, Malformed> {
        Tokens::from_millionths(self.narrow()?).ok_or(Malformed::Damaged)
    }

    fn signed(&mut self) -> Result<i64, Malformed> {
        let zigzag = self.narrow()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    fn narrow(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.wide()?).map_err(|_| Malformed::Damaged)
    }

    #[inline]
    fn wide(&mut self) -> Result<u128, Malformed> {
        let len = usize::from(self.byte()?);
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Damaged)?;
        self.rest = rest;
        let mut number = [0; size_of::<u128>()];
        number.get_mut(..len).ok_or(Malformed::Damaged)?.copy_from_slice(bytes);
        require(bytes.last() != Some(&0))?; // no longer than need be
        Ok(u128::from_le_bytes(number))
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.rest.split_first().ok_or(Malformed::Damaged)?;
        self.rest = rest;
        Ok(*byte)
    }
}

fn require(holds: bool) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed::Damaged) }
}
