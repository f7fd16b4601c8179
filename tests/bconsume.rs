//! TB.BCONSUME: whoever waits has its turn, in order, whatever happens meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use redis::Value;

use crate::cluster::{self, Cluster};
use crate::connection::{Connection, Consumed, array, consumed, error_text};
use crate::server::{Server, wait_as_told, wait_until};
use crate::wallclock::WallClock;
use crate::{TOKEN_MS, assert_left_of};

/// A turn may be told so much later than it comes, on a machine that is busy with the
/// other tests.
const LATE: Duration = Duration::from_millis(500);

/// A client that waits, since a moment.
struct Waiting {
    c: Connection,
    since: Instant,
}

impl Waiting {
    #[track_caller]
    fn over(mut c: Connection, arguments: &str) -> Self {
        let since = Instant::now();
        c.send(&["TB.BCONSUME"].into_iter().chain(arguments.split_whitespace()).collect::<Vec<_>>());
        Self { c, since }
    }

    /// The reply, and how long it took.
    #[track_caller]
    fn reply(&mut self) -> (Value, Duration) {
        let reply = self.c.receive();
        (reply, self.since.elapsed())
    }

    #[track_caller]
    fn answer(&mut self) -> (Consumed, Duration) {
        let (reply, took) = self.reply();
        (consumed(&reply), took)
    }

    /// Its turn has come.
    #[track_caller]
    fn assert_served(&mut self) -> Consumed {
        let (reply, _) = self.answer();
        assert_eq!((reply.allowed, reply.wait_ms, reply.status.as_str()), (1, 0, "granted"));
        reply
    }

    #[track_caller]
    fn assert_error(&mut self, expected: &str) {
        let (reply, _) = self.reply();
        assert_eq!(error_text(&reply).as_deref(), Some(expected), "{reply:?}");
    }
}

/// One more client that waits; returns once it does.
#[track_caller]
fn wait(server: &Server, arguments: &str) -> Waiting {
    let mut c = server.connect();
    let before = gauge(&mut c, "waits");
    let client = Waiting::over(server.connect(), arguments);
    wait_until("the client to wait", || gauge(&mut c, "waits") > before);
    client
}

fn gauge(c: &mut Connection, name: &str) -> i64 {
    c.info("tokenbucket", &format!("tokenbucket_{name}")).parse().unwrap()
}

fn waiting(c: &mut Connection) -> i64 {
    gauge(c, "clients_waiting")
}

/// Nobody waits any more, and nothing is left of it.
#[track_caller]
fn assert_nobody_waits(c: &mut Connection) {
    wait_until("nobody to wait", || waiting(c) == 0);
    assert_eq!(gauge(c, "longest_queue"), 0);
    assert_eq!(c.info("clients", "blocked_clients"), "0");
}

// ------------------------------------------------------------------ the reply

#[test]
fn tokens_that_are_there_are_taken_at_once() {
    let server = Server::start();
    for mut c in [server.connect(), server.connect_resp3()] {
        c.ask("DEL k");
        let reply = consumed(&c.ask("TB.BCONSUME k 10 1e-8 4 0"));
        assert_eq!(reply.verdict(), (1, "granted", 6));
        assert_left_of(4 * TOKEN_MS, reply.full_ms);
        assert_eq!(c.peek("k").limit(), ("10", "1", "100000000"));
        assert_eq!(consumed(&c.ask("TB.BCONSUME k 10 1 11 0 per 1e7")).verdict(), (0, "never", 6));
    }
    assert_nobody_waits(&mut server.connect());
}

#[test]
fn a_client_waits_until_the_tokens_are_its_own() {
    let server = Server::start();
    for c in [server.connect(), server.connect_resp3()] {
        let mut other = server.connect();
        other.ask("DEL k");
        let emptied = Instant::now();
        other.take("k 10 20 10");
        let mut client = Waiting::over(c, "k 10 20 4 0");
        client.assert_served();
        assert!(emptied.elapsed() >= Duration::from_millis(200), "{:?}", emptied.elapsed());
        assert!(client.since.elapsed() < Duration::from_millis(200) + LATE, "{:?}", client.since.elapsed());
        assert_eq!(other.peek("k").limit(), ("10", "20", "1"));
    }
    assert_nobody_waits(&mut server.connect());
}

#[test]
fn whose_time_is_over_has_taken_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let before = c.footprint("k");
    let (reply, took) = wait(&server, "k 10 1e-8 4 0.2").answer();
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert_left_of(4 * TOKEN_MS, reply.wait_ms);
    assert_left_of(10 * TOKEN_MS, reply.full_ms);
    assert!((Duration::from_millis(200)..Duration::from_millis(200) + LATE).contains(&took), "{took:?}");
    assert_eq!(c.footprint("k"), before);
    assert_nobody_waits(&mut c);
    assert_eq!((gauge(&mut c, "waits"), gauge(&mut c, "waits_timed_out")), (1, 1));
}

#[test]
fn whose_time_is_over_is_told_the_wait_behind_the_others() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 4 0.3");
    let _second = wait(&server, "k 10 1e-8 5 0");
    let (reply, _) = first.answer();
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert_left_of(9 * TOKEN_MS, reply.wait_ms);
}

#[test]
fn a_hundred_and_fifty_at_a_hundred_a_second_take_a_second_and_a_half_less_the_burst() {
    let server = Server::start();
    // A burst of one leaves little room for a turn that is told late.
    for (burst, late) in [(30_u32, LATE), (1, 10 * LATE)] {
        let mut clients: Vec<Connection> = (0..150).map(|_| server.connect()).collect();
        let since = Instant::now();
        let key = format!("k{burst} {burst} 100 1 0");
        for c in &mut clients {
            c.send(&["TB.BCONSUME"].into_iter().chain(key.split_whitespace()).collect::<Vec<_>>());
        }
        let took: Vec<Duration> = clients
            .iter_mut()
            .map(|c| {
                assert_eq!(consumed(&c.receive()).allowed, 1);
                since.elapsed()
            })
            .collect();
        for (index, took) in took.iter().enumerate() {
            let due = Duration::from_millis(10) * u32::try_from(index + 1).unwrap().saturating_sub(burst);
            assert!(*took >= due, "number {index} was served after {took:?}, before {due:?}");
        }
        let due = Duration::from_millis(10) * (150 - burst);
        assert!(took[149] < due + late, "the last of them was served after {:?}, not {due:?}", took[149]);
    }
}

