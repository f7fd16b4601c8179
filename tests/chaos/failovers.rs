//! A primary that is killed and whose replica takes over: what the replica knew is what
//! is spent. Half of the clients await a replica's confirmation of each call.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::ledger::{Busy, Freeze, Kept, Ledger, Spent, Sums};
use crate::load::{Confirmation, Place, ballast, freeze, spending};
use crate::random::Random;
use crate::server::{Server, wait_until};
use crate::{between, rounds};

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
    pub(crate) fn settle(&mut self, failover: Failover, mut spent: Vec<Vec<Spent>>, primary: &Server) {
        let Failover { round, freezes, written, killed, busy, had } = failover;
        let moment = written.iter().rev().find(|written| written.offset <= had).map(|written| written.asked);
        let of_the_rest = spent.split_off(2);
        let kept = [Kept::Confirmed(moment), Kept::Before(moment)];
        let halves = HALVES.into_iter().zip([spent, of_the_rest]).zip(freezes).zip(kept);
        for ((((half, spent), freezes), kept), sums) in halves.zip(&mut self.0) {
            let round = format!("{round}{half}");
            let mut ledger = Ledger { spent: spent.into_iter().flatten().collect(), freezes, killed, busy };
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

/// Makes the replica of a dead primary one, and returns how much of it it had: at least
/// what it `had` when it was left to itself.
#[track_caller]
fn promote(replica: &Server, had: i64) -> i64 {
    let mut c = replica.connect();
    // What is on its way is read first.
    wait_until("the replica to miss its primary", || c.info("replication", "master_link_status") == "down");
    wait_until("the replica to have loaded what it was sent", || c.info("persistence", "loading") == "0");
    let had = had.max(offset(replica, "slave_repl_offset"));
    // Refused where it loads after all.
    wait_until("the replica to obey", || c.ask("REPLICAOF NO ONE") == Value::Okay);
    had
}

/// Makes the primary send a replica all it has, anew: the replica keeps what it had
/// until that is there. Returns how far it had got.
#[track_caller]
fn send_all_again(replica: &Server, primary: &Server) -> i64 {
    let mut c = replica.connect();
    let had = offset(replica, "slave_repl_offset");
    c.ok("REPLICAOF NO ONE");
    c.ok(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    had
}

#[test]
fn a_failover_grants_nothing_twice_that_was_confirmed_and_of_the_rest_no_more_than_the_tail() {
    let (mut random, mut halves) = (Random::new(43), Halves::default());
    let start = || Server::builder().tcp().conf("repl-ping-replica-period 1").start();
    let (mut primary, mut replica) = (start(), start());
    ballast(&mut primary.connect());
    replica.add_conf(&format!("replicaof 127.0.0.1 {}", primary.port()));
    replica.replicate(&primary);
    for number in 0..rounds() {
        let round = format!("round{number}");
        let (place, mut failover) = (Place::of(&primary), Failover::of(&round));
        let spent = spending(&place, &round, &CLIENTS, random.next(), || {
            thread::sleep(between(&mut random, 20, 300));
            match number % 4 {
                // The replica is away for a while, and is sent all or the rest under load.
                1 => {
                    replica.kill();
                    thread::sleep(between(&mut random, 0, 50));
                    replica.start_again();
                    replica.wait_for_sync(&primary);
                }
                2 => {
                    primary.connect().ask("BGSAVE");
                }
                _ => {}
            }
            failover.watch(&primary, between(&mut random, 20, 600));
            let mut had = 0;
            if number % 4 == 0 {
                had = send_all_again(&replica, &primary);
                let mut sending = primary.connect();
                wait_until("the primary to send all it has", || {
                    let there = sending.info_fields("replication");
                    Busy::of(&mut sending).sending || there.values().any(|field| field.contains("state=online"))
                });
                thread::sleep(between(&mut random, 0, 10));
            }
            failover.busy = Busy::of(&mut primary.connect());
            primary.kill();
            failover.killed = Instant::now();
            failover.had = promote(&replica, had);
            place.move_to(&replica);
            // The other comes back under load, as a replica from its first moment: a primary
            // that comes back as one, and empty, would grant to whoever still knows it.
            primary.add_conf(&format!("replicaof 127.0.0.1 {}", replica.port()));
            primary.start_again();
            primary.wait_for_sync(&replica);
            thread::sleep(between(&mut random, 200, 400));
        });
        std::mem::swap(&mut primary, &mut replica);
        halves.settle(failover, spent, &primary);
    }
    halves.report("failover", rounds());
}
