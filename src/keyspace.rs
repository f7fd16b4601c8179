//! Buckets in the database: opened once, saved whole.
//!
//! A change goes out as its result, `TB.STATE key blob`, never as the command that
//! led to it: a replica, an AOF or a later version must not decide again.

use std::ffi::CStr;

use crate::error::Error;
use crate::ffi::{Access, Context, ContextFlags, Key, Word};
use crate::waiting;
use tokenbucket::Bucket;
use tokenbucket::state::{self, Encoded, Message};

/// The command that carries a bucket.
pub(crate) const EFFECT: &CStr = c"TB.STATE";

/// A key that is empty or has a bucket, open for one call.
pub(crate) struct Place<'call> {
    context: &'call Context,
    name: Word<'call>,
    key: Key,
}

impl<'call> Place<'call> {
    /// The key, and the bucket that is there.
    ///
    /// # Errors
    /// [`Error::WrongType`] where something else is there.
    pub(crate) fn open(context: &'call Context, name: Word<'call>, access: Access) -> Result<(Self, Option<Bucket>), Error> {
        let place = Self::find(context, name, access)?;
        let bucket = place.is_occupied().then(|| place.bucket());
        Ok((place, bucket))
    }

    /// [`Place::open`] without reading the bucket.
    ///
    /// # Errors
    /// As [`Place::open`].
    #[inline]
    pub(crate) fn find(context: &'call Context, name: Word<'call>, access: Access) -> Result<Self, Error> {
        Ok(Self { context, name, key: Key::open(context, name, access)? })
    }

    /// The bucket that is there, or one of which nothing is known.
    #[inline]
    pub(crate) fn bucket(&self) -> Bucket {
        self.key.bucket()
    }

    /// Whether there was a bucket.
    #[inline]
    pub(crate) fn is_occupied(&self) -> bool {
        self.key.is_occupied()
    }

    /// Whether a bucket can be stored here now; [`Place::save`] asks too, but a call
    /// that stores several has to know before the first.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where it is new and `maxmemory` is reached.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        if self.is_occupied() {
            return Ok(());
        }
        let flags = self.context.flags();
        let obeys = flags.intersects(ContextFlags::REPLICATED | ContextFlags::LOADING);
        if flags.contains(ContextFlags::OUT_OF_MEMORY) && !obeys { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// Stores `bucket` as it is after a change at `now_us`, and sends it out.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where it is new and `maxmemory` is reached. A bucket
    /// that exists goes on limiting.
    #[inline]
    pub(crate) fn save(&self, bucket: &Bucket, now_us: i64) -> Result<(), Error> {
        self.save_served(bucket, now_us)?;
        self.tell_those_who_wait(now_us);
        Ok(())
    }

    /// [`Place::save`] of what was done for those who wait themselves.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) fn save_served(&self, bucket: &Bucket, now_us: i64) -> Result<(), Error> {
        let expire_at_ms = bucket.expire_at_ms(phase(self.name));
        let bytes = state::encode_message(bucket, expire_at_ms, now_us);
        self.store(bucket, expire_at_ms)?;
        self.context.replicate(EFFECT, self.name, bytes.as_bytes());
        Ok(())
    }

    /// Stores a bucket that came as a message, as the sender has it, and hands the
    /// message on.
    ///
    /// # Errors
    /// As [`Place::save`].
    pub(crate) fn apply(&self, message: &Message) -> Result<(), Error> {
        let Message { bucket, expire_at_ms, clock_us } = message;
        // Only a forger's is not one that the sender could have set.
        let fits = bucket.may_expire_at(*expire_at_ms);
        self.store(bucket, if fits { *expire_at_ms } else { bucket.expire_at_ms(phase(self.name)) })?;
        self.context.replicate_verbatim();
        self.tell_those_who_wait(*clock_us);
        Ok(())
    }

    #[inline]
    fn tell_those_who_wait(&self, now_us: i64) {
        if waiting::is_anybody() {
            waiting::bucket_changed(self.context.database(), self.name, now_us);
        }
    }

    /// A keyspace event of a change. Closes the key first: other modules hear of it
    /// at once, and may do to the key what they like.
    pub(crate) fn announce(self, event: &CStr) {
        let Self { context, name, key, .. } = self;
        drop(key);
        context.notify(event, name);
    }

    #[inline]
    fn store(&self, bucket: &Bucket, expire_at_ms: i64) -> Result<(), Error> {
        if self.is_occupied() {
            self.key.replace(bucket);
        } else {
            self.check_room()?;
            self.key.create(bucket);
        }
        // Set on every grant it would cost a tenth of the throughput. It moves in
        // steps, so it is mostly right; looking mends one that a client has changed.
        if self.key.expire_at_ms() != expire_at_ms {
            self.key.set_expire_at_ms(expire_at_ms);
        }
        self.context.signal_modified(self.name);
        Ok(())
    }
}

/// The message that makes the bucket at `name` what it is, as bytes.
pub(crate) fn effect(name: Word<'_>, bucket: &Bucket, now_us: i64) -> Encoded {
    state::encode_message(bucket, bucket.expire_at_ms(phase(name)), now_us)
}

/// Spreads the expiry of keys: a hash of the name (FNV-1a, by eight bytes a step).
#[inline]
fn phase(name: Word<'_>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let (chunks, rest) = name.bytes().as_chunks::<8>();
    let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).chain([last]);
    let hash = words.fold(OFFSET, |hash, word| (hash ^ word).wrapping_mul(PRIME));
    hash ^ hash >> 32 // the low bits alone have not seen the high ones
}
