//! The one timer of the module. It runs `crate::serving`, in a context of its own that
//! may write.

use std::os::raw::c_void;
use std::ptr::null_mut;

use redis_module::raw;

use super::border::guard;
use super::context::{Context, detached};
use super::locked::Locked;
use super::{api, time};
use crate::serving;

/// The timer that is armed, and for when.
static ARMED: Locked<Option<(raw::RedisModuleTimerID, i64)>> = Locked::new(None);

/// Wakes the module at a moment of the monotonic clock, or earlier where it is to wake
/// earlier anyway.
pub(crate) fn wake_at(moment_us: i64) {
    if ARMED.with(|armed| armed.is_none_or(|(_, for_us)| moment_us < for_us)) {
        arm(moment_us);
    }
}

/// Wakes the module now, where its timer should have fired before `now_us`: the server's
/// timers keep to the wall clock, and that may have been set back.
pub(crate) fn wake_if_overdue(now_us: i64) {
    if ARMED.with(|armed| armed.is_some_and(|(_, for_us)| for_us < now_us)) {
        arm(now_us);
    }
}

fn arm(moment_us: i64) {
    let wait_us = u64::try_from(moment_us.saturating_sub(time::monotonic_us())).unwrap_or(0);
    // Up, since a timer that fires early does so for nothing.
    let wait_ms = i64::try_from(wait_us.div_ceil(1000)).unwrap_or(i64::MAX);
    let before = ARMED.with(Option::take);
    // SAFETY: the context lives as long as the server; a timer that is noted has not fired.
    let timer = unsafe {
        if let Some((timer, _)) = before {
            api!(RedisModule_StopTimer(detached(), timer, null_mut()));
        }
        api!(RedisModule_CreateTimer(detached(), wait_ms.min(LONGEST_MS), Some(on_timer), null_mut()))
    };
    ARMED.with(|armed| *armed = Some((timer, moment_us)));
}

/// A server adds this to its clock, so there are waits that it cannot take.
const LONGEST_MS: i64 = 86_400_000;

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    // It is gone: to stop it now would free it twice.
    ARMED.with(Option::take);
    // SAFETY: the server passes a live context.
    let context = unsafe { Context::new(ctx) };
    guard(|| serving::run(&context));
}