// ---------------------------------------------------------------- the order

#[test]
fn a_small_request_does_not_overtake_a_large_one() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut large = wait(&server, "k 10 1e-8 10 0");
    let mut small = wait(&server, "k 10 1e-8 1 0");
    assert_eq!(c.consume("k 10 20 1").allowed, 0);
    // Half a second for the large one; the small one would be there after a tenth of that.
    small.assert_served();
    let served = Instant::now();
    large.assert_served();
    assert!(served.elapsed() < Duration::from_millis(200), "the large one came {:?} after the small one", served.elapsed());
}

#[test]
fn others_are_denied_while_clients_wait_and_told_a_wait_that_counts_them() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 5");
    let _first = wait(&server, "k 10 1e-8 8 0");
    let _second = wait(&server, "k 10 1e-8 2 0");
    assert_eq!(gauge(&mut c, "longest_queue"), 2);
    let before = c.footprint("k");
    for (call, behind) in [
        ("k 10 1e-8 1", 6),
        ("k 10 1e-8 3", 8),
        ("k 10 1e-8 3 UPTO", 6),
        ("k 10 1e-8 3 MAXWAIT 0", 8),
        ("k 10 1e-8 3 MAXWAIT 31622400", 8),
    ] {
        let reply = c.consume(call);
        assert_eq!(reply.verdict(), (0, "empty", 0), "{call}");
        let reserved_before = if call.ends_with("31622400") { 31_622_400_000 } else { 0 };
        assert_left_of(behind * TOKEN_MS - reserved_before, reply.wait_ms);
    }
    assert_eq!(c.consume("k 10 1e-8 11").verdict(), (0, "never", 0));
    let joint = array(c.ask("TB.MCONSUME 2 k other 10 1e-8 1 1 5 1e-8 1 1"));
    assert_eq!(consumed(&Value::Array(joint[..5].to_vec())).verdict(), (0, "empty", 0));
    let each: Vec<Consumed> = array(joint[5].clone()).iter().map(consumed).collect();
    assert_eq!([each[0].status.as_str(), each[1].status.as_str()], ["empty", "ready"]);
    assert_left_of(6 * TOKEN_MS, each[0].wait_ms);
    assert_eq!(c.footprint("k"), before);
    // An ask is answered as if nobody waited, but nothing remains for others.
    assert_eq!(c.consume("k 10 1e-8 0").verdict(), (1, "granted", 0));
    assert_eq!(c.sync("k 9"), (0, 0));
    assert_eq!(c.refund("k 0"), Some(0));
    assert_eq!(c.peek("k").tokens(), "5");
    // FORCE takes what it wants.
    assert_eq!(c.consume("k 10 1e-8 2 FORCE").verdict(), (1, "granted", 0));
    assert_left_of(8 * TOKEN_MS, c.consume("k 10 1e-8 1").wait_ms);
    // Of other buckets they know nothing.
    assert_eq!(c.take("other 5 1e-8").remaining, 4);
}

#[test]
fn the_wait_behind_others_is_honest() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 5 1e-8 5");
    let mut first = wait(&server, "k 5 1e-8 3 0");
    let mut second = wait(&server, "k 5 1e-8 2 0");
    let denied = c.consume("k 5 20 2");
    assert_eq!(denied.verdict(), (0, "empty", 0));
    wait_as_told(denied.wait_ms);
    assert_eq!(c.consume("k 5 20 2").allowed, 1);
    first.assert_served();
    second.assert_served();
}

#[test]
fn whoever_comes_when_told_is_granted_however_late_the_timer_is() {
    let server = Server::start();
    let mut c = server.connect();
    for round in 0..40 {
        c.ok("FLUSHALL");
        c.take("k 10 1e-8 10");
        let mut first = wait(&server, "k 10 1e-8 1 0");
        // A turn every half a millisecond, of which the timer sees each second at best.
        let denied = c.consume("k 10 2000 1");
        assert_eq!((denied.allowed, denied.status.as_str()), (0, "empty"));
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_millis(denied.wait_ms.unsigned_abs()) {
            std::hint::spin_loop();
        }
        assert_eq!(c.consume("k 10 2000 1").allowed, 1, "round {round}");
        first.assert_served();
    }
}

#[test]
fn whose_first_leaves_has_what_the_bucket_holds_and_no_more() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 100 1000 1");
    c.sync("k 5 LIMIT 5");
    let large = wait(&server, "k 100 1000 8 0"); // more than the vendor's limit
    let mut clients: Vec<Waiting> = (0..60).map(|_| wait(&server, "k 100 1000 1 0")).collect();
    let left = Instant::now();
    drop(large);
    let told: Vec<Duration> = clients
        .iter_mut()
        .map(|client| {
            client.assert_served();
            left.elapsed()
        })
        .collect();
    for (index, told) in told.iter().enumerate() {
        let due = Duration::from_millis(u64::try_from(index + 1).unwrap().saturating_sub(5));
        assert!(*told >= due, "number {index} after {told:?}, before {due:?}");
    }
}

#[test]
fn each_database_has_its_own_queue() {
    let server = Server::start();
    let (mut c, mut other) = (server.connect(), server.connect());
    other.ok("SELECT 3");
    c.take("k 10 1e-8 10");
    other.take("k 10 20 10");
    let _here = wait(&server, "k 10 1e-8 1 0");
    let mut there = server.connect();
    there.ok("SELECT 3");
    let mut there = Waiting::over(there, "k 10 20 2 0");
    there.assert_served();
    assert_eq!(waiting(&mut c), 1);
    assert_eq!(other.peek("k").limit(), ("10", "20", "1"));
}

