//! Buckets in every state, and what each command answers on them: what a server
//! must carry over a restart, to a replica or to another key.
//!
//! Each scenario is set up twice, as twins, in one transaction. The first is asked
//! at once; the second after whatever the test does in between. Both must answer
//! the same. Durations have run on by then: told at a moment, each says when it
//! ends, and *that* must be the same, to the millisecond that it was rounded to.
//! Everything else must be equal. Rates are so low that nothing else changes.

use redis::Value;

use crate::connection::{Connection, array, error_text, int, pairs, text, time_us};

pub(crate) struct Scenario {
    /// What is done to `k` before.
    setup: &'static [&'static str],
    /// What `k` is asked; it may change the bucket.
    probe: &'static str,
    durations: Durations,
}

/// How the durations in the probe's reply are counted.
#[derive(Clone, Copy)]
enum Durations {
    /// To a moment that the setup has set.
    RunOn,
    /// From the probe on.
    BeginAnew,
}

const fn run_on(setup: &'static [&'static str], probe: &'static str) -> Scenario {
    Scenario { setup, probe, durations: Durations::RunOn }
}

const fn anew(setup: &'static [&'static str], probe: &'static str) -> Scenario {
    Scenario { setup, probe, durations: Durations::BeginAnew }
}

const SIX_LEFT: &[&str] = &["TB.CONSUME k 10 1e-8 4"];
const EMPTY: &[&str] = &["TB.CONSUME k 10 1e-8 10"];
const RESERVED: &[&str] = &["TB.CONSUME k 10 1e-7 10", "TB.CONSUME k 10 1e-7 1 MAXWAIT 31622400"];
const DEBT: &[&str] = &["TB.CONSUME k 10 1e-8 10", "TB.CONSUME k 10 1e-8 5 FORCE"];
const FROZEN: &[&str] = &["TB.CONSUME k 10 1e-7 4", "TB.PENALISE k 1000"];
const FROZEN_IN_DEBT: &[&str] = &["TB.CONSUME k 10 1e-7 13 FORCE", "TB.PENALISE k 1000"];
const WINDOW: &[&str] = &["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 3 RESET 600"];
const WINDOW_USED_UP: &[&str] = &["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 0 RESET 600"];
const VENDOR_LIMIT: &[&str] = &["TB.CONSUME k 10 1e-8 1", "TB.SYNC k 8 LIMIT 3"];
const EVERYTHING: &[&str] = &["TB.CONSUME k 10 1e-7 11 FORCE", "TB.SYNC k 5 LIMIT 4 RESET 700", "TB.PENALISE k 300"];
const CHANGED_LIMIT: &[&str] = &["TB.CONSUME k 10 1e-8 4", "TB.CONSUME k 5 2e-8 1"];
/// 1 per 86400, as Python prints it.
const ODD_RATE: &[&str] = &["TB.CONSUME k 10 1.1574074074074073e-05 4.5"];
/// Its terms are as long as they get.
const LONG_RATE: &[&str] = &["TB.CONSUME k 1e12 999999999989 5e11 PER 0.00123456789012", "TB.PENALISE k 1000.000001"];
const TINY: &[&str] = &["TB.CONSUME k 0.000003 1e-14 0.000001"];
const LARGE: &[&str] = &["TB.CONSUME k 1e12 1e6 1e12", "TB.PENALISE k 1000"];
const BARE_FROZEN: &[&str] = &["TB.PENALISE k 1000"];
const BARE_EMPTY: &[&str] = &["TB.PENALISE k 0"];
const BARE_SYNCED: &[&str] = &["TB.SYNC k 4.25"];
const BARE_WINDOW: &[&str] = &["TB.SYNC k 3 RESET 600"];
const BARE_LIMIT: &[&str] = &["TB.SYNC k 5 LIMIT 3 RESET 0"];
const BARE_EVERYTHING: &[&str] = &["TB.SYNC k 5 LIMIT 4 RESET 700", "TB.PENALISE k 300", "TB.SYNC k 2 RESET 800"];

