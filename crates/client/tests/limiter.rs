//! Waiting, calling and learning, with buckets in Redis and in this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokenbucket_client::headers::{Preset, policy_key};
use tokenbucket_client::{Buckets, Error, Limit, MultiConsume, Origin, Peek, RateLimiter, Request as _, Status, WhenAway};

use crate::limits::{fast, in_redis, slow};
use crate::server::{Server, TIME_OUT};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Longer than a loaded machine stalls: what takes that long waits for something.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_check_takes_or_says_when() {
    let server = Server::start();
    check(&in_redis(&server).await, Origin::Redis).await;
    check(&RateLimiter::in_process(), Origin::Local).await;
}

async fn check(limiter: &RateLimiter<impl Buckets>, origin: Origin) {
    let decision = limiter.check("check", &slow(3), 2).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.remaining, decision.origin), (true, 1, origin));
    assert_eq!(decision.made_without_redis(), origin == Origin::Local);
    let decision = limiter.check("check", &slow(3), 2).await.unwrap();
    assert_eq!((decision.status, decision.remaining), (Status::Empty, 1));
    assert!(decision.wait.unwrap() > Duration::from_secs(3500));
}

#[tokio::test]
async fn tokens_are_asked_for_and_given_back() {
    let mut server = Server::start();
    let limiter = in_redis(&server).await;
    ask_and_refund(&limiter).await;
    ask_and_refund(&RateLimiter::in_process()).await;
    // What Redis gave does not go to the fallback.
    let limiter = server.limiter(WhenAway::Local { share: 1.0 });
    server.kill();
    assert_eq!(limiter.check("k", &slow(3), 3).await.unwrap().origin, Origin::Local);
    assert!(limiter.refund("k", 3).await.unwrap_err().is_redis_away());
    assert_eq!(limiter.check("k", &slow(3), 0).await.unwrap().remaining, 0);
}

async fn ask_and_refund(limiter: &RateLimiter<impl Buckets>) {
    assert_eq!(limiter.refund("full", 1).await.unwrap(), None);
    for tokens in [0, 2, 0] {
        assert!(limiter.check("refund", &slow(3), tokens).await.unwrap().is_allowed());
    }
    assert_eq!(limiter.check("refund", &slow(3), 0).await.unwrap().remaining, 1);
    assert_eq!(limiter.refund("refund", 1).await.unwrap(), Some(2));
}

#[tokio::test]
async fn several_buckets_give_tokens_together() {
    let mut server = Server::start();
    check_all(&in_redis(&server).await, Origin::Redis).await;
    check_all(&RateLimiter::in_process(), Origin::Local).await;
    // Where Redis is away each mode says its own, and of half a share there is half.
    let half = server.limiter(WhenAway::Local { share: 0.5 });
    let (open, closed) = (server.limiter(WhenAway::FailOpen), server.limiter(WhenAway::FailClosed));
    server.kill();
    check_all(&half, Origin::Local).await;
    let both = MultiConsume::new().and("a", slow(3), 1).and("b", slow(9), 1);
    for (limiter, allowed, status, origin) in
        [(open, 1, Status::Granted, Origin::FailOpen), (closed, 0, Status::Unavailable, Origin::FailClosed)]
    {
        let decision = limiter.check_all(&both).await.unwrap();
        for told in decision.each.iter().chain([&decision.together]) {
            assert_eq!((told.allowed, told.status, told.origin), (allowed, status, origin));
        }
        assert_eq!(decision.each.len(), 2);
    }
}

async fn check_all(limiter: &RateLimiter<impl Buckets>, origin: Origin) {
    // A fallback of half a share has 2 and 4.
    let both = MultiConsume::new().and("{all}a", slow(4), 2).and("{all}b", slow(8), 2);
    let grants = if limiter.check_all(&both).await.unwrap().each[0].remaining == 0 { 1 } else { 2 };
    for nth in 2..=grants {
        assert!(limiter.check_all(&both).await.unwrap().together.is_allowed(), "{nth}");
    }
    let denied = limiter.check_all(&both).await.unwrap();
    assert_eq!((denied.together.status, denied.together.origin), (Status::Empty, origin));
    assert_eq!(denied.each.iter().map(|told| told.status).collect::<Vec<_>>(), [Status::Empty, Status::Ready]);
    assert_eq!(denied.each[1].remaining, if grants == 1 { 2 } else { 4 });
    let spread = limiter.clone().with_jitter(Duration::from_secs(100_000));
    let mut waits = Vec::new();
    for _ in 0..20 {
        waits.push(spread.check_all(&both).await.unwrap().together.wait.unwrap());
    }
    assert!(waits.iter().all(|wait| *wait + MS(5000) > denied.together.wait.unwrap()), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait > Duration::from_secs(20_000)), "{waits:?}");
}

