//! One copy of each limit that many buckets share.
//!
//! A fleet's buckets mostly have the same limit, and then 16 bytes hold a bucket
//! where one with its limit beside it takes 32. But a place here costs about 100
//! bytes, so a limit gets one only when enough buckets have come with it. Places are
//! counted: `release` may be called from any thread, so it only counts; the place is
//! taken back later.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lazy_static::lazy_static;

use crate::ffi::Locked;
use tokenbucket::Limit;
use tokenbucket::packed::MAX_SHARED;

/// With so many buckets a place pays: it saves each 16 bytes.
const WORTH_A_PLACE: u32 = 8;

/// How many limits are counted that have no place yet.
const CANDIDATES: usize = 4096;

/// Unused places are looked for when there are twice as many places, or wishes for
/// one, as there were in use the last time, but not below this.
const FIRST_SWEEP: usize = 1024;

/// The buckets at each place. Pages of it that are not used take no memory.
static USERS: [AtomicU32; MAX_SHARED as usize] = [const { AtomicU32::new(0) }; MAX_SHARED as usize];

lazy_static! {
    static ref SHARED: Locked<Shared> = Locked::new(Shared::new());
}

struct Shared {
    places: Vec<Limit>,
    /// By its hash, the place of a limit. (By the limit itself it would take three
    /// times the memory; of two with the same hash the second gets no place.)
    index: HashMap<u64, u32>,
    vacant: Vec<u32>,
    /// The place that was found last: while an RDB is loaded mostly the next one's, too.
    last: Option<u32>,
    /// By a part of its hash, the limit that was last seen and how often.
    candidates: Vec<Candidate>,
    hasher: RandomState,
    /// Wishes that were refused since the last sweep, all places being used.
    refused: usize,
    next_sweep: usize,
}

#[derive(Clone, Copy)]
struct Candidate {
    hash: u64,
    seen: u32,
    /// Which bucket came with it the last time, so that one that goes back and forth
    /// between two limits is not taken for many.
    last: usize,
}

impl Candidate {
    const NONE: Self = Self { hash: 0, seen: 0, last: 0 };
}

/// The limit at a place.
#[inline]
pub(crate) fn get(index: u32) -> Option<Limit> {
    SHARED.with(|shared| shared.places.get(index as usize).copied())
}

/// A place for the limit of one more bucket, counted; `None` where it has none yet.
/// `bucket` tells one from another (its address; 0 for one that is new).
pub(crate) fn share(limit: &Limit, bucket: usize) -> Option<u32> {
    let index = SHARED.with(|shared| shared.place_for_one_more(limit, bucket))?;
    users(index).fetch_add(1, Relaxed);
    Some(index)
}

