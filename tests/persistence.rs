//! What a bucket is survives: restarts by RDB and AOF, copies under other names,
//! in other databases and on other servers, with the one clock and with a TTL that
//! fits.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use redis::{Parser, Value};

use crate::connection::{Connection, array, error_text, text};
use crate::forgery::{Blob, clock_in, clock_of, payload_of, unsealed};
use crate::scenarios::{self, SCENARIOS, Witness};
use crate::server::{Server, wait_until};
use crate::{LAG_MS, assert_left_of};

// ---- the scenarios

#[test]
fn the_scenarios_are_of_every_command_and_every_kind() {
    assert!(SCENARIOS.len() >= 60);
    for command in ["TB.CONSUME", "TB.PENALISE", "TB.SYNC", "TB.REFUND", "TB.PEEK"] {
        let count = SCENARIOS.iter().filter(|scenario| scenario.command() == command).count();
        assert!(count >= 5, "{count} of {command}");
    }
    let server = Server::start();
    let witness = Witness::of(&mut server.connect());
    let replies = || SCENARIOS.iter().zip(witness.replies());
    let statuses: BTreeSet<String> = replies()
        .filter(|(scenario, _)| scenario.command() == "TB.CONSUME")
        .map(|(_, reply)| text(&array(reply.clone())[4]))
        .collect();
    assert_eq!(statuses.into_iter().collect::<Vec<_>>(), ["empty", "frozen", "granted", "never", "reserved", "window"]);
    assert!(witness.replies().all(|reply| *reply != Value::Nil), "a scenario without a bucket");
}

// ---- restarts

#[test]
fn a_reload_keeps_every_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    let buckets = c.info("tokenbucket", "tokenbucket_buckets");
    c.ok("DEBUG RELOAD");
    assert_eq!(c.info("tokenbucket", "tokenbucket_buckets"), buckets);
    witness.assert_same(&mut c);
}

#[test]
fn a_restart_from_an_rdb_keeps_every_bucket() {
    let mut server = Server::start();
    let witness = Witness::of(&mut server.connect());
    server.shut_down("SAVE");
    server.start_again();
    witness.assert_same(&mut server.connect());
}

#[test]
fn a_crash_with_an_append_only_file_loses_nothing() {
    let mut server = Server::builder().append_only().start();
    let witness = Witness::of(&mut server.connect());
    server.kill();
    server.start_again();
    witness.assert_same(&mut server.connect());
}

#[test]
fn a_rewritten_append_only_file_keeps_every_bucket() {
    let mut server = Server::builder().append_only().start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    rewrite_aof(&mut c);
    let (base, later): (Vec<_>, Vec<_>) =
        aof_files(&server).into_iter().partition(|file| file.to_str().unwrap().contains(".base."));
    assert!(later.iter().all(|file| fs::metadata(file).unwrap().len() == 0), "not all was rewritten");
    assert_eq!(names(&commands_in(&base[0])).into_iter().collect::<Vec<_>>(), ["PEXPIREAT", "SELECT", "TB.STATE"]);
    server.kill();
    server.start_again();
    witness.assert_same(&mut server.connect());
}

#[test]
fn an_append_only_file_with_an_rdb_before_it_keeps_every_bucket() {
    let mut server = Server::builder().append_only().conf("aof-use-rdb-preamble yes").start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    rewrite_aof(&mut c);
    server.kill();
    server.start_again();
    witness.assert_same(&mut server.connect());
}

fn rewrite_aof(c: &mut Connection) {
    c.ask("BGREWRITEAOF");
    wait_for_rewrite(c);
}

/// A replica rewrites its AOF too, after a full resync.
#[track_caller]
pub(crate) fn wait_for_rewrite(c: &mut Connection) {
    wait_until("the AOF to be rewritten", || {
        let fields = c.info_fields("persistence");
        fields["aof_rewrite_in_progress"] == "0"
            && fields["aof_rewrite_scheduled"] == "0"
            && fields["aof_last_rewrite_time_sec"] != "-1"
    });
    assert_eq!(c.info("persistence", "aof_last_bgrewrite_status"), "ok");
}

