//! Requests and replies over every kind of connection.

use std::time::{Duration, SystemTime};

use redis::Value;
use tokenbucket_client::{
    Consume, Decision, Error, Limit, MultiConsume, Origin, Peek, Penalise, Penalised, RateLimiter, Reading, Redis, Refund,
    Request, Status, Sync, Synced, Tokens, WhenAway,
};

use crate::server::{Server, wait_until};

/// One token an hour, ten at most: within a test nothing refills.
fn slow() -> Limit {
    Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(10).unwrap()
}

#[test]
fn every_request_is_answered_with_types() {
    let server = Server::start();
    let mut connection = server.connection();
    let decision = Consume::new("k", slow()).tokens(4).query(&mut connection).unwrap();
    assert_eq!((decision.allowed, decision.remaining, decision.wait), (1, 6, Some(Duration::ZERO)));
    assert_eq!((decision.status, decision.origin), (Status::Granted, Origin::Redis));
    assert!(decision.full > Duration::from_secs(3 * 3600) && decision.full <= Duration::from_secs(4 * 3600));

    let denied = Consume::new("k", slow()).tokens(7).query(&mut connection).unwrap();
    assert_eq!((denied.allowed, denied.status), (0, Status::Empty));
    assert!(denied.wait.unwrap() > Duration::from_secs(3500), "{denied:?}");
    let never = Consume::new("k", slow()).tokens(11).query(&mut connection).unwrap();
    assert_eq!((never.wait, never.status), (None, Status::Never));
    let some = Consume::new("k", slow()).tokens(100).up_to().query(&mut connection).unwrap();
    assert_eq!((some.allowed, some.remaining), (6, 0));
    let reserved = Consume::new("k", slow()).max_wait(Duration::from_secs(3600)).query(&mut connection).unwrap();
    assert_eq!(reserved.status, Status::Reserved);
    assert!(Consume::new("k", slow()).force().query(&mut connection).unwrap().is_allowed());

    assert_eq!(Refund::new("k", 3).query(&mut connection).unwrap(), Some(1));
    assert_eq!(Refund::new("none", 3).query(&mut connection).unwrap(), None);
    let Synced { applied, remaining, .. } =
        Sync::new("k", 0).limit(40).reset(Duration::from_secs(60)).query(&mut connection).unwrap();
    assert!(applied && remaining == 0);
    let reading = Peek::new("k").query(&mut connection).unwrap().unwrap();
    assert_eq!((reading.capacity, reading.rate, reading.per), (Some(10.0), Some(1.0), Some(3600.0)));
    assert!((reading.tokens.unwrap() - 1.0).abs() < 0.01, "{reading:?}");
    assert_eq!((reading.vendor_limit, reading.vendor_remaining), (Some(40), Some(0)));
    assert!(reading.vendor_reset.unwrap() > Duration::from_secs(50));
    assert_eq!(Peek::new("none").query(&mut connection).unwrap(), None);

    let Penalised { empty, .. } = Penalise::new("k", Duration::from_secs(60)).query(&mut connection).unwrap();
    assert!(empty > Duration::from_secs(59));
    let until = SystemTime::now() + Duration::from_secs(120);
    assert!(Penalise::until("k", until).query(&mut connection).unwrap().empty > Duration::from_secs(118));
    let frozen = Consume::new("k", slow()).query(&mut connection).unwrap();
    assert_eq!(frozen.status, Status::Frozen);
    assert!(Peek::new("k").query(&mut connection).unwrap().unwrap().frozen > Duration::from_secs(100));
}

#[test]
fn several_buckets_are_answered_together_and_each() {
    let server = Server::start();
    let mut connection = server.connection();
    let both = MultiConsume::new().and("a", slow(), 6).and("b", slow().with_burst(20).unwrap(), 7);
    let first = both.query(&mut connection).unwrap();
    assert_eq!((first.together.allowed, first.together.remaining, first.together.status), (1, 4, Status::Granted));
    assert_eq!(first.each.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), [4, 13]);
    let second = both.query(&mut connection).unwrap();
    assert_eq!((second.together.allowed, second.together.status), (0, Status::Empty));
    assert_eq!(second.each.iter().map(|decision| decision.status).collect::<Vec<_>>(), [Status::Empty, Status::Ready]);
    let third = both.max_wait(Duration::from_secs(3 * 3600)).query(&mut connection).unwrap();
    assert_eq!((third.together.status, third.each[1].status), (Status::Reserved, Status::Granted));
    assert_eq!(third.together.wait, third.each[0].wait);
    assert!(MultiConsume::new().query(&mut connection).is_err());
}

#[test]
fn keys_are_bytes_and_figures_are_exact() {
    let server = Server::start();
    let mut connection = server.connection();
    let limit = Limit::per("2.5".parse::<Tokens>().unwrap(), Duration::from_millis(1500)).unwrap();
    let key = b"\0\xff{ \r\n".to_vec();
    Consume::new(key.clone(), limit).tokens("0.75".parse::<Tokens>().unwrap()).query(&mut connection).unwrap();
    let reading = Peek::new(key).query(&mut connection).unwrap().unwrap();
    assert_eq!((reading.capacity, reading.rate, reading.per), (Some(2.5), Some(5.0), Some(3.0)));
}

