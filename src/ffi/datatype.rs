//! The data type `tokbucket`: what the server asks of a value.
//!
//! An RDB holds `tokenbucket::state` bytes, in a string, and before all keys the
//! module's clock. A server that loads it starts no earlier; where that is too far
//! ahead, the buckets are shifted back instead.

use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::border::guard;
use super::constants::{AUX_BEFORE_RDB, ERR, OK};
use super::context::log_warning;
use super::words::Word;
use super::{api, value};
use crate::{clock, keyspace, waiting};
use tokenbucket::state::{self, Encoded};

/// The name of the type: nine characters, in every RDB that has a bucket.
const NAME: &std::ffi::CStr = c"tokbucket";

/// The encoding version of what is saved; of later ones nothing is known here.
const ENCODING_VERSION: c_int = state::VERSION as c_int;

static HANDLE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

/// By how much the buckets of the RDB that is being loaded are shifted, in microseconds.
static SHIFT_US: AtomicI64 = AtomicI64::new(0);

/// The type, once it is registered.
#[inline]
pub(super) fn handle() -> *mut raw::RedisModuleType {
    HANDLE.load(Relaxed)
}

/// Registers the type. `false` where the server refuses it.
///
/// # Safety
/// `ctx` is the context of the module's load.
pub(super) unsafe fn register(ctx: *mut raw::RedisModuleCtx) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        free: Some(free),
        aux_load: Some(aux_load),
        // From 7.2 on the server takes aux_save2, which leaves no trace in an RDB
        // without buckets; so such an RDB loads where the module is not.
        aux_save: Some(aux_save),
        aux_save2: Some(aux_save_if_any),
        aux_save_triggers: AUX_BEFORE_RDB,
        free_effort: Some(free_effort),
        unlink: None,
        copy: Some(copy),
        defrag: Some(defrag),
        mem_usage2: None,
        free_effort2: None,
        unlink2: Some(unlink),
        copy2: None,
    };
    // SAFETY: the caller's promise; the server copies the methods.
    let handle = unsafe { api!(RedisModule_CreateDataType(ctx, NAME.as_ptr(), ENCODING_VERSION, &raw mut methods)) };
    HANDLE.store(handle, Relaxed);
    !handle.is_null()
}

/// No RDB is being loaded any more, or not yet.
pub(super) fn forget_shift() {
    SHIFT_US.store(0, Relaxed);
}

unsafe extern "C" fn rdb_load(rdb: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    guard(|| {
        if version != ENCODING_VERSION {
            log_warning(&format!(
                "a bucket of encoding version {version} cannot be loaded: this module knows version {ENCODING_VERSION}"
            ));
            return null_mut();
        }
        // SAFETY: `rdb` is live while the entry runs.
        unsafe { load_bytes(rdb, load_value) }.unwrap_or(null_mut())
    })
    .unwrap_or(null_mut())
}

/// A value of what was saved; null where it was not, and then the server reports the key.
fn load_value(bytes: &[u8]) -> *mut c_void {
    state::decode(bytes, SHIFT_US.load(Relaxed)).map_or(null_mut(), |bucket| value::create(&bucket))
}

unsafe extern "C" fn rdb_save(rdb: *mut raw::RedisModuleIO, value: *mut c_void) {
    guard(|| {
        // SAFETY: the server passes a value of this type, and a live `rdb`.
        unsafe { save_bytes(rdb, state::encode(&value::read(value)).as_bytes()) };
    });
}

unsafe extern "C" fn aof_rewrite(aof: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    guard(|| {
        // SAFETY: the server passes a value of this type, its key, and a live `aof`;
        // the format says one string, one buffer with its length.
        unsafe {
            let mut room = Encoded::EMPTY;
            let bytes = keyspace::effect(Word::new(key), &value::read(value), clock::now_us(), &mut room);
            api!(RedisModule_EmitAOF(aof, keyspace::EFFECT.as_ptr(), c"sb".as_ptr(), key, bytes.as_ptr(), bytes.len()));
        }
    });
}