fn aof_files(server: &Server) -> Vec<PathBuf> {
    let entries = fs::read_dir(server.dir().join("appendonlydir")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "aof"));
    files.sort();
    files
}

/// The commands in a file of the AOF that is not an RDB.
fn commands_in(file: &PathBuf) -> Vec<Vec<Vec<u8>>> {
    let bytes = fs::read(file).unwrap();
    let (mut reader, mut parser) = (bytes.as_slice(), Parser::new());
    let mut commands = Vec::new();
    while let Ok(command) = parser.parse_value(&mut reader) {
        let word = |value: Value| match value {
            Value::BulkString(bytes) => bytes,
            other => panic!("no word but {other:?}"),
        };
        commands.push(array(command).into_iter().map(word).collect());
    }
    commands
}

/// The commands that a server has written since it began its AOF.
pub(crate) fn commands_appended(server: &Server) -> Vec<Vec<Vec<u8>>> {
    let files = aof_files(server);
    files.iter().filter(|file| file.to_str().unwrap().contains(".incr.")).flat_map(commands_in).collect()
}

fn names(commands: &[Vec<Vec<u8>>]) -> BTreeSet<String> {
    commands.iter().map(|command| String::from_utf8(command[0].to_ascii_uppercase()).unwrap()).collect()
}

#[test]
fn the_append_only_file_has_results_and_no_commands_that_decide() {
    let server = Server::builder().append_only().start();
    let mut c = server.connect();
    let writes = [
        "TB.CONSUME k 10 0.01 4",
        "TB.CONSUME k 10 0.01 9 UPTO",
        "TB.CONSUME k 10 0.01 2 MAXWAIT 3600",
        "TB.CONSUME k 10 0.01 2 FORCE",
        "TB.CONSUME k 10 0.02 2",
        "TB.REFUND k 1",
        "TB.SYNC k 5 LIMIT 8 RESET 600",
        "TB.PENALISE k 100",
        "TB.SYNC bare 5",
        "TB.PENALISE bare UNTIL 99999999999",
    ];
    for command in writes {
        assert_eq!(error_text(&c.ask(command)), None, "{command}");
    }
    c.transaction(&["TB.CONSUME k 10 0.03 1 FORCE", "TB.PENALISE k 200"]);
    c.ask_bytes(&[
        "EVAL",
        "redis.call('TB.REFUND', KEYS[1], 1) return redis.call('TB.PENALISE', KEYS[2], 300)",
        "2",
        "bare",
        "k",
    ]);
    let commands = commands_appended(&server);
    assert_eq!(names(&commands).into_iter().collect::<Vec<_>>(), ["EXEC", "MULTI", "SELECT", "TB.STATE"]);
    let states = commands.iter().filter(|command| command[0] == b"TB.STATE");
    // One for each, but for the refund of a bucket without a limit, which changes nothing.
    assert_eq!(states.count(), writes.len() + 3);
}

// ---- copies

#[test]
fn dump_and_restore_keep_every_bucket() {
    let server = Server::start();
    let other = Server::start();
    let (mut c, mut there) = (server.connect(), other.connect());
    let witness = Witness::of(&mut c);
    for key in scenarios::keys() {
        let (payload, expires) = (bytes(&c.ask(&format!("DUMP {key}"))), c.int(&format!("PEXPIRETIME {key}")).to_string());
        assert_eq!(c.int(&format!("DEL {key}")), 1);
        for connection in [&mut c, &mut there] {
            let restore: [&[u8]; 5] = [b"RESTORE", key.as_bytes(), expires.as_bytes(), &payload, b"ABSTTL"];
            assert_eq!(connection.ask_bytes(&restore), Value::Okay, "{key}");
        }
    }
    witness.assert_same(&mut c);
    witness.assert_same(&mut there);
}

