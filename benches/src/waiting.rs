//! Ten thousand clients that wait in TB.BCONSUME: how late they are served, what they
//! cost while it is nobody's turn, and what others pay for them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream as Blocking;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};

use crate::server::{Server, Setup};
use crate::{Outcome, Plan, median};

/// What was measured of them.
pub(crate) struct Waiting {
    pub(crate) clients: usize,
    /// From when a turn came to its reply, in milliseconds, with a bucket for each.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) most_ms: f64,
    /// How long all took in one bucket, in seconds, and how long they had to.
    pub(crate) queue_seconds: f64,
    pub(crate) queue_due_seconds: f64,
    /// Of a core, while it was nobody's turn; and of one with as many idle clients.
    pub(crate) idle_cpu: f64,
    pub(crate) idle_cpu_without: f64,
    /// The module's memory for each.
    pub(crate) bytes: f64,
    /// Microseconds of a TB.CONSUME that is refused alone, behind all of them, and behind
    /// all of them where a vendor's window holds them up.
    pub(crate) denied_us: [f64; 3],
    /// How many SETs a second of the server's time, in paired rounds, as a part of those of
    /// a server without the module: with the module, and with it while somebody waits.
    pub(crate) sets: [f64; 2],
}

/// Clients that are connected, each with a command that it may be sent.
struct Crowd {
    clients: Vec<UnixStream>,
    poll: Poll,
}

impl Crowd {
    fn connect(socket: &Path, clients: usize) -> Outcome<Self> {
        let poll = Poll::new()?;
        let mut crowd = Self { clients: Vec::new(), poll };
        for index in 0..clients {
            let stream = loop {
                match Blocking::connect(socket) {
                    Ok(stream) => break stream,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => return Err(error.into()),
                }
            };
            stream.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(stream);
            crowd.poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
            crowd.clients.push(stream);
        }
        Ok(crowd)
    }

