//! TB.MCONSUME: from all buckets or from none, and who held it up.

use redis::Value;

use crate::connection::{Connection, Consumed, array, consumed, error_text, text};
use crate::server::{Server, wait_as_told};
use crate::{TOKEN_MS, assert_left_of};

/// The reply: all of them together, then each.
struct Joint {
    together: Consumed,
    each: Vec<Consumed>,
}

impl Joint {
    /// allowed and status of all, then the status of each.
    fn verdict(&self) -> (i64, &str, Vec<&str>) {
        (self.together.allowed, &self.together.status, self.each.iter().map(|part| part.status.as_str()).collect())
    }
}

#[track_caller]
fn ask(c: &mut Connection, arguments: &str) -> Joint {
    let mut reply = array(c.ask(&format!("TB.MCONSUME {arguments}")));
    assert_eq!(reply.len(), 6, "{arguments}");
    let each = array(reply.pop().unwrap()).iter().map(consumed).collect();
    Joint { together: consumed(&Value::Array(reply)), each }
}

#[test]
fn tokens_are_taken_from_all_the_buckets() {
    let server = Server::start();
    for (keys, mut c) in [("a b", server.connect()), ("c d", server.connect_resp3())] {
        let joint = ask(&mut c, &format!("2 {keys} 10 1e-8 1 1 5 1e-8 2 1"));
        assert_eq!(joint.verdict(), (1, "granted", vec!["granted", "granted"]));
        assert_eq!([joint.together.remaining, joint.each[0].remaining, joint.each[1].remaining], [3, 9, 3]);
        assert_eq!(joint.together.wait_ms, 0);
        assert_left_of(2 * TOKEN_MS, joint.together.full_ms);
        assert_left_of(TOKEN_MS, joint.each[0].full_ms);
        let (first, second) = keys.split_once(' ').unwrap();
        assert_eq!([c.peek(first).tokens().to_owned(), c.peek(second).tokens().to_owned()], ["9", "3"]);
    }
}

#[test]
fn where_one_has_not_its_tokens_none_is_charged() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("b 5 1e-8 4");
    let (a, b) = (c.footprint("a"), c.footprint("b"));
    for keys in ["2 a b 10 1e-8 1 1 5 1e-8 2 1", "2 b a 5 1e-8 2 1 10 1e-8 1 1"] {
        let joint = ask(&mut c, keys);
        assert_eq!((joint.together.allowed, joint.together.status.as_str(), joint.together.remaining), (0, "empty", 1));
        assert_left_of(TOKEN_MS, joint.together.wait_ms);
        let (ready, empty) = if keys.starts_with("2 a") { (0, 1) } else { (1, 0) };
        assert_eq!(joint.each[ready].verdict(), (0, "ready", 10));
        assert_eq!((joint.each[ready].wait_ms, joint.each[ready].full_ms), (0, 0));
        assert_eq!(joint.each[empty].verdict(), (0, "empty", 1));
    }
    assert_eq!((c.footprint("a"), c.footprint("b")), (a, b));
    assert_eq!(c.int("EXISTS a"), 0);
}

#[test]
fn the_longest_wait_decides_and_never_beats_the_rest() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("short 5 1e-8 5");
    c.take("long 2 1e-9 2");
    c.penalise("frozen 600");
    c.sync("window 0 RESET 60");
    let joint = ask(&mut c, "3 short long ready 5 1e-8 1 1 2 1e-9 1 1 5 1 1 1");
    assert_eq!(joint.verdict(), (0, "empty", vec!["empty", "empty", "ready"]));
    assert_left_of(10 * TOKEN_MS, joint.together.wait_ms);
    assert_left_of(20 * TOKEN_MS, joint.together.full_ms);
    let joint = ask(&mut c, "2 frozen window 5 1 1 1 5 1 1 1");
    assert_eq!(joint.verdict(), (0, "frozen", vec!["frozen", "window"]));
    assert_left_of(601_000, joint.together.wait_ms);
    let joint = ask(&mut c, "3 short never long 5 1e-8 1 1 5 1 6 1 2 1e-9 1 1");
    assert_eq!(joint.verdict(), (0, "never", vec!["empty", "never", "empty"]));
    assert_eq!(joint.together.wait_ms, -1);
}

