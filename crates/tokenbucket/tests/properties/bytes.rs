//! A bucket as bytes and as words: nothing is lost, and what others forge is refused or
//! is a bucket like any other.

use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::packed::{self, Form, Packed};
use tokenbucket::state::{self, Encoded, MAX_CLOCK_US, MAX_LEN, Malformed, Message};
use tokenbucket::{Bucket, Consume, Decimal, Limit, MAX_FILL_US, Mode, Rate, Sync, Tokens};

use crate::cases;
use crate::histories::{Deed, History, MOST, history, in_floats, limit, log_uniform};
use crate::layout::{Layout, Level, Window, message_bytes};

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Encoded::EMPTY;
    bytes.message(&message.bucket, message.expire_at_ms, message.clock_us).to_vec()
}

/// No moment of a bucket is further from 1970.
const MAX_MOMENT_US: i64 = 1 << 55;

impl Layout {
    /// The same bucket at another time; `None` where a moment would not fit.
    fn shifted(&self, us: i64) -> Option<Self> {
        let shift = |moment: i64| moment.checked_add(us).filter(|us| us.unsigned_abs() <= MAX_MOMENT_US.unsigned_abs());
        let shift_some = |moment: Option<i64>| match moment {
            Some(moment) => shift(moment).map(Some),
            None => Some(None),
        };
        let mut shifted = self.clone();
        match &mut shifted.level {
            Level::Full => {}
            Level::Limited { zero_us, .. } | Level::Empty { zero_us } | Level::Synced { at_us: zero_us, .. } => {
                *zero_us = shift(*zero_us)?;
            }
        }
        if let Level::Limited { zero_us: MAX_MOMENT_US, part: 1.., .. } = shifted.level {
            return None;
        }
        shifted.thaw_us = shift_some(self.thaw_us)?;
        if let Some(window) = &mut shifted.window {
            window.reset_us = shift(window.reset_us)?;
        }
        if let Some((_, until_us)) = &mut shifted.vendor_limit {
            *until_us = shift(*until_us)?;
        }
        Some(shifted)
    }

    /// Whether it is a bucket that can come to be, by the rules of the contract.
    fn is_a_bucket(&self) -> bool {
        let level = match self.level {
            Level::Limited { capacity, tokens, per, part, .. } => {
                let rate = Rate::new(tokens, per).filter(|rate| rate.tokens() == tokens);
                let limit = rate.zip(Tokens::from_millionths(capacity)).and_then(|(rate, capacity)| Limit::new(capacity, rate));
                limit.is_some() && part < tokens
            }
            Level::Full => self.window.is_some() || self.vendor_limit.is_some(),
            Level::Empty { .. } => true,
            Level::Synced { tokens, .. } => tokens <= MOST,
        };
        let frozen = match (&self.level, self.thaw_us) {
            (_, None) => true,
            (Level::Limited { zero_us, .. } | Level::Empty { zero_us }, Some(thaw_us)) => *zero_us >= thaw_us,
            _ => false,
        };
        let window = self.window.is_none_or(|window| window.left <= window.applied && window.applied <= MOST);
        let vendor_limit = self.vendor_limit.is_none_or(|(most, _)| (1_000_000..=MOST).contains(&most));
        level && frozen && window && vendor_limit && self.shifted(0).is_some()
    }
}

/// Whatever bytes say, a bucket made of them serves every call, and what it becomes can
/// be stored and read again.
fn serves(bucket: &Bucket, limit: Limit, now_us: i64) {
    for deed in deeds(bucket, limit, now_us) {
        let mut after = *bucket;
        deed.apply(&mut after, now_us);
        if after != Bucket::UNKNOWN {
            assert_eq!(state::decode(&written(&after), 0), Ok(after), "{deed:?}");
            assert_eq!(unpacked(&after, None), after, "{deed:?}");
            after.expire_at_ms(u64::MAX);
        }
        after.read(now_us);
        after.remaining(now_us);
    }
}