fn bytes(reply: &Value) -> Vec<u8> {
    match reply {
        Value::BulkString(bytes) => bytes.clone(),
        other => panic!("no bytes but {other:?}"),
    }
}

#[test]
fn a_copy_is_a_bucket_of_its_own_and_the_same() {
    let server = Server::start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    for key in scenarios::keys() {
        assert_eq!(c.int(&format!("COPY {key} {{twins}}:copy REPLACE")), 1);
        // What happens to one is nothing to the other.
        c.penalise(&format!("{key} 5000"));
        assert_eq!(c.int(&format!("COPY {{twins}}:copy {key} REPLACE")), 1);
        c.penalise("{twins}:copy 6000");
    }
    witness.assert_same(&mut c);
}

#[test]
fn a_bucket_stays_the_same_under_another_name() {
    let server = Server::start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    for key in scenarios::keys() {
        c.ok(&format!("RENAME {key} elsewhere"));
        assert_eq!(c.int(&format!("RENAMENX elsewhere {key}")), 1);
    }
    witness.assert_same(&mut c);
}

#[test]
fn a_bucket_stays_the_same_in_another_database() {
    let server = Server::start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    c.ok("SWAPDB 0 1");
    assert_eq!(c.int("DBSIZE"), 0);
    c.ok("SELECT 1");
    for key in scenarios::keys() {
        assert_eq!(c.int(&format!("MOVE {key} 2")), 1);
    }
    c.ok("SELECT 2");
    witness.assert_same(&mut c);
}

#[test]
fn migration_to_another_server_keeps_every_bucket() {
    let server = Server::start();
    let other = Server::builder().tcp().start();
    let mut c = server.connect();
    let witness = Witness::of(&mut c);
    let port = other.port().to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"].map(str::to_owned);
    let command: Vec<String> = words.into_iter().chain(scenarios::keys()).collect();
    let before_us = c.time_us();
    assert_eq!(c.ask_bytes(&command), Value::Okay);
    let took_ms = (c.time_us() - before_us) / 1_000 + 1;
    assert_eq!(c.int(&format!("EXISTS {}", scenarios::key(0))), 0);
    // MIGRATE sends what is left to live.
    witness.assert_same_within(&mut other.connect(), took_ms);
}

// ---- the one clock

const HOUR_US: i64 = 3_600_000_000;

#[track_caller]
fn receive_state(c: &mut Connection, key: &str, blob: &Blob) {
    assert_eq!(c.ask_bytes(&[&b"TB.STATE"[..], key.as_bytes(), blob.bytes()]), Value::Okay);
}

/// Moves the module's clock ahead of the wall clock, by at most a day.
fn move_clock_ahead(c: &mut Connection, hours: i64) {
    let blob = Blob::new(c.time_us() + hours * HOUR_US, 1_000_000).bucket(1, 1, 1, 0);
    receive_state(c, "ahead", &blob);
}

/// A bucket that was emptied between two moments of the wall clock, and whose next
/// token takes 100 seconds.
struct Pending {
    after_us: i64,
    before_us: i64,
}

impl Pending {
    fn begin(c: &mut Connection) -> Self {
        c.ask("DEL pending");
        let after_us = c.time_us();
        c.take("pending 10 0.01 10");
        Self { after_us, before_us: c.time_us() }
    }

    /// For the bucket no more time has passed than has, and no less than until
    /// `at_least_us`.
    #[track_caller]
    fn assert_goes_on(&self, c: &mut Connection, at_least_us: i64) {
        let wait_ms = c.consume("pending 10 0.01").wait_ms;
        let most_ms = (c.time_us() - self.after_us) / 1_000 + 2;
        let least_ms = (at_least_us - self.before_us).max(0) / 1_000 - 2;
        let passed_ms = 100_000 - wait_ms;
        assert!((least_ms..=most_ms).contains(&passed_ms), "{passed_ms} ms passed, and not {least_ms} to {most_ms}");
    }
}