pub(crate) const SCENARIOS: &[Scenario] = &[
    // ---- TB.CONSUME
    run_on(SIX_LEFT, "TB.CONSUME k 10 1e-8"),
    run_on(SIX_LEFT, "TB.CONSUME k 10 1e-8 0"),
    run_on(SIX_LEFT, "TB.CONSUME k 10 1e-8 7"),
    run_on(SIX_LEFT, "TB.CONSUME k 10 1e-8 11"),
    run_on(SIX_LEFT, "TB.CONSUME k 10 1e-8 20 UPTO"),
    anew(SIX_LEFT, "TB.CONSUME k 20 3e-8 2"),
    run_on(EMPTY, "TB.CONSUME k 10 1e-8 5 UPTO"),
    run_on(EMPTY, "TB.CONSUME k 10 1e-8 2 FORCE"),
    run_on(&["TB.CONSUME k 10 1e-7 10"], "TB.CONSUME k 10 1e-7 3 MAXWAIT 31622400"),
    run_on(RESERVED, "TB.CONSUME k 10 1e-7 2 MAXWAIT 31622400"),
    run_on(RESERVED, "TB.CONSUME k 10 1e-7 2 MAXWAIT 1000000"),
    run_on(RESERVED, "TB.CONSUME k 10 1e-7 0"),
    run_on(DEBT, "TB.CONSUME k 10 1e-8"),
    run_on(DEBT, "TB.CONSUME k 10 1e-8 0"),
    run_on(DEBT, "TB.CONSUME k 10 1e-8 2 FORCE"),
    run_on(DEBT, "TB.CONSUME k 20 3e-8 2 FORCE"),
    run_on(FROZEN, "TB.CONSUME k 10 1e-7"),
    run_on(FROZEN, "TB.CONSUME k 10 1e-7 0"),
    run_on(FROZEN, "TB.CONSUME k 10 1e-7 2 MAXWAIT 31622400"),
    run_on(FROZEN, "TB.CONSUME k 10 1e-7 2 FORCE"),
    run_on(FROZEN, "TB.CONSUME k 20 3e-6 2"),
    run_on(FROZEN_IN_DEBT, "TB.CONSUME k 10 1e-7"),
    run_on(&["TB.CONSUME k 10 1e-7", "TB.PENALISE k UNTIL 99999999999"], "TB.CONSUME k 10 1e-7"),
    run_on(WINDOW, "TB.CONSUME k 10 1e-8 1"),
    run_on(WINDOW, "TB.CONSUME k 10 1e-8 4"),
    run_on(WINDOW, "TB.CONSUME k 10 1e-8 9 UPTO"),
    run_on(WINDOW, "TB.CONSUME k 10 1e-8 4 MAXWAIT 9"),
    run_on(WINDOW_USED_UP, "TB.CONSUME k 10 1e-8"),
    run_on(WINDOW_USED_UP, "TB.CONSUME k 10 1e-8 0"),
    run_on(
        &["TB.CONSUME k 10 0.01 10", "TB.SYNC k 4 RESET 900", "TB.CONSUME k 10 0.01 1 MAXWAIT 500"],
        "TB.CONSUME k 10 0.01 3 FORCE",
    ),
    run_on(VENDOR_LIMIT, "TB.CONSUME k 10 1e-8 4"),
    anew(VENDOR_LIMIT, "TB.CONSUME k 10 1e-8 2"),
    run_on(&["TB.CONSUME k 10 1e-8 3", "TB.SYNC k 8 LIMIT 30"], "TB.CONSUME k 10 1e-8 2"),
    run_on(EVERYTHING, "TB.CONSUME k 10 1e-7 2"),
    run_on(EVERYTHING, "TB.CONSUME k 10 1e-7 5"),
    run_on(CHANGED_LIMIT, "TB.CONSUME k 5 2e-8 1"),
    run_on(&["TB.CONSUME k 10 1e-8 10", "TB.CONSUME k 20 3e-8 15"], "TB.CONSUME k 20 3e-8 1"),
    run_on(ODD_RATE, "TB.CONSUME k 10 1 1 PER 86400"),
    run_on(ODD_RATE, "TB.CONSUME k 10 1 6 PER 86400"),
    run_on(&["TB.CONSUME k 2.5 7 1.75 PER 604801.5"], "TB.CONSUME k 2.5 7 0.5 PER 604801.5"),
    run_on(LONG_RATE, "TB.CONSUME k 1e12 999999999989 1 PER 0.00123456789012"),
    run_on(TINY, "TB.CONSUME k 0.000003 1e-14 0.000001"),
    run_on(LARGE, "TB.CONSUME k 1e12 1e6 1e12"),
    run_on(&["TB.CONSUME k 10 1e-8 6", "TB.REFUND k 1.5"], "TB.CONSUME k 10 1e-8 2"),
    run_on(BARE_FROZEN, "TB.CONSUME k 10 1e-8"),
    run_on(BARE_EMPTY, "TB.CONSUME k 10 1e-8"),
    run_on(BARE_SYNCED, "TB.CONSUME k 10 1e-8"),
    anew(BARE_WINDOW, "TB.CONSUME k 10 1e-8 2"),
    anew(BARE_LIMIT, "TB.CONSUME k 10 1e-8 2"),
    run_on(BARE_EVERYTHING, "TB.CONSUME k 10 1e-8 1"),
    // ---- TB.PENALISE
    anew(SIX_LEFT, "TB.PENALISE k 100"),
    anew(EMPTY, "TB.PENALISE k UNTIL 99999999999"),
    run_on(RESERVED, "TB.PENALISE k 5"),
    run_on(DEBT, "TB.PENALISE k 10"),
    run_on(FROZEN, "TB.PENALISE k 10"),
    anew(FROZEN, "TB.PENALISE k 2000"),
    run_on(FROZEN_IN_DEBT, "TB.PENALISE k 0"),
    anew(WINDOW, "TB.PENALISE k 30"),
    run_on(EVERYTHING, "TB.PENALISE k 40"),
    run_on(BARE_FROZEN, "TB.PENALISE k 0"),
    anew(BARE_SYNCED, "TB.PENALISE k 50"),
    // ---- TB.SYNC
    run_on(SIX_LEFT, "TB.SYNC k 3"),
    run_on(SIX_LEFT, "TB.SYNC k 9"),
    run_on(SIX_LEFT, "TB.SYNC k 5 TOLERANCE 2"),
    run_on(DEBT, "TB.SYNC k 0"),
    run_on(&["TB.CONSUME k 10 0.5 30 FORCE"], "TB.SYNC k 28 RESET 600"),
    run_on(FROZEN, "TB.SYNC k 5 LIMIT 2"),
    run_on(WINDOW, "TB.SYNC k 1 RESET 300"),
    run_on(WINDOW, "TB.SYNC k 3 RESET 900"),
    run_on(WINDOW, "TB.SYNC k 2"),
    run_on(VENDOR_LIMIT, "TB.SYNC k 9 LIMIT 3"),
    run_on(VENDOR_LIMIT, "TB.SYNC k 9 LIMIT 2"),
    run_on(BARE_FROZEN, "TB.SYNC k 2"),
    run_on(BARE_SYNCED, "TB.SYNC k 6"),
    run_on(BARE_SYNCED, "TB.SYNC k 1"),
    run_on(BARE_WINDOW, "TB.SYNC k 5 RESET 900"),
    run_on(BARE_EVERYTHING, "TB.SYNC k 1 RESET 900"),
    // ---- TB.REFUND
    run_on(SIX_LEFT, "TB.REFUND k 2"),
    run_on(SIX_LEFT, "TB.REFUND k 100"),
    run_on(DEBT, "TB.REFUND k 3"),
    run_on(DEBT, "TB.REFUND k 9"),
    run_on(FROZEN_IN_DEBT, "TB.REFUND k 9"),
    run_on(&["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 5 RESET 600", "TB.CONSUME k 10 1e-8 4"], "TB.REFUND k 3"),
    run_on(&["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 5 RESET 600", "TB.CONSUME k 10 1e-8 4"], "TB.REFUND k 100"),
    run_on(VENDOR_LIMIT, "TB.REFUND k 100"),
    run_on(CHANGED_LIMIT, "TB.REFUND k 1"),
    run_on(BARE_WINDOW, "TB.REFUND k 1"),
    // ---- TB.PEEK
    run_on(SIX_LEFT, "TB.PEEK k"),
    run_on(&["TB.CONSUME k 10 1e-8 4", "TB.CONSUME k 10 1e-8 1e-6 FORCE"], "TB.PEEK k"),
    run_on(EMPTY, "TB.PEEK k"),
    run_on(DEBT, "TB.PEEK k"),
    run_on(RESERVED, "TB.PEEK k"),
    run_on(FROZEN, "TB.PEEK k"),
    run_on(WINDOW, "TB.PEEK k"),
    run_on(VENDOR_LIMIT, "TB.PEEK k"),
    run_on(EVERYTHING, "TB.PEEK k"),
    run_on(CHANGED_LIMIT, "TB.PEEK k"),
    run_on(&["TB.CONSUME k 2 1.1574074074074073e-09 0.123456"], "TB.PEEK k"),
    run_on(TINY, "TB.PEEK k"),
    run_on(&["TB.CONSUME k 10 1e-8 4", "TB.REFUND k 4"], "TB.PEEK k"),
    run_on(BARE_FROZEN, "TB.PEEK k"),
    run_on(BARE_SYNCED, "TB.PEEK k"),
    run_on(BARE_WINDOW, "TB.PEEK k"),
    run_on(BARE_LIMIT, "TB.PEEK k"),
    run_on(BARE_EVERYTHING, "TB.PEEK k"),
];

