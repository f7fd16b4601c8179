//! Latency at a fixed rate, one command a time.
//!
//! Commands are sent when they are due, whether or not earlier ones are answered, and a
//! latency counts from when the command was due: a stall is in every figure it delayed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::contenders::{Contender, KEYS, encode};
use crate::server::{Server, Setup};
use crate::{Outcome, Plan, median};

const CONNECTIONS: usize = 4;

/// Many short rounds: a machine that stands still now and then, as shared ones do, spoils
/// those in which it does and not the median of them all.
pub(crate) const ROUNDS: usize = 41;

/// Latencies of a contender in microseconds, each the median of its rounds.
pub(crate) struct Latency {
    pub(crate) contender: Contender,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

pub(crate) fn compare(plan: &Plan, contenders: &[Contender], rate: f64) -> Outcome<Vec<Latency>> {
    let mut server = Server::start(&Setup { modules: plan.modules(), ..Setup::default() })?;
    let seconds = if plan.quick { 0.1 } else { 0.4 };
    let mut turns: Vec<Vec<Histogram<u64>>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (contender, turns) in contenders.iter().zip(&mut turns) {
            server.prepare(contender)?;
            turns.push(run(&server.socket(), contender, rate, seconds)?);
        }
    }
    server.stop()?;
    let latency = |(contender, turns): (&Contender, Vec<Histogram<u64>>)| {
        let at = |quantile: f64| median(turns.iter().map(|turn| turn.value_at_quantile(quantile) as f64 / 1000.0).collect());
        Latency { contender: contender.clone(), p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    };
    Ok(contenders.iter().zip(turns).map(latency).collect())
}

/// The worst latency of PING, in milliseconds, while `meanwhile` lasts.
pub(crate) fn worst_ping_ms(socket: &Path, lasts: Duration) -> Outcome<f64> {
    let mut stream = UnixStream::connect(socket)?;
    let (begun, mut worst) = (Instant::now(), Duration::ZERO);
    let mut reply = [0; 7];
    while begun.elapsed() < lasts {
        let sent = Instant::now();
        stream.write_all(b"PING\r\n")?;
        stream.read_exact(&mut reply)?;
        worst = worst.max(sent.elapsed());
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(worst.as_secs_f64() * 1e3)
}

struct Line {
    stream: UnixStream,
    /// What a server that stalls has not taken yet.
    unsent: Vec<u8>,
    due: VecDeque<Duration>,
    replies: Replies,
}

impl Line {
    fn send(&mut self) -> Outcome<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.unsent) {
            Ok(written) => drop(self.unsent.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn run(socket: &Path, contender: &Contender, rate: f64, seconds: f64) -> Outcome<Histogram<u64>> {
    let command = &contender.commands[0];
    let commands: Vec<_> = (0..KEYS).map(|key| encode(&Contender::for_key(command, key, ""))).collect();
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        lines.push(Line { stream, unsent: Vec::new(), due: VecDeque::new(), replies: Replies::default() });
    }
    let mut latencies = Histogram::new(3)?;
    let calls = (rate * seconds) as usize;
    let (begun, mut sent, mut answered) = (Instant::now(), 0, 0);
    let mut chunk = [0; 16 * 1024];
    while answered < calls {
        let due = Duration::from_secs_f64(sent as f64 / rate);
        if sent < calls && begun.elapsed() >= due {
            let line = &mut lines[sent % CONNECTIONS];
            line.unsent.extend(&commands[sent * 7 % KEYS]);
            line.due.push_back(due);
            sent += 1;
        }
        for line in &mut lines {
            line.send()?;
        }
        for line in &mut lines {
            if line.due.is_empty() {
                continue;
            }
            let read = match line.stream.read(&mut chunk) {
                Ok(0) => return Err("the server ended the connection".into()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            let now = begun.elapsed();
            for _ in 0..line.replies.ended_in(&chunk[..read]) {
                let due = line.due.pop_front().ok_or("a reply to nothing")?;
                latencies.record(now.saturating_sub(due).as_nanos() as u64)?;
                answered += 1;
            }
        }
    }
    Ok(latencies)
}

/// Counts whole replies in a stream of arrays of plain elements, strings and numbers.
#[derive(Default)]
struct Replies {
    line: Vec<u8>,
    /// Lines that are to come before the reply is whole.
    wanted: usize,
}

impl Replies {
    fn ended_in(&mut self, bytes: &[u8]) -> usize {
        let mut ended = 0;
        for byte in bytes {
            self.line.push(*byte);
            if *byte != b'\n' {
                continue;
            }
            let number = || std::str::from_utf8(&self.line[1..]).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            self.wanted = match self.line[0] {
                b'*' => number(),
                b'$' if self.wanted > 0 => self.wanted, // the text follows
                b'$' => 1,
                _ => self.wanted.saturating_sub(1),
            };
            if self.wanted == 0 {
                ended += 1;
            }
            self.line.clear();
        }
        ended
    }
}
