//! The arguments of a call, as the server holds them.

use std::marker::PhantomData;
use std::os::raw::{c_char, c_int};
use std::ptr::{null_mut, slice_from_raw_parts};

use redis_module::raw;

use super::api;

/// One argument: bytes that the server owns for as long as the call lasts. As a
/// key's name it is handed back to the server as it came.
#[derive(Clone, Copy)]
pub(crate) struct Word<'call> {
    string: *mut raw::RedisModuleString,
    call: PhantomData<&'call ()>,
}

impl<'call> Word<'call> {
    /// # Safety
    /// `string` is a string of the server's that lives for `'call`.
    pub(super) const unsafe fn new(string: *mut raw::RedisModuleString) -> Self {
        Self { string, call: PhantomData }
    }

    pub(super) const fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.string
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn bytes(self) -> &'call [u8] {
        let mut len = 0;
        // SAFETY: the string lives for `'call`, and so do its bytes, which nobody changes.
        unsafe {
            let bytes = api!(RedisModule_StringPtrLen(self.string, &raw mut len));
            &*slice_from_raw_parts(bytes.cast::<u8>(), len)
        }
    }
}

/// The name of a key, kept beyond the call that brought it.
pub(crate) struct KeptWord(*mut raw::RedisModuleString);

// SAFETY: nobody else has it, and it is only used under the server's lock.
unsafe impl Send for KeptWord {}

impl KeptWord {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // SAFETY: no context is needed where no memory is automatic; the server copies the bytes.
        Self(unsafe { api!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast::<c_char>(), bytes.len())) })
    }

    pub(crate) const fn as_word(&self) -> Word<'_> {
        // SAFETY: it lives as long as `self`.
        unsafe { Word::new(self.0) }
    }
}

impl Clone for KeptWord {
    fn clone(&self) -> Self {
        // SAFETY: it is live; the server counts those who hold it.
        unsafe { api!(RedisModule_RetainString(null_mut(), self.0)) };
        Self(self.0)
    }
}

impl Drop for KeptWord {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once.
        unsafe { api!(RedisModule_FreeString(null_mut(), self.0)) };
    }
}

/// The arguments that are left.
#[derive(Clone)]
pub(crate) struct Words<'call> {
    rest: &'call [*mut raw::RedisModuleString],
}

impl Words<'_> {
    /// # Safety
    /// `argv` holds `argc` strings, all of which live for the lifetime that is chosen.
    pub(super) unsafe fn all(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        match usize::try_from(argc) {
            Ok(0) | Err(_) => Self { rest: &[] }, // then `argv` may be null
            // SAFETY: the caller's promise.
            Ok(len) => Self { rest: unsafe { &*slice_from_raw_parts(argv, len) } },
        }
    }

    /// All but the first, which is the command's name.
    ///
    /// # Safety
    /// As [`Words::all`].
    pub(super) unsafe fn after_name(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        // SAFETY: the caller's promise.
        let mut words = unsafe { Self::all(argv, argc) };
        words.next();
        words
    }
}

impl<'call> Iterator for Words<'call> {
    type Item = Word<'call>;

    #[inline]
    fn next(&mut self) -> Option<Word<'call>> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        // SAFETY: the promise of [`Words::all`].
        Some(unsafe { Word::new(*first) })
    }
}
