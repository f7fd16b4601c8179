//! Histories with what an implementation in another language made of them, in exact
//! fractions: `tests/vectors.jsonl`, one history a line.
//!
//! Where limits change, this one may round the level down by a millionth of a token
//! each time, and from then on its zero moment may be later by as much; a history
//! with one limit has no such slack.

use std::ops::ControlFlow;

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use serde_json::Value;
use tokenbucket::{Bucket, Consume, Effect, Limit, Mode, Rate, Status, Sync, Tokens};

use crate::oracle::{Exact, Oracle, ceil, exact, floor};

const HOUR_US: u64 = 3_600_000_000;

#[test]
fn the_vectors_are_replayed_to_the_last_fraction() {
    let mut steps = 0;
    for (line, history) in include_str!("../vectors.jsonl").lines().enumerate() {
        let history: Vec<Value> = serde_json::from_str(history).unwrap();
        let mut replay = Replay { bucket: Bucket::UNKNOWN, slack: Exact::zero(), left_slack: 0 };
        for (place, step) in history.iter().enumerate() {
            steps += 1;
            if replay.step(&Step { line: line + 1, place, fields: step }).is_break() {
                break;
            }
        }
    }
    assert!(steps > 9_000, "only {steps} steps were compared");
}

/// The bucket, by how many microseconds its zero moment may be too late, and how many
/// millionths may be missing in a window that opened on a debt.
struct Replay {
    bucket: Bucket,
    slack: Exact,
    left_slack: i128,
}

struct Step<'v> {
    line: usize,
    place: usize,
    fields: &'v Value,
}

impl Step<'_> {
    /// The place of the step, for a failure.
    fn name(&self) -> String {
        format!("history {}, step {}: {}", self.line, self.place, self.fields)
    }

    fn word(&self, field: &str) -> Option<&str> {
        self.fields[field].as_str()
    }

    /// A field in millionths of its unit: of a token, or of a second.
    fn millionths(&self, field: &str) -> Option<Exact> {
        let number: Exact = self.word(field)?.parse().unwrap();
        Some(number * exact(1_000_000))
    }

    fn tokens(&self, field: &str) -> Option<Tokens> {
        Tokens::from_millionths(self.millionths(field)?.to_integer().to_u64()?)
    }

    fn now_us(&self) -> i64 {
        self.fields["t_us"].as_i64().unwrap()
    }

    fn later_us(&self, field: &str) -> Option<i64> {
        Some(self.now_us() + self.millionths(field)?.to_integer().to_i64()?)
    }

    fn limit(&self) -> Limit {
        let fraction = |field| self.word(field).unwrap().parse::<Exact>().unwrap();
        let (rate, terms) = (fraction("rate") / fraction("per"), |n: &BigInt| n.to_u128().unwrap());
        let rate = Rate::new(terms(rate.numer()), terms(rate.denom())).unwrap();
        Limit::new(self.tokens("capacity").unwrap(), rate).unwrap()
    }
}

impl Replay {
    fn step(&mut self, step: &Step<'_>) -> ControlFlow<()> {
        let now_us = step.now_us();
        match step.word("op").unwrap() {
            "consume" => self.consume(step)?,
            "penalise" => {
                let (us, _) = self.bucket.penalise(step.later_us("seconds").unwrap(), now_us);
                self.compare_wait(us, &step.millionths("until_zero").unwrap(), step);
            }
            "sync" => {
                let said = Sync {
                    remaining: step.tokens("remaining").unwrap(),
                    reset_us: step.later_us("reset"),
                    limit: step.tokens("limit").map(|most| (most, HOUR_US)),
                    tolerance: step.tokens("tolerance").unwrap(),
                };
                let applied = u64::from(self.bucket.sync(&said, now_us).applied);
                assert_eq!(Some(applied), step.fields["applied"].as_u64(), "{}", step.name());
            }
            _ => drop(self.bucket.refund(step.tokens("tokens").unwrap(), now_us)),
        }
        self.compare_state(step);
        ControlFlow::Continue(())
    }

