//! The context of a call: replies, replication, events, the log.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_long};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::answer::Answer;
use super::api;
use super::constants::OK;
use super::words::Word;

bitflags::bitflags! {
    /// What the server says of itself and of the client, as far as it is used here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ContextFlags: u32 {
        /// More than `maxmemory` is used.
        const OUT_OF_MEMORY = raw::REDISMODULE_CTX_FLAGS_OOM;
        /// `maxmemory` is set, with a policy that evicts keys.
        const EVICTS = raw::REDISMODULE_CTX_FLAGS_EVICT;
        /// The command came from the primary.
        const REPLICATED = raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        /// An RDB or AOF is being loaded.
        const LOADING = raw::REDISMODULE_CTX_FLAGS_LOADING;
        /// The server is a primary.
        const PRIMARY = raw::REDISMODULE_CTX_FLAGS_MASTER;
        /// It is a node of a cluster.
        const CLUSTER = raw::REDISMODULE_CTX_FLAGS_CLUSTER;
        /// The client cannot wait: it is in a transaction or script.
        const CANNOT_BLOCK = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    }
}

/// The first version of the server that a timer can have run a command as in a script: those
/// before look at the client of the call, which there is none of, and crash.
const SCRIPTS_FROM_TIMERS: c_int = 0x0007_0003;

/// The first version of the server that says whether it would run a command, and does not.
const DRY_RUNS: c_int = 0x0007_0200;

/// The context of one call.
pub(crate) struct Context(*mut raw::RedisModuleCtx);

