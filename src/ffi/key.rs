//! A key of the database, open for one call.

use std::cell::Cell;
use std::os::raw::c_void;
use std::ptr::null_mut;

use redis_module::raw;

use super::constants::KEYTYPE_EMPTY;
use super::context::Context;
use super::words::Word;
use super::{api, datatype, value};
use crate::error::Error;
use tokenbucket::Bucket;

/// The expiry of a key that has none.
pub(crate) const NEVER: i64 = raw::REDISMODULE_NO_EXPIRE as i64;

/// What a key is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading; works on a replica.
    Read,
    /// Reading and writing. One open costs less than one to look and one to write.
    Write,
}

/// An open key that is empty or has a bucket. Closed when it is dropped.
pub(crate) struct Key {
    key: *mut raw::RedisModuleKey,
    /// The value that is there; null where there is none.
    value: Cell<*mut c_void>,
}

impl Key {
    /// # Errors
    /// [`Error::WrongType`] where something else than a bucket is there.
    #[inline]
    pub(crate) fn open(context: &Context, name: Word<'_>, access: Access) -> Result<Self, Error> {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: context and name are live. The API takes a null key, which is how it
        // says that there is none when reading.
        unsafe {
            let key = api!(RedisModule_OpenKey(context.as_ptr(), name.as_ptr(), mode.cast_signed()));
            let open = Self { key, value: Cell::new(null_mut()) };
            // Of any other type it is null.
            if api!(RedisModule_ModuleTypeGetType(key)) == datatype::handle() {
                open.value.set(api!(RedisModule_ModuleTypeGetValue(key)));
            } else if api!(RedisModule_KeyType(key)) != KEYTYPE_EMPTY {
                return Err(Error::WrongType);
            }
            Ok(open)
        }
    }

    #[inline]
    pub(crate) fn is_occupied(&self) -> bool {
        !self.value.get().is_null()
    }

    /// The bucket that is there, or one of which nothing is known.
    #[inline]
    pub(crate) fn bucket(&self) -> Bucket {
        let value = self.value.get();
        if value.is_null() {
            return Bucket::UNKNOWN;
        }
        // SAFETY: it is of our type and in its place while the key is open.
        unsafe { value::read(value) }
    }

    /// Puts a bucket where there was nobody.
    pub(crate) fn create(&self, bucket: &Bucket) {
        let value = value::create(bucket);
        self.value.set(value);
        // SAFETY: the key is open for writing; it takes over the value.
        unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, datatype::handle(), value)) };
    }

    /// Puts a bucket where there is one. Keeps the key's expiry.
    #[inline]
    pub(crate) fn replace(&self, bucket: &Bucket) {
        // SAFETY: one of our values is here. `replace` writes in place where it can;
        // else the server swaps the pointers, and the old value is ours to free.
        unsafe {
            if let Some(new) = value::replace(self.value.get(), bucket) {
                let mut old = null_mut();
                api!(RedisModule_ModuleTypeReplaceValue(self.key, datatype::handle(), new, &raw mut old));
                self.value.set(new);
                value::free(old);
            }
        }
    }

    /// When the key expires: Unix time in milliseconds, or [`NEVER`].
    pub(crate) fn expire_at_ms(&self) -> i64 {
        // SAFETY: the key is open.
        unsafe { api!(RedisModule_GetAbsExpire(self.key)) }
    }

    pub(crate) fn set_expire_at_ms(&self, at_ms: i64) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at_ms)) };
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once; the API takes null.
        unsafe { api!(RedisModule_CloseKey(self.key)) };
    }
}
