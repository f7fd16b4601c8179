//! Servers that are killed while clients spend. What was granted is counted by the
//! clients, outside of the servers: each keeps a list of what it has been granted, and
//! of what it asked for and never heard of again. After the kill the load goes on, on
//! the same server or on the one that took over, until no bucket has a token left. Then
//! the lists are held against the limits.
//!
//! `TOKENBUCKET_ROUNDS` says how often each test kills (`./dev chaos`); how much was
//! counted is printed.

// A test says what it expects by failing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code)]
#[path = "../connection.rs"]
mod connection;
#[allow(dead_code)]
#[path = "../random.rs"]
mod random;
#[allow(dead_code)]
#[path = "../server.rs"]
mod server;

mod endurance;
mod failovers;
mod halves;
mod ledger;
mod load;
mod restarts;
mod sentinels;

use std::time::Duration;

use random::Random;

/// How often each test kills.
fn rounds() -> usize {
    std::env::var("TOKENBUCKET_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

/// Between two times, in milliseconds.
fn between(random: &mut Random, least: usize, most: usize) -> Duration {
    Duration::from_millis(u64::try_from(least + random.below(most - least + 1)).unwrap())
}
