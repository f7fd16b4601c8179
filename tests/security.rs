//! What a caller who is hostile, or only wrong, can do with the commands that a worker
//! has, and what bounds it: each line of the table in docs/operations.md.

use std::fs;
use std::path::Path;
use std::time::Instant;

use redis::Value;

use crate::assert_left_of;
use crate::connection::{Connection, array, consumed, error_text, int};
use crate::forgery::Blob;
use crate::server::Server;

/// The line in docs/operations.md that sets up a worker, and that worker.
fn worker(server: &Server) -> Connection {
    let operations = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md")).unwrap();
    let line = operations.lines().find(|line| line.starts_with("ACL SETUSER worker ")).expect("the line in the document");
    server.connect().ok(line);
    let mut c = server.connect();
    c.ok("AUTH worker secret");
    c
}

/// Of a call that is not let through.
#[track_caller]
fn assert_no_permission(c: &mut Connection, call: &str) {
    let error = c.error(call);
    assert!(error.starts_with("NOPERM"), "{call}: {error}");
}

#[test]
fn a_worker_may_do_its_work_on_its_own_keys_and_nothing_else() {
    let server = Server::start();
    let mut c = worker(&server);
    for call in [
        "PING",
        "TB.CONSUME limit:acme 10 1",
        "TB.MCONSUME 2 limit:acme:a limit:acme:b 10 1 1 1 10 1 1 1",
        "TB.BCONSUME limit:acme 10 1 1 5",
        "TB.SYNC limit:acme 5 LIMIT 9 RESET 10",
        "TB.REFUND limit:acme 1",
        "TB.PENALISE limit:acme 1",
    ] {
        assert_eq!(error_text(&c.ask(call)), None, "{call}");
    }
    for call in [
        "TB.CONSUME limit:other 10 1",
        "TB.MCONSUME 2 limit:acme:a limit:other:b 10 1 1 1 10 1 1 1",
        "TB.MCONSUME 1 limit:other 10 1 1 1",
        "TB.BCONSUME limit:other 10 1 1 5",
        "TB.SYNC limit:other 5",
        "TB.REFUND limit:other 1",
        "TB.PENALISE limit:other 1",
        "TB.PEEK limit:acme",
        "TB.STATE limit:acme blob",
        "DEL limit:acme",
        "UNLINK limit:acme",
        "RENAME limit:acme limit:acme:b",
        "COPY limit:acme limit:acme:b",
        "PEXPIRE limit:acme 1",
        "PERSIST limit:acme",
        "RESTORE limit:acme 0 blob",
        "CONFIG SET tokenbucket.max-penalty 0",
        "MODULE UNLOAD tokenbucket",
        "FLUSHALL",
        "DEBUG RELOAD",
        "EVAL return 1 0",
    ] {
        assert_no_permission(&mut c, call);
    }
    assert_eq!(server.connect().int("EXISTS limit:other limit:other:b"), 0);
}

#[test]
fn another_limit_gives_tokens_to_whoever_brings_it_and_to_nobody_else() {
    let server = Server::start();
    let (mut hostile, mut worker) = (worker(&server), server.connect());
    assert_eq!(worker.take("limit:acme 10 1e-8 10").remaining, 0);
    // No change of limit raises a level ...
    assert_eq!(hostile.consume("limit:acme 1e6 1e-2").verdict(), (0, "empty", 0));
    // ... but what refills at a rate of one's own is one's own, until the next call.
    hostile.consume("limit:acme 1e6 1e12");
    assert!(hostile.consume("limit:acme 1e6 1e12 1000").allowed > 0);
    hostile.consume("limit:acme 1e6 1e12 0");
    let honest = worker.consume("limit:acme 10 1e-8 11 UPTO");
    assert!(honest.allowed <= 10, "{honest:?}");
    assert_eq!(worker.consume("limit:acme 10 1e-8").status, "empty");
    assert!(worker.info("tokenbucket", "tokenbucket_limit_changes").parse::<u64>().unwrap() >= 3, "and INFO tells");
}

