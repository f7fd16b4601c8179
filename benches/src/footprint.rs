//! What many buckets cost: memory, RDB, resync, expiry, AOF.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::contenders::KEYS;
use crate::report::Report;
use crate::server::{Server, Setup};
use crate::{Outcome, Plan, latency, progress};

/// A way to keep buckets, and the commands that make one.
struct Kind {
    name: &'static str,
    commands: fn(&str, usize, &str) -> Vec<Vec<String>>,
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

const SHARED: Kind =
    Kind { name: "bucket, limit shared", commands: |key, _, _| vec![words(&format!("TB.CONSUME {key} 1000 0.001 3.5"))] };
const LONE: Kind = Kind {
    name: "bucket, a limit of its own",
    commands: |key, number, _| vec![words(&format!("TB.CONSUME {key} 1000.{number:06} 0.001 3.5"))],
};
/// Called twice, so that its level is a fraction as it is in use.
const SCRIPT: Kind = Kind {
    name: "hash of the script",
    commands: |key, _, script| vec![words(&format!("EVALSHA {script} 1 {key} 1000 0.001 3.5")); 2],
};
const CELL: Kind =
    Kind { name: "string of redis-cell", commands: |key, _, _| vec![words(&format!("CL.THROTTLE {key} 999 1 1000 3"))] };

fn key(number: usize) -> String {
    format!("limit:call:{number:012}")
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Outcome<()> {
    let scale = if plan.quick { 10 } else { 1 };
    let mut kinds = vec![SHARED, LONE, SCRIPT];
    if plan.cell.is_some() {
        kinds.push(CELL);
    }
    let buckets = 500_000;
    let mut memory = Vec::new();
    for kind in &kinds {
        progress(&format!("memory: {}", kind.name));
        let mut server = Server::start(&Setup { modules: plan.modules(), ..Setup::default() })?;
        let before = settled_memory(&mut server)?;
        fill(&server, kind, buckets)?;
        memory.push((kind.name, (settled_memory(&mut server)? - before) / buckets as f64));
        server.stop()?;
    }
    report.memory(buckets, &memory);

    let million = 1_000_000 / scale;
    let mut large = Vec::new();
    for (kind, buckets) in [(&SHARED, million), (&LONE, million), (&SCRIPT, million), (&SHARED, 5 * million)] {
        progress(&format!("{buckets} keys: {}", kind.name));
        large.push(measure_many(plan, kind, buckets)?);
    }
    report.many(&large);

    progress("AOF growth and memory over many calls");
    let growth = [("TB.CONSUME, allowed", &SHARED), ("script", &SCRIPT)].map(|(name, kind)| Ok((name, aof_growth(plan, kind)?)));
    report.aof(&growth.into_iter().collect::<Outcome<Vec<_>>>()?);
    let calls = if plan.quick { 1_000_000 } else { 100_000_000 };
    let (before, after) = flat(plan, calls)?;
    report.flat(calls, before, after);
    Ok(())
}

/// What was measured of a large set of one kind.
pub(crate) struct Many {
    pub(crate) name: &'static str,
    pub(crate) buckets: usize,
    pub(crate) save_s: f64,
    pub(crate) rdb_mib: f64,
    pub(crate) load_s: f64,
    pub(crate) resync_s: f64,
    /// While all expire within a second: the worst PING, and until all are gone.
    pub(crate) worst_ms: f64,
    pub(crate) gone_s: f64,
}

fn fill(server: &Server, kind: &Kind, buckets: usize) -> Outcome<()> {
    let script = &server.script;
    server.send_all((0..buckets).flat_map(|number| (kind.commands)(&key(number), number, script)))
}

/// The memory in use once tables have stopped growing.
fn settled_memory(server: &mut Server) -> Outcome<f64> {
    while server.ask::<String>(&["DEBUG", "HTSTATS", "0"])?.contains("rehashing") {
        sleep(Duration::from_millis(20));
    }
    server.info("memory", "used_memory")
}

fn measure_many(plan: &Plan, kind: &Kind, buckets: usize) -> Outcome<Many> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Server::start(&Setup { modules: plan.modules(), port: Some(port), ..Setup::default() })?;
    fill(&server, kind, buckets)?;

    let begun = Instant::now();
    let _: () = server.ask(&["SAVE"])?;
    let save_s = begun.elapsed().as_secs_f64();
    let dir = server.dir().to_owned();
    let rdb_mib = dir.join("dump.rdb").metadata()?.len() as f64 / f64::from(1 << 20);
    let load_s = load_seconds(plan, &dir, buckets)?;

    let begun = Instant::now();
    let of = format!("replicaof 127.0.0.1 {port}");
    let mut replica = Server::start(&Setup { modules: plan.modules(), lines: &[&of], ..Setup::default() })?;
    replica.wait_for_sync()?;
    let resync_s = begun.elapsed().as_secs_f64();
    replica.stop()?;

    let (worst_ms, gone_s) = storm(&mut server, buckets)?;
    server.stop()?;
    Ok(Many { name: kind.name, buckets, save_s, rdb_mib, load_s, resync_s, worst_ms, gone_s })
}

/// How long a server that starts takes to load an RDB, as it says itself.
fn load_seconds(plan: &Plan, dir: &Path, buckets: usize) -> Outcome<f64> {
    let there = format!("dir {}", dir.display());
    let mut server = Server::start(&Setup { modules: plan.modules(), lines: &[&there], ..Setup::default() })?;
    let loaded: usize = server.ask(&["DBSIZE"])?;
    if loaded != buckets {
        return Err(format!("{loaded} keys of {buckets} were loaded").into());
    }
    let log = server.log()?;
    server.stop()?;
    let seconds = log.lines().find_map(|line| line.split_once("DB loaded from disk: ")?.1.split(' ').next()?.parse().ok());
    Ok(seconds.ok_or("the server does not say how long it loaded")?)
}

/// Lets all keys expire within one second.
fn storm(server: &mut Server, buckets: usize) -> Outcome<(f64, f64)> {
    let (seconds, _): (u64, u64) = server.ask(&["TIME"])?;
    let at_ms = (seconds + 10 + buckets as u64 / 100_000) * 1000;
    server.send_all((0..buckets).map(|number| words(&format!("PEXPIREAT {} {}", key(number), at_ms + number as u64 % 1000))))?;
    let now_ms = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_millis() as u64)
    };
    sleep(Duration::from_millis(at_ms.saturating_sub(now_ms())));
    let (begun, mut worst_ms) = (Instant::now(), 0.0_f64);
    while server.ask::<usize>(&["DBSIZE"])? > 0 {
        worst_ms = worst_ms.max(latency::worst_ping_ms(&server.socket(), Duration::from_millis(100))?);
    }
    Ok((worst_ms, begun.elapsed().as_secs_f64()))
}

