//! Who waits in TB.BCONSUME, for which bucket, and when something is to be done for them.
//!
//! There is a line for each key, an agenda of all their turns and time-outs, and one
//! timer for whatever comes first. The agenda is in monotonic time, which no change of
//! the wall clock moves. Here it is only known who waits; `serving` does something for
//! them. To know before changing it: where nobody waits, all that other commands pay is
//! a look at [`is_anybody`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ffi::{Blocked, Context, ContextFlags, KeptWord, Locked, Word, time, timer};
use crate::{clock, config, stats};
use tokenbucket::{Bucket, Consume, DebtTooLong, Decision, Effect, Limit, Queue, Ticket, Tokens};

static ROOM: Locked<Room> = Locked::new(Room {
    lines: BTreeMap::new(),
    by_key: BTreeMap::new(),
    by_client: BTreeMap::new(),
    turns: BTreeSet::new(),
    time_outs: BTreeSet::new(),
    opened: 0,
    lead_us: 0,
});

/// How many wait. Beside the room, for it is looked at on every call.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// A wall clock that was set, and not merely read a little later.
const STEP_US: u64 = 1_000;

/// Everybody who waits.
struct Room {
    lines: BTreeMap<LineId, Line>,
    /// By database and name.
    by_key: BTreeMap<c_int, BTreeMap<Box<[u8]>, LineId>>,
    by_client: BTreeMap<Blocked, (LineId, Ticket)>,
    /// The agenda, by moments of the monotonic clock: when to see whether it is the turn of
    /// the first of a line, and when to let one go whose time is over.
    turns: BTreeSet<(i64, LineId)>,
    time_outs: BTreeSet<(i64, LineId, Ticket)>,
    /// How many lines there have been.
    opened: u64,
    /// How far the module's clock was ahead of the monotonic one when it was last compared.
    lead_us: i64,
}

/// One line of those who wait for the same bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineId(u64);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// To see whether it is the first one's turn.
    Turn(LineId),
    /// To let one go whose time is over.
    TimeOut(LineId, Ticket),
}

/// Those who wait for one bucket.
pub(crate) struct Line {
    database: c_int,
    key: KeptWord,
    pub(crate) queue: Queue,
    waiters: BTreeMap<Ticket, Waiter>,
    /// The limit of the bucket; it decides where there is no bucket any more.
    pub(crate) limit: Limit,
    /// When its turn is on the agenda.
    turn_us: Option<i64>,
}

/// One who waits.
#[derive(Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) client: Blocked,
    pub(crate) tokens: Tokens,
    gives_up_us: Option<i64>,
}

/// One who has left a line.
pub(crate) struct Left {
    pub(crate) line: LineId,
    pub(crate) database: c_int,
    pub(crate) key: KeptWord,
    pub(crate) waiter: Waiter,
    /// The limit that was in force.
    pub(crate) limit: Limit,
}

// ------------------------------------------------------ what other commands ask

/// Whether anybody waits for anything.
#[inline]
pub(crate) fn is_anybody() -> bool {
    WAITING.load(Relaxed) > 0
}

/// Whether anybody waits for this bucket.
#[inline]
pub(crate) fn is_awaited(context: &Context, key: Word<'_>) -> bool {
    is_anybody() && ROOM.with(|room| room.find(context.database(), key).is_some())
}

/// Answers a call; behind those who wait for the bucket, if anybody does.
///
/// # Errors
/// As [`Bucket::consume`].
#[inline(always)]
pub(crate) fn consume(
    context: &Context,
    key: Word<'_>,
    bucket: &mut Bucket,
    call: &Consume,
    now_us: i64,
) -> Result<(Decision, Effect), DebtTooLong> {
    if is_anybody() { consume_behind(context, key, bucket, call, now_us) } else { bucket.consume(call, now_us) }
}

#[cold]
fn consume_behind(
    context: &Context,
    key: Word<'_>,
    bucket: &mut Bucket,
    call: &Consume,
    now_us: i64,
) -> Result<(Decision, Effect), DebtTooLong> {
    let database = context.database();
    ROOM.with(|room| match room.find(database, key).and_then(|id| room.lines.get(&id)) {
        Some(line) => bucket.consume_behind(call, &line.queue, now_us),
        None => bucket.consume(call, now_us),
    })
}

/// A bucket is another one, or about to go: whoever waits for it may have his turn. Its
/// limit goes on to decide where it is gone.
pub(crate) fn bucket_changed(database: c_int, key: Word<'_>, bucket: &Bucket, now_us: i64) {
    let known = ROOM.with(|room| {
        let id = room.find(database, key)?;
        if let (Some(line), Some(limit)) = (room.lines.get_mut(&id), bucket.limit()) {
            line.limit = *limit;
        }
        room.look_again(id, now_us);
        Some(id)
    });
    if known.is_some() {
        wake();
    }
}

/// All buckets may be others: a database was emptied, swapped or loaded, a clock was set.
pub(crate) fn all_changed() {
    if is_anybody() {
        let now_us = clock::now_us();
        ROOM.with(|room| {
            let ids: Vec<LineId> = room.lines.keys().copied().collect();
            ids.into_iter().for_each(|id| room.look_again(id, now_us));
        });
        wake();
    }
}

