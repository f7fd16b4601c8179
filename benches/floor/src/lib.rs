//! A module for measuring, not for use: what the module API itself costs.
//!
//! Its commands take what TB.CONSUME takes and reply what it replies, and decide
//! nothing: they read no argument and no clock. They use the API plainly:
//!
//! - `FLOOR.NOTHING` replies;
//! - `FLOOR.DENIED` opens its key, reads the value and replies;
//! - `FLOOR.GRANTED` also writes the value, says so to WATCH, and replicates one blob of
//!   40 bytes, as `FLOOR.STATE key blob`;
//! - `FLOOR.MENDING` also asks when the key expires, as one has to who mends an expiry
//!   that somebody else has changed.
//!
//! They send their replies element by element, as the API has it. TB.CONSUME sends its own
//! in one piece, which no function of the API offers as such: a denial of it can be below
//! this floor.
//!
//! Their keys expire, as any limiter's that is not to fill the memory; but that is set
//! once, when a key is made, and not looked at again.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

const OK: c_int = 0; // as REDISMODULE_OK, which bindgen has as another type
const ERR: c_int = 1;

const AN_HOUR_MS: raw::mstime_t = 3_600_000;

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

/// Calls a function of the module API, which is there once the module is loaded.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match raw::$function {
            Some(function) => function($($argument),*),
            None => return ERR,
        }
    };
}

type Arguments = *mut *mut raw::RedisModuleString;

unsafe extern "C" fn nothing(ctx: *mut raw::RedisModuleCtx, _: Arguments, _: c_int) -> c_int {
    // SAFETY: the server passes a live context.
    unsafe { reply(ctx, 0, c"empty") }
}

unsafe extern "C" fn denied(ctx: *mut raw::RedisModuleCtx, argv: Arguments, _: c_int) -> c_int {
    // SAFETY: the server passes a live context, and as many arguments as the arity asks for.
    unsafe {
        let key = api!(RedisModule_OpenKey(ctx, *argv.add(1), (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed()));
        let value = value_of(key);
        let read = if value.is_null() { 0 } else { value.read() };
        api!(RedisModule_CloseKey(key));
        reply(ctx, read & 1, c"empty")
    }
}

unsafe extern "C" fn granted(ctx: *mut raw::RedisModuleCtx, argv: Arguments, _: c_int) -> c_int {
    // SAFETY: the server's promise, handed on.
    unsafe { grant(ctx, argv, false) }
}

unsafe extern "C" fn mending(ctx: *mut raw::RedisModuleCtx, argv: Arguments, _: c_int) -> c_int {
    // SAFETY: the server's promise, handed on.
    unsafe { grant(ctx, argv, true) }
}

/// # Safety
/// The server passes a live context, and as many arguments as the arity asks for.
unsafe fn grant(ctx: *mut raw::RedisModuleCtx, argv: Arguments, mends: bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let name = *argv.add(1);
        let key = api!(RedisModule_OpenKey(ctx, name, (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed()));
        let value = value_of(key);
        let next = if value.is_null() {
            let (value, first) = (api!(RedisModule_Alloc(16)), 2);
            value.cast::<[i64; 2]>().write([first, 0]);
            api!(RedisModule_ModuleTypeSetValue(key, TYPE.load(Relaxed), value));
            api!(RedisModule_SetExpire(key, AN_HOUR_MS));
            first
        } else {
            let next = value.read().wrapping_add(2);
            value.write(next);
            next
        };
        let expiry = if mends { api!(RedisModule_GetAbsExpire(key)) } else { 0 };
        let blob = [next, expiry, next, next, next];
        let (format, bytes) = (c"sb".as_ptr(), blob.as_ptr().cast::<u8>());
        api!(RedisModule_Replicate(ctx, c"FLOOR.STATE".as_ptr(), format, name, bytes, size_of_val(&blob)));
        api!(RedisModule_SignalModifiedKey(ctx, name));
        api!(RedisModule_CloseKey(key));
        reply(ctx, next & 1, c"granted")
    }
}

unsafe extern "C" fn state(ctx: *mut raw::RedisModuleCtx, _: Arguments, _: c_int) -> c_int {
    // SAFETY: the server passes a live context.
    unsafe { api!(RedisModule_ReplyWithSimpleString(ctx, c"OK".as_ptr())) }
}

/// The first half of a value, which is 16 bytes; null where there is none of our type.
///
/// # Safety
/// The key is open.
unsafe fn value_of(key: *mut raw::RedisModuleKey) -> *mut i64 {
    // SAFETY: the caller's promise.
    unsafe {
        match (raw::RedisModule_ModuleTypeGetType, raw::RedisModule_ModuleTypeGetValue) {
            (Some(of_type), Some(value)) if of_type(key) == TYPE.load(Relaxed) => value(key).cast(),
            _ => null_mut(),
        }
    }
}

/// Five figures, as many digits as TB.CONSUME's.
///
/// # Safety
/// `ctx` is a live context.
unsafe fn reply(ctx: *mut raw::RedisModuleCtx, low: i64, status: &CStr) -> c_int {
    let text = status.to_bytes();
    // SAFETY: the caller's promise; the server copies the text.
    unsafe {
        api!(RedisModule_ReplyWithArray(ctx, 5));
        for number in [low, low, 900 + low, 1000] {
            api!(RedisModule_ReplyWithLongLong(ctx, number));
        }
        api!(RedisModule_ReplyWithStringBuffer(ctx, text.as_ptr().cast::<c_char>(), text.len()))
    }
}

unsafe extern "C" fn load_value(_: *mut raw::RedisModuleIO, _: c_int) -> *mut c_void {
    null_mut() // never saved
}

unsafe extern "C" fn save_value(_: *mut raw::RedisModuleIO, _: *mut c_void) {}

unsafe extern "C" fn free_value(value: *mut c_void) {
    // SAFETY: from the server's allocator.
    unsafe {
        if let Some(free) = raw::RedisModule_Free {
            free(value);
        }
    }
}

/// What the server calls first.
///
/// # Safety
/// To be called by a server that loads the module.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(ctx: *mut raw::RedisModuleCtx, _: Arguments, _: c_int) -> c_int {
    // SAFETY: the server passes a live context; zeros are null pointers.
    unsafe {
        if raw::Export_RedisModule_Init(ctx, c"apifloor".as_ptr(), 1, raw::REDISMODULE_APIVER_1.cast_signed()) != OK {
            return ERR;
        }
        let mut methods: raw::RedisModuleTypeMethods = std::mem::zeroed();
        methods.version = raw::REDISMODULE_TYPE_METHOD_VERSION.into();
        methods.rdb_load = Some(load_value);
        methods.rdb_save = Some(save_value);
        methods.free = Some(free_value);
        TYPE.store(api!(RedisModule_CreateDataType(ctx, c"api-floor".as_ptr(), 0, &raw mut methods)), Relaxed);
        // As TB.CONSUME: no implicit signal for a key that was only opened.
        api!(RedisModule_SetModuleOptions(ctx, raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed()));
        let commands: [(&CStr, unsafe extern "C" fn(_, _, _) -> _); 5] = [
            (c"FLOOR.NOTHING", nothing),
            (c"FLOOR.DENIED", denied),
            (c"FLOOR.GRANTED", granted),
            (c"FLOOR.MENDING", mending),
            (c"FLOOR.STATE", state),
        ];
        for (name, run) in commands {
            if api!(RedisModule_CreateCommand(ctx, name.as_ptr(), Some(run), c"write fast".as_ptr(), 1, 1, 1)) != OK {
                return ERR;
            }
        }
    }
    OK
}
