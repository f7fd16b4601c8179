//! Callers that go away: what they took comes back where no call was made, and only there.

use std::time::{Duration, Instant};

use tokenbucket_client::{
    Buckets, Consume, Limit, MultiConsume, Origin, Peek, RateLimiter, Redis, Request as _, Status, WhenAway,
};
use tokio::time::{sleep, timeout};

use crate::server::Server;

const MS: fn(u64) -> Duration = Duration::from_millis;

const HOUR: Duration = Duration::from_secs(3600);

/// Within a test nothing refills.
fn slow(burst: u32) -> Limit {
    Limit::per(1, HOUR).unwrap().with_burst(burst).unwrap()
}

/// With a time-out that no test waits for.
fn patient(server: &Server) -> RateLimiter<impl Buckets> {
    RateLimiter::new(Redis(server.managed()), WhenAway::FailOpen, Duration::from_secs(20))
}

/// The level, to a tenth of a token.
fn level(server: &Server, key: &str) -> f64 {
    let reading = Peek::new(key).query(&mut server.connection()).unwrap().unwrap();
    (reading.tokens.unwrap() * 10.0).round() / 10.0
}

/// Waits on the runtime, whose tasks are to do it.
async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(MS(5)).await;
    }
}

/// Drops a future when it has been under way for a while.
async fn cancel<T>(future: impl Future<Output = T>) {
    assert!(timeout(MS(50), future).await.is_err());
}

#[tokio::test]
async fn a_slot_that_nobody_waits_for_is_given_back() {
    let server = Server::start();
    let limiter = patient(&server);
    limiter.check("k", &slow(1), 1).await.unwrap();
    cancel(limiter.acquire("k", &slow(1), 1, HOUR)).await;
    wait_until("a refund", || server.calls("tb.refund") == 1).await;
    assert_eq!(level(&server, "k").abs(), 0.0);
    // Of one that lies behind a penalty as well.
    server.ask("TB.PENALISE k 600");
    cancel(limiter.acquire("k", &slow(1), 1, 2 * HOUR)).await;
    wait_until("a refund", || server.calls("tb.refund") == 2).await;
    let wait = Consume::new("k", slow(1)).query(&mut server.connection()).unwrap().wait.unwrap();
    assert!(wait <= HOUR + Duration::from_secs(600), "{wait:?}");
}

#[tokio::test]
async fn a_slot_that_a_penalty_has_voided_is_not_given_back() {
    let server = Server::start();
    let limiter = patient(&server);
    limiter.check("k", &slow(1), 1).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k", &slow(1), 1, HOUR).await }
    });
    wait_until("a slot", || server.calls("tb.consume") == 2).await;
    sleep(MS(50)).await; // the answer is on its way
    server.ask("TB.PENALISE k 7200");
    // Another's, an hour after the thaw: a refund would pay for it.
    server.ask("TB.CONSUME k 1 1 PER 3600 MAXWAIT 20000");
    let before = Consume::new("k", slow(1)).query(&mut server.connection()).unwrap().wait.unwrap();
    waiting.abort();
    wait_until("a look at the bucket", || server.calls("tb.peek") == 1).await;
    sleep(MS(100)).await;
    assert_eq!(server.calls("tb.refund"), 0);
    let after = Consume::new("k", slow(1)).query(&mut server.connection()).unwrap().wait.unwrap();
    assert!(before - after < Duration::from_secs(60), "{before:?} {after:?}");
}

#[tokio::test]
async fn what_was_under_way_is_given_back() {
    let server = Server::start();
    let limiter = patient(&server);
    let limit = slow(10);
    limiter.check("k", &limit, 1).await.unwrap();
    server.signal("-STOP");
    cancel(limiter.check_all(&MultiConsume::new().and("{k}a", limit, 3).and("{k}b", limit, 4))).await;
    server.signal("-CONT");
    wait_until("both", || server.calls("tb.refund") == 2).await;
    assert_eq!((level(&server, "{k}a"), level(&server, "{k}b")), (10.0, 10.0));
    for (nth, what) in (1..).zip(["check", "execute", "acquire"]) {
        server.signal("-STOP");
        match what {
            "check" => cancel(limiter.check("k", &limit, 1)).await,
            "execute" => cancel(limiter.execute("k", &limit, async || panic!("no token is here yet"))).await,
            _ => cancel(limiter.acquire("k", &limit, 1, HOUR)).await,
        }
        server.signal("-CONT");
        wait_until(what, || server.calls("tb.refund") == 2 + nth).await;
        assert_eq!((server.calls("tb.consume"), level(&server, "k")), (1 + nth, 9.0), "{what}");
    }
}

