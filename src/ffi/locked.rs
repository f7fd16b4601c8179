//! State that the server's global lock guards; the rule is in `mod.rs`.

use std::cell::UnsafeCell;

/// A value that one entry from the server at a time can touch.
pub(crate) struct Locked<T>(UnsafeCell<T>);

// SAFETY: one thread at a time, see above.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Runs `work` on the value. `work` must not come back here: it has the only
    /// reference there is. (All uses are a few lines; of the server they call only what
    /// does not call the module back.)
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock keeps other threads out, the rule above this one.
        work(unsafe { &mut *self.0.get() })
    }
}