#[tokio::test]
async fn a_call_is_made_with_a_token_and_never_without() {
    let server = Server::start();
    execute(&in_redis(&server).await).await;
    execute(&RateLimiter::in_process()).await;
}

async fn execute(limiter: &RateLimiter<impl Buckets>) {
    let calls = AtomicU32::new(0);
    let call = async || calls.fetch_add(1, Ordering::Relaxed);
    assert_eq!(limiter.execute("execute", &slow(1), &call).await.unwrap(), 0);
    let error = limiter.execute("execute", &slow(1), &call).await.unwrap_err();
    let limited = error.rate_limited().unwrap();
    assert_eq!((limited.status, limited.is_frozen()), (Status::Empty, false));
    assert!(limited.retry_after.unwrap() > Duration::from_secs(3500));
    assert!(error.to_string().starts_with("rate limited (empty), try again in 3"), "{error}");
    // The vendor's doing is told apart, so that a queue need not count the attempt.
    limiter.observe("execute", 429, [("Retry-After", b"7200".as_slice())]).await;
    let error = limiter.execute("execute", &slow(1), &call).await.unwrap_err();
    assert!(error.rate_limited().unwrap().is_frozen(), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_acquired_slot_has_come_when_it_returns() {
    let server = Server::start();
    acquire(&in_redis(&server).await).await;
    acquire(&RateLimiter::in_process()).await;
}

async fn acquire(limiter: &RateLimiter<impl Buckets>) {
    let start = Instant::now();
    assert_eq!(limiter.acquire("acquire", &fast(), 1, MS(2500)).await.unwrap().status, Status::Granted);
    assert_eq!(limiter.acquire("acquire", &fast(), 1, MS(2500)).await.unwrap().status, Status::Reserved);
    // Less than a period, by the bit of it that passed between the two.
    assert!(start.elapsed() >= MS(499), "{:?}", start.elapsed());
    // Two who ask at the same moment do not get the same slot, but the third and the fourth.
    let limit = fast();
    let both = async || {
        let decision = limiter.acquire("acquire", &limit, 1, MS(2500)).await.unwrap();
        // What was slept is not to be slept again.
        assert_eq!((decision.wait, decision.status), (Some(Duration::ZERO), Status::Reserved));
        start.elapsed()
    };
    let (a, b) = tokio::join!(both(), both());
    assert!(a.max(b) >= MS(1499), "{a:?} {b:?}");
    let error = limiter.acquire("acquire", &fast(), 1, MS(1)).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(limited) if limited.status == Status::Empty), "{error}");
    let error = limiter.acquire("acquire", &fast(), 2, MS(2500)).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(limited) if limited.retry_after.is_none()), "{error}");
}

#[tokio::test]
async fn a_slot_that_a_penalty_has_voided_is_reserved_anew() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    limiter.check("k", &fast(), 1).await.unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k", &fast(), 1, Duration::from_secs(5)).await }
    });
    tokio::time::sleep(MS(50)).await;
    limiter.observe("k", 429, [("retry-after-ms", b"1500".as_slice())]).await;
    let decision = waiting.await.unwrap().unwrap();
    assert_eq!(decision.status, Status::Reserved);
    // The thaw, and then a token has to come in.
    assert!(start.elapsed() >= MS(2040), "{:?}", start.elapsed());
    // Reserved, asked again, reserved anew, asked again; and the check.
    assert_eq!(server.calls("tb.consume"), 5);
}

#[tokio::test]
async fn a_near_slot_is_not_asked_for_again() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let limit = Limit::per(1, MS(80)).unwrap();
    limiter.check("k", &limit, 1).await.unwrap();
    limiter.acquire("k", &limit, 1, MS(500)).await.unwrap();
    assert_eq!(server.calls("tb.consume"), 2);
}

