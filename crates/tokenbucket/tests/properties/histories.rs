//! Random lives of a bucket.
//!
//! Numbers are drawn log-uniformly from the whole of their ranges, or from the few
//! that people use; but most faults sit where two numbers meet, so a step may also
//! say "what is there, and a millionth more" or "a microsecond before the thaw", and
//! what that is is only known when its turn comes.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::{
    Bucket, Consume, DebtTooLong, Decimal, Decision, Effect, Limit, MAX_FILL_US, Mode, Rate, Sync, Synced, Tokens,
};

use crate::layout::{Layout, Level};

pub(crate) const MOST: u64 = 1_000_000_000_000_000_000;
const YEAR_US: u64 = 31_622_400_000_000;

/// The latest moment at which a history does something: the latest that a clock shows.
const LAST_US: i64 = tokenbucket::state::MAX_CLOCK_US;

// ------------------------------------------------------------------ numbers

/// From `range`, each order of magnitude as likely as the next.
pub(crate) fn log_uniform(range: RangeInclusive<u64>) -> impl Strategy<Value = u64> + Clone {
    let (low, high) = range.into_inner();
    let bits = |n: u64| 64 - n.leading_zeros();
    (bits(low)..=bits(high), any::<u64>()).prop_map(move |(bits, random)| {
        let (least, most) = if bits == 0 { (0, 0) } else { (1 << (bits - 1), u64::MAX >> (64 - bits)) };
        let (least, most) = (least.max(low), most.min(high));
        least + u64::try_from(u128::from(random) % (u128::from(most - least) + 1)).unwrap()
    })
}

/// `digits` as a number from 10^`magnitude` on, below ten times that.
fn of_magnitude(magnitude: i32, digits: u64) -> Decimal {
    Decimal::parse(format!("{digits}e{}", magnitude - digits.ilog10() as i32).as_bytes()).unwrap()
}

/// Any rate there can be: up to 13 digits on both sides, which are kept exactly. The
/// slowest are too slow for the least capacity; what is beyond all ranges becomes the
/// fastest.
pub(crate) fn any_rate() -> BoxedStrategy<Rate> {
    let digits = || log_uniform(1..=9_999_999_999_999);
    let per = prop_oneof![
        9 => (-3..=6_i32, digits()).prop_map(|(magnitude, digits)| (magnitude, of_magnitude(magnitude, digits))),
        1 => (10_000_000..=31_622_400_u64).prop_map(|seconds| (7, of_magnitude(7, seconds))),
    ];
    (per, -15..=14_i32, digits())
        .prop_map(|((per_magnitude, per), magnitude, digits)| {
            let tokens = of_magnitude((magnitude + per_magnitude).min(11), digits);
            Rate::from_decimals(tokens, per).unwrap_or(Rate::new(1_000_000_000_000_000, 1).unwrap())
        })
        .boxed()
}

/// Any limit there can be.
pub(crate) fn any_limit() -> BoxedStrategy<Limit> {
    (any_rate(), log_uniform(1..=MOST)).prop_map(|(rate, capacity)| filled_in_time(capacity, rate)).boxed()
}

/// The limit, with as much of the capacity as is filled within 100 years; where that is
/// nothing, the slowest limit there is.
fn filled_in_time(capacity: u64, rate: Rate) -> Limit {
    let most = rate.tokens().saturating_mul(MAX_FILL_US.into()) / rate.per();
    let capacity = capacity.min(u64::try_from(most).unwrap_or(u64::MAX));
    let slowest = || Limit::new(Tokens::ONE, Rate::new(1, 3_155_760_000).unwrap());
    Tokens::from_millionths(capacity).and_then(|capacity| Limit::new(capacity, rate)).or_else(slowest).unwrap()
}

/// A limit as people write them.
pub(crate) fn plain_limit() -> BoxedStrategy<Limit> {
    let capacity = prop_oneof![4 => 1..=20_u64, 1 => Just(100), 1 => Just(5000), 1 => Just(1_000_000)];
    let part = prop_oneof![4 => Just(0_u64), 1 => Just(500_000), 1 => 1..1_000_000_u64];
    let tokens = prop_oneof![Just(1_u128), 1..=30_u128, Just(100), Just(5000), Just(10_000_000)];
    let per =
        prop_oneof![3 => Just(1_u128), 2 => 2..=9_u128, 1 => Just(60), 1 => Just(3600), 1 => Just(86400), 1 => Just(2_592_000)];
    (capacity, part, tokens, per)
        .prop_map(|(capacity, part, tokens, per)| filled_in_time(capacity * 1_000_000 + part, Rate::new(tokens, per).unwrap()))
        .boxed()
}

