//! Sentinels that watch a primary, and make its replica one when it is killed. They know
//! nothing of the module; what is tried is that a client who asks them for the primary
//! finds its buckets there, and that the old one, when it is back, does not grant as well.

use std::fs;
use std::process::{Child, Command, Stdio};

use redis::Value;
use tempfile::TempDir;

use crate::connection::{Connection, array, int, text};
use crate::server::{Server, die_with_us, free_port, wait_until};

struct Sentinel {
    process: Child,
    port: u16,
    dir: TempDir,
}

impl Sentinel {
    fn watching(primary: &Server) -> Self {
        let (dir, port) = (tempfile::Builder::new().prefix("tb-sentinel").tempdir().unwrap(), free_port());
        let configuration = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\nlogfile sentinel.log\n\
             sentinel monitor limiter 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds limiter 3000\n\
             sentinel failover-timeout limiter 2000\n",
            dir.path().display(),
            primary.port()
        );
        let file = dir.path().join("sentinel.conf");
        fs::write(&file, configuration).unwrap();
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(server);
        die_with_us(&mut command);
        command.arg(file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let sentinel = Self { process: command.spawn().unwrap(), port, dir };
        wait_until("the sentinel to answer", || Connection::tcp(port).is_ok());
        sentinel
    }

    fn ask(&self, command: &str) -> Value {
        Connection::tcp(self.port).unwrap().ask(command)
    }

    /// Where it says that the primary is.
    fn primary_port(&self) -> String {
        text(&array(self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME limiter"))[1])
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("---- log of a sentinel\n{}", fs::read_to_string(self.dir.path().join("sentinel.log")).unwrap_or_default());
        }
    }
}

#[test]
fn sentinels_make_a_replica_the_primary_and_its_buckets_are_there() {
    let mut primary = Server::builder().tcp().conf("min-replicas-to-write 1").start();
    let replica = Server::builder().tcp().start();
    replica.replicate(&primary);
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::watching(&primary)).collect();
    for sentinel in &sentinels {
        wait_until("the sentinels to know of each other and of the replica", || {
            let info = text(&sentinel.ask("INFO sentinel"));
            info.contains("slaves=1") && info.contains("sentinels=3")
        });
    }
    let mut c = primary.connect();
    c.take("k 10 1e-8 4");
    c.penalise("frozen 1000");
    assert_eq!(int(&c.ask("WAIT 1 5000")), 1);
    primary.kill();

    let port = replica.port().to_string();
    for sentinel in &sentinels {
        wait_until("the sentinel to say who is the primary", || sentinel.primary_port() == port);
    }
    let mut r = replica.connect();
    wait_until("the replica to be the primary", || r.info("replication", "role") == "master");
    assert_eq!(r.take("k 10 1e-8 4").remaining, 2);
    assert_eq!(r.consume("frozen 10 1").status, "frozen");

    // It takes sentinels some ten seconds to make a replica of the old primary when it is
    // back. Until then it would grant to whoever still knows it, but for its configuration.
    primary.start_again();
    let error = primary.connect().error("TB.CONSUME k 10 1e-8");
    assert!(["NOREPLICAS", "READONLY"].contains(&error.split(' ').next().unwrap()), "{error}");
}