#[test]
fn a_key_is_any_bytes() {
    let server = Server::start();
    let mut c = server.connect();
    for key in [&b""[..], b"\0\xff\r\n", b"%n%s"] {
        let call = |timeout: &'static [u8]| [&b"TB.BCONSUME"[..], key, b"2", b"20", b"2", timeout];
        assert_eq!(consumed(&c.ask_bytes(&call(b"0"))).allowed, 1);
        assert_eq!(consumed(&c.ask_bytes(&call(b"0.02"))).allowed, 0);
        assert_eq!(consumed(&c.ask_bytes(&call(b"0"))).allowed, 1);
    }
    assert_nobody_waits(&mut c);
}

// ------------------------------------------------- what happens to the bucket

#[test]
fn the_limit_counts_once_and_from_then_on_the_remembered_one_does() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    // It brings a limit, under which it waits for half a second ...
    let mut first = wait(&server, "k 10 4 2 0");
    assert_eq!(c.peek("k").limit(), ("10", "4", "1"));
    // ... but another takes it away,
    assert_eq!(c.consume("k 10 1e-8 1").allowed, 0);
    assert_eq!(c.peek("k").limit(), ("10", "1", "100000000"));
    wait_as_told(600);
    assert_eq!(waiting(&mut c), 1);
    // ... and brings it back.
    assert_eq!(c.consume("k 10 1000 1").allowed, 0);
    first.assert_served();
}

#[test]
fn tokens_above_a_later_capacity_end_the_wait_with_never() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut small = wait(&server, "k 10 1e-8 1 0");
    let mut large = wait(&server, "k 10 1e-8 6 0");
    let mut last = wait(&server, "k 10 1e-8 5 0");
    assert_left_of(7 * TOKEN_MS, c.consume("k 5 1e-8 1").wait_ms); // behind 1 and 5
    let (reply, _) = large.answer();
    assert_eq!((reply.allowed, reply.wait_ms, reply.status.as_str()), (0, -1, "never"));
    assert_eq!(waiting(&mut c), 2);
    c.refund("k 5");
    small.assert_served();
    c.refund("k 5");
    last.assert_served();
    // One that arrives with such a limit does the same.
    let mut waits = wait(&server, "k 10 1e-8 9 0");
    let _other = wait(&server, "k 5 1e-8 5 0");
    assert_eq!(waits.answer().0.status, "never");
}

#[test]
fn a_penalty_holds_for_those_who_wait() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 8 0");
    let since = Instant::now();
    c.transaction(&["TB.CONSUME k 10 100 1", "TB.PENALISE k 0.3"]);
    assert_eq!(c.consume("k 10 100 1").status, "frozen");
    first.assert_served();
    let took = since.elapsed();
    let due = Duration::from_millis(380);
    assert!((due..due + LATE).contains(&took), "served {took:?} after a freeze of 300 ms");
}

#[test]
fn a_freeze_alone_is_waited_for_too() {
    let server = Server::start();
    let mut c = server.connect();
    c.penalise("k 0.2");
    let mut ask = wait(&server, "k 10 1e-8 0 0");
    ask.assert_served();
    assert_eq!(c.peek("k").limited(), None, "an ask brings no limit");
}

#[test]
fn a_vendor_window_holds_for_those_who_wait() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 8 0");
    let mut second = wait(&server, "k 10 1e-8 2 0");
    let since = Instant::now();
    c.transaction(&["TB.CONSUME k 10 100 1", "TB.SYNC k 3 RESET 0.4"]);
    first.assert_served();
    second.assert_served();
    let took = since.elapsed();
    let due = Duration::from_millis(399);
    assert!((due..due + LATE).contains(&took), "served {took:?} after a window of 400 ms");
}

#[test]
fn a_refund_may_make_it_their_turn() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 4 0");
    let mut second = wait(&server, "k 10 1e-8 1 0");
    assert_eq!(c.refund("k 3"), Some(0));
    assert_eq!(waiting(&mut c), 2);
    assert_eq!(c.refund("k 2"), Some(0));
    assert_eq!(first.assert_served().remaining, 0, "another waits");
    assert_eq!(second.assert_served().remaining, 0, "that was all");
    c.refund("k 2");
    assert_eq!(c.peek("k").tokens(), "2");
}

#[test]
fn a_bucket_that_is_gone_is_full() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("CONFIG SET appendonly no");
    for (how, keys) in [
        (&["DEL k"][..], 1),
        (&["UNLINK k"], 1),
        (&["FLUSHALL"], 1),
        (&["FLUSHALL ASYNC"], 1),
        (&["FLUSHDB"], 1),
        (&["EXPIRE k 0"], 1),
        (&["PEXPIRE k 30"], 1),
        (&["RENAME k elsewhere"], 2),
        (&["MOVE k 5"], 1),
        (&["SWAPDB 0 7"], 1),
        (&["MULTI", "DEL k", "EXEC"], 1),
        (&["EVAL return(redis.call('DEL','k')) 0"], 1),
        (&["TB.CONSUME full 10 1e-8 0", "TB.CONSUME full 10 1e-8 1", "RENAME full k"], 1),
        (&["TB.CONSUME full 10 1e-8 1", "COPY full k REPLACE"], 2),
    ] {
        c.ok("FLUSHALL");
        c.take("k 10 1e-8 10");
        let mut first = wait(&server, "k 10 1e-8 4 0");
        let mut second = wait(&server, "k 10 1e-8 3 0");
        let mut third = wait(&server, "k 10 1e-8 6 0");
        for command in how {
            assert_eq!(error_text(&c.ask(command)), None, "{command}");
        }
        first.assert_served();
        second.assert_served();
        wait_until("two to be served", || waiting(&mut c) == 1);
        let refilled = if how[0].starts_with("TB.CONSUME") { "2" } else { "3" };
        assert_eq!(c.peek("k").tokens(), refilled, "{how:?}");
        assert_eq!(c.int("DBSIZE"), keys, "{how:?}");
        assert_left_of(if refilled == "2" { 4 } else { 3 } * TOKEN_MS + TOKEN_MS, c.consume("k 10 1e-8 1").wait_ms);
        c.ok("FLUSHALL");
        third.assert_served();
        assert_nobody_waits(&mut c);
    }
}

