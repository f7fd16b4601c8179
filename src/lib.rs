//! A native token bucket for Redis: one shared budget for outbound calls, decided
//! inside the server.
//!
//! The map, from the top down. Nothing points back up, but where the server calls: `ffi`
//! hands its calls to [`commands`], [`serving`], [`waiting`] and [`keyspace`].
//!
//! - [`commands`]: what clients can call. Its `COMMANDS` is the only list.
//! - [`args`] reads what a client sent, [`reply`] writes what it gets, [`error`]
//!   has every text it can see.
//! - [`serving`] gives those who wait their turn, [`waiting`] knows who they are.
//! - [`keyspace`] opens and saves buckets: type, expiry, replication, events.
//! - [`limits`] keeps one copy of a limit that many buckets share, [`clock`] is
//!   the only clock, [`config`] the settings, [`stats`] the counters of INFO.
//! - [`ffi`] is the border to the server and holds all that is unsafe.
//! - The algorithm is a crate of its own, `crates/tokenbucket`.

mod args;
mod clock;
mod commands;
mod config;
mod error;
mod ffi;
mod keyspace;
mod limits;
mod reply;
mod serving;
mod stats;
mod waiting;
