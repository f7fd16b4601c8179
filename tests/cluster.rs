//! A real cluster, on the loopback: a client is sent to the node that has the
//! bucket, and a bucket that moves stays what it is.

use redis::Value;

use crate::connection::{Connection, array, error_text, int, text};
use crate::scenarios::{self, Witness};
use crate::server::{Server, wait_until};

const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Three primaries that know of each other.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let nodes: Vec<Server> = SLOTS.iter().map(|_| node()).collect();
        for (node, (first, last)) in nodes.iter().zip(SLOTS) {
            node.connect().ok(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        }
        for (epoch, node) in nodes.iter().enumerate() {
            node.connect().ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", epoch + 1));
            meet(&nodes[0], node);
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    #[track_caller]
    fn wait_until_whole(&self) {
        for node in &self.nodes {
            let mut c = node.connect();
            wait_until("the cluster to be whole", || {
                let state = c.text("CLUSTER INFO");
                let nodes = c.text("CLUSTER NODES");
                state.contains("cluster_state:ok")
                    && nodes.lines().filter(|line| line.contains("connected")).count() == self.nodes.len()
                    && !nodes.contains("disconnected")
                    && !nodes.contains("handshake")
            });
        }
    }

    /// The node that has a key, another one, and the key's slot.
    pub(crate) fn around(&self, key: &str) -> (&Server, &Server, i64) {
        let slot = self.nodes[0].connect().int(&format!("CLUSTER KEYSLOT {key}"));
        let owner = SLOTS.iter().position(|(first, last)| (i64::from(*first)..=i64::from(*last)).contains(&slot)).unwrap();
        (&self.nodes[owner], &self.nodes[(owner + 1) % SLOTS.len()], slot)
    }
}

pub(crate) fn node() -> Server {
    Server::builder().tcp().conf("cluster-enabled yes").conf("cluster-node-timeout 20000").start()
}

pub(crate) fn meet(one: &Server, other: &Server) {
    if one.port() != other.port() {
        one.connect().ok(&format!("CLUSTER MEET 127.0.0.1 {}", other.port()));
    }
}

fn id(node: &Server) -> String {
    node.connect().text("CLUSTER MYID")
}

/// A call of each command on `k`.
const CALLS: [&str; 8] = [
    "TB.CONSUME k 10 1e-8 2",
    "TB.BCONSUME k 10 1e-8 1 0.001",
    "TB.CONSUME k 10 1e-8 0",
    "TB.MCONSUME 1 k 10 1e-8 1 1",
    "TB.PENALISE k 0",
    "TB.SYNC k 3",
    "TB.REFUND k 1",
    "TB.PEEK k",
];

#[test]
fn buckets_of_one_call_lie_in_one_slot() {
    let cluster = Cluster::start();
    let across = "CROSSSLOT Keys in request don't hash to the same slot";
    for node in &cluster.nodes {
        let mut c = node.connect();
        assert_eq!(c.error("TB.MCONSUME 2 a b 10 1 1 1 10 1 1 1"), across);
        assert_eq!(c.error("TB.MCONSUME 3 {x}:1 {x}:2 {y}:3 10 1 1 1 10 1 1 1 10 1 1 1"), across);
        let script = "return redis.call('TB.MCONSUME', 2, KEYS[1], KEYS[2], 10, 1, 1, 1, 10, 1, 1, 1)";
        assert_eq!(c.error_bytes(&["EVAL", script, "2", "a", "b"]), across);
        // A count that is none names no key; nothing is opened, here or elsewhere.
        for count in ["0", "01", "65", "x"] {
            let refused = c.error(&format!("TB.MCONSUME {count} a 10 1 1 1"));
            assert_eq!(refused, "ERR numkeys must be a whole number from 1 to 64");
        }
        assert_eq!(c.int("DBSIZE"), 0);
    }
    let (owner, other, slot) = cluster.around("{x}:1");
    let call = "TB.MCONSUME 2 {x}:1 {x}:2 10 1e-8 1 1 10 1e-8 2 1";
    assert_eq!(other.connect().error(call), format!("MOVED {slot} 127.0.0.1:{}", owner.port()));
    assert_eq!(int(&array(owner.connect().ask(call))[0]), 1);
}

#[test]
fn a_client_is_sent_to_the_node_that_has_the_bucket() {
    let cluster = Cluster::start();
    for key in ["a", "b", "c", "{tenant}:per-second", "{tenant}:per-day"] {
        let (owner, other, slot) = cluster.around(key);
        let (mut right, mut wrong) = (owner.connect(), other.connect());
        let moved = format!("MOVED {slot} 127.0.0.1:{}", owner.port());
        for call in CALLS.into_iter().chain(["TB.STATE k blob"]) {
            assert_eq!(wrong.error(&call.replace(" k", &format!(" {key}"))), moved, "{call}");
        }
        let script = wrong.error_bytes(&["EVAL", "return redis.call('TB.CONSUME', KEYS[1], 10, 1)", "1", key]);
        assert_eq!(script, moved);
        assert_eq!(wrong.int("DBSIZE"), 0);
        for call in CALLS {
            assert_eq!(error_text(&right.ask(&call.replace(" k", &format!(" {key}")))), None, "{call}");
        }
        assert_eq!(right.int(&format!("EXISTS {key}")), 1);
        right.ask(&format!("DEL {key}"));
    }
    // What is served here may not use what is elsewhere.
    let (owner, other, _) = cluster.around("a");
    let elsewhere = ["b", "c", "d", "e"].into_iter().find(|key| cluster.around(key).0.port() == other.port()).unwrap();
    let script = "return redis.call('TB.CONSUME', ARGV[1], 10, 1)";
    let error = owner.connect().error_bytes(&["EVAL", script, "1", "a", elsewhere]);
    assert!(error.contains("non local key"), "{error}");
}

#[test]
fn a_bucket_that_migrates_stays_the_same_and_is_asked_for_where_it_is() {
    let cluster = Cluster::start();
    let (source, target, slot) = cluster.around(&scenarios::key(0));
    let (mut from, mut to) = (source.connect(), target.connect());
    let witness = Witness::of(&mut from);
    to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(source)));
    from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(target)));

    // A bucket that is still here is served here; one that is not, there.
    let (here, new) = (scenarios::key(0), "{twins}:new");
    let ask = format!("ASK {slot} 127.0.0.1:{}", target.port());
    let moved = format!("MOVED {slot} 127.0.0.1:{}", source.port());
    assert_eq!(error_text(&from.ask(&format!("TB.PEEK {here}"))), None);
    for call in CALLS {
        let call = call.replace(" k", &format!(" {new}"));
        assert_eq!(from.error(&call), ask, "{call}");
        assert_eq!(to.error(&call), moved, "{call}");
        to.ok("ASKING");
        assert_eq!(error_text(&to.ask(&call)), None, "{call}");
    }

    let port = target.port().to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"].map(str::to_owned);
    let migrate: Vec<String> = words.into_iter().chain(scenarios::keys()).collect();
    let before_us = from.time_us();
    assert_eq!(from.ask_bytes(&migrate), Value::Okay);
    let took_ms = (from.time_us() - before_us) / 1_000 + 1;
    // It is not a full bucket here, but one that is there.
    for call in CALLS {
        assert_eq!(from.error(&call.replace(" k", &format!(" {here}"))), ask, "{call}");
    }
    let rest: Vec<String> = array(from.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1000"))).iter().map(text).collect();
    let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"].map(str::to_owned);
    assert_eq!(from.ask_bytes(&words.into_iter().chain(rest).collect::<Vec<_>>()), Value::Okay);
    for c in [&mut to, &mut from] {
        c.ok(&format!("CLUSTER SETSLOT {slot} NODE {}", id(target)));
    }
    assert_eq!(from.error(&format!("TB.PEEK {here}")), format!("MOVED {slot} 127.0.0.1:{}", target.port()));
    witness.assert_same_within(&mut to, took_ms);
}

