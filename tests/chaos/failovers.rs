//! A primary that is killed and whose replica takes over: what the replica knew is what
//! is spent. Half of the clients await a replica's confirmation of each call.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::ledger::{Busy, Kept, Ledger, Sums};
use crate::load::{Confirmation, Place, ballast, freeze, spending};
use crate::random::Random;
use crate::server::{Server, wait_until};
use crate::{between, rounds};

/// Each half has buckets of its own.
const AWAITED: &str = ":confirmed";
const NOT_ASKED_FOR: &str = ":unconfirmed";

const CLIENTS: [(&str, Confirmation); 4] = [
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

fn offset(server: &Server, field: &str) -> i64 {
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
    let (mut random, mut confirmed, mut unconfirmed) = (Random::new(43), Sums::default(), Sums::default());
    let start = || Server::builder().tcp().conf("repl-ping-replica-period 1").start();
    let (mut primary, mut replica) = (start(), start());
    ballast(&mut primary.connect());
    replica.add_conf(&format!("replicaof 127.0.0.1 {}", primary.port()));
    replica.replicate(&primary);
    for number in 0..rounds() {
        let round = format!("round{number}");
        let rounds = [AWAITED, NOT_ASKED_FOR].map(|half| format!("{round}{half}"));
        let place = Place::of(&primary);
        let (mut freezes, mut killed, mut written, mut had) = ([vec![], vec![]], Instant::now(), Vec::new(), 0);
        let mut busy = Busy::default();
        let mut spent = spending(&place, &round, &CLIENTS, random.next(), || {
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
            let mut c = primary.connect();
            freezes = [0, 1].map(|half: usize| freeze(&mut c, &rounds[half]));
            let end = Instant::now() + between(&mut random, 20, 600);
            while Instant::now() < end {
                let asked = Instant::now();
                written.push(Written { asked, offset: offset(&primary, "master_repl_offset") });
                thread::sleep(Duration::from_millis(1));
            }
            if number % 4 == 0 {
                had = send_all_again(&replica, &primary);
                let mut sending = primary.connect();
                wait_until("the primary to send all it has", || {
                    let there = sending.info_fields("replication");
                    Busy::of(&mut sending).sending || there.values().any(|field| field.contains("state=online"))
                });
                thread::sleep(between(&mut random, 0, 10));
            }
            busy = Busy::of(&mut c);
            primary.kill();
            killed = Instant::now();
            had = promote(&replica, had);
            place.move_to(&replica);
            // The other comes back under load, as a replica from its first moment: a primary
            // that comes back as one, and empty, would grant to whoever still knows it.
            primary.add_conf(&format!("replicaof 127.0.0.1 {}", replica.port()));
            primary.start_again();
            primary.wait_for_sync(&replica);
            thread::sleep(between(&mut random, 200, 400));
        });
        std::mem::swap(&mut primary, &mut replica);
        let kept = written.iter().rev().find(|written| written.offset <= had).map(|written| written.asked);
        let [frozen, also_frozen] = freezes;
        let of_the_rest = spent.split_off(2);
        for (spent, freezes, half, kept, sums) in [
            (spent, frozen, 0, Kept::Confirmed(kept), &mut confirmed),
            (of_the_rest, also_frozen, 1, Kept::Before(kept), &mut unconfirmed),
        ] {
            let mut ledger = Ledger { spent: spent.into_iter().flatten().collect(), freezes, killed, busy };
            ledger.drain(&mut primary.connect(), &rounds[half]);
            ledger.assert_kept(kept, &rounds[half], sums);
        }
    }
    confirmed.report("failover, confirmed by WAIT", rounds());
    unconfirmed.report("failover, not confirmed", rounds());
}
