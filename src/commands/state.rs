//! TB.STATE key blob

use super::Call;
use super::spec::{Argument, Audience, Command, KEY, KeyAccess, Keys, Kind};
use crate::clock;
use crate::error::Error;
use crate::ffi::Access;
use crate::keyspace::Place;
use crate::reply::Reply;
use tokenbucket::state::{self, Malformed, VERSION};

pub(super) const COMMAND: Command = Command {
    name: "TB.STATE",
    summary: "Makes a bucket what it is on another server. For replication and the AOF only.",
    since: "0.1.0",
    keys: Keys::First,
    access: KeyAccess::Overwrite,
    audience: Audience::Servers,
    arity: 3,
    arguments: &[KEY, Argument::required("blob", Kind::Blob, "a bucket, its expiry and the sender's clock, as bytes")],
    details: include_str!("state.md"),
    run,
};

fn run(call: &mut Call<'_>) -> Result<Reply, Error> {
    let key = call.args.key()?;
    let blob = call.args.required()?;
    // Whole and sound before the clock hears of it.
    state::decode_message(blob, |_| 0).map_err(error)?;
    let mut shift_us = 0;
    let message = state::decode_message(blob, |sender_us| {
        shift_us = clock::receive(sender_us);
        shift_us
    });
    let message = message.map_err(error)?;
    let (place, _) = Place::open(call.context, key, Access::Write)?;
    if shift_us == 0 {
        place.apply(&message)?;
    } else {
        // It is another bucket now, and its expiry with it: who listens here is to
        // have this one, not to shift the sender's again.
        place.save(&message.bucket, clock::now_us())?;
    }
    Ok(Reply::Ok)
}

const fn error(malformed: Malformed) -> Error {
    match malformed {
        Malformed::Version(version) => Error::LaterState { version, known: VERSION },
        Malformed::Damaged => Error::NotAState,
    }
}
