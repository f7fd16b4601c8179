//! A primary that is killed and whose replica takes over: what the replica knew is what
//! is spent. Half of the clients await a replica's confirmation of each call.

use std::thread;
use std::time::Instant;

use redis::Value;

use crate::halves::{CLIENTS, Failover, Halves, offset};
use crate::ledger::Busy;
use crate::load::{Place, ballast, spending};
use crate::random::Random;
use crate::server::{Server, wait_until};
use crate::{between, rounds};

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
