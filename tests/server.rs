//! A private `redis-server` with the module loaded: in a directory of its own,
//! on a Unix socket, killed by its process id when dropped. What to know before
//! changing it: tests run side by side, so nothing here may be shared between
//! two servers, and a server that ended by itself or whose module panicked
//! fails the test that owned it, whatever that test looked at.
//!
//! `REDIS_SERVER` names another server binary and `TOKENBUCKET_MODULE` another
//! module file; else they are `redis-server` and the file that cargo built
//! beside this test.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::TempDir;

use crate::connection::Connection;

/// What [`Child::kill`] sends.
const SIGKILL: i32 = 9;

/// With a large file to load, on a machine that is busy.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// What every test's server is configured with. A test's own lines come after,
/// and so win.
const CONFIGURATION: &str = "\
bind 127.0.0.1
protected-mode no
daemonize no
save \"\"
appendonly no
enable-debug-command yes
enable-module-command yes
repl-diskless-sync-delay 0
shutdown-timeout 0
";

pub(crate) struct Server {
    dir: TempDir,
    /// A program that runs the server, with its arguments, and the server.
    command: Vec<String>,
    environment: Vec<(String, String)>,
    tcp: bool,
    port: Option<u16>,
    process: Option<Child>,
}

pub(crate) struct Builder {
    lines: Vec<String>,
    /// The arguments of `loadmodule`; none where the module is not loaded.
    module: Option<String>,
    command: Vec<String>,
    environment: Vec<(String, String)>,
    tcp: bool,
}

impl Builder {
    /// A line of the configuration, after `loadmodule`.
    pub(crate) fn conf(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Arguments of the `loadmodule` line.
    pub(crate) fn module_arguments(mut self, arguments: &str) -> Self {
        self.module = Some(arguments.to_owned());
        self
    }

    #[allow(dead_code)]
    pub(crate) fn without_module(mut self) -> Self {
        self.module = None;
        self
    }

    /// Listens on a TCP port as well: for replicas and clusters.
    pub(crate) fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Every write is on disk before its reply, as plain commands.
    pub(crate) fn append_only(self) -> Self {
        self.conf("appendonly yes").conf("appendfsync always").conf("aof-use-rdb-preamble no")
    }

    #[allow(dead_code)]
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it under another program, such as valgrind.
    pub(crate) fn under(mut self, program: &[&str]) -> Self {
        self.command.splice(0..0, program.iter().map(|word| (*word).to_owned()));
        self
    }

    #[track_caller]
    pub(crate) fn start(self) -> Server {
        self.try_start().unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    /// The server, or the log of one that refused to start.
    pub(crate) fn try_start(self) -> Result<Server, String> {
        let dir = tempfile::Builder::new().prefix("tb").tempdir().unwrap();
        let mut file = File::create(dir.path().join("redis.conf")).unwrap();
        let path = dir.path().display();
        write!(file, "{CONFIGURATION}dir {path}\nunixsocket {path}/socket\n").unwrap();
        if let Some(arguments) = self.module {
            writeln!(file, "loadmodule {} {arguments}", module_file().display()).unwrap();
        }
        for line in self.lines {
            writeln!(file, "{line}").unwrap();
        }
        let mut server =
            Server { dir, command: self.command, environment: self.environment, tcp: self.tcp, port: None, process: None };
        server.try_start_again()?;
        Ok(server)
    }
}

impl Server {
    pub(crate) fn builder() -> Builder {
        Builder {
            lines: Vec::new(),
            module: Some(String::new()),
            command: vec![std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())],
            environment: Vec::new(),
            tcp: false,
        }
    }

    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::builder().start()
    }

    // ---- talking to it

    /// A connection that speaks RESP2.
    #[track_caller]
    pub(crate) fn connect(&self) -> Connection {
        Connection::unix(&self.dir.path().join("socket")).expect("to connect")
    }

    /// A connection that speaks RESP3.
    #[track_caller]
    pub(crate) fn connect_resp3(&self) -> Connection {
        self.connect().resp3()
    }

    /// The port of a server built with [`Builder::tcp`]; the same after a restart.
    #[track_caller]
    pub(crate) fn port(&self) -> u16 {
        self.port.expect("a server built with tcp()")
    }

