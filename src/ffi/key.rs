//! A key of the database, open for one call.

use std::os::raw::c_void;
use std::ptr::null_mut;

use redis_module::raw;

use super::constants::{KEYTYPE_EMPTY, KEYTYPE_MODULE};
use super::context::Context;
use super::words::Word;
use super::{api, datatype, value};
use crate::error::Error;
use tokenbucket::Bucket;

/// What a key is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading; works on a replica.
    Read,
    /// Reading and writing. One open costs less than one to look and one to write.
    Write,
}

/// An open key. Closed when it is dropped.
pub(crate) struct Key(*mut raw::RedisModuleKey);

impl Key {
    #[inline]
    pub(crate) fn open(context: &Context, name: Word<'_>, access: Access) -> Self {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: context and name are live.
        Self(unsafe { api!(RedisModule_OpenKey(context.as_ptr(), name.as_ptr(), mode.cast_signed())) })
    }

    /// The bucket that is there.
    ///
    /// # Errors
    /// [`Error::WrongType`] where something else is.
    #[inline]
    pub(crate) fn bucket(&self) -> Result<Option<Bucket>, Error> {
        // SAFETY: the API takes a null key, which is how it says that there is none when reading.
        let kind = unsafe { api!(RedisModule_KeyType(self.0)) };
        if kind == KEYTYPE_EMPTY {
            return Ok(None);
        }
        // SAFETY: the key is open; where it is of our type, its value is one of ours.
        unsafe {
            if kind != KEYTYPE_MODULE || api!(RedisModule_ModuleTypeGetType(self.0)) != datatype::handle() {
                return Err(Error::WrongType);
            }
            Ok(Some(value::read(self.value())))
        }
    }

    /// Puts a bucket where there was nobody.
    pub(crate) fn create(&self, bucket: &Bucket) {
        // SAFETY: the key is open for writing; it takes over the value.
        unsafe { api!(RedisModule_ModuleTypeSetValue(self.0, datatype::handle(), value::create(bucket))) };
    }

    /// Puts a bucket where there is one. Keeps the key's expiry.
    #[inline]
    pub(crate) fn replace(&self, bucket: &Bucket) {
        // SAFETY: [`Key::bucket`] found one of our values here. `replace` writes
        // in place where it can; else the server swaps the pointers, and the old
        // value is ours to free.
        unsafe {
            if let Some(new) = value::replace(self.value(), bucket) {
                let mut old = null_mut();
                api!(RedisModule_ModuleTypeReplaceValue(self.0, datatype::handle(), new, &raw mut old));
                value::free(old);
            }
        }
    }

    /// When the key expires: Unix time in milliseconds, -1 for never.
    pub(crate) fn expire_at_ms(&self) -> i64 {
        // SAFETY: the key is open.
        unsafe { api!(RedisModule_GetAbsExpire(self.0)) }
    }

    pub(crate) fn set_expire_at_ms(&self, at_ms: i64) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.0, at_ms)) };
    }

    /// # Safety
    /// The key has a module's value.
    unsafe fn value(&self) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { api!(RedisModule_ModuleTypeGetValue(self.0)) }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once; the API takes null.
        unsafe { api!(RedisModule_CloseKey(self.0)) };
    }
}