#[test]
fn another_bucket_under_the_name_decides() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 4 0");
    c.take("fast 10 20 10");
    c.ask("RENAME fast k");
    first.assert_served();
    assert_eq!(c.peek("k").limit(), ("10", "20", "1"));
    // Nor is it lost where a payload takes its place.
    c.take("k 10 20 9 FORCE");
    let dump = match c.ask("DUMP k") {
        Value::BulkString(dump) => dump,
        other => panic!("{other:?}"),
    };
    c.ok("FLUSHALL");
    c.take("k 10 1e-8 10");
    let mut second = wait(&server, "k 10 1e-8 4 0");
    assert_eq!(c.ask_bytes(&[b"RESTORE", &b"k"[..], b"0", &dump, b"REPLACE"]), Value::Okay);
    second.assert_served();
}

#[test]
fn a_key_of_another_type_ends_the_wait() {
    let server = Server::start();
    let mut c = server.connect();
    for command in ["SET k v", "SUNIONSTORE k s", "RENAME other k", "LPUSH k x"] {
        c.ok("FLUSHALL");
        c.ask("SADD s a");
        c.ask("HSET other f v");
        c.take("k 10 1e-8 10");
        let mut clients = [wait(&server, "k 10 1e-8 4 0"), wait(&server, "k 10 1e-8 1 0")];
        let reply = c.ask(command);
        if command.starts_with("LPUSH") {
            assert!(error_text(&reply).is_some(), "it was a list");
            assert_eq!(waiting(&mut c), 2);
            c.transaction(&["DEL k", "LPUSH k x"]);
        }
        for client in &mut clients {
            client.assert_error("WRONGTYPE Operation against a key holding the wrong kind of value");
        }
        assert_nobody_waits(&mut c);
    }
}

#[test]
fn a_reload_of_all_data_changes_nothing_for_them() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 4 0");
    c.ok("DEBUG RELOAD");
    assert_eq!(waiting(&mut c), 1);
    assert_eq!(c.peek("k").tokens(), "0");
    c.refund("k 4");
    first.assert_served();
}

// ------------------------------------------------------------- those who go

#[test]
fn a_client_that_is_unblocked_has_taken_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let before = c.footprint("k");
    for (how, error) in [("", None), ("TIMEOUT", None), ("ERROR", Some("UNBLOCKED client unblocked via CLIENT UNBLOCK"))] {
        let mut blocked = server.connect();
        let id = blocked.int("CLIENT ID");
        let mut blocked = Waiting::over(blocked, "k 10 1e-8 4 0");
        wait_until("the client to wait", || waiting(&mut c) == 1);
        assert_eq!(c.int(&format!("CLIENT UNBLOCK {id} {how}")), 1);
        let (reply, _) = blocked.reply();
        match error {
            None => {
                let reply = consumed(&reply);
                assert_eq!(reply.verdict(), (0, "empty", 0));
                assert_left_of(4 * TOKEN_MS, reply.wait_ms);
            }
            Some(_) => assert_eq!(error_text(&reply).as_deref(), error),
        }
        assert_nobody_waits(&mut c);
        // It can go on.
        assert_eq!(blocked.c.ask("PING"), Value::SimpleString("PONG".to_owned()));
        assert_eq!(blocked.c.consume("k 10 1e-8 0").verdict(), (1, "granted", 0));
    }
    assert_eq!(c.footprint("k"), before);
}

#[test]
fn a_client_that_goes_away_gives_its_place_up() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 8");
    let large = wait(&server, "k 10 1e-8 9 0");
    let mut small = wait(&server, "k 10 1e-8 2 0");
    let mut behind = wait(&server, "k 10 1e-8 1 0");
    drop(large);
    assert_eq!(small.assert_served().remaining, 0);
    assert_eq!(waiting(&mut c), 1);
    let mut killed = server.connect();
    let id = killed.int("CLIENT ID");
    let killed = Waiting::over(killed, "k 10 1e-8 1 0");
    wait_until("the client to wait", || waiting(&mut c) == 2);
    assert_eq!(c.int(&format!("CLIENT KILL ID {id}")), 1);
    wait_until("it to be gone", || waiting(&mut c) == 1);
    drop(killed);
    c.refund("k 2");
    behind.assert_served();
    assert_eq!(c.peek("k").tokens(), "1");
    assert_nobody_waits(&mut c);
}

#[test]
fn where_it_cannot_wait_it_answers_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 8");
    let assert_refused = |reply: &Value| {
        let reply = consumed(reply);
        assert_eq!(reply.verdict(), (0, "empty", 2));
        assert_left_of(2 * TOKEN_MS, reply.wait_ms);
    };
    let replies = c.transaction(&["TB.BCONSUME k 10 1e-8 4 0", "TB.BCONSUME k 10 1e-8 1 0", "TB.REFUND k 1"]);
    assert_refused(&replies[0]);
    assert_eq!(consumed(&replies[1]).verdict(), (1, "granted", 1));
    let script = "return redis.call('TB.BCONSUME', KEYS[1], '10', '1e-8', '4', '0')";
    assert_refused(&c.ask_bytes(&["EVAL", script, "1", "k"]));
    assert_nobody_waits(&mut c);
    // It makes no bucket where one is gone and others have not had their turn yet.
    c.ok("FLUSHALL");
    c.take("k 10 1e-8 8");
    let mut large = wait(&server, "k 10 1e-8 8 0");
    let replies = c.transaction(&["DEL k", "TB.CONSUME k 5 1e-8 1", "TB.BCONSUME k 5 1e-8 1 0", "EXISTS k"]);
    assert_eq!([consumed(&replies[1]).allowed, consumed(&replies[2]).allowed], [0, 0]);
    assert_eq!(replies[3], Value::Int(0));
    assert_eq!(large.assert_served().remaining, 2);
    assert_eq!(c.peek("k").limit(), ("10", "1", "100000000"));
    // Behind others, too.
    let _other = wait(&server, "k 10 1e-8 5 0");
    let reply = consumed(&c.transaction(&["TB.BCONSUME k 10 1e-8 1 0"])[0]);
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert_left_of(4 * TOKEN_MS, reply.wait_ms);
    assert_eq!(gauge(&mut c, "waits_refused"), 0);
}