impl Context {
    /// # Safety
    /// `ctx` is one that the server has passed to an entry that has not returned.
    pub(super) const unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self(ctx)
    }

    pub(super) const fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    pub(crate) fn flags(&self) -> ContextFlags {
        // SAFETY: `self.0` is live.
        let flags = unsafe { api!(RedisModule_GetContextFlags(self.0)) };
        ContextFlags::from_bits_truncate(flags.cast_unsigned())
    }

    /// Whether nothing keeps the server from writing of itself now, as CLIENT PAUSE,
    /// FAILOVER and a shutdown do, to keep what it writes from being lost to its replicas.
    pub(crate) fn may_write(&self) -> bool {
        // SAFETY: takes nothing.
        let avoid = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
        !avoid && !self.flags().contains(ContextFlags::LOADING)
    }

    /// Whether the server would refuse a client's write now, having too few replicas for
    /// `min-replicas-to-write` or a disk that it could not write to. It lets a module write
    /// of itself all the same, and says so only of a command that is run as in a script: of
    /// one, then, that changes nothing.
    pub(crate) fn is_write_refused(&self) -> bool {
        let (empty, zero, later) = (c"".as_ptr(), c"0".as_ptr(), c"GT".as_ptr());
        // SAFETY: `self.0` is live; the formats say as many strings of C as follow.
        let answer = unsafe {
            let answer = match api!(RedisModule_GetServerVersion()) {
                ..SCRIPTS_FROM_TIMERS => return false,
                // With GT it sets nothing: an expiry is never below 0, and none counts as the latest.
                // (Whether the key is this node's is looked for last.)
                SCRIPTS_FROM_TIMERS..DRY_RUNS => {
                    api!(RedisModule_Call(self.0, c"PEXPIREAT".as_ptr(), c"SEccc".as_ptr(), empty, zero, later))
                }
                // As many words as the command has at least. It is not run. Its keys are none, since
                // some servers look for those first.
                DRY_RUNS.. => {
                    let (command, format) = (c"TB.MCONSUME".as_ptr(), c"SEDcccccc".as_ptr());
                    api!(RedisModule_Call(self.0, command, format, zero, empty, empty, empty, empty, empty))
                }
            };
            Answer::new(answer)
        };
        let error = answer.as_ref().and_then(|answer| answer.part().bytes()).unwrap_or_default();
        error.starts_with(b"NOREPLICAS") || error.starts_with(b"MISCONF")
    }

    /// The database of the client.
    pub(crate) fn database(&self) -> c_int {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_GetSelectedDb(self.0)) }
    }

    /// Works on another database from here on. For contexts that are no client's.
    pub(crate) fn select(&self, database: c_int) {
        // SAFETY: `self.0` is live; a number that is none changes nothing.
        unsafe { api!(RedisModule_SelectDb(self.0, database)) };
    }

    // ----------------------------------------------------------------- keys

    /// Whether the server calls the command only to learn where its keys are.
    pub(super) fn asks_for_keys(&self) -> bool {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.0)) != 0 }
    }

    /// Answers that with one of the keys.
    pub(super) fn tell_key(&self, argument: usize, flags: u32) {
        let Ok(argument) = c_int::try_from(argument) else { return };
        // SAFETY: `self.0` is live, and has asked.
        unsafe { api!(RedisModule_KeyAtPosWithFlags(self.0, argument, flags.cast_signed())) };
    }

    // -------------------------------------------------------------- replies

    pub(crate) fn reply_integer(&self, number: i64) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.0, number)) };
    }

    pub(crate) fn reply_bulk(&self, text: &[u8]) {
        // SAFETY: `self.0` is live; the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.0, text.as_ptr().cast::<c_char>(), text.len())) };
    }

    pub(crate) fn reply_simple(&self, text: &CStr) {
        // SAFETY: `self.0` is live; the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.0, text.as_ptr())) };
    }

    pub(crate) fn reply_null(&self) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_ReplyWithNull(self.0)) };
    }

    /// The head of an array; `len` replies must follow.
    pub(crate) fn reply_array(&self, len: u8) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_ReplyWithArray(self.0, c_long::from(len))) };
    }

    /// The head of a map, in RESP2 of a flat array; `len` pairs must follow.
    pub(crate) fn reply_map(&self, len: u8) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_ReplyWithMap(self.0, c_long::from(len))) };
    }

    pub(super) fn reply_wrong_arity(&self) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_WrongArity(self.0)) };
    }

    pub(super) fn reply_error(&self, text: &str) {
        let text = c_string(text);
        // SAFETY: `self.0` is live; the server copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.0, text.as_ptr())) };
    }

    // -------------------------------------------------------------- effects

    /// Sends `command key payload` to replicas and AOF. To be called for every
    /// change, even when nobody listens: a later partial resync reads the backlog.
    pub(crate) fn replicate(&self, command: &CStr, key: Word<'_>, payload: &[u8]) {
        // SAFETY: `self.0` and `key` are live; the format says one string, one buffer with its length.
        unsafe {
            api!(RedisModule_Replicate(self.0, command.as_ptr(), c"sb".as_ptr(), key.as_ptr(), payload.as_ptr(), payload.len()))
        };
    }

    /// Sends the command as it came to replicas and AOF.
    pub(crate) fn replicate_verbatim(&self) {
        // SAFETY: `self.0` is live.
        unsafe { api!(RedisModule_ReplicateVerbatim(self.0)) };
    }

    /// Tells WATCH and client-side caches that the key has changed.
    pub(crate) fn signal_modified(&self, key: Word<'_>) {
        // SAFETY: `self.0` and `key` are live.
        unsafe { api!(RedisModule_SignalModifiedKey(self.0, key.as_ptr())) };
    }

    /// A keyspace event of the class for modules.
    pub(crate) fn notify(&self, event: &CStr, key: Word<'_>) {
        // SAFETY: `self.0` and `key` are live; the server copies the event.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.0, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), key.as_ptr())) };
    }
}

/// The context of timers, and of lines in the log that no call is at hand for; null
/// until the module is loaded, which the log takes too but then knows no name.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Makes the context that is not of any call. From here on lines in the log bear the
/// module's name.
///
/// # Safety
/// `ctx` is the context of the module's load.
pub(super) unsafe fn detach(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the caller's promise. The new context lives as long as the server.
    DETACHED.store(unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx)) }, Relaxed);
}

/// The context that is not of any call, which lives as long as the server.
pub(super) fn detached() -> *mut raw::RedisModuleCtx {
    DETACHED.load(Relaxed)
}

/// A line in the server's log, at level warning.
pub(crate) fn log_warning(text: &str) {
    let text = c_string(text);
    // SAFETY: see [`DETACHED`] (unit tests have no log at all). The text is an argument,
    // never the format: a `%n` in it would be a write.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(detached(), c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr());
        }
    }
}

/// `text` for C, with a blank for every NUL.
pub(super) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

pub(super) fn succeeded(status: c_int) -> bool {
    status == OK
}
