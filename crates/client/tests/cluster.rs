//! A client in cluster mode, spending all the while: slots move from node to node with
//! the buckets in them, a replica takes over on demand, a primary is killed. What was
//! granted is counted here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::Value;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use tokenbucket_client::{BlockingConsume, Limit, MultiConsume, Peek, Penalise, RateLimiter, Redis, Request as _, WhenAway};

use crate::server::{Server, wait_until};

const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];
const CAPACITY: u32 = 3_000;
const KEYS: usize = 24;
/// What a replica may be behind on a machine that is busy.
const TAIL: Duration = Duration::from_secs(1);

/// Three primaries, each with a replica.
struct Cluster {
    primaries: Vec<Server>,
    replicas: Vec<Server>,
}

impl Cluster {
    fn start() -> Self {
        let node = |_| Server::with(&["cluster-enabled yes", "cluster-node-timeout 5000", "cluster-replica-validity-factor 0"]);
        let cluster = Self { primaries: (0..3).map(node).collect(), replicas: (0..3).map(node).collect() };
        for (primary, (first, last)) in cluster.primaries.iter().zip(SLOTS) {
            primary.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        }
        for (epoch, node) in cluster.nodes().enumerate() {
            node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", epoch + 1));
            if epoch > 0 {
                node.ask(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.primaries[0].port));
            }
        }
        cluster.nodes().for_each(|node| wait_until("the nodes to meet", || field(node, "cluster_known_nodes") == "6"));
        for (replica, primary) in cluster.replicas.iter().zip(&cluster.primaries) {
            let command = format!("CLUSTER REPLICATE {}", id(primary));
            wait_until("the replica to follow", || replica.try_ask(&command).is_ok());
        }
        for node in cluster.nodes() {
            wait_until("the cluster to be whole", || {
                let nodes = text(node.ask("CLUSTER NODES"));
                field(node, "cluster_state") == "ok" && nodes.matches("slave").count() == 3 && !nodes.contains("handshake")
            });
        }
        for replica in &cluster.replicas {
            wait_until("the replica to be in step", || text(replica.ask("INFO replication")).contains("master_link_status:up"));
        }
        cluster
    }

    fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.primaries.iter().chain(&self.replicas)
    }

    fn client(&self) -> ClusterClient {
        let nodes = self.nodes().map(|node| format!("redis://127.0.0.1:{}", node.port));
        ClusterClient::new(nodes.collect::<Vec<_>>()).unwrap()
    }

    /// Which of the first primaries a key belongs to at the start.
    fn home(&self, key: &str) -> usize {
        let slot = slot(&self.primaries[0], key);
        SLOTS.iter().position(|(first, last)| (i64::from(*first)..=i64::from(*last)).contains(&slot)).unwrap()
    }

    /// Moves a slot and all that is in it.
    fn move_slot(&self, slot: i64, from: &Server, to: &Server) {
        to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
        from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
        loop {
            let Value::Array(keys) = from.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 10")) else { panic!("no keys") };
            if keys.is_empty() {
                break;
            }
            let keys: Vec<String> = keys.into_iter().map(text).collect();
            from.ask(&format!("MIGRATE 127.0.0.1 {} {} 0 5000 KEYS {}", to.port, "", keys.join(" ")));
        }
        for node in [to, from] {
            node.ask(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to)));
        }
    }
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        other => panic!("no text but {other:?}"),
    }
}

fn id(node: &Server) -> String {
    text(node.ask("CLUSTER MYID"))
}