#[tokio::test]
async fn a_new_slot_has_to_lie_within_what_is_left_of_the_wait() {
    let limiter = RateLimiter::in_process();
    limiter.check("k", &fast(), 1).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k", &fast(), 1, MS(2100)).await }
    });
    tokio::time::sleep(MS(20)).await;
    // The next slot is 2.5 s after the start: too late, though less than 2.1 s from now
    // when the first one has come.
    limiter.observe("k", 429, [("retry-after-ms", b"2000".as_slice())]).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.rate_limited().unwrap().is_frozen(), "{error}");
}

#[tokio::test]
async fn jitter_only_ever_adds() {
    let exact = RateLimiter::in_process();
    let spread = RateLimiter::in_process().with_jitter(Duration::from_secs(100));
    exact.check("k", &slow(1), 1).await.unwrap();
    spread.check("k", &slow(1), 1).await.unwrap();
    let least = exact.check("k", &slow(1), 1).await.unwrap().wait.unwrap();
    let mut waits = Vec::new();
    for _ in 0..50 {
        let wait = spread.check("k", &slow(1), 1).await.unwrap().wait.unwrap();
        assert!(wait + MS(5000) >= least && wait <= least + Duration::from_secs(100), "{wait:?} {least:?}");
        waits.push(wait);
        let refused = spread.execute("k", &slow(1), async || ()).await.unwrap_err();
        assert!(refused.rate_limited().unwrap().retry_after.unwrap() + MS(5000) >= least);
    }
    waits.sort();
    assert!(waits[49] - waits[0] > Duration::from_secs(30), "{waits:?}");
    // What is granted now is granted now.
    assert_eq!(spread.check("other", &slow(1), 1).await.unwrap().wait, Some(Duration::ZERO));
    assert_eq!(spread.check("k", &slow(1), 2).await.unwrap().wait, None);
}

/// The time that the sleep takes is skipped; the buckets' clock is the real one.
#[tokio::test(start_paused = true)]
async fn a_near_slot_that_jitter_moved_far_away_is_asked_for_again() {
    let limiter = RateLimiter::in_process().with_jitter(Duration::from_secs(60 * 60 * 24));
    let limit = Limit::per(1, MS(90)).unwrap();
    for key in 0..20 {
        let key = key.to_string();
        limiter.check(&key, &limit, 1).await.unwrap();
        let calls = async {
            tokio::time::sleep(MS(20)).await;
            limiter.observe(&key, 429, [("retry-after", b"172800".as_slice())]).await;
        };
        let (slot, ()) = tokio::join!(limiter.acquire(&key, &limit, 1, MS(500)), calls);
        // On a machine that stalled since the check the token is there at once.
        if slot.as_ref().is_ok_and(|slot| slot.status == Status::Granted) {
            continue;
        }
        assert!(slot.unwrap_err().rate_limited().unwrap().is_frozen());
        return;
    }
    panic!("no slot was ever ahead");
}

#[tokio::test]
async fn a_429_with_nothing_in_it_uses_the_default() {
    let limiter =
        RateLimiter::in_process().with_default_penalty(Duration::from_secs(30)).with_penalty_cap(Duration::from_secs(40));
    limiter.observe("k", 429, []).await;
    let wait = limiter.wait_for_one("k").await.unwrap().unwrap();
    assert!(wait > Duration::from_secs(29) && wait <= Duration::from_secs(30), "{wait:?}");
    limiter.observe("k", 429, [("retry-after", b"4000".as_slice())]).await;
    let wait = limiter.wait_for_one("k").await.unwrap().unwrap();
    assert!(wait > Duration::from_secs(39) && wait <= Duration::from_secs(40), "{wait:?}");
}

#[tokio::test]
async fn the_wait_for_one_takes_nothing() {
    let server = Server::start();
    wait_for_one(&in_redis(&server).await).await;
    wait_for_one(&RateLimiter::in_process()).await;
}

async fn wait_for_one(limiter: &RateLimiter<impl Buckets>) {
    assert_eq!(limiter.wait_for_one("one").await.unwrap(), Some(Duration::ZERO));
    for _ in 0..2 {
        limiter.check("one", &slow(2), 1).await.unwrap();
    }
    for _ in 0..3 {
        let wait = limiter.wait_for_one("one").await.unwrap().unwrap();
        assert!(wait > Duration::from_secs(3590) && wait <= Duration::from_secs(3600), "{wait:?}");
    }
    // Before anybody consumed there is only what the vendor said.
    limiter.observe("bare", 200, [("ratelimit", b"\"d\";r=0;t=50".as_slice())]).await;
    let wait = limiter.wait_for_one("bare").await.unwrap().unwrap();
    assert!(wait > Duration::from_secs(49) && wait <= Duration::from_secs(50), "{wait:?}");
}

