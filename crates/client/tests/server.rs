//! A private `redis-server` with the module loaded, in a directory and on a port of its
//! own, killed by its process id when dropped.
//!
//! `REDIS_SERVER` names another server binary and `TOKENBUCKET_MODULE` another module
//! file; else the module is built and taken from beside this test.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use tempfile::TempDir;
use tokenbucket_client::{Buckets, RateLimiter, Redis, WhenAway};

const DEADLINE: Duration = Duration::from_secs(60);

/// Long enough for a loaded machine, short enough to wait for.
pub(crate) const TIME_OUT: Duration = Duration::from_millis(600);

pub(crate) struct Server {
    dir: TempDir,
    lines: Vec<String>,
    pub(crate) port: u16,
    process: Option<Child>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With more lines of configuration.
    pub(crate) fn with(lines: &[&str]) -> Self {
        let module = format!("loadmodule {}", module().display());
        let lines = [&[module.as_str()], lines].concat();
        Self::bare(&lines)
    }

    /// Without the module.
    pub(crate) fn bare(lines: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("tb-client").tempdir().unwrap();
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        let mut server = Self { dir, lines, port: 0, process: None };
        for _ in 0..5 {
            server.port = free_port();
            server.spawn();
            // Another may have taken the port since; then it ends at once.
            if server.wait_until_it_serves() {
                return server;
            }
        }
        panic!("the server did not start:\n{}", server.log());
    }

    /// Starts a process and does not wait for it.
    pub(crate) fn spawn(&mut self) {
        let path = self.dir.path();
        let mut file = File::create(path.join("redis.conf")).unwrap();
        let common = "bind 127.0.0.1\nsave \"\"\nenable-debug-command yes\nrepl-diskless-sync-delay 0\nshutdown-timeout 0";
        writeln!(file, "port {}\ndir {}\n{common}\n{}", self.port, path.display(), self.lines.join("\n")).unwrap();
        let log = File::options().create(true).append(true).open(path.join("redis.log")).unwrap();
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        // It ends with the thread that started it, also where the tests are killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", &binary])
            .arg(path.join("redis.conf"))
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap_or_else(|error| panic!("setpriv: {error}"));
        self.process = Some(child);
    }

    fn wait_until_it_serves(&mut self) -> bool {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            if self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some()) {
                return false;
            }
            if let Ok(mut connection) = self.client().get_connection()
                && redis::cmd("PING").query::<String>(&mut connection).is_ok()
            {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    /// A blocking connection, for what the test itself asks.
    pub(crate) fn connection(&self) -> redis::Connection {
        self.client().get_connection().unwrap()
    }

    /// Sends words and gives back the reply.
    #[track_caller]
    pub(crate) fn ask(&self, words: &str) -> redis::Value {
        self.try_ask(words).unwrap()
    }

    /// As [`Self::ask`], of what may be refused.
    pub(crate) fn try_ask(&self, words: &str) -> redis::RedisResult<redis::Value> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.connection())
    }

    pub(crate) async fn multiplexed(&self) -> MultiplexedConnection {
        self.client().get_multiplexed_async_connection().await.unwrap()
    }

    /// A connection that comes back by itself, and need not be there yet.
    pub(crate) fn managed(&self) -> ConnectionManager {
        // No time-out of its own for answers: the limiter's is the one to try.
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(TIME_OUT))
            .set_response_timeout(None);
        ConnectionManager::new_lazy_with_config(self.client(), config).unwrap()
    }

    pub(crate) fn limiter(&self, when_away: WhenAway) -> RateLimiter<impl Buckets> {
        RateLimiter::new(Redis(self.managed()), when_away, TIME_OUT)
    }

    /// How often a command has been called.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let redis::Value::BulkString(info) = self.ask("INFO commandstats") else { panic!("no INFO") };
        let info = String::from_utf8(info).unwrap();
        let name = format!("cmdstat_{}:calls=", command.to_ascii_uppercase());
        let line = info.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// As a machine that loses power.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill(); // it may have ended
            let _ = process.wait();
        }
        if thread::panicking() {
            eprintln!("---- log of the server in {}\n{}", self.dir.path().display(), self.log());
        }
    }
}

/// The module that belongs to this source.
fn module() -> PathBuf {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    let file = MODULE.get_or_init(|| {
        if let Some(file) = std::env::var_os("TOKENBUCKET_MODULE") {
            return file.into();
        }
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).expect("target/<profile>/deps");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "redis-tokenbucket", "--lib", "--target-dir"]);
        build.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        profile.join("libredis_tokenbucket.so")
    });
    file.clone()
}

/// A port that is free, and so is the cluster bus 10000 above it.
pub(crate) fn free_port() -> u16 {
    loop {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        if let Some(bus) = port.checked_add(10_000)
            && TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return port;
        }
    }
}

/// Waits for what is bound to come, and fails where it does not.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
