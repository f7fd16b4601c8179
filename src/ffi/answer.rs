//! What a command of the server's answers when the module runs it.

use std::os::raw::c_char;
use std::ptr::slice_from_raw_parts;

use redis_module::raw;

use super::api;

/// All of it; freed when it is dropped.
pub(super) struct Answer(*mut raw::RedisModuleCallReply);

impl Answer {
    /// `None` where there is none: where the server refused to run the command, or would not
    /// have refused one that is not to be run.
    ///
    /// # Safety
    /// `answer` is one of the server's that nobody else frees, or null.
    pub(super) const unsafe fn new(answer: *mut raw::RedisModuleCallReply) -> Option<Self> {
        if answer.is_null() { None } else { Some(Self(answer)) }
    }

    pub(super) const fn part(&self) -> Part<'_> {
        Part { of: std::marker::PhantomData, part: self.0 }
    }

    pub(super) fn integer(&self) -> i64 {
        self.part().integer()
    }

    pub(super) fn elements(&self) -> impl Iterator<Item = Part<'_>> {
        (0..).map_while(|index| self.part().element(index))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: the promise of [`Answer::new`].
        unsafe { api!(RedisModule_FreeCallReply(self.0)) };
    }
}

/// A part of an answer, which the answer owns.
#[derive(Clone, Copy)]
pub(super) struct Part<'answer> {
    of: std::marker::PhantomData<&'answer Answer>,
    part: *mut raw::RedisModuleCallReply,
}

impl<'answer> Part<'answer> {
    pub(super) fn element(self, index: usize) -> Option<Self> {
        // SAFETY: the answer is alive. What is no array has no elements.
        let part = unsafe { api!(RedisModule_CallReplyArrayElement(self.part, index)) };
        (!part.is_null()).then_some(Self { part, ..self })
    }

    pub(super) fn integer(self) -> i64 {
        // SAFETY: the answer is alive.
        unsafe { api!(RedisModule_CallReplyInteger(self.part)) }
    }

    pub(super) fn bytes(self) -> Option<&'answer [u8]> {
        let mut len = 0;
        // SAFETY: the answer is alive; null where it is neither a text nor an error.
        unsafe {
            let bytes: *const c_char = api!(RedisModule_CallReplyStringPtr(self.part, &raw mut len));
            (!bytes.is_null()).then(|| &*slice_from_raw_parts(bytes.cast::<u8>(), len))
        }
    }
}
