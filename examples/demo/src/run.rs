//! One run: a vendor, a queue and a limiter of its own, and the fleet's processes.
//!
//! What is counted comes from where nobody can be mistaken: the vendor's own log, and the
//! commandstats of a Redis that does nothing but limit.

use std::collections::{BTreeMap, HashMap};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fleet::queue::{Job, Queue};
use indicatif::ProgressBar;
use mock_vendor::book::{Call, IN_FLIGHT};
use mock_vendor::limiter::Settings;
use mock_vendor::schedule::{Surprise, surprises};
use mock_vendor::{Behaviour, Vendor};
use private_redis::Server;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::Mode;

/// What the vendor allows at first.
pub(crate) const VENDOR: Settings = Settings { rate: 100, burst: 20, window: None };

/// What the fleet is told of it: the same rate, which is what counts in the long run, and
/// less of the burst. The room is for the calls that are reserved or on their way when the
/// vendor halves its limit: of 16 workers' it then serves half. It costs as many calls, once.
pub(crate) const BURST: u32 = 8;

pub(crate) const QUEUE: &str = "fleet";
const PROCESSES: usize = 4;
const WORKERS: usize = 4;

/// Of the vendor's answers.
const LATENCY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(30));

/// A run that takes longer is counted as it is.
const MOST: Duration = Duration::from_secs(300);

/// The figures of one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Jobs enqueued.
    jobs: usize,
    /// Jobs that the vendor has accepted.
    done: usize,
    /// Jobs that it has accepted more than once.
    done_twice: usize,
    /// From the first call to the last.
    seconds: f64,
    /// The share of what the vendor would have allowed in that time.
    budget_used: f64,
    /// Calls that it refused,
    vendor_429: usize,
    /// and among them those in which neither a freeze was to blame nor a limit that the
    /// fleet could not know yet.
    vendor_429_limit_right: usize,
    /// Calls before a Retry-After had passed, bar those in flight when it was said.
    calls_during_freeze: usize,
    /// Commands of the limiter that Redis counts among those that write,
    redis_writes_per_job: f64,
    /// and among those that only read.
    redis_reads_per_job: f64,
    /// From enqueueing a job to its accepted call.
    p50_delay_seconds: f64,
    p99_delay_seconds: f64,
}

/// A run that is over.
pub(crate) struct Run {
    pub(crate) mode: Mode,
    pub(crate) figures: Figures,
    pub(crate) calls: Vec<Call>,
    pub(crate) surprises: Vec<Surprise>,
}

/// What all runs have in common.
pub(crate) struct Plan {
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
}

impl Plan {
    /// Runs the fleet in this mode.
    pub(crate) async fn run(&self, mode: Mode, progress: &ProgressBar) -> anyhow::Result<Run> {
        let limits = if mode == Mode::Tokenbucket { Server::with_module()? } else { Server::bare()? };
        let queue_server = Server::bare()?;
        // All surprises come while even the fastest fleet still has work.
        let span = Duration::from_secs_f64(as_f64(self.jobs) / f64::from(VENDOR.rate));
        let surprises = surprises(self.seed, span);
        let vendor = Vendor::new(Behaviour {
            settings: VENDOR,
            surprises: surprises.clone(),
            others: 0.0,
            latency: LATENCY,
            dates: false,
            seed: self.seed,
        });
        let (address, serving) = vendor.clone().serve(0).await?;
        let serving = tokio::spawn(serving);

        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(start_process(mode, &queue_server.url(), &limits.url(), &format!("http://{address}")).await?);
        }
        let mut stats = redis::Client::open(limits.url())?.get_multiplexed_async_connection().await?;
        redis::cmd("CONFIG").arg("RESETSTAT").query_async::<()>(&mut stats).await?;

        let queue = Queue::open(&queue_server.url(), QUEUE, "demo").await?;
        let jobs: Vec<_> = (0..self.jobs).map(|n| Job { id: format!("job-{n}"), path: "send".to_owned(), failures: 0 }).collect();
        let enqueued = Instant::now();
        queue.enqueue(&jobs).await?;
        progress.set_length(u64::try_from(self.jobs)?);
        while !queue.fill().await?.is_over() && enqueued.elapsed() < MOST {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let account = vendor.account();
            progress.set_position(u64::try_from(account.accepted)?);
            progress.set_message(format!("{mode:<11}  429s: {:<4} budget used: {:.3}", account.refused, account.budget_used));
        }
        let (writes, reads) = commands(&mut stats).await?;
        for process in processes {
            end(process).await?;
        }
        serving.abort();