#[test]
fn a_server_starts_no_earlier_than_the_clock_in_its_files() {
    for builder in [Server::builder(), Server::builder().append_only()] {
        let mut server = builder.start();
        let mut c = server.connect();
        move_clock_ahead(&mut c, 23);
        let pending = Pending::begin(&mut c);
        if c.config("appendonly") == "no" {
            c.ok("SAVE");
        }
        server.kill();
        server.start_again();
        let mut c = server.connect();
        // It counts from the clock in the file: what has passed since then is lost to it.
        pending.assert_goes_on(&mut c, 0);
        c.take("new 10 0.01 10");
        assert!(c.int("PTTL new") > 23 * 3_600_000, "the clock was not followed");
    }
}

#[test]
fn a_clock_more_than_a_day_ahead_in_an_rdb_shifts_the_buckets_to_now() {
    const LEAD_US: i64 = 60 * HOUR_US;
    let mut server = Server::start();
    let mut c = server.connect();
    c.take("any 10 1");
    let genuine = bytes(&c.ask("DUMP any"));
    // As a server would save it whose clock is 60 hours ahead: first the buckets ...
    let after_us = c.time_us();
    let emptied = Blob::from(Vec::new()).bucket(10, 1, 100, after_us + LEAD_US);
    let payload = payload_of(&genuine, emptied.bytes());
    assert_eq!(c.ask_bytes(&[&b"RESTORE"[..], b"pending", b"500000000", &payload]), Value::Okay);
    let pending = Pending { after_us, before_us: c.time_us() };
    let saved_us = c.time_us();
    c.ok("SAVE");
    server.kill();
    // ... then its clock.
    let file = server.dir().join("dump.rdb");
    let mut rdb = unsealed(fs::read(&file).unwrap());
    let place = clock_in(&rdb);
    let clock_us = i64::from_be_bytes(rdb[place.clone()].try_into().unwrap()) + LEAD_US;
    rdb[place].copy_from_slice(&clock_us.to_be_bytes());
    fs::write(&file, rdb).unwrap();
    server.start_again();
    let mut c = server.connect();
    pending.assert_goes_on(&mut c, saved_us);
    c.take("new 10 0.01 10");
    let ttl = c.int("PTTL new");
    assert!((1_000_000..2_000_000).contains(&ttl), "the clock was followed: {ttl}");
    // Whatever comes later is not shifted.
    let pending = Pending::begin(&mut c);
    let payload = bytes(&c.ask("DUMP pending"));
    assert_eq!(c.ask_bytes(&[&b"RESTORE"[..], b"pending", b"0", &payload, b"REPLACE"]), Value::Okay);
    pending.assert_goes_on(&mut c, 0);
    c.ok("DEBUG RELOAD");
    pending.assert_goes_on(&mut c, 0);
}

#[test]
fn a_clock_in_an_rdb_that_no_server_has_is_refused() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.take("k 10 0.01 4");
    c.ok("SAVE");
    server.kill();
    let file = server.dir().join("dump.rdb");
    let genuine = unsealed(fs::read(&file).unwrap());
    for clock_us in [-1, i64::MIN, i64::MAX, (1 << 54) + 1] {
        let mut forged = genuine.clone();
        forged[clock_in(&genuine)].copy_from_slice(&clock_us.to_be_bytes());
        fs::write(&file, forged).unwrap();
        let log = server.try_start_again().expect_err("to be refused");
        assert!(log.contains("AUX"), "{clock_us}: {log}");
        assert!(!log.contains("crashed"), "{clock_us}: {log}");
    }
    for days in [-400, 0, 300] {
        let mut forged = genuine.clone();
        let range = clock_in(&genuine);
        let clock_us = i64::from_be_bytes(genuine[range.clone()].try_into().unwrap()) + days * 24 * HOUR_US;
        forged[range].copy_from_slice(&clock_us.to_be_bytes());
        fs::write(&file, forged).unwrap();
        server.start_again();
        assert!(server.connect().consume("k 10 0.01 0").remaining >= 6, "{days}");
        server.kill();
    }
}

