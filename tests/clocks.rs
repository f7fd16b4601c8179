//! Servers whose wall clock is wrong: it steps, it wobbles, it is another one than the
//! primary's, or than before the restart. Clients count by a clock of their own, which
//! is right.

use std::thread;
use std::time::{Duration, Instant};

use crate::concurrency::{Call, Taken, assert_never_too_many, hammer_during};
use crate::connection::{Connection, consumed};
use crate::server::{Builder, Server, wait_as_told, wait_until};
use crate::wallclock::WallClock;
use crate::{LAG_MS, assert_left_of, assert_left_since};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// How far a wall clock is off, in seconds: within what a server is led by another's
/// clock, and beyond it.
const SHIFTS: [i64; 4] = [HOUR, -HOUR, 400 * DAY, -400 * DAY];

fn server_with(clock: &WallClock) -> Server {
    let server = Server::builder().wall_clock(clock).start();
    assert_shift(&mut server.connect(), 0);
    server
}

/// The server's clock is the one that is moved here; else nothing here tests anything.
/// (Valkey 9 looks at it ten times a second.)
#[track_caller]
fn assert_shift(c: &mut Connection, seconds: i64) {
    wait_until("the server to have the clock that it was given", || {
        let here = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let off_us = c.time_us() - i64::try_from(here.as_micros()).unwrap();
        (off_us - seconds * 1_000_000).abs() < 500_000
    });
}

/// What was granted, call by call.
fn taken(made: Vec<Vec<Call>>) -> Vec<Taken> {
    let granted = made.into_iter().flatten().filter(|call| call.reply.allowed > 0);
    granted.map(|call| Taken { tokens: 1.0, from: call.sent, until: call.received }).collect()
}

// ---- steps

#[test]
fn steps_back_of_the_wall_clock_lift_no_limit_and_stall_nothing() {
    let clock = WallClock::new();
    let server = server_with(&clock);
    let mut shift = 0;
    let made = hammer_during(&server, &["k 20 400"; 4], || {
        for back in [1, HOUR, 400 * DAY, 3, HOUR] {
            thread::sleep(Duration::from_millis(150));
            shift -= back;
            clock.shift(shift);
            assert_shift(&mut server.connect(), shift);
            server.connect().assert_wait_is_honest(&["DEL other", "TB.CONSUME other 5 20 5"], "other 5 20");
        }
        thread::sleep(Duration::from_millis(150));
    });
    let taken = taken(made);
    assert!(taken.len() > 200, "{} grants", taken.len());
    assert_never_too_many(taken, 20.0, 400.0);
}

