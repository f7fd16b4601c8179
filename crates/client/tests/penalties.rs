//! Penalties: whom they stop, which slots they void, and what becomes of one that cannot be
//! told at once.

use std::time::{Duration, Instant};

use tokenbucket_client::headers::{Preset, policy_key};
use tokenbucket_client::{
    Buckets, Consume, Error, Limit, MultiConsume, Origin, Peek, RateLimiter, Request as _, Status, WhenAway,
};
use tokio::time::sleep;

use crate::limits::{fast, in_redis, slow};
use crate::server::{Server, TIME_OUT};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// How long the server holds a bucket frozen.
fn frozen(server: &Server, key: impl Into<Vec<u8>>) -> Duration {
    Peek::new(key).query(&mut server.connection()).unwrap().map_or(Duration::ZERO, |reading| reading.frozen)
}

/// Asks until it is Redis that answers; the tasks of the runtime have their turn in between.
async fn answered_by_redis(limiter: &RateLimiter<impl Buckets>, key: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while limiter.check(key, &fast(), 1).await.unwrap().origin != Origin::Redis {
        assert!(Instant::now() < deadline, "waited in vain for Redis");
        sleep(MS(5)).await;
    }
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(MS(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_void_though_the_penalty_is_over_when_the_jitter_is() {
    let server = Server::start();
    let limiter = in_redis(&server).await.with_jitter(Duration::from_secs(2));
    let (start, limit) = (Instant::now(), Limit::per(1, Duration::from_secs(2)).unwrap());
    let mut waiting = Vec::new();
    for key in 0..12 {
        let (limiter, key) = (limiter.clone(), format!("k{key}"));
        limiter.check(&key, &limit, 1).await.unwrap();
        waiting.push(tokio::spawn(async move { limiter.acquire(&key, &limit, 1, Duration::from_secs(20)).await }));
    }
    wait_until("the slots", || server.calls("tb.consume") == 24).await;
    for key in 0..12 {
        server.ask(&format!("TB.PENALISE k{key} 3")); // another's: this process has not heard of it
    }
    let thaw = Instant::now() + Duration::from_secs(3);
    assert!(start.elapsed() < MS(1900), "too slow a machine to tell");
    for acquired in waiting {
        acquired.await.unwrap().unwrap();
        // The thaw, and then a token has to come in.
        assert!(Instant::now() >= thaw + MS(1900), "a void slot was taken for good");
    }
    // Checked, reserved, void, reserved anew, good; and after the jitter once more at most.
    assert!(server.calls("tb.consume") >= 12 * 5);
}

#[tokio::test]
async fn who_is_gone_after_the_thaw_gives_no_void_slot_back() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    limiter.check("k", &slow(1), 1).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        // A slot an hour away.
        async move { limiter.acquire("k", &slow(1), 1, Duration::from_secs(7200)).await }
    });
    wait_until("a slot", || server.calls("tb.consume") == 2).await;
    sleep(MS(50)).await;
    limiter.observe("k", 429, [("retry-after", b"7200".as_slice())]).await;
    // As if it were over: the bucket remembers nothing of it, this process does.
    server.ask("DEL k");
    server.ask("TB.CONSUME k 10 1 5 PER 3600");
    waiting.abort();
    wait_until("a look at the bucket", || server.calls("tb.peek") == 1).await;
    sleep(MS(100)).await;
    assert_eq!(server.calls("tb.refund"), 0);
}

#[tokio::test]
async fn a_429_stops_those_who_take_from_the_buckets_of_policies() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    // Those that the response names.
    let fields = [
        ("RateLimit", b"\"burst\";r=50;t=30, \"day\";r=0;t=7200".as_slice()),
        ("RateLimit-Policy", b"\"burst\";q=100, \"day\";q=1000"),
        ("Retry-After", b"60"),
    ];
    limiter.observe("vendor", 429, fields).await;
    for key in ["vendor", "{vendor}:burst", "{vendor}:day"] {
        assert!(frozen(&server, key) > Duration::from_secs(50), "{key}");
    }
    let both = MultiConsume::new().and("{vendor}:burst", slow(9), 1).and("{vendor}:other", slow(9), 1);
    assert_eq!(limiter.check_all(&both).await.unwrap().together.status, Status::Frozen);
    // Those of the preset, of a 429 that names none; with one policy alone they are named as well.
    let limiter = limiter.with_preset(Preset::OpenAi);
    limiter.observe("ai", 429, [("retry-after", b"60".as_slice())]).await;
    for policy in ["requests", "tokens"] {
        assert!(frozen(&server, policy_key(b"ai", policy)) > Duration::from_secs(50), "{policy}");
    }
    limiter.observe("one", 200, [("x-ratelimit-remaining-tokens", b"300".as_slice())]).await;
    let left = Consume::new(policy_key(b"one", "tokens"), slow(5000)).tokens(0).query(&mut server.connection()).unwrap();
    assert_eq!(left.remaining, 300);
    // Others have no policies.
    let limiter = limiter.with_preset(Preset::GitHub);
    limiter.observe("hub", 429, [("retry-after", b"60".as_slice())]).await;
    assert_eq!(frozen(&server, policy_key(b"hub", "default")), Duration::ZERO);
}