    #[allow(dead_code)]
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[allow(dead_code)]
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("a running server").id()
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.dir.path().join("redis.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Major and minor version of Redis, or of the Redis that it says it is.
    pub(crate) fn version(&self) -> (u32, u32) {
        let version = self.connect().info("server", "redis_version");
        let mut parts = version.split('.').map(|part| part.parse().unwrap());
        (parts.next().unwrap(), parts.next().unwrap())
    }

    // ---- ending and starting it

    /// As a machine that loses power: no shutdown, nothing saved.
    #[allow(dead_code)]
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("a running server");
        process.kill().unwrap();
        let status = process.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "the server had ended: {status}");
    }

    /// As a machine that hangs: connections stay, nothing is answered.
    #[track_caller]
    pub(crate) fn hang(&self) {
        self.signal("STOP");
    }

    /// Ends [`Server::hang`].
    #[track_caller]
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    #[track_caller]
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status().unwrap();
        assert!(status.success(), "kill -{name}: {status}");
    }

    /// As an operator ends it; `how` is SAVE, NOSAVE or nothing.
    #[track_caller]
    pub(crate) fn shut_down(&mut self, how: &str) {
        let mut connection = self.connect();
        connection.send(&format!("SHUTDOWN {how}").split_whitespace().collect::<Vec<_>>());
        let mut process = self.process.take().expect("a running server");
        wait_until("the server to shut down", || process.try_wait().unwrap().is_some());
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    /// Waits for a server that ends by itself, as it is to.
    #[allow(dead_code)]
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("a running server");
        wait_until("the server to end", || process.try_wait().unwrap().is_some());
        process.wait().unwrap()
    }

    /// Starts an ended server in the same directory, with the same configuration.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        self.try_start_again().unwrap_or_else(|log| panic!("the server did not start again:\n{log}"));
    }

    /// Adds a line to the configuration of the next start.
    #[allow(dead_code)]
    pub(crate) fn add_conf(&mut self, line: &str) {
        let path = self.dir.path().join("redis.conf");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    pub(crate) fn try_start_again(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the server runs already");
        let first_start = self.port.is_none();
        for attempt in 1.. {
            if self.tcp && self.port.is_none() {
                self.port = Some(free_port());
            }
            match self.spawn() {
                Ok(()) => break,
                // Another took the port since; it was only just chosen.
                Err(log) if first_start && log.contains("Address already in use") && attempt < 5 => {
                    self.port = None;
                    fs::remove_file(self.dir.path().join("redis.log")).unwrap();
                }
                Err(log) => return Err(log),
            }
        }
        Ok(())
    }

    fn spawn(&mut self) -> Result<(), String> {
        let log = self.dir.path().join("redis.log");
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(&self.command[0]);
        die_with_us(&mut command);
        let mut child = command
            .args(&self.command[1..])
            .arg(self.dir.path().join("redis.conf"))
            .args(["--port", &self.port.unwrap_or(0).to_string()])
            .envs(self.environment.iter().cloned())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.command[0]));
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if child.try_wait().unwrap().is_some() {
                return Err(self.log());
            }
            if self.answers() {
                self.process = Some(child);
                return Ok(());
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err(format!("{}\n(killed: it did not answer)", self.log()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it serves yet: a server that loads its data answers with an error.
    fn answers(&self) -> bool {
        let Ok(mut connection) = Connection::unix(&self.dir.path().join("socket")) else {
            return false;
        };
        if connection.try_send(&["PING"]).is_err() {
            return false; // it has ended, or is about to
        }
        // A replica that waits for its primary serves nothing but answers.
        match connection.try_receive() {
            Ok(Value::ServerError(error)) => error.code() == "MASTERDOWN",
            Ok(_) => true,
            Err(_) => false,
        }
    }

    // ---- replication

    /// Makes this a replica of `primary` and waits until it has caught up.
    #[track_caller]
    pub(crate) fn replicate(&self, primary: &Server) {
        self.connect().ok(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        self.wait_for_sync(primary);
    }

    /// Waits until this replica has everything that `primary` has written so far.
    #[track_caller]
    pub(crate) fn wait_for_sync(&self, primary: &Server) {
        let (mut here, mut there) = (self.connect(), primary.connect());
        wait_until("the replica to be up", || here.info("replication", "master_link_status") == "up");
        // The primary hears of it a little later, and only then fails over to it.
        let is_online = |field: &String| field.contains("state=online");
        wait_until("the primary to see it", || there.info_fields("replication").values().any(is_online));
        let offset = |text: String| text.parse::<i64>().unwrap();
        let written = offset(there.info("replication", "master_repl_offset"));
        wait_until("the replica to catch up", || offset(here.info("replication", "slave_repl_offset")) >= written);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut ended = None;
        if let Some(mut process) = self.process.take() {
            let _ = process.kill(); // it may have ended
            ended = process.wait().ok().filter(|status| status.signal() != Some(SIGKILL));
        }
        let log = self.log();
        if thread::panicking() {
            eprintln!("---- log of the server in {}\n{log}", self.dir.path().display());
            return;
        }
        if let Some(status) = ended {
            panic!("the server ended by itself ({status}):\n{log}");
        }
        // The second is how the module's border logs a panic that it stopped.
        for fault in ["panicked", "a fault in the module"] {
            assert!(!log.contains(fault), "the module panicked:\n{log}");
        }
    }
}

/// A test's server ends with the thread that started it, which is the test's own: also
/// where the tests are killed and nothing is dropped.
pub(crate) fn die_with_us(command: &mut Command) {
    // SAFETY: between fork and exec it makes one call to the system, and allocates nothing.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// The module beside this test's binary, which is target/<profile>/deps/….
fn module_file() -> PathBuf {
    let file = std::env::var_os("TOKENBUCKET_MODULE").map_or_else(
        || {
            // Beside it, not one above: only `cargo build` renews that one.
            std::env::current_exe().unwrap().with_file_name("libredis_tokenbucket.so")
        },
        PathBuf::from,
    );
    fs::canonicalize(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A port that is free, and so is the cluster bus 10000 above it.
pub(crate) fn free_port() -> u16 {
    loop {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let bus = port.checked_add(10_000);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}

/// Sleeps for as long as a reply said; the only sleep a test may have.
pub(crate) fn wait_as_told(wait_ms: i64) {
    thread::sleep(Duration::from_millis(wait_ms.unsigned_abs()));
}

/// Waits for what is bound to come, and fails where it does not.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
