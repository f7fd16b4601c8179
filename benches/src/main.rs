//! Measures the module on a real server, beside what it is compared with.
//!
//! `bench` measures all and writes `numbers.md` and `numbers.svg`; `bench gate` only
//! counts instructions and fails where a call takes more than it may. `./dev bench` and
//! `./dev test` call them with what they need. To know before changing it: this process
//! and its load generators run on one core and what is measured on another, all that is
//! compared takes turns within a round, and what is told are medians over rounds, or
//! counts of instructions, so that a busy machine spoils no ratio.

#![allow(missing_docs, clippy::indexing_slicing, clippy::unwrap_used)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of measured figures, all far from any bound")]

mod chart;
mod contenders;
mod footprint;
mod instructions;
mod latency;
mod report;
mod server;
mod throughput;
mod waiting;

use std::error::Error;
use std::path::PathBuf;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What is measured, and how long.
struct Plan {
    /// The module, the floor, and perhaps redis-cell.
    module: PathBuf,
    floor: PathBuf,
    cell: Option<PathBuf>,
    /// Where the results go.
    output: PathBuf,
    quick: bool,
}

impl Plan {
    fn from_environment(quick: bool) -> Outcome<Self> {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let missing = |name: &str| format!("{name} is not set; `./dev bench` sets it");
        Ok(Self {
            module: path("MODULE").ok_or_else(|| missing("MODULE"))?,
            floor: path("FLOOR").ok_or_else(|| missing("FLOOR"))?,
            cell: path("CELL"),
            output: path("OUTPUT").ok_or_else(|| missing("OUTPUT"))?,
            quick,
        })
    }
}

fn main() -> Outcome<()> {
    server::leave_the_servers_core()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gate"] => instructions::gate(&PathBuf::from(std::env::var_os("MODULE").ok_or("MODULE is not set")?)),
        [] => measure(&Plan::from_environment(false)?),
        ["--quick"] => measure(&Plan::from_environment(true)?),
        _ => Err("bench takes nothing, --quick, or gate".into()),
    }
}

fn measure(plan: &Plan) -> Outcome<()> {
    let contenders = contenders::all(plan.cell.is_some());
    let mut report = report::Report::begin(plan)?;

    progress("instructions per call");
    let counts = instructions::count_all(plan, &contenders)?;
    report.instructions(&counts);

    let rounds = if plan.quick { 3 } else { 5 };
    let mut chart = Vec::new();
    for pipeline in [50, 1, 16, 64] {
        progress(&format!("throughput, pipeline {pipeline}"));
        let figures = throughput::compare(plan, &contenders, pipeline, rounds, &[])?;
        report.throughput(pipeline, &figures);
        if pipeline == 50 {
            chart = figures;
        }
    }
    for (name, lines, replica) in
        [("AOF everysec", &["appendonly yes", "appendfsync everysec"][..], false), ("one replica", &[], true)]
    {
        progress(&format!("throughput, {name}"));
        let figures = throughput::compare_persistent(plan, &contenders, rounds, lines, replica)?;
        report.persistence(name, replica, &figures);
    }

    progress("latency at half load");
    let slowest = throughput::compare(plan, &contenders::timed(&contenders), 1, 3, &[])?;
    let half = slowest.iter().map(|figure| figure.per_second).fold(f64::INFINITY, f64::min) / 2.0;
    report.latency(half, &latency::compare(plan, &contenders::timed(&contenders), half)?);

    progress("clients that wait");
    report.waiting(&waiting::measure(plan)?);

    progress("memory and large key sets");
    footprint::measure(plan, &mut report)?;
    chart::write(&chart, &plan.output.join("numbers.svg"))?;
    report.write(&plan.output.join("numbers.md"))
}

fn progress(what: &str) {
    eprintln!("bench: {what}");
}

/// Of several measurements, the middle one.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