#[test]
fn no_more_wait_than_may() {
    let server = Server::start();
    let mut c = server.connect();
    c.config_set("tokenbucket.max-waiting", "2");
    c.take("a 10 1e-8 10");
    c.take("b 10 1e-8 10");
    let _first = wait(&server, "a 10 1e-8 4 0");
    let second = wait(&server, "b 10 1e-8 4 0");
    let reply = consumed(&c.ask("TB.BCONSUME a 10 1e-8 1 0"));
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert_left_of(5 * TOKEN_MS, reply.wait_ms);
    assert_eq!(gauge(&mut c, "waits_refused"), 1);
    drop(second);
    wait_until("it to be gone", || waiting(&mut c) == 1);
    let _third = wait(&server, "a 10 1e-8 1 0");
    assert_eq!(gauge(&mut c, "waits"), 3);
    assert_eq!(gauge(&mut c, "longest_queue"), 2);
}

// ------------------------------------------------- servers that must not write

#[test]
fn nobody_is_served_while_writes_are_paused() {
    let server = Server::builder().conf("appendonly yes").conf("appendfsync no").start();
    let mut c = server.connect();
    for mode in ["WRITE", "ALL"] {
        c.ok("FLUSHALL");
        c.take("k 10 1e-8 10");
        let mut first = wait(&server, "k 10 1e-8 2 0");
        let mut timed = wait(&server, "k 10 1e-8 1 0.3");
        let since = Instant::now();
        // From here on their turns would come within milliseconds.
        c.transaction(&["TB.CONSUME k 10 1000 1", &format!("CLIENT PAUSE 500 {mode}")]);
        // To say that the time is over writes nothing.
        let (reply, took) = timed.answer();
        assert_eq!((reply.allowed, reply.status.as_str()), (0, "empty"), "{mode}");
        assert_eq!(reply.remaining, 0, "{mode}: another waits");
        assert!(reply.wait_ms > 0, "{mode}: {reply:?}");
        assert!((Duration::from_millis(300)..Duration::from_millis(300) + LATE).contains(&took), "{mode}: {took:?}");
        first.assert_served();
        let took = since.elapsed();
        assert!((Duration::from_millis(500)..Duration::from_millis(500) + LATE).contains(&took), "{mode}: {took:?}");
        assert_nobody_waits(&mut c);
    }
}

#[test]
fn whose_turn_has_come_in_vain_is_told_what_there_is() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let mut client = wait(&server, "k 10 1e-8 4 1");
    c.transaction(&["DEL k", "CLIENT PAUSE 2000 WRITE"]);
    let (reply, _) = client.answer();
    assert_eq!(reply.verdict(), (0, "empty", 10));
    assert_eq!((reply.wait_ms, reply.full_ms), (1, 0));
}

#[test]
fn a_long_pause_is_followed_by_no_burst_above_the_capacity() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 3 1e-8 3");
    let mut clients: Vec<Waiting> = (0..30).map(|_| wait(&server, "k 3 1e-8 3 0")).collect();
    // At a hundred a second a turn comes every 30 ms, from a tenth of a second on.
    let since = Instant::now();
    c.transaction(&["TB.CONSUME k 3 100 1", "TB.PENALISE k 0.1", "CLIENT PAUSE 400 WRITE"]);
    for client in &mut clients {
        client.assert_served();
    }
    // What came in during the pause is there up to the capacity, once, and what comes in
    // within the 25 ms for which a turn may be late.
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(400 + 30 * 29 - 26), "{took:?}");
}

#[test]
fn a_bucket_that_goes_during_a_pause_leaves_its_limit_to_those_who_wait() {
    let server = Server::start();
    let mut c = server.connect();
    for goes in ["PEXPIRE k 1", "DEL k", "FLUSHALL", "RENAME k elsewhere"] {
        c.take("k 3 1e-8 3");
        let mut clients: Vec<Waiting> = (0..5).map(|_| wait(&server, "k 3 1e-8 3 0")).collect();
        // The limit that it has when it goes is not the one that they came with.
        c.transaction(&["TB.CONSUME k 3 100 1", goes, "CLIENT PAUSE 100 WRITE"]);
        for client in &mut clients {
            client.assert_served();
        }
        assert_eq!(c.peek("k").limit(), ("3", "100", "1"), "{goes}");
        c.ok("FLUSHALL");
    }
}

#[test]
fn a_primary_that_becomes_a_replica_sends_them_away() {
    let (primary, replica) = (Server::builder().tcp().start(), Server::builder().tcp().start());
    replica.replicate(&primary);
    let mut c = primary.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&primary, "k 10 1e-8 9 0");
    let mut second = wait(&primary, "k 10 1e-8 2 0");
    assert_eq!(c.consume("k 10 20 1").allowed, 0);
    c.ok(&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", replica.port()));
    for client in [&mut first, &mut second] {
        let (reply, _) = client.reply();
        let error = error_text(&reply);
        // Served before the pause, or not at all.
        assert!(error.is_none() || error.is_some_and(|error| error.starts_with("UNBLOCKED")), "{reply:?}");
    }
    let mut r = replica.connect();
    wait_until("the replica to be a primary", || array(r.ask("ROLE"))[0] == Value::BulkString(b"master".to_vec()));
    wait_until("nobody to wait", || waiting(&mut c) == 0);
    // A queue at the new one.
    Waiting::over(replica.connect(), "k 10 20 10 0").assert_served();
    wait_until("the old primary to follow", || c.info("replication", "master_link_status") == "up");
    primary.wait_for_sync(&replica);
    assert_eq!(c.ask("DEBUG DIGEST"), r.ask("DEBUG DIGEST"));
}