fn headers<'h>(remaining: &'h str, reset: &'h str) -> [(&'static str, &'h [u8]); 2] {
    [("X-RateLimit-Remaining", remaining.as_bytes()), ("X-RateLimit-Reset", reset.as_bytes())]
}

#[tokio::test]
async fn that_a_window_is_used_up_is_told_once_to_a_bucket_that_is_merely_empty() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let limit = Limit::per(1, Duration::from_secs(600)).unwrap(); // filled long before the reset
    limiter.check("vendor", &limit, 1).await.unwrap();
    let used_up = [("RateLimit", b"\"default\";r=0;t=3000".as_slice())];
    for _ in 0..3 {
        limiter.observe("vendor", 200, used_up).await;
    }
    assert_eq!(server.calls("tb.sync"), 1);
    assert_eq!(limiter.check("vendor", &limit, 1).await.unwrap().status, Status::Window);
}

#[tokio::test]
async fn a_sync_is_sent_only_where_less_is_left_than_was_known() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    assert_eq!(limiter.check("k", &slow(100), 1).await.unwrap().remaining, 99);
    for (remaining, sent, left) in
        [("99", 0, 99), ("5000", 0, 99), ("98.5", 1, 98), ("98", 1, 98), ("40", 2, 40), ("41", 2, 40), ("0", 3, 0)]
    {
        limiter.observe("k", 200, [("x-ratelimit-remaining", remaining.as_bytes())]).await;
        assert_eq!(server.calls("tb.sync"), sent, "{remaining}");
        let tokens = Peek::new("k").query(&mut server.connection()).unwrap().unwrap().tokens.unwrap();
        assert!((f64::from(left)..f64::from(left) + 1.0).contains(&tokens), "{remaining}: {tokens}");
    }
    // What comes back is known as well: 6 are not fewer than 5, but than 15.
    for (key, back, sent) in [("r", 0, 0), ("refunded", 10, 1)] {
        limiter.check(key, &slow(100), 95).await.unwrap();
        limiter.refund(key, back).await.unwrap();
        limiter.observe(key, 200, [("x-ratelimit-remaining", b"6".as_slice())]).await;
        assert_eq!(server.calls("tb.sync"), 3 + sent, "{key}");
    }
    // Of a bucket that this process knows nothing of everything is news.
    limiter.observe("unknown", 200, [("x-ratelimit-remaining", b"4000".as_slice())]).await;
    assert_eq!(server.calls("tb.sync"), 5);
    // A response that says nothing sends nothing.
    limiter.observe("k", 200, [("content-type", b"text/plain".as_slice())]).await;
    limiter.observe("k", 500, []).await;
    assert_eq!((server.calls("tb.sync"), server.calls("tb.penalise")), (5, 0));
}

#[tokio::test]
async fn a_window_is_sent_with_its_reset_and_the_time_to_full_is_not() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let soon = (std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 100).to_string();
    limiter.observe("window", 200, headers("5", &soon)).await;
    limiter.observe("full", 200, headers("5", "100")).await;
    let read = |key: &str| Peek::new(key).query(&mut server.connection()).unwrap().unwrap();
    let window = read("window");
    assert_eq!(window.vendor_remaining, Some(5));
    assert!(window.vendor_reset.unwrap() > Duration::from_secs(97), "{window:?}");
    assert_eq!(read("full").vendor_reset, None);
    assert_eq!(limiter.check("full", &slow(100), 0).await.unwrap().remaining, 5);
}

#[tokio::test]
async fn each_policy_goes_to_its_own_bucket_and_the_tightest_to_the_key() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    let fields = [
        ("RateLimit", b"\"burst\";r=50;t=30, \"day/x\";r=3;t=7200".as_slice()),
        ("RateLimit-Policy", b"\"burst\";q=100, \"day/x\";q=1000"),
    ];
    limiter.observe("vendor", 200, fields).await;
    let left =
        |key: Vec<u8>| Peek::new(key).query(&mut server.connection()).unwrap().and_then(|reading| reading.vendor_remaining);
    assert_eq!(left(b"{vendor}:burst".to_vec()), Some(50));
    assert_eq!(left(b"{vendor}:day/x".to_vec()), Some(3));
    assert_eq!(left(b"vendor".to_vec()), Some(3));
    // A key with a hash tag keeps it.
    assert_eq!(policy_key(b"{tenant}vendor", "day"), b"{tenant}vendor:day");
    assert_eq!(policy_key(b"a{}b", "day"), b"{a{}b}:day");
}

