//! Gives those who wait in TB.BCONSUME their turn. It runs from the module's timer, and
//! before a call for the same bucket where the timer is late. Never after a command has
//! begun: one that changes a bucket puts its line on the agenda, and what it wrote is
//! out before anybody is served of it.

use crate::clock;
use crate::error::Error;
use crate::ffi::{Blocked, Context, ContextFlags, Word, check_here, time};
use crate::keyspace::{Access, Place};
use crate::reply::Reply;
use crate::stats;
use crate::waiting::{self, Due, Left, LineId};
use tokenbucket::{Bucket, Consume, Decision, Effect, Mode, Status, Tokens, Turn};

/// So many turns and time-outs at a time; others have their commands run in between.
const MOST_AT_ONCE: usize = 1_000;

/// When to try again where the server must not write now.
const RETRY_US: i64 = 20_000;

/// When to look again for a key whose slot is on its way to another node, or nobody's.
/// That can take hours, and to look costs as much as a hundred calls.
const LOOK_AGAIN_US: u64 = 1_000_000;

/// Does what is due.
pub(crate) fn run(context: &Context) {
    let now_us = time::monotonic_us();
    let is_primary = context.flags().contains(ContextFlags::PRIMARY);
    // A server that is demoted sends all blocked clients away; but not each does always.
    let serving = !is_primary || (context.may_write() && !(waiting::is_anybody() && context.is_write_refused()));
    let mut done = 0;
    while done < MOST_AT_ONCE
        && let Some(due) = waiting::next_due(now_us, serving)
    {
        done += 1;
        match due {
            Due::Turn(line) if !is_primary => done += dismiss(line, &Error::Demoted, MOST_AT_ONCE - done),
            Due::Turn(line) => done += serve(context, line, MOST_AT_ONCE - done),
            Due::TimeOut(line, ticket) => {
                if let Some(left) = waiting::leave_by_ticket(line, ticket, clock::now_us()) {
                    left.waiter.client.answer(refuse(context, &left));
                }
            }
        }
    }
    waiting::wake_for_turns_from(if serving { i64::MIN } else { now_us.saturating_add(RETRY_US) });
}

/// Serves those whose turn has come for the bucket of a call before it is answered: the
/// timer may be a little late, and the call have waited as long as it was told. Not
/// between the commands of a transaction or script, which nobody comes in between. (That
/// the server does not refuse writes is known: it has let the call through.)
#[inline(always)]
pub(crate) fn catch_up(context: &Context, key: Word<'_>) {
    if waiting::is_anybody()
        && !context.flags().contains(ContextFlags::CANNOT_BLOCK)
        && context.may_write()
        && let Some(line) = waiting::due_line(context, key)
    {
        serve(context, line, MOST_AT_ONCE);
        waiting::wake();
    }
}

/// CLIENT UNBLOCK: what to answer a client as if its time were over. `None` if it does
/// not wait any more.
pub(crate) fn give_up(context: &Context, client: Blocked) -> Option<Result<Reply, Error>> {
    waiting::leave(client).map(|left| refuse(context, &left))
}

/// A client is gone. Returns whether it was waiting.
pub(crate) fn forget(client: Blocked) -> bool {
    waiting::leave(client).is_some()
}

/// Serves those in a line whose turn has come, `most` at most. Returns how many.
fn serve(context: &Context, line: LineId, most: usize) -> usize {
    let Some((database, key)) = waiting::bucket_of(line) else { return 0 };
    context.select(database);
    let (place, found) = match Place::open(context, key.as_word(), Access::Write) {
        Ok(opened) => opened,
        Err(error) => return dismiss(line, &error, most),
    };
    match check_here(context, key.as_word()) {
        Err(Error::OnItsWay) => {
            waiting::turn_in(line, LOOK_AGAIN_US);
            return 1;
        }
        // A key that has moved away is no full bucket; one that is here has come before its slot.
        Err(moved) if found.is_none() => return dismiss(line, &moved, most),
        Err(_) | Ok(()) => {}
    }
    let now_us = clock::now_us();
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let (mut served, mut changed) = (Vec::new(), false);
    let next_us = waiting::with_line(line, |line| {
        let next_us = loop {
            if served.len() >= most {
                break Some(0);
            }
            let (turn, effect) = bucket.serve(&mut line.queue, &line.limit, now_us);
            changed |= effect == Effect::Changed;
            match turn {
                Turn::Of(ticket, decision) => served.push((ticket, line.waiter(ticket), decision)),
                Turn::In(us) => break Some(us),
                Turn::Nobody => break None,
            }
        };
        line.limit = *bucket.limit().unwrap_or(&line.limit);
        next_us
    });
    let count = served.len();
    let stored = if changed { place.check_room().map(|room| place.save_served(room, &bucket, now_us)) } else { Ok(()) };
    for (ticket, waiter, decision) in served {
        waiting::leave_by_ticket(line, ticket, now_us);
        let Some(waiter) = waiter else { continue };
        let outcome = match &stored {
            Err(error) if decision.allowed > 0 => Err(error.clone()),
            _ => {
                stats::count(&decision, Mode::Exactly);
                Ok(Reply::Decision(decision))
            }
        };
        waiter.client.answer(outcome);
    }
    if let Some(us) = next_us.flatten() {
        // What was not stored is not so: the next is to be seen for himself.
        waiting::turn_in(line, if stored.is_ok() { us } else { 0 });
    }
    count
}

/// Sends all in a line away, `most` at most now and the others next. Returns how many.
fn dismiss(line: LineId, error: &Error, most: usize) -> usize {
    let (mut count, now_us) = (0, clock::now_us());
    while count < most
        && let Some(left) = waiting::leave_first(line, now_us)
    {
        left.waiter.client.answer(Err(error.clone()));
        count += 1;
    }
    waiting::turn_in(line, 0);
    count
}

/// What TB.CONSUME would answer to one that has left its line unserved.
fn refuse(context: &Context, left: &Left) -> Result<Reply, Error> {
    context.select(left.database);
    let (_place, found) = Place::open(context, left.key.as_word(), Access::Read)?;
    if found.is_none() {
        check_here(context, left.key.as_word())?;
    }
    let now_us = clock::now_us();
    let mut bucket = found.unwrap_or(Bucket::UNKNOWN);
    let limit = *bucket.limit().unwrap_or(&left.limit);
    let call = Consume { limit, tokens: left.waiter.tokens, mode: Mode::Exactly };
    let mut untouched = bucket;
    let answer = waiting::with_line(left.line, |line| bucket.consume_behind(&call, &line.queue, now_us));
    let answer = answer.unwrap_or_else(|| bucket.consume(&call, now_us));
    let (mut decision, _) = answer.map_err(|_| Error::Internal)?; // only FORCE can
    if decision.allowed > 0 {
        // Its turn has come, but it could not be served: the server may not write now.
        let ask = Consume { tokens: Tokens::ZERO, ..call };
        let (asked, _) = untouched.consume(&ask, now_us).map_err(|_| Error::Internal)?;
        decision = Decision { status: Status::Empty, allowed: 0, wait_us: Some(1), ..asked };
    }
    stats::count(&decision, Mode::Exactly);
    stats::WAITS_TIMED_OUT.add_one();
    Ok(Reply::Decision(decision))
}
