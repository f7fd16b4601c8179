//! Sentinels that watch a primary, and make its replica one when it is killed. They know
//! nothing of the module; what is tried is that clients who ask them for the primary spend
//! there what is left, and that the old one, when it is back, does not grant as well.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use redis::Value;
use tempfile::TempDir;

use crate::connection::{Connection, array, error_text, text};
use crate::halves::{CLIENTS, Failover, Halves, offset};
use crate::ledger::Busy;
use crate::load::{Place, primary_port, spending};
use crate::random::Random;
use crate::server::{Server, die_with_us, free_port, wait_until};
use crate::{between, rounds};

struct Sentinel {
    process: Child,
    port: u16,
    dir: TempDir,
}

impl Sentinel {
    fn watching(primary: &Server) -> Self {
        let (dir, port) = (tempfile::Builder::new().prefix("tb-sentinel").tempdir().unwrap(), free_port());
        let configuration = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\nlogfile sentinel.log\n\
             sentinel monitor limiter 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds limiter 3000\n\
             sentinel failover-timeout limiter 2000\n",
            dir.path().display(),
            primary.port()
        );
        let file = dir.path().join("sentinel.conf");
        fs::write(&file, configuration).unwrap();
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(server);
        die_with_us(&mut command);
        command.arg(file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let sentinel = Self { process: command.spawn().unwrap(), port, dir };
        wait_until("the sentinel to answer", || Connection::tcp(port).is_ok());
        // How often it looks and tells, in milliseconds, which is what takes it the time. How
        // long it waits for a primary is as long as one may be held up on a busy machine.
        assert_eq!(sentinel.ask("SENTINEL DEBUG INFO-PERIOD 500 PUBLISH-PERIOD 250"), Value::Okay);
        sentinel
    }

    fn ask(&self, command: &str) -> Value {
        Connection::tcp(self.port).unwrap().ask(command)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("---- log of a sentinel\n{}", fs::read_to_string(self.dir.path().join("sentinel.log")).unwrap_or_default());
        }
    }
}

/// Each takes some seven seconds, which is why there are fewer than of others: one where
/// nothing is said.
fn failovers() -> usize {
    const MOST: usize = 20;
    std::env::var("TOKENBUCKET_ROUNDS").map_or(1, |_| rounds().min(MOST))
}

#[test]
fn sentinels_make_a_replica_the_primary_and_grant_nothing_twice_that_was_confirmed() {
    let (mut random, mut halves) = (Random::new(47), Halves::default());
    let (mut primary, mut replica) = (Server::builder().tcp().start(), Server::builder().tcp().start());
    replica.replicate(&primary);
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::watching(&primary)).collect();
    for sentinel in &sentinels {
        wait_until("the sentinels to know of each other and of the replica", || {
            let info = text(&sentinel.ask("INFO sentinel"));
            info.contains("slaves=1") && info.contains("sentinels=3")
        });
    }
    let place = Place::Sentinels(sentinels.iter().map(|sentinel| sentinel.port).collect());
    for number in 0..failovers() {
        let round = format!("round{number}");
        let mut failover = Failover::of(&round);
        let spent = spending(&place, &round, &CLIENTS, random.next(), || {
            thread::sleep(between(&mut random, 50, 300));
            failover.watch(&primary, between(&mut random, 20, 600));
            failover.busy = Busy::of(&mut primary.connect());
            primary.kill();
            failover.killed = Instant::now();
            for sentinel in &sentinels {
                wait_until("the sentinel to say who is the primary", || {
                    primary_port(&mut Connection::tcp(sentinel.port).unwrap()) == replica.port()
                });
            }
            // Its own history begins behind what it had.
            failover.had = offset(&replica, "second_repl_offset") - 1;
            thread::sleep(between(&mut random, 200, 400));
            // It takes sentinels seconds to make a replica of the old primary when it is back.
            // Until then it would grant to whoever still knows it, but for its configuration.
            primary.add_conf("min-replicas-to-write 1");
            primary.start_again();
            // When they do they end every connection to it: none where that comes between.
            let ask = |command: &str| {
                let mut c = primary.connect();
                c.try_send(&command.split(' ').collect::<Vec<_>>()).ok()?;
                c.try_receive().ok()
            };
            let mut reply = None;
            wait_until("the old primary to answer", || {
                reply = ask("TB.CONSUME k 10 1e-8");
                reply.is_some()
            });
            let error = reply.as_ref().and_then(error_text).unwrap_or_else(|| panic!("no error but {reply:?}"));
            assert!(["NOREPLICAS", "READONLY"].contains(&error.split(' ').next().unwrap()), "{error}");
            let is_replica = || ask("ROLE").is_some_and(|role| text(&array(role)[0]) == "slave");
            wait_until("the old primary to be a replica", is_replica);
            primary.connect().config_set("min-replicas-to-write", "0"); // for when it is the primary again
            primary.wait_for_sync(&replica);
        });
        std::mem::swap(&mut primary, &mut replica);
        halves.settle(failover, spent, &primary);
    }
    halves.report("sentinels", failovers());
}
