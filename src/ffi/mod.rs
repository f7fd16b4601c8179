//! The border to the server, and all that is unsafe.
//!
//! Two rules keep it sound. Every entry from C that can panic runs in a guard of
//! [`border`], which stops the panic from unwinding into the server. And what is not
//! atomic lives in a [`locked::Locked`], which only entries touch that have the data to
//! themselves: those that run under the server's global lock, on whichever thread holds
//! it, and those in a forked child, which has a copy. `free` is not one of them: it may
//! run on a thread of the server's that has no lock.

mod allocator;
mod answer;
mod blank;
mod blocked;
mod border;
mod cluster;
mod constants;
mod context;
mod datatype;
mod key;
mod load;
mod locked;
mod register;
pub(crate) mod time;
pub(crate) mod timer;
mod value;
mod words;

pub(crate) use blocked::Blocked;
pub(crate) use cluster::check_here;
pub(crate) use context::{Context, ContextFlags};
pub(crate) use key::{Access, Key, NEVER};
pub(crate) use locked::Locked;
pub(crate) use words::{KeptWord, Word, Words};

/// Calls a function of the module API. The pointers are filled in before anything
/// else runs; those that not every server has are probed where they are used.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => unreachable!(concat!(stringify!($function), " is in every server from 7.0 on")),
        }
    };
}
use api;
