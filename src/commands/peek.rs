//! TB.PEEK key

use super::Call;
use super::spec::{Audience, Command, KEY, KeyAccess, Keys};
use crate::clock;
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;

pub(super) const COMMAND: Command = Command {
    name: "TB.PEEK",
    summary: "Shows all that is known of a bucket.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Read,
    audience: Audience::Clients,
    blocks: false,
    arity: 2,
    arguments: &[KEY],
    details: include_str!("peek.md"),
    run,
};

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let key = call.args.key()?;
    let (_place, bucket) = Place::open(call.context, key, Access::Read)?;
    Ok(bucket.map_or(Reply::Null, |bucket| Reply::Reading(bucket.read(clock::now_us()))))
}