#[test]
fn a_clock_that_comes_with_an_effect_is_followed_up_to_a_day() {
    let server = Server::builder().append_only().start();
    let mut c = server.connect();
    let sent_clock = |c: &mut Connection| {
        c.take("probe 1e6 1e-3");
        clock_of(&commands_appended(&server).last().unwrap()[2])
    };
    // A tenth of a token an hour.
    c.take("k 100 0.1 100 PER 3600");
    for (hours, ahead) in [(-1_000, 0), (23, 23), (22, 23), (40, 23), (65, 23), (24 * 365, 23)] {
        let blob = Blob::new(c.time_us() + hours * HOUR_US, 1_000_000 - hours * HOUR_US / 1_000).bucket(100, 1, 100, 0);
        receive_state(&mut c, "sent", &blob);
        let ahead_us = sent_clock(&mut c) - c.time_us();
        assert!((ahead_us - ahead * HOUR_US).abs() < LAG_MS * 1_000, "{hours} h: {ahead_us} us ahead");
        assert_eq!(c.consume("k 100 0.1 0 PER 3600").remaining, ahead / 10, "{hours} h");
        // It was at 0 at the sender's clock: that is now, or so long ago that it is full
        // again, and no expiry that was sent with it keeps it.
        if hours == -1_000 {
            assert_eq!(c.int("EXISTS sent"), 0);
            continue;
        }
        let bucket = c.peek("sent");
        match hours {
            22 => assert_eq!(bucket.tokens().parse::<f64>().unwrap().round(), 36.0),
            _ => assert_left_of(100_000, bucket.wait_ms.unwrap()),
        }
        if hours > ahead {
            // Shifted, its key goes by the clock that is here.
            let least = bucket.full_ms.unwrap() + ahead * 3_600_000 - LAG_MS;
            let ttl = c.int("PTTL sent");
            assert!((least..least + LAG_MS + 1_000_000).contains(&ttl), "{hours} h: {ttl} ms to live, {least} expected");
        }
    }
}

// ---- idle buckets go

/// Holds a key's TTL against what is known of its bucket: it goes when that is full
/// and nothing else is remembered, and at most `slack_ms` later.
#[track_caller]
fn assert_ttl_fits(c: &mut Connection, command: &str, idle_in_ms: i64, slack_ms: i64) {
    let begun_us = c.time_us();
    assert_eq!(error_text(&c.ask(command)), None, "{command}");
    let done_us = c.time_us();
    let expires_us = c.int("PEXPIRETIME k") * 1_000;
    let jitter_us = 2_000;
    let (least, most) = (begun_us + idle_in_ms * 1_000 - jitter_us, done_us + (idle_in_ms + slack_ms) * 1_000 + jitter_us);
    assert!(expires_us >= least, "{command}: gone {} ms too early", (least - expires_us) / 1_000);
    assert!(expires_us <= most, "{command}: gone {} ms too late", (expires_us - most) / 1_000);
}

