//! The only clock: microseconds since 1970, and never back.
//!
//! A reading is the later of the last one plus the monotonic time passed since,
//! and the wall clock. So it goes on through a wall clock that is set back, and
//! the jitter of one that wobbles does not add up. Effects and the RDB carry it, and
//! a server that receives them is led by the sender's clock, up to a day ahead of
//! its own: however many come, they lead it no further.

use crate::ffi::{Locked, time};
use tokenbucket::state::MAX_CLOCK_US;

/// How far ahead of its own clock a server is led.
const MAX_LEAD_US: i64 = 86_400_000_000;

/// Before the first reading no time has passed, however long the machine has run.
const UNREAD: Clock = Clock { last_us: 0, own_us: 0, wall_us: 0, monotonic_us: i64::MAX };

static CLOCK: Locked<Clock> = Locked::new(UNREAD);

struct Clock {
    /// The last reading ...
    last_us: i64,
    /// ... what it would have been had nobody led it ...
    own_us: i64,
    /// ... and what the two system clocks said then.
    wall_us: i64,
    monotonic_us: i64,
}

/// A moment as a caller gives it.
#[derive(Clone, Copy)]
pub(crate) enum When {
    /// So many microseconds from now.
    In { us: u64 },
    /// Unix time in microseconds, by the wall clock.
    At { wall_us: i64 },
}

/// The time, for the one command that is being run.
#[inline]
pub(crate) fn now_us() -> i64 {
    CLOCK.with(Clock::read_system)
}

/// Takes in a clock that came with data: starts no earlier, if it is at most a day
/// ahead. Returns by how many microseconds the data is to be shifted otherwise.
pub(crate) fn receive(sender_us: i64) -> i64 {
    CLOCK.with(|clock| {
        clock.read_system();
        clock.follow(sender_us)
    })
}

impl When {
    /// The moment on this clock, as it was read last; not before that.
    pub(crate) fn on_clock_us(self) -> i64 {
        CLOCK.with(|clock| clock.moment_us(self))
    }
}

impl Clock {
    /// The wall clock first: a server that is held up between the two reads it too early,
    /// and the next reading makes up for it. The other way round the time would be counted
    /// twice, and this clock be ahead for ever.
    #[inline]
    fn read_system(&mut self) -> i64 {
        let wall_us = time::wall_us();
        self.read(time::monotonic_us(), wall_us)
    }

    #[inline]
    fn read(&mut self, monotonic_us: i64, wall_us: i64) -> i64 {
        let passed_us = monotonic_us.saturating_sub(self.monotonic_us).max(0);
        self.own_us = self.own_us.saturating_add(passed_us).max(wall_us).min(MAX_CLOCK_US);
        self.last_us = self.last_us.saturating_add(passed_us).max(self.own_us).min(MAX_CLOCK_US);
        self.wall_us = wall_us;
        self.monotonic_us = monotonic_us;
        self.last_us
    }

    fn follow(&mut self, sender_us: i64) -> i64 {
        if sender_us <= self.last_us {
            0
        } else if sender_us.saturating_sub(self.own_us) <= MAX_LEAD_US {
            self.last_us = sender_us;
            0
        } else {
            self.last_us.saturating_sub(sender_us)
        }
    }

    fn moment_us(&self, when: When) -> i64 {
        match when {
            When::In { us } => self.last_us.saturating_add_unsigned(us),
            When::At { wall_us } => self.last_us.saturating_add(wall_us.saturating_sub(self.wall_us).max(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    fn started() -> Clock {
        let mut clock = UNREAD;
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
        assert_eq!(clock.follow(START - 5), 0);
        assert_eq!(clock.last_us, START);
        assert_eq!(clock.follow(START + MAX_LEAD_US), 0);
        assert_eq!(clock.read(78, START + 1), START + MAX_LEAD_US + 1);
        let mut clock = started();
        assert_eq!(clock.follow(START + MAX_LEAD_US + 1), -MAX_LEAD_US - 1);
        assert_eq!(clock.read(77, START), START);
    }

    #[test]
    fn many_clocks_ahead_lead_no_further_than_one() {
        let mut clock = started();
        assert_eq!(clock.follow(START + MAX_LEAD_US), 0);
        for step in 1..10 {
            assert_eq!(clock.follow(START + MAX_LEAD_US + step), -step);
        }
        // It is led on as its own clock goes on, also where the wall clock was set back.
        assert_eq!(clock.read(77 + 500, START - 1_000_000), START + MAX_LEAD_US + 500);
        assert_eq!(clock.follow(START + MAX_LEAD_US + 501), -1);
        assert_eq!(clock.read(77 + 600, START - 900_000), START + MAX_LEAD_US + 600);
    }

    #[test]
    fn a_moment_of_the_wall_clock_is_as_far_from_now_on_this_one() {
        let mut clock = started();
        clock.read(78, START - 1_000_000);
        assert_eq!(clock.moment_us(When::In { us: 5 }), START + 6);
        assert_eq!(clock.moment_us(When::At { wall_us: START - 1_000_000 + 7 }), START + 8);
        assert_eq!(clock.moment_us(When::At { wall_us: START - 2_000_000 }), START + 1);
    }
}