impl Scenario {
    pub(crate) fn command(&self) -> &'static str {
        self.probe.split_once(' ').unwrap().0
    }
}

/// How far the module's clock may be from the wall clock that TIME reads.
const JITTER_US: i64 = 1_000;

/// What the first twins answered, and what the second were at that moment.
pub(crate) struct Witness(Vec<Testimony>);

struct Testimony {
    answer: Answer,
    /// How much later than the first twin the second may have been set up.
    apart_us: i64,
    digest: String,
    expires_at_ms: i64,
}

/// A reply, and between which moments it was given.
struct Answer {
    reply: Value,
    after_us: i64,
    before_us: i64,
}

/// The part of a reply that a moment has no influence on, or a duration.
#[derive(Debug, PartialEq)]
enum Part {
    Fixed(String),
    DurationMs(i64),
}

/// The key of a scenario's second twin.
pub(crate) fn key(scenario: usize) -> String {
    twin(scenario, "second")
}

pub(crate) fn keys() -> impl Iterator<Item = String> {
    (0..SCENARIOS.len()).map(key)
}

/// In a cluster all of them are in one slot.
fn twin(scenario: usize, which: &str) -> String {
    format!("{{twins}}:{scenario}:{which}")
}

fn on(key: &str, command: &str) -> Vec<String> {
    command.split(' ').map(|word| if word == "k" { key.to_owned() } else { word.to_owned() }).collect()
}