/// Bytes that a call adds to the AOF.
fn aof_growth(plan: &Plan, kind: &Kind) -> Outcome<f64> {
    const CALLS: usize = 50_000;
    let mut server = Server::start(&Setup { modules: plan.modules(), lines: &["appendonly yes"], ..Setup::default() })?;
    fill(&server, kind, KEYS)?;
    let before = server.info("persistence", "aof_current_size")?;
    let script = server.script.clone();
    // One token each, so that it is granted.
    let grant = |number: usize| {
        let mut command = (kind.commands)(&key(number % KEYS), 0, &script).swap_remove(0);
        if let Some(tokens) = command.last_mut() {
            "1".clone_into(tokens);
        }
        command
    };
    server.send_all((0..CALLS).map(grant))?;
    let growth = (server.info("persistence", "aof_current_size")? - before) / CALLS as f64;
    server.stop()?;
    Ok(growth)
}

/// The memory in use before and after so many grants on the same keys.
fn flat(plan: &Plan, calls: usize) -> Outcome<(f64, f64)> {
    let mut server = Server::start(&Setup { modules: plan.modules(), ..Setup::default() })?;
    let mut memory = || -> Outcome<f64> {
        let calls = (calls / 10).to_string();
        Command::new("redis-benchmark")
            .arg("-s")
            .arg(server.socket())
            .args(["-P", "50", "-n", &calls, "-r", &KEYS.to_string(), "-q"])
            .args(words("TB.CONSUME limit:call:__rand_int__ 1000000 100000"))
            .stdout(Stdio::null())
            .status()?;
        sleep(Duration::from_secs(1)); // clients that have gone are freed
        settled_memory(&mut server)
    };
    memory()?; // what the server allocates once for each command it is sent
    let before = memory()?;
    let mut after = before;
    for _ in 2..10 {
        after = memory()?;
    }
    server.stop()?;
    Ok((before, after))
}
