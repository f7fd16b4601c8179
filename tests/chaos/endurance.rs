//! Mixed load for a while, on a primary with an AOF and a replica: memory stays what it
//! was, both are the same at the end and so is what is started from the file, and there
//! is nothing in the logs. `TOKENBUCKET_MINUTES` says for how long (`./dev endure`).

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::{Connection, array, error_text, text};
use crate::random::Random;
use crate::server::{Server, wait_until};

/// The buckets there are: more come and go than stay.
const KEYS: usize = 3_000;
const BATCH: usize = 50;

/// A command of any kind that makes sense, in words.
fn any_command(random: &mut Random) -> String {
    let number = random.below(KEYS);
    // Some are full again at once, and expire soon after.
    let (key, limit) = bucket(number);
    let tokens = random.pick(&["1", "1", "1", "2", "0", "0.25", "7"]);
    let seconds = random.pick(&["0", "0.001", "0.05", "3", "600"]);
    match random.below(40) {
        0..18 => format!("TB.CONSUME {key} {limit} {tokens}"),
        18..20 => format!("TB.CONSUME {key} {limit} 5 UPTO"),
        20..22 => format!("TB.CONSUME {key} {limit} {tokens} MAXWAIT 5"),
        22 => format!("TB.CONSUME {key} {limit} {tokens} FORCE"),
        23..26 => format!("TB.MCONSUME 2 {key} {key}:day {limit} {tokens} 1 1000 0.1 1 1"),
        26..28 => format!("TB.BCONSUME {key} {limit} 1 0.002"),
        28..31 => format!("TB.PENALISE {key} {seconds}"),
        31 => format!("TB.SYNC {key} {tokens} RESET {seconds}"),
        32 => format!("TB.SYNC {key} 5 LIMIT 8"),
        33..36 => format!("TB.REFUND {key} {tokens}"),
        36 => format!("TB.PEEK {key}"),
        37 => format!("UNLINK {key}"),
        // As others see that a key has been idle for long.
        38 => format!("PEXPIRE {key} 1"),
        _ => format!("COPY {key} {key}:copy REPLACE"),
    }
}

/// A bucket's key, and the limit that every call on it brings.
fn bucket(number: usize) -> (String, &'static str) {
    let limits = ["10 0.01", "100 5000", "7.5 3", "1000000 1e6", "20 1.1574074074074073e-05"];
    (format!("{{{}}}:{number}", number % 7), limits[number % limits.len()])
}

/// Makes every key that the load can make: from here on there are only fewer.
fn all_there_can_be(c: &mut Connection) {
    for number in 0..KEYS {
        let (key, limit) = bucket(number);
        c.ask(&format!("TB.MCONSUME 2 {key} {key}:day {limit} 1 1 1000 0.1 1 1"));
        c.ask(&format!("COPY {key} {key}:copy REPLACE"));
    }
}

/// Sends commands until it is told to stop, and counts those that were answered.
fn load(server: &Server, seed: u64, stop: &AtomicBool, answered: &AtomicU64) {
    let (mut c, mut random) = (server.connect(), Random::new(seed));
    while !stop.load(Relaxed) {
        let commands: Vec<String> = (0..BATCH).map(|_| any_command(&mut random)).collect();
        for command in &commands {
            c.send(&command.split(' ').collect::<Vec<_>>());
        }
        for command in &commands {
            let reply = c.receive();
            if let Some(error) = error_text(&reply) {
                let expected = ["no such key", "tokens must be few enough"];
                assert!(expected.iter().any(|text| error.contains(text)), "{command}: {error}");
            }
            answered.fetch_add(1, Relaxed);
        }
    }
}

/// The least that was in use over a stretch: what is always there.
struct Memory {
    used: u64,
    resident: u64,
}

impl Memory {
    fn least_over(time: Duration, server: &Server) -> Self {
        let (mut least, mut c, end) = (Self { used: u64::MAX, resident: u64::MAX }, server.connect(), Instant::now() + time);
        while Instant::now() < end {
            let used = c.info("memory", "used_memory").parse().unwrap();
            let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
            least = Self { used: least.used.min(used), resident: least.resident.min(resident * 1024) };
            thread::sleep(Duration::from_millis(100));
        }
        least
    }

    /// What is in use is what it was, but for some buffers. The pages are the allocator's
    /// to keep: of them no more than a twentieth and some above what it was.
    #[track_caller]
    fn assert_flat(&self, before: &Self, who: &str) {
        const BUFFERS: u64 = 128 * 1024;
        const PAGES: u64 = 512 * 1024;
        assert!(self.used <= before.used + BUFFERS, "{who}: {} bytes in use, {} before", self.used, before.used);
        let most = before.resident + before.resident / 20 + PAGES;
        assert!(self.resident <= most, "{who}: {} bytes resident, {} before", self.resident, before.resident);
    }
}

