//! The demonstration: `./dev demo`.
//!
//! One vendor, one fleet, three ways to pace it. Every run meets the same vendor with
//! the same surprises, and has as many processes and workers.

#![forbid(unsafe_code)]

mod chart;
mod pace;
mod run;

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use fleet::pace::{Budget, Pace};
use fleet::queue::Queue;
use fleet::worker::Worker;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use run::{BURST, Plan, QUEUE, VENDOR};

/// A fleet against a vendor, paced by a token bucket, by a script, and not at all.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    show: Show,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Args)]
struct Show {
    /// Jobs of each run
    #[arg(long, default_value_t = 2000)]
    jobs: usize,
    /// The ways to pace the fleet
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Mode::Tokenbucket, Mode::Lua, Mode::Retry])]
    modes: Vec<Mode>,
    /// Of the vendor's surprises and latencies
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes the drawing
    #[arg(long, overrides_with = "svg")]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Part {
    /// A process of the fleet; the demonstration starts them
    #[command(hide = true)]
    Worker { mode: Mode, queue: String, limits: String, vendor: String, workers: usize },
}

/// How the fleet is paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Tokenbucket,
    Lua,
    Retry,
}

impl Mode {
    const fn about(self) -> &'static str {
        match self {
            Self::Tokenbucket => "TB.CONSUME reserves a slot, a 429 stops everybody",
            Self::Lua => "a token bucket as a script, each worker minds its own 429",
            Self::Retry => "call, and on a 429 sleep and retry",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tokenbucket => "tokenbucket",
            Self::Lua => "lua",
            Self::Retry => "retry",
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse() {
        Arguments { part: Some(Part::Worker { mode, queue, limits, vendor, workers }), .. } => {
            let queue = Queue::open(&queue, QUEUE, &format!("process-{}", std::process::id())).await?;
            match mode {
                Mode::Tokenbucket => {
                    let budget = Budget::open(&limits, "limit:vendor", VENDOR.rate, BURST).await?;
                    work(queue, budget, vendor, workers).await
                }
                Mode::Lua => work(queue, pace::Lua::open(&limits, VENDOR.rate, BURST).await?, vendor, workers).await,
                Mode::Retry => work(queue, pace::Retry, vendor, workers).await,
            }
        }
        Arguments { show, .. } => demonstrate(show).await,
    }
}

/// One process of the fleet, until it is told to end.
async fn work(queue: Queue, pace: impl Pace, vendor: String, workers: usize) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    // Whoever started it waits for this line.
    writeln!(std::io::stdout(), "ready")?;
    let worker = Worker { queue, pace, vendor, client: reqwest::Client::new() };
    worker
        .run(workers, async move {
            terminated.recv().await;
        })
        .await
}

async fn demonstrate(show: Show) -> anyhow::Result<()> {
    let plan = Plan { jobs: show.jobs, seed: show.seed };
    let mut runs = Vec::new();
    for mode in show.modes {
        let progress = ProgressBar::new(0);
        progress.set_style(ProgressStyle::with_template("{msg}  {wide_bar} {pos}/{len} {elapsed}")?);
        let run = plan.run(mode, &progress).await.with_context(|| format!("the run of {mode}"))?;
        progress.finish();
        runs.push(run);
    }
    println!("{}", run::table(&runs)?);
    if let Some(path) = show.json {
        std::fs::write(&path, run::json(&runs)? + "\n").with_context(|| path.display().to_string())?;
    }
    if let Some(path) = show.svg {
        chart::draw(&runs, &path)?;
        println!("drawn: {}", path.display());
    }
    Ok(())
}
