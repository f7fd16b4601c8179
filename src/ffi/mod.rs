//! The border to the server, and all that is unsafe.
//!
//! Two rules keep it sound. Every entry from C goes through [`border`], which
//! stops a panic from unwinding into the server. And everything but `free` runs
//! under the server's global lock, on whichever thread holds it: what is not
//! atomic lives in a [`locked::Locked`].

mod allocator;
mod border;
mod constants;
mod context;
mod datatype;
mod key;
mod load;
mod locked;
mod register;
pub(crate) mod time;
mod value;
mod words;

pub(crate) use context::{Context, ContextFlags};
pub(crate) use key::{Access, Key};
pub(crate) use locked::Locked;
pub(crate) use words::{Word, Words};

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