#[test]
fn a_shutdown_that_waits_for_a_replica_serves_nobody() {
    let (mut primary, replica) = (Server::builder().tcp().conf("shutdown-timeout 2").start(), Server::builder().tcp().start());
    replica.replicate(&primary);
    let mut c = primary.connect();
    c.take("k 10 1e-8 10");
    let mut first = wait(&primary, "k 10 1e-8 5 0");
    replica.hang();
    c.transaction(&["TB.CONSUME k 10 5 1", "TB.CONSUME other 10 1"]); // its turn comes while the server waits
    primary.shut_down("NOSAVE");
    replica.go_on();
    assert!(first.c.try_receive().is_err(), "it was served while the replica could not hear of it");
}

/// What the server writes down of calls and refusals. Left out are the calls of this, those
/// that it counts only when they are answered, and the one by which, in a cluster, whose time
/// is over learns whose a key is that has expired; of its log, what it says of others.
fn traces(server: &Server, c: &mut Connection) -> (Vec<String>, String, Vec<String>, Value) {
    let of_calls = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "pexpireat", "tb.", "tokenbucket"].iter().any(|word| line.contains(word))
    };
    let lines = server.log().lines().filter(of_calls).map(str::to_owned).collect();
    let left_out = ["cmdstat_info", "cmdstat_acl|log", "cmdstat_TB.BCONSUME", "cmdstat_exists"];
    let commands = c.info_fields("commandstats").into_keys().filter(|command| !left_out.contains(&command.as_str()));
    (lines, c.text("INFO errorstats"), commands.collect(), c.ask("ACL LOG"))
}

/// Nobody is served while the server refuses writes with this error, and that leaves no
/// trace; but whose time is over is told. Returns two who still wait.
#[track_caller]
fn assert_served_none(server: &Server, error: &str, refuse: impl FnOnce(&mut Connection)) -> [Waiting; 2] {
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    let clients = [wait(server, "k 10 1e-8 4 0"), wait(server, "k 10 1e-8 1 0")];
    let mut timed = wait(server, "k 10 1e-8 1 3");
    // Their turns come after two seconds. By then the server refuses; where it is slow to,
    // the pause keeps them waiting for that.
    c.transaction(&["TB.CONSUME k 10 100 1", "TB.PENALISE k 2", "CLIENT PAUSE 60000 WRITE"]);
    refuse(&mut c);
    c.ok("CLIENT UNPAUSE");
    assert!(c.error("TB.CONSUME k 10 100 1").starts_with(error));
    let before = traces(server, &mut c);
    let (due, asked) = (Duration::from_secs(3), timed.since.elapsed());
    let (reply, took) = timed.answer();
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert!((due..due.max(asked) + LATE).contains(&took), "{took:?}");
    assert_eq!(waiting(&mut c), 2);
    assert_eq!(traces(server, &mut c), before);
    clients
}

#[test]
fn nobody_is_served_while_too_few_replicas_follow() {
    let (primary, replica) = (Server::builder().tcp().start(), Server::builder().tcp().start());
    let mut clients = assert_served_none(&primary, "NOREPLICAS", |c| c.config_set("min-replicas-to-write", "1"));
    replica.replicate(&primary);
    clients.iter_mut().for_each(|client| drop(client.assert_served()));
    replica.wait_for_sync(&primary);
    assert_eq!(replica.connect().ask("DEBUG DIGEST"), primary.connect().ask("DEBUG DIGEST"));
    assert_nobody_waits(&mut primary.connect());
}

#[test]
fn nobody_is_served_while_the_server_cannot_save() {
    let server = Server::builder().conf("save 3600 1000000").start();
    let mut c = server.connect();
    let in_the_way = server.dir().join("dump.rdb");
    let save = |c: &mut Connection, expected: &str| {
        assert_eq!(error_text(&c.ask("BGSAVE")), None);
        wait_until("the result of BGSAVE", || c.info("persistence", "rdb_last_bgsave_status") == expected);
    };
    let mut clients = assert_served_none(&server, "MISCONF", |c| {
        fs::create_dir(&in_the_way).unwrap();
        save(c, "err");
    });
    fs::remove_dir(&in_the_way).unwrap();
    save(&mut c, "ok");
    clients.iter_mut().for_each(|client| drop(client.assert_served()));
    assert_nobody_waits(&mut c);
}

#[test]
fn in_a_cluster_nobody_is_served_while_too_few_replicas_follow() {
    let cluster = Cluster::start();
    let (owner, _, _) = cluster.around("k");
    let mut clients = assert_served_none(owner, "NOREPLICAS", |c| c.config_set("min-replicas-to-write", "1"));
    owner.connect().config_set("min-replicas-to-write", "0");
    clients.iter_mut().for_each(|client| drop(client.assert_served()));
}

#[test]
fn to_learn_whether_it_may_write_changes_nothing_and_counts_as_no_error() {
    let server = Server::start();
    let (mut c, mut watcher) = (server.connect(), server.connect());
    // There may be such a key, with or without an expiry.
    let calls: [&[&str]; 3] = [&["DEL", ""], &["SET", "", "text"], &["SET", "", "text", "EX", "1000"]];
    for call in calls {
        c.ask_bytes(call);
        c.ask("DEL k");
        c.take("k 10 50 10");
        let before = [c.ask_bytes(&["GET", ""]), c.ask_bytes(&["PEXPIRETIME", ""])];
        watcher.ask_bytes(&["WATCH", ""]);
        wait(&server, "k 10 50 5 0").assert_served();
        watcher.ok("MULTI");
        assert_eq!(watcher.ask("EXEC"), Value::Array(vec![]), "{call:?}");
        assert_eq!([c.ask_bytes(&["GET", ""]), c.ask_bytes(&["PEXPIRETIME", ""])], before, "{call:?}");
    }
    let failed = |figures: &String| !figures.ends_with(",failed_calls=0");
    assert!(!c.info_fields("commandstats").values().any(failed), "{:?}", c.info_fields("commandstats"));
    assert_eq!(c.info("stats", "total_error_replies"), "0");
}