#[test]
fn resp3_is_read_as_well() {
    let server = Server::start();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", server.port)).unwrap();
    let mut connection = client.get_connection().unwrap();
    assert!(Consume::new("k", slow()).query(&mut connection).unwrap().is_allowed());
    assert_eq!(Peek::new("k").query(&mut connection).unwrap().unwrap().capacity, Some(10.0));
    assert_eq!(Peek::new("none").query(&mut connection).unwrap(), None);
}

#[test]
fn a_pipeline_and_a_transaction_give_typed_replies() {
    let server = Server::start();
    let mut connection = server.connection();
    for atomic in [false, true] {
        let mut pipe = redis::pipe();
        if atomic {
            pipe.atomic();
        }
        pipe.add_command(Consume::new("p", slow()).command());
        pipe.add_command(Sync::new("p", 3).command());
        pipe.add_command(Peek::new("p").command());
        let (decision, synced, reading): (Decision, Synced, Option<Reading>) = pipe.query(&mut connection).unwrap();
        assert!(decision.is_allowed());
        assert_eq!(synced.remaining, if atomic { 2 } else { 3 });
        assert_eq!(reading.unwrap().capacity, Some(10.0));
    }
}

#[tokio::test]
async fn asynchronous_and_pooled_connections_need_nothing_more() {
    let server = Server::start();
    let mut connection = server.multiplexed().await;
    assert_eq!(Consume::new("k", slow()).query_async(&mut connection).await.unwrap().remaining, 9);
    let mut managed = server.managed();
    assert_eq!(Consume::new("k", slow()).query_async(&mut managed).await.unwrap().remaining, 8);
    let pool = bb8::Pool::builder().build(server.client()).await.unwrap();
    assert_eq!(Consume::new("k", slow()).query_async(&mut *pool.get().await.unwrap()).await.unwrap().remaining, 7);
}

#[tokio::test]
async fn a_cluster_is_asked_at_the_node_that_has_the_key() {
    let nodes = [(); 2].map(|()| Server::with(&["cluster-enabled yes", "cluster-require-full-coverage yes"]));
    nodes[0].ask("CLUSTER ADDSLOTSRANGE 0 8191");
    nodes[1].ask("CLUSTER ADDSLOTSRANGE 8192 16383");
    nodes[0].ask(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[1].port));
    wait_until("the cluster to agree", || {
        nodes.iter().all(|node| match node.ask("CLUSTER INFO") {
            Value::BulkString(info) => {
                let info = String::from_utf8_lossy(&info).into_owned();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
            }
            _ => false,
        })
    });
    let client = redis::cluster::ClusterClient::new([format!("redis://127.0.0.1:{}", nodes[0].port)]).unwrap();
    let mut blocking = client.get_connection().unwrap();
    let mut connection = client.get_async_connection().await.unwrap();
    for key in 0..40 {
        let key = format!("key{key}");
        assert_eq!(Consume::new(key.as_str(), slow()).query(&mut blocking).unwrap().remaining, 9);
        assert_eq!(Consume::new(key.as_str(), slow()).query_async(&mut connection).await.unwrap().remaining, 8);
        assert!(Peek::new(key.as_str()).query_async(&mut connection).await.unwrap().is_some());
        assert_eq!(Refund::new(key.as_str(), 1).query_async(&mut connection).await.unwrap(), Some(9));
    }
    let limiter = RateLimiter::new(Redis(connection), WhenAway::FailClosed, Duration::from_secs(5));
    let decision = limiter.check("key1", &slow(), 1).await.unwrap();
    assert_eq!((decision.origin, decision.remaining), (Origin::Redis, 8));
    let calls = nodes.iter().map(|node| node.calls("tb.consume"));
    assert!(calls.clone().all(|calls| calls > 10), "{:?}", calls.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_without_the_module_is_told_apart() {
    let server = Server::bare(&[]);
    let mut connection = server.connection();
    let error = Consume::new("k", slow()).query(&mut connection).unwrap_err();
    assert_eq!(error.to_string(), "the server has not loaded redis-tokenbucket");
    assert!(matches!(error, Error::NotLoaded) && !error.is_redis_away());
    let mut connection = server.multiplexed().await;
    assert!(matches!(Peek::new("k").query_async(&mut connection).await, Err(Error::NotLoaded)));
    // Of a pipeline as well.
    let mut pipe = redis::pipe();
    pipe.add_command(Consume::new("k", slow()).command()).add_command(Peek::new("k").command());
    let result: redis::RedisResult<(Decision, Option<Reading>)> = pipe.query(&mut server.connection());
    assert!(matches!(Error::from(result.unwrap_err()), Error::NotLoaded));
    // And of nothing else.
    let other: redis::RedisResult<()> = redis::cmd("NO.SUCH").query(&mut server.connection());
    assert!(matches!(Error::from(other.unwrap_err()), Error::Redis(_)));
}

#[test]
fn an_error_of_the_server_is_passed_on() {
    let server = Server::start();
    server.ask("SET string x");
    let error = Consume::new("string", slow()).query(&mut server.connection()).unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert!(!error.is_redis_away());
}
