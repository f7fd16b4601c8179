//! What a client can rely on, tried from outside: every test talks to a
//! `redis-server` of its own over its socket and knows nothing of the module's
//! code. Nothing here may `use` the module crate: it would bring Redis'
//! allocator into a process that has no Redis.
//!
//! Time is real. A test takes rates so low that nothing refills while it runs
//! (`1e-8` tokens a second: a token in three years), compares what is reported
//! with what was asked for less [`LAG_MS`], and sleeps only as long as a reply
//! told it to.

// A test says what it expects by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod connection;
mod forgery;
mod random;
mod scenarios;
mod server;
mod wallclock;

mod arguments;
mod bconsume;
mod clocks;
mod cluster;
mod concurrency;
mod consume;
mod disk;
mod documents;
mod footprint;
mod hostile;
mod mconsume;
mod peek;
mod penalise;
mod persistence;
mod refund;
mod replication;
mod security;
mod sync;
mod versions;
mod wiring;

use std::time::{Duration, Instant};

/// How much less of a duration may be left than it began with: the time a test
/// takes from one command to the next on a machine that is busy.
const LAG_MS: i64 = 5_000;

/// What a token takes at the rate most tests use, `1e-8`.
const TOKEN_MS: i64 = 100_000_000_000;

/// What is left of `whole_ms` that began at the latest so long before `since`.
#[track_caller]
fn assert_left_since(since: Instant, before: Duration, whole_ms: i64, left_ms: i64) {
    let passed_ms = i64::try_from((since.elapsed() + before).as_millis()).unwrap();
    let left = whole_ms - passed_ms - 1..=whole_ms;
    assert!(left.contains(&left_ms), "expected {whole_ms} ms less some of {passed_ms}, found {left_ms} ms");
}

/// What is left of `whole_ms` that began moments ago.
#[track_caller]
fn assert_left_of(whole_ms: i64, left_ms: i64) {
    assert!((whole_ms - LAG_MS..=whole_ms).contains(&left_ms), "expected {whole_ms} ms less what has passed, found {left_ms} ms");
}
