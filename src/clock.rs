//! The only clock: microseconds since 1970, and never back.
//!
//! A reading is the later of the last one plus the monotonic time passed since,
//! and the wall clock. So it goes on through a wall clock that is set back, and
//! the jitter of one that wobbles does not add up. Effects and the RDB carry it, and
//! a server that receives them is led by the sender's clock, up to a day ahead of
//! its own: however many come, they lead it no further.
//!
//! In other words it is the monotonic clock and an offset that only grows. Between two
//! steps of the wall clock it does not grow at all, since both system clocks run alike.
//! So the wall clock is looked at once in a millisecond, and in between it is only asked
//! for its last tick, which costs a fifth. A step ahead of more than a millisecond shows
//! there at once, a smaller one with the next look: so this clock is behind by no more.

use crate::ffi::{Locked, time};
use tokenbucket::state::MAX_CLOCK_US;

/// How far ahead of its own clock a server is led.
const MAX_LEAD_US: i64 = 86_400_000_000;

/// So long after a look at the wall clock the next is due.
const LOOK_US: i64 = 1_000;

static CLOCK: Locked<Clock> = Locked::new(Clock::UNREAD);

struct Clock {
    /// The last reading, and what the monotonic clock said then.
    last_us: i64,
    monotonic_us: i64,
    /// How far this clock is ahead of the monotonic one. It only grows ...
    offset_us: i64,
    /// ... and would be this much had nobody led this clock.
    own_offset_us: i64,
    /// How far the wall clock was ahead of the monotonic one at the last look ...
    wall_offset_us: i64,
    /// ... which was then, by the monotonic clock.
    looked_us: i64,
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
    CLOCK.with(|clock| {
        let (tick_us, monotonic_us) = (time::wall_tick_us(), time::monotonic_us());
        if clock.is_look_due(monotonic_us, tick_us) {
            clock.look();
        } else {
            clock.go_on(monotonic_us);
        }
        clock.last_us
    })
}

/// The time, and on this clock the moment that a caller gave; not before the time.
pub(crate) fn now_and(when: When) -> (i64, i64) {
    match when {
        When::In { us } => {
            let now_us = now_us();
            (now_us, now_us.saturating_add_unsigned(us))
        }
        When::At { wall_us } => CLOCK.with(|clock| {
            clock.look(); // the wall clock may have been set back
            (clock.last_us, clock.moment_us(wall_us))
        }),
    }
}

/// Takes in a clock that came with data: starts no earlier, if it is at most a day
/// ahead. Returns by how many microseconds the data is to be shifted otherwise.
pub(crate) fn receive(sender_us: i64) -> i64 {
    if sender_us <= now_us() {
        return 0; // as it mostly is: to send it took its time
    }
    CLOCK.with(|clock| {
        clock.look();
        clock.follow(sender_us)
    })
}

impl Clock {
    const UNREAD: Self = Self {
        last_us: 0,
        monotonic_us: 0,
        offset_us: i64::MIN,
        own_offset_us: i64::MIN,
        wall_offset_us: 0,
        looked_us: i64::MIN,
    };

    /// Whether a look at the wall clock may bring something new, whose last tick was at `tick_us`.
    #[inline]
    const fn is_look_due(&self, monotonic_us: i64, tick_us: i64) -> bool {
        monotonic_us.saturating_sub(self.looked_us) >= LOOK_US || tick_us > monotonic_us.saturating_add(self.wall_offset_us)
    }

    /// The wall clock first: a server that is held up between the two reads it too early,
    /// and the next look makes up for it. The other way round the time would be counted
    /// twice, and this clock be ahead for ever.
    #[cold]
    fn look(&mut self) {
        let wall_us = time::wall_us();
        self.see(time::monotonic_us(), wall_us);
    }

    /// What both system clocks say.
    fn see(&mut self, monotonic_us: i64, wall_us: i64) {
        self.looked_us = monotonic_us;
        self.wall_offset_us = wall_us.saturating_sub(monotonic_us);
        self.own_offset_us = self.own_offset_us.max(self.wall_offset_us);
        self.offset_us = self.offset_us.max(self.own_offset_us);
        self.go_on(monotonic_us);
    }

    #[inline]
    fn go_on(&mut self, monotonic_us: i64) {
        self.monotonic_us = monotonic_us;
        self.last_us = monotonic_us.saturating_add(self.offset_us).min(MAX_CLOCK_US).max(self.last_us);
    }

    fn follow(&mut self, sender_us: i64) -> i64 {
        let own_us = self.monotonic_us.saturating_add(self.own_offset_us);
        if sender_us <= self.last_us {
            0
        } else if sender_us.saturating_sub(own_us) <= MAX_LEAD_US {
            self.offset_us = sender_us.saturating_sub(self.monotonic_us);
            self.last_us = sender_us;
            0
        } else {
            self.last_us.saturating_sub(sender_us)
        }
    }

    /// A moment of the wall clock, as far from now as it is there.
    fn moment_us(&self, wall_us: i64) -> i64 {
        let wall_now_us = self.monotonic_us.saturating_add(self.wall_offset_us);
        self.last_us.saturating_add(wall_us.saturating_sub(wall_now_us).max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000_000;

    impl Clock {
        fn read(&mut self, monotonic_us: i64, wall_us: i64) -> i64 {
            self.see(monotonic_us, wall_us);
            self.last_us
        }
    }

    fn started() -> Clock {
        let mut clock = Clock::UNREAD;
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
    fn between_two_looks_at_the_wall_clock_it_goes_on_by_itself() {
        let mut clock = started();
        for (us, is_due) in [(0, false), (LOOK_US - 1, false), (LOOK_US, true)] {
            assert_eq!(clock.is_look_due(77 + us, START - 500), is_due, "after {us} us");
            clock.go_on(77 + us);
            assert_eq!(clock.last_us, START + us);
        }
        assert!(Clock::UNREAD.is_look_due(i64::MIN / 2, 0));
        // A tick of the wall clock that is not there yet: it has been set.
        assert!(clock.is_look_due(77, START + 1) && !clock.is_look_due(77, START));
        // A look brings in what was missed, and a moment of the wall clock is where it was.
        assert_eq!(clock.read(77 + LOOK_US, START + 7 * LOOK_US), START + 7 * LOOK_US);
        clock.go_on(80 + LOOK_US);
        assert_eq!(clock.moment_us(START + 8 * LOOK_US), START + 8 * LOOK_US);
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
        assert_eq!(clock.moment_us(START - 1_000_000 + 7), START + 8);
        assert_eq!(clock.moment_us(START - 2_000_000), START + 1);
    }
}
