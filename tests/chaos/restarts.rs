//! A server that is killed and started again: what its files held is what is spent.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::connection::{Connection, error_text};
use crate::ledger::{Busy, Kept, Ledger, Sums};
use crate::load::{Confirmation, Place, ballast, freeze, spending};
use crate::random::Random;
use crate::server::{Server, wait_until};
use crate::{between, rounds};

/// Without a replica there is nothing to await.
const CLIENTS: [(&str, Confirmation); 4] = [("", Confirmation::NotAskedFor); 4];

/// What the server keeps on disk, and how it is seen how far that got.
#[derive(Clone, Copy, PartialEq)]
enum Files {
    /// An AOF, each write in it before its answer.
    Always,
    /// An AOF, within two seconds.
    EverySecond,
    /// Snapshots, one after another.
    Snapshots,
}

/// How far the files have got, as seen from outside.
struct Watch {
    files: Files,
    saving: Option<Instant>,
    kept: Option<Instant>,
}

impl Watch {
    fn look(&mut self, c: &mut Connection) {
        let asked = Instant::now();
        match self.files {
            Files::Always => {}
            Files::EverySecond => {
                if c.info("persistence", "aof_buffer_length") == "0" {
                    self.kept = Some(asked);
                }
            }
            Files::Snapshots => match self.saving {
                None => {
                    // Refused while one for a replica is being made.
                    self.saving = Some(asked).filter(|_| error_text(&c.ask("BGSAVE")).is_none());
                }
                Some(begun) => {
                    let fields = c.info_fields("persistence");
                    if fields["rdb_bgsave_in_progress"] == "0" {
                        assert_eq!(fields["rdb_last_bgsave_status"], "ok");
                        (self.kept, self.saving) = (Some(begun), None);
                    }
                }
            },
        }
    }

    fn kept(&self) -> Kept {
        if self.files == Files::Always { Kept::All } else { Kept::Before(self.kept) }
    }
}

/// What goes on when the kill comes.
fn begin_something(random: &mut Random, files: Files, c: &mut Connection, server: &Server, replica: &Server) {
    let what = random.below(4);
    if what & 1 != 0 && files != Files::Snapshots {
        c.config_set("aof-use-rdb-preamble", if random.one_in(2) { "yes" } else { "no" });
        c.ask("BGREWRITEAOF");
    }
    if what & 2 != 0 {
        c.config_set("repl-diskless-sync", if random.one_in(2) { "yes" } else { "no" });
        replica.connect().ok(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    }
}

fn kill_and_start_again(what: &str, files: Files, lines: &[&str]) {
    let (mut random, mut sums) = (Random::new(41), Sums::default());
    let builder = lines.iter().fold(Server::builder().tcp(), |builder, line| builder.conf(*line));
    let (mut server, replica) = (builder.start(), Server::builder().tcp().start());
    ballast(&mut server.connect());
    for number in 0..rounds() {
        let round = format!("round{number}");
        if files != Files::Snapshots && number % 10 == 9 {
            server.connect().ask("BGREWRITEAOF"); // else it has all rounds to load
        }
        let place = Place::of(&server);
        let mut watch = Watch { files, saving: None, kept: None };
        let (mut freezes, mut killed, mut busy) = (Vec::new(), Instant::now(), Busy::default());
        let spent = spending(&place, &round, &CLIENTS, random.next(), || {
            let mut c = server.connect();
            let mut watch_for = |c: &mut Connection, time: Duration| {
                let end = Instant::now() + time;
                while Instant::now() < end {
                    watch.look(c);
                    thread::sleep(Duration::from_millis(1));
                }
            };
            // So long that a snapshot is finished, more often than not.
            let least_ms = if files == Files::Snapshots { 600 } else { 100 };
            let whole_ms = least_ms + random.below(800);
            let frozen_after = between(&mut random, 20, whole_ms);
            watch_for(&mut c, frozen_after);
            freezes = freeze(&mut c, &round);
            watch_for(&mut c, Duration::from_millis(u64::try_from(whole_ms).unwrap()) - frozen_after);
            begin_something(&mut random, files, &mut c, &server, &replica);
            let begun_before = between(&mut random, 0, 30);
            watch_for(&mut c, begun_before);
            busy = Busy::of(&mut c);
            server.kill();
            killed = Instant::now();
            // Now and then for so long that what refills is full.
            let pause = if random.one_in(4) { between(&mut random, 1_000, 1_500) } else { between(&mut random, 0, 100) };
            thread::sleep(pause);
            server.start_again();
            thread::sleep(between(&mut random, 200, 500));
        });
        // Redis 8 does not let go of a replica that loads what it was sent.
        for command in ["REPLICAOF NO ONE", "FLUSHALL ASYNC"] {
            wait_until("the replica to obey", || replica.connect().ask(command) == Value::Okay);
        }
        let mut ledger = Ledger { spent: spent.into_iter().flatten().collect(), freezes, killed, busy };
        ledger.drain(&mut server.connect(), &round);
        ledger.assert_kept(watch.kept(), &round, &mut sums);
    }
    sums.report(what, rounds());
    let log = server.log();
    assert!(!log.contains("REDIS BUG REPORT"), "{log}");
}

#[test]
fn with_an_append_only_file_always_synced_a_kill_grants_nothing_twice() {
    kill_and_start_again("AOF always", Files::Always, &["appendonly yes", "appendfsync always"]);
}

#[test]
fn with_an_append_only_file_synced_every_second_a_kill_grants_no_more_than_its_tail_twice() {
    kill_and_start_again("AOF everysec", Files::EverySecond, &["appendonly yes", "appendfsync everysec"]);
}

#[test]
fn with_snapshots_a_kill_grants_no_more_than_came_since_the_last_one_twice() {
    kill_and_start_again("snapshots", Files::Snapshots, &[]);
}
