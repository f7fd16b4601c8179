//! Leases: fewer commands, and the bounds on what they take too many or too few.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenbucket_client::{Buckets, Consume, Error, Limit, Local, Origin, RateLimiter, Redis, Request, Status, Tokens, WhenAway};

use crate::server::{Server, wait_until};

/// Within a test nothing refills.
fn slow(burst: u32) -> Limit {
    Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(burst).unwrap()
}

async fn limiter(server: &Server) -> RateLimiter<impl Buckets> {
    RateLimiter::new(Redis(server.multiplexed().await), WhenAway::FailOpen, Duration::from_secs(5))
}

/// What is left in Redis.
fn left(server: &Server, burst: u32) -> u64 {
    Consume::new("hot", slow(burst)).tokens(0).query(&mut server.connection()).unwrap().remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_costs_a_tenth_of_the_commands_and_grants_as_many() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    let lease = Arc::new(limiter.lease("hot", &slow(2000), 50).keep(Duration::from_secs(60)));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let lease = Arc::clone(&lease);
            tokio::spawn(async move {
                let mut granted = 0;
                for _ in 0..300 {
                    let decision = lease.take(1).await.unwrap();
                    assert!(!decision.made_without_redis());
                    granted += decision.allowed;
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.unwrap();
    }
    // 2400 were asked for, 2000 were there.
    assert_eq!(granted, 2000);
    let calls = server.calls("tb.consume");
    assert!(calls <= 60 && calls * 10 <= 2400, "{calls}");
    let denied = lease.take(1).await.unwrap();
    assert_eq!((denied.status, denied.origin), (Status::Empty, Origin::Lease));
    assert!(denied.wait.unwrap() > Duration::from_secs(3000), "{denied:?}");
}

#[tokio::test]
async fn what_is_not_spent_goes_back_when_idle_and_when_dropped() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    let lease = limiter.lease("hot", &slow(100), 20).keep(Duration::from_secs(1));
    for _ in 0..5 {
        assert!(lease.take(1).await.unwrap().is_allowed());
    }
    assert_eq!((lease.held(), left(&server, 100)), (15, 80));
    wait(|| left(&server, 100) == 95).await;
    assert_eq!(lease.held(), 0);

    assert!(lease.take(3).await.unwrap().is_allowed());
    assert_eq!((lease.held(), left(&server, 100)), (17, 75));
    drop(lease);
    wait(|| left(&server, 100) == 92).await;

    let lease = limiter.lease("hot", &slow(100), 20);
    lease.take(1).await.unwrap();
    lease.give_back().await;
    assert_eq!((lease.held(), left(&server, 100)), (0, 91));
    assert_eq!(server.calls("tb.refund"), 3);
}

/// Waits on the runtime, whose tasks are to do it.
async fn wait(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_lease_of_a_bucket_in_this_process_says_so() {
    let lease = RateLimiter::in_process().lease("hot", &slow(3), 2);
    for nth in 1..=5 {
        let decision = lease.take(1).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.origin), (nth <= 3, Origin::Local), "{nth}");
        assert!(decision.made_without_redis());
    }
}

#[tokio::test]
async fn more_than_a_batch_and_the_last_of_a_bucket_are_taken_as_they_are() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    let lease = limiter.lease("hot", &slow(50), 10).keep(Duration::from_millis(1));
    assert!(lease.take(35).await.unwrap().is_allowed());
    assert_eq!(left(&server, 50), 15);
    let lease = limiter.lease("hot", &slow(50), 10);
    assert!(lease.take(8).await.unwrap().is_allowed());
    // 2 held and 5 there: 7 of them are granted, 8 are not, and none is lost.
    assert_eq!(lease.take(8).await.unwrap().status, Status::Empty);
    assert_eq!((lease.held(), left(&server, 50)), (7, 0));
    assert!(lease.take(7).await.unwrap().is_allowed());
    assert!(!lease.take(1).await.unwrap().is_allowed());
}

/// Buckets in this process whose answers take a while.
#[derive(Clone)]
struct Slow(Arc<Local>);

impl Buckets for Slow {
    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let answer = self.0.answer(request);
        tokio::time::sleep(Duration::from_millis(400)).await;
        answer
    }
}

