//! A failover, and what is known of it: two halves of the clients spend from buckets of
//! their own, one that awaits a replica's confirmation of each call and one that does not.
//! Whoever makes the replica a primary, what each half was granted is settled here.

use std::thread;
use std::time::{Duration, Instant};

use crate::ledger::{Busy, Freeze, Kept, Ledger, Spent, Sums};
use crate::load::{Confirmation, freeze};
use crate::server::Server;

/// Each half has buckets of its own.
const AWAITED: &str = ":confirmed";
const NOT_ASKED_FOR: &str = ":unconfirmed";
const HALVES: [&str; 2] = [AWAITED, NOT_ASKED_FOR];

pub(crate) const CLIENTS: [(&str, Confirmation); 4] = [
    (AWAITED, Confirmation::Awaited),
    (AWAITED, Confirmation::Awaited),
    (NOT_ASKED_FOR, Confirmation::NotAskedFor),
    (NOT_ASKED_FOR, Confirmation::NotAskedFor),
];

/// What a primary had written when it was asked.
struct Written {
    asked: Instant,
    offset: i64,
}

/// A primary's last moments, and how much of them its replica has.
pub(crate) struct Failover {
    round: String,
    freezes: [Vec<Freeze>; 2],
    written: Vec<Written>,
    pub(crate) killed: Instant,
    pub(crate) busy: Busy,
    /// The offset that the replica had got to.
    pub(crate) had: i64,
}

impl Failover {
    pub(crate) fn of(round: &str) -> Self {
        Self {
            round: round.to_owned(),
            freezes: [vec![], vec![]],
            written: Vec::new(),
            killed: Instant::now(),
            busy: Busy::default(),
            had: 0,
        }
    }

    /// Freezes what is frozen, and then looks at how much the primary has written.
    #[track_caller]
    pub(crate) fn watch(&mut self, primary: &Server, time: Duration) {
        let mut c = primary.connect();
        self.freezes = HALVES.map(|half| freeze(&mut c, &format!("{}{half}", self.round)));
        let end = Instant::now() + time;
        while Instant::now() < end {
            let asked = Instant::now();
            self.written.push(Written { asked, offset: offset(primary, "master_repl_offset") });
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Of those who await a confirmation, and of the others.
#[derive(Default)]
pub(crate) struct Halves([Sums; 2]);

impl Halves {
    /// Takes what is left on the primary that there is now, and holds all of it against
    /// the limits.
    #[track_caller]
    pub(crate) fn settle(&mut self, failover: Failover, spent: Vec<Vec<Spent>>, primary: &Server) {
        let Failover { round, freezes, written, killed, busy, had } = failover;
        let moment = written.iter().rev().find(|written| written.offset <= had).map(|written| written.asked);
        let mut of_halves = HALVES.map(|half| (half, Vec::new()));
        for ((client, _), spent) in CLIENTS.into_iter().zip(spent) {
            of_halves.iter_mut().find(|(half, _)| *half == client).unwrap().1.extend(spent);
        }
        let kept = [Kept::Confirmed(moment), Kept::Before(moment)];
        for ((((half, spent), freezes), kept), sums) in of_halves.into_iter().zip(freezes).zip(kept).zip(&mut self.0) {
            let round = format!("{round}{half}");
            let mut ledger = Ledger { spent, freezes, killed, busy };
            ledger.drain(&mut primary.connect(), &round);
            ledger.assert_kept(kept, &round, sums);
        }
    }

    pub(crate) fn report(&self, what: &str, rounds: usize) {
        let [confirmed, unconfirmed] = &self.0;
        confirmed.report(&format!("{what}, confirmed by WAIT"), rounds);
        unconfirmed.report(&format!("{what}, not confirmed"), rounds);
    }
}

pub(crate) fn offset(server: &Server, field: &str) -> i64 {
    server.connect().info("replication", field).parse().unwrap()
}
