//! Clients that wait for a reply. The server blocks them and lets them go; whoever
//! goes away or is let go by somebody else is told to `crate::serving`.

use std::os::raw::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use redis_module::raw;

use super::api;
use super::border::{answer, guard};
use super::constants::OK;
use super::context::Context;
use crate::error::Error;
use crate::reply::Reply;
use crate::serving;

/// A client that waits. To be released once, by [`Blocked::answer`] or by the callbacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Blocked(NonNull<raw::RedisModuleBlockedClient>);

// SAFETY: a handle, which is only used under the server's lock, on whichever thread holds it.
unsafe impl Send for Blocked {}

type Outcome = Result<Reply, Error>;

impl Blocked {
    /// Blocks the client of the call, for as long as it takes: how long it is willing to
    /// wait is kept by the caller, whose clock does not step. (The callback for a time-out
    /// is what lets CLIENT UNBLOCK end the wait.) `None` where the server refuses.
    pub(crate) fn block(context: &Context) -> Option<Self> {
        // SAFETY: the context is live, and no transaction or script: the caller has asked.
        unsafe {
            let client =
                api!(RedisModule_BlockClient(context.as_ptr(), Some(on_answer), Some(on_time_out), Some(free_outcome), 0));
            let client = NonNull::new(client)?;
            api!(RedisModule_SetDisconnectCallback(client.as_ptr(), Some(on_disconnect)));
            Some(Self(client))
        }
    }

    /// Sends the client its reply. It is written when the command or timer at hand is done.
    pub(crate) fn answer(self, outcome: Outcome) {
        let outcome = Box::into_raw(Box::new(outcome));
        // SAFETY: it is blocked, and not released before.
        unsafe { api!(RedisModule_UnblockClient(self.0.as_ptr(), outcome.cast::<c_void>())) };
    }

    /// Gives up the handle of a client that is gone, or has its reply.
    fn release(self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_UnblockClient(self.0.as_ptr(), null_mut())) };
    }
}

unsafe extern "C" fn on_answer(ctx: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    // SAFETY: the server passes a live context, with what `answer` gave to it.
    let (context, outcome) =
        unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Outcome>().as_ref()) };
    if let Some(outcome) = outcome {
        answer(&context, outcome);
    }
    OK
}

unsafe extern "C" fn free_outcome(_: *mut raw::RedisModuleCtx, outcome: *mut c_void) {
    guard(|| {
        if !outcome.is_null() {
            // SAFETY: from `answer`, and freed once.
            drop(unsafe { Box::from_raw(outcome.cast::<Outcome>()) });
        }
    });
}

/// CLIENT UNBLOCK, as if the time were over.
unsafe extern "C" fn on_time_out(ctx: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    // SAFETY: the server passes a live context, of a client that was blocked by `block`.
    let (context, client) = unsafe { (Context::new(ctx), NonNull::new(api!(RedisModule_GetBlockedClientHandle(ctx)))) };
    let Some(client) = client.map(Blocked) else { return OK };
    let outcome = guard(|| serving::give_up(&context, client)).unwrap_or(Some(Err(Error::Internal)));
    if let Some(outcome) = outcome {
        answer(&context, &outcome);
        client.release();
    }
    OK
}

unsafe extern "C" fn on_disconnect(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    let Some(client) = NonNull::new(client).map(Blocked) else { return };
    // One that was answered a moment ago is no longer known, and released already.
    if guard(|| serving::forget(client)) == Some(true) {
        client.release();
    }
}