/// Runs commands as one transaction, with as little time between them as can be; and
/// between which moments. (It is no use to ask for these in the transaction: from 7.2 on
/// time stands still there for TIME, though not for the module.)
#[track_caller]
fn at_once(c: &mut Connection, commands: &[Vec<String>]) -> (Vec<Value>, i64, i64) {
    c.send(&["TIME"]);
    c.send(&["MULTI"]);
    for command in commands {
        c.send(command);
    }
    c.send(&["EXEC"]);
    c.send(&["TIME"]);
    let after_us = time_us(&c.receive());
    assert_eq!(c.receive(), Value::Okay);
    for command in commands {
        assert_eq!(c.receive(), Value::SimpleString("QUEUED".to_owned()), "{command:?}");
    }
    let replies = array(c.receive());
    for (command, reply) in commands.iter().zip(&replies) {
        assert_eq!(error_text(reply), None, "{command:?}");
    }
    (replies, after_us, time_us(&c.receive()))
}

fn ask(c: &mut Connection, key: &str, probe: &str) -> Answer {
    let (mut replies, after_us, before_us) = at_once(c, &[on(key, probe)]);
    Answer { reply: replies.remove(0), after_us, before_us }
}

impl Witness {
    /// Sets all scenarios up, and asks the first twins.
    #[track_caller]
    pub(crate) fn of(c: &mut Connection) -> Self {
        let testimony = |(number, scenario): (usize, &Scenario)| {
            let (first, second) = (twin(number, "first"), twin(number, "second"));
            let both = scenario.setup.iter().flat_map(|command| [on(&first, command), on(&second, command)]);
            let (_, after_us, before_us) = at_once(c, &both.collect::<Vec<_>>());
            let apart_us = before_us - after_us;
            let answer = ask(c, &first, scenario.probe);
            let (digest, expires_at_ms) = look(c, &second);
            Testimony { answer, apart_us, digest, expires_at_ms }
        };
        Self(SCENARIOS.iter().enumerate().map(testimony).collect())
    }