/// Goes after a step of the wall clock: ahead, it brings tokens in; back, it keeps the
/// server's timers from firing.
pub(crate) fn look_at_clocks() {
    let (before_us, now_us, monotonic_us) = (time::monotonic_us(), clock::now_us(), time::monotonic_us());
    let lead_us = now_us.saturating_sub(monotonic_us);
    if monotonic_us.abs_diff(before_us) > STEP_US {
        return; // held up between the readings; there is a next time
    }
    if ROOM.with(|room| std::mem::replace(&mut room.lead_us, lead_us)).abs_diff(lead_us) > STEP_US {
        all_changed();
    }
    timer::wake_if_overdue(monotonic_us);
    wake();
}

/// For INFO: how many wait, and the most that wait for the same bucket.
pub(crate) fn figures() -> (u64, u64) {
    let longest = ROOM.with(|room| room.lines.values().map(|line| line.waiters.len()).max());
    (WAITING.load(Relaxed), longest.and_then(|len| u64::try_from(len).ok()).unwrap_or(0))
}

// ------------------------------------------------------------ coming and going

/// One who comes to wait.
pub(crate) struct Arrival {
    pub(crate) tokens: Tokens,
    /// The limit in force.
    pub(crate) limit: Limit,
    pub(crate) timeout_us: Option<u64>,
    pub(crate) now_us: i64,
    /// When its turn would come if nobody else waited.
    pub(crate) wait_us: u64,
}

/// Lets the client of the call wait for its turn. `false` where it cannot: it is in a
/// transaction or script, the server is no primary, or as many wait as may.
pub(crate) fn enter(context: &Context, key: Word<'_>, arrival: &Arrival) -> bool {
    let Arrival { tokens, limit, timeout_us, now_us, wait_us } = *arrival;
    let flags = context.flags();
    if flags.contains(ContextFlags::CANNOT_BLOCK) || !flags.contains(ContextFlags::PRIMARY) {
        return false;
    }
    if WAITING.load(Relaxed) >= config::MAX_WAITING.get().unsigned_abs() {
        stats::WAITS_REFUSED.add_one();
        return false;
    }
    let Some(client) = Blocked::block(context) else { return false };
    stats::WAITS.add_one();
    let (database, monotonic_us) = (context.database(), time::monotonic_us());
    let gives_up_us = timeout_us.map(|us| monotonic_us.saturating_add_unsigned(us));
    let line = match ROOM.with(|room| room.find(database, key)) {
        Some(id) => Ok(id),
        None => Err(KeptWord::new(key.bytes())),
    };
    ROOM.with(|room| {
        let id = line.unwrap_or_else(|key| {
            let id = room.open(database, key, limit, now_us);
            room.turn_at(id, monotonic_us.saturating_add_unsigned(wait_us));
            id
        });
        room.enter(id, Waiter { client, tokens, gives_up_us }, limit);
    });
    wake();
    true
}

/// Takes a client out of its line, wherever that is. `None` if it does not wait any more.
pub(crate) fn leave(client: Blocked) -> Option<Left> {
    let now_us = clock::now_us();
    let left = ROOM.with(|room| {
        let (id, ticket) = *room.by_client.get(&client)?;
        room.leave(id, ticket, now_us)
    });
    wake();
    left
}

/// As [`leave`], of one that is known by its ticket.
pub(crate) fn leave_by_ticket(id: LineId, ticket: Ticket, now_us: i64) -> Option<Left> {
    ROOM.with(|room| room.leave(id, ticket, now_us))
}

/// Takes the first out of a line.
pub(crate) fn leave_first(id: LineId, now_us: i64) -> Option<Left> {
    ROOM.with(|room| {
        let (ticket, _) = room.lines.get(&id)?.queue.first()?;
        room.leave(id, ticket, now_us)
    })
}

// ------------------------------------------------------------------- the agenda

/// What is due at a moment of the monotonic clock, of turns only where those can be
/// served. It is then off the agenda. At the same moment a turn comes before a time-out.
pub(crate) fn next_due(monotonic_us: i64, serving: bool) -> Option<Due> {
    ROOM.with(|room| {
        let turn = room.turns.first().copied().filter(|(moment_us, _)| serving && *moment_us <= monotonic_us);
        let time_out = room.time_outs.first().copied().filter(|(moment_us, ..)| *moment_us <= monotonic_us);
        match (turn, time_out) {
            (Some((turn_us, id)), time_out) if time_out.is_none_or(|(moment_us, ..)| turn_us <= moment_us) => {
                room.take_turn(id);
                Some(Due::Turn(id))
            }
            (_, Some((_, id, ticket))) => {
                room.time_outs.pop_first();
                Some(Due::TimeOut(id, ticket))
            }
            _ => None,
        }
    })
}

