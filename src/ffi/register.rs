//! Commands, COMMAND DOCS, ACL categories and INFO, from the one table.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_uint};
use std::ptr::{null, null_mut};

use redis_module::raw;

use super::allocator::ALLOCATIONS;
use super::api;
use super::border::{ENTRIES, guard};
use super::context::{c_string, log_warning, succeeded};
use super::value;
use crate::commands::COMMANDS;
use crate::commands::spec::{Argument, Audience, Command, KeyAccess, Keys, Kind};
use crate::stats::COUNTERS;
use crate::waiting;
use std::sync::atomic::Ordering::Relaxed;

/// The category that all commands for clients are in, where there can be one (7.4).
const CATEGORY: &CStr = c"tokenbucket";

/// Registers all commands.
///
/// # Safety
/// `ctx` is the context of the module's load.
pub(super) unsafe fn commands(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the caller's promise, throughout.
    unsafe {
        let category = match raw::RedisModule_AddACLCategory {
            Some(add) => succeeded(add(ctx, CATEGORY.as_ptr())),
            None => false,
        };
        for (command, entry) in COMMANDS.iter().zip(ENTRIES) {
            let refused = |what: &str| format!("the server refuses {what} of {}", command.name);
            let name = c_string(command.name);
            let mut flags = command.flags().to_owned();
            if command.keys == Keys::Counted {
                flags.push_str(" getkeys-api"); // see where the border tells them
            }
            let flags = c_string(&flags);
            // Without deny-oom: a bucket that exists goes on limiting when memory is full.
            let (first, last, step) = if command.keys == Keys::First { (1, 1, 1) } else { (0, 0, 0) };
            if !succeeded(api!(RedisModule_CreateCommand(ctx, name.as_ptr(), Some(entry), flags.as_ptr(), first, last, step))) {
                return Err(refused("the name"));
            }
            let handle = api!(RedisModule_GetCommand(ctx, name.as_ptr()));
            if !Info::of(command).set(handle) {
                return Err(refused("the description"));
            }
            if let Some(set) = raw::RedisModule_SetCommandACLCategories {
                let categories = c_string(&command.categories(category));
                if !succeeded(set(handle, categories.as_ptr())) {
                    return Err(refused("the ACL categories"));
                }
            }
        }
    }
    Ok(())
}

impl Command {
    const fn flags(&self) -> &'static str {
        match (self.access, self.audience) {
            (_, _) if self.blocks => "write blocking fast",
            (KeyAccess::Read, _) => "readonly fast",
            (_, Audience::Clients) => "write fast",
            // An administrator's: it can make any bucket anything.
            (_, Audience::Servers) => "write admin fast",
        }
    }

    fn categories(&self, own: bool) -> String {
        let access = if self.access == KeyAccess::Read { "read" } else { "write" };
        match self.audience {
            Audience::Clients => {
                let blocking = if self.blocks { " blocking" } else { "" };
                let own = if own { format!(" {}", CATEGORY.to_string_lossy()) } else { String::new() };
                format!("{access} fast{blocking}{own}")
            }
            Audience::Servers => format!("{access} admin dangerous"),
        }
    }

    pub(super) const fn key_flags(&self) -> u32 {
        match self.access {
            KeyAccess::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            KeyAccess::Update => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE,
            KeyAccess::Overwrite => raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_UPDATE,
        }
    }
}

/// A command's description in the server's structs, and what they point into. The
/// server copies all of it.
struct Info {
    summary: CString,
    complexity: CString,
    since: CString,
    arity: c_int,
    keys: Keys,
    key_flags: u64,
    arguments: Arguments,
}

impl Info {
    fn of(command: &Command) -> Self {
        Self {
            summary: c_string(command.summary),
            complexity: c_string(command.complexity),
            since: c_string(command.since),
            arity: command.arity,
            keys: command.keys,
            key_flags: u64::from(command.key_flags()),
            arguments: Arguments::of(command.arguments),
        }
    }