/// Every command with the least, the most and some of what it takes.
fn deeds(bucket: &Bucket, limit: Limit, now_us: i64) -> Vec<Deed> {
    let later = |us| now_us.saturating_add_unsigned(us);
    let mut deeds: Vec<Deed> = [0, 1, MAX_FILL_US].map(|us| Deed::Penalise { end_us: later(us) }).into();
    let limits = [bucket.limit().copied().unwrap_or(limit), limit];
    let modes = [Mode::Exactly, Mode::UpTo, Mode::Force, Mode::Reserve { max_wait_us: 31_622_400_000_000 }];
    for tokens in [Tokens::ZERO, Tokens::from_millionths(1).unwrap(), Tokens::ONE, limit.capacity(), Tokens::MAX] {
        deeds.push(Deed::Refund(tokens));
        for (limit, mode) in limits.into_iter().flat_map(|limit| modes.map(|mode| (limit, mode))) {
            deeds.push(Deed::Consume(Consume { limit, tokens, mode }));
        }
        let limit = (tokens >= Tokens::ONE).then_some((tokens, 3_600_000_000));
        for reset_us in [None, Some(now_us), Some(later(1)), Some(later(MAX_FILL_US))] {
            for tolerance in [Tokens::ZERO, Tokens::MAX] {
                deeds.push(Deed::Sync(Sync { remaining: tokens, reset_us, limit, tolerance }));
            }
        }
    }
    deeds
}

fn unpacked(bucket: &Bucket, index: Option<u32>) -> Bucket {
    match packed::pack(bucket, |_| index) {
        Packed::Shared(words) => {
            assert_eq!(Form::of(words[0]), Form::Shared);
            assert_eq!(Some(packed::shared_index(words)), index);
            packed::unpack_shared(words, *bucket.limit().unwrap())
        }
        Packed::Lone(words) => {
            assert_eq!(Form::of(words[0]), Form::Lone);
            packed::unpack_lone(words).unwrap()
        }
        Packed::Encoded(bytes) => state::decode(bytes.as_bytes(), 0).unwrap(),
    }
}

fn written(bucket: &Bucket) -> Vec<u8> {
    state::encode(bucket).as_bytes().to_vec()
}