#[test]
fn any_write_leaves_a_ttl_that_fits_and_mends_one_that_does_not() {
    let server = Server::start();
    let mut c = server.connect();
    const HOUR: i64 = 3_600_000;
    // What is done to a new bucket before; the write; for how long there is
    // something to remember after it; and a tenth of the time to fill.
    let cases: &[(&[&str], &str, i64, i64)] = &[
        (&[], "TB.CONSUME k 10 0.01 4", 400_000, 100_000),
        (&["TB.CONSUME k 10 0.01 10"], "TB.CONSUME k 10 0.01 10 MAXWAIT 1000", 2_000_000, 100_000),
        (&["TB.CONSUME k 10 0.01 10"], "TB.CONSUME k 10 0.01 5 FORCE", 1_500_000, 100_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.CONSUME k 10 0.01 2 UPTO", 600_000, 100_000),
        (&["TB.CONSUME k 10 0.01 10"], "TB.CONSUME k 20 0.001 15", 20_000_000, 2_000_000),
        (&["TB.CONSUME k 10 0.01 10"], "TB.CONSUME k 4 1", 4_000, 0),
        (&["TB.CONSUME k 10 1e-8 10"], "TB.REFUND k 4", 600_000_000_000, 100_000_000_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.SYNC k 2", 800_000, 100_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.SYNC k 2 RESET 5000", 5_000_000, 100_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.SYNC k 2 RESET 30", 400_000, 100_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.SYNC k 9 LIMIT 3", HOUR + 700_000, 100_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.SYNC k 9 LIMIT 30", HOUR, 100_000),
        (&["TB.CONSUME k 10 1e-6 4"], "TB.SYNC k 9 LIMIT 3", HOUR + 7_000_000_000, 1_000_000_000),
        (&["TB.CONSUME k 10 0.01 4"], "TB.PENALISE k 3000", 4_000_000, 100_000),
        (&["TB.CONSUME k 10 10 4"], "TB.PENALISE k 3000", 3_001_000, 0),
        (&[], "TB.PENALISE k 3000", 3_000_000 + HOUR, 0),
        (&[], "TB.PENALISE k 0", HOUR, 0),
        (&[], "TB.SYNC k 5", HOUR, 0),
        (&[], "TB.SYNC k 5 RESET 600", 600_000 + HOUR, 0),
        (&[], "TB.SYNC k 5 RESET 0 LIMIT 3", HOUR + HOUR, 0),
        (&["TB.PENALISE k 3000"], "TB.CONSUME k 10 0.01", 4_000_000, 100_000),
        (&["TB.PENALISE k 3000"], "TB.CONSUME k 10 0.01 2 FORCE", 4_200_000, 100_000),
    ];
    for (before, write, idle_in_ms, tenth_ms) in cases {
        for damage in ["PERSIST k", "PEXPIRE k 7000", "PEXPIREAT k 99999999999999", "TYPE k"] {
            c.ask("DEL k");
            for command in *before {
                assert_eq!(error_text(&c.ask(command)), None, "{command}");
            }
            c.ask(damage);
            assert_ttl_fits(&mut c, write, *idle_in_ms, 10_000.max(*tenth_ms));
        }
    }
}

#[test]
fn buckets_made_in_the_same_second_do_not_all_go_in_the_same_moment() {
    let server = Server::start();
    let mut c = server.connect();
    for (limit, slack_ms) in [("10 0.01", 100_000), ("10 10", 10_000)] {
        c.ok("FLUSHALL");
        let keys: Vec<String> = (0..200).map(|number| format!("user:{number}")).collect();
        for key in &keys {
            c.send(&format!("TB.CONSUME {key} {limit}").split(' ').collect::<Vec<_>>());
        }
        for _ in &keys {
            c.receive();
        }
        let mut moments: Vec<i64> = keys.iter().map(|key| c.int(&format!("PEXPIRETIME {key}"))).collect();
        moments.sort_unstable();
        // By chance alone: each tenth of the slack has its share.
        for tenth in moments.chunks(20) {
            let among = tenth[19] - tenth[0];
            assert!(among > slack_ms / 100 && among < slack_ms / 3, "{limit}: twenty of 200 go within {among} ms");
        }
        moments.dedup();
        assert!(moments.len() > 180, "{limit}: {} different moments", moments.len());
    }
}

// ---- full memory

#[test]
fn a_server_without_memory_loads_all_its_buckets() {
    for builder in [Server::builder(), Server::builder().append_only()] {
        let mut server = builder.start();
        let mut c = server.connect();
        let witness = Witness::of(&mut c);
        if c.config("appendonly") == "no" {
            c.ok("SAVE");
        }
        server.kill();
        server.add_conf("maxmemory 1");
        server.start_again();
        let mut c = server.connect();
        assert!(c.error("TB.PENALISE new 5").starts_with("OOM"));
        // Not even the transaction of a witness would be let through.
        c.config_set("maxmemory", "0");
        witness.assert_same(&mut c);
    }
}
