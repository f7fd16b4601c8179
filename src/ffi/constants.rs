//! Constants of the API that bindgen has as another type than its functions take.
#![expect(clippy::cast_possible_truncation, reason = "all are below 10")]

use std::os::raw::c_int;

use redis_module::raw;

pub(super) const OK: c_int = raw::REDISMODULE_OK as c_int;
pub(super) const ERR: c_int = raw::REDISMODULE_ERR as c_int;
pub(super) const KEYTYPE_EMPTY: c_int = raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
pub(super) const AUX_BEFORE_RDB: c_int = raw::REDISMODULE_AUX_BEFORE_RDB as c_int;
pub(super) const API_VERSION: c_int = raw::REDISMODULE_APIVER_1.cast_signed();