#[tokio::test]
async fn what_is_held_is_spent_once_though_a_large_call_counts_on_it() {
    let buckets = Slow(Arc::new(Local::new()));
    let limiter = RateLimiter::new(buckets.clone(), WhenAway::FailClosed, Duration::from_secs(5));
    let lease = limiter.lease("hot", &slow(100), 10).keep(Duration::from_secs(60));
    assert!(lease.take(1).await.unwrap().is_allowed());
    let other = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        lease.take(9).await.unwrap()
    };
    let (large, small) = tokio::join!(lease.take(25), other);
    assert!(large.unwrap().is_allowed() && small.is_allowed());
    let left = buckets.0.check("hot", &slow(100), 0).remaining;
    // 1 + 25 + 9 calls were made.
    assert_eq!(100 - left, 35 + lease.held());
    // Nor is it lost where nobody waits for the call any more.
    let held = lease.held();
    assert!(held > 0);
    assert!(tokio::time::timeout(Duration::from_millis(10), lease.take(25)).await.is_err());
    assert_eq!(lease.held(), held);
    // One that is denied gets none of it.
    assert!(!lease.take(99).await.unwrap().is_allowed());
    assert_eq!(lease.held(), held);
}

#[tokio::test]
async fn no_more_than_a_batch_is_ever_held() {
    let limiter = RateLimiter::in_process();
    let lease = limiter.lease("hot", &slow(14), 10);
    assert!(lease.take(1).await.unwrap().is_allowed());
    assert_eq!(lease.take(15).await.unwrap().status, Status::Empty);
    assert_eq!(lease.take(14).await.unwrap().status, Status::Empty);
    assert_eq!(lease.held(), 9);
    assert_eq!(lease.take(10).await.unwrap().allowed, 1);
    assert_eq!(lease.held(), 0);
}

#[test]
fn any_time_to_keep_will_do_and_no_runtime_is_needed() {
    let limit = slow(1).with_burst("0.5".parse::<Tokens>().unwrap()).unwrap();
    let lease = RateLimiter::in_process().lease("hot", &limit, 10).keep(Duration::MAX);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut take = |lease: &tokenbucket_client::Lease<Local>| match std::pin::pin!(lease.take(1)).poll(&mut context) {
        std::task::Poll::Ready(decision) => decision.unwrap(),
        std::task::Poll::Pending => panic!("it waits for nothing"),
    };
    assert_eq!(take(&lease).status, Status::Never);
    let lease = RateLimiter::in_process().lease("hot", &slow(9), 5);
    assert!(take(&lease).is_allowed());
}

#[tokio::test]
async fn a_penalty_voids_what_is_held() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    let lease = limiter.lease("hot", &slow(100), 20);
    lease.take(1).await.unwrap();
    let other = limiter.lease("other", &slow(100), 20);
    other.take(1).await.unwrap();
    limiter.observe("hot", 429, [("retry-after", b"60".as_slice())]).await;
    assert_eq!((lease.held(), other.held()), (0, 19));
    assert_eq!(lease.take(1).await.unwrap().status, Status::Frozen);
    drop(lease);
    // What the other held goes back, so one of this would have as well.
    drop(other);
    wait(|| server.calls("tb.refund") > 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.calls("tb.refund"), 1);
}

#[tokio::test]
async fn a_penalty_of_another_process_voids_what_is_held_once_it_is_heard_of() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    for tokens in [8, 15] {
        let key = format!("hot{tokens}");
        let lease = limiter.lease(&key, &slow(100), 10);
        assert!(lease.take(5).await.unwrap().is_allowed());
        server.ask(&format!("TB.PENALISE {key} 60"));
        assert_eq!(lease.take(tokens).await.unwrap().status, Status::Frozen);
        assert_eq!(lease.held(), 0);
        assert_eq!(lease.take(1).await.unwrap().status, Status::Frozen);
    }
}

#[tokio::test]
async fn a_denial_is_kept_for_its_wait_and_no_longer() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    let limit = Limit::per(1, Duration::from_millis(900)).unwrap();
    let lease = limiter.lease("hot", &limit, 10);
    assert!(lease.take(1).await.unwrap().is_allowed());
    let mut wait = Duration::ZERO;
    for _ in 0..50 {
        wait = lease.take(1).await.unwrap().wait.unwrap();
    }
    assert_eq!(server.calls("tb.consume"), 2);
    tokio::time::sleep(wait).await;
    assert!(lease.take(1).await.unwrap().is_allowed());
    // But not for longer than tokens are kept: another may give some back.
    let lease = limiter.lease("long", &slow(1), 10).keep(Duration::from_millis(50));
    lease.take(1).await.unwrap();
    assert!(!lease.take(1).await.unwrap().is_allowed());
    server.ask("TB.REFUND long 1");
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(lease.take(1).await.unwrap().is_allowed());
}