/// The buckets of a history, but for those that are as if there were none.
fn buckets(history: &History) -> impl Iterator<Item = Bucket> {
    history.play().map(|event| event.after).filter(|bucket| *bucket != Bucket::UNKNOWN)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_bucket_comes_back_from_its_bytes_and_they_are_those_documented(history in history(30)) {
        for bucket in buckets(&history) {
            let bytes = state::encode(&bucket);
            prop_assert_eq!(state::decode(bytes.as_bytes(), 0), Ok(bucket));
            let layout = Layout::read(bytes.as_bytes());
            prop_assert_eq!(layout.bytes(), bytes.as_bytes());
            prop_assert!(layout.is_a_bucket(), "{layout:?}");
        }
    }

    #[test]
    fn decoding_from_another_origin_shifts_all_that_is_remembered(
        history in history(30),
        (us, back) in (log_uniform(0..=1 << 56), any::<bool>()),
    ) {
        let shift_us = if back { -(us as i64) } else { us as i64 };
        let (bucket, _) = history.end();
        if bucket == Bucket::UNKNOWN {
            return Ok(());
        }
        let bytes = state::encode(&bucket);
        let shifted = state::decode(bytes.as_bytes(), shift_us);
        prop_assert_eq!(shifted.ok().map(|bucket| Layout::of(&bucket)), Layout::of(&bucket).shifted(shift_us));
        if let Ok(shifted) = shifted {
            prop_assert_eq!(state::decode(state::encode(&shifted).as_bytes(), -shift_us), Ok(bucket));
        }
    }

    #[test]
    fn a_message_carries_clock_expiry_and_bucket(
        history in history(30),
        phase in any::<u64>(),
        ahead_us in log_uniform(0..=1 << 40),
    ) {
        for event in history.play().filter(|event| event.after != Bucket::UNKNOWN) {
            let bucket = event.after;
            let message = Message { clock_us: event.now_us, expire_at_ms: bucket.expire_at_ms(phase), bucket };
            let bytes = encode(&message);
            prop_assert!(bytes.len() <= MAX_LEN);
            let read = state::decode_message(&bytes, |clock_us| clock_us - event.now_us);
            prop_assert_eq!(read, Ok(message));
            let Some(relative) = Layout::of(&bucket).shifted(-event.now_us) else { continue };
            prop_assert_eq!(&message_bytes(state::VERSION, event.now_us, message.expire_at_ms, &relative), &bytes);
            // A server whose clock is behind has it in its own time.
            let back_us = -(ahead_us as i64);
            let shifted = state::decode_message(&bytes, |_| back_us);
            prop_assert_eq!(shifted.map(|message| message.bucket), state::decode(state::encode(&bucket).as_bytes(), back_us));
            prop_assert!(shifted.is_err() || shifted.is_ok_and(|shifted| shifted.expire_at_ms == message.expire_at_ms));
        }
    }

    #[test]
    fn every_bucket_comes_back_from_its_words(history in history(30), index in 0..packed::MAX_SHARED) {
        for bucket in buckets(&history) {
            prop_assert_eq!(unpacked(&bucket, None), bucket);
            prop_assert_eq!(unpacked(&bucket, Some(index)), bucket);
        }
    }

    #[test]
    fn a_bucket_that_remembers_only_its_level_comes_back_from_its_parts(history in history(30)) {
        for bucket in buckets(&history) {
            let Layout { level, thaw_us, window, vendor_limit } = Layout::of(&bucket);
            let expected = match (level, thaw_us, window, vendor_limit) {
                (Level::Limited { tokens, zero_us, part, .. }, None, None, None) => {
                    let limit = *bucket.limit().unwrap();
                    prop_assert_eq!(Bucket::from_plain(limit, zero_us, part), Some(bucket));
                    prop_assert!(Bucket::from_plain(limit, zero_us, tokens - 1).is_some());
                    prop_assert_eq!(Bucket::from_plain(limit, zero_us, tokens), None);
                    Some((limit, zero_us, part))
                }
                _ => None,
            };
            prop_assert_eq!(bucket.plain(), expected);
        }
    }

    #[test]
    fn a_bucket_with_an_everyday_limit_takes_four_words_and_two_with_a_shared_one(
        digits in log_uniform(1..=9_999_999_999_999),
        (decimals, seconds) in prop_oneof![
            (0..=17_i32, Just(1_u64)),
            (0..=12_i32, prop_oneof![Just(60_u64), Just(3600), Just(86_400)]),
        ],
        capacity in log_uniform(1..=1_000_000),
        now_us in 0..=MAX_CLOCK_US,
    ) {
        let [tokens, per] = [format!("{digits}e-{decimals}"), seconds.to_string()]
            .map(|text| Decimal::parse(text.as_bytes()).unwrap());
        let limit = Rate::from_decimals(tokens, per).and_then(|rate| Limit::new(Tokens::from_whole(capacity)?, rate));
        let Some(limit) = limit else { return Ok(()) };
        let mut bucket = Bucket::UNKNOWN;
        bucket.consume(&Consume { limit, tokens: Tokens::ONE, mode: Mode::Exactly }, now_us).unwrap();
        prop_assert!(matches!(packed::pack(&bucket, |_| None), Packed::Lone(_)), "{limit:?}");
        prop_assert!(matches!(packed::pack(&bucket, |asked| (*asked == limit).then_some(7)), Packed::Shared(_)), "{limit:?}");
        // A language's own digits of it have room too.
        if let Some(likeness) = in_floats(&limit) {
            let mut bucket = Bucket::UNKNOWN;
            bucket.consume(&Consume { limit: likeness, tokens: Tokens::ONE, mode: Mode::Exactly }, now_us).unwrap();
            prop_assert_eq!(unpacked(&bucket, None), bucket);
        }
    }
}

// ------------------------------------------------------------ hostile bytes

/// Moments at the ends of their range, around 0 and around now.
fn moment() -> BoxedStrategy<i64> {
    let ends =
        prop_oneof![Just(MAX_MOMENT_US), Just(-MAX_MOMENT_US), Just(0), Just(MAX_CLOCK_US), Just(i64::MAX), Just(i64::MIN)];
    let near = (ends, -2..=2_i64).prop_map(|(end, off)| end.saturating_add(off));
    prop_oneof![near, any::<i64>().prop_map(|us| us >> 8), log_uniform(0..=1 << 55).prop_map(|us| us as i64)].boxed()
}

