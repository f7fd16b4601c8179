//! Many clients on one bucket, in real time: never more than the limit gives, over
//! any stretch, and not one less. A client knows of its calls when it sent them and
//! when it had the reply; what happened lies in between, however busy the machine
//! is. So each bound is held against the moments that are the kindest to it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::Consumed;
use crate::server::{Server, wait_as_told};

/// A call, and when it was on its way.
pub(crate) struct Call {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    pub(crate) reply: Consumed,
}

/// Runs a client per command; each calls again and again for as long.
fn hammer(server: &Server, calls: &[&str], time: Duration) -> Vec<Vec<Call>> {
    hammer_during(server, calls, || thread::sleep(time))
}

/// Runs a client per command; each calls again and again while `work` goes on.
pub(crate) fn hammer_during(server: &Server, calls: &[&str], work: impl FnOnce()) -> Vec<Vec<Call>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = |call: &str| {
            let mut c = server.connect();
            let mut made = Vec::new();
            while !stop.load(Relaxed) {
                let sent = Instant::now();
                let reply = c.consume(call);
                made.push(Call { sent, received: Instant::now(), reply });
            }
            made
        };
        let clients: Vec<_> = calls.iter().map(|call| scope.spawn(move || client(call))).collect();
        let outcome = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        let made = clients.into_iter().map(|client| client.join().unwrap()).collect();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        made
    })
}

/// Tokens that were taken, and between which moments they were.
pub(crate) struct Taken {
    pub(crate) tokens: f64,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// Over every stretch there is: no more than the capacity and what came in.
#[track_caller]
pub(crate) fn assert_never_too_many(mut taken: Vec<Taken>, capacity: f64, rate: f64) {
    const JITTER: Duration = Duration::from_millis(1); // of the module's clock
    taken.sort_by_key(|taken| taken.from);
    for (first, begin) in taken.iter().enumerate() {
        let (mut tokens, mut end) = (0.0, begin.until);
        for one in &taken[first..] {
            tokens += one.tokens;
            end = end.max(one.until);
            let most = capacity + rate * (end - begin.from + JITTER).as_secs_f64();
            assert!(tokens <= most + 1e-6, "{tokens} tokens within {:?}, {most} at most", end - begin.from);
        }
    }
}

#[test]
fn no_stretch_of_time_has_more_grants_than_the_limit_gives() {
    let server = Server::start();
    for (calls, capacity, rate) in [
        (&["k 20 300", "k 20 300", "k 20 300 3", "k 20 300 7 UPTO"][..], 20.0, 300.0),
        // Limits that take turns: the largest of each counts.
        (&["k 20 100", "k 5 300", "k 20 100 2", "k 5 300 0.5"], 20.0, 300.0),
    ] {
        server.connect().ask("DEL k");
        let made = hammer(&server, calls, Duration::from_millis(700));
        let mut taken = Vec::new();
        for (call, made) in calls.iter().zip(made) {
            let asked: f64 = call.split(' ').nth(3).map_or(1.0, |tokens| tokens.parse().unwrap());
            for made in made.into_iter().filter(|made| made.reply.allowed > 0) {
                let tokens = if call.ends_with("UPTO") { made.reply.allowed as f64 } else { asked };
                taken.push(Taken { tokens, from: made.sent, until: made.received });
            }
        }
        assert!(taken.len() > 50, "{} grants", taken.len());
        assert_never_too_many(taken, capacity, rate);
    }
}

#[test]
fn whoever_keeps_asking_gets_all_that_the_limit_gives() {
    let server = Server::start();
    // So large that it is never full again, though the machine be busy with something
    // else for two seconds.
    let call = "k 600 300";
    let made: Vec<Call> = hammer(&server, &[call; 3], Duration::from_millis(1_000)).into_iter().flatten().collect();
    let (granted, denied): (Vec<Call>, Vec<Call>) = made.into_iter().partition(|call| call.reply.allowed > 0);
    let begun = granted.iter().map(|call| call.received).min().unwrap();
    let mut sent: Vec<Instant> = granted.iter().map(|call| call.sent).collect();
    sent.sort_unstable();
    assert!(denied.len() > 20, "{} granted, {} denied", granted.len(), denied.len());
    // Whenever a call was denied, less than one token was left of what there had been:
    // all else had been granted to calls that were on their way before its reply.
    for denial in denied {
        let granted = sent.partition_point(|sent| *sent < denial.received);
        let passed = denial.sent.saturating_duration_since(begun).saturating_sub(Duration::from_millis(1));
        let there = 600.0 + 300.0 * passed.as_secs_f64();
        assert!(granted as f64 > there - 1.0, "{granted} granted, of {there}");
    }
}

#[test]
fn no_two_reservations_count_on_the_same_tokens() {
    let server = Server::start();
    let call = "k 5 200 1 MAXWAIT 2";
    let made: Vec<Call> = hammer(&server, &[call; 4], Duration::from_millis(300)).into_iter().flatten().collect();
    let reserved: Vec<&Call> = made.iter().filter(|call| call.reply.allowed > 0).collect();
    assert!(reserved.len() >= 400, "{} reservations of two seconds", reserved.len());
    assert!(reserved.iter().any(|call| call.reply.status == "reserved" && call.reply.wait_ms > 1_000));
    let acts = |call: &&Call| {
        let wait = Duration::from_millis(call.reply.wait_ms.unsigned_abs());
        // What is told is rounded up to a millisecond.
        let rounded = if wait.is_zero() { wait } else { wait - Duration::from_millis(1) };
        Taken { tokens: 1.0, from: call.sent + rounded, until: call.received + wait }
    };
    assert_never_too_many(reserved.iter().map(acts).collect(), 5.0, 200.0);
}

#[test]
fn workers_that_wait_as_told_share_the_limit_and_nobody_polls() {
    let server = Server::start();
    let begun = Instant::now();
    // Each asks once, waits, and works; then asks anew.
    let worker = || {
        let mut c = server.connect();
        let mut done = Vec::new();
        for _ in 0..25 {
            let sent = Instant::now();
            let reply = c.consume("k 2 100 1 MAXWAIT 60");
            let received = Instant::now();
            assert_eq!(reply.allowed, 1, "{reply:?}");
            wait_as_told(reply.wait_ms);
            let wait = Duration::from_millis(reply.wait_ms.unsigned_abs());
            done.push(Taken { tokens: 1.0, from: (sent + wait).max(sent), until: received + wait });
        }
        done
    };
    let taken: Vec<Taken> = thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    // 100 tokens, of which 2 were there.
    assert!(begun.elapsed() >= Duration::from_millis(979), "{:?}", begun.elapsed());
    assert_eq!(taken.len(), 100);
    let rounding = Duration::from_millis(1);
    let taken = taken.into_iter().map(|taken| Taken { from: taken.from.checked_sub(rounding).unwrap(), ..taken });
    assert_never_too_many(taken.collect(), 2.0, 100.0);
}

#[test]
fn a_client_that_waits_what_it_was_told_is_granted_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    for (call, rounds) in [("a 1 50", 12), ("b 3 333.333333333333 2", 12), ("c 10 7 3 PER 0.1", 8), ("d 1 1000", 30)] {
        let mut waited = 0;
        while waited < rounds {
            let reply = c.consume(call);
            if reply.allowed == 1 {
                continue;
            }
            wait_as_told(reply.wait_ms);
            let reply = c.consume(call);
            assert_eq!((reply.allowed, reply.status.as_str()), (1, "granted"), "{call}: {reply:?} after the wait");
            waited += 1;
        }
    }
}
