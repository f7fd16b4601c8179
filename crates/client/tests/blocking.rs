//! Waiting on the server, and going away meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use tokenbucket_client::{BlockingConsume, Consume, Error, Limit, Penalise, Refund, Request as _, Status};

use crate::server::{Server, wait_until};

const HOUR: Duration = Duration::from_secs(3600);

/// Within a test nothing refills.
fn slow(burst: u32) -> Limit {
    Limit::per(1, HOUR).unwrap().with_burst(burst).unwrap()
}

/// How many clients wait.
fn waiting(server: &Server) -> u64 {
    let Value::BulkString(info) = server.ask("INFO clients") else { panic!("no INFO") };
    let info = String::from_utf8(info).unwrap();
    let count = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    count.unwrap().parse().unwrap()
}

#[test]
fn a_turn_that_comes_is_told_and_one_that_does_not_is_not_waited_for() {
    let server = Server::start();
    let mut connection = server.connection();
    let limit = Limit::per(1, Duration::from_millis(500)).unwrap();
    let start = Instant::now();
    for _ in 0..2 {
        let decision = BlockingConsume::new("k", limit).query(&mut connection).unwrap();
        assert_eq!((decision.allowed, decision.wait, decision.status), (1, Some(Duration::ZERO), Status::Granted));
    }
    assert!(start.elapsed() >= Duration::from_millis(499), "{:?}", start.elapsed());

    Consume::new("slow", slow(1)).query(&mut connection).unwrap();
    for time_out in [Duration::ZERO, Duration::from_millis(300)] {
        let start = Instant::now();
        let denied = BlockingConsume::new("slow", slow(1)).time_out(time_out).query(&mut connection).unwrap();
        assert!(start.elapsed() >= time_out, "{:?}", start.elapsed());
        assert_eq!((denied.allowed, denied.status), (0, Status::Empty));
        assert!(denied.wait.unwrap() > HOUR / 2, "{denied:?}");
    }
    let never = BlockingConsume::new("slow", slow(1)).tokens(2).query(&mut connection).unwrap();
    assert_eq!((never.wait, never.status), (None, Status::Never));
    Penalise::new("slow", HOUR).query(&mut connection).unwrap();
    let frozen = BlockingConsume::new("slow", slow(1)).time_out(Duration::ZERO).query(&mut connection).unwrap();
    assert_eq!(frozen.status, Status::Frozen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_gives_up_its_place_and_has_taken_nothing() {
    let server = Server::start();
    Consume::new("k", slow(3)).tokens(3).query(&mut server.connection()).unwrap();
    let client = server.client();
    let wait_for = |tokens: u32| {
        let (client, request) = (client.clone(), BlockingConsume::new("k", slow(3)).tokens(tokens));
        tokio::spawn(async move { request.query_async(&client).await })
    };
    let first = wait_for(3);
    wait_until("the first to wait", || waiting(&server) == 1);
    let second = wait_for(1);
    wait_until("the second to wait", || waiting(&server) == 2);
    // There is enough for the second, which does not overtake.
    assert_eq!(Refund::new("k", 2).query(&mut server.connection()).unwrap(), Some(0));
    thread::sleep(Duration::from_millis(100));
    assert!(!second.is_finished());
    first.abort();
    let served = tokio::time::timeout(Duration::from_secs(20), second).await.expect("its turn").unwrap().unwrap();
    assert_eq!((served.status, served.remaining), (Status::Granted, 1));
    wait_until("nobody to wait", || waiting(&server) == 0);
    assert_eq!(Consume::new("k", slow(3)).tokens(0).query(&mut server.connection()).unwrap().remaining, 1);

    // A time-out around it does the same.
    let alone = BlockingConsume::new("k", slow(3)).tokens(2);
    assert!(tokio::time::timeout(Duration::from_millis(100), alone.query_async(&client)).await.is_err());
    wait_until("nobody to wait", || waiting(&server) == 0);
    assert!(Consume::new("k", slow(3)).query(&mut server.connection()).unwrap().is_allowed());
}

#[tokio::test]
async fn it_waits_longer_than_other_requests_are_waited_for() {
    let server = Server::start();
    let limit = Limit::per(1, Duration::from_millis(1200)).unwrap();
    Consume::new("k", limit).query(&mut server.connection()).unwrap();
    // The library's own time-out for an answer is half a second.
    assert!(BlockingConsume::new("k", limit).query_async(&server.client()).await.unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sends_those_who_wait_away_is_away() {
    let (server, other) = (Server::start(), Server::start());
    Consume::new("k", slow(1)).query(&mut server.connection()).unwrap();
    let client = server.client();
    let waiter = tokio::spawn(async move { BlockingConsume::new("k", slow(1)).query_async(&client).await });
    wait_until("it to wait", || waiting(&server) == 1);
    server.ask(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    let error = waiter.await.unwrap().unwrap_err();
    assert!(error.is_redis_away(), "{error}");
    let bare = Server::bare(&[]);
    let error = BlockingConsume::new("k", slow(1)).query_async(&bare.client()).await.unwrap_err();
    assert!(matches!(error, Error::NotLoaded), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_is_away_when_the_time_is_over() {
    let server = Server::start();
    Consume::new("k", slow(1)).query(&mut server.connection()).unwrap();
    let (client, start) = (server.client(), Instant::now());
    let waiter = tokio::spawn(async move {
        BlockingConsume::new("k", slow(1)).time_out(Duration::from_millis(500)).query_async(&client).await
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while waiting(&server) == 0 && !waiter.is_finished() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.signal("-STOP");
    let told = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    server.signal("-CONT");
    let error = told.expect("its end").unwrap().unwrap_err();
    assert!(error.is_redis_away(), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
}