#[tokio::test]
async fn a_limit_in_another_unit_is_none_of_the_bucket_of_requests() {
    let server = Server::start();
    let limiter = in_redis(&server).await.with_preset(Preset::OpenAi);
    let fields = [
        ("x-ratelimit-remaining-requests", b"50".as_slice()),
        ("x-ratelimit-limit-requests", b"60"),
        ("x-ratelimit-remaining-tokens", b"0"),
        ("x-ratelimit-limit-tokens", b"150000"),
    ];
    limiter.observe("ai", 200, fields).await;
    let limit = |key: &str| Peek::new(key).query(&mut server.connection()).unwrap().unwrap().vendor_limit;
    assert_eq!([limit("ai"), limit("{ai}:requests"), limit("{ai}:tokens")], [None, Some(60), Some(150_000)]);
    assert_eq!(limiter.check("ai", &slow(60), 0).await.unwrap().remaining, 0);
}

#[tokio::test]
async fn a_preset_says_what_its_vendor_means() {
    let limiter = RateLimiter::in_process().with_preset(Preset::GitHub);
    limiter.observe("k", 403, [("retry-after", b"30".as_slice())]).await;
    assert_eq!(limiter.check("k", &slow(5), 1).await.unwrap().status, Status::Frozen);
}

#[tokio::test]
async fn a_429_with_nothing_in_it_uses_what_the_vendor_asks_for() {
    let limiter = RateLimiter::in_process().with_preset(Preset::GitHub);
    limiter.observe("k", 429, []).await;
    let wait = limiter.wait_for_one("k").await.unwrap().unwrap();
    assert!(wait > Duration::from_secs(59) && wait <= Duration::from_secs(60), "{wait:?}");
    let limiter = limiter.with_default_penalty(Duration::from_secs(5));
    limiter.observe("own", 429, []).await;
    let wait = limiter.wait_for_one("own").await.unwrap().unwrap();
    assert!(wait <= Duration::from_secs(5), "{wait:?}");
    let limiter = RateLimiter::in_process();
    limiter.observe("none", 429, []).await;
    let wait = limiter.wait_for_one("none").await.unwrap().unwrap();
    assert!(!wait.is_zero() && wait <= Duration::from_secs(1), "{wait:?}");
}

#[tokio::test]
async fn observing_neither_delays_nor_fails() {
    let server = Server::start();
    let limiter = server.limiter(WhenAway::FailClosed);
    limiter.check("k", &slow(5), 1).await.unwrap();
    server.signal("-STOP");
    // As long as each waited for its answer they would take the time-out each.
    let (start, count) = (Instant::now(), 200);
    for _ in 0..count {
        limiter.observe("k", 429, [("retry-after", b"60".as_slice())]);
    }
    assert!(start.elapsed() < TIME_OUT, "{:?}", start.elapsed());
    // Who awaits it waits for the time-out at most, though there is no answer, and hears of
    // no error.
    tokio::time::timeout(PATIENCE, limiter.observe("k", 429, [])).await.unwrap();
    server.signal("-CONT");
}

#[tokio::test]
async fn what_is_observed_is_sent_though_nobody_awaits_it() {
    let server = Server::start();
    let limiter = in_redis(&server).await;
    drop(limiter.observe("k", 429, [("retry-after", b"60".as_slice())]));
    let deadline = Instant::now() + Duration::from_secs(5);
    while server.calls("tb.penalise") == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(MS(5)).await;
    }
}

#[test]
fn outside_of_a_runtime_it_is_sent_when_awaited() {
    let limiter = RateLimiter::in_process();
    let observed = limiter.observe("k", 429, [("retry-after", b"60".as_slice())]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bucket = async || limiter.clone().lease("k", &slow(5), 1).take(1).await.unwrap();
        // This process obeys it before.
        assert_eq!(limiter.check("k", &slow(5), 1).await.unwrap().status, Status::Frozen);
        observed.await;
        assert_eq!(bucket().await.status, Status::Frozen);
    });
}