#[tokio::test]
async fn a_penalty_that_cannot_be_told_is_obeyed_and_told_later() {
    let server = Server::start();
    let mut limiters = Vec::new();
    for mode in [WhenAway::FailOpen, WhenAway::FailClosed, WhenAway::Local { share: 0.5 }] {
        limiters.push((mode, server.limiter(mode)));
    }
    for (_, limiter) in &limiters {
        answered_by_redis(limiter, "other").await;
    }
    server.ask("CONFIG SET maxmemory 1");
    for (mode, limiter) in &limiters {
        let key = format!("{mode:?}");
        limiter.observe(&key, 429, [("retry-after", b"600".as_slice())]).await;
        assert_eq!(frozen(&server, key.as_str()), Duration::ZERO);
        let decision = limiter.check(&key, &slow(5), 1).await.unwrap();
        assert_eq!((decision.status, decision.origin), (Status::Frozen, Origin::Local), "{mode:?}");
        let refused = limiter.execute(&key, &slow(5), async || ()).await.unwrap_err();
        let limited = *refused.rate_limited().unwrap();
        assert!(limited.need_not_count() && limited.made_without_redis(), "{limited:?}");
        assert!(limited.retry_after.unwrap() > Duration::from_secs(590), "{limited:?}");
        assert!(limiter.wait_for_one(&key).await.unwrap().unwrap() > Duration::from_secs(590));
        let refused = limiter.acquire(&key, &slow(5), 1, Duration::from_secs(500)).await.unwrap_err();
        assert!(refused.rate_limited().unwrap().is_frozen(), "{refused}");
        let lease = limiter.lease(&key, &slow(5), 2);
        assert_eq!([lease.take(0).await.unwrap().status, lease.take(1).await.unwrap().status], [Status::Frozen; 2]);
        let both = MultiConsume::new().and(key.as_str(), slow(5), 1).and("new", slow(5), 1);
        let both = limiter.check_all(&both).await.unwrap();
        assert_eq!(
            (both.together.status, both.each[0].status, both.each[1].status),
            (Status::Frozen, Status::Frozen, Status::Ready)
        );
    }
    server.ask("CONFIG SET maxmemory 0");
    for (mode, limiter) in &limiters {
        let key = format!("{mode:?}");
        wait_until("Redis to hear of it", || frozen(&server, key.as_str()) > Duration::from_secs(550)).await;
        // And from then on it is Redis that says so.
        answered_by_redis(limiter, &key).await;
        assert_eq!(limiter.check(&key, &slow(5), 1).await.unwrap().status, Status::Frozen);
    }
}

#[tokio::test]
async fn a_short_penalty_that_was_never_told_is_waited_for() {
    let server = Server::start();
    let limiter = server.limiter(WhenAway::FailOpen);
    answered_by_redis(&limiter, "other").await;
    server.ask("CONFIG SET maxmemory 1");
    let start = Instant::now();
    limiter.observe("k", 429, [("retry-after-ms", b"700".as_slice())]).await;
    let decision = limiter.acquire("k", &slow(5), 1, Duration::from_secs(5)).await.unwrap();
    assert!(start.elapsed() >= MS(700), "{:?}", start.elapsed());
    assert_eq!(decision.origin, Origin::FailOpen);
}

