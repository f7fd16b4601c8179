//! The system's clocks, in microseconds.

use libc::{CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_REALTIME_COARSE, clockid_t, timespec};

/// Time since some moment before the server's start; never steps.
pub(crate) fn monotonic_us() -> i64 {
    read_us(CLOCK_MONOTONIC)
}

/// Unix time; steps when somebody sets it.
pub(crate) fn wall_us() -> i64 {
    read_us(CLOCK_REALTIME)
}

/// [`wall_us`] when the system's timer ticked last, some milliseconds ago at most.
pub(crate) fn wall_tick_us() -> i64 {
    read_us(CLOCK_REALTIME_COARSE)
}

#[inline]
fn read_us(clock: clockid_t) -> i64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours to write. The clocks exist on every Linux, so it cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000) // down: a microsecond counts once over
}
