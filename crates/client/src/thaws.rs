//! The penalties that this process has observed: each is obeyed here until the buckets have
//! heard of it, and voids the slots before its end whenever that is looked at.
//!
//! What to know before changing it: a thaw only ever moves later, as in a bucket.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(crate) struct Thaws(Mutex<HashMap<Vec<u8>, Thaw>>);

#[derive(Debug)]
struct Thaw {
    end: Instant,
    is_told: bool,
    /// Whether somebody is at it in the background.
    is_tried: bool,
}

/// With more of them, those that are over are forgotten.
const SWEEP_FROM: usize = 10_000;

impl Thaws {
    /// The vendor has stopped the bucket at `key` for so long.
    pub(crate) fn add(&self, key: &[u8], duration: Duration) {
        let now = Instant::now();
        let Some(end) = now.checked_add(duration) else { return };
        let mut thaws = self.lock();
        match thaws.get_mut(key) {
            Some(thaw) if thaw.end >= end && thaw.is_told => {}
            Some(thaw) => (thaw.end, thaw.is_told) = (thaw.end.max(end), false),
            None => {
                if thaws.len() >= SWEEP_FROM {
                    thaws.retain(|_, thaw| thaw.end > now || thaw.is_tried);
                }
                thaws.insert(key.to_vec(), Thaw { end, is_told: false, is_tried: false });
            }
        }
    }

    /// How long a penalty holds that the buckets have not heard of.
    pub(crate) fn untold(&self, key: &[u8]) -> Option<Duration> {
        self.to_tell(key).map(|(_, left)| left).filter(|left| !left.is_zero())
    }

    /// The end of a penalty that the buckets have not heard of, and how long it is until then.
    /// One that is over when it is told of for the first time still empties the bucket.
    pub(crate) fn to_tell(&self, key: &[u8]) -> Option<(Instant, Duration)> {
        let thaws = self.lock();
        let thaw = thaws.get(key).filter(|thaw| !thaw.is_told)?;
        let left = thaw.end.saturating_duration_since(Instant::now());
        (!left.is_zero() || !thaw.is_tried).then_some((thaw.end, left))
    }

    /// The buckets have heard of one until `end`, and stay `empty` for so long: theirs is
    /// over by then, if they cut it.
    pub(crate) fn told(&self, key: &[u8], end: Instant, empty: Duration) {
        let cut = Instant::now().checked_add(empty);
        if let Some(thaw) = self.lock().get_mut(key).filter(|thaw| thaw.end <= end) {
            thaw.is_told = true;
            thaw.end = cut.map_or(thaw.end, |cut| thaw.end.min(cut));
        }
    }

    /// Whether a slot lies before the end of a penalty.
    pub(crate) fn voids(&self, key: &[u8], slot: Instant) -> bool {
        self.lock().get(key).is_some_and(|thaw| slot <= thaw.end)
    }

    /// Whether nobody was at it.
    pub(crate) fn begin_trying(&self, key: &[u8]) -> bool {
        self.lock().get_mut(key).is_some_and(|thaw| !std::mem::replace(&mut thaw.is_tried, true))
    }

    pub(crate) fn end_trying(&self, key: &[u8]) {
        if let Some(thaw) = self.lock().get_mut(key) {
            thaw.is_tried = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Thaw>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
