//! Loading the module: an OnLoad of our own, because the crate's macro goes on when
//! a setting is refused, and sets commands up in a way that 7.0 does not take.

use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redis_module::raw;

use super::border::{guard, log_panics};
use super::constants::{API_VERSION, ERR, OK};
use super::context::{Context, ContextFlags, detach, log_warning, succeeded};
use super::words::{Word, Words};
use super::{api, blank, datatype, register};
use crate::config::{SETTINGS, Setting};
use crate::waiting;

const NAME: &CStr = c"tokenbucket";
/// The package's version as the server shows it: 0.1.0 is 100.
const VERSION: c_int = 100;

/// What the server calls first.
///
/// # Safety
/// To be called by a server that loads the module.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes a live context. Nothing may allocate before this.
    let joined = unsafe { raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, API_VERSION) };
    if !succeeded(joined) {
        return ERR; // the name is taken: it is loaded already
    }
    // SAFETY: handed on.
    match guard(|| unsafe { load(ctx, argv, argc) }) {
        Some(Ok(())) => OK,
        Some(Err(reason)) => {
            log_warning(&format!("tokenbucket was not loaded: {reason}"));
            ERR
        }
        None => ERR,
    }
}

/// # Safety
/// As [`RedisModule_OnLoad`].
unsafe fn load(ctx: *mut raw::RedisModuleCtx, argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Result<(), String> {
    log_panics();
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let (set_info, set_config) = (raw::RedisModule_SetCommandInfo, raw::RedisModule_RegisterNumericConfig);
        if set_info.is_none() || set_config.is_none() {
            return Err("it needs a server of version 7.0 or later".to_owned());
        }
        // The last: a key closed after it was opened for writing is otherwise reported
        // as changed, though nothing was, which breaks WATCH and empties client caches.
        let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
        let options = options.cast_signed() | atomic_slot_migration(ctx);
        api!(RedisModule_SetModuleOptions(ctx, options));
        if !datatype::register(ctx) {
            return Err("the server refuses its data type".to_owned());
        }
        register::commands(ctx)?;
        settings(ctx, argv, argc)?;
        blank::prepare(ctx);
        register::info(ctx);
        events(ctx);
        detach(ctx);
        warn_of_eviction(&Context::new(ctx));
    }
    Ok(())
}

/// Valkey's option (from 9.0) that says that a module's keys may move with their
/// slots. Without it Valkey refuses to move any slot. Ours arrive as TB.STATE, which
/// is all there is to it. Elsewhere the bit may come to mean something else: 0.
///
/// # Safety
/// `ctx` is the context of the module's load.
unsafe fn atomic_slot_migration(ctx: *mut raw::RedisModuleCtx) -> c_int {
    const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;
    // SAFETY: the caller's promise; the data is ours to free, and its texts live as long.
    unsafe {
        let Some(all_options) = raw::RedisModule_GetModuleOptionsAll else { return 0 };
        let info = api!(RedisModule_GetServerInfo(ctx, c"server".as_ptr()));
        let name = api!(RedisModule_ServerInfoGetFieldC(info, c"server_name".as_ptr()));
        let is_valkey = !name.is_null() && CStr::from_ptr(name) == c"valkey";
        api!(RedisModule_FreeServerInfo(ctx, info));
        if is_valkey { all_options() & HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 }
    }
}

// ----------------------------------------------------------------- settings

