//! The allocator: the server's, so that its memory figures and limits hold for us.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::alloc::RedisAlloc;

/// How often the module's own code has allocated. Debug builds show it in INFO;
/// a test holds it against the promise that a TB.CONSUME never does.
pub(crate) static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// Unit tests run without a server, and fuzzers before they pretend to be one, so with
// the system's allocator.
#[cfg(not(any(test, fuzzing)))]
#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg_attr(any(test, fuzzing), expect(dead_code, reason = "see above"))]
struct Counting;

// SAFETY: hands everything on to an allocator that keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if cfg!(debug_assertions) {
            ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { RedisAlloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { RedisAlloc.dealloc(ptr, layout) }
    }
}