fn field(node: &Server, name: &str) -> String {
    let info = text(node.ask("CLUSTER INFO"));
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

fn slot(node: &Server, key: &str) -> i64 {
    let Value::Int(slot) = node.ask(&format!("CLUSTER KEYSLOT {key}")) else { panic!("no slot") };
    slot
}

fn limit() -> Limit {
    Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(CAPACITY).unwrap()
}

fn limiter(connection: ClusterConnection) -> RateLimiter<Redis<ClusterConnection>> {
    RateLimiter::new(Redis(connection), WhenAway::FailClosed, Duration::from_millis(500))
}

/// A token that was granted.
struct Granted {
    key: usize,
    sent: Instant,
    answered: Instant,
}

async fn spend(connection: ClusterConnection, task: usize, stop: Arc<AtomicBool>) -> Vec<Granted> {
    let (limiter, limit) = (limiter(connection), limit());
    let mut granted = Vec::new();
    for call in task.. {
        if stop.load(Relaxed) {
            break;
        }
        let (key, sent) = (call % KEYS, Instant::now());
        if let Ok(decision) = limiter.check(format!("k{key}"), &limit, 1).await
            && decision.is_allowed()
        {
            granted.push(Granted { key, sent, answered: Instant::now() });
        }
        // So slow that no bucket is empty before the end.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    granted
}

/// Every key is answered again.
async fn assert_served(connection: &ClusterConnection) {
    let (limiter, limit) = (limiter(connection.clone()), limit());
    let deadline = Instant::now() + Duration::from_secs(60);
    for key in 0..KEYS {
        while let Err(error) = limiter.check(format!("k{key}"), &limit, 0).await {
            // A slot that has just moved may be sent on so often that the library gives up.
            let passes = error.is_redis_away() || error.to_string().starts_with("Moved");
            assert!(passes && Instant::now() < deadline, "k{key}: {error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let frozen = Peek::new("frozen").query_async(&mut connection.clone()).await.unwrap().unwrap().frozen;
    assert!(frozen > Duration::from_secs(900), "{frozen:?} of 1000 s are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_while_slots_move_replicas_take_over_and_a_primary_is_killed() {
    let mut cluster = Cluster::start();
    let connection = cluster.client().get_async_connection().await.unwrap();
    Penalise::new("frozen", Duration::from_secs(1000)).query_async(&mut connection.clone()).await.unwrap();
    assert_served(&connection).await;

    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..6).map(|task| tokio::spawn(spend(connection.clone(), task, stop.clone()))).collect();
    let pause = || tokio::time::sleep(Duration::from_millis(300));
    pause().await;

    // Every slot of the first primary that has a bucket goes to the second.
    let homes: HashMap<usize, usize> = (0..KEYS).map(|key| (key, cluster.home(&format!("k{key}")))).collect();
    let moved: Vec<usize> = (0..KEYS).filter(|key| homes[key] == 0).collect();
    assert!(moved.len() > 2, "{moved:?}");
    for key in &moved {
        let slot = slot(&cluster.primaries[0], &format!("k{key}"));
        tokio::task::block_in_place(|| cluster.move_slot(slot, &cluster.primaries[0], &cluster.primaries[1]));
    }
    assert_served(&connection).await;
    pause().await;

    // The replica of the second takes over; nothing is lost by that.
    tokio::task::block_in_place(|| {
        cluster.replicas[1].ask("CLUSTER FAILOVER");
        wait_until("the replica to be a primary", || text(cluster.replicas[1].ask("INFO replication")).contains("role:master"));
    });
    assert_served(&connection).await;
    pause().await;

    // The third is killed, and the cluster finds out by itself.
    cluster.primaries[2].kill();
    let killed = Instant::now();
    tokio::task::block_in_place(|| {
        wait_until("its replica to take over", || text(cluster.replicas[2].ask("INFO replication")).contains("role:master"));
    });
    assert_served(&connection).await;
    pause().await;
    stop.store(true, Relaxed);
    let mut granted = Vec::new();
    for task in tasks {
        granted.extend(task.await.unwrap());
    }
    assert!(granted.iter().filter(|granted| granted.answered > killed + Duration::from_secs(1)).count() > 50, "nobody went on");

    for (key, home) in homes {
        let tokens = granted.iter().filter(|granted| granted.key == key);
        let reading = Peek::new(format!("k{key}")).query_async(&mut connection.clone()).await.unwrap().unwrap();
        let left = reading.tokens.unwrap();
        // An answer may lie there for a while before the client gets to read it.
        let may_be_lost = |granted: &&Granted| home == 2 && granted.answered > killed - TAIL && granted.sent <= killed;
        let tail = tokens.clone().filter(may_be_lost);
        let (tokens, tail) = (u32::try_from(tokens.count()).unwrap(), u32::try_from(tail.count()).unwrap());
        assert!(tokens > 20, "k{key} was granted {tokens} times");
        let spent = f64::from(CAPACITY) - left;
        assert!(
            spent + f64::from(tail) + 0.1 >= f64::from(tokens),
            "k{key}: {tokens} tokens granted, {spent} spent, {tail} in the tail"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_of_one_call_share_a_hash_tag() {
    let cluster = Cluster::start();
    let mut connection = cluster.client().get_async_connection().await.unwrap();
    // Whichever node has them: none has to send it on.
    let mut blocking = cluster.client().get_connection().unwrap();
    let limiter = limiter(connection.clone());
    for key in 0..KEYS {
        let keys = || MultiConsume::new().and(format!("{{k{key}}}a"), limit(), 1).and(format!("{{k{key}}}b"), limit(), 1);
        assert_eq!(keys().query_async(&mut connection).await.unwrap().each[0].remaining, u64::from(CAPACITY) - 1);
        assert_eq!(keys().query_cluster(&mut blocking).unwrap().each[1].remaining, u64::from(CAPACITY) - 2);
        assert_eq!(limiter.check_all(&keys()).await.unwrap().each[1].remaining, u64::from(CAPACITY) - 3);
    }
    for node in &cluster.primaries {
        let errors = text(node.ask("INFO errorstats"));
        assert!(!errors.contains("errorstat_MOVED"), "{errors}");
        assert!(node.calls("tb.mconsume") > 0);
    }
    let together = MultiConsume::new().and("{acme}:second", limit(), 1).and("{acme}:day", limit(), 2);
    assert_eq!(together.query_async(&mut connection).await.unwrap().together.allowed, 1);
    // And who waits may ask any node.
    for node in &cluster.primaries {
        let wait = BlockingConsume::new("waits", limit()).time_out(Duration::from_secs(5));
        assert!(wait.query_async(&node.client()).await.unwrap().is_allowed());
    }
    let apart = MultiConsume::new().and("k0", limit(), 1).and("k1", limit(), 1);
    let error = apart.query_async(&mut connection).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("slot"), "{error}");
    for key in ["k0", "k1"] {
        assert_eq!(Peek::new(key).query_async(&mut connection).await.unwrap(), None);
    }
}