fn forged_tokens() -> BoxedStrategy<u64> {
    prop_oneof![4 => log_uniform(0..=MOST), 1 => Just(MOST), 1 => Just(MOST + 1), 1 => any::<u64>(), 1 => 999_999..=1_000_001_u64]
        .boxed()
}

fn wide() -> BoxedStrategy<u128> {
    let power = |exponent: u32, off: i128| 10_u128.pow(exponent).saturating_add_signed(off);
    prop_oneof![
        log_uniform(0..=u64::MAX).prop_map(u128::from),
        (0..=30_u32, -1..=1_i128).prop_map(move |(exponent, off)| power(exponent, off)),
        any::<u128>(),
    ]
    .boxed()
}

/// Layouts of which about half are buckets.
fn forged_layout() -> BoxedStrategy<Layout> {
    let made_up = (forged_tokens(), wide(), wide());
    let usable = limit().prop_map(|limit| (limit.capacity().millionths(), limit.rate().tokens(), limit.rate().per()));
    let limited = (prop_oneof![1 => made_up, 4 => usable], moment(), any::<u128>(), -1..=1_i128).prop_map(
        |((capacity, tokens, per), zero_us, part, off)| {
            // Mostly a part there can be, with both ends.
            let part = (part % tokens.max(1) + u128::from(off == 1)).saturating_sub(u128::from(off == -1));
            Level::Limited { capacity, tokens, per, zero_us, part }
        },
    );
    let level = prop_oneof![
        4 => limited,
        1 => Just(Level::Full),
        1 => moment().prop_map(|zero_us| Level::Empty { zero_us }),
        1 => (forged_tokens(), moment()).prop_map(|(tokens, at_us)| Level::Synced { tokens, at_us }),
    ];
    let thaw = prop_oneof![2 => Just(None), 1 => moment().prop_map(Some)];
    let window = (forged_tokens(), forged_tokens(), any::<bool>(), moment()).prop_map(|(a, b, ordered, reset_us)| {
        let (left, applied) = if ordered { (a.min(b), a.max(b)) } else { (a, b) };
        Some(Window { left, applied, reset_us })
    });
    let window = prop_oneof![1 => Just(None), 1 => window];
    let vendor_limit = prop_oneof![1 => Just(None), 1 => (forged_tokens(), moment()).prop_map(Some)];
    (level, thaw, window, vendor_limit)
        .prop_map(|(level, thaw_us, window, vendor_limit)| Layout { level, thaw_us, window, vendor_limit })
        .boxed()
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn exactly_what_can_come_to_be_decodes_and_then_serves_every_call(
        layout in forged_layout(),
        limit in limit(),
        now_us in prop_oneof![Just(0), Just(MAX_CLOCK_US), 0..=MAX_CLOCK_US],
    ) {
        let bytes = layout.bytes();
        let bucket = state::decode(&bytes, 0);
        prop_assert_eq!(bucket.is_ok(), layout.is_a_bucket(), "{:?} {:?}", layout, bucket);
        if let Ok(bucket) = bucket {
            prop_assert_eq!(written(&bucket), bytes);
            serves(&bucket, limit, now_us);
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_are_the_bytes_of_another_bucket(
        layout in forged_layout(),
        as_message in any::<bool>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..4),
        limit in limit(),
        now_us in 0..=MAX_CLOCK_US,
    ) {
        let mut bytes = match as_message {
            true => message_bytes(state::VERSION, now_us, now_us / 1000 + 10_000, &layout),
            false => layout.bytes(),
        };
        for (place, byte, kind) in damage {
            let place = place.index(bytes.len() + 1);
            match kind {
                0 => bytes.truncate(place),
                1 => bytes.insert(place, byte),
                2 => drop((place < bytes.len()).then(|| bytes.remove(place))),
                _ => bytes.iter_mut().skip(place).take(1).for_each(|hit| *hit ^= byte.max(1)),
            }
        }
        if as_message {
            match state::decode_message(&bytes, |_| 0) {
                Ok(message) => {
                    prop_assert_eq!(encode(&message), bytes);
                    prop_assert!((0..=MAX_CLOCK_US).contains(&message.clock_us) && message.expire_at_ms >= 0);
                    serves(&message.bucket, limit, now_us);
                }
                Err(Malformed::Version(version)) => prop_assert!(version != state::VERSION && bytes[0] == version),
                Err(Malformed::Damaged) => {}
            }
        } else if let Ok(bucket) = state::decode(&bytes, 0) {
            prop_assert_eq!(written(&bucket), bytes);
            serves(&bucket, limit, now_us);
        }
    }

    #[test]
    fn random_bytes_are_refused_or_are_the_bytes_of_a_bucket(bytes in vec(any::<u8>(), 0..200), version in any::<bool>()) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut().filter(|_| version) {
            *first = state::VERSION;
        }
        if let Ok(bucket) = state::decode(&bytes, 0) {
            prop_assert_eq!(written(&bucket), bytes.clone());
        }
        if let Ok(message) = state::decode_message(&bytes, |clock_us| -clock_us) {
            prop_assert!(message.clock_us >= 0 && message.expire_at_ms >= 0);
        }
    }

    #[test]
    fn there_is_only_one_way_to_write_a_bucket(layout in forged_layout(), which in any::<prop::sample::Index>()) {
        let bytes = layout.bytes();
        // Each number in turn with a byte more than it needs.
        let mut starts = vec![];
        let mut place = 1;
        while place < bytes.len() {
            starts.push(place);
            place += 1 + usize::from(bytes[place]);
        }
        if starts.is_empty() {
            return Ok(());
        }
        let start = starts[which.index(starts.len())];
        let mut padded = bytes.clone();
        padded[start] += 1;
        padded.insert(start + usize::from(padded[start]), 0);
        prop_assert_eq!(state::decode(&padded, 0), Err(Malformed::Damaged));
    }
}

