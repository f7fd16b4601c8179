//! Counters for INFO. They are touched on every call, so they are plain words:
//! only one thread at a time counts, and no read needs them to agree.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokenbucket::{Decision, Limit, Mode, Status};

/// One counter, since the module was loaded.
pub(crate) struct Counter {
    /// As INFO shows it.
    pub(crate) name: &'static CStr,
    value: AtomicU64,
}

impl Counter {
    const fn new(name: &'static CStr) -> Self {
        Self { name, value: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn add_one(&self) {
        // A load and a store: an atomic addition costs a locked instruction.
        self.value.store(self.value.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

static GRANTED: Counter = Counter::new(c"granted");
static RESERVED: Counter = Counter::new(c"reserved");
static FORCED: Counter = Counter::new(c"forced");
static DENIED_EMPTY: Counter = Counter::new(c"denied_empty");
static DENIED_FROZEN: Counter = Counter::new(c"denied_frozen");
static DENIED_WINDOW: Counter = Counter::new(c"denied_window");
static DENIED_NEVER: Counter = Counter::new(c"denied_never");
/// TB.PENALISE.
pub(crate) static PENALTIES: Counter = Counter::new(c"penalties");
/// Of these, those cut to max-penalty.
pub(crate) static PENALTIES_CUT: Counter = Counter::new(c"penalties_cut");
/// TB.SYNC that lowered something.
pub(crate) static SYNCS_APPLIED: Counter = Counter::new(c"syncs_applied");
/// TB.SYNC that lowered nothing.
pub(crate) static SYNCS_IGNORED: Counter = Counter::new(c"syncs_ignored");
/// TB.REFUND of a bucket that exists.
pub(crate) static REFUNDS: Counter = Counter::new(c"refunds");
/// Clients that began to wait in TB.BCONSUME.
pub(crate) static WAITS: Counter = Counter::new(c"waits");
/// Of these, those whose time was over before their turn came.
pub(crate) static WAITS_TIMED_OUT: Counter = Counter::new(c"waits_timed_out");
/// Clients that were answered at once, because max-waiting others waited.
pub(crate) static WAITS_REFUSED: Counter = Counter::new(c"waits_refused");
/// Buckets that were given another limit.
pub(crate) static LIMIT_CHANGES: Counter = Counter::new(c"limit_changes");

/// All of them, in the order of INFO.
pub(crate) static COUNTERS: [&Counter; 16] = [
    &GRANTED,
    &RESERVED,
    &FORCED,
    &DENIED_EMPTY,
    &DENIED_FROZEN,
    &DENIED_WINDOW,
    &DENIED_NEVER,
    &PENALTIES,
    &PENALTIES_CUT,
    &SYNCS_APPLIED,
    &SYNCS_IGNORED,
    &REFUNDS,
    &LIMIT_CHANGES,
    &WAITS,
    &WAITS_TIMED_OUT,
    &WAITS_REFUSED,
];

/// Counts a bucket that had a limit and has another now.
#[inline]
pub(crate) fn count_limit(before: Option<&Limit>, after: Option<&Limit>) {
    if before.is_some() && before != after {
        LIMIT_CHANGES.add_one();
    }
}

/// Counts an answer of TB.CONSUME, TB.MCONSUME or TB.BCONSUME.
#[inline]
pub(crate) fn count(decision: &Decision, mode: Mode) {
    let counter = match decision.status {
        Status::Granted if mode == Mode::Force => &FORCED,
        Status::Granted => &GRANTED,
        Status::Reserved => &RESERVED,
        Status::Never => &DENIED_NEVER,
        Status::Frozen => &DENIED_FROZEN,
        Status::Window => &DENIED_WINDOW,
        Status::Empty => &DENIED_EMPTY,
    };
    counter.add_one();
}