unsafe extern "C" fn aux_save(rdb: *mut raw::RedisModuleIO, _when: c_int) {
    guard(|| {
        // SAFETY: `rdb` is live while the entry runs.
        unsafe { api!(RedisModule_SaveSigned(rdb, clock::now_us())) };
    });
}

unsafe extern "C" fn aux_save_if_any(rdb: *mut raw::RedisModuleIO, when: c_int) {
    if value::COUNT.load(Relaxed) > 0 {
        // SAFETY: handed on.
        unsafe { aux_save(rdb, when) };
    }
}

unsafe extern "C" fn aux_load(rdb: *mut raw::RedisModuleIO, version: c_int, _when: c_int) -> c_int {
    let loaded = guard(|| {
        if version != ENCODING_VERSION {
            log_warning(&format!(
                "an RDB of encoding version {version} cannot be loaded: this module knows version {ENCODING_VERSION}"
            ));
            return false;
        }
        // SAFETY: `rdb` is live while the entry runs.
        let (clock_us, failed) = unsafe { (api!(RedisModule_LoadSigned(rdb)), api!(RedisModule_IsIOError(rdb)) != 0) };
        if failed || !(0..=state::MAX_CLOCK_US).contains(&clock_us) {
            return false;
        }
        SHIFT_US.store(clock::receive(clock_us), Relaxed);
        true
    });
    if loaded == Some(true) { OK } else { ERR }
}

unsafe extern "C" fn free(value: *mut c_void) {
    guard(|| {
        // SAFETY: the server gives the value up.
        unsafe { value::free(value) };
    });
}

/// A bucket is about to go, by whatever command, or to be overwritten. (So nobody has to
/// listen to the events of all keys.)
unsafe extern "C" fn unlink(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    if waiting::is_anybody() {
        guard(|| {
            // SAFETY: the server passes a value of this type, and a live context, whose key
            // lives as long.
            unsafe {
                let key = Word::new(api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut());
                let database = api!(RedisModule_GetDbIdFromOptCtx(ctx));
                waiting::bucket_changed(database, key, &value::read(value), clock::now_us());
            }
        });
    }
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, _value: *const c_void) -> usize {
    1 // one allocation: not worth a thread
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    guard(|| {
        // SAFETY: the server passes a value of this type, which its allocator made.
        unsafe { api!(RedisModule_MallocSize(value.cast_mut())) }
    })
    .unwrap_or(0)
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard(|| {
        // SAFETY: the server passes a value of this type, and a live `digest`.
        unsafe {
            let encoded = state::encode(&value::read(value));
            let bytes = encoded.as_bytes();
            api!(RedisModule_DigestAddStringBuffer(digest, bytes.as_ptr().cast::<c_char>(), bytes.len()));
            api!(RedisModule_DigestEndSequence(digest));
        }
    });
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the server passes a value of this type.
    guard(|| unsafe { value::create(&value::read(value)) }).unwrap_or(null_mut())
}

unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the server passes the place of a value of this type; it is one
        // allocation that nothing else points into.
        unsafe {
            let moved = api!(RedisModule_DefragAlloc(ctx, *value));
            if !moved.is_null() {
                *value = moved;
            }
        }
    });
    0 // done
}

/// Hands the next string of `rdb` to `work`; `None` where there is none.
///
/// # Safety
/// `rdb` is live.
unsafe fn load_bytes<R>(rdb: *mut raw::RedisModuleIO, work: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut len = 0;
    // SAFETY: the caller's promise; the buffer is ours, of `len` bytes, to be freed once.
    unsafe {
        let buffer = api!(RedisModule_LoadStringBuffer(rdb, &raw mut len));
        if buffer.is_null() {
            return None;
        }
        let result = (api!(RedisModule_IsIOError(rdb)) == 0).then(|| work(&*slice_from_raw_parts(buffer.cast::<u8>(), len)));
        api!(RedisModule_Free(buffer.cast::<c_void>()));
        result
    }
}

/// # Safety
/// `rdb` is live.
unsafe fn save_bytes(rdb: *mut raw::RedisModuleIO, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { api!(RedisModule_SaveStringBuffer(rdb, bytes.as_ptr().cast::<c_char>(), bytes.len())) };
}