#[test]
fn with_maxwait_each_bucket_is_charged_at_its_own_wait() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 2 0.01 2");
    c.take("b 2 0.02 2");
    let joint = ask(&mut c, "3 a b c 2 0.01 1 1 2 0.02 1 1 2 0.01 1 1 MAXWAIT 1000");
    assert_eq!(joint.verdict(), (1, "reserved", vec!["reserved", "reserved", "granted"]));
    assert_left_of(100_000, joint.together.wait_ms);
    assert_left_of(100_000, joint.each[0].wait_ms);
    assert_left_of(50_000, joint.each[1].wait_ms);
    assert_eq!(joint.each[2].wait_ms, 0);
    assert_left_of(200_000, c.consume("a 2 0.01").wait_ms);
    assert_left_of(100_000, c.consume("b 2 0.02").wait_ms);
}

#[test]
fn with_maxwait_all_are_reserved_or_none() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 2 0.01 2");
    c.take("b 2 0.001 2");
    let b = c.footprint("b");
    let joint = ask(&mut c, "2 a b 2 0.01 1 1 2 0.001 1 1 MAXWAIT 200");
    assert_eq!(joint.verdict(), (0, "empty", vec!["ready", "empty"]));
    assert_left_of(800_000, joint.together.wait_ms);
    assert_eq!(joint.each[0].wait_ms, 0, "a slot of it could be had now");
    assert_left_of(100_000, c.consume("a 2 0.01").wait_ms);
    assert_eq!(c.footprint("b"), b);
}

#[test]
fn whoever_waits_what_it_was_told_has_them_all() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 5 20 5");
    c.take("b 5 10 5");
    let call = "2 a b 5 20 1 1 5 10 2 1";
    let denied = ask(&mut c, call);
    assert_eq!(denied.together.allowed, 0);
    wait_as_told(denied.together.wait_ms);
    assert_eq!(ask(&mut c, call).together.allowed, 1);
}

#[test]
fn a_denied_call_leaves_its_limits_with_the_buckets() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 10 1e-8 2");
    c.take("b 5 1e-8 5");
    let joint = ask(&mut c, "3 a b c 6 1e-8 1 1 5 1e-8 1 1 7 1e-8 1 1");
    assert_eq!(joint.verdict(), (0, "empty", vec!["ready", "empty", "ready"]));
    assert_eq!(joint.each[0].remaining, 6);
    assert_eq!(c.peek("a").limit().0, "6");
    assert_eq!(c.int("EXISTS c"), 0);
    // ... but not where it can never be granted, nor where none are asked for.
    ask(&mut c, "2 a b 9 1e-8 1 1 5 1e-8 6 1");
    ask(&mut c, "2 a b 9 1e-8 0 1 5 1e-8 1 1");
    assert_eq!(c.peek("a").limit().0, "6");
}

#[test]
fn no_tokens_only_ask() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 5 1e-8 2");
    let joint = ask(&mut c, "2 a b 5 1e-8 1 1 5 1 0 1");
    assert_eq!(joint.verdict(), (1, "granted", vec!["granted", "granted"]));
    assert_eq!(c.peek("a").tokens(), "2");
    assert_eq!(c.int("EXISTS b"), 0);
    c.penalise("b 60");
    assert_eq!(ask(&mut c, "2 a b 5 1e-8 1 1 5 1 0 1").verdict(), (0, "frozen", vec!["ready", "frozen"]));
    assert_eq!(c.peek("a").tokens(), "2");
}

