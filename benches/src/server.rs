//! A server of its own on a Unix socket, on a core of its own, gone when dropped.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Connection, FromRedisValue};
use tempfile::TempDir;

use crate::contenders::{Contender, KEYS, encode};
use crate::{Outcome, Plan};

/// The cores that this process may run on.
static CORES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    list.trim().split([',', '-']).map(str::to_owned).collect()
});

/// Puts this process, and the generators it starts, on another core than servers. To be
/// called first.
pub(crate) fn leave_the_servers_core() -> Outcome<()> {
    let (Some(core), pid) = (CORES.last(), std::process::id().to_string()) else { return Err("no cores".into()) };
    Command::new("taskset").args(["-cp", core, &pid]).stdout(Stdio::null()).status()?;
    Ok(())
}

pub(crate) struct Server {
    dir: TempDir,
    process: Child,
    connection: Connection,
    /// The SHA-1 of the script.
    pub(crate) script: String,
}

/// What a server is started with.
#[derive(Default)]
pub(crate) struct Setup<'s> {
    pub(crate) modules: Vec<&'s Path>,
    pub(crate) lines: &'s [&'s str],
    /// Under valgrind; the file its counts go to.
    pub(crate) counted: Option<&'s Path>,
    pub(crate) port: Option<u16>,
    /// On the generators' core, since it is not this one that is measured.
    pub(crate) aside: bool,
}

impl Plan {
    pub(crate) fn modules(&self) -> Vec<&Path> {
        [Some(&self.module), Some(&self.floor), self.cell.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect()
    }
}

impl Server {
    pub(crate) fn start(setup: &Setup<'_>) -> Outcome<Self> {
        let dir = tempfile::Builder::new().prefix("bench").tempdir()?;
        let path = dir.path().display().to_string();
        let port = setup.port.unwrap_or(0);
        let mut conf = format!(
            "bind 127.0.0.1\nport {port}\ndir {path}\nunixsocket {path}/socket\nsave \"\"\nappendonly no\n\
             enable-debug-command yes\nrepl-diskless-sync-delay 0\nlogfile {path}/log\n"
        );
        for module in &setup.modules {
            conf += &format!("loadmodule {}\n", module.canonicalize()?.display());
        }
        for line in setup.lines {
            conf += &format!("{line}\n");
        }
        std::fs::write(dir.path().join("conf"), conf)?;
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new("taskset");
        let core = if setup.aside { CORES.last() } else { CORES.first() };
        command.args(["-c", core.map_or("0", String::as_str)]);
        if let Some(counts) = setup.counted {
            command.args(["valgrind", "--tool=callgrind"]);
            command.arg(format!("--callgrind-out-file={}", counts.display()));
        }
        let process = command.arg(binary).arg(dir.path().join("conf")).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let socket = dir.path().join("socket");
        let connection = match connect(&socket) {
            Ok(connection) => connection,
            Err(error) => {
                let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                return Err(format!("the server did not start: {error}\n{log}").into());
            }
        };
        let mut server = Self { dir, process, connection, script: String::new() };
        while server.ask::<String>(&["PING"]).is_err() {
            sleep(Duration::from_millis(2)); // it loads
        }
        server.script = server.ask(&["SCRIPT", "LOAD", include_str!("../token_bucket.lua")])?;
        Ok(server)
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Outcome<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query(&mut self.connection)?)
    }

    /// A field of INFO, as a number.
    pub(crate) fn info(&mut self, section: &str, field: &str) -> Outcome<f64> {
        let text: String = self.ask(&["INFO", section])?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.ok_or_else(|| format!("no {field} in INFO {section}"))?.trim().parse()?)
    }

    /// Seconds of processor that the server has used.
    pub(crate) fn cpu_seconds(&mut self) -> Outcome<f64> {
        Ok(self.info("cpu", "used_cpu_user")? + self.info("cpu", "used_cpu_sys")?)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn log(&self) -> Outcome<String> {
        Ok(std::fs::read_to_string(self.dir.path().join("log"))?)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Empties it, and sends a contender's setup for each key.
    pub(crate) fn prepare(&mut self, contender: &Contender) -> Outcome<()> {
        let _: () = self.ask(&["FLUSHALL"])?;
        let script = self.script.clone();
        let setup = &contender.setup;
        let commands = (0..KEYS).flat_map(|key| setup.iter().map(move |command| (key, command)));
        self.send_all(commands.map(|(key, command)| Contender::for_key(command, key, &script)))
    }

    /// Sends commands in batches of fifty and waits for all replies.
    pub(crate) fn send_all(&self, commands: impl Iterator<Item = Vec<String>>) -> Outcome<()> {
        const BATCH: usize = 50;
        let mut stream = Stream::connect(&self.socket())?;
        let mut batch = Vec::new();
        let mut sent = 0;
        for command in commands {
            batch.extend(encode(&command));
            sent += 1;
            if sent == BATCH {
                stream.exchange(&batch, sent)?;
                (sent, batch) = (0, Vec::new());
            }
        }
        stream.exchange(&batch, sent)
    }

    /// Waits until a replica has all that its primary has.
    pub(crate) fn wait_for_sync(&mut self) -> Outcome<()> {
        loop {
            let text: String = self.ask(&["INFO", "replication"])?;
            if text.contains("master_link_status:up") {
                return Ok(());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to end, and waits.
    pub(crate) fn stop(mut self) -> Outcome<()> {
        let _ = self.ask::<()>(&["SHUTDOWN", "NOSAVE"]);
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(socket: &Path) -> Outcome<Connection> {
    let begun = Instant::now();
    loop {
        let client = Client::open(format!("unix://{}", socket.display()))?;
        match client.get_connection() {
            Ok(connection) => return Ok(connection),
            Err(error) if begun.elapsed() > Duration::from_secs(60) => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(20)),
        }
    }
}

/// A plain connection that counts replies.
struct Stream {
    write: UnixStream,
    read: BufReader<UnixStream>,
}

impl Stream {
    fn connect(socket: &Path) -> Outcome<Self> {
        let write = UnixStream::connect(socket)?;
        Ok(Self { read: BufReader::new(write.try_clone()?), write })
    }

    fn exchange(&mut self, batch: &[u8], replies: usize) -> Outcome<()> {
        self.write.write_all(batch)?;
        for _ in 0..replies {
            self.skip_reply()?;
        }
        Ok(())
    }

    fn skip_reply(&mut self) -> Outcome<()> {
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        let number = || line.get(1..).unwrap_or_default().trim().parse::<i64>();
        match line.as_bytes().first() {
            Some(b'+' | b':') => Ok(()),
            Some(b'$') => {
                if let Ok(len) = u64::try_from(number()?) {
                    std::io::copy(&mut (&mut self.read).take(len + 2), &mut std::io::sink())?;
                }
                Ok(())
            }
            Some(b'*') => (0..number()?).try_for_each(|_| self.skip_reply()),
            _ => Err(format!("the server replied {line:?}").into()),
        }
    }
}
