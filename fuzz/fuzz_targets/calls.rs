//! Any calls on one bucket, at any moments: nothing panics, a freeze holds, a denial with
//! the limit that is remembered changes nothing, and whoever waits what it was told is
//! granted.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tokenbucket::{Bucket, Consume, Limit, Mode, Rate, Status, Sync, Tokens, state};

#[derive(Arbitrary, Debug)]
struct Terms {
    capacity: u64,
    tokens: u64,
    per: u64,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Consume { limit: Option<Terms>, tokens: u64, mode: Wanted },
    Penalise { us: u32 },
    Sync { remaining: u64, reset: Option<i32>, limit: Option<(u64, u32)>, tolerance: u64 },
    Refund { tokens: u64 },
    Pass { us: u32, more: u8 },
}

#[derive(Arbitrary, Debug)]
enum Wanted {
    Exactly,
    UpTo,
    Force,
    Reserve(u32),
}

const MAX: u64 = 1_000_000_000_000_000_001;

fn tokens(millionths: u64) -> Tokens {
    Tokens::from_millionths(millionths % MAX).expect("in range")
}

fuzz_target!(|input: (Terms, Vec<Call>)| {
    let (first, calls) = input;
    let limit_of = |terms: &Terms| {
        let rate = Rate::new(u128::from(terms.tokens) + 1, u128::from(terms.per) + 1)?;
        Limit::new(tokens(terms.capacity), rate)
    };
    let Some(mut limit) = limit_of(&first) else { return };
    let (mut bucket, mut now_us) = (Bucket::UNKNOWN, 1_800_000_000_000_000_i64);
    for call in calls.iter().take(64) {
        match call {
            Call::Consume { limit: another, tokens: wanted, mode } => {
                limit = another.as_ref().and_then(limit_of).unwrap_or(limit);
                let wanted_tokens = tokens(*wanted);
                let mode = match mode {
                    Wanted::Exactly => Mode::Exactly,
                    Wanted::UpTo if wanted_tokens < Tokens::ONE => continue,
                    Wanted::UpTo => Mode::UpTo,
                    Wanted::Force => Mode::Force,
                    Wanted::Reserve(ms) => Mode::Reserve { max_wait_us: u64::from(*ms) * 1_000 },
                };
                let call = Consume { limit, tokens: wanted_tokens, mode };
                let before = bucket;
                let Ok((decision, _)) = bucket.consume(&call, now_us) else {
                    assert_eq!(bucket, before);
                    continue;
                };
                let frozen = before.read(now_us).frozen_us > 0;
                assert!(!frozen || mode == Mode::Force || matches!(mode, Mode::Reserve { .. }) || decision.allowed == 0);
                if decision.allowed == 0 && before.limit() == Some(&limit) {
                    assert_eq!(bucket, before, "a denial changed something");
                }
                if decision.allowed == 0
                    && let Some(wait_us) = decision.wait_us
                {
                    let at_us = now_us.saturating_add_unsigned(wait_us);
                    if at_us < state::MAX_CLOCK_US {
                        let mut later = bucket;
                        let (granted, _) = later.consume(&call, at_us).expect("no debt");
                        assert!(granted.allowed > 0, "{granted:?} after {decision:?}");
                        assert!(decision.status != Status::Never);
                    }
                }
            }
            Call::Penalise { us } => {
                let thaw = bucket.read(now_us).frozen_us;
                bucket.penalise(now_us + i64::from(*us), now_us);
                assert!(bucket.read(now_us).frozen_us >= thaw.max(u64::from(*us)));
            }
            Call::Sync { remaining, reset, limit, tolerance } => {
                let thaw = bucket.read(now_us).frozen_us;
                let limit = limit.and_then(|(most, us)| (tokens(most) >= Tokens::ONE).then(|| (tokens(most), u64::from(us))));
                let reset_us = reset.map(|us| now_us + i64::from(us));
                bucket.sync(&Sync { remaining: tokens(*remaining), reset_us, limit, tolerance: tokens(*tolerance) }, now_us);
                assert_eq!(bucket.read(now_us).frozen_us, thaw);
            }
            Call::Refund { tokens: back } => {
                let thaw = bucket.read(now_us).frozen_us;
                bucket.refund(tokens(*back), now_us);
                assert_eq!(bucket.read(now_us).frozen_us, thaw);
            }
            Call::Pass { us, more } => now_us += i64::from(*us) << (more % 20),
        }
        if now_us > state::MAX_CLOCK_US {
            return;
        }
        if bucket != Bucket::UNKNOWN {
            assert_eq!(state::decode(state::encode(&bucket).as_bytes(), 0), Ok(bucket));
        }
    }
});