#[test]
fn a_replica_does_not_let_clients_wait() {
    let (primary, replica) = (Server::builder().tcp().start(), Server::builder().tcp().start());
    replica.replicate(&primary);
    primary.connect().take("k 10 1e-8 10");
    replica.wait_for_sync(&primary);
    let mut r = replica.connect();
    assert!(r.error("TB.BCONSUME k 10 1e-8 1 0").starts_with("READONLY"));
    r.config_set("replica-read-only", "no");
    assert_eq!(consumed(&r.ask("TB.BCONSUME k 10 1e-8 1 0")).verdict(), (0, "empty", 0));
    assert_nobody_waits(&mut r);
}

#[test]
fn what_is_served_reaches_replicas_and_disk_and_whoever_watches() {
    let mut primary = Server::builder().tcp().append_only().start();
    let replica = Server::builder().tcp().start();
    replica.replicate(&primary);
    let (mut c, mut r) = (primary.connect(), replica.connect());
    c.take("k 10 1e-8 10");
    let mut watcher = primary.connect();
    let mut clients: Vec<Waiting> = (0..5).map(|_| wait(&primary, "k 10 1e-8 2 0")).collect();
    assert_eq!(c.consume("k 10 50 1").allowed, 0);
    watcher.ok("WATCH k");
    clients.iter_mut().for_each(|client| drop(client.assert_served()));
    watcher.ok("MULTI");
    watcher.ask("PING");
    assert_eq!(watcher.ask("EXEC"), Value::Nil);
    replica.wait_for_sync(&primary);
    let digest = c.ask("DEBUG DIGEST-VALUE k");
    assert_eq!(r.ask("DEBUG DIGEST-VALUE k"), digest);
    assert_eq!(r.int("PEXPIRETIME k"), c.int("PEXPIRETIME k"));
    primary.kill();
    primary.start_again();
    assert_eq!(primary.connect().ask("DEBUG DIGEST-VALUE k"), digest);
}

#[test]
fn where_memory_is_full_only_a_new_bucket_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 10");
    c.take("gone 10 1e-8 10");
    let mut first = wait(&server, "k 10 1e-8 2 0");
    let mut second = wait(&server, "gone 10 1e-8 2 0");
    let mut third = wait(&server, "gone 10 1e-8 9 0.5");
    c.config_set("maxmemory", "1");
    assert_eq!(c.consume("k 10 20 1").allowed, 0);
    first.assert_served();
    c.ask("DEL gone");
    second.assert_error("OOM command not allowed when used memory > 'maxmemory'.");
    third.assert_error("OOM command not allowed when used memory > 'maxmemory'.");
    assert_nobody_waits(&mut c);
    assert_eq!(c.int("EXISTS gone"), 0);
}

// -------------------------------------------------------- clocks and clusters

#[test]
fn a_wall_clock_that_steps_back_stalls_nobody_who_waits() {
    let clock = WallClock::new();
    let server = Server::builder().wall_clock(&clock).start();
    let mut c = server.connect();
    let mut shift = 0;
    for back in [30, 3_600, 400 * 86_400] {
        c.ask("DEL k");
        c.take("k 10 10 10");
        let mut first = wait(&server, "k 10 10 8 0");
        let mut second = Waiting::over(server.connect(), "k 10 10 8 0.6");
        shift -= back;
        clock.shift(shift);
        let (reply, took) = second.answer();
        assert_eq!((reply.allowed, reply.status.as_str()), (0, "empty"));
        assert!((Duration::from_millis(600)..Duration::from_millis(600) + LATE).contains(&took), "{took:?}");
        first.assert_served();
        assert!(first.since.elapsed() < Duration::from_millis(800) + LATE, "{:?}", first.since.elapsed());
    }
}

#[test]
fn a_wall_clock_that_steps_ahead_brings_the_turn_of_those_who_wait() {
    let clock = WallClock::new();
    let server = Server::builder().wall_clock(&clock).start();
    let mut c = server.connect();
    c.take("k 10 0.01 10");
    let mut clients = [wait(&server, "k 10 0.01 8 0"), wait(&server, "k 10 0.01 2 0"), wait(&server, "k 10 0.01 1 0")];
    clock.shift(3_600);
    clients[0].assert_served();
    clients[1].assert_served();
    assert_eq!(waiting(&mut c), 1);
    // It is a time-out that no step moves.
    let mut timed = Waiting::over(server.connect(), "k 10 0.01 1 0.2");
    clock.shift(3_500);
    let (reply, took) = timed.answer();
    assert_eq!(reply.verdict(), (0, "empty", 0));
    assert!((Duration::from_millis(200)..Duration::from_millis(200) + LATE).contains(&took), "{took:?}");
}