#[test]
fn a_replica_in_a_cluster_serves_readers_and_takes_over() {
    let mut cluster = Cluster::start();
    let replica = node();
    let (primary, _, slot) = cluster.around("k");
    meet(primary, &replica);
    let primary_id = id(primary);
    let mut r = replica.connect();
    wait_until("the replica to know the cluster", || r.text("CLUSTER INFO").contains("cluster_state:ok"));
    wait_until("the replica to follow", || error_text(&r.ask(&format!("CLUSTER REPLICATE {primary_id}"))).is_none());
    primary.connect().take("k 10 1e-8 4");
    replica.wait_for_sync(primary);

    let moved = format!("MOVED {slot} 127.0.0.1:{}", primary.port());
    assert_eq!(r.error("TB.PEEK k"), moved);
    r.ok("READONLY");
    assert_eq!(r.peek("k").tokens(), "6");
    for call in CALLS.iter().filter(|call| !call.starts_with("TB.PEEK")) {
        assert_eq!(r.error(call), moved, "{call}");
    }

    let primary_port = primary.port();
    r.ok("CLUSTER FAILOVER TAKEOVER");
    wait_until("the replica to be a primary", || array(r.ask("ROLE"))[0] == Value::BulkString(b"master".to_vec()));
    assert_eq!(r.consume("k 10 1e-8 7").verdict(), (0, "empty", 6));
    assert_eq!(r.take("k 10 1e-8 4").remaining, 2);
    let old = cluster.nodes.iter().find(|node| node.port() == primary_port).unwrap();
    let mut c: Connection = old.connect();
    wait_until("the old primary to follow", || array(c.ask("ROLE"))[0] == Value::BulkString(b"slave".to_vec()));
    assert_eq!(c.error("TB.CONSUME k 10 1e-8"), format!("MOVED {slot} 127.0.0.1:{}", replica.port()));
    assert_eq!(int(&r.ask("TB.PENALISE k 100")), 100_000);
    cluster.nodes.push(replica);
}
