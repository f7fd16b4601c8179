//! The client against real servers: one binary, whose modules share a harness.

mod away;
mod explain;
mod fuzz;
mod limiter;
mod requests;
mod server;
