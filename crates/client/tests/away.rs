//! Redis is away in every way it can be, in each of the modes that a caller can choose.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use tokenbucket_client::{Buckets, Consume, Decision, Error, Limit, Origin, RateLimiter, Request as _, Status, WhenAway};

use crate::server::{Server, TIME_OUT, wait_until};

/// Within a test nothing refills; half of it is two tokens.
fn limit() -> Limit {
    Limit::per(4, Duration::from_secs(4 * 3600)).unwrap()
}

const MODES: [WhenAway; 3] = [WhenAway::FailOpen, WhenAway::FailClosed, WhenAway::Local { share: 0.5 }];

/// A limiter for each mode, each of which has been answered by Redis once.
async fn limiters(server: &Server) -> Vec<(WhenAway, RateLimiter<impl Buckets>)> {
    let mut limiters = Vec::new();
    for mode in MODES {
        let limiter = server.limiter(mode);
        let decision = limiter.check(format!("{mode:?}"), &limit(), 1).await.unwrap();
        assert!(decision.is_allowed() && !decision.made_without_redis());
        assert_eq!(decision.origin, Origin::Redis);
        limiters.push((mode, limiter));
    }
    limiters
}

/// A decision that did not wait for a Redis that never answers.
async fn decide(limiter: &RateLimiter<impl Buckets>, key: &str) -> Decision {
    let asked = Instant::now();
    let decision = limiter.check(key, &limit(), 1).await.unwrap();
    assert!(asked.elapsed() < TIME_OUT + Duration::from_secs(5), "{:?}", asked.elapsed());
    decision
}

/// Each mode does what it says, and says so.
async fn assert_away(limiters: &[(WhenAway, RateLimiter<impl Buckets>)], key: &str) {
    assert_no_writes(limiters, key).await;
    for (mode, limiter) in limiters {
        let wait = limiter.wait_for_one(format!("{key}3")).await.unwrap().unwrap();
        assert_eq!(wait.is_zero(), *mode != WhenAway::FailClosed, "{mode:?}");
    }
}

/// The same where it is only away for those who write.
async fn assert_no_writes(limiters: &[(WhenAway, RateLimiter<impl Buckets>)], key: &str) {
    for (mode, limiter) in limiters {
        for nth in 1..=3 {
            let decision = decide(limiter, key).await;
            assert!(decision.made_without_redis(), "{mode:?}: {decision:?}");
            let expected = match mode {
                WhenAway::FailOpen => (Origin::FailOpen, true, Status::Granted),
                WhenAway::FailClosed => (Origin::FailClosed, false, Status::Unavailable),
                _ if nth < 3 => (Origin::Local, true, Status::Granted),
                _ => (Origin::Local, false, Status::Empty),
            };
            assert_eq!((decision.origin, decision.is_allowed(), decision.status), expected, "{mode:?}");
            if !decision.is_allowed() {
                assert!(decision.wait.is_some_and(|wait| !wait.is_zero()), "{mode:?}: {decision:?}");
            }
        }
        let called = limiter.execute(format!("{key}2"), &limit(), async || 7).await;
        match (mode, called) {
            (WhenAway::FailClosed, Err(Error::RateLimited(limited))) => {
                assert_eq!((limited.status, limited.retry_after), (Status::Unavailable, Some(Duration::from_secs(1))));
            }
            (WhenAway::FailClosed, called) => panic!("{called:?}"),
            (_, called) => assert_eq!(called.unwrap(), 7, "{mode:?}"),
        }
    }
}

