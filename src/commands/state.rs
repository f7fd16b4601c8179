//! TB.STATE key blob

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::clock;
use crate::error::Error;
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use tokenbucket::state::{self, Malformed, VERSION};

pub(super) const COMMAND: Command = Command {
    name: "TB.STATE",
    summary: "Makes a bucket what it is on another server. For replication and the AOF only.",
    complexity: "O(1)",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Overwrite,
    audience: Audience::Servers,
    blocks: false,
    arity: 3,
    arguments: &[KEY, Argument::required("blob", Kind::Blob, "a bucket, its expiry and the sender's clock, as bytes")],
    details: include_str!("state.md"),
    run,
};

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let key = call.args.key()?;
    let blob = call.args.required()?;
    let sent = state::decode_message(blob, |_| 0).map_err(error)?;
    let (place, _) = Place::open(call.context, key, Access::Write)?;
    let room = place.check_room()?;
    // Nothing can fail from here on: not before that may the clock hear of it.
    let shift_us = clock::receive(sent.clock_us);
    if shift_us == 0 {
        place.apply(room, &sent);
    } else {
        // It is another bucket now, and its expiry with it: an AOF is to have this one,
        // not to shift the sender's again when it is loaded.
        let shifted = state::decode_message(blob, |_| shift_us).map_err(error)?;
        place.save_in(room, &shifted.bucket, clock::now_us());
    }
    Ok(Reply::Ok)
}

const fn error(malformed: Malformed) -> Error {
    match malformed {
        Malformed::Version(version) => Error::LaterState { version, known: VERSION },
        Malformed::Damaged => Error::NotAState,
    }
}
