//! Replies in one piece.
//!
//! The API writes an array element by element, and every element costs some 200
//! instructions. One thing it does send in one piece: what another command has answered.
//! So at load the server is asked, once, for strings of every length that our commonest
//! reply can have. These are the blanks: a reply is written over the blank of its length,
//! and the blank is sent. That makes a call of 10,000 instructions one of 8,900.
//!
//! The bytes of an answer are the server's, who hands them out to be read. Nothing but its
//! own answer points to them, they are on its heap, and they go out as they are: so it is
//! in all servers from 7.0 on, Valkey's too. Where one gives no such answer (COMMAND may
//! have been renamed away) there are no blanks, and [`Context::reply_whole`] says so.

use std::ffi::CStr;
use std::os::raw::c_char;
use std::ptr::{copy_nonoverlapping, null_mut};

use redis_module::raw;

use super::api;
use super::context::Context;
use super::locked::Locked;

/// The shortest and the longest reply that there is a blank for. A string of 10 to 99
/// bytes is answered with [`AROUND`] more.
const LEAST: usize = 24 + AROUND;
/// No reply of five figures is longer.
const MOST: usize = 99 + AROUND;
/// `$99\r\n` and `\r\n`.
const AROUND: usize = 7;
const COUNT: usize = MOST - LEAST + 1;

/// One answer of the server's, and where its bytes are.
#[derive(Clone, Copy)]
struct Blank {
    answer: *mut raw::RedisModuleCallReply,
    bytes: *mut u8,
}

// SAFETY: the pointers are followed under the server's lock alone, see [`Locked`].
unsafe impl Send for Blank {}

const NONE: Blank = Blank { answer: null_mut(), bytes: null_mut() };

/// By length, from [`LEAST`] on.
static BLANKS: Locked<[Blank; COUNT]> = Locked::new([NONE; COUNT]);

impl Context {
    /// Sends a whole reply, as the protocol has it; `false` where it cannot be.
    #[inline]
    pub(crate) fn reply_whole(&self, reply: &[u8]) -> bool {
        BLANKS.with(|blanks| match reply.len().checked_sub(LEAST).and_then(|i| blanks.get(i)) {
            Some(blank) if !blank.bytes.is_null() => {
                // SAFETY: the answer lives for ever, and this blank has as many bytes;
                // see the head of this file for why they can be written.
                unsafe {
                    copy_nonoverlapping(reply.as_ptr(), blank.bytes, reply.len());
                    api!(RedisModule_ReplyWithCallReply(self.as_ptr(), blank.answer));
                }
                true
            }
            _ => false,
        })
    }
}

/// Asks the server for blanks.
///
/// # Safety
/// `ctx` is the context of the module's load.
pub(super) unsafe fn prepare(ctx: *mut raw::RedisModuleCtx) {
    const ASKED: [&CStr; 2] = [c"GETKEYS", c"MGET"];
    let text = [b'.'; MOST];
    // SAFETY: the caller's promise. The strings are freed, the answer never is. The format
    // says two texts and a list of strings with its length.
    unsafe {
        let mut strings = [null_mut(); COUNT];
        for (string, len) in strings.iter_mut().zip(LEAST - AROUND..) {
            *string = api!(RedisModule_CreateString(ctx, text.as_ptr().cast::<c_char>(), len));
        }
        // Answers the keys that a command has, as they are.
        let [getkeys, mget] = ASKED.map(CStr::as_ptr);
        let (command, format) = (c"COMMAND".as_ptr(), c"ccv".as_ptr());
        let answer = api!(RedisModule_Call(ctx, command, format, getkeys, mget, strings.as_mut_ptr(), COUNT));
        for string in strings {
            api!(RedisModule_FreeString(ctx, string));
        }
        if answer.is_null() {
            return;
        }
        BLANKS.with(|blanks| {
            for (i, blank) in blanks.iter_mut().enumerate() {
                let mut len = 0;
                let answer = api!(RedisModule_CallReplyArrayElement(answer, i));
                if answer.is_null() {
                    return; // an error
                }
                let bytes = api!(RedisModule_CallReplyProto(answer, &raw mut len));
                if len == LEAST + i {
                    *blank = Blank { answer, bytes: bytes.cast_mut().cast::<u8>() };
                }
            }
        });
    }
}
