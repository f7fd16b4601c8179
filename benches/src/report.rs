//! `numbers.md`: the results, and all that is needed to judge and repeat them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::contenders::Beside;
use crate::footprint::Many;
use crate::instructions::Count;
use crate::latency::{Latency, ROUNDS};
use crate::throughput::{Figure, ratio};
use crate::waiting::Waiting;
use crate::{Outcome, Plan};

pub(crate) struct Report {
    text: String,
    load_before: String,
}

/// What a command prints, on one line.
fn said(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    output.map_or_else(|_| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().replace('\n', " "))
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .map_or_else(|_| "unknown".to_owned(), |text| text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

impl Report {
    pub(crate) fn begin(plan: &Plan) -> Outcome<Self> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut text = String::from("# Numbers\n\n<!-- Written by ./dev bench; not by hand. -->\n\n");
        writeln!(text, "| | |\n|---|---|")?;
        writeln!(
            text,
            "| machine | {}, {} cores, Linux {} |",
            cpu.map_or("unknown", |(_, name)| name),
            cpuinfo.matches("model name").count(),
            said("uname", &["-r"])
        )?;
        writeln!(text, "| server | {} |", said(&server, &["--version"]).split(" sha=").next().unwrap_or_default())?;
        let changed = if said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { ", changed" };
        writeln!(text, "| commit | {}{changed} |", said("git", &["rev-parse", "--short=12", "HEAD"]))?;
        writeln!(text, "| date | {} |", said("date", &["-u", "+%Y-%m-%d"]))?;
        writeln!(
            text,
            "| redis-cell | {} |",
            if plan.cell.is_some() { "yes" } else { "not measured: `CELL=path/to/libredis_cell.so ./dev bench`" }
        )?;
        let how = if plan.quick { "./dev bench --quick" } else { "./dev bench" };
        writeln!(text, "| rerun | `{how}` |")?;
        text += "\nThe server has one core and the load generators another. Persistence is off unless it \
                 says otherwise. There are 1,000 keys of 23 bytes, and 50 connections. All that is compared takes \
                 turns in every round; a figure is the median of its rounds, a ratio the median of the \
                 rounds' ratios. The script is [token_bucket.lua](token_bucket.lua), called by EVALSHA; the API \
                 floor a [module](floor/src/lib.rs) that opens its key, reads the value, for a grant writes and \
                 replicates it, replies element by element, and decides nothing; mending, one that also asks when \
                 its key expires. TB.CONSUME sends its reply in one piece, so a denial can be below that floor.\n";
        Ok(Self { text, load_before: load() })
    }

    fn section(&mut self, title: &str, why: &str) {
        let _ = write!(self.text, "\n## {title}\n\n");
        if !why.is_empty() {
            let _ = write!(self.text, "{why}\n\n");
        }
    }

    fn line(&mut self, cells: &[String]) {
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    /// A table's head; the first column is text.
    fn head(&mut self, columns: &[&str]) {
        self.line(&columns.iter().map(|column| (*column).to_owned()).collect::<Vec<_>>());
        let _ = writeln!(self.text, "|---|{}", "---:|".repeat(columns.len() - 1));
    }

    pub(crate) fn instructions(&mut self, counts: &[Count]) {
        self.section(
            "Instructions",
            "Of the whole server for a call, at pipeline 50, counted by callgrind. They repeat to 1.5 %, on any \
             machine with the same libc, so `./dev test` fails where a grant takes more than 2.68 times an \
             INCR, or a denial more than 1.67 times.",
        );
        self.head(&["", "instructions", "of an INCR"]);
        let incr = counts.iter().find(|count| count.contender.name == "INCR").map_or(f64::NAN, |count| count.instructions);
        for count in counts {
            let cells =
                [count.contender.name.to_owned(), thousands(count.instructions), format!("{:.2}", count.instructions / incr)];
            self.line(&cells);
        }
    }

    pub(crate) fn throughput(&mut self, pipeline: usize, figures: &[Figure]) {
        self.section(&format!("Calls a second, pipeline {pipeline}"), "");
        self.head(&["", "calls/s", "rounds", "server µs/call", "commandstats µs/call"]);
        for figure in figures {
            self.line(&[
                figure.contender.name.to_owned(),
                thousands(figure.per_second),
                format!("{:+.0} to {:+.0} %", (figure.spread.0 - 1.0) * 100.0, (figure.spread.1 - 1.0) * 100.0),
                format!("{:.2}", figure.cpu_us),
                format!("{:.2}", figure.command_us),
            ]);
        }
        self.ratios(figures);
    }

    fn ratios(&mut self, figures: &[Figure]) {
        self.text.push('\n');
        self.head(&[
            "times as many calls a second (in brackets: by processor time)",
            "script",
            "CL.THROTTLE",
            "API floor",
            "mending",
        ]);
        for figure in figures {
            let Some(Beside { script, cell, floor, mending }) = figure.contender.beside else { continue };
            let mut cells = vec![figure.contender.name.to_owned()];
            for other in [Some(script), Some(cell), Some(floor), mending] {
                let times = other.and_then(|other| ratio(figures, figure.contender.name, other, |round| round.per_second));
                let by_cpu = other.and_then(|other| ratio(figures, other, figure.contender.name, |round| round.cpu_us));
                cells.push(match times.zip(by_cpu) {
                    Some((times, by_cpu)) => format!("{times:.2} ({by_cpu:.2})"),
                    None => "–".to_owned(),
                });
            }
            self.line(&cells);
        }
    }

    pub(crate) fn persistence(&mut self, name: &str, replica: bool, figures: &[Figure]) {
        let shared = if replica { " The replica shares the generators' core, so that the server has its own." } else { "" };
        self.section(&format!("With {name}"), &format!("Pipeline 50; the script under the same persistence.{shared}"));
        self.head(&["", "calls/s", "server µs/call"]);
        for figure in figures {
            self.line(&[figure.contender.name.to_owned(), thousands(figure.per_second), format!("{:.2}", figure.cpu_us)]);
        }
        self.ratios(figures);
    }

    pub(crate) fn latency(&mut self, rate: f64, latencies: &[Latency]) {
        self.section(
            "Latency at half load",
            &format!(
                "{} calls a second, sent one by one when they are due, whatever is still unanswered: half of \
                 what the slowest of them reaches so. In microseconds, from when a call was due; medians of \
                 {ROUNDS} rounds. A stall rarer than every second round is in none of them: p99.9 is that of \
                 a round that nothing disturbed.",
                thousands(rate)
            ),
        );
        self.head(&["", "p50", "p99", "p99.9", "p99 of GET's"]);
        let get = latencies.iter().find(|latency| latency.contender.name == "GET").map_or(f64::NAN, |latency| latency.p99);
        for Latency { contender, p50, p99, p999 } in latencies {
            self.line(&[
                contender.name.to_owned(),
                format!("{p50:.0}"),
                format!("{p99:.0}"),
                format!("{p999:.0}"),
                format!("{:.2}", p99 / get),
            ]);
        }
    }

    pub(crate) fn waiting(&mut self, waiting: &Waiting) {
        let clients = thousands(waiting.clients as f64);
        self.section("Clients that wait", &format!("{clients} of them in TB.BCONSUME."));
        self.head(&["", "figure"]);
        let [alone, behind, windowed] = waiting.denied_us;
        let [idle, waited] = waiting.sets;
        for (what, figure) in [
            (
                "a bucket for each, turns over 5 s: from the turn to its reply, median, p99, most",
                format!("{:.2}, {:.2}, {:.2} ms", waiting.p50_ms, waiting.p99_ms, waiting.most_ms),
            ),
            (
                "one bucket for all: until all were served, and what the rate says",
                format!("{:.3}, {:.3} s", waiting.queue_seconds, waiting.queue_due_seconds),
            ),
            (
                "nobody's turn: processor time of the server; with as many idle clients",
                format!("{:.2}, {:.2} %", waiting.idle_cpu * 100.0, waiting.idle_cpu_without * 100.0),
            ),
            ("memory for each, besides its connection", format!("{:.0} bytes", waiting.bytes)),
            (
                "a TB.CONSUME that is denied: alone, behind all, behind all and a vendor's window",
                format!("{alone:.2}, {behind:.2}, {windowed:.2} µs"),
            ),
            (
                "SETs for the same processor time, of those without the module: with it, and while one waits",
                format!("{idle:.2}, {waited:.2}"),
            ),
        ] {
            self.line(&[what.to_owned(), figure]);
        }
    }

    pub(crate) fn memory(&mut self, buckets: usize, memory: &[(&str, f64)]) {
        self.section("Memory", &format!("Bytes for a key, all told, of {} with a TTL.", thousands(buckets as f64)));
        self.head(&["", "bytes"]);
        for (name, bytes) in memory {
            self.line(&[(*name).to_owned(), format!("{bytes:.0}")]);
        }
    }

    pub(crate) fn many(&mut self, sets: &[Many]) {
        self.section(
            "Large sets",
            "SAVE, the load of that RDB by a server that starts, a replica from its start to the end of its full \
             resync, and all keys expiring within one second: the worst PING meanwhile, and until all are gone.",
        );
        self.head(&["", "keys", "save s", "RDB MiB", "load s", "resync s", "worst PING ms", "gone after s"]);
        for set in sets {
            self.line(&[
                set.name.to_owned(),
                thousands(set.buckets as f64),
                format!("{:.2}", set.save_s),
                format!("{:.1}", set.rdb_mib),
                format!("{:.2}", set.load_s),
                format!("{:.2}", set.resync_s),
                format!("{:.1}", set.worst_ms),
                format!("{:.1}", set.gone_s),
            ]);
        }
    }

    pub(crate) fn aof(&mut self, growth: &[(&str, f64)]) {
        self.section("AOF", "Bytes that a grant adds to it.");
        self.head(&["", "bytes"]);
        for (name, bytes) in growth {
            self.line(&[(*name).to_owned(), format!("{bytes:.0}")]);
        }
    }

    pub(crate) fn flat(&mut self, calls: usize, before: f64, after: f64) {
        self.section("Memory over many calls", "");
        let _ = writeln!(
            self.text,
            "After {} grants on 1,000 keys the server uses {} bytes, after {} grants {} bytes.",
            thousands(calls as f64 / 5.0),
            thousands(before),
            thousands(calls as f64),
            thousands(after)
        );
    }

    pub(crate) fn write(mut self, file: &Path) -> Outcome<()> {
        let niceness = match said("nice", &[]).as_str() {
            "0" => String::new(),
            niceness => format!(" All that is measured ran at niceness {niceness}, for the machine had other work."),
        };
        let noise = format!(
            "The machine's load average was {} before and {} after.{niceness} The columns \"rounds\" say how far single \
             rounds were from their median.",
            self.load_before,
            load()
        );
        self.section("How noisy it was", &noise);
        Ok(std::fs::write(file, self.text.trim_end().to_owned() + "\n")?)
    }
}

/// A whole number with commas.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