#[test]
fn the_longest_bucket_fits() {
    let rates = [(9_999_999_999_971 * 10_u128.pow(15), 9_999_999_999_973), (9_999_999_999_999, 3 * 10_u128.pow(28) + 1)];
    let mut most = 0;
    for (tokens, per) in rates {
        let rate = Rate::new(tokens, per).unwrap();
        let drops = rate.tokens().saturating_mul(u128::from(MAX_FILL_US));
        let capacity = (drops / rate.per()).min(MOST.into()) as u64;
        for zero_us in [MAX_MOMENT_US - 1, -MAX_MOMENT_US] {
            let layout = Layout {
                level: Level::Limited { capacity, tokens: rate.tokens(), per: rate.per(), zero_us, part: rate.tokens() - 1 },
                thaw_us: Some(-MAX_MOMENT_US),
                window: Some(Window { left: MOST, applied: MOST, reset_us: -MAX_MOMENT_US }),
                vendor_limit: Some((MOST, -MAX_MOMENT_US)),
            };
            let bucket = state::decode(&layout.bytes(), 0).unwrap();
            let message = Message { clock_us: MAX_CLOCK_US, expire_at_ms: i64::MAX, bucket };
            let bytes = encode(&message);
            assert_eq!(state::decode_message(&bytes, |_| 0), Ok(message));
            most = most.max(bytes.len());
        }
    }
    // Not with much to spare, or this is no longer the longest.
    assert!((MAX_LEN - 16..=MAX_LEN).contains(&most), "{most}");
}

#[test]
fn a_message_of_another_version_says_so() {
    let mut bucket = Bucket::UNKNOWN;
    bucket.penalise(1_000_000, 0);
    let bytes = encode(&Message { clock_us: 0, expire_at_ms: 1, bucket });
    assert_eq!(bytes[0], 1);
    for version in [0, 2, 255] {
        let other = [&[version], &bytes[1..]].concat();
        assert_eq!(state::decode_message(&other, |_| 0), Err(Malformed::Version(version)));
    }
    assert_eq!(state::decode_message(&[], |_| 0), Err(Malformed::Damaged));
    assert_eq!(state::decode(&[], 0), Err(Malformed::Damaged));
}

#[test]
fn a_part_is_less_than_the_whole_microsecond() {
    // A token of capacity, 3 tokens every 7 seconds, at 0 some thirds after 1970.
    let thirds = |part: u8| [0, 3, 0x40, 0x42, 0x0f, 1, 3, 1, 7, 0, 1, part];
    assert!(state::decode(&thirds(2), 0).is_ok());
    assert_eq!(state::decode(&thirds(3), 0), Err(Malformed::Damaged));
}