#[test]
fn bad_input_is_an_error_before_any_key_is_opened() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string x");
    for (arguments, error) in [
        ("0 a 1 1 1 1", "ERR numkeys must be a whole number from 1 to 64"),
        ("65 a 1 1 1 1", "ERR numkeys must be a whole number from 1 to 64"),
        ("+1 a 1 1 1 1", "ERR numkeys must be a whole number from 1 to 64"),
        ("1.0 a 1 1 1 1", "ERR numkeys must be a whole number from 1 to 64"),
        ("99999999999999999999 a 1 1 1 1", "ERR numkeys must be a whole number from 1 to 64"),
        ("2 a a 1 1 1 1 1 1 1 1", "ERR key must not be named twice"),
        ("2 string b 1 1 1 1 x 1 1 1", "ERR capacity must be a number from 0.000001 to 1000000000000"),
        ("2 string b 1 1 1 1 1 0 1 1", "ERR rate must be a number above 0, at most 1000000000000"),
        ("2 string b 1 1 1 1 1 1 -1 1", "ERR tokens must be a number from 0 to 1000000000000"),
        ("2 string b 1 1 1 1 1 1 1 0", "ERR per must be a number of seconds from 0.001 to 31622400"),
        ("1 string 1 1 1 1 MAXWAIT x", "ERR MAXWAIT must be a number of seconds from 0 to 31622400"),
        ("1 string 1 1 1 1 MAXWAIT", "ERR syntax error: MAXWAIT needs a value"),
        ("1 string 1 1 1 1 MAXWAIT 1 maxwait 1", "ERR syntax error: MAXWAIT is given twice"),
        ("1 string 1 1 1 1 FORCE", "ERR syntax error: unknown option 'FORCE'"),
        ("1 string 1 1 1 1 5", "ERR syntax error: unknown option '5'"),
        ("2 string b 1 1 1 1 1 1 1", "ERR wrong number of arguments for 'tb.mconsume' command"),
        ("2 string b 1 1 1", "ERR wrong number of arguments for 'tb.mconsume' command"),
    ] {
        let told = c.error(&format!("TB.MCONSUME {arguments}"));
        assert_eq!(told.to_lowercase(), error.to_lowercase(), "{arguments}");
    }
    assert_eq!(c.int("DBSIZE"), 1);
}

#[test]
fn a_wrong_type_on_the_last_key_leaves_the_first_untouched() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 5 1e-8 1");
    c.ok("SET string x");
    let before = c.footprint("a");
    let told = c.error("TB.MCONSUME 3 a new string 5 1e-8 1 1 5 1 1 1 5 1 1 1");
    assert!(told.starts_with("WRONGTYPE"), "{told}");
    assert_eq!(c.footprint("a"), before);
    assert_eq!(c.int("EXISTS new"), 0);
}

#[test]
fn without_memory_a_new_bucket_on_the_last_key_leaves_the_first_untouched() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("a 5 1e-8 1");
    c.take("b 5 1e-8 1");
    c.config_set("maxmemory", "1");
    let before = c.footprint("a");
    let told = c.error("TB.MCONSUME 2 a new 5 1e-8 1 1 5 1 1 1");
    assert!(told.starts_with("OOM"), "{told}");
    assert_eq!(c.footprint("a"), before);
    assert_eq!(ask(&mut c, "2 a b 5 1e-8 1 1 5 1e-8 1 1").together.allowed, 1);
}

#[test]
fn memory_that_runs_out_on_the_way_charges_no_bucket() {
    let server = Server::start();
    let mut c = server.connect();
    let keys: Vec<String> = (0..63).map(|key| format!("new:{key}")).collect();
    let call = format!("64 first {} {}", keys.join(" "), "5 1e-8 1 1 ".repeat(64));
    c.take("first 5 1e-8 1");
    let mut refused = 0;
    // The first that it makes may take the memory that the next would need.
    for step in 0..40 {
        let used: i64 = c.info("memory", "used_memory").parse().unwrap();
        c.config_set("maxmemory", &(used + step * 500).to_string());
        let reply = c.ask(&format!("TB.MCONSUME {call}"));
        c.config_set("maxmemory", "0");
        let charged = c.peek("first").tokens() == "3";
        assert_eq!(c.int("DBSIZE"), if charged { 64 } else { 1 }, "step {step}: {reply:?}");
        assert_eq!(error_text(&reply).is_some(), !charged, "step {step}: {reply:?}");
        refused += i32::from(!charged);
        c.ok("FLUSHALL");
        c.take("first 5 1e-8 1");
    }
    assert!(refused > 0, "memory never ran out");
}