#[tokio::test]
async fn what_did_not_come_from_redis_is_never_given_to_it() {
    let mut server = Server::start();
    let local = server.limiter(WhenAway::Local { share: 1.0 });
    let open = server.limiter(WhenAway::FailOpen);
    server.kill();
    let lease = local.lease("hot", &slow(3), 10);
    for nth in 1..=4 {
        let decision = lease.take(1).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.origin, lease.held()), (nth <= 3, Origin::Local, 0));
    }
    let lease = open.lease("hot", &slow(3), 10);
    let decision = lease.take(1).await.unwrap();
    assert_eq!((decision.allowed, decision.origin, lease.held()), (1, Origin::FailOpen, 0));
    server.spawn();
    wait_until("the server to be back", || server.client().get_connection().is_ok());
    drop((lease, local));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.calls("tb.refund"), 0);
}

/// Over any stretch no more calls than capacity + rate · Δt + a batch for each lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stretch_has_more_than_a_batch_too_many() {
    let server = Server::start();
    let (burst, batch, leases) = (20.0, 10, 2);
    let limit = Limit::per_second(200).unwrap().with_burst(20).unwrap();
    let mut tasks = Vec::new();
    let start = Instant::now();
    for _ in 0..leases {
        let limiter = limiter(&server).await;
        tasks.push(tokio::spawn(async move {
            let lease = limiter.lease("hot", &limit, batch).keep(Duration::from_millis(100));
            let mut calls = Vec::new();
            let mut nth = 0_u64;
            while start.elapsed() < Duration::from_millis(1500) {
                let asked = start.elapsed();
                if lease.take(1).await.unwrap().is_allowed() {
                    calls.push((asked, start.elapsed()));
                }
                nth += 1;
                // Now and then idle, so that tokens are held and spent in a burst.
                let pause = if nth.is_multiple_of(40) { 60 } else { 1 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            calls
        }));
    }
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.unwrap());
    }
    calls.sort();
    assert!(calls.len() > 150, "{}", calls.len());
    let most = burst + f64::from(batch * leases);
    // From when the first was asked for until all were there: a stall between the two
    // only makes a stretch longer than it was.
    for (first, (from, _)) in calls.iter().enumerate() {
        let mut until = Duration::ZERO;
        for (last, (_, there)) in calls.iter().enumerate().skip(first) {
            until = until.max(*there);
            let granted = (last - first + 1) as f64;
            let allowed = most + 200.0 * (until - *from).as_secs_f64();
            assert!(granted <= allowed + 1.0, "{granted} calls from {from:?} to {until:?}");
        }
    }
}

const HOLDER: &str = "TOKENBUCKET_TEST_HOLDER_PORT";

/// Not a test of its own: what `a_killed_holder_loses_at_most_its_batch` kills.
#[tokio::test]
async fn holder() {
    let Ok(port) = std::env::var(HOLDER) else { return };
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let limiter = RateLimiter::new(Redis(connection), WhenAway::FailClosed, Duration::from_secs(5));
    let lease = limiter.lease("hot", &slow(100), 30).keep(Duration::from_secs(60));
    for _ in 0..7 {
        assert!(lease.take(1).await.unwrap().is_allowed());
    }
    println!("\nholds {}", lease.held());
    std::io::stdout().flush().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_killed_holder_loses_at_most_its_batch() {
    let server = Server::start();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leases::holder", "--nocapture"])
        .env(HOLDER, server.port.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map_while(Result::ok);
    let held = lines.find_map(|line| line.strip_prefix("holds ").and_then(|held| held.parse::<u64>().ok()));
    holder.kill().unwrap();
    holder.wait().unwrap();
    // 7 were spent, 23 are lost, and not one more.
    assert_eq!(held, Some(23));
    assert_eq!(left(&server, 100), 70);
    assert_eq!(server.calls("tb.refund"), 0);
    // The others go on with the rest: never more in all than there were.
    let limiter = limiter(&server).await;
    let lease = limiter.lease("hot", &slow(100), 30);
    let mut granted = 0;
    for _ in 0..100 {
        granted += lease.take(1).await.unwrap().allowed;
    }
    assert_eq!(granted, 70);
}

#[tokio::test]
async fn a_request_that_is_wrong_is_an_error() {
    let server = Server::start();
    server.ask("SET hot x");
    let limiter = limiter(&server).await;
    let error = limiter.lease("hot", &slow(10), 5).take(1).await.unwrap_err();
    assert!(matches!(error, Error::Redis(_)), "{error}");
}