pub(crate) fn limit() -> BoxedStrategy<Limit> {
    prop_oneof![plain_limit(), any_limit()].boxed()
}

/// The limit as a language writes it that divides first: it differs by some 1e-16,
/// or by 1e-13 where its digits are cut.
pub(crate) fn in_floats(limit: &Limit) -> Option<Limit> {
    let per_second = limit.rate().tokens() as f64 / limit.rate().per() as f64;
    let rate = Rate::from_decimals(Decimal::parse(format!("{per_second:e}").as_bytes())?, Decimal::ONE)?;
    Limit::new(limit.capacity(), rate)
}

/// The limit with a millionth more of capacity, which for most is the same.
fn a_hair_wider(limit: &Limit) -> Option<Limit> {
    Limit::new(Tokens::from_millionths(limit.capacity().millionths() + 1)?, limit.rate())
}

// -------------------------------------------------------------------- steps

/// A number of tokens, in terms of the bucket that it meets; `off` is in millionths.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Whole(u64),
    Millionths(u64),
    /// Sixteenths of the capacity.
    Part {
        sixteenths: u64,
        off: i64,
    },
    /// The level, or what it lacks.
    Level {
        off: i64,
    },
    WindowLeft {
        off: i64,
    },
    VendorLimit {
        off: i64,
    },
}

/// A stretch of time, in terms of the bucket that it meets; `off` is in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Micros(u64),
    /// Sixteenths of the time to fill.
    Part {
        sixteenths: u64,
        off: i64,
    },
    /// To a moment that means something: told to a caller, or an end of something.
    Until {
        which: usize,
        off: i64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Exactly,
    UpTo,
    Force,
    Reserve(Span),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Consume { limit: usize, amount: Amount, way: Way },
    Penalise(Span),
    Sync { remaining: Amount, reset: Option<Span>, limit: Option<(Amount, u64)>, tolerance: Amount },
    Refund(Amount),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) pause: Span,
    pub(crate) order: Order,
}

/// What happens to one bucket.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) limits: Vec<Limit>,
    pub(crate) start_us: i64,
    pub(crate) steps: Vec<Step>,
}

fn off() -> BoxedStrategy<i64> {
    prop_oneof![2 => Just(0_i64), 1 => Just(1), 1 => Just(-1)].boxed()
}

/// About a second before it: a window's last second is another matter.
fn near_a_second() -> BoxedStrategy<i64> {
    (-1_000_001..=-999_999_i64).boxed()
}

pub(crate) fn amount() -> BoxedStrategy<Amount> {
    prop_oneof![
        2 => Just(Amount::Whole(1)),
        1 => Just(Amount::Whole(0)),
        1 => log_uniform(0..=1_000_000_000_000).prop_map(Amount::Whole),
        1 => log_uniform(0..=MOST).prop_map(Amount::Millionths),
        3 => (0..=20_u64, off()).prop_map(|(sixteenths, off)| Amount::Part { sixteenths, off }),
        3 => off().prop_map(|off| Amount::Level { off }),
        1 => off().prop_map(|off| Amount::WindowLeft { off }),
        1 => off().prop_map(|off| Amount::VendorLimit { off }),
    ]
    .boxed()
}

pub(crate) fn span() -> BoxedStrategy<Span> {
    prop_oneof![
        2 => Just(Span::Micros(0)),
        2 => log_uniform(0..=MAX_FILL_US).prop_map(Span::Micros),
        3 => (0..=20_u64, off()).prop_map(|(sixteenths, off)| Span::Part { sixteenths, off }),
        3 => (0..8_usize, prop_oneof![3 => off(), 1 => near_a_second()]).prop_map(|(which, off)| Span::Until { which, off }),
    ]
    .boxed()
}

fn order() -> BoxedStrategy<Order> {
    let way = prop_oneof![
        5 => Just(Way::Exactly),
        2 => Just(Way::UpTo),
        1 => Just(Way::Force),
        3 => span().prop_map(Way::Reserve),
    ];
    let tolerance = prop_oneof![2 => Just(Amount::Whole(0)), 1 => amount()];
    let vendor_limit = (amount(), log_uniform(1_000_000..=YEAR_US)).boxed();
    prop_oneof![
        10 => (0..3_usize, amount(), way).prop_map(|(limit, amount, way)| Order::Consume { limit, amount, way }),
        2 => span().prop_map(Order::Penalise),
        4 => (amount(), option(span()), option(vendor_limit), tolerance)
            .prop_map(|(remaining, reset, limit, tolerance)| Order::Sync { remaining, reset, limit, tolerance }),
        2 => amount().prop_map(Order::Refund),
    ]
    .boxed()
}

