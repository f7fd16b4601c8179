//! The client against real servers: one binary, whose modules share a harness.
#![cfg(test)] // all of it: what tests may do, their harness may

mod agreement;
mod away;
mod blocking;
mod cancelled;
mod cluster;
mod explain;
mod fuzz;
mod header_names;
mod leases;
mod limiter;
mod limits;
mod penalties;
mod requests;
mod server;
#[cfg(feature = "tower")]
mod tower;
