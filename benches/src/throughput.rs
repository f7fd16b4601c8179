//! A saturated server: calls per second, and its time for each, by redis-benchmark.

use std::process::{Command, Stdio};

use crate::contenders::{Contender, KEYS, SCRIPT};
use crate::server::{Server, Setup};
use crate::{Outcome, Plan, median};

/// What a contender came to, each the median of its rounds.
#[derive(Clone)]
pub(crate) struct Figure {
    pub(crate) contender: Contender,
    pub(crate) per_second: f64,
    /// The lowest and highest round, as parts of the median.
    pub(crate) spread: (f64, f64),
    /// Processor time of the whole server for a call, in microseconds.
    pub(crate) cpu_us: f64,
    /// What commandstats says a call takes, in microseconds.
    pub(crate) command_us: f64,
    /// In each round, how many times as many calls as the others, by name.
    pub(crate) rounds: Vec<Round>,
}

/// One turn of one contender.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) per_second: f64,
    pub(crate) cpu_us: f64,
    command_us: f64,
}

/// All contenders in turn, round after round, on one server.
pub(crate) fn compare(
    plan: &Plan,
    contenders: &[Contender],
    pipeline: usize,
    rounds: usize,
    lines: &[&str],
) -> Outcome<Vec<Figure>> {
    let mut server = Server::start(&Setup { modules: plan.modules(), lines, ..Setup::default() })?;
    let figures = take_turns(plan, &mut server, contenders, pipeline, rounds)?;
    server.stop()?;
    Ok(figures)
}

/// Those that matter with an AOF or a replica.
pub(crate) fn compare_persistent(
    plan: &Plan,
    contenders: &[Contender],
    rounds: usize,
    lines: &[&str],
    replica: bool,
) -> Outcome<Vec<Figure>> {
    let names = ["TB.CONSUME, allowed", "TB.CONSUME, denied", "script, allowed", "script, denied", "INCR"];
    let contenders: Vec<_> = contenders.iter().filter(|contender| names.contains(&contender.name)).cloned().collect();
    // A port that is free now, for the replica to find it.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Server::start(&Setup { modules: plan.modules(), lines, port: Some(port), ..Setup::default() })?;
    let follower = if replica {
        let of = format!("replicaof 127.0.0.1 {port}");
        let mut follower = Server::start(&Setup { modules: plan.modules(), lines: &[&of], aside: true, ..Setup::default() })?;
        follower.wait_for_sync()?;
        Some(follower)
    } else {
        None
    };
    let figures = take_turns(plan, &mut server, &contenders, 50, rounds)?;
    if let Some(follower) = follower {
        follower.stop()?;
    }
    server.stop()?;
    Ok(figures)
}

fn take_turns(
    plan: &Plan,
    server: &mut Server,
    contenders: &[Contender],
    pipeline: usize,
    rounds: usize,
) -> Outcome<Vec<Figure>> {
    let seconds = if plan.quick { 0.15 } else { 0.3 };
    let mut turns = vec![Vec::new(); contenders.len()];
    let mut calls = vec![0; contenders.len()];
    for round in 0..=rounds {
        for ((contender, turns), calls) in contenders.iter().zip(&mut turns).zip(&mut calls) {
            server.prepare(contender)?;
            if round == 0 {
                // Warms up, and says how many calls take how long.
                let turn = take_turn(server, contender, pipeline, 5_000)?;
                *calls = ((turn.per_second * seconds) as usize).max(2_000);
            } else {
                turns.push(take_turn(server, contender, pipeline, *calls)?);
            }
        }
    }
    let figure = |(contender, rounds): (&Contender, Vec<Round>)| {
        let of = |part: fn(&Round) -> f64| rounds.iter().map(part).collect::<Vec<_>>();
        let per_second = of(|round| round.per_second);
        let middle = median(per_second.clone());
        Figure {
            contender: contender.clone(),
            per_second: middle,
            spread: (
                per_second.iter().copied().fold(f64::INFINITY, f64::min) / middle,
                per_second.iter().copied().fold(0.0, f64::max) / middle,
            ),
            cpu_us: median(of(|round| round.cpu_us)),
            command_us: median(of(|round| round.command_us)),
            rounds,
        }
    };
    Ok(contenders.iter().zip(turns).map(figure).collect())
}

/// `calls` calls, shared out among the contender's commands, each sent by a generator.
fn take_turn(server: &mut Server, contender: &Contender, pipeline: usize, calls: usize) -> Outcome<Round> {
    let _: () = server.ask(&["CONFIG", "RESETSTAT"])?;
    let cpu_before = server.cpu_seconds()?;
    let each = calls / contender.commands.len();
    let mut generators = Vec::new();
    for command in &contender.commands {
        let words = command.iter().map(|word| if *word == SCRIPT { server.script.as_str() } else { word });
        let generator = Command::new("redis-benchmark")
            .arg("-s")
            .arg(server.socket())
            .args(["-P", &pipeline.to_string(), "-n", &each.to_string(), "-r", &KEYS.to_string(), "--csv"])
            .args(["-c", "50"])
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        generators.push(generator);
    }
    let mut per_second = 0.0;
    for generator in generators {
        let output = generator.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let field = text.lines().last().and_then(|line| line.rsplit("\",\"").nth(6)).map(|field| field.trim_matches('"'));
        let rate: Option<f64> = field.and_then(|field| field.parse().ok());
        per_second += rate.ok_or_else(|| format!("redis-benchmark said {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    }
    let cpu_us = (server.cpu_seconds()? - cpu_before) * 1e6 / (each * contender.commands.len()) as f64;
    Ok(Round { per_second, cpu_us, command_us: command_us(server, contender)? })
}

/// Microseconds a call, as commandstats has it.
fn command_us(server: &mut Server, contender: &Contender) -> Outcome<f64> {
    let name = contender.commands[0][0];
    let text: String = server.ask(&["INFO", "commandstats"])?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let stats = lines.into_iter().find(|(command, _)| command.eq_ignore_ascii_case(name)).map(|(_, stats)| stats);
    let stats = stats.ok_or_else(|| format!("{name} was not called"))?;
    let us = stats.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
    Ok(us.ok_or("no usec_per_call")?.parse()?)
}

/// The median over rounds of how many times as fast the first is.
pub(crate) fn ratio(figures: &[Figure], one: &str, other: &str, of: fn(&Round) -> f64) -> Option<f64> {
    let find = |name: &str| figures.iter().find(|figure| figure.contender.name == name);
    let (one, other) = (find(one)?, find(other)?);
    Some(median(one.rounds.iter().zip(&other.rounds).map(|(one, other)| of(one) / of(other)).collect()))
}