#[tokio::test]
async fn what_is_denied_and_what_was_only_asked_gives_nothing_back() {
    let server = Server::start();
    let limiter = patient(&server);
    limiter.check("k", &slow(1), 1).await.unwrap();
    for tokens in [0, 1] {
        server.signal("-STOP");
        cancel(limiter.check("k", &slow(1), tokens)).await;
        server.signal("-CONT");
        wait_until("the question", || server.calls("tb.consume") == 2 + u64::from(tokens)).await;
    }
    sleep(MS(100)).await;
    assert_eq!(server.calls("tb.refund"), 0);
}

#[tokio::test]
async fn a_call_that_was_begun_is_paid_for() {
    let server = Server::start();
    let limiter = patient(&server);
    cancel(limiter.execute("k", &slow(2), async || sleep(Duration::from_secs(60)).await)).await;
    assert!(limiter.acquire("k", &slow(2), 1, HOUR).await.is_ok());
    sleep(MS(100)).await;
    assert_eq!((server.calls("tb.refund"), level(&server, "k").abs()), (0, 0.0));
}

#[tokio::test]
async fn an_answer_after_the_time_out_is_not_given_back_since_the_call_may_have_been_made() {
    let server = Server::start();
    let limiter = RateLimiter::new(Redis(server.managed()), WhenAway::FailOpen, MS(200));
    wait_until("a connection", || server.client().get_connection().is_ok()).await;
    let _ = limiter.check("k", &slow(10), 1).await;
    let before = server.calls("tb.consume");
    server.signal("-STOP");
    assert_eq!(limiter.check("k", &slow(10), 1).await.unwrap().origin, Origin::FailOpen);
    server.signal("-CONT");
    wait_until("the late request", || server.calls("tb.consume") == before + 1).await;
    sleep(MS(100)).await;
    assert_eq!(server.calls("tb.refund"), 0);
}

#[tokio::test]
async fn a_batch_whose_caller_has_gone_is_held_for_the_next() {
    let server = Server::start();
    let limiter = patient(&server);
    let lease = limiter.lease("k", &slow(100), 20).keep(HOUR);
    assert!(lease.take(20).await.unwrap().is_allowed());
    server.signal("-STOP");
    cancel(lease.take(1)).await;
    server.signal("-CONT");
    wait_until("the batch", || lease.held() == 20).await;
    assert_eq!(level(&server, "k"), 60.0);
    assert_eq!(lease.take(1).await.unwrap().origin, Origin::Lease);
    assert_eq!((server.calls("tb.consume"), server.calls("tb.refund")), (2, 0));

    // More than a batch is never held.
    assert!(lease.take(19).await.unwrap().is_allowed());
    server.signal("-STOP");
    cancel(lease.take(1)).await;
    cancel(lease.take(1)).await;
    server.signal("-CONT");
    wait_until("the rest", || server.calls("tb.refund") == 1).await;
    wait_until("the batch", || lease.held() == 20).await;
    assert_eq!(level(&server, "k"), 40.0);

    // Nor is anything held for a lease that is gone.
    assert!(lease.take(20).await.unwrap().is_allowed());
    server.signal("-STOP");
    cancel(lease.take(1)).await;
    drop(lease);
    server.signal("-CONT");
    wait_until("the rest", || server.calls("tb.refund") == 2).await;
    assert_eq!(level(&server, "k"), 40.0);
}

#[tokio::test]
async fn a_batch_that_comes_after_the_time_out_is_held_for_the_next() {
    let server = Server::start();
    let limiter = RateLimiter::new(Redis(server.managed()), WhenAway::FailClosed, MS(500));
    let lease = limiter.lease("k", &slow(100), 20).keep(HOUR);
    // Connects, and takes the first.
    while !lease.take(20).await.unwrap().is_allowed() {}
    let before = level(&server, "k");
    server.signal("-STOP");
    assert_eq!(lease.take(1).await.unwrap().status, Status::Unavailable);
    server.signal("-CONT");
    wait_until("the batch", || lease.held() == 20).await;
    assert_eq!(level(&server, "k"), before - 20.0);
}

#[tokio::test]
async fn what_the_fallback_gave_goes_back_to_it() {
    let mut server = Server::start();
    let limiter = RateLimiter::new(Redis(server.managed()), WhenAway::Local { share: 1.0 }, MS(500));
    server.kill();
    assert_eq!(limiter.check("k", &slow(1), 1).await.unwrap().origin, Origin::Local);
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k", &slow(1), 1, HOUR).await }
    });
    // The next slot lies two hours away; and one when this one is free again.
    for (is_taken, what) in [(true, "a slot"), (false, "a free slot")] {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let error = limiter.acquire("k", &slow(1), 1, MS(1)).await.unwrap_err();
            if (error.rate_limited().unwrap().retry_after.unwrap() > HOUR) == is_taken {
                break;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}: {error}");
        }
        waiting.abort();
    }
}
