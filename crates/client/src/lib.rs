//! A small client for redis-tokenbucket: one shared budget for outbound calls, that
//! obeys the vendor's 429s and headers.
//!
//! # Requests and replies
//! All that most need. A request is a value; the reply has types.
//!
//! ```no_run
//! use tokenbucket_client::{Consume, Limit, Request};
//!
//! let mut connection = redis::Client::open("redis://127.0.0.1")?.get_connection()?;
//! let decision = Consume::new("vendor", Limit::per_second(10)?).query(&mut connection)?;
//! match decision.wait {
//!     Some(wait) if decision.is_allowed() => println!("call it in {wait:?}"),
//!     Some(wait) => println!("ask again in {wait:?}, since it is {}", decision.status),
//!     None => println!("never"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # And what can be ignored
//! - [`RateLimiter`] (feature `limiter`, on by default): wait, call, learn from the
//!   response, and what happens when Redis is away.
//! - [`headers`] (feature `headers`): what a vendor's response says about its limits.
//! - [`Local`]: the same buckets in this process, without a server.
//! - [`Lease`] (feature `limiter`): for a key hotter than one server should carry.
//! - The feature `cluster`: requests about several buckets go to the node that has them.
//! - `tower` (feature `tower`): a layer around any HTTP client.
//!
//! Without default features there is nothing but requests, replies and [`Local`].

#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "headers")]
pub mod headers;
#[cfg(feature = "limiter")]
mod lease;
mod limit;
#[cfg(feature = "limiter")]
mod limiter;
mod local;
mod reply;
mod request;
#[cfg(feature = "limiter")]
mod taken;
#[cfg(feature = "limiter")]
mod thaws;
#[cfg(feature = "tower")]
pub mod tower;

pub use error::{Error, RateLimited};
#[cfg(feature = "limiter")]
pub use lease::Lease;
pub use limit::{Limit, OutOfRange, Tokens};
#[cfg(feature = "limiter")]
pub use limiter::{Buckets, Observed, RateLimiter, Redis, WhenAway};
pub use local::Local;
pub use redis;
pub use reply::{Decision, JointDecision, Origin, Penalised, Reading, Status, Synced};
pub use request::{BlockingConsume, Consume, MultiConsume, Peek, Penalise, Refund, Request, Sync};

/// The examples of the README, so that they are compiled.
#[cfg(all(doctest, feature = "limiter"))]
#[doc = include_str!("../README.md")]
struct Readme;