pub(crate) fn option<T: Clone + Debug + 'static>(inner: BoxedStrategy<T>) -> BoxedStrategy<Option<T>> {
    prop_oneof![Just(None), inner.prop_map(Some)].boxed()
}

pub(crate) fn step() -> BoxedStrategy<Step> {
    (span(), order()).prop_map(|(pause, order)| Step { pause, order }).boxed()
}

/// One limit, or up to three that flap, one of them perhaps another's likeness.
pub(crate) fn limits() -> BoxedStrategy<Vec<Limit>> {
    prop_oneof![
        2 => vec(limit(), 1),
        1 => vec(limit(), 2..=3),
        1 => (vec(limit(), 1..=2), any::<bool>()).prop_map(|(mut limits, wider)| {
            limits.extend(if wider { a_hair_wider(&limits[0]) } else { in_floats(&limits[0]) });
            limits
        }),
    ]
    .boxed()
}

pub(crate) fn start_us() -> BoxedStrategy<i64> {
    prop_oneof![
        3 => 1_700_000_000_000_000..1_800_000_000_000_000_i64,
        1 => log_uniform(0..=1 << 53).prop_map(|us| us as i64),
        1 => Just(LAST_US),
    ]
    .boxed()
}

/// A life of up to `steps` steps.
pub(crate) fn history(steps: usize) -> BoxedStrategy<History> {
    (limits(), start_us(), vec(step(), 1..=steps))
        .prop_map(|(limits, start_us, steps)| History { limits, start_us, steps })
        .boxed()
}

// ------------------------------------------------------------------ playing

/// What a step came to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    Consume(Consume),
    Penalise { end_us: i64 },
    Sync(Sync),
    Refund(Tokens),
}

/// What the bucket answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Consumed(Result<(Decision, Effect), DebtTooLong>),
    Penalised(u64, Effect),
    Synced(Synced),
    Refunded(Effect),
}

impl Deed {
    pub(crate) fn apply(&self, bucket: &mut Bucket, now_us: i64) -> Outcome {
        match self {
            Self::Consume(call) => Outcome::Consumed(bucket.consume(call, now_us)),
            Self::Penalise { end_us } => {
                let (us, effect) = bucket.penalise(*end_us, now_us);
                Outcome::Penalised(us, effect)
            }
            Self::Sync(said) => Outcome::Synced(bucket.sync(said, now_us)),
            Self::Refund(tokens) => Outcome::Refunded(bucket.refund(*tokens, now_us)),
        }
    }
}

impl Outcome {
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Self::Consumed(Ok((_, effect))) | Self::Penalised(_, effect) | Self::Refunded(effect) => *effect,
            Self::Synced(Synced { effect, .. }) => *effect,
            Self::Consumed(Err(DebtTooLong)) => Effect::Unchanged,
        }
    }

    /// The decision on a call for tokens.
    pub(crate) fn decision(&self) -> Option<Decision> {
        match self {
            Self::Consumed(Ok((decision, _))) => Some(*decision),
            _ => None,
        }
    }
}

/// One moment of a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) before: Bucket,
    pub(crate) now_us: i64,
    pub(crate) deed: Deed,
    pub(crate) outcome: Outcome,
    pub(crate) after: Bucket,
}

/// Plays a history, step by step.
pub(crate) struct Player<'h> {
    history: &'h History,
    steps: std::slice::Iter<'h, Step>,
    pub(crate) bucket: Bucket,
    pub(crate) now_us: i64,
    told_us: i64,
}

impl History {
    pub(crate) fn play(&self) -> Player<'_> {
        let (steps, now_us) = (self.steps.iter(), self.start_us);
        Player { history: self, steps, bucket: Bucket::UNKNOWN, now_us, told_us: 0 }
    }

    /// How the bucket is in the end, and when that is.
    pub(crate) fn end(&self) -> (Bucket, i64) {
        let mut player = self.play();
        player.by_ref().for_each(drop);
        (player.bucket, player.now_us)
    }

    /// The limit that a call of the history names.
    pub(crate) fn limit(&self, which: usize) -> Limit {
        self.limits[which % self.limits.len()]
    }
}

impl Iterator for Player<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let step = self.steps.next()?;
        self.wait(step.pause);
        let deed = self.deed(step.order);
        Some(self.act(deed))
    }
}

