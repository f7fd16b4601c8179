//! The bucket and the oracle live through the same histories, and every word and
//! every part of a drop is the same.

use proptest::prelude::*;
use tokenbucket::{Bucket, DebtTooLong, Decision, Effect, Status, Tokens};

use crate::cases;
use crate::histories::{Deed, Event, History, Outcome, history};
use crate::oracle::{Answer, Exact, Oracle, Terms, TooDeep, ceil, exact, floor};

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn bucket_and_oracle_agree_on_every_history(history in history(30)) {
        live_together(&history);
    }
}

/// Panics where the two differ.
pub(crate) fn live_together(history: &History) {
    let mut oracle = Oracle::default();
    for event in history.play() {
        follow(&mut oracle, &event);
    }
}

fn follow(oracle: &mut Oracle, event: &Event) {
    let Event { now_us: now, outcome, .. } = *event;
    let until = |moment: &Exact| u64::try_from(ceil(&(moment - exact(now))).max(0)).unwrap();
    let changed = match (event.deed, outcome) {
        (Deed::Consume(call), Outcome::Consumed(answer)) => {
            let terms = Terms::from(&call.limit);
            let expected = oracle.consume(&terms, call.tokens.millionths().into(), call.mode, now);
            match (expected, answer) {
                (Ok((expected, changed)), Ok((decision, _))) => {
                    assert_eq!(decision, told(&expected, now), "{event:#?}");
                    changed
                }
                (Err(TooDeep), Err(DebtTooLong)) => false,
                (expected, _) => panic!("not {expected:?}: {event:#?}"),
            }
        }
        (Deed::Penalise { end_us }, Outcome::Penalised(us, effect)) => {
            assert_eq!(us, until(&oracle.penalise(end_us, now)), "{event:#?}");
            effect == Effect::Changed // what is the same is compared below
        }
        (Deed::Sync(said), Outcome::Synced(synced)) => {
            let (lowered, changed) = oracle.sync(&said, now);
            assert_eq!(synced.applied, lowered, "{event:#?}");
            changed
        }
        (Deed::Refund(tokens), Outcome::Refunded(effect)) => {
            oracle.refund(tokens.millionths().into(), now);
            effect == Effect::Changed
        }
        other => panic!("not an answer to that: {other:?}"),
    };
    assert_eq!(outcome.effect() == Effect::Changed, changed, "{event:#?}");
    if !changed {
        assert_eq!(event.before, event.after, "{event:#?}");
    }
    if let (Deed::Consume(call), Some(decision)) = (event.deed, outcome.decision()) {
        // What a call that is denied for now stores is the change of limit.
        let other = event.before.limit().is_none_or(|known| !known.is_same_as(&call.limit));
        if decision.allowed == 0 && decision.status != Status::Never && call.tokens > Tokens::ZERO && other {
            let mut denied = event.before;
            assert_eq!(denied.change_limit(&call, now), Effect::Changed, "{event:#?}");
            assert_eq!(denied, event.after, "{event:#?}");
        }
    }
    compare(oracle, event);
}

fn told(answer: &Answer, now: i64) -> Decision {
    let until = |moment: &Exact| u64::try_from(ceil(&(moment - exact(now))).max(0)).unwrap();
    Decision {
        status: answer.status,
        allowed: answer.allowed,
        remaining: answer.remaining,
        wait_us: answer.moment.as_ref().map(until),
        full_us: until(&answer.full),
    }
}

/// All that is remembered and all that can be read.
fn compare(oracle: &Oracle, event: &Event) {
    let now = event.now_us;
    let (mut expected, mut bucket) = (oracle.clone(), Oracle::from(&event.after));
    // Neither need drop at once what has lapsed or run over.
    for side in [&mut expected, &mut bucket] {
        side.settle(now);
        side.spill(now);
    }
    assert_eq!(bucket, expected, "{event:#?}");

    let reading = event.after.read(now);
    assert_eq!(event.after.remaining(now), expected.remaining(now), "{event:#?}");
    let until = |end: i64| end.abs_diff(now);
    assert_eq!(reading.frozen_us, expected.thaw.map_or(0, until), "{event:#?}");
    assert_eq!(reading.vendor_limit.map(|most| most.millionths().into()), expected.vendor_limit.map(|(most, _)| most));
    assert_eq!(
        reading.window.map(|(left, us)| (left.millionths().into(), us)),
        expected.window.map(|(left, _, reset)| (left, until(reset)))
    );
    let limited = reading.limited.map(|read| (Terms::from(&read.limit), read.level_millionths, read.wait_us, read.full_us));
    let expected_limited = expected.read(now).map(|read| {
        let until = |moment: Exact| u64::try_from(ceil(&(moment - exact(now))).max(0)).unwrap();
        (expected.terms.clone().unwrap(), floor(&read.level), read.one_token.map(until), until(read.full))
    });
    assert_eq!(limited, expected_limited, "{event:#?}");
    if event.after != Bucket::UNKNOWN {
        // Of what it remembers, lapsed or not.
        assert_eq!(Some(event.after.forgotten_us().into()), Oracle::from(&event.after).forgotten(), "{event:#?}");
    }
}
