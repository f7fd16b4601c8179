//! Replicas: they are what their primary is after a full resync, a partial one and
//! from the stream, to the byte; and what they know when they are promoted is what
//! the primary knew.

use std::collections::BTreeSet;

use redis::Value;

use crate::assert_left_of;
use crate::connection::{Connection, array, error_text, text};
use crate::forgery::{Blob, clock_of};
use crate::persistence::{commands_appended, wait_for_rewrite};
use crate::random::Random;
use crate::scenarios::Witness;
use crate::server::{Server, wait_until};

/// A primary that sends nothing of its own accord.
fn primary() -> Server {
    Server::builder().tcp().conf("repl-ping-replica-period 3600").start()
}

fn replica_of(primary: &Server) -> Server {
    let replica = Server::builder().tcp().start();
    replica.replicate(primary);
    replica
}

#[track_caller]
fn promote(replica: &Server) {
    replica.connect().ok("REPLICAOF NO ONE");
}

// ---- the ways there are

#[test]
fn a_full_resync_carries_every_bucket_and_promotion_keeps_it() {
    for diskless in ["yes", "no"] {
        let mut primary = Server::builder().tcp().conf(format!("repl-diskless-sync {diskless}")).start();
        let witness = Witness::of(&mut primary.connect());
        let replica = replica_of(&primary);
        assert_eq!(primary.connect().info("stats", "sync_full"), "1");
        primary.kill();
        promote(&replica);
        witness.assert_same(&mut replica.connect());
    }
}

#[test]
fn a_diskless_load_carries_every_bucket() {
    let mut primary = primary();
    let witness = Witness::of(&mut primary.connect());
    let replica = Server::builder().tcp().conf("repl-diskless-load swapdb").start();
    // It has buckets of its own, of which nothing may stay.
    Witness::of(&mut replica.connect());
    replica.connect().take("old 5 0.01");
    replica.replicate(&primary);
    primary.kill();
    promote(&replica);
    let mut r = replica.connect();
    assert_eq!(r.int("EXISTS old"), 0);
    witness.assert_same(&mut r);
}

#[test]
fn the_stream_carries_every_bucket() {
    let mut primary = primary();
    let replica = replica_of(&primary);
    let witness = Witness::of(&mut primary.connect());
    replica.wait_for_sync(&primary);
    primary.kill();
    promote(&replica);
    witness.assert_same(&mut replica.connect());
}

#[test]
fn a_partial_resync_carries_every_bucket() {
    let mut primary = primary();
    let replica = replica_of(&primary);
    let mut c = primary.connect();
    // Nobody listens while these are written.
    replica.hang();
    assert_eq!(c.int("CLIENT KILL TYPE replica"), 1);
    let witness = Witness::of(&mut c);
    replica.go_on();
    wait_until("the partial resync", || c.info("stats", "sync_partial_ok") == "1");
    replica.wait_for_sync(&primary);
    assert_eq!(c.info("stats", "sync_full"), "1", "there was another full one");
    primary.kill();
    promote(&replica);
    witness.assert_same(&mut replica.connect());
}