/// The line of a bucket whose turn is due. It is then off the agenda.
pub(crate) fn due_line(context: &Context, key: Word<'_>) -> Option<LineId> {
    let (database, monotonic_us) = (context.database(), time::monotonic_us());
    ROOM.with(|room| {
        let id = room.find(database, key)?;
        let turn_us = room.lines.get(&id)?.turn_us.filter(|turn_us| *turn_us <= monotonic_us);
        turn_us.map(|_| {
            room.take_turn(id);
            id
        })
    })
}

/// Puts the next turn of a line on the agenda.
pub(crate) fn turn_in(id: LineId, us: u64) {
    let moment_us = time::monotonic_us().saturating_add_unsigned(us);
    ROOM.with(|room| room.turn_at(id, moment_us));
}

/// Wakes the module for whatever is next on the agenda.
pub(crate) fn wake() {
    wake_for_turns_from(i64::MIN);
}

/// As [`wake`], but for no turn before a moment of the monotonic clock.
pub(crate) fn wake_for_turns_from(from_us: i64) {
    let next = ROOM.with(|room| {
        let turn_us = room.turns.first().map(|(moment_us, _)| from_us.max(*moment_us));
        let time_out_us = room.time_outs.first().map(|(moment_us, ..)| *moment_us);
        turn_us.into_iter().chain(time_out_us).min()
    });
    if let Some(moment_us) = next {
        timer::wake_at(moment_us);
    }
}

/// Where a line's bucket is. `None` for one that has no more waiters.
pub(crate) fn bucket_of(id: LineId) -> Option<(c_int, KeptWord)> {
    ROOM.with(|room| room.lines.get(&id).map(|line| (line.database, line.key.clone())))
}

/// Works on a line. Whoever has left its queue after that is taken out of it.
pub(crate) fn with_line<R>(id: LineId, work: impl FnOnce(&mut Line) -> R) -> Option<R> {
    ROOM.with(|room| room.lines.get_mut(&id).map(work))
}

impl Room {
    fn find(&self, database: c_int, key: Word<'_>) -> Option<LineId> {
        self.by_key.get(&database)?.get(key.bytes()).copied()
    }

    fn open(&mut self, database: c_int, key: KeptWord, limit: Limit, now_us: i64) -> LineId {
        let id = LineId(self.opened);
        self.opened += 1;
        self.by_key.entry(database).or_default().insert(key.as_word().bytes().into(), id);
        let mut queue = Queue::default();
        queue.look_again_from(now_us);
        self.lines.insert(id, Line { database, key, queue, waiters: BTreeMap::new(), limit, turn_us: None });
        id
    }

    fn enter(&mut self, id: LineId, waiter: Waiter, limit: Limit) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        let ticket = line.queue.push(waiter.tokens);
        line.limit = limit;
        line.waiters.insert(ticket, waiter);
        self.by_client.insert(waiter.client, (id, ticket));
        if let Some(moment_us) = waiter.gives_up_us {
            self.time_outs.insert((moment_us, id, ticket));
        }
        WAITING.fetch_add(1, Relaxed);
    }

    fn leave(&mut self, id: LineId, ticket: Ticket, now_us: i64) -> Option<Left> {
        let line = self.lines.get_mut(&id)?;
        let waiter = line.waiters.remove(&ticket)?;
        WAITING.fetch_sub(1, Relaxed);
        self.by_client.remove(&waiter.client);
        if let Some(moment_us) = waiter.gives_up_us {
            self.time_outs.remove(&(moment_us, id, ticket));
        }
        let was_first = line.queue.first().is_some_and(|(first, _)| first == ticket);
        line.queue.remove(ticket, now_us);
        let left = Left { line: id, database: line.database, key: line.key.clone(), waiter, limit: line.limit };
        if line.waiters.is_empty() {
            self.close(id);
        } else if was_first {
            // The next may want less, so that its turn is now.
            self.turn_at(id, 0);
        }
        Some(left)
    }

    fn close(&mut self, id: LineId) {
        self.take_turn(id);
        let Some(line) = self.lines.remove(&id) else { return };
        if let Some(keys) = self.by_key.get_mut(&line.database) {
            keys.remove(line.key.as_word().bytes());
            if keys.is_empty() {
                self.by_key.remove(&line.database);
            }
        }
    }

    fn look_again(&mut self, id: LineId, now_us: i64) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.queue.look_again_from(now_us);
        }
        self.turn_at(id, 0);
    }

    fn turn_at(&mut self, id: LineId, moment_us: i64) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if let Some(before_us) = line.turn_us.replace(moment_us) {
            self.turns.remove(&(before_us, id));
        }
        self.turns.insert((moment_us, id));
    }

    /// Takes the turn of a line off the agenda.
    fn take_turn(&mut self, id: LineId) {
        if let Some(moment_us) = self.lines.get_mut(&id).and_then(|line| line.turn_us.take()) {
            self.turns.remove(&(moment_us, id));
        }
    }
}

impl Line {
    /// Whose ticket it is.
    pub(crate) fn waiter(&self, ticket: Ticket) -> Option<Waiter> {
        self.waiters.get(&ticket).copied()
    }
}