/// All are answered by Redis again, after what a connection needs to come back.
async fn assert_back(limiters: &[(WhenAway, RateLimiter<impl Buckets>)]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for (mode, limiter) in limiters {
        while decide(limiter, "back").await.origin != Origin::Redis {
            assert!(Instant::now() < deadline, "{mode:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_closed_port() {
    let mut server = Server::start();
    let limiters = limiters(&server).await;
    server.kill();
    assert_away(&limiters, "k").await;
    // And one that has never been open.
    let late: Vec<_> = MODES.into_iter().map(|mode| (mode, server.limiter(mode))).collect();
    assert_away(&late, "k").await;
    server.spawn();
    assert_back(&limiters).await;
    assert_back(&late).await;
}

#[tokio::test]
async fn a_stopped_process() {
    let server = Server::start();
    let limiters = limiters(&server).await;
    server.signal("-STOP");
    assert_away(&limiters, "k").await;
    server.signal("-CONT");
    assert_back(&limiters).await;
}

#[tokio::test]
async fn a_busy_script() {
    let server = Server::with(&["busy-reply-threshold 50"]);
    let limiters = limiters(&server).await;
    let mut busy = server.connection();
    let script = thread::spawn(move || {
        let _: redis::RedisResult<()> = redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut busy);
    });
    let ping = || redis::cmd("PING").query::<String>(&mut server.connection());
    wait_until("the script to be busy", || ping().is_err_and(|error| error.code() == Some("BUSY")));
    assert_away(&limiters, "k").await;
    server.ask("SCRIPT KILL");
    script.join().unwrap();
    assert_back(&limiters).await;
}

#[tokio::test]
async fn a_server_that_loads_its_data() {
    let mut server = Server::with(&["loading-process-events-interval-bytes 1024", "key-load-delay 500"]);
    server.ask("DEBUG POPULATE 100000 key 100");
    let limiters = limiters(&server).await;
    server.ask("SAVE");
    server.kill();
    server.spawn();
    wait_until("the server to load", || {
        let Ok(mut connection) = server.client().get_connection() else { return false };
        let loading = |error: redis::RedisError| error.code() == Some("LOADING");
        redis::cmd("GET").arg("x").query::<Option<String>>(&mut connection).is_err_and(loading)
    });
    assert_away(&limiters, "k").await;
    server.ask("CONFIG SET key-load-delay 0");
    assert_back(&limiters).await;
    // What was loaded goes on: one token was taken before.
    assert_eq!(decide(&limiters[0].1, "FailOpen").await.remaining, 2);
}

#[tokio::test]
async fn no_memory_for_a_new_bucket() {
    let server = Server::start();
    let limiters = limiters(&server).await;
    server.ask("CONFIG SET maxmemory 1");
    assert_no_writes(&limiters, "new").await;
    // One that exists goes on limiting.
    for (mode, limiter) in &limiters {
        assert_eq!(decide(limiter, &format!("{mode:?}")).await.origin, Origin::Redis);
    }
    server.ask("CONFIG SET maxmemory 0");
    assert_back(&limiters).await;
}

fn role(server: &Server) -> String {
    let Value::Array(role) = server.ask("ROLE") else { panic!("no role") };
    redis::from_redis_value(role.into_iter().next().unwrap()).unwrap()
}

fn replicate(replica: &Server, primary: &Server) {
    replica.ask(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
    wait_until("the replica to be online", || {
        let Value::BulkString(info) = primary.ask("INFO replication") else { return false };
        String::from_utf8_lossy(&info).contains("state=online")
    });
}

#[tokio::test]
async fn a_read_only_replica() {
    let (primary, replica) = (Server::start(), Server::start());
    let limiters = limiters(&replica).await;
    replicate(&replica, &primary);
    assert_no_writes(&limiters, "k").await;
    replica.ask("REPLICAOF NO ONE");
    assert_back(&limiters).await;
}

#[tokio::test]
async fn a_failover() {
    let (first, second) = (Server::start(), Server::start());
    replicate(&second, &first);
    let before = limiters(&first).await;
    // The pause lasts as long as the other is not in step, and it is not while it is stopped.
    second.signal("-STOP");
    first.ask("SET behind x");
    first.ask(&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 60000", second.port));
    wait_until("the pause", || {
        let Value::BulkString(info) = first.ask("INFO replication") else { return false };
        String::from_utf8_lossy(&info).contains("master_failover_state:waiting-for-sync")
    });
    assert_no_writes(&before, "paused").await;
    second.signal("-CONT");
    wait_until("the roles to change", || role(&first) == "slave" && role(&second) == "master");
    assert_no_writes(&before, "k").await;
    // Whoever asks the new primary finds what the old one knew.
    for mode in MODES {
        let limiter = second.limiter(mode);
        assert_eq!(decide(&limiter, &format!("{mode:?}")).await.remaining, 2);
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_an_error_in_every_mode() {
    let server = Server::start();
    server.ask("SET string x");
    let bare = Server::bare(&[]);
    for mode in MODES {
        let wrong = server.limiter(mode).check("string", &limit(), 1).await;
        assert!(wrong.is_err_and(|error| error.to_string().contains("WRONGTYPE")));
        let not_loaded = bare.limiter(mode).check("k", &limit(), 1).await;
        assert!(matches!(not_loaded, Err(Error::NotLoaded)), "{mode:?}");
    }
}

#[tokio::test]
async fn the_fallback_has_heard_of_a_penalty() {
    let mut server = Server::start();
    let limiter = server.limiter(WhenAway::Local { share: 0.5 });
    limiter.observe("k", 429, [("retry-after", b"60".as_slice())]).await;
    let frozen = decide(&limiter, "k").await;
    assert_eq!((frozen.origin, frozen.status), (Origin::Redis, Status::Frozen));
    server.kill();
    let frozen = decide(&limiter, "k").await;
    assert_eq!((frozen.origin, frozen.status), (Origin::Local, Status::Frozen));
    // One that comes while Redis is away as well.
    limiter.observe("other", 429, [("retry-after", b"60".as_slice())]).await;
    assert_eq!(decide(&limiter, "other").await.status, Status::Frozen);
}

#[tokio::test]
async fn a_share_never_says_never_where_the_whole_does_not() {
    let mut server = Server::start();
    server.kill();
    let limiter = server.limiter(WhenAway::Local { share: 0.01 });
    assert!(limiter.check("k", &limit(), 4).await.unwrap().is_allowed());
    assert_eq!(limiter.check("k", &limit(), 4).await.unwrap().status, Status::Empty);
    assert_eq!(limiter.check("k", &limit(), 5).await.unwrap().status, Status::Never);
}

#[tokio::test]
async fn a_blocking_connection_tells_the_same() {
    let mut server = Server::start();
    let mut connection = server.connection();
    server.kill();
    let error = Consume::new("k", limit()).query(&mut connection).unwrap_err();
    assert!(error.is_redis_away(), "{error}");
}
