//! Instructions of the whole server for a call, counted by callgrind.
//!
//! It counts two runs, one with more calls than the other; the difference has neither
//! start nor end in it. What remains besides the calls is the server's timer, some ten
//! times a second, which can only add: so the least of several counts is the best.

use std::path::Path;

use crate::contenders::{Contender, KEYS, all};
use crate::server::{Server, Setup};
use crate::{Outcome, Plan};

const FEW: usize = 2_000;
const MANY: usize = 12_000;

/// The budgets of a call, in calls of INCR, which a server of another version or another
/// processor's libc change together. On Debian's Redis 7.0.15 an INCR takes 3,830.
const BUDGETS: [(&str, f64); 2] = [("TB.CONSUME, allowed", 2.68), ("TB.CONSUME, denied", 1.67)];

/// A contender and its instructions for a call.
pub(crate) struct Count {
    pub(crate) contender: Contender,
    pub(crate) instructions: f64,
}

pub(crate) fn count_all(plan: &Plan, contenders: &[Contender]) -> Outcome<Vec<Count>> {
    let count =
        |contender: &Contender| Ok(Count { contender: contender.clone(), instructions: count(&plan.modules(), contender)? });
    contenders.iter().map(count).collect()
}

fn count(modules: &[&Path], contender: &Contender) -> Outcome<f64> {
    let (few, many) = (total(modules, contender, FEW)?, total(modules, contender, MANY)?);
    Ok((many - few) / (MANY - FEW) as f64)
}

/// All instructions of a server that lives for `calls` calls, fifty at a time.
fn total(modules: &[&Path], contender: &Contender, calls: usize) -> Outcome<f64> {
    let dir = tempfile::tempdir()?;
    let counts = dir.path().join("counts");
    let setup = Setup { modules: modules.to_vec(), lines: &["hz 1"], counted: Some(&counts), ..Setup::default() };
    let mut server = Server::start(&setup)?;
    server.prepare(contender)?;
    let commands = contender.commands.iter().cycle();
    let script = server.script.clone();
    server.send_all(commands.zip(0..calls).map(|(command, call)| Contender::for_key(command, call % KEYS, &script)))?;
    server.stop()?;
    let text = std::fs::read_to_string(&counts)?;
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")));
    Ok(summary.ok_or("callgrind counted nothing")?.trim().parse()?)
}

/// Fails where a call takes more than its budget.
pub(crate) fn gate(module: &Path) -> Outcome<()> {
    let mut server = Server::start(&Setup::default())?;
    let version: String = server.ask(&["INFO", "server"])?;
    server.stop()?;
    if !version.contains("redis_version:7.0.") {
        println!("not counted: the budgets are for Redis 7.0");
        return Ok(());
    }
    let contenders = all(false);
    let find = |name: &str| contenders.iter().find(|contender| contender.name == name).ok_or("no such contender");
    let incr = count(&[], find("INCR")?)?;
    println!("{:<22}{incr:>7.0} instructions", "INCR");
    for (name, calls_of_incr) in BUDGETS {
        let budget = calls_of_incr * incr;
        let mut instructions = f64::INFINITY;
        for _ in 0..3 {
            instructions = instructions.min(count(&[module], find(name)?)?);
            if instructions <= budget {
                break;
            }
        }
        println!("{name:<22}{instructions:>7.0} instructions, at most {budget:.0}");
        if instructions > budget {
            return Err(format!("{name} takes {instructions:.0} instructions, more than {calls_of_incr} times INCR's").into());
        }
    }
    Ok(())
}
