//! The settings, all in seconds: CONFIG SET and GET `tokenbucket.<name>`, the
//! configuration file, or arguments of `loadmodule`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// One setting.
pub(crate) struct Setting {
    /// Without the module's name before it.
    pub(crate) name: &'static CStr,
    /// In seconds.
    pub(crate) default: i64,
    /// In seconds.
    pub(crate) least: i64,
    /// In seconds.
    pub(crate) most: i64,
    value: AtomicI64,
}

const HUNDRED_YEARS: i64 = 3_155_760_000;

/// PENALISE is cut to this.
pub(crate) static MAX_PENALTY: Setting = Setting::new(c"max-penalty", 604_800, 0, HUNDRED_YEARS);
/// A RESET of SYNC is cut to this.
pub(crate) static MAX_WINDOW: Setting = Setting::new(c"max-window", 2_678_400, 0, HUNDRED_YEARS);
/// How long a LIMIT of SYNC is believed.
pub(crate) static VENDOR_LIMIT_TTL: Setting = Setting::new(c"vendor-limit-ttl", 3_600, 1, 31_622_400);
/// The longest that a bucket may take to fill.
pub(crate) static MAX_FILL_TIME: Setting = Setting::new(c"max-fill-time", HUNDRED_YEARS, 1, HUNDRED_YEARS);

/// All of them.
pub(crate) static SETTINGS: [&Setting; 4] = [&MAX_PENALTY, &MAX_WINDOW, &VENDOR_LIMIT_TTL, &MAX_FILL_TIME];

impl Setting {
    const fn new(name: &'static CStr, default: i64, least: i64, most: i64) -> Self {
        Self { name, default, least, most, value: AtomicI64::new(default) }
    }

    /// In seconds.
    pub(crate) fn seconds(&self) -> i64 {
        self.value.load(Relaxed)
    }

    /// In microseconds.
    pub(crate) fn us(&self) -> u64 {
        self.seconds().unsigned_abs().saturating_mul(1_000_000)
    }

    /// The server has checked the range.
    pub(crate) fn set_seconds(&self, seconds: i64) {
        self.value.store(seconds, Relaxed);
    }
}