impl Player<'_> {
    pub(crate) fn wait(&mut self, pause: Span) {
        let pause = self.span_us(pause);
        self.now_us = self.now_us.saturating_add_unsigned(pause).min(LAST_US.max(self.now_us));
    }

    pub(crate) fn act(&mut self, deed: Deed) -> Event {
        let (before, now_us) = (self.bucket, self.now_us);
        let outcome = deed.apply(&mut self.bucket, now_us);
        let told_us = match outcome {
            Outcome::Consumed(Ok((Decision { wait_us, .. }, _))) => wait_us,
            Outcome::Penalised(us, _) => Some(us),
            _ => None,
        };
        self.told_us = told_us.map_or(self.told_us, |us| now_us.saturating_add_unsigned(us));
        Event { before, now_us, deed, outcome, after: self.bucket }
    }

    pub(crate) fn deed(&self, order: Order) -> Deed {
        match order {
            Order::Consume { limit, amount, way } => {
                let limit = self.history.limit(limit);
                let tokens = self.tokens(amount, limit.capacity().millionths());
                let (tokens, mode) = match way {
                    Way::Exactly => (tokens, Mode::Exactly),
                    // What the command line promises: whole tokens, one or more.
                    Way::UpTo => (Tokens::from_whole(tokens.whole().max(1)).unwrap(), Mode::UpTo),
                    Way::Force => (tokens, Mode::Force),
                    Way::Reserve(span) => (tokens, Mode::Reserve { max_wait_us: self.span_us(span).min(YEAR_US) }),
                };
                Deed::Consume(Consume { limit, tokens, mode })
            }
            Order::Penalise(span) => Deed::Penalise { end_us: self.now_us.saturating_add_unsigned(self.span_us(span)) },
            Order::Sync { remaining, reset, limit, tolerance } => {
                let capacity = self.history.limit(0).capacity().millionths();
                Deed::Sync(Sync {
                    remaining: self.tokens(remaining, capacity),
                    reset_us: reset.map(|span| self.now_us.saturating_add_unsigned(self.span_us(span))),
                    limit: limit.map(|(most, ttl_us)| (self.tokens(most, capacity).max(Tokens::ONE), ttl_us)),
                    tolerance: self.tokens(tolerance, capacity),
                })
            }
            Order::Refund(amount) => Deed::Refund(self.tokens(amount, self.history.limit(0).capacity().millionths())),
        }
    }

    fn tokens(&self, amount: Amount, capacity: u64) -> Tokens {
        let Layout { window, vendor_limit, .. } = Layout::of(&self.bucket);
        let (millionths, off) = match amount {
            Amount::Whole(whole) => (whole * 1_000_000, 0),
            Amount::Millionths(millionths) => (millionths, 0),
            Amount::Part { sixteenths, off } => {
                (u128::from(capacity) as u64 / 16 * sixteenths + capacity % 16 * sixteenths / 16, off)
            }
            Amount::Level { off } => {
                let level = self.bucket.read(self.now_us).limited.map_or(capacity.into(), |read| read.level_millionths);
                (u64::try_from(level.unsigned_abs()).unwrap_or(u64::MAX), off)
            }
            Amount::WindowLeft { off } => (window.map_or(capacity, |window| window.left), off),
            Amount::VendorLimit { off } => (vendor_limit.map_or(capacity, |(most, _)| most), off),
        };
        Tokens::from_millionths(millionths.saturating_add_signed(off).min(MOST)).unwrap()
    }

    fn span_us(&self, span: Span) -> u64 {
        match span {
            Span::Micros(us) => us,
            Span::Part { sixteenths, off } => {
                let limit = self.bucket.limit().copied().unwrap_or(self.history.limit(0));
                (limit.fill_us() / 16 * sixteenths).saturating_add_signed(off).min(MAX_FILL_US)
            }
            Span::Until { which, off } => {
                let Layout { level, thaw_us, window, vendor_limit } = Layout::of(&self.bucket);
                let zero_us = match level {
                    Level::Limited { zero_us, .. } | Level::Empty { zero_us } | Level::Synced { at_us: zero_us, .. } => zero_us,
                    Level::Full => 0,
                };
                let full_us = self.bucket.read(self.now_us).limited.map(|read| self.now_us.saturating_add_unsigned(read.full_us));
                let ends = [Some(self.told_us), Some(zero_us), full_us, thaw_us, window.map(|window| window.reset_us)];
                let ends = ends.into_iter().chain([vendor_limit.map(|(_, until_us)| until_us)]);
                let ahead: Vec<i64> = ends.flatten().filter(|end_us| *end_us > self.now_us).collect();
                let end_us = ahead.get(which % ahead.len().max(1)).copied().unwrap_or(self.now_us);
                end_us.abs_diff(self.now_us).saturating_add_signed(off).min(MAX_FILL_US)
            }
        }
    }
}
