//! Bytes as the module and the server write them, and as nobody would: payloads
//! of DUMP and RESTORE, RDB files, and the blobs of TB.STATE, made by hand.

use std::ops::Range;

// ---- the server's envelope

/// The name of the data type, as every payload and RDB has it.
const TYPE_NAME: &str = "tokbucket";

/// The low bits of a type's number are the version of its encoding.
const VERSION_BITS: u32 = 10;

/// What a payload of DUMP ends with: the version of the RDB, and a checksum.
pub(crate) const SEAL: usize = 10;

/// An RDB's or payload's mark of a module's type: a number of 64 bits.
const LONG: u8 = 0x81;
const MODULE_AUX: u8 = 0xf7;

/// The payload of DUMP with the checksum that its bytes call for. `payload` has
/// everything but the checksum.
pub(crate) fn sealed(payload: &[u8]) -> Vec<u8> {
    let mut sealed = payload.to_vec();
    sealed.extend(crc64(payload).to_le_bytes());
    sealed
}

/// CRC-64 as Redis has it (Jones).
fn crc64(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ REFLECTED } else { crc >> 1 })
    })
}

#[test]
fn the_checksum_is_redis_own() {
    assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
}

/// The mark of the type with an encoding version.
pub(crate) fn type_mark(version: u64) -> Vec<u8> {
    let digits = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']);
    let digits: Vec<char> = digits.collect();
    let digit = |c: char| u64::try_from(digits.iter().position(|d| *d == c).unwrap()).unwrap();
    let name = TYPE_NAME.chars().fold(0, |number, c| number << 6 | digit(c));
    [&[LONG][..], &(name << VERSION_BITS | version).to_be_bytes()].concat()
}

/// A payload of RESTORE that holds `state`, whatever that is.
pub(crate) fn payload_of(genuine: &[u8], state: &[u8]) -> Vec<u8> {
    const MODULE_VALUE: u8 = 7;
    const STRING: u8 = 5;
    const END: u8 = 0;
    let len = u16::try_from(state.len()).unwrap();
    let [high, low] = (len | 1 << 14).to_be_bytes(); // a length of 14 bits
    let rdb_version = &genuine[genuine.len() - SEAL..][..2];
    sealed(&[&[MODULE_VALUE], &type_mark(1)[..], &[STRING, high, low], state, &[END], rdb_version].concat())
}

/// Where in an RDB the mark of the type stands before a value or the clock.
pub(crate) fn marks(rdb: &[u8]) -> Vec<usize> {
    let mark = type_mark(1);
    (0..rdb.len()).filter(|at| rdb[*at..].starts_with(&mark)).collect()
}

/// Where in an RDB the module's clock stands: eight bytes, big-endian.
pub(crate) fn clock_in(rdb: &[u8]) -> Range<usize> {
    // The mark, when it was saved (before the keys), an unsigned number of 64 bits.
    let head = [&[MODULE_AUX], &type_mark(1)[..], &[2, 1, 2, LONG]].concat();
    let at = (0..rdb.len()).find(|at| rdb[*at..].starts_with(&head)).expect("a clock in the RDB");
    at + head.len()..at + head.len() + 8
}

/// An RDB whose checksum is not looked at.
pub(crate) fn unsealed(mut rdb: Vec<u8>) -> Vec<u8> {
    let end = rdb.len();
    rdb[end - 8..].fill(0);
    rdb
}

// ---- the module's blobs

/// The bytes of TB.STATE. A number is a byte that says how many follow, and these,
/// the least significant first; where it has a sign, zigzag.
#[derive(Clone)]
pub(crate) struct Blob(Vec<u8>);

impl Blob {
    /// The head of version 1: the sender's clock, and when the key expires, counted
    /// from that.
    pub(crate) fn new(clock_us: i64, ttl_ms: i64) -> Self {
        Self(vec![1]).signed(clock_us).signed(ttl_ms)
    }

    pub(crate) fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(crate) fn number(mut self, number: u128) -> Self {
        let bytes = number.to_le_bytes();
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.0.push(u8::try_from(len).unwrap());
        self.0.extend(&bytes[..len]);
        self
    }

    pub(crate) fn signed(self, number: i64) -> Self {
        self.number(u128::from(((number << 1) ^ (number >> 63)).cast_unsigned()))
    }

    /// A bucket with a limit of `capacity` tokens, `tokens` of which come in every
    /// `per` seconds, that is at 0 `from_clock_us` after the sender's clock.
    pub(crate) fn bucket(self, capacity: u64, tokens: u64, per: u64, from_clock_us: i64) -> Self {
        let limit = self.byte(0).number(u128::from(capacity) * 1_000_000).number(tokens.into()).number(per.into());
        limit.signed(from_clock_us).number(0)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Blob {
    /// What comes before all that is added.
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// The sender's clock in a blob, in microseconds since 1970.
pub(crate) fn clock_of(blob: &[u8]) -> i64 {
    let [version, len, rest @ ..] = blob else { panic!("a blob of {} bytes", blob.len()) };
    assert_eq!(*version, 1);
    let mut zigzag = [0; 8];
    zigzag[..usize::from(*len)].copy_from_slice(&rest[..usize::from(*len)]);
    let zigzag = u64::from_le_bytes(zigzag);
    (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed()
}
