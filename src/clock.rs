//! The only clock: microseconds since 1970, and never back.
//!
//! A reading is the later of the last one plus the monotonic time passed since,
//! and the wall clock. So it goes on through a wall clock that is set back, and
//! the jitter of one that wobbles does not add up. Effects and the RDB carry it.

use crate::ffi::{Locked, time};
use tokenbucket::state::MAX_CLOCK_US;

/// How far ahead a clock that came with data may be and still be followed.
const MAX_LEAD_US: i64 = 86_400_000_000;

static CLOCK: Locked<Clock> = Locked::new(Clock { last_us: 0, monotonic_us: 0 });

struct Clock {
    /// The last reading ...
    last_us: i64,
    /// ... and the monotonic time it was taken at.
    monotonic_us: i64,
}

/// The time, for the one command that is being run.
#[inline]
pub(crate) fn now_us() -> i64 {
    CLOCK.with(|clock| clock.read(time::monotonic_us(), time::wall_us()))
}

/// Takes in a clock that came with data: starts no earlier, if it is at most a day
/// ahead. Returns by how many microseconds the data is to be shifted otherwise.
pub(crate) fn receive(sender_us: i64) -> i64 {
    CLOCK.with(|clock| {
        let now_us = clock.read(time::monotonic_us(), time::wall_us());
        clock.follow(sender_us, now_us)
    })
}

/// A moment of the wall clock that a caller gave, in Unix microseconds, on this
/// clock; `None` where it is not in the future.
pub(crate) fn from_wall(moment_us: i64, now_us: i64) -> Option<i64> {
    let ahead_us = moment_us.saturating_sub(time::wall_us());
    (ahead_us > 0).then(|| now_us.saturating_add(ahead_us))
}

impl Clock {
    #[inline]
    fn read(&mut self, monotonic_us: i64, wall_us: i64) -> i64 {
        let passed_us = monotonic_us.saturating_sub(self.monotonic_us).max(0);
        self.last_us = self.last_us.saturating_add(passed_us).max(wall_us).min(MAX_CLOCK_US);
        self.monotonic_us = monotonic_us;
        self.last_us
    }

    fn follow(&mut self, sender_us: i64, now_us: i64) -> i64 {
        if sender_us <= now_us {
            0
        } else if sender_us - now_us <= MAX_LEAD_US {
            self.last_us = sender_us;
            0
        } else {
            now_us.saturating_sub(sender_us)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    fn started() -> Clock {
        let mut clock = Clock { last_us: 0, monotonic_us: 0 };
        assert_eq!(clock.read(77, START), START);
        clock
    }

    #[test]
    fn a_wall_clock_that_is_set_back_stalls_nothing() {
        let mut clock = started();
        assert_eq!(clock.read(77 + 10, START - 3_600_000_000), START + 10);
        assert_eq!(clock.read(77 + 30, START - 3_599_999_980), START + 30);
    }

    #[test]
    fn a_wall_clock_that_is_set_forward_is_followed_and_not_left() {
        let mut clock = started();
        assert_eq!(clock.read(78, START + 1_000_000), START + 1_000_000);
        assert_eq!(clock.read(80, START + 3), START + 1_000_002);
    }

    #[test]
    fn jitter_does_not_add_up() {
        let mut clock = started();
        for step in 1..1000_i64 {
            let wobble = if step % 2 == 0 { 50 } else { -50 };
            let now = clock.read(77 + step, START + step + wobble);
            assert!((0..=50).contains(&(now - START - step)), "step {step}");
        }
    }

    #[test]
    fn a_clock_up_to_a_day_ahead_is_followed_and_one_beyond_shifts_its_data() {
        let mut clock = started();
        assert_eq!(clock.follow(START - 5, START), 0);
        assert_eq!(clock.last_us, START);
        assert_eq!(clock.follow(START + MAX_LEAD_US, START), 0);
        assert_eq!(clock.read(78, START + 1), START + MAX_LEAD_US + 1);
        let mut clock = started();
        assert_eq!(clock.follow(START + MAX_LEAD_US + 1, START), -MAX_LEAD_US - 1);
        assert_eq!(clock.read(77, START), START);
    }
}
