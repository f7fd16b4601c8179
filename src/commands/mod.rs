//! The commands. [`COMMANDS`] is the only list of them anywhere: registration,
//! COMMAND DOCS and docs/commands.md are made from its rows.

mod bconsume;
mod consume;
#[cfg(test)]
mod markdown;
mod mconsume;
mod peek;
mod penalise;
mod refund;
pub(crate) mod spec;
mod state;
mod sync;

use crate::args::Args;
use crate::error::Error;
use crate::ffi::Context;
use crate::reply::Reply;
use spec::Command;

/// All commands.
pub(crate) const COMMANDS: [Command; 8] = [
    consume::COMMAND,
    mconsume::COMMAND,
    bconsume::COMMAND,
    penalise::COMMAND,
    sync::COMMAND,
    refund::COMMAND,
    peek::COMMAND,
    state::COMMAND,
];

/// One call of a command.
pub(crate) struct Call<'call> {
    pub(crate) context: &'call Context,
    pub(crate) args: Args<'call>,
}

/// What runs a command. It parses the whole request before it opens a key, and
/// returns its reply rather than write it: an error changes and sends nothing.
pub(crate) type Run = fn(&mut Call<'_>) -> Result<Reply, Error>;