#[test]
fn a_forced_debt_is_bounded_by_a_hundred_years_and_ends_with_the_key() {
    let server = Server::start();
    let (mut hostile, mut admin) = (worker(&server), server.connect());
    hostile.take("limit:acme 10 1 3000000000 FORCE");
    assert!(hostile.error("TB.CONSUME limit:acme 10 1 1000000000 FORCE").starts_with("ERR tokens must be few enough"));
    assert!(admin.consume("limit:acme 10 1").wait_ms > 2_900_000_000_000);
    start_from_empty(&mut admin);
}

#[test]
fn a_refund_that_was_never_taken_is_no_more_than_a_full_bucket() {
    let server = Server::start();
    let (mut hostile, mut worker) = (worker(&server), server.connect());
    worker.take("limit:acme 10 1e-8 10");
    assert_eq!(hostile.refund("limit:acme 1e12"), Some(10));
    assert_eq!(worker.take("limit:acme 10 1e-8 10").remaining, 0);
    worker.penalise("limit:acme 1000");
    assert_eq!(hostile.refund("limit:acme 1e12"), Some(0), "a freeze stands");
}

#[test]
fn a_freeze_lasts_no_longer_than_max_penalty() {
    let server = Server::start();
    let (mut hostile, mut admin) = (worker(&server), server.connect());
    assert_left_of(604_800_000, hostile.penalise("limit:acme 1e11"));
    admin.config_set("tokenbucket.max-penalty", "60");
    assert_left_of(60_000, hostile.penalise("limit:acme:2 UNTIL 99999999999"));
    start_from_empty(&mut admin);
}

#[test]
fn a_window_lasts_no_longer_than_max_window_and_a_vendor_limit_its_hour() {
    let server = Server::start();
    let (mut hostile, mut admin) = (worker(&server), server.connect());
    admin.config_set("tokenbucket.max-window", "60");
    hostile.take("limit:acme 10 1");
    hostile.sync("limit:acme 0 LIMIT 1 RESET 1e11");
    let bucket = admin.peek("limit:acme");
    assert_left_of(60_000, bucket.vendor_reset_ms.unwrap());
    assert_eq!(bucket.vendor_limit, Some(1));
    assert!(admin.int("PTTL limit:acme") <= 3_600_000 + 20_000);
}

#[test]
fn keys_that_stay_a_hundred_years_are_bounded_by_max_fill_time_and_maxmemory() {
    let server = Server::start();
    let (mut hostile, mut admin) = (worker(&server), server.connect());
    hostile.take("limit:acme:0 1 3.2e-10");
    assert!(admin.int("PTTL limit:acme:0") > 3_000_000_000_000);
    admin.config_set("tokenbucket.max-fill-time", "86400");
    assert!(hostile.error("TB.CONSUME limit:acme:1 1 3.2e-10").starts_with("ERR rate must be high enough"));
    // As many of a day as there is memory for; what was there goes on.
    let used: usize = admin.info("memory", "used_memory").parse().unwrap();
    admin.config_set("maxmemory", &(used + 200_000).to_string());
    let refused = (2..10_000).find_map(|key| error_text(&hostile.ask(&format!("TB.CONSUME limit:acme:{key} 10 0.001"))));
    assert_eq!(refused.as_deref(), Some("OOM command not allowed when used memory > 'maxmemory'."));
    assert_eq!(hostile.take("limit:acme:2 10 0.001").remaining, 8);
}

