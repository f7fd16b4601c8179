//! Small, and quick where it matters: what a bucket takes in memory, against the
//! same limiter kept by a script, and that a call allocates nothing.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::Value;

use crate::connection::{Connection, consumed, peeked, text};
use crate::random::Random;
use crate::server::{Server, wait_until};

const BUCKETS: usize = 6_000;
const BATCH: usize = 500;

fn key(number: usize) -> String {
    format!("limit:user:{number:06}")
}

#[track_caller]
fn send_all(c: &mut Connection, commands: impl Iterator<Item = Vec<String>>) {
    let mut sent = 0;
    for command in commands {
        c.send(&command);
        sent += 1;
    }
    for _ in 0..sent {
        let reply = c.receive();
        assert!(!matches!(reply, Value::ServerError(_)), "{reply:?}");
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

/// The memory in use once tables have stopped growing.
fn used_memory(server: &Server) -> usize {
    let mut c = server.connect();
    wait_until("the tables to be rehashed", || {
        let tables = text(&c.ask("DEBUG HTSTATS 0"));
        !tables.replace("rehashing index: -1", "none").contains("rehashing")
    });
    c.info("memory", "used_memory").parse().unwrap()
}

/// What one of [`BUCKETS`] keys takes, on a server of their own. Some commands are
/// sent for each, and others when a batch of keys has had these.
#[track_caller]
fn memory_per_key(commands: impl Fn(usize) -> Vec<Vec<String>>, later: impl Fn(usize) -> Vec<Vec<String>>) -> usize {
    let server = Server::start();
    let mut c = server.connect();
    let before = used_memory(&server);
    for first in (0..BUCKETS).step_by(BATCH) {
        send_all(&mut c, (first..first + BATCH).flat_map(&commands));
        send_all(&mut c, (first..first + BATCH).flat_map(&later));
    }
    drop(c);
    let after = used_memory(&server);
    let mut c = server.connect();
    assert_eq!(c.int("DBSIZE"), i64::try_from(BUCKETS).unwrap());
    assert_eq!(c.int("PTTL limit:user:000000").signum(), 1);
    (after - before) / BUCKETS
}

/// The token bucket that everybody writes: two fields, the time from the server.
const SCRIPT: &str = "\
    local capacity, rate, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]) \
    local time = redis.call('TIME') \
    local now = time[1] * 1000000 + time[2] \
    local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'ts') \
    local tokens, ts = tonumber(bucket[1]) or capacity, tonumber(bucket[2]) or now \
    tokens = math.min(capacity, tokens + (now - ts) * rate / 1000000) \
    local allowed = tokens >= wanted \
    if allowed then tokens = tokens - wanted end \
    redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now) \
    redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000)) \
    return allowed and 1 or 0";

/// What a limiter in a script takes: each key was called twice.
static MEMORY_OF_A_SCRIPT: LazyLock<usize> = LazyLock::new(|| {
    let call = |number: usize| vec![["EVAL", SCRIPT, "1", &key(number), "100", "0.05", "1"].map(str::to_owned).to_vec()];
    memory_per_key(call, call)
});

/// A limit of one's own takes less than the script on Redis 7.0. Later servers keep such
/// a hash in less: there it takes as much, or, where the server was built with the C
/// library's allocator, as the Valkeys of `./dev matrix` are, at most this much more.
fn allowance() -> usize {
    let server = Server::start();
    let allocator = server.connect().info("memory", "mem_allocator");
    match server.version() {
        (7, 0) => 0,
        _ if allocator == "libc" => 17,
        _ => 5,
    }
}

/// What a bucket takes with such a limit: each was called twice.
fn memory_of_a_bucket(limit: impl Fn(usize) -> String) -> usize {
    let call = |number: usize| vec![words(&format!("TB.CONSUME {} {}", key(number), limit(number)))];
    memory_per_key(call, call)
}

/// Everybody's own rate, as Python prints it.
fn own_limit(number: usize) -> String {
    format!("100 {}", 0.05 + number as f64 / 777_777.7)
}

#[test]
fn a_bucket_takes_less_memory_than_the_same_limiter_in_a_script() {
    let script = *MEMORY_OF_A_SCRIPT;
    let shared = memory_of_a_bucket(|_| "100 0.05".to_owned());
    let own = memory_of_a_bucket(own_limit);
    let own_per_day = memory_of_a_bucket(|number| format!("1000 {} 1.5 PER 86400", 1_000 + number));
    let all = format!("script {script}, shared {shared}, own {own}, own per day {own_per_day}");
    let most = script + allowance();
    assert!(shared < script && own < most && own_per_day < most, "bytes a key: {all}");
    assert!(shared < own, "bytes a key: {all}");
}

#[test]
fn a_limit_that_few_buckets_share_is_as_small() {
    let script = *MEMORY_OF_A_SCRIPT;
    for few in [2, 5] {
        let shared = memory_of_a_bucket(|number| format!("{} 0.05", 100 + number / few));
        assert!(shared < script + allowance(), "{shared} bytes a bucket where {few} share a limit, {script} in a script");
    }
}

#[test]
fn a_limit_of_ones_own_is_as_small_after_a_penalty() {
    let script = *MEMORY_OF_A_SCRIPT;
    let consume = |number: usize| words(&format!("TB.CONSUME {} {} 1 FORCE", key(number), own_limit(number)));
    let penalised = |number: usize| vec![consume(number), words(&format!("TB.PENALISE {} 0.001", key(number)))];
    let own = memory_per_key(penalised, |number| vec![consume(number), consume(number)]);
    assert!(own < script + allowance(), "{own} bytes a bucket with a limit of its own, {script} in a script");
}

#[test]
fn limits_of_ones_own_that_take_turns_are_as_small() {
    let script = *MEMORY_OF_A_SCRIPT;
    let turns = |number: usize| {
        (0..20).map(|turn| words(&format!("TB.CONSUME {} {} 0.0{}", key(number), 1_000 + number, 1 + turn % 2))).collect()
    };
    let own = memory_per_key(turns, |_| Vec::new());
    assert!(own < script + allowance(), "{own} bytes a bucket whose limit goes back and forth, {script} in a script");
}

#[test]
fn memory_usage_says_what_a_bucket_takes() {
    let server = Server::start();
    let mut c = server.connect();
    c.ask_bytes(&["EVAL", SCRIPT, "1", "script", "100", "0.05", "1"]);
    c.ask_bytes(&["EVAL", SCRIPT, "1", "script", "100", "0.05", "1"]);
    c.take("lone:1 200 0.05");
    for number in 0..10 {
        c.take(&format!("fleet:{number} 100 0.05")); // so many that their limit is kept once
    }
    c.take("shared 100 0.05");
    c.take("frozen 100 0.05");
    c.sync("frozen 5 LIMIT 50 RESET 600");
    c.penalise("frozen 100");
    let usage = |c: &mut Connection, key: &str| c.int(&format!("MEMORY USAGE {key}"));
    let [script, lone, shared, frozen] = ["script", "lone:1", "shared", "frozen"].map(|key| usage(&mut c, key));
    assert!(shared < lone && lone < frozen, "{shared}, {lone}, {frozen}");
    assert!(lone < script + i64::try_from(allowance()).unwrap(), "{lone} bytes, {script} in a script");
    // Name, expiry and all: the value itself is the least of it.
    assert!(shared > 40 && frozen < shared + 100, "{shared}, {frozen}");
}

#[test]
fn buckets_that_are_gone_give_their_memory_back() {
    let server = Server::start();
    let fill = |round: usize| {
        let commands =
            (0..2 * BUCKETS).map(|number| words(&format!("TB.CONSUME {} 100 {}.{}", key(number), number / 10 + 1, round)));
        send_all(&mut server.connect(), commands);
    };
    let empty = |flush: &str| {
        let mut c = server.connect();
        c.ask(flush);
        wait_until("all to be freed", || c.info("tokenbucket", "tokenbucket_buckets") == "0");
        wait_until("the memory to be given back", || c.info("memory", "lazyfree_pending_objects") == "0");
        used_memory(&server)
    };
    let empty_at_first = used_memory(&server);
    fill(0);
    let full = used_memory(&server);
    let first = empty("FLUSHALL SYNC");
    assert!(first - empty_at_first < (full - empty_at_first) / 2);
    for round in 1..5 {
        fill(round); // other limits each time: the places of the old ones are used again
        let now = empty(if round == 2 { "FLUSHALL ASYNC" } else { "FLUSHALL SYNC" });
        // The tables may be twice as large as they need to be.
        let (at_first, by_now) = (first - empty_at_first, now - empty_at_first);
        assert!(by_now < 2 * at_first, "{at_first} bytes that are not given back, then {by_now}");
    }
}

#[test]
fn limits_that_come_and_go_are_never_mixed_up() {
    const KEYS: usize = 12_000;
    const FLEET: usize = 10;
    let server = Server::start();
    let mut c = server.connect();
    let mut random = Random::new(23);
    let mut known = HashMap::new();
    for round in 0..4 {
        // A thousand fleets, and more: each round most of their buckets get other
        // limits, and some are gone.
        let mut commands = Vec::new();
        for number in 0..KEYS {
            let command = match random.below(8) {
                0 => continue,
                1 => {
                    known.remove(&number);
                    format!("{} {}", ["DEL", "UNLINK"][random.below(2)], key(number))
                }
                _ => {
                    let capacity = 1_000_000 + round * KEYS + number / FLEET;
                    known.insert(number, capacity);
                    format!("TB.CONSUME {} {capacity} 1e-2", key(number))
                }
            };
            commands.push(words(&command));
        }
        send_all(&mut c, commands.into_iter());
        if round == 2 {
            c.ok("DEBUG RELOAD");
        }
        for number in known.keys() {
            c.send(&words(&format!("TB.PEEK {}", key(*number))));
        }
        for (number, capacity) in &known {
            let bucket = peeked(c.receive()).expect("a bucket");
            assert_eq!(bucket.limit(), (capacity.to_string().as_str(), "1", "100"), "{number} in round {round}");
        }
    }
    assert_eq!(c.int("DBSIZE"), i64::try_from(known.len()).unwrap());
    assert_eq!(c.info("tokenbucket", "tokenbucket_buckets"), known.len().to_string());
}

// ---- allocations

/// The allocations of the module's own code while it answers a call a thousand times.
#[track_caller]
fn allocations(c: &mut Connection, call: &str, status: &str) -> i64 {
    let count = |c: &mut Connection| c.info("tokenbucket", "tokenbucket_debug_allocations").parse::<i64>().unwrap();
    let (first, second) = (count(c), count(c));
    let of_info = second - first;
    for _ in 0..1_000 {
        c.send(&words(&format!("TB.CONSUME {call}")));
    }
    for _ in 0..1_000 {
        assert_eq!(consumed(&c.receive()).status, status, "{call}");
    }
    count(c) - second - of_info
}

#[test]
fn a_call_that_finds_its_bucket_allocates_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("shared 100000 0.01");
    c.take("k 100000 0.01");
    c.take("float 10000 1.1574074074074073e-05");
    c.take("empty 5 0.01 5");
    c.take("synced 100000 0.01");
    c.sync("synced 50000 RESET 6000 LIMIT 60000");
    c.take("window 10 0.01");
    c.sync("window 0 RESET 6000");
    c.take("frozen 10 0.01");
    c.penalise("frozen 6000");
    c.take("debt 10 0.01 20 FORCE");
    c.take("day 100000 1000 PER 86400");
    for (call, status) in [
        ("k 100000 0.01", "granted"),
        ("k 100000 0.01 1.25", "granted"),
        ("k 100000 0.01 3 UPTO", "granted"),
        ("k 100000 0.01 3 FORCE", "granted"),
        ("float 10000 1.1574074074074073e-05 2", "granted"),
        ("day 100000 1000 2 PER 86400", "granted"),
        ("synced 100000 0.01 1", "granted"),
        ("k 100000 0.01 0", "granted"),
        ("debt 10 0.01 0.001 MAXWAIT 31622400", "reserved"),
        ("empty 5 0.01", "empty"),
        ("empty 5 0.01 2 UPTO", "empty"),
        ("empty 5 0.01 1 MAXWAIT 1", "empty"),
        ("empty 5 0.01 6", "never"),
        ("window 10 0.01", "window"),
        ("frozen 10 0.01", "frozen"),
        ("debt 10 0.01", "empty"),
        ("missing 5 0.01 6", "never"),
    ] {
        assert_eq!(allocations(&mut c, call, status), 0, "{call}");
    }
    // That it counts at all: an error's text has to be put somewhere.
    let count = |c: &mut Connection| c.info("tokenbucket", "tokenbucket_debug_allocations").parse::<i64>().unwrap();
    let before = count(&mut c);
    (0..100).for_each(|_| drop(c.error("TB.CONSUME k 100000 0.01 1 OPTION")));
    assert!(count(&mut c) >= before + 100);
}