#[tokio::test]
async fn where_nobody_can_say_whether_a_slot_is_good_the_mode_decides_and_says_so() {
    let server = Server::start();
    for (mode, origin) in [
        (WhenAway::FailClosed, Err(Origin::FailClosed)),
        (WhenAway::FailOpen, Ok(Origin::FailOpen)),
        (WhenAway::Local { share: 1.0 }, Ok(Origin::Local)),
    ] {
        let (limiter, key) = (server.limiter(mode), format!("{mode:?}"));
        answered_by_redis(&limiter, &key).await;
        let before = server.calls("tb.consume");
        let waiting = tokio::spawn({
            let (limiter, key) = (limiter.clone(), key.clone());
            async move { limiter.acquire(&key, &fast(), 1, Duration::from_secs(5)).await }
        });
        wait_until("a slot", || server.calls("tb.consume") > before).await;
        sleep(MS(30)).await; // the answer is on its way
        server.signal("-STOP");
        let told = waiting.await.unwrap();
        server.signal("-CONT");
        match (told, origin) {
            (Ok(decision), Ok(origin)) => assert_eq!(decision.origin, origin, "{mode:?}"),
            (Err(Error::RateLimited(limited)), Err(origin)) => {
                assert_eq!((limited.status, limited.origin), (Status::Unavailable, origin));
                assert!(limited.need_not_count());
            }
            (told, _) => panic!("{mode:?}: {told:?}"),
        }
        sleep(TIME_OUT).await; // it comes back
    }
}

#[tokio::test]
async fn a_runtime_without_timers_sends_what_a_process_observes() {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let limiter = RateLimiter::in_process();
            limiter.observe("k", 429, [("retry-after", b"60".as_slice())]).await;
            // Of the bucket, which has heard of it.
            let told = limiter.lease("k", &slow(5), 5).take(1).await.unwrap();
            assert_eq!(told.status, Status::Frozen);
            assert_eq!(limiter.check("k", &slow(5), 1).await.unwrap().status, Status::Frozen);
        });
    });
    thread.join().unwrap();
}

#[tokio::test]
async fn what_is_asked_of_a_lease_is_asked_of_the_bucket() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let lease = limiter.lease("k", &slow(100), 10);
    lease.take(1).await.unwrap();
    assert!(lease.take(0).await.unwrap().is_allowed());
    server.ask("TB.PENALISE k 60");
    assert_eq!(lease.take(0).await.unwrap().status, Status::Frozen);
    // And now it knows.
    assert_eq!((lease.held(), lease.take(1).await.unwrap().status), (0, Status::Frozen));
}

#[tokio::test]
async fn jitter_is_added_to_what_a_lease_and_a_question_tell() {
    let limiter = RateLimiter::in_process().with_jitter(Duration::from_secs(1_000_000));
    limiter.check("k", &slow(1), 1).await.unwrap();
    let lease = limiter.lease("k", &slow(1), 1);
    let mut waits = Vec::new();
    for _ in 0..20 {
        let told = [limiter.wait_for_one("k").await.unwrap(), lease.take(1).await.unwrap().wait];
        waits.push(told.map(Option::unwrap));
    }
    for place in 0..2 {
        assert!(waits.iter().all(|told| told[place] > Duration::from_secs(3590)), "{waits:?}");
        assert!(waits.iter().any(|told| told[place] > Duration::from_secs(100_000)), "{waits:?}");
    }
}

#[tokio::test]
async fn a_window_is_told_to_a_bucket_that_is_empty_all_the_time() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let left = || Peek::new("k").query(&mut server.connection()).unwrap().unwrap().vendor_remaining;
    let said = async |remaining: u32| {
        let field = format!("\"default\";r={remaining};t=3000");
        limiter.observe("k", 200, [("RateLimit", field.as_bytes())]).await;
    };
    let limit = Limit::per(1, MS(20)).unwrap();
    limiter.check("k", &limit, 1).await.unwrap();
    said(20).await;
    assert_eq!((left(), server.calls("tb.sync")), (Some(20), 1));
    // The server counts what it grants, so the same said again is no news; less is.
    limiter.acquire("k", &limit, 1, Duration::from_secs(5)).await.unwrap();
    for _ in 0..3 {
        said(19).await;
        said(20).await;
    }
    assert_eq!((left(), server.calls("tb.sync")), (Some(19), 1));
    said(12).await;
    assert_eq!((left(), server.calls("tb.sync")), (Some(12), 2));
    // What is given back counts back, so what was known is worth nothing.
    limiter.refund("k", 3).await.unwrap();
    said(12).await;
    assert_eq!(server.calls("tb.sync"), 3);
}
