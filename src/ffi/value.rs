//! What is behind the pointer that the server keeps for a bucket: the words of
//! `tokenbucket::packed`, or an encoding with a two-byte head. The low bits of the
//! first byte tell which. Allocated by the server, so that its figures are right.

use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{copy_nonoverlapping, slice_from_raw_parts};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::api;
use crate::limits;
use tokenbucket::packed::{self, Form, Packed};
use tokenbucket::{Bucket, state};

/// The first byte of an encoding; no form of packed words.
const ENCODED: u8 = 0;
/// Before an encoding: [`ENCODED`] and its length, in a byte each.
const HEAD: usize = 2;
const _: () = assert!(state::MAX_LEN <= u8::MAX as usize);
/// Encodings live in multiples of this, which is what allocators have, so that
/// one that grows a little is still written in place.
const STEP: usize = 16;

/// What is at a value, before it is unpacked.
enum Stored {
    Shared([u64; 2]),
    Lone([u64; 4]),
    Encoded { len: usize },
}

/// How many values there are.
pub(crate) static COUNT: AtomicU64 = AtomicU64::new(0);

/// A new value for `bucket`. The caller owns it.
pub(super) fn create(bucket: &Bucket) -> *mut c_void {
    place(&packed::pack(bucket, |limit| limits::share(limit, 0)))
}

/// A new value of what is packed.
fn place(packed: &Packed) -> *mut c_void {
    COUNT.fetch_add(1, Relaxed);
    // SAFETY: the size is never 0, and all of it is for `packed`. (The server's
    // allocator ends the process rather than return null.)
    unsafe {
        let value = api!(RedisModule_Alloc(footprint(packed)));
        write(value, packed);
        value
    }
}

/// The bucket in a value.
///
/// # Safety
/// `value` is from [`create`] or [`replace`] and not freed.
#[inline]
pub(super) unsafe fn read(value: *const c_void) -> Bucket {
    // SAFETY: the caller's promise.
    let stored = unsafe { stored(value) };
    match stored {
        Stored::Shared(words) => limits::get(packed::shared_index(words)).map(|limit| packed::unpack_shared(words, limit)),
        Stored::Lone(words) => packed::unpack_lone(words),
        // SAFETY: the caller's promise: the length is that of what follows the head.
        Stored::Encoded { len } => state::decode(unsafe { &*slice_from_raw_parts(value.cast::<u8>().add(HEAD), len) }, 0).ok(),
    }
    .unwrap_or_else(|| unreachable!("a value holds what was packed into it"))
}

/// Makes `bucket` of the value: in place where the size stays, else as a new value
/// that the caller is to put in its place and free the old.
///
/// # Safety
/// As [`read`], and nobody else reads it meanwhile.
#[inline]
#[must_use]
pub(super) unsafe fn replace(value: *mut c_void, bucket: &Bucket) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let old = unsafe { stored(value) };
    let packed = packed::pack(bucket, |limit| match &old {
        // A limit that stays is shared, or lone, as it was. It is not seen once more.
        Stored::Shared(words) if limits::get(packed::shared_index(*words)).as_ref() == Some(limit) => {
            Some(packed::shared_index(*words))
        }
        Stored::Lone(words) if packed::unpack_lone(*words).is_some_and(|bucket| bucket.limit() == Some(limit)) => None,
        // SAFETY: the caller's promise.
        Stored::Encoded { .. } if unsafe { read(value) }.limit() == Some(limit) => limits::share_again(limit),
        _ => limits::share(limit, value.addr()),
    });
    if footprint(&packed) != old.footprint() {
        return Some(place(&packed));
    }
    match (&old, &packed) {
        (Stored::Shared(old), Packed::Shared(new)) if packed::shared_index(*old) == packed::shared_index(*new) => {}
        (Stored::Shared(old), _) => limits::release(packed::shared_index(*old)),
        _ => {}
    }
    // SAFETY: it has the room that `packed` takes.
    unsafe { write(value, &packed) };
    None
}

/// Gives a value back. May run on a thread of the server's that does not hold its lock.
///
/// # Safety
/// As [`read`]; the value is gone after it.
pub(super) unsafe fn free(value: *mut c_void) {
    COUNT.fetch_sub(1, Relaxed);
    // SAFETY: the caller's promise, handed on.
    unsafe {
        if let Stored::Shared(words) = stored(value) {
            limits::release(packed::shared_index(words));
        }
        api!(RedisModule_Free(value));
    }
}

/// # Safety
/// As [`read`].
#[inline]
unsafe fn stored(value: *const c_void) -> Stored {
    // SAFETY: every value has at least 16 bytes, allocated for any alignment; the
    // form in the first says how many more.
    unsafe {
        let words = value.cast::<u64>();
        match Form::of(words.read()) {
            Form::Shared => Stored::Shared(words.cast::<[u64; 2]>().read()),
            Form::Lone => Stored::Lone(words.cast::<[u64; 4]>().read()),
            Form::Other => Stored::Encoded { len: usize::from(value.cast::<u8>().add(1).read()) },
        }
    }
}

/// # Safety
/// `value` has room for `packed`.
#[inline]
unsafe fn write(value: *mut c_void, packed: &Packed) {
    // SAFETY: the caller's promise.
    unsafe {
        match packed {
            Packed::Shared(words) => value.cast::<[u64; 2]>().write(*words),
            Packed::Lone(words) => value.cast::<[u64; 4]>().write(*words),
            Packed::Encoded(encoded) => {
                let (bytes, value) = (encoded.as_bytes(), value.cast::<u8>());
                value.write(ENCODED);
                value.add(1).write(u8::try_from(bytes.len()).unwrap_or(u8::MAX)); // it fits, see HEAD
                copy_nonoverlapping(bytes.as_ptr(), value.add(HEAD), bytes.len());
            }
        }
    }
}

const SHARED_SIZE: usize = size_of::<[u64; 2]>();
const LONE_SIZE: usize = size_of::<[u64; 4]>();

const fn encoded_size(len: usize) -> usize {
    (HEAD + len).next_multiple_of(STEP)
}

impl Stored {
    const fn footprint(&self) -> usize {
        match self {
            Self::Shared(_) => SHARED_SIZE,
            Self::Lone(_) => LONE_SIZE,
            Self::Encoded { len } => encoded_size(*len),
        }
    }
}

fn footprint(packed: &Packed) -> usize {
    match packed {
        Packed::Shared(_) => SHARED_SIZE,
        Packed::Lone(_) => LONE_SIZE,
        Packed::Encoded(encoded) => encoded_size(encoded.as_bytes().len()),
    }
}