#[test]
fn a_part_that_stores_nothing_needs_no_room() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("first 5 1e-8 1");
    c.config_set("maxmemory", "1");
    assert_eq!(ask(&mut c, "2 first new 5 1e-8 1 1 5 1 0 1").together.allowed, 1);
    assert_eq!(c.error("TB.MCONSUME 2 first new 5 1e-8 1 1 5 1 1 1"), "OOM command not allowed when used memory > 'maxmemory'.");
    assert_eq!((c.peek("first").tokens(), c.int("DBSIZE")), ("3", 1));
}

#[test]
fn the_keys_are_found_by_their_count() {
    let server = Server::start();
    let mut c = server.connect();
    for count in [1_usize, 2, 64] {
        let keys: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
        let limits = vec!["1 1 1 1"; count].join(" ");
        let call = format!("TB.MCONSUME {count} {} {limits}", keys.join(" "));
        let found: Vec<String> = array(c.ask(&format!("COMMAND GETKEYS {call}"))).iter().map(text).collect();
        assert_eq!(found, keys);
        assert_eq!(array(c.ask(&call)).len(), 6);
    }
    c.ok("ACL SETUSER worker on nopass ~k* +@all");
    c.ok("AUTH worker x");
    assert!(error_text(&c.ask("TB.MCONSUME 2 k1 other 1 1 0 1 1 1 0 1")).unwrap().starts_with("NOPERM"));
    assert_eq!(error_text(&c.ask("TB.MCONSUME 2 k1 k2 1 1 0 1 1 1 0 1")), None);
}

#[test]
fn the_effects_of_one_call_are_one_transaction() {
    let primary = Server::builder().tcp().append_only().start();
    let replica = Server::builder().tcp().start();
    replica.replicate(&primary);
    replica.wait_for_sync(&primary);
    let mut c = primary.connect();
    ask(&mut c, "3 a b c 5 1e-8 1 1 6 1e-8 2 1 7 1e-8 3 1");
    replica.wait_for_sync(&primary);
    let mut r = replica.connect();
    for (key, tokens) in [("a", "4"), ("b", "4"), ("c", "4")] {
        assert_eq!(r.peek(key).tokens(), tokens);
        assert_eq!(r.text("DEBUG DIGEST"), c.text("DEBUG DIGEST"));
    }
    let log = std::fs::read_dir(primary.dir().join("appendonlydir")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).map(|path| std::fs::read(path).unwrap());
    let log = String::from_utf8_lossy(&log.flatten().collect::<Vec<u8>>()).into_owned();
    let mut rest = log.as_str();
    for word in ["MULTI", "TB.STATE", "TB.STATE", "TB.STATE", "EXEC"] {
        rest = rest.split_once(word).unwrap_or_else(|| panic!("{word} is not in {log:?}")).1;
    }
    assert!(!log.contains("MCONSUME"));
}

#[test]
fn what_is_granted_together_keeps_every_limit() {
    // Two tenants share a vendor: each has its own bucket, and there is one for all.
    let server = Server::start();
    let mut c = server.connect();
    let mut granted = [0, 0];
    for turn in 0..60 {
        let tenant = turn % 2;
        let call = format!("2 tenant:{tenant} vendor 20 1e-8 1 1 30 1e-8 1 1");
        granted[tenant] += ask(&mut c, &call).together.allowed;
    }
    assert_eq!(granted, [15, 15]);
    assert_eq!(c.peek("vendor").tokens(), "0");
    assert_eq!([c.peek("tenant:0").tokens().to_owned(), c.peek("tenant:1").tokens().to_owned()], ["5", "5"]);
}