/// # Safety
/// As [`RedisModule_OnLoad`].
unsafe fn settings(ctx: *mut raw::RedisModuleCtx, argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Result<(), String> {
    // SAFETY: the caller's promise, throughout; a setting lives for ever.
    unsafe {
        let mut defaults = SETTINGS.map(|setting| setting.default);
        arguments(Words::all(argv, argc), &mut defaults)?;
        for (setting, default) in SETTINGS.into_iter().zip(defaults) {
            let registered = api!(RedisModule_RegisterNumericConfig(
                ctx,
                setting.name.as_ptr(),
                default,
                raw::REDISMODULE_CONFIG_DEFAULT,
                setting.least,
                setting.most,
                Some(get_setting),
                Some(set_setting),
                None,
                std::ptr::from_ref(setting).cast_mut().cast::<c_void>(),
            ));
            if !succeeded(registered) {
                return Err(format!("the server refuses its setting {}", setting.name.to_string_lossy()));
            }
        }
        if !succeeded(api!(RedisModule_LoadConfigs(ctx))) {
            return Err("a setting in the configuration file is not valid".to_owned());
        }
    }
    Ok(())
}

/// `loadmodule path name seconds ...`: the server makes them defaults unchecked, so
/// they are checked here. A line in the configuration file beats them.
fn arguments<'a>(words: Words<'a>, defaults: &mut [i64; SETTINGS.len()]) -> Result<(), String> {
    let mut words = words.map(Word::bytes);
    let text = |bytes: &'a [u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(name) = words.next() {
        let mut known = SETTINGS.into_iter().zip(defaults.iter_mut());
        let Some((setting, default)) = known.find(|(setting, _)| setting.name.to_bytes().eq_ignore_ascii_case(name)) else {
            return Err(format!("'{}' is not one of its settings", text(name)));
        };
        let value = words.next().map(text).unwrap_or_default();
        *default = value.parse().ok().filter(|value| (setting.least..=setting.most).contains(value)).ok_or_else(|| {
            let (unit, least, most) = (setting.unit, setting.least, setting.most);
            format!("{} must be a whole number of {unit} from {least} to {most}, not '{value}'", text(name))
        })?;
    }
    Ok(())
}

unsafe extern "C" fn get_setting(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: registered with a setting, which lives for ever.
    unsafe { &*setting.cast::<Setting>() }.get()
}

unsafe extern "C" fn set_setting(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: registered with a setting, which lives for ever.
    unsafe { &*setting.cast::<Setting>() }.set(value);
    OK
}

// ------------------------------------------------------------------- events

/// # Safety
/// As [`RedisModule_OnLoad`].
unsafe fn events(ctx: *mut raw::RedisModuleCtx) {
    let events: [(u64, unsafe extern "C" fn(_, _, _, _)); 7] = [
        (raw::REDISMODULE_EVENT_LOADING, on_loading),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, on_loading),
        (raw::REDISMODULE_EVENT_CONFIG, on_change),
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_other_data),
        (raw::REDISMODULE_EVENT_SWAPDB, on_other_data),
        (raw::REDISMODULE_EVENT_CRON_LOOP, on_cron),
    ];
    for (id, handler) in events {
        // SAFETY: the caller's promise. A server that does not know an event says
        // so, and then never fires it.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, raw::RedisModuleEvent { id, dataver: 1 }, Some(handler))) };
    }
}

unsafe extern "C" fn on_loading(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    datatype::forget_shift(); // whether it begins or ends
    guard(waiting::all_changed);
}

unsafe extern "C" fn on_role(ctx: *mut raw::RedisModuleCtx, event: raw::RedisModuleEvent, sub: u64, data: *mut c_void) {
    guard(waiting::all_changed); // a replica serves nobody
    // SAFETY: handed on. A replica leaves eviction to its primary, until it is one.
    unsafe { on_change(ctx, event, sub, data) };
}

unsafe extern "C" fn on_other_data(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    guard(waiting::all_changed);
}

/// Ten times a second, or as "hz" has it.
unsafe extern "C" fn on_cron(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    if waiting::is_anybody() {
        guard(waiting::look_at_clocks);
    }
}

unsafe extern "C" fn on_change(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    // SAFETY: the server passes a live context.
    let context = unsafe { Context::new(ctx) };
    guard(|| warn_of_eviction(&context));
}

/// An evicted bucket is a full one: a limit that memory pressure lifts.
fn warn_of_eviction(context: &Context) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let evicts = context.flags().contains(ContextFlags::EVICTS);
    if evicts && !WARNED.load(Relaxed) {
        log_warning(
            "maxmemory-policy can evict buckets, and an evicted bucket is full again: \
             tokenbucket is exact only with maxmemory-policy noeviction",
        );
    }
    WARNED.store(evicts, Relaxed);
}
