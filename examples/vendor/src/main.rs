//! Runs a mock vendor: `vendor --help`. It prints the address that it serves on.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use mock_vendor::limiter::{Settings, Window};
use mock_vendor::schedule::{Surprise, What, surprises};
use mock_vendor::{Behaviour, Vendor};

/// A remote API with a strict limiter, for trying a fleet against.
#[derive(Parser)]
struct Arguments {
    /// Port on the loopback interface; 0 takes any that is free
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Calls a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// The most calls at once
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    burst: u32,
    /// Besides, so many calls in each window
    #[arg(long, requires = "window_seconds", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// The length of a window
    #[arg(long, requires = "window", value_parser = seconds)]
    window_seconds: Option<Duration>,
    /// Retry-After as an HTTP date instead of seconds
    #[arg(long)]
    dates: bool,
    /// Calls a second of other clients of the same account
    #[arg(long, default_value_t = 0.0)]
    others: f64,
    /// The least and the most time that an answer takes
    #[arg(long, num_args = 2, value_names = ["LEAST", "MOST"], value_parser = seconds, default_values = ["0.01", "0.03"])]
    latency: Vec<Duration>,
    /// A halved limit and then a freeze within so many seconds of the first call
    #[arg(long, value_parser = seconds)]
    surprises: Option<Duration>,
    /// Begins with a freeze: the first call is refused, and so is everybody for so long
    #[arg(long, value_parser = seconds)]
    freeze_first: Option<Duration>,
    /// Of surprises, latencies and others
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let window = arguments.window.zip(arguments.window_seconds).map(|(limit, length)| Window { limit, length });
    let first = arguments.freeze_first.map(|length| Surprise { at: Duration::ZERO, what: What::Freeze(length) });
    let later = arguments.surprises.map(|span| surprises(arguments.seed, span)).unwrap_or_default();
    let vendor = Vendor::new(Behaviour {
        settings: Settings { rate: arguments.rate, burst: arguments.burst, window },
        surprises: first.into_iter().chain(later).collect(),
        others: arguments.others,
        latency: (arguments.latency.first().copied().unwrap_or_default(), arguments.latency.last().copied().unwrap_or_default()),
        dates: arguments.dates,
        seed: arguments.seed,
    });
    let (address, serving) = vendor.serve(arguments.port).await.context("cannot listen")?;
    // Whoever started it reads this line to know where it is.
    writeln!(std::io::stdout(), "http://{address}")?;
    tokio::select! {
        ended = serving => Ok(ended?),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
