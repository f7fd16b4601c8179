//! An exact token bucket: integer time in, decision out.
//!
//! No clock, no storage, no dependency, no float. Whoever calls brings the time in
//! microseconds, from a clock that never goes back, and keeps the [`Bucket`].
//!
//! # A bucket is a moment
//!
//! A token bucket holds at most C tokens and gains r of them per second. The usual
//! way to keep one is a level and the time it was last looked at; each look then
//! multiplies, adds, rounds and stores, and each rounding is a token won or lost in
//! the end. But between two calls the level moves on a known line, so one number
//! says it all: where that line crosses 0, the **zero moment** z.
//!
//! ```text
//!  level
//!    C ┤                     ┌───────────          full: the line is cut at C
//!      │                   ╱ ╎          ╲
//!      │                 ╱   ╎            a call takes n: the whole line
//!      │               ╱     ╎            moves right by n/r
//!      │             ╱       ╎                 ╱
//!      │           ╱         ╎               ╱
//!    0 ┼─────────╳───────────╎─────────────╳───────────────────▶ time
//!      │       ╱ z           z + C/r     ╱ z'
//!      │     ╱                         ╱
//!      │  debt: z lies ahead         ╱
//! ```
//!
//! ```text
//! level(t) = min(C, r·(t − z))        negative while z lies ahead
//! full at    z + C/r
//! n there at z + n/r                  the exact answer to "how long must I wait?"
//! take n     z ← max(z, t − C/r) + n/r
//! ```
//!
//! Refill needs no step of its own: time passes and the level is higher. A denied
//! call changes nothing at all, so nothing can be lost by asking. And what other
//! limiters need extra fields for is the same number further right:
//!
//! - **debt** (a forced call, a reservation): z lies ahead of now;
//! - **freeze** (the vendor said 429): z moves to the thaw, so at the thaw the level
//!   is 0, not C: no burst. That it *is* a freeze and not a debt is remembered as
//!   the moment of the thaw, before which z may not come again.
//!
//! What the vendor's headers say is kept beside it, each with a moment at which it
//! lapses by itself: a **window** (no more than so many until its reset, whatever
//! refills) and a **vendor limit** (it holds at most so many).
//!
//! # Drops
//!
//! z + n/r is a fraction. To keep it exact, time and tokens are counted in one unit
//! that divides both. With the rate in lowest terms, R tokens every P seconds:
//!
//! ```text
//! 1 drop                   a millionth of a token, divided by P
//! a millionth of a token   P drops
//! 1 µs of refill           R drops          (R/P tokens/s = R/P millionths/µs)
//! ```
//!
//! So z is whole microseconds and a *part* below R, counted in R-ths of one: exact
//! for every amount and every rate that can be written. Nothing is ever rounded
//! but the reply, with two exceptions, both against the caller. Another rate has
//! another drop: where a call brings one, a level of 0 or more is kept in whole
//! millionths, rounded down, and a z ahead to the next part, rounded up. And a window
//! that opens while there is debt is left in whole millionths, rounded down.
//!
//! The usual rate has R and P below 2^32, and all of this fits 64 bits. The widest
//! that can be written has R = 10^28 and C = 10^31 drops, which fits 128; where a
//! product could not, it saturates at more than any bucket holds, and is only
//! compared. The proof of each bound stands where it is used.
//!
//! # Legend
//!
//! | here | in the code | unit |
//! |---|---|---|
//! | C | `capacity` | [`Tokens`]: millionths of a token |
//! | r = R/P | [`Rate`]: `tokens`, `per` | tokens per second, in lowest terms |
//! | t | `now_us` | µs; the origin is the caller's |
//! | z | `zero`: a [`Moment`], `us` and `part` | µs and R-ths of a µs |
//! | n | `tokens` of a call | [`Tokens`] |
//! | thaw | `thaw_us` | µs |
//!
//! # The files
//!
//! `limit` has the units and the arithmetic of moments, `bucket` the commands, `usual`
//! the usual call once more, for speed, [`joint`] the call that takes from several buckets
//! or from none, `queue` those who wait for a bucket, `decimal` reads numbers, [`state`]
//! writes a bucket as bytes for disk and wire, [`packed`] as words for memory.
//!
//! ```
//! use tokenbucket::{Bucket, Consume, Limit, Mode, Rate, Status, Tokens};
//!
//! let limit = Limit::new(Tokens::from_whole(2).unwrap(), Rate::new(10, 1).unwrap()).unwrap();
//! let call = Consume { limit, tokens: Tokens::ONE, mode: Mode::Exactly };
//! let mut bucket = Bucket::UNKNOWN; // a bucket that does not exist is full
//!
//! let mut ask = |now_us| bucket.consume(&call, now_us).unwrap().0;
//! assert_eq!(ask(0).status, Status::Granted);
//! assert_eq!(ask(0).status, Status::Granted);
//! let denied = ask(0);
//! assert_eq!((denied.status, denied.wait_us), (Status::Empty, Some(100_000)));
//! assert_eq!(ask(99_999).status, Status::Empty);
//! assert_eq!(ask(100_000).status, Status::Granted);
//! ```

#![forbid(unsafe_code)]

mod bucket;
mod decimal;
pub mod joint;
mod limit;
pub mod packed;
mod queue;
pub mod state;
mod usual;

pub use bucket::{
    Bare, Bucket, Consume, DebtTooLong, Decision, Effect, Limited, LimitedReading, Mode, Reading, Status, Sync, Synced, Turn,
};
pub use decimal::{Decimal, MAX_TEXT, Rounding};
pub use limit::{Limit, MAX_FILL_US, Moment, Rate, Tokens};
pub use queue::{MAX_LATE_US, Queue, Ticket};