    fn consume(&mut self, step: &Step<'_>) -> ControlFlow<()> {
        let (limit, tokens) = (step.limit(), step.tokens("tokens").unwrap());
        let mode = match (step.millionths("maxwait"), step.word("upto"), step.word("force")) {
            (Some(us), ..) => Mode::Reserve { max_wait_us: us.to_integer().to_u64().unwrap() },
            (_, Some(_), _) => Mode::UpTo,
            (.., Some(_)) => Mode::Force,
            _ => Mode::Exactly,
        };
        let before = self.bucket;
        let (decision, effect) = self.bucket.consume(&Consume { limit, tokens, mode }, step.now_us()).unwrap();
        if effect == Effect::Changed {
            self.widen(&before, &limit, step.now_us());
        }
        let free_us = || Oracle::from(&self.bucket).zero.map_or(0, |zero| ceil(&zero)) - i128::from(step.now_us());
        match mode {
            // Of nothing by force this one makes nothing; there the limit was taken up.
            Mode::Force if tokens == Tokens::ZERO && before.limit() != Some(&limit) => return ControlFlow::Break(()),
            // Who asks with 0 tokens and waits is told how long, not that it is granted now.
            Mode::Reserve { .. } if tokens == Tokens::ZERO && decision.status == Status::Reserved => {
                assert_eq!(decision.wait_us.map(i128::from), Some(free_us()), "{}", step.name());
                assert_eq!(step.word("status"), Some("granted"), "{}", step.name());
            }
            _ => {
                let status = format!("{:?}", decision.status).to_lowercase();
                assert_eq!(Some(&*status), step.word("status"), "{}", step.name());
                match (decision.wait_us, step.millionths("wait")) {
                    (Some(us), Some(wait)) => self.compare_wait(us, &wait, step),
                    (us, wait) => assert!(us.is_none() && wait.is_none(), "{us:?}, not {wait:?}: {}", step.name()),
                }
            }
        }
        assert_eq!(Some(decision.allowed), step.fields["allowed"].as_u64(), "{}", step.name());
        ControlFlow::Continue(())
    }

    /// What a change of limit may cost: a millionth of the level, or of a debt a part
    /// of the new rate. A slack of the level lasts as many tokens as it was.
    fn widen(&mut self, before: &Bucket, limit: &Limit, now_us: i64) {
        let Some(old) = before.limit().filter(|old| *old != limit) else { return };
        let rate = |limit: &Limit| Exact::new(limit.rate().tokens().into(), limit.rate().per().into());
        let zero = Oracle::from(before).zero.unwrap();
        let (old, new) = (rate(old), rate(limit));
        let in_debt = &self.slack + Exact::new(1.into(), limit.rate().tokens().into());
        let at_rest = (&self.slack * old + exact(1)) / &new;
        self.slack = match exact(now_us) {
            now if zero > &now + &self.slack => in_debt,
            now if zero <= now => at_rest,
            _ => in_debt.max(at_rest),
        };
        self.left_slack = self.left_slack.max(ceil(&(&self.slack * new)));
    }

    fn compare_wait(&self, us: u64, expected: &Exact, step: &Step<'_>) {
        let (least, most) = (ceil(expected), ceil(&(expected + &self.slack)));
        assert!((least..=most).contains(&us.into()), "{us} µs, not {least} to {most}: {}", step.name());
    }

    fn compare_state(&self, step: &Step<'_>) {
        let now_us = step.now_us();
        let mut bucket = Oracle::from(&self.bucket);
        bucket.settle(now_us);
        let mut expected = bucket.clone();
        expected.zero = step.millionths("zero_moment");
        // What has run over need not have been dropped yet.
        if expected.zero.is_some() {
            expected.spill(now_us);
            bucket.spill(now_us);
        }
        match (&bucket.zero, &expected.zero) {
            (Some(zero), Some(expected)) => {
                let late = zero - expected;
                assert!(!late.is_negative() && late <= self.slack, "{zero}, not {expected}: {}", step.name());
            }
            (zero, expected) => assert_eq!(zero, expected, "{}", step.name()),
        }
        assert_eq!(Some(bucket.is_frozen(now_us)), step.fields["frozen"].as_bool(), "{}", step.name());
        // In millionths of a token and of a second; what is left is kept as whole ones.
        let window = step.fields["window"].as_array().map(|window| {
            let field = |place: usize| floor(&(window[place].as_str().unwrap().parse::<Exact>().unwrap() * exact(1_000_000)));
            (field(0), field(1), i64::try_from(field(2)).unwrap())
        });
        match (bucket.window, window) {
            (Some((left, ..)), Some((expected, applied, reset))) => {
                assert!((expected - self.left_slack..=expected).contains(&left), "{left}: {}", step.name());
                assert_eq!(bucket.window, Some((left, applied, reset)), "{}", step.name());
            }
            (window, expected) => assert_eq!(window, expected, "{}", step.name()),
        }
    }
}
