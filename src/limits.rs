//! One copy of each limit that several buckets share.
//!
//! A fleet's buckets mostly have the same limit, and then 16 bytes hold a bucket.
//! But a place here costs more than a limit of one's own does, so a limit gets one
//! only when a second bucket comes with it. Places are counted: `release` may be
//! called from any thread, so it only counts; the place is taken back later.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lazy_static::lazy_static;

use crate::ffi::Locked;
use tokenbucket::Limit;
use tokenbucket::packed::MAX_SHARED;

/// How many limits are remembered as seen once.
const SIGHTINGS: usize = 1024;

/// Unused places are looked for when there are twice as many places as there were
/// in use the last time, but not below this.
const FIRST_SWEEP: usize = 1024;

/// The buckets at each place. Pages of it that are not used take no memory.
static USERS: [AtomicU32; MAX_SHARED as usize] = [const { AtomicU32::new(0) }; MAX_SHARED as usize];

lazy_static! {
    static ref SHARED: Locked<Shared> = Locked::new(Shared::new());
}

struct Shared {
    places: Vec<Limit>,
    index: HashMap<Limit, u32>,
    vacant: Vec<u32>,
    /// By a part of its hash, the whole hash of the limit that was last seen.
    seen: Vec<u64>,
    hasher: RandomState,
    next_sweep: usize,
}

/// The limit at a place.
#[inline]
pub(crate) fn get(index: u32) -> Option<Limit> {
    SHARED.with(|shared| shared.places.get(index as usize).copied())
}

/// A place for `limit`, counted once more; `None` where nobody else has it yet.
pub(crate) fn share(limit: &Limit) -> Option<u32> {
    let index = SHARED.with(|shared| shared.place(limit))?;
    users(index).fetch_add(1, Relaxed);
    Some(index)
}

/// Counts a place once less. From any thread.
pub(crate) fn release(index: u32) {
    users(index).fetch_sub(1, Relaxed);
}

fn users(index: u32) -> &'static AtomicU32 {
    USERS.get(index as usize).unwrap_or_else(|| unreachable!("places are below MAX_SHARED"))
}

impl Shared {
    fn new() -> Self {
        Self {
            places: Vec::new(),
            index: HashMap::new(),
            vacant: Vec::new(),
            seen: vec![0; SIGHTINGS],
            hasher: RandomState::new(),
            next_sweep: FIRST_SWEEP,
        }
    }

    fn place(&mut self, limit: &Limit) -> Option<u32> {
        if let Some(index) = self.index.get(limit) {
            return Some(*index);
        }
        let hash = self.hasher.hash_one(limit);
        let seen = self.seen.get_mut(usize::try_from(hash).unwrap_or(0) % SIGHTINGS)?;
        if *seen != hash {
            *seen = hash;
            return None;
        }
        if self.index.len() >= self.next_sweep {
            self.sweep();
        }
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.places.get_mut(index as usize)? = *limit;
                index
            }
            None => {
                let index = u32::try_from(self.places.len()).ok().filter(|index| *index < MAX_SHARED)?;
                self.places.push(*limit);
                index
            }
        };
        self.index.insert(*limit, index);
        Some(index)
    }

    /// Takes back the places that no bucket uses. One whose count is 0 stays so
    /// until this lock's holder hands it out: other threads only count down.
    fn sweep(&mut self) {
        let vacant = &mut self.vacant;
        self.index.retain(|_, index| {
            let used = users(*index).load(Relaxed) > 0;
            if !used {
                vacant.push(*index);
            }
            used
        });
        self.next_sweep = (self.index.len() * 2).max(FIRST_SWEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenbucket::{Rate, Tokens};

    fn limit(capacity: u64) -> Limit {
        Limit::new(Tokens::from_whole(capacity).unwrap(), Rate::new(1, 1).unwrap()).unwrap()
    }

    #[test]
    fn a_limit_is_shared_from_its_second_bucket_on() {
        let mut shared = Shared::new();
        assert_eq!(shared.place(&limit(1)), None);
        assert_eq!(shared.place(&limit(2)), None);
        assert_eq!(shared.place(&limit(1)), Some(0));
        assert_eq!(shared.place(&limit(1)), Some(0));
        assert_eq!(shared.place(&limit(2)), Some(1));
    }

    #[test]
    fn places_that_nobody_uses_are_given_to_others() {
        let mut shared = Shared::new();
        // Indexes that no other test uses: the counts are the process's.
        shared.places = vec![limit(1); 5000];
        for capacity in 1..=2 * FIRST_SWEEP as u64 {
            shared.place(&limit(capacity));
            let index = shared.place(&limit(capacity)).unwrap();
            if capacity % 2 == 0 {
                users(index).fetch_add(1, Relaxed);
            }
            assert_eq!(shared.places[index as usize], limit(capacity));
        }
        assert!(shared.places.len() < 5000 + 2 * FIRST_SWEEP, "none was used again");
        for capacity in (2..=2 * FIRST_SWEEP as u64).step_by(2) {
            let index = shared.place(&limit(capacity)).unwrap();
            assert_eq!(shared.places[index as usize], limit(capacity), "one in use was given away");
        }
    }
}
