//! The fleet's commands: `fleet --help`.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use fleet::pace::Budget;
use fleet::queue::{Job, Queue};
use fleet::worker::Worker;
use tokio::signal::unix::{SignalKind, signal};

/// Workers that spend one budget and stop as one when the vendor says 429.
#[derive(Parser)]
struct Arguments {
    /// The Redis with the queue and the bucket
    #[arg(long, global = true, default_value = "redis://127.0.0.1:6379")]
    redis: String,
    /// The queue's name there: a vendor, a queue (and a `--key`)
    #[arg(long, global = true, default_value = "fleet")]
    queue: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Adds jobs to the queue
    Enqueue {
        /// How many
        jobs: usize,
        /// What they call at the vendor
        #[arg(long, default_value = "send")]
        path: String,
    },
    /// Works until it is interrupted; start as many as you like, anywhere
    Work(Work),
    /// Says how old the oldest job is, how many are in flight, how many were given up
    Status {
        /// Again every second
        #[arg(long)]
        watch: bool,
    },
    /// Puts the jobs that were given up back into the queue
    Redrive,
}

#[derive(Args)]
struct Work {
    /// The vendor's address
    #[arg(long, default_value = "http://127.0.0.1:8429")]
    vendor: String,
    /// Jobs at a time
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// The bucket that the whole fleet shares
    #[arg(long, default_value = "limit:vendor")]
    key: String,
    /// Calls a second, until the vendor announces another rate
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// The most calls at once: the vendor's, less what may be in flight
    #[arg(long, default_value_t = 18)]
    burst: u32,
    /// Ends when the queue is empty
    #[arg(long)]
    until_empty: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { redis, queue, command } = Arguments::parse();
    let consumer = format!("process-{}-{}", std::process::id(), unique());
    let queue = Queue::open(&redis, &queue, &consumer).await.with_context(|| format!("cannot open the queue at {redis}"))?;
    match command {
        Command::Enqueue { jobs, path } => {
            let batch = unique();
            let jobs: Vec<_> = (0..jobs).map(|n| Job { id: format!("{batch:x}-{n}"), path: path.clone(), failures: 0 }).collect();
            queue.enqueue(&jobs).await?;
            println!("{} jobs added", jobs.len());
        }
        Command::Work(work) => {
            let pace = Budget::open(&redis, &work.key, work.rate, work.burst).await?;
            let worker = Worker { queue: queue.clone(), pace, vendor: work.vendor, client: reqwest::Client::new() };
            worker.run(work.workers, stop(queue, work.until_empty)).await?;
        }
        Command::Status { watch } => loop {
            println!("{}", queue.fill().await?);
            if !watch {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        },
        Command::Redrive => println!("{} jobs go again", queue.redrive().await?),
    }
    Ok(())
}

/// Comes when the process is to end.
async fn stop(queue: Queue, until_empty: bool) {
    let empty = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if until_empty && queue.fill().await.is_ok_and(|fill| fill.is_over()) {
                return;
            }
        }
    };
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = empty => {}
        _ = terminated => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// A number that no other process has: process ids repeat from machine to machine.
fn unique() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}
