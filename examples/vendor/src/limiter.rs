//! The vendor's own limiter: a bucket, a fixed window, or both, and freezes.
//!
//! It is another one than the one in Redis on purpose: what it finds wrong, it finds by
//! its own arithmetic. Whole numbers throughout, in billionths of a call and
//! nanoseconds, so that a second of a whole rate is exact.

use std::time::Duration;

use serde::Serialize;

/// A billionth of a call is the unit of every level here.
const CALL: u128 = 1_000_000_000;

/// What the vendor allows. Changes on the way are told by [`Limiter::change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Calls a second.
    pub rate: u32,
    /// The most calls at once.
    pub burst: u32,
    /// So many calls in each window of this length besides, counted from the start.
    pub window: Option<Window>,
}

/// A fixed window: its count jumps back at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Calls in a window.
    pub limit: u32,
    /// How long a window is.
    pub length: Duration,
}

/// What a call gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered.
    Accepted,
    /// It is not; a call after so long would be, if no other came.
    Refused {
        /// How long.
        wait: Duration,
        /// Nobody is served until then, whatever refills.
        frozen: bool,
    },
}

/// Moments are given as the time since the vendor's start and never go back.
#[derive(Clone, Debug)]
pub struct Limiter {
    settings: Settings,
    level: u128,
    settled: Duration,
    frozen_until: Duration,
    window_used: u32,
    /// What a perfect caller would have got out of the bucket, and out of the windows,
    /// since the first call; none before that.
    allowance: Option<Allowance>,
}

#[derive(Clone, Copy, Debug)]
struct Allowance {
    bucket: u128,
    windows: u128,
}

impl Limiter {
    /// A full one.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            level: u128::from(settings.burst) * CALL,
            settled: Duration::ZERO,
            frozen_until: Duration::ZERO,
            window_used: 0,
            allowance: None,
        }
    }

    /// What holds now.
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// A call at `now`.
    pub fn call(&mut self, now: Duration) -> Verdict {
        self.settle(now);
        self.allowance.get_or_insert(Allowance {
            bucket: self.level,
            windows: self
                .settings
                .window
                .map_or(0, |window| u128::from(window.limit - self.window_used.min(window.limit)) * CALL),
        });
        if let Some(wait) = self.frozen_until.checked_sub(now).filter(|wait| !wait.is_zero()) {
            return Verdict::Refused { wait, frozen: true };
        }
        if let Some(window) = self.settings.window.filter(|window| self.window_used >= window.limit) {
            return Verdict::Refused { wait: self.window_end(window).saturating_sub(now), frozen: false };
        }
        if self.level < CALL {
            let rate = u128::from(self.settings.rate.max(1));
            return Verdict::Refused { wait: nanos((CALL - self.level).div_ceil(rate)), frozen: false };
        }
        self.level -= CALL;
        self.window_used += 1;
        Verdict::Accepted
    }

    /// A call of somebody else's, which is none of the caller's allowance.
    pub fn call_of_another(&mut self, now: Duration) {
        self.settle(now);
        let begun = self.allowance;
        if self.call(now) == Verdict::Accepted {
            self.allowance = begun.map(|allowance| Allowance {
                bucket: allowance.bucket.saturating_sub(CALL),
                windows: allowance.windows.saturating_sub(CALL),
            });
        } else {
            self.allowance = begun;
        }
    }

    /// Serves nobody until `now + duration`, and nothing refills before.
    pub fn freeze(&mut self, now: Duration, duration: Duration) {
        self.settle(now);
        self.level = 0;
        self.frozen_until = self.frozen_until.max(now + duration);
    }

    /// Other settings from `now` on.
    pub fn change(&mut self, now: Duration, settings: Settings) {
        self.settle(now);
        self.settings = settings;
        self.level = self.level.min(u128::from(settings.burst) * CALL);
    }

    /// What goes with [`Self::reset`]: calls left in the window where there is one, else
    /// in the bucket.
    pub fn remaining(&self) -> u32 {
        match self.settings.window {
            Some(window) => window.limit.saturating_sub(self.window_used),
            None => u32::try_from(self.level / CALL).unwrap_or(u32::MAX),
        }
    }

    /// Until the bucket is full, or until the window's end where there is one.
    pub fn reset(&self) -> Duration {
        if let Some(window) = self.settings.window {
            return self.window_end(window).saturating_sub(self.settled);
        }
        let missing = (u128::from(self.settings.burst) * CALL).saturating_sub(self.level);
        nanos(missing.div_ceil(u128::from(self.settings.rate.max(1))))
    }

    /// Calls that a perfect caller could have made from the first call until the last
    /// that was looked at: what was there then and all that refilled since, freezes
    /// excluded, less what others took.
    pub fn allowance(&self) -> f64 {
        let Some(allowance) = self.allowance else { return 0.0 };
        let least = if self.settings.window.is_some() { allowance.bucket.min(allowance.windows) } else { allowance.bucket };
        // Good to a millionth of a call: a demonstration has far below 2^32 calls.
        u32::try_from(least / CALL).map_or(f64::INFINITY, f64::from)
            + u32::try_from(least % CALL).map_or(0.0, |part| f64::from(part) / 1e9)
    }

    /// Brings level, window and allowance to `now`.
    pub fn settle(&mut self, now: Duration) {
        if now <= self.settled {
            return;
        }
        let thawed = now.saturating_sub(self.settled.max(self.frozen_until.min(now)));
        let refill = thawed.as_nanos() * u128::from(self.settings.rate);
        self.level = (self.level + refill).min(u128::from(self.settings.burst) * CALL);
        let mut windows = 0;
        if let Some(window) = self.settings.window {
            let number = |moment: Duration| moment.as_nanos() / window.length.as_nanos().max(1);
            windows = number(now) - number(self.settled);
            if windows > 0 {
                self.window_used = 0;
            }
            windows *= u128::from(window.limit) * CALL;
        }
        if let Some(allowance) = &mut self.allowance {
            allowance.bucket += refill;
            allowance.windows += windows;
        }
        self.settled = now;
    }

    fn window_end(&self, window: Window) -> Duration {
        let length = window.length.as_nanos().max(1);
        nanos((self.settled.as_nanos() / length + 1) * length)
    }
}

fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn bucket(rate: u32, burst: u32) -> Limiter {
        Limiter::new(Settings { rate, burst, window: None })
    }

    /// How many of `calls` at `now` are accepted.
    fn accepted(limiter: &mut Limiter, now: Duration, calls: usize) -> usize {
        (0..calls).filter(|_| limiter.call(now) == Verdict::Accepted).count()
    }

    #[test]
    fn it_serves_the_burst_and_then_the_rate() {
        let mut limiter = bucket(100, 20);
        assert_eq!(accepted(&mut limiter, ms(5), 30), 20);
        assert_eq!(limiter.call(ms(14)), Verdict::Refused { wait: ms(1), frozen: false });
        assert_eq!(accepted(&mut limiter, ms(15), 2), 1);
        assert_eq!(accepted(&mut limiter, ms(5_000), 30), 20);
    }

    #[test]
    fn a_freeze_empties_it_and_serves_nobody_before_its_end() {
        let mut limiter = bucket(100, 20);
        limiter.freeze(ms(100), ms(2_000));
        assert_eq!(limiter.call(ms(2_099)), Verdict::Refused { wait: ms(1), frozen: true });
        assert_eq!(accepted(&mut limiter, ms(2_109), 5), 0);
        assert_eq!(accepted(&mut limiter, ms(2_110), 5), 1);
    }

    #[test]
    fn a_window_serves_its_count_until_its_end() {
        let window = Some(Window { limit: 5, length: ms(1_000) });
        let mut limiter = Limiter::new(Settings { rate: 1_000, burst: 1_000, window });
        assert_eq!(accepted(&mut limiter, ms(300), 9), 5);
        assert_eq!(limiter.call(ms(400)), Verdict::Refused { wait: ms(600), frozen: false });
        assert_eq!((limiter.remaining(), limiter.reset()), (0, ms(600)));
        assert_eq!(accepted(&mut limiter, ms(1_000), 9), 5);
    }

    #[test]
    fn what_is_left_of_a_window_says_nothing_of_the_bucket() {
        let window = Some(Window { limit: 300, length: ms(3_000) });
        let mut limiter = Limiter::new(Settings { rate: 100, burst: 20, window });
        assert_eq!(accepted(&mut limiter, ms(10), 30), 20);
        assert_eq!((limiter.remaining(), limiter.reset()), (280, ms(2_990)));
    }

    #[test]
    fn the_allowance_counts_from_the_first_call_without_freezes_and_without_others() {
        let mut limiter = bucket(100, 20);
        limiter.settle(ms(700)); // nobody called yet
        assert_eq!(limiter.allowance(), 0.0);
        limiter.call(ms(1_000));
        limiter.freeze(ms(2_000), ms(500));
        limiter.settle(ms(3_000));
        assert_eq!(limiter.allowance(), 20.0 + 100.0 + 50.0);
        limiter.call_of_another(ms(3_000));
        assert_eq!(limiter.allowance(), 169.0);
        limiter.change(ms(4_000), Settings { rate: 50, burst: 20, window: None });
        limiter.settle(ms(5_000));
        assert_eq!(limiter.allowance(), 169.0 + 100.0 + 50.0);
    }

    #[test]
    fn a_call_of_another_before_the_first_begins_no_allowance() {
        let mut limiter = bucket(10, 2);
        limiter.call_of_another(ms(0));
        limiter.settle(ms(50));
        assert_eq!(limiter.allowance(), 0.0);
    }

    #[test]
    fn with_a_window_the_allowance_is_the_lesser_of_both() {
        let window = Some(Window { limit: 30, length: ms(1_000) });
        let mut limiter = Limiter::new(Settings { rate: 100, burst: 20, window });
        limiter.call(ms(500));
        limiter.settle(ms(2_500));
        assert_eq!(limiter.allowance(), 90.0, "three windows, where the bucket has 220");
    }
}