/// [`share`] for a bucket that has been seen with this limit before.
pub(crate) fn share_again(limit: &Limit) -> Option<u32> {
    let index = SHARED.with(|shared| shared.place_of(shared.hasher.hash_one(limit), limit))?;
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
            last: None,
            candidates: vec![Candidate::NONE; CANDIDATES],
            hasher: RandomState::new(),
            refused: 0,
            next_sweep: FIRST_SWEEP,
        }
    }

    fn place_of(&self, hash: u64, limit: &Limit) -> Option<u32> {
        let index = *self.index.get(&hash)?;
        (self.places.get(index as usize) == Some(limit)).then_some(index)
    }

    fn place_for_one_more(&mut self, limit: &Limit, bucket: usize) -> Option<u32> {
        if let Some(index) = self.last
            && self.places.get(index as usize) == Some(limit)
        {
            return Some(index); // to hash it is a twentieth of a key's load
        }
        let hash = self.hasher.hash_one(limit);
        if self.index.contains_key(&hash) {
            self.last = self.place_of(hash, limit);
            return self.last;
        }
        let candidate = self.candidates.get_mut(usize::try_from(hash).unwrap_or(0) % CANDIDATES)?;
        if candidate.hash != hash {
            *candidate = Candidate { hash, ..Candidate::NONE };
        }
        if bucket == 0 || bucket != candidate.last {
            candidate.seen += 1;
            candidate.last = bucket;
        }
        if candidate.seen < WORTH_A_PLACE {
            return None;
        }
        *candidate = Candidate::NONE;
        let index = self.vacate()?;
        *self.places.get_mut(index as usize)? = *limit;
        self.index.insert(hash, index);
        Some(index)
    }

    /// A place that nobody uses.
    fn vacate(&mut self) -> Option<u32> {
        if self.index.len() + self.refused >= self.next_sweep {
            self.sweep();
        }
        if let Some(index) = self.vacant.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.places.len()).ok().filter(|index| *index < MAX_SHARED);
        match index {
            Some(_) => self.places.push(Limit::LEAST),
            None => self.refused += 1,
        }
        index
    }

    /// Takes back the places that no bucket uses. One whose count is 0 stays so
    /// until this lock's holder hands it out: other threads only count down.
    fn sweep(&mut self) {
        self.last = None;
        let vacant = &mut self.vacant;
        self.index.retain(|_, index| {
            let used = users(*index).load(Relaxed) > 0;
            if !used {
                vacant.push(*index);
            }
            used
        });
        self.refused = 0;
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

    /// Enough buckets for a place.
    fn many(shared: &mut Shared, limit: &Limit) -> Option<u32> {
        (0..WORTH_A_PLACE).map(|_| shared.place_for_one_more(limit, 0)).last().flatten()
    }

    #[test]
    fn a_limit_is_shared_once_enough_buckets_have_it() {
        let mut shared = Shared::new();
        for _ in 1..WORTH_A_PLACE {
            assert_eq!(shared.place_for_one_more(&limit(1), 0), None);
        }
        assert_eq!(shared.place_of(shared.hasher.hash_one(limit(1)), &limit(1)), None);
        assert_eq!(shared.place_for_one_more(&limit(1), 0), Some(0));
        assert_eq!(shared.place_for_one_more(&limit(1), 0), Some(0));
        assert_eq!(shared.place_of(shared.hasher.hash_one(limit(1)), &limit(1)), Some(0));
        assert_eq!(many(&mut shared, &limit(2)), Some(1));
    }

    #[test]
    fn one_bucket_that_comes_again_and_again_is_not_many() {
        let mut shared = Shared::new();
        for _ in 0..100 {
            assert_eq!(shared.place_for_one_more(&limit(1), 0x10), None);
            assert_eq!(shared.place_for_one_more(&limit(2), 0x10), None);
        }
        let places: Vec<_> = (1..20).map(|bucket| shared.place_for_one_more(&limit(1), bucket * 16)).collect();
        assert!(places.iter().any(Option::is_some));
    }

    #[test]
    fn a_place_that_was_taken_back_is_not_found_again() {
        let mut shared = Shared::new();
        shared.places = vec![limit(1); 8000]; // indexes that no other test uses, for the counts are the process's
        let index = many(&mut shared, &limit(2)).unwrap();
        assert_eq!(shared.place_for_one_more(&limit(2), 0), Some(index));
        shared.sweep();
        assert_eq!(shared.place_for_one_more(&limit(2), 0), None);
        assert_eq!(many(&mut shared, &limit(3)), Some(index));
        assert_ne!(many(&mut shared, &limit(2)), Some(index));
    }

    #[test]
    fn places_that_nobody_uses_are_given_to_others() {
        let mut shared = Shared::new();
        // Indexes that no other test uses: the counts are the process's.
        shared.places = vec![limit(1); 5000];
        for capacity in 1..=2 * FIRST_SWEEP as u64 {
            let index = many(&mut shared, &limit(capacity)).unwrap();
            if capacity % 2 == 0 {
                users(index).fetch_add(1, Relaxed);
            }
            assert_eq!(shared.places[index as usize], limit(capacity));
        }
        assert!(shared.places.len() < 5000 + 2 * FIRST_SWEEP, "none was used again");
        for capacity in (2..=2 * FIRST_SWEEP as u64).step_by(2) {
            let index = shared.place_for_one_more(&limit(capacity), 0).unwrap();
            assert_eq!(shared.places[index as usize], limit(capacity), "one in use was given away");
        }
    }
}