#[test]
fn a_step_ahead_of_the_wall_clock_fills_a_bucket_and_no_more() {
    let clock = WallClock::new();
    let server = server_with(&clock);
    let mut shift = 0;
    let mut phases = Vec::new();
    let mut stepped = Vec::new();
    let made = hammer_during(&server, &["k 20 400"; 4], || {
        for ahead in [1, HOUR, 400 * DAY, -400 * DAY, 2 * 400 * DAY] {
            thread::sleep(Duration::from_millis(150));
            let before = Instant::now();
            shift += ahead;
            clock.shift(shift);
            stepped.push((before, Instant::now()));
            assert_shift(&mut server.connect(), shift);
            server.connect().assert_wait_is_honest(&["DEL other", "TB.CONSUME other 5 20 5"], "other 5 20");
        }
        thread::sleep(Duration::from_millis(150));
    });
    let mut rest = taken(made);
    rest.sort_by_key(|taken| taken.from);
    assert!(rest.len() > 200, "{} grants", rest.len());
    // Between two steps the limit holds as if there were none; a call during a step
    // belongs to one of its sides, and is left out.
    for (before, after) in stepped {
        let (phase, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(|taken| taken.from < before);
        phases.push(phase.into_iter().filter(|taken| taken.until < before).collect());
        rest = later.into_iter().filter(|taken| taken.from > after).collect();
    }
    phases.push(rest);
    for phase in phases {
        assert!(phase.len() >= 20, "{} grants in a phase", phase.len());
        assert_never_too_many(phase, 20.0, 400.0);
    }
}

#[test]
fn whoever_waits_over_a_step_of_the_wall_clock_is_granted_when_it_was_told() {
    for shift in SHIFTS {
        let clock = WallClock::new();
        let server = server_with(&clock);
        let mut c = server.connect();
        if shift > 0 {
            c.take("k 2 1e-3 2");
            assert_eq!(c.consume("k 2 1e-3 2").status, "empty", "{shift} s");
            clock.shift(shift);
            assert_shift(&mut c, shift);
            // All that a step ahead can do: the bucket is full.
            assert_eq!(c.take("k 2 1e-3 2").remaining, 0, "{shift} s");
            assert_eq!(c.consume("k 2 1e-3").status, "empty", "{shift} s");
            continue;
        }
        let asked = Instant::now();
        // Together: between two calls a busy machine lets tokens come in.
        let denied = consumed(&c.transaction(&["TB.CONSUME k 2 2 2", "TB.CONSUME k 2 2 2"])[1]);
        assert_eq!(denied.status, "empty");
        clock.shift(shift);
        assert_shift(&mut c, shift);
        loop {
            let again = c.consume("k 2 2 2");
            let passed_ms = i64::try_from(asked.elapsed().as_millis()).unwrap();
            if again.allowed == 1 {
                assert!(passed_ms + 1 >= denied.wait_ms, "{shift} s: granted after {passed_ms} ms, told {}", denied.wait_ms);
                break;
            }
            assert!(passed_ms < denied.wait_ms + LAG_MS, "{shift} s: {passed_ms} ms have passed, and {again:?} after {denied:?}");
            assert!(again.wait_ms <= denied.wait_ms, "{shift} s: {again:?} after {denied:?}");
            wait_as_told(again.wait_ms.min(50));
        }
    }
}

#[test]
fn a_freeze_outlives_every_step_back_of_the_wall_clock() {
    let clock = WallClock::new();
    let server = server_with(&clock);
    let mut c = server.connect();
    c.take("k 10 0.01 4");
    c.penalise("k 1000");
    c.penalise("bare 1000");
    for shift in [-1, -HOUR, -400 * DAY, 0, -HOUR] {
        clock.shift(shift);
        assert_shift(&mut c, shift);
        for key in ["k", "bare"] {
            assert_left_of(1_000_000, c.peek(key).frozen_ms);
            assert_eq!(c.consume(&format!("{key} 10 0.01 0")).status, "frozen", "{shift} s");
        }
    }
    // A moment that a caller gives is as far from now as by the clock on the wall.
    let until = c.time_us() / 1_000_000 + 2_000;
    assert_left_of(2_000_000, c.penalise(&format!("k UNTIL {until}")));
}

// ---- wobbling

#[test]
fn a_wall_clock_that_wobbles_grants_no_more_than_it_wobbles_and_stalls_nothing() {
    const WOBBLE: Duration = Duration::from_millis(50);
    let clock = WallClock::new();
    let server = server_with(&clock);
    clock.wobble(i64::try_from(WOBBLE.as_micros()).unwrap());
    let mut c = server.connect();
    let made = hammer_during(&server, &["k 20 1000"; 3], || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            // A wait is shorter by what the clock leaps ahead meanwhile, and never longer.
            let denied = c.consume("other 1 5");
            let told = Instant::now();
            if denied.allowed == 0 {
                wait_as_told(denied.wait_ms);
                assert_eq!(c.consume("other 1 5").allowed, 1, "{denied:?}, after {:?}", told.elapsed());
            }
        }
    });
    // However often it was read: no more than the once that it can be ahead.
    let slack = 1_000.0 * 2.0 * WOBBLE.as_secs_f64();
    let taken = taken(made);
    assert!(taken.len() > 200, "{} grants in two seconds", taken.len());
    assert_never_too_many(taken, 20.0 + slack, 1_000.0);
}

// ---- held up

#[test]
fn a_server_that_is_held_up_while_it_reads_its_clocks_counts_no_time_twice() {
    let clock = WallClock::new();
    let server = server_with(&clock);
    let mut c = server.connect();
    let begun = Instant::now();
    c.take("k 10000 1000 10000");
    for _ in 0..3 {
        clock.hold_up(20_000);
        c.consume("k 10000 1000 0");
        clock.hold_up(0);
        c.consume("k 10000 1000 0");
    }
    let granted = c.consume("k 10000 1000 10000 UPTO").allowed;
    let most = begun.elapsed().as_secs_f64() * 1_000.0;
    #[allow(clippy::cast_precision_loss)] // some thousand
    let granted = granted as f64;
    assert!(granted <= most, "{granted} tokens, {most} have come in");
}

// ---- a replica with another clock