#[test]
fn a_failover_keeps_every_bucket_and_the_old_primary_follows() {
    let primary = primary();
    let replica = replica_of(&primary);
    let witness = Witness::of(&mut primary.connect());
    primary.connect().ok(&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", replica.port()));
    let mut r = replica.connect();
    wait_until("the failover", || r.info("replication", "role") == "master");
    witness.assert_same(&mut r);
    primary.wait_for_sync(&replica);
    assert_same_buckets(&primary, &replica);
}

#[test]
fn a_replica_of_a_replica_has_the_same_buckets() {
    let primary = primary();
    let replica = replica_of(&primary);
    let last = replica_of(&replica);
    let witness = Witness::of(&mut primary.connect());
    replica.wait_for_sync(&primary);
    last.wait_for_sync(&replica);
    assert_same_buckets(&primary, &last);
    promote(&last);
    witness.assert_same(&mut last.connect());
}

// ---- what goes over the wire

#[test]
fn the_stream_has_results_and_no_commands_that_decide() {
    let primary = primary();
    // What a replica appends is what it was sent.
    let replica = Server::builder().tcp().append_only().start();
    replica.replicate(&primary);
    wait_for_rewrite(&mut replica.connect());
    let mut c = primary.connect();
    Witness::of(&mut c);
    c.take("expired 5 1e-8 2");
    assert_eq!(c.int("PEXPIRE expired 1"), 1);
    wait_until("the key to expire", || c.int("EXISTS expired") == 0);
    c.take("expired 5 1e-8 2");
    replica.wait_for_sync(&primary);
    let commands = commands_appended(&replica);
    let name = |words: &Vec<Vec<u8>>| String::from_utf8(words[0].to_ascii_uppercase()).unwrap().replace("UNLINK", "DEL");
    let names: BTreeSet<_> = commands.iter().map(name).collect();
    let expected = ["DEL", "EXEC", "MULTI", "PEXPIREAT", "SELECT", "TB.STATE"];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_denied_call_that_stores_its_limit_is_replicated() {
    let primary = primary();
    let replica = replica_of(&primary);
    let mut c = primary.connect();
    c.take("k 5 0.01 5");
    replica.wait_for_sync(&primary);
    let offset = |c: &mut Connection| c.info("replication", "master_repl_offset");
    let before = offset(&mut c);
    assert_eq!(c.consume("k 20 0.001 3").verdict(), (0, "empty", 0));
    assert_ne!(offset(&mut c), before);
    replica.wait_for_sync(&primary);
    assert_eq!(replica.connect().peek("k").limit(), ("20", "1", "1000"));
    assert_same_buckets(&primary, &replica);
}

/// That two servers have the same keys, with the same values and TTLs.
#[track_caller]
fn assert_same_buckets(one: &Server, other: &Server) {
    let (mut one, mut other) = (one.connect(), other.connect());
    let keys = |c: &mut Connection| array(c.ask("KEYS *")).iter().map(text).collect::<BTreeSet<_>>();
    let names = keys(&mut one);
    assert_eq!(names, keys(&mut other));
    assert!(!names.is_empty());
    for key in names {
        let mut look = |command: String| assert_eq!(one.ask(&command), other.ask(&command), "{command}");
        look(format!("DEBUG DIGEST-VALUE {key}"));
        look(format!("PEXPIRETIME {key}"));
    }
}

// ---- many commands

/// A command of any kind on one of a few keys.
fn any_command(random: &mut Random) -> String {
    let key = format!("k{}", random.below(40));
    let limit = random.pick(&[
        "10 0.01",
        "10 0.01",
        "10 0.01",
        "100 50",
        "7.5 3 PER 7",
        "20 1.1574074074074073e-05",
        "1000000 1e6",
        "1e9 999999999989 PER 1234.56789012",
        "3 0.5 PER 0.001",
    ]);
    let (capacity_and_rate, period) = match limit.split_once(" PER ") {
        Some((limit, period)) => (limit, format!(" PER {period}")),
        None => (limit, String::new()),
    };
    let tokens = random.pick(&["1", "1", "2", "0", "0.25", "5", "7.000001", "1000"]);
    let seconds = random.pick(&["0", "0.001", "0.05", "3", "100.000001", "40000"]);
    let mode = random.pick(&["", "", "", " UPTO", " FORCE", " MAXWAIT 1", " MAXWAIT 100000"]);
    match random.below(100) {
        0..50 => format!("TB.CONSUME {key} {capacity_and_rate} {tokens}{period}{mode}"),
        50..60 => format!("TB.PENALISE {key} {seconds}"),
        60..67 => format!("TB.SYNC {key} {tokens}"),
        67..74 => format!("TB.SYNC {key} {tokens} RESET {seconds}"),
        74..80 => format!("TB.SYNC {key} {tokens} LIMIT {}", random.pick(&["1", "3.5", "1000000"])),
        80..88 => format!("TB.REFUND {key} {tokens}"),
        88..90 => format!("TB.PEEK {key}"),
        90..92 => format!("DEL {key}"),
        92..94 => format!("PEXPIRE {key} {}", random.pick(&["1", "20", "100000000"])),
        94 => format!("PERSIST {key}"),
        95 => format!("COPY {key} k{} REPLACE", random.below(40)),
        96 => format!("RENAME {key} k{}", random.below(40)),
        97 => format!("UNLINK {key}"),
        98 => format!("EVAL return{{redis.call('TB.CONSUME',KEYS[1],10,'0.01'),redis.call('TB.PENALISE',KEYS[1],1)}} 1 {key}"),
        _ => format!("DUMP {key}"),
    }
}

#[test]
fn primary_and_replica_are_the_same_after_ten_thousand_commands() {
    const BATCH: usize = 100;
    let (mut random, mut granted, mut denied) = (Random::new(7), 0, 0);
    let primary = Server::builder().tcp().append_only().conf("appendfsync everysec").start();
    let replica = replica_of(&primary);
    let late = Server::builder().tcp().start();
    let mut c = primary.connect();
    for batch in 0..100 {
        let commands: Vec<String> = (0..BATCH).map(|_| any_command(&mut random)).collect();
        for command in &commands {
            c.send(&command.split(' ').collect::<Vec<_>>());
        }
        for command in &commands {
            let reply = c.receive();
            if let Some(error) = error_text(&reply) {
                // What there is to say against these commands.
                let expected =
                    ["no such key", "objects are the same", "tokens must be few enough", "tokens must be a number from 1"];
                assert!(expected.iter().any(|text| error.contains(text)), "{command}: {error}");
            } else if command.starts_with("TB.CONSUME") {
                let allowed = array(reply)[0] != Value::Int(0);
                *(if allowed { &mut granted } else { &mut denied }) += 1;
            }
        }
        match batch {
            30 => late.connect().ok(&format!("REPLICAOF 127.0.0.1 {}", primary.port())),
            60 => c.ok("DEBUG RELOAD"),
            _ => {}
        }
    }
    assert!(granted > 1_000 && denied > 1_000, "{granted} granted, {denied} denied");
    // Those that have expired are deleted by the primary alone, when it sees them.
    wait_until("what expires to be gone", || {
        (0..40).for_each(|key| drop(c.ask(&format!("EXISTS k{key}"))));
        let ttls = (0..40).map(|key| c.int(&format!("PTTL k{key}")));
        !ttls.into_iter().any(|ttl| (0..1_000).contains(&ttl))
    });
    for replica in [&replica, &late] {
        replica.wait_for_sync(&primary);
        assert_same_buckets(&primary, replica);
    }
    assert!(c.int("DBSIZE") > 20);
    // And so is one that starts from the file.
    let mut primary = primary;
    let before: Vec<Value> = digests(&mut c);
    primary.kill();
    primary.start_again();
    assert_eq!(digests(&mut primary.connect()), before);
}

fn digests(c: &mut Connection) -> Vec<Value> {
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    let words = ["DEBUG", "DIGEST-VALUE"].map(str::to_owned).into_iter().chain(keys);
    array(c.ask_bytes(&words.collect::<Vec<_>>()))
}

// ---- memory and versions

#[test]
fn a_replica_without_memory_takes_what_its_primary_sends() {
    let primary = primary();
    let replica = Server::builder().tcp().conf("replica-ignore-maxmemory no").conf("maxmemory 1").start();
    let mut c = primary.connect();
    c.take("before 10 1e-8 4");
    replica.replicate(&primary);
    c.take("k 10 1e-8 4");
    c.penalise("bare 100");
    c.sync("synced 5 LIMIT 3 RESET 600");
    replica.wait_for_sync(&primary);
    assert_same_buckets(&primary, &replica);
    assert_eq!(replica.connect().peek("k").tokens(), "6");
}

// ---- the one clock

#[test]
fn a_promoted_replica_goes_on_from_the_clock_of_its_primary() {
    const HOUR_US: i64 = 3_600_000_000;
    for over in ["a full resync", "the stream"] {
        let mut primary = primary();
        let replica = Server::builder().tcp().start();
        if over == "the stream" {
            replica.replicate(&primary);
        }
        let mut c = primary.connect();
        let blob = Blob::new(c.time_us() + 20 * HOUR_US, 1_000_000).bucket(1, 1, 1, 0);
        assert_eq!(c.ask_bytes(&[&b"TB.STATE"[..], b"ahead", blob.bytes()]), Value::Okay);
        c.take("k 10 0.01 10");
        if over == "a full resync" {
            replica.replicate(&primary);
        }
        replica.wait_for_sync(&primary);
        primary.kill();
        promote(&replica);
        let mut r = replica.connect();
        assert_left_of(100_000, r.consume("k 10 0.01").wait_ms);
        r.take("new 10 0.01 10");
        assert!(r.int("PTTL new") > 20 * 3_600_000, "the clock was not followed over {over}");
    }
}

#[test]
fn a_state_that_was_shifted_is_the_same_on_the_replica() {
    const DAY_US: i64 = 86_400_000_000;
    let primary = Server::builder().tcp().append_only().start();
    let replica = replica_of(&primary);
    let mut c = primary.connect();
    let blob = Blob::new(c.time_us() + 3 * DAY_US, 1_000_000).bucket(10, 1, 100, 0);
    assert_eq!(c.ask_bytes(&[&b"TB.STATE"[..], b"k", blob.bytes()]), Value::Okay);
    replica.wait_for_sync(&primary);
    let sent = commands_appended(&primary);
    let clock_us = clock_of(&sent.last().unwrap()[2]);
    assert!((clock_us - c.time_us()).abs() < DAY_US, "what was sent on has a clock that is to be shifted again");
    assert_same_buckets(&primary, &replica);
}