    /// Holds against it what the second twins are by now, and what they answer.
    #[track_caller]
    pub(crate) fn assert_same(&self, c: &mut Connection) {
        self.assert_same_within(c, 0);
    }

    /// The same where the server moved the TTLs, which it does by up to `ttl_ms`.
    #[track_caller]
    pub(crate) fn assert_same_within(&self, c: &mut Connection, ttl_ms: i64) {
        for (number, (scenario, told)) in SCENARIOS.iter().zip(&self.0).enumerate() {
            let what = format!("scenario {number}, {} after {:?}", scenario.probe, scenario.setup);
            let (digest, expires_at_ms) = look(c, &key(number));
            assert_eq!(digest, told.digest, "{what}");
            let later_ms = expires_at_ms - told.expires_at_ms;
            assert!((0..=ttl_ms).contains(&later_ms), "{what}: expires {later_ms} ms later");
            let now = ask(c, &key(number), scenario.probe);
            told.assert_answer(scenario, &now, &what);
        }
    }

    /// All that the first twins answered.
    pub(crate) fn replies(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|testimony| &testimony.answer.reply)
    }
}

fn look(c: &mut Connection, key: &str) -> (String, i64) {
    let digest = text(&array(c.ask(&format!("DEBUG DIGEST-VALUE {key}")))[0]);
    (digest, c.int(&format!("PEXPIRETIME {key}")))
}

impl Testimony {
    #[track_caller]
    fn assert_answer(&self, scenario: &Scenario, now: &Answer, what: &str) {
        let then = &self.answer;
        let (parts_then, parts_now) = (parts(scenario, &then.reply), parts(scenario, &now.reply));
        let both = format!("{what}: {:?}, then {:?}", then.reply, now.reply);
        assert_eq!(parts_then.len(), parts_now.len(), "{both}");
        for (part_then, part_now) in parts_then.iter().zip(&parts_now) {
            let (Part::DurationMs(ms_then), Part::DurationMs(ms_now), Durations::RunOn) =
                (part_then, part_now, scenario.durations)
            else {
                assert_eq!(part_then, part_now, "{both}");
                continue;
            };
            // Told as `ms`, rounded up, between two moments: it ends between these.
            let ends = |answer: &Answer, ms: i64| (answer.after_us + (ms - 1) * 1_000, answer.before_us + ms * 1_000);
            let ((from_then, to_then), (from_now, to_now)) = (ends(then, *ms_then), ends(now, *ms_now));
            assert!(to_now + JITTER_US >= from_then, "it ends {} us too early: {both}", from_then - to_now);
            let latest = to_then + self.apart_us + JITTER_US;
            assert!(from_now <= latest, "it ends {} us too late: {both}", from_now - latest);
        }
    }
}

/// A reply in parts. No duration at all, or one for ever, is no duration.
#[track_caller]
fn parts(scenario: &Scenario, reply: &Value) -> Vec<Part> {
    let fixed = |value: &Value| Part::Fixed(format!("{value:?}"));
    let duration = |value: &Value| match value {
        Value::Int(ms) if *ms > 0 => Part::DurationMs(*ms),
        other => fixed(other),
    };
    match scenario.command() {
        "TB.CONSUME" => {
            let fields = array(reply.clone());
            assert_eq!(fields.len(), 5, "{reply:?}");
            fields.iter().enumerate().map(|(i, field)| if i == 2 || i == 3 { duration(field) } else { fixed(field) }).collect()
        }
        "TB.PENALISE" => {
            int(reply);
            vec![duration(reply)]
        }
        "TB.PEEK" => {
            let part = |(name, value): (Value, Value)| {
                let is_duration = text(&name).ends_with("-ms");
                [fixed(&name), if is_duration { duration(&value) } else { fixed(&value) }]
            };
            pairs(reply.clone()).into_iter().flat_map(part).collect()
        }
        _ => vec![fixed(reply)],
    }
}