#[test]
fn a_replica_with_another_clock_that_is_promoted_grants_no_more_than_a_full_bucket() {
    for shift in SHIFTS {
        for over in ["a full resync", "the stream"] {
            let clock = WallClock::shifted(shift);
            let mut primary = Server::builder().tcp().start();
            let replica = Server::builder().tcp().wall_clock(&clock).start();
            if over == "the stream" {
                replica.replicate(&primary);
            }
            let (mut c, begun) = (primary.connect(), Instant::now());
            c.take("spent 10 1e-3 10");
            c.take("some 10 1e-8 4");
            c.penalise("frozen 100000");
            c.take("frozen 10 1e-3 1 FORCE");
            if over == "a full resync" {
                replica.replicate(&primary);
            }
            replica.wait_for_sync(&primary);
            primary.kill();
            let mut r = replica.connect();
            r.ok("REPLICAOF NO ONE");
            assert_shift(&mut r, shift);
            let what = format!("{shift} s over {over}");
            let assert_left = |whole_ms, left_ms| assert_left_since(begun, Duration::ZERO, whole_ms, left_ms);
            if shift == 400 * DAY {
                // By its clock all is long over but the one that takes 30 years to fill.
                assert_eq!(r.int("EXISTS spent frozen"), 0, "{what}");
                assert_eq!(r.take("spent 10 1e-3 10").remaining, 0, "{what}");
            } else if shift == HOUR {
                // An hour has passed by its clock: 3.6 tokens, and of the freeze an hour.
                assert_eq!(r.consume("spent 10 1e-3 20 UPTO").verdict(), (3, "granted", 0), "{what}");
                assert_left(100_000_000 - HOUR * 1_000, r.peek("frozen").frozen_ms);
            } else {
                // It goes on where its primary was, or shifts all to its own clock.
                assert_left(1_000_000, r.consume("spent 10 1e-3").wait_ms);
                assert_left(100_000_000, r.peek("frozen").frozen_ms);
                assert_eq!(r.consume("frozen 10 1e-3 0").status, "frozen", "{what}");
            }
            assert_eq!(r.consume("some 10 1e-8 20 UPTO").verdict(), (6, "granted", 0), "{what}");
            r.assert_wait_is_honest(&["DEL new", "TB.CONSUME new 5 20 5"], "new 5 20");
        }
    }
}

// ---- a restart at another time

#[test]
fn a_restart_into_the_past_grants_nothing_extra_and_stalls_nothing() {
    let ways: [fn() -> Builder; 3] = [
        Server::builder,
        || Server::builder().append_only(),
        || Server::builder().append_only().conf("aof-use-rdb-preamble yes"),
    ];
    for way in ways {
        for ahead in [HOUR, 20 * HOUR, 400 * DAY] {
            let clock = WallClock::shifted(ahead);
            let mut server = way().wall_clock(&clock).start();
            let (mut c, begun) = (server.connect(), Instant::now());
            c.take("spent 10 1e-3 10");
            c.take("some 10 1e-8 4");
            c.penalise("frozen 100000");
            if c.config("appendonly") == "no" {
                c.ok("SAVE");
            } else if c.config("aof-use-rdb-preamble") == "yes" {
                c.ask("BGREWRITEAOF");
                wait_until("the AOF to be rewritten", || c.info("persistence", "aof_last_rewrite_time_sec") != "-1");
            }
            server.kill();
            clock.shift(0);
            server.start_again();
            let mut c = server.connect();
            assert_shift(&mut c, 0);
            assert_left_since(begun, Duration::ZERO, 1_000_000, c.consume("spent 10 1e-3").wait_ms);
            assert_left_since(begun, Duration::ZERO, 100_000_000, c.peek("frozen").frozen_ms);
            assert_eq!(c.consume("some 10 1e-8 20 UPTO").verdict(), (6, "granted", 0), "{ahead} s");
            c.assert_wait_is_honest(&["TB.CONSUME new 5 20 5"], "new 5 20");
            // And back: all of it is in the past now, and none of it is more than full.
            server.shut_down("SAVE");
            clock.shift(2 * 400 * DAY);
            server.start_again();
            let mut c = server.connect();
            assert_eq!(c.consume("spent 10 1e-3 20 UPTO").verdict(), (10, "granted", 0), "{ahead} s");
            c.assert_wait_is_honest(&["DEL new", "TB.CONSUME new 5 20 5"], "new 5 20");
        }
    }
}
