//! Buckets as bytes, from a file or from another server: what is read is written as the
//! same bytes, and then serves every call.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenbucket::state::{self, Encoded};
use tokenbucket::{Bucket, Consume, Mode, Sync, Tokens};

const NOW_US: i64 = 1_800_000_000_000_000;

fuzz_target!(|input: (i64, &[u8])| {
    let (shift_us, bytes) = input;
    if let Ok(bucket) = state::decode(bytes, 0) {
        assert_eq!(state::encode(&bucket).as_bytes(), bytes);
        serve(bucket);
    }
    if let Ok(bucket) = state::decode(bytes, shift_us) {
        assert_eq!(state::decode(state::encode(&bucket).as_bytes(), 0), Ok(bucket));
        serve(bucket);
    }
    if let Ok(message) = state::decode_message(bytes, |_| 0) {
        let mut again = Encoded::EMPTY;
        assert_eq!(again.message(&message.bucket, message.expire_at_ms, message.clock_us), bytes);
        message.bucket.may_expire_at(message.expire_at_ms);
        serve(message.bucket);
    }
});

fn serve(bucket: Bucket) {
    let _ = (bucket.read(NOW_US), bucket.forgotten_us(), bucket.expire_at_ms(77), bucket.remaining(NOW_US));
    let Some(limit) = bucket.limit().copied() else { return };
    for mode in [Mode::Exactly, Mode::UpTo, Mode::Force, Mode::Reserve { max_wait_us: 5_000_000 }] {
        let mut bucket = bucket;
        let before = bucket;
        let Ok((decision, _)) = bucket.consume(&Consume { limit, tokens: Tokens::ONE, mode }, NOW_US) else { continue };
        assert!(decision.allowed <= 1);
        if decision.allowed == 0 {
            // Its limit is the one it has: a denial changes nothing.
            assert_eq!(bucket, before);
        }
        bucket.penalise(NOW_US + 1_000_000, NOW_US);
        assert!(bucket.read(NOW_US).frozen_us >= 1_000_000);
        bucket.refund(Tokens::ONE, NOW_US);
        bucket.sync(&Sync { remaining: Tokens::ZERO, reset_us: Some(NOW_US + 9), limit: None, tolerance: Tokens::ZERO }, NOW_US);
        assert_eq!(state::decode(state::encode(&bucket).as_bytes(), 0), Ok(bucket));
    }
}
