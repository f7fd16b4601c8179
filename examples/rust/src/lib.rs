//! A worker fleet that spends one budget: processes on any number of machines take jobs
//! off a Redis stream, and all of them together call a vendor as fast as it allows.
//!
//! - [`pace`]: the token bucket. Read this first.
//! - [`worker`]: one process.
//! - [`queue`]: the stream, the jobs that come later, and those given up.

#![forbid(unsafe_code)]

pub mod pace;
pub mod queue;
pub mod worker;
