//! Buckets in the database: opened once, saved whole.
//!
//! A change goes out as its result, `TB.STATE key blob`, never as the command that
//! led to it: a replica, an AOF or a later version must not decide again.

use std::ffi::CStr;

use crate::error::Error;
pub(crate) use crate::ffi::Access;
use crate::ffi::{Context, ContextFlags, Key, NEVER, Word};
use crate::waiting;
use tokenbucket::state::{Encoded, Message};
use tokenbucket::{Bucket, Consume, DebtTooLong, Decision, Effect};

/// The command that carries a bucket.
pub(crate) const EFFECT: &CStr = c"TB.STATE";

/// That a bucket can be stored, asked before the first of a call is.
#[derive(Clone, Copy)]
pub(crate) struct HasRoom(());

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
    #[inline(always)]
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

    /// Whether a bucket can be stored here now. A call that stores several asks for all
    /// of them before the first, which may be the one that reaches `maxmemory`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where it is new and `maxmemory` is reached. A bucket
    /// that exists goes on limiting.
    #[inline]
    pub(crate) fn check_room(&self) -> Result<HasRoom, Error> {
        if self.is_occupied() {
            return Ok(HasRoom(()));
        }
        let flags = self.context.flags();
        let obeys = flags.intersects(ContextFlags::REPLICATED | ContextFlags::LOADING);
        if flags.contains(ContextFlags::OUT_OF_MEMORY) && !obeys { Err(Error::OutOfMemory) } else { Ok(HasRoom(())) }
    }

    /// Answers a call for tokens; behind those who wait for the bucket, if anybody does.
    ///
    /// # Errors
    /// As [`Bucket::consume`].
    #[inline(always)]
    pub(crate) fn consume(&self, bucket: &mut Bucket, call: &Consume, now_us: i64) -> Result<(Decision, Effect), DebtTooLong> {
        waiting::consume(self.context, self.name, bucket, call, now_us)
    }

    /// Whether anybody waits for the bucket. Then nothing of it remains for others.
    pub(crate) fn is_awaited(&self) -> bool {
        waiting::is_awaited(self.context, self.name)
    }

    /// Stores `bucket` as it is after a change at `now_us`, and sends it out.
    ///
    /// # Errors
    /// As [`Place::check_room`].
    #[inline(always)]
    pub(crate) fn save(&self, bucket: &Bucket, now_us: i64) -> Result<(), Error> {
        self.save_in(self.check_room()?, bucket, now_us);
        Ok(())
    }

    /// [`Place::save`], where there is room.
    #[inline(always)]
    pub(crate) fn save_in(&self, room: HasRoom, bucket: &Bucket, now_us: i64) {
        self.save_served(room, bucket, now_us);
        self.tell_those_who_wait(bucket, now_us);
    }

    /// [`Place::save_in`] of what was done for those who wait themselves.
    #[inline(always)]
    pub(crate) fn save_served(&self, room: HasRoom, bucket: &Bucket, now_us: i64) {
        let expire_at_ms = self.store(room, bucket, None);
        let mut bytes = Encoded::EMPTY;
        self.context.replicate(EFFECT, self.name, bytes.message(bucket, expire_at_ms, now_us));
    }

    /// Stores a bucket that came as a message, as the sender has it, and hands the
    /// message on.
    pub(crate) fn apply(&self, room: HasRoom, message: &Message) {
        let Message { bucket, expire_at_ms, clock_us } = message;
        self.store(room, bucket, Some(*expire_at_ms));
        self.context.replicate_verbatim();
        self.tell_those_who_wait(bucket, *clock_us);
    }

    #[inline]
    fn tell_those_who_wait(&self, bucket: &Bucket, now_us: i64) {
        if waiting::is_anybody() {
            waiting::bucket_changed(self.context.database(), self.name, bucket, now_us);
        }
    }

    /// A keyspace event of a change. Closes the key first: other modules hear of it
    /// at once, and may do to the key what they like.
    pub(crate) fn announce(self, event: &CStr) {
        let Self { context, name, key, .. } = self;
        drop(key);
        context.notify(event, name);
    }

    /// Stores `bucket` and returns when its key expires: as wished, where that fits the
    /// bucket (only a forger's wish does not), else as it does, where that fits.
    #[inline(always)]
    fn store(&self, _: HasRoom, bucket: &Bucket, wish_ms: Option<i64>) -> i64 {
        let before_ms = if self.is_occupied() {
            self.key.replace(bucket);
            self.key.expire_at_ms()
        } else {
            self.key.create(bucket);
            NEVER
        };
        // Set on every grant it would cost a tenth of the throughput. It has some slack, so
        // it is mostly right; looking mends one that a client has changed.
        let wish_ms = wish_ms.unwrap_or(before_ms);
        let expire_at_ms = if bucket.may_expire_at(wish_ms) { wish_ms } else { bucket.expire_at_ms(phase(self.name)) };
        if before_ms != expire_at_ms {
            self.key.set_expire_at_ms(expire_at_ms);
        }
        self.context.signal_modified(self.name);
        expire_at_ms
    }
}

/// The message that makes the bucket at `name` what it is, as bytes in `room`.
pub(crate) fn effect<'r>(name: Word<'_>, bucket: &Bucket, now_us: i64, room: &'r mut Encoded) -> &'r [u8] {
    room.message(bucket, bucket.expire_at_ms(phase(name)), now_us)
}

/// Spreads the expiry of keys: a hash of the name (FNV-1a, by eight bytes a step).
#[inline]
fn phase(name: Word<'_>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let name = name.bytes();
    let (chunks, rest) = name.as_chunks::<8>();
    // The last eight once more are read faster than what the chunks leave.
    let last = match name.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    let words = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).chain([last]);
    let hash = words.fold(OFFSET, |hash, word| (hash ^ word).wrapping_mul(PRIME));
    hash ^ hash >> 32 // the low bits alone have not seen the high ones
}
