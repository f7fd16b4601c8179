//! Where C calls Rust. A panic must not unwind into the server, which would abort:
//! here it becomes an error to the client, and a line in the log.

use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redis_module::raw;

use super::constants::{ERR, OK};
use super::context::{Context, log_warning};
use super::words::Words;
use crate::args::{self, Args};
use crate::commands::spec::{Command, Keys};
use crate::commands::{COMMANDS, Call};
use crate::error::Error;
use crate::reply::Reply;

/// The signature of a command for C.
pub(super) type Entry = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// One entry for each command, as C calls them: a function pointer has no room
/// for saying which command is meant, so each has a function of its own.
pub(super) const ENTRIES: [Entry; COMMANDS.len()] = {
    // More than there are commands, for `entry` needs its index when it is compiled.
    let all: [Entry; 8] = [entry::<0>, entry::<1>, entry::<2>, entry::<3>, entry::<4>, entry::<5>, entry::<6>, entry::<7>];
    let mut entries = [all[0]; COMMANDS.len()];
    let mut i = 0;
    #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
    while i < entries.len() {
        entries[i] = all[i];
        i += 1;
    }
    entries
};

unsafe extern "C" fn entry<const INDEX: usize>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let Some(command) = COMMANDS.get(INDEX) else {
        return ERR; // an entry to spare
    };
    // SAFETY: the server passes a live context, and argc arguments that live as long as the call.
    let (context, words) = unsafe { (Context::new(ctx), Words::after_name(argv, argc)) };
    if command.keys == Keys::Counted && tells_keys(&context, words.clone(), command) {
        return OK;
    }
    // The reply is written after the closure has returned: a panic half-way
    // through one would leave the client waiting for the rest.
    let mut outcome = Err(Error::Internal);
    guard(|| outcome = (command.run)(&mut Call { context: &context, args: Args::new(words) }));
    answer(&context, &outcome);
    OK
}

/// Where keys are counted the server asks for their places before it looks for the slot:
/// the command is called, and is not to be run. (It has them in the description too, and
/// looks there for the user's permissions alone.)
fn tells_keys(context: &Context, mut words: Words<'_>, command: &Command) -> bool {
    if !context.asks_for_keys() {
        return false;
    }
    // A count that is wrong has no keys: the call is then refused before it opens any.
    if let Some(count) = words.next().and_then(|count| args::key_count(count.bytes()))
        && words.count() >= count
    {
        (0..count).for_each(|key| context.tell_key(key + FIRST_OF_COUNTED, command.key_flags()));
    }
    true
}

/// Where the first key is, after the command's name and the count.
const FIRST_OF_COUNTED: usize = 2;

/// Writes what came of a call.
#[inline]
pub(super) fn answer(context: &Context, outcome: &Result<Reply, Error>) {
    guard(|| match outcome {
        Ok(reply) => reply.write(context),
        Err(Error::WrongArity) => context.reply_wrong_arity(),
        Err(error) => context.reply_error(&error.to_string()),
    });
}

/// Runs `work`; `None` where it panicked, which the hook has logged.
#[inline]
pub(super) fn guard<R>(work: impl FnOnce() -> R) -> Option<R> {
    // Nothing that `work` may leave half done outlives it: a bucket is changed
    // by value and stored whole, and counters are only counted.
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Logs a panic, and no more: std's hook would print a backtrace, for which it
/// mixes allocators on some servers and aborts even a panic that is caught.
pub(super) fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |place| format!(" at {}:{}", place.file(), place.line()));
        let payload = info.payload();
        let what = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
        log_warning(&format!(
            "a fault in the module was stopped{place}: {}. Please report it; the server goes on.",
            what.unwrap_or("panic")
        ));
    }));
}
