//! The settings, all whole numbers: CONFIG SET and GET `tokenbucket.<name>`, the
//! configuration file, or arguments of `loadmodule`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// One setting.
pub(crate) struct Setting {
    /// Without the module's name before it.
    pub(crate) name: &'static CStr,
    pub(crate) unit: &'static str,
    pub(crate) default: i64,
    pub(crate) least: i64,
    pub(crate) most: i64,
    value: AtomicI64,
}

const HUNDRED_YEARS: i64 = 3_155_760_000;

/// PENALISE is cut to this.
pub(crate) static MAX_PENALTY: Setting = Setting::of_seconds(c"max-penalty", 604_800, 0, HUNDRED_YEARS);
/// A RESET of SYNC is cut to this.
pub(crate) static MAX_WINDOW: Setting = Setting::of_seconds(c"max-window", 2_678_400, 0, HUNDRED_YEARS);
/// How long a LIMIT of SYNC is believed.
pub(crate) static VENDOR_LIMIT_TTL: Setting = Setting::of_seconds(c"vendor-limit-ttl", 3_600, 1, 31_622_400);
/// The longest that a bucket may take to fill.
pub(crate) static MAX_FILL_TIME: Setting = Setting::of_seconds(c"max-fill-time", HUNDRED_YEARS, 1, HUNDRED_YEARS);
/// How many clients may wait at a time, for all buckets together.
pub(crate) static MAX_WAITING: Setting = Setting::new(c"max-waiting", "clients", 100_000, 0, 10_000_000);

/// All of them.
pub(crate) static SETTINGS: [&Setting; 5] = [&MAX_PENALTY, &MAX_WINDOW, &VENDOR_LIMIT_TTL, &MAX_FILL_TIME, &MAX_WAITING];

impl Setting {
    const fn new(name: &'static CStr, unit: &'static str, default: i64, least: i64, most: i64) -> Self {
        Self { name, unit, default, least, most, value: AtomicI64::new(default) }
    }

    const fn of_seconds(name: &'static CStr, default: i64, least: i64, most: i64) -> Self {
        Self::new(name, "seconds", default, least, most)
    }

    /// In its unit.
    pub(crate) fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }

    /// In its unit. The server has checked the range.
    pub(crate) fn set(&self, value: i64) {
        self.value.store(value, Relaxed);
    }

    /// Of one that is in seconds, in microseconds.
    pub(crate) fn us(&self) -> u64 {
        self.get().unsigned_abs().saturating_mul(1_000_000)
    }
}