    fn send(&mut self, index: usize, words: &[&str]) -> Outcome<()> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(self.clients[index].write_all(&command.get_packed_command())?)
    }

    /// Hands over each client that was granted, with the moment, until all were.
    fn until_served(&mut self, mut served: impl FnMut(usize, SystemTime)) -> Outcome<()> {
        let mut events = Events::with_capacity(1024);
        let (mut left, mut bytes) = (self.clients.len(), [0; 512]);
        while left > 0 {
            self.poll.poll(&mut events, Some(Duration::from_secs(30)))?;
            if events.is_empty() {
                return Err(format!("{left} clients were not served").into());
            }
            for event in &events {
                let index = event.token().0;
                let now = SystemTime::now();
                match self.clients[index].read(&mut bytes) {
                    Ok(len) if bytes[..len].ends_with(b"granted\r\n") => {
                        served(index, now);
                        left -= 1;
                    }
                    Ok(len) => return Err(format!("{:?}", String::from_utf8_lossy(&bytes[..len])).into()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

/// Until so many wait.
fn all_wait(server: &mut Server, clients: usize) -> Outcome<()> {
    while server.info("tokenbucket", "tokenbucket_clients_waiting")? < clients as f64 {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// SETs on servers that differ in nothing but the module, and somebody who waits.
fn compare_sets(plan: &Plan) -> Outcome<[f64; 2]> {
    let mut servers = Vec::new();
    for module in [None, Some(&plan.module), Some(&plan.module)] {
        let modules = module.into_iter().map(|path| path.as_path()).collect();
        servers.push(Server::start(&Setup { modules, ..Setup::default() })?);
    }
    let _: redis::Value = servers[2].ask(&["TB.CONSUME", "k", "1", "1e-8"])?;
    let mut crowd = Crowd::connect(&servers[2].socket(), 1)?;
    crowd.send(0, &["TB.BCONSUME", "k", "1", "1e-8", "1", "0"])?;
    all_wait(&mut servers[2], 1)?;
    let calls = if plan.quick { 20_000 } else { 100_000 };
    let mut parts = [Vec::new(), Vec::new()];
    for _ in 0..if plan.quick { 3 } else { 9 } {
        let mut cpu = [0.0; 3];
        for (server, cpu) in servers.iter_mut().zip(&mut cpu) {
            let before = server.cpu_seconds()?;
            server.send_all(
                (0..calls).map(|call| ["SET", &format!("key:{:03}", call % 1000), "value"].map(str::to_owned).to_vec()),
            )?;
            *cpu = server.cpu_seconds()? - before;
        }
        parts[0].push(cpu[0] / cpu[1]);
        parts[1].push(cpu[0] / cpu[2]);
    }
    for server in servers {
        server.stop()?;
    }
    Ok(parts.map(median))
}

pub(crate) fn measure(plan: &Plan) -> Outcome<Waiting> {
    let clients = if plan.quick { 1_000 } else { 10_000 };
    let files = format!("maxclients {}", clients + 100);
    let lines = [files.as_str()];
    let start = || Server::start(&Setup { modules: vec![&plan.module], lines: &lines, ..Setup::default() });

    // Each with a bucket of its own, whose turn is at the end of a freeze.
    let mut server = start()?;
    let mut crowd = Crowd::connect(&server.socket(), clients)?;
    let (seconds, lead) = (5.0, 4.0);
    let begin = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() + lead;
    let due: Vec<f64> = (0..clients).map(|index| begin + seconds * index as f64 / clients as f64).collect();
    server.send_all((0..clients).map(|index| {
        ["TB.PENALISE", &format!("own:{index}"), "UNTIL", &format!("{:.6}", due[index])].map(str::to_owned).to_vec()
    }))?;
    for index in 0..clients {
        crowd.send(index, &["TB.BCONSUME", &format!("own:{index}"), "1", "1000000", "1", "0"])?;
    }
    all_wait(&mut server, clients)?;
    let mut late = Histogram::<u64>::new(3)?;
    crowd.until_served(|index, now| {
        let now = now.duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        late.saturating_record(((now - due[index]).max(0.0) * 1e6) as u64);
    })?;
    let at = |quantile| late.value_at_quantile(quantile) as f64 / 1e3;
    let (p50_ms, p99_ms, most_ms) = (at(0.5), at(0.99), late.max() as f64 / 1e3);

    // All in the queue of one.
    let rate = clients as f64 / 4.0;
    let _: () = server.ask(&["DEL", "one"])?;
    let _: redis::Value = server.ask(&["TB.CONSUME", "one", "1", "1e-8"])?;
    for index in 0..clients {
        crowd.send(index, &["TB.BCONSUME", "one", "1", "1e-8", "1", "0"])?;
    }
    all_wait(&mut server, clients)?;
    let begun = Instant::now();
    let _: redis::Value = server.ask(&["TB.CONSUME", "one", "1", &rate.to_string()])?;
    crowd.until_served(|_, _| {})?;
    let queue_seconds = begun.elapsed().as_secs_f64();

    // Nobody's turn.
    let idle = |server: &mut Server| -> Outcome<f64> {
        let (before, begun) = (server.cpu_seconds()?, Instant::now());
        std::thread::sleep(Duration::from_secs(5));
        Ok((server.cpu_seconds()? - before) / begun.elapsed().as_secs_f64())
    };
    let idle_cpu_without = idle(&mut server)?;
    for index in 0..clients {
        let _: redis::Value = server.ask(&["TB.CONSUME", &format!("idle:{index}"), "1", "1e-8"])?;
    }
    let before = server.info("memory", "used_memory")?;
    for index in 0..clients {
        crowd.send(index, &["TB.BCONSUME", &format!("idle:{index}"), "1", "1e-8", "1", "0"])?;
    }
    all_wait(&mut server, clients)?;
    let bytes = (server.info("memory", "used_memory")? - before) / clients as f64;
    let idle_cpu = idle(&mut server)?;
    server.stop()?;
    drop(crowd);

    // What a refusal costs others.
    let mut server = start()?;
    let mut crowd = Crowd::connect(&server.socket(), clients)?;
    let _: redis::Value = server.ask(&["TB.CONSUME", "one", "1000", "1e-6", "1000"])?;
    let denied = |server: &mut Server| -> Outcome<f64> {
        let rounds = (0..5).map(|_| {
            let _: () = server.ask(&["CONFIG", "RESETSTAT"])?;
            server.send_all((0..20_000).map(|_| ["TB.CONSUME", "one", "1000", "1e-6"].map(str::to_owned).to_vec()))?;
            let text: String = server.ask(&["INFO", "commandstats"])?;
            let usec = text.lines().find_map(|line| line.strip_prefix("cmdstat_TB.CONSUME:")?.split("usec_per_call=").nth(1));
            Ok(usec.and_then(|text| text.split(',').next()).ok_or("no commandstats")?.parse::<f64>()?)
        });
        Ok(median(rounds.collect::<Outcome<Vec<f64>>>()?))
    };
    let alone = denied(&mut server)?;
    for index in 0..clients {
        crowd.send(index, &["TB.BCONSUME", "one", "1000", "1e-6", &(index % 7 + 1).to_string(), "0"])?;
    }
    all_wait(&mut server, clients)?;
    let behind = denied(&mut server)?;
    let _: redis::Value = server.ask(&["TB.SYNC", "one", "500", "RESET", "600"])?;
    let _: redis::Value = server.ask(&["TB.CONSUME", "one", "1000", "1"])?; // so that the window is what holds them up
    let windowed = denied(&mut server)?;
    server.stop()?;
    Ok(Waiting {
        clients,
        p50_ms,
        p99_ms,
        most_ms,
        queue_seconds,
        queue_due_seconds: (clients as f64) / rate,
        idle_cpu,
        idle_cpu_without,
        bytes,
        denied_us: [alone, behind, windowed],
        sets: compare_sets(plan)?,
    })
}