#[test]
fn whoever_waits_for_a_slot_that_moves_is_sent_after_it() {
    let cluster = Cluster::start();
    let (source, target, slot) = cluster.around("k");
    let (mut from, mut to) = (source.connect(), target.connect());
    from.take("k 10 1e-8 10");
    let mut clients = [wait(source, "k 10 1e-8 8 0"), wait(source, "k 10 1e-8 2 0")];
    let mut timed = wait(source, "k 10 1e-8 2 0.3");
    let [source_id, target_id] = [&mut from, &mut to].map(|c| c.text("CLUSTER MYID"));
    to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 20000", target.port()));
    // A key that has migrated is no full bucket: whoever waits goes on waiting.
    timed.assert_error("TRYAGAIN the key is on its way to another node");
    assert_eq!(waiting(&mut from), 2);
    assert_eq!(from.int("DBSIZE"), 0);
    for c in [&mut to, &mut from] {
        c.ok(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"));
    }
    for client in &mut clients {
        client.assert_error(&format!("MOVED {slot} 127.0.0.1:{}", target.port()));
    }
    assert_nobody_waits(&mut from);
    assert_eq!(to.peek("k").tokens(), "0");
    let mut there = wait(target, "k 10 1e-8 2 0");
    to.refund("k 2");
    there.assert_served();
}

#[test]
fn whoever_is_sent_ahead_of_a_slot_is_served_where_the_bucket_is() {
    let cluster = Cluster::start();
    let (source, target, slot) = cluster.around("k");
    let (mut from, mut to) = (source.connect(), target.connect());
    from.take("k 10 1e-8 10");
    let [source_id, target_id] = [&mut from, &mut to].map(|c| c.text("CLUSTER MYID"));
    to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    from.ok(&format!("MIGRATE 127.0.0.1 {} k 0 20000", target.port()));
    let ask = format!("ASK {slot} 127.0.0.1:{}", target.port());
    assert_eq!(from.error("TB.BCONSUME k 10 1e-8 2 0"), ask);
    let ahead = |arguments| {
        let mut c = target.connect();
        c.ok("ASKING");
        Waiting::over(c, arguments)
    };
    let mut client = ahead("k 10 1e-8 2 0");
    wait_until("it to wait", || waiting(&mut to) == 1);
    // The bucket is here, whoever has the slot: nobody is sent back to where it was.
    assert_eq!(ahead("k 10 1e-8 2 0.3").answer().0.verdict(), (0, "empty", 0));
    to.ok("ASKING");
    to.refund("k 2");
    client.assert_served();
    assert_nobody_waits(&mut to);
}

#[test]
fn a_node_that_loses_its_slots_to_a_replica_serves_nobody_any_more() {
    let cluster = Cluster::start();
    let replica = cluster::node();
    let (primary, _, _) = cluster.around("k");
    cluster::meet(primary, &replica);
    let mut r = replica.connect();
    let id = primary.connect().text("CLUSTER MYID");
    wait_until("the replica to know the cluster", || r.text("CLUSTER INFO").contains("cluster_state:ok"));
    wait_until("the replica to follow", || error_text(&r.ask(&format!("CLUSTER REPLICATE {id}"))).is_none());
    let mut c = primary.connect();
    c.take("k 10 1e-8 10");
    replica.wait_for_sync(primary);
    let mut client = wait(primary, "k 10 1e-8 8 0");
    r.ok("CLUSTER FAILOVER TAKEOVER");
    let (reply, _) = client.reply();
    let error = error_text(&reply).unwrap_or_default();
    assert!(error.starts_with("UNBLOCKED") || error.starts_with("MOVED"), "{reply:?}");
    assert_nobody_waits(&mut c);
    assert_eq!(r.peek("k").tokens(), "0");
}

#[test]
fn a_slot_that_is_nobody_s_is_served_by_nobody() {
    let cluster = Cluster::start();
    let (owner, _, slot) = cluster.around("k");
    let mut c = owner.connect();
    // Else the server itself sends clients away, from a cluster that is down.
    c.config_set("cluster-require-full-coverage", "no");
    c.take("k 10 1e-8 10");
    let mut client = wait(owner, "k 10 1e-8 2 0");
    c.transaction(&["TB.CONSUME k 10 1000 1", &format!("CLUSTER DELSLOTS {slot}")]);
    wait_as_told(300);
    assert_eq!(waiting(&mut c), 1);
    c.ok(&format!("CLUSTER ADDSLOTS {slot}"));
    client.assert_served();
}

#[test]
fn a_node_that_cannot_ask_for_a_key_serves_those_who_wait() {
    let server = Server::builder().tcp().conf("cluster-enabled yes").conf("rename-command EXISTS \"\"").start();
    let mut c = server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("the cluster to be whole", || c.text("CLUSTER INFO").contains("cluster_state:ok"));
    c.take("k 10 20 10");
    wait(&server, "k 10 20 2 0").assert_served();
    assert_nobody_waits(&mut c);
}

// ------------------------------------------------------------------ a crowd

#[test]
fn a_thousand_buckets_with_a_client_each_are_served_in_their_time() {
    let server = Server::builder().conf("maxclients 5000").start();
    let mut c = server.connect();
    let mut clients = Vec::new();
    for index in 0..1000 {
        c.take(&format!("k{index} 1 2 1"));
        clients.push(Waiting::over(server.connect(), &format!("k{index} 1 2 1 0")));
    }
    for client in &mut clients {
        client.assert_served();
    }
    assert_nobody_waits(&mut c);
    assert_eq!(gauge(&mut c, "waits"), 1000);
}

#[test]
fn clients_that_come_and_go_at_random_leave_nothing_behind() {
    let server = Server::start();
    let mut random = crate::random::Random::new(7);
    let mut c = server.connect();
    let mut clients: Vec<Waiting> = Vec::new();
    for _ in 0..600 {
        match random.below(10) {
            0..=4 => {
                let (key, tokens) = (random.below(3), random.below(6));
                let timeout = random.pick(&["0", "0.01", "0.05", "5"]);
                clients.push(Waiting::over(server.connect(), &format!("k{key} 5 100 {tokens} {timeout}")));
            }
            5 | 6 if !clients.is_empty() => {
                let index = random.below(clients.len());
                clients.swap_remove(index);
            }
            7 => drop(c.ask(&format!("TB.PENALISE k{} 0.02", random.below(3)))),
            8 => drop(c.ask(&format!("TB.CONSUME k{} 5 {} 3 FORCE", random.below(3), 50 + random.below(3)))),
            9 => drop(c.ask(&format!("DEL k{}", random.below(3)))),
            _ => drop(c.ask(&format!("TB.CONSUME k{} {} 100", random.below(3), 3 + random.below(3)))),
        }
    }
    drop(clients);
    assert_nobody_waits(&mut c);
    // And the buckets go on as if nobody had.
    for key in ["k0", "k1", "k2"] {
        c.ask(&format!("DEL {key}"));
        assert_eq!(c.take(&format!("{key} 5 1e-8 2")).remaining, 3);
    }
}