/// What an operator would look into: each warning, and whatever sounds like one. The
/// machine the tests run on may want settings, and a start says a few things as warnings.
#[track_caller]
fn assert_quiet(server: &Server, who: &str) {
    const USUAL: [&str; 10] = [
        "overcommit",
        "Transparent Huge Pages",
        "backlog",
        "oO0OoO0OoO0Oo",
        "Redis version=",
        "Valkey version=",
        "Configuration loaded",
        "Server initialized",
        "maximum open files",
        "Diskless rdb transfer",
    ];
    const SOUNDS: [&str; 8] =
        ["warning", "error", "critical", "a fault in the module", "failed", "bug report", "assert", "refuse"];
    for line in server.log().lines() {
        let loud = line.contains(" # ") || SOUNDS.iter().any(|sound| line.to_lowercase().contains(sound));
        assert!(!loud || USUAL.iter().any(|usual| line.contains(usual)), "in the log of the {who}: {line}");
    }
}

/// Primary and replica let each key go at the same moment.
#[track_caller]
fn assert_same_expiry(c: &mut Connection, replica: &mut Connection) {
    let mut compared = 0;
    for name in names(c) {
        let asked = format!("PEXPIRETIME {name}");
        let (there, here) = (c.int(&asked), replica.int(&asked));
        // It may have gone meanwhile, here or there first.
        if there != -2 && here != -2 {
            assert_eq!(here, there, "when {name} expires");
            compared += 1;
        }
    }
    assert!(compared > 500, "hardly a bucket is left: {compared}");
}

fn names(c: &mut Connection) -> BTreeSet<String> {
    array(c.ask("KEYS *")).iter().map(text).collect()
}

#[test]
fn under_mixed_load_memory_is_flat_and_primary_replica_and_file_are_the_same() {
    let minutes: f64 = std::env::var("TOKENBUCKET_MINUTES").map_or(1.0, |minutes| minutes.parse().unwrap());
    let begun = Instant::now();
    let builder = || Server::builder().tcp().conf("appendonly yes").conf("auto-aof-rewrite-min-size 1mb").conf("hz 50");
    let (mut primary, replica) = (builder().start(), builder().start());
    replica.replicate(&primary);
    all_there_can_be(&mut primary.connect());
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                scope.spawn({
                    let (primary, stop, answered) = (&primary, &stop, &answered);
                    move || load(primary, 70 + client, stop, answered)
                })
            })
            .collect();
        // After a third it is as it will be; an AOF is rewritten all the while.
        let third = Duration::from_secs_f64(minutes * 60.0 / 3.0);
        let least_of_both = || {
            [&primary, &replica]
                .map(|server| scope.spawn(move || Memory::least_over(third, server)))
                .map(|memory| memory.join().unwrap_or_else(|panic| resume_unwind(panic)))
        };
        // Whatever becomes of the looking, the clients must end.
        let seen = catch_unwind(AssertUnwindSafe(|| {
            thread::sleep(third);
            (least_of_both(), least_of_both())
        }));
        stop.store(true, Relaxed);
        let ([before, before_there], [after, after_there]) = seen.unwrap_or_else(|panic| resume_unwind(panic));
        for client in clients {
            client.join().unwrap();
        }
        after.assert_flat(&before, "primary");
        after_there.assert_flat(&before_there, "replica");
        println!(
            "{minutes} minutes, {} keys: {} commands answered, {} bytes in use in the second third and {} in the last, {} and {} resident",
            primary.connect().int("DBSIZE"),
            answered.load(Relaxed),
            before.used,
            after.used,
            before.resident,
            after.resident
        );
    });
    let mut c = primary.connect();
    assert_eq!(c.info("tokenbucket", "tokenbucket_clients_waiting"), "0");
    replica.wait_for_sync(&primary);
    assert_same_expiry(&mut c, &mut replica.connect());
    // What has expired is deleted by the primary alone, when it comes to it.
    wait_until("what has expired to be gone", || {
        names(&mut c).iter().for_each(|name| drop(c.ask(&format!("PERSIST {name}"))));
        c.info("keyspace", "db0").contains("expires=0,")
    });
    replica.wait_for_sync(&primary);
    let digest = |c: &mut Connection| text(&c.ask("DEBUG DIGEST"));
    let there = digest(&mut c);
    assert_eq!(names(&mut c), names(&mut replica.connect()));
    assert_eq!(digest(&mut replica.connect()), there, "the replica has other buckets");
    assert!(c.int("DBSIZE") > 500, "hardly a bucket is left");
    assert_quiet(&primary, "primary");
    assert_quiet(&replica, "replica");

    wait_until("the file to be written", || c.info("persistence", "aof_buffer_length") == "0");
    primary.kill();
    primary.start_again();
    let mut c = primary.connect();
    assert_eq!(digest(&mut c), there, "the file has other buckets");
    assert_quiet(&primary, "primary that was started again");
    c.ok("FLUSHALL SYNC");
    wait_until("no bucket to be left that nobody has", || c.info("tokenbucket", "tokenbucket_buckets") == "0");
    println!("{:?} in all", begun.elapsed());
}