#[test]
fn waiting_clients_are_bounded_by_max_waiting() {
    const WAITING: usize = 100;
    let server = Server::start();
    let mut admin = server.connect();
    admin.config_set("tokenbucket.max-waiting", &WAITING.to_string());
    admin.take("limit:acme 1 1e-8");
    let mut waiting: Vec<Connection> = (0..WAITING).map(|_| worker(&server)).collect();
    for c in &mut waiting {
        c.send(&["TB.BCONSUME", "limit:acme", "1", "1e-8", "1", "0"]);
    }
    crate::server::wait_until("them to wait", || admin.info("tokenbucket", "tokenbucket_clients_waiting") == WAITING.to_string());
    // Who comes then is answered at once, each of thousands.
    let mut late = worker(&server);
    for _ in 0..2_000 {
        assert_eq!(consumed(&late.ask("TB.BCONSUME limit:acme 1 1e-8 1 0")).allowed, 0);
    }
    assert_eq!(admin.info("tokenbucket", "tokenbucket_clients_waiting"), WAITING.to_string());
}

#[test]
fn a_state_makes_a_bucket_anything_and_is_for_servers_alone() {
    let server = Server::start();
    let (mut hostile, mut admin) = (worker(&server), server.connect());
    let blob = Blob::new(admin.time_us(), 1_000_000).bucket(1_000_000, 1, 1, 0);
    let state = [&b"TB.STATE"[..], b"limit:acme", blob.bytes()];
    assert!(hostile.error_bytes(&state).starts_with("NOPERM"));
    assert_eq!(admin.ask_bytes(&state), Value::Okay);
    assert_eq!(admin.peek("limit:acme").limit().0, "1000000");
    if server.version() >= (7, 2) {
        admin.ok("ACL SETUSER broad on nopass ~* +@all -@dangerous");
    } else {
        admin.ok("ACL SETUSER broad on nopass ~* +@all -@dangerous -tb.state"); // 7.0 knows no categories of modules
    }
    let mut broad = server.connect();
    broad.ok("AUTH broad any");
    assert!(broad.error_bytes(&state).starts_with("NOPERM"));
}

#[test]
fn a_state_leads_the_clock_of_all_buckets_whatever_keys_its_caller_may_touch() {
    let server = Server::start();
    let mut admin = server.connect();
    admin.take("limit:acme 10 1e-3 10");
    admin.penalise("limit:acme 3600");
    admin.ok("ACL SETUSER hostile on nopass ~mine* -@all +TB.STATE");
    let mut hostile = server.connect();
    hostile.ok("AUTH hostile any");
    let blob = Blob::new(admin.time_us() + 20 * 3_600_000_000, 1_000_000).bucket(1_000_000, 1, 1, 0);
    let state = |key: &[u8]| [b"TB.STATE".to_vec(), key.to_vec(), blob.bytes().to_vec()];
    assert!(hostile.error_bytes(&state(b"limit:acme")).starts_with("NOPERM"));
    assert_eq!(admin.consume("limit:acme 10 1e-3").status, "frozen");
    // This is why it is for servers alone, and not bounded by keys.
    assert_eq!(hostile.ask_bytes(&state(b"mine")), Value::Okay);
    assert_eq!(admin.consume("limit:acme 10 1e-3").status, "granted");
}

/// What docs/operations.md says of a mistaken freeze, as it says it.
#[track_caller]
fn start_from_empty(admin: &mut Connection) {
    let operations = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md")).unwrap();
    let lines: Vec<&str> = operations.lines().skip_while(|line| *line != "MULTI").take_while(|line| *line != "```").collect();
    let [_, delete, take, "EXEC"] = lines[..] else { panic!("{lines:?}") };
    let begun = Instant::now();
    let replies = admin.transaction(&[delete, take]);
    assert_eq!((int(&replies[0]), int(&array(replies[1].clone())[0])), (1, 1));
    let bucket = admin.peek("limit:acme");
    let (tokens, most): (f64, f64) = (bucket.tokens().parse().unwrap(), 100.0 * begun.elapsed().as_secs_f64());
    assert!(bucket.frozen_ms == 0 && tokens <= most, "{bucket:?}, {most} tokens have come in");
}

#[test]
fn a_mistaken_freeze_is_lifted_without_a_burst() {
    let server = Server::start();
    let mut admin = server.connect();
    admin.take("limit:acme 20 100 3");
    admin.penalise("limit:acme 100000");
    start_from_empty(&mut admin);
}