        let calls = vendor.calls();
        let account = vendor.account();
        let begun = vendor.first_call().context("the vendor was never called")?;
        let delays = delays(&calls, begun - enqueued);
        let figures = Figures {
            jobs: self.jobs,
            done: delays.len(),
            done_twice: account.accepted_twice,
            seconds: rounded(account.seconds),
            budget_used: rounded(account.budget_used),
            vendor_429: account.refused,
            vendor_429_limit_right: refused_though_right(&calls),
            calls_during_freeze: account.calls_during_freeze,
            redis_writes_per_job: rounded(as_f64(writes) / as_f64(self.jobs)),
            redis_reads_per_job: rounded(as_f64(reads) / as_f64(self.jobs)),
            p50_delay_seconds: rounded(percentile(&delays, 50)),
            p99_delay_seconds: rounded(percentile(&delays, 99)),
        };
        Ok(Run { mode, figures, calls, surprises })
    }
}

/// Starts a process of the fleet and waits until it is there.
async fn start_process(mode: Mode, queue: &str, limits: &str, vendor: &str) -> anyhow::Result<Child> {
    let mut process = Command::new(std::env::current_exe()?)
        .args(["worker", &mode.to_string(), queue, limits, vendor, &WORKERS.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = process.stdout.take().context("no output")?;
    BufReader::new(output).lines().next_line().await?.context("a process of the fleet ended at once")?;
    Ok(process)
}

/// Has a process finish what it does.
async fn end(mut process: Child) -> anyhow::Result<()> {
    if let Some(pid) = process.id() {
        Command::new("kill").arg(pid.to_string()).status().await?;
    }
    process.wait().await?;
    Ok(())
}

/// How many commands a server has run that write, and that only read, by its own flags.
async fn commands(connection: &mut redis::aio::MultiplexedConnection) -> anyhow::Result<(usize, usize)> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let (mut writes, mut reads) = (0, 0);
    for line in info.lines() {
        let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) else { continue };
        let count: usize = rest.split(',').next().unwrap_or_default().parse()?;
        let about: Vec<redis::Value> =
            redis::cmd("COMMAND").arg("INFO").arg(name.replace('|', " ")).query_async(connection).await?;
        let Some(redis::Value::Array(about)) = about.into_iter().next() else { continue };
        let flags: Vec<String> = redis::from_redis_value(about.into_iter().nth(2).unwrap_or(redis::Value::Nil))?;
        if flags.iter().any(|flag| flag == "write") {
            writes += count;
        } else if flags.iter().any(|flag| flag == "readonly") {
            reads += count;
        }
    }
    Ok((writes, reads))
}

/// From enqueueing to the first accepted call, of each job that was done; the least first.
fn delays(calls: &[Call], before_first: Duration) -> Vec<f64> {
    let mut first: HashMap<&str, f64> = HashMap::new();
    for call in calls.iter().filter(|call| call.status == 200) {
        first.entry(&call.key).or_insert(call.at);
    }
    let mut delays: Vec<f64> = first.into_values().map(|at| at + before_first.as_secs_f64()).collect();
    delays.sort_by(f64::total_cmp);
    delays
}

/// Refused calls that neither a freeze nor an unknown limit excuses. A limit is known once
/// the first answer that announces it has arrived, which takes as long as an answer may;
/// calls that are in flight then are excused, too.
fn refused_though_right(calls: &[Call]) -> usize {
    let arrives = (LATENCY.1 / 2 + IN_FLIGHT).as_secs_f64();
    let (mut rate, mut known) = (VENDOR.rate, f64::NEG_INFINITY);
    let mut count = 0;
    for call in calls {
        if call.rate != rate {
            (rate, known) = (call.rate, call.at + arrives);
        }
        count += usize::from(call.status == 429 && !call.frozen && call.at > known);
    }
    count
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

fn as_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// To a thousandth: more would be noise.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// All modes as a table for people.
pub(crate) fn table(runs: &[Run]) -> anyhow::Result<String> {
    let columns: Vec<serde_json::Map<String, serde_json::Value>> =
        runs.iter().map(|run| serde_json::from_value(serde_json::to_value(&run.figures)?)).collect::<Result<_, _>>()?;
    let mut text = format!("{:<24}", "");
    for run in runs {
        text += &format!("{:>13}", run.mode.to_string());
    }
    for name in ROWS {
        text += &format!("\n{name:<24}");
        for figures in &columns {
            text += &format!("{:>13}", figures.get(*name).map(ToString::to_string).unwrap_or_default());
        }
    }
    Ok(text)
}

/// In the order of [`Figures`].
const ROWS: &[&str] = &[
    "jobs",
    "done",
    "done_twice",
    "seconds",
    "budget_used",
    "vendor_429",
    "vendor_429_limit_right",
    "calls_during_freeze",
    "redis_writes_per_job",
    "redis_reads_per_job",
    "p50_delay_seconds",
    "p99_delay_seconds",
];

/// All modes for programs.
pub(crate) fn json(runs: &[Run]) -> serde_json::Result<String> {
    let figures: BTreeMap<_, _> = runs.iter().map(|run| (run.mode.to_string(), &run.figures)).collect();
    serde_json::to_string_pretty(&figures)
}
