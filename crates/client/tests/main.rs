//! The client against real servers: one binary, whose modules share a harness.

mod explain;
mod fuzz;
