//! Whether this node of a cluster serves a key. The server sends clients that are
//! blocked by a module on to the node that does only if it knows their keys, which would
//! cost a look at each of them whenever a bucket is made.

use std::ffi::CStr;
use std::io::Error as SystemError;
use std::ptr::slice_from_raw_parts;

use libc::ENOENT;

use super::answer::Answer;
use super::api;
use super::context::{Context, ContextFlags};
use super::words::Word;
use crate::error::Error;

/// That this node serves the key. (A key that exists and is another node's by this is on
/// its way here.)
///
/// # Errors
/// [`Error::Moved`] where another does; [`Error::OnItsWay`] where nobody does for now, as
/// far as is known here.
pub(crate) fn check_here(context: &Context, key: Word<'_>) -> Result<(), Error> {
    if !context.flags().contains(ContextFlags::CLUSTER) {
        return Ok(());
    }
    // A module's call of a command is refused for a key that is not served here; and where the
    // command has another name, which says nothing of the key.
    // SAFETY: the context and the key are live; the format says one string.
    let answer =
        unsafe { Answer::new(api!(RedisModule_Call(context.as_ptr(), c"EXISTS".as_ptr(), c"s".as_ptr(), key.as_ptr()))) };
    if answer.is_some() || SystemError::last_os_error().raw_os_error() == Some(ENOENT) {
        return Ok(());
    }
    Err(moved(context, key).unwrap_or(Error::OnItsWay))
}

/// Where the redirection leads.
fn moved(context: &Context, key: Word<'_>) -> Option<Error> {
    // SAFETY: as above; the formats say two strings, the first (or only) one for C.
    let (slot, slots) = unsafe {
        let call = |format: &CStr, subcommand: &CStr| {
            Answer::new(api!(RedisModule_Call(
                context.as_ptr(),
                c"CLUSTER".as_ptr(),
                format.as_ptr(),
                subcommand.as_ptr(),
                key.as_ptr()
            )))
        };
        (call(c"cs", c"KEYSLOT")?, call(c"c", c"SLOTS")?)
    };
    let slot = slot.integer();
    for range in slots.elements() {
        let (first, last, owner) = (range.element(0)?.integer(), range.element(1)?.integer(), range.element(2)?);
        if (first..=last).contains(&slot) {
            if owner.element(2)?.bytes()? == my_id()? {
                return None; // it is leaving, and the key has left before
            }
            // A node that does not tell its name is reached where this one was.
            let host = owner.element(0)?.bytes().map(|host| String::from_utf8_lossy(host).into_owned()).unwrap_or_default();
            let address = format!("{host}:{}", owner.element(1)?.integer());
            return Some(Error::Moved { slot, address });
        }
    }
    None
}

/// The forty characters by which this node is known to the others.
fn my_id() -> Option<&'static [u8]> {
    const LEN: usize = 40;
    // SAFETY: the server keeps it for ever; it is null where there is no cluster.
    unsafe {
        let id = api!(RedisModule_GetMyClusterID()).cast::<u8>();
        (!id.is_null()).then(|| &*slice_from_raw_parts(id, LEN))
    }
}