    /// # Safety
    /// `command` is one that this module has just created.
    unsafe fn set(mut self, command: *mut raw::RedisModuleCommand) -> bool {
        let version = raw::RedisModuleCommandInfoVersion {
            version: 1,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
            sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
        };
        // SAFETY: all zeros is the end of a list in these structs, and valid in each
        // of their fields (null pointers, the integers of the unions).
        let (mut first_key, no_more) = unsafe { std::mem::zeroed::<(raw::RedisModuleCommandKeySpec, _)>() };
        first_key.flags = self.key_flags;
        first_key.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        first_key.bs.index.pos = 1;
        match self.keys {
            Keys::First => {
                first_key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
                first_key.fk.range.keystep = 1;
            }
            Keys::Counted => {
                first_key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
                first_key.fk.keynum =
                    raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 { keynumidx: 0, firstkey: 1, keystep: 1 };
            }
        }
        let mut keys: [raw::RedisModuleCommandKeySpec; 2] = [first_key, no_more];
        let info = raw::RedisModuleCommandInfo {
            version: &raw const version,
            summary: self.summary.as_ptr(),
            complexity: self.complexity.as_ptr(),
            since: self.since.as_ptr(),
            history: null_mut(),
            tips: null(),
            arity: self.arity,
            key_specs: keys.as_mut_ptr(),
            args: self.arguments.as_mut_ptr(),
        };
        // SAFETY: the caller's promise; everything that `info` points to is alive here.
        succeeded(unsafe { api!(RedisModule_SetCommandInfo(command, &raw const info)) })
    }
}

/// A list of arguments in the server's structs, ended by one of all zeros.
struct Arguments {
    list: Vec<raw::RedisModuleCommandArg>,
    /// What the list points into.
    _texts: Vec<CString>,
    _nested: Vec<Self>,
}

impl Arguments {
    fn of(arguments: &[Argument]) -> Self {
        let (mut list, mut texts, mut nested) = (Vec::new(), Vec::new(), Vec::new());
        for argument in arguments {
            let mut text = |text: &str| {
                let text = c_string(text);
                let pointer = text.as_ptr(); // into the heap: it stays when the CString moves
                texts.push(text);
                pointer
            };
            let subargs = match argument.kind {
                Kind::OneOf(parts) | Kind::Block(parts) => {
                    let mut parts = Self::of(parts);
                    let list = parts.as_mut_ptr();
                    nested.push(parts);
                    list
                }
                _ => null_mut(),
            };
            list.push(raw::RedisModuleCommandArg {
                name: text(argument.name),
                type_: type_of(argument.kind),
                key_spec_index: if matches!(argument.kind, Kind::Key) { 0 } else { -1 },
                token: argument.token.map_or(null(), &mut text),
                summary: text(argument.summary),
                since: null(),
                flags: flags_of(argument).cast_signed(),
                deprecated_since: null(),
                subargs,
                display_text: null(),
            });
        }
        // SAFETY: all zeros ends the list: null pointers and integers.
        list.push(unsafe { std::mem::zeroed() });
        Self { list, _texts: texts, _nested: nested }
    }

    fn as_mut_ptr(&mut self) -> *mut raw::RedisModuleCommandArg {
        self.list.as_mut_ptr()
    }
}

const fn flags_of(argument: &Argument) -> u32 {
    let optional = if argument.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
    let repeats = if argument.repeats { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
    optional | repeats
}

const fn type_of(kind: Kind) -> c_uint {
    match kind {
        Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
        Kind::UnixTime => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME,
        Kind::Blob => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        Kind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        Kind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        Kind::Block(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    }
}

// --------------------------------------------------------------------- INFO

/// Registers the INFO section. (The crate's own builds a backtrace for crash
/// reports, and crashes again on some servers.)
///
/// # Safety
/// `ctx` is the context of the module's load.
pub(super) unsafe fn info(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the caller's promise.
    if !succeeded(unsafe { api!(RedisModule_RegisterInfoFunc(ctx, Some(write_info))) }) {
        log_warning("the server refuses the INFO section of tokenbucket");
    }
}

unsafe extern "C" fn write_info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    guard(|| {
        let field = |name: &CStr, value: u64| {
            // SAFETY: the server passes a live context and copies the name.
            unsafe { api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr().cast::<c_char>(), value)) };
        };
        // SAFETY: as above.
        if !succeeded(unsafe { api!(RedisModule_InfoAddSection(ctx, c"stats".as_ptr())) }) {
            return; // another section was asked for
        }
        for counter in COUNTERS {
            field(counter.name, counter.get());
        }
        field(c"buckets", value::COUNT.load(Relaxed));
        let (waiting, longest) = waiting::figures();
        field(c"clients_waiting", waiting);
        field(c"longest_queue", longest);
        if cfg!(debug_assertions) {
            field(c"debug_allocations", ALLOCATIONS.load(Relaxed));
        }
    });
}
