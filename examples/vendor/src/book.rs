//! The vendor's own account of who called when and what became of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long after a 429 has left the vendor a call still counts as one that was in
/// flight: the time of a network and of a worker that reads the answer.
pub const IN_FLIGHT: Duration = Duration::from_millis(25);

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// When it arrived, in seconds since the first call.
    pub at: f64,
    /// What the caller calls it: the header `Idempotency-Key`.
    pub key: String,
    /// 200, 429, or 500 where it was asked to fail.
    pub status: u16,
    /// The Retry-After of a 429, in seconds.
    pub retry_after: Option<u64>,
    /// It came though a Retry-After was running that the fleet had been told.
    pub too_early: bool,
    /// It came while the vendor served nobody.
    pub frozen: bool,
    /// The vendor's rate at that moment.
    pub rate: u32,
}

/// What the calls add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// All of them.
    pub calls: usize,
    /// Those answered with 200.
    pub accepted: usize,
    /// Keys that were accepted more than once.
    pub accepted_twice: usize,
    /// Those answered with 429.
    pub refused: usize,
    /// Those that came before a Retry-After had passed, bar those in flight when it
    /// was said.
    pub calls_during_freeze: usize,
    /// What a perfect caller could have made, from the first call to the last.
    pub allowance: f64,
    /// The served share of that.
    pub budget_used: f64,
    /// From the first call to the last.
    pub seconds: f64,
}

/// All calls so far.
#[derive(Debug, Default)]
pub struct Book {
    calls: Vec<Call>,
    /// When the fleet knew of each Retry-After that is still running, and its end.
    told: Vec<(Duration, Duration)>,
}

impl Book {
    /// Whether a call that arrives at `now` comes before a Retry-After has passed.
    pub fn is_too_early(&mut self, now: Duration) -> bool {
        self.told.retain(|(_, end)| *end > now);
        self.told.iter().any(|(known, _)| *known < now)
    }

    /// A Retry-After that leaves at `leaves` and ends at `end`.
    pub fn tell(&mut self, leaves: Duration, end: Duration) {
        self.told.push((leaves + IN_FLIGHT, end));
    }

    /// Notes a call.
    pub fn note(&mut self, call: Call) {
        self.calls.push(call);
    }

    /// All calls, in the order of their arrival.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// What they add up to, where the limiter's allowance is so much.
    pub fn account(&self, allowance: f64) -> Account {
        let count = |condition: fn(&Call) -> bool| self.calls.iter().filter(|call| condition(call)).count();
        let mut served: HashMap<&str, usize> = HashMap::new();
        for call in self.calls.iter().filter(|call| call.status == 200) {
            *served.entry(&call.key).or_default() += 1;
        }
        // A 500 was served, too, as far as a limiter is concerned.
        let passed = count(|call| call.status != 429);
        let share = u32::try_from(passed).map_or(f64::INFINITY, f64::from) / allowance;
        Account {
            calls: self.calls.len(),
            accepted: count(|call| call.status == 200),
            accepted_twice: served.values().filter(|times| **times > 1).count(),
            refused: count(|call| call.status == 429),
            calls_during_freeze: count(|call| call.too_early),
            allowance,
            budget_used: if allowance > 0.0 { share } else { 0.0 },
            seconds: self.calls.last().map_or(0.0, |call| call.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: &str, status: u16) -> Call {
        Call { at: 1.5, key: key.to_owned(), status, retry_after: None, too_early: false, frozen: false, rate: 100 }
    }

    #[test]
    fn a_call_is_too_early_between_knowing_and_the_end() {
        let ms = Duration::from_millis;
        let mut book = Book::default();
        book.tell(ms(100), ms(2_000));
        for (at, expected) in [(90, false), (120, false), (126, true), (1_999, true), (2_000, false)] {
            assert_eq!(book.is_too_early(ms(at)), expected, "at {at} ms");
        }
    }

    #[test]
    fn calls_add_up() {
        let mut book = Book::default();
        for call in [call("a", 200), call("a", 200), call("b", 429), call("b", 200), call("c", 500)] {
            book.note(call);
        }
        book.note(Call { too_early: true, ..call("d", 429) });
        let account = book.account(8.0);
        assert_eq!((account.calls, account.accepted, account.accepted_twice), (6, 3, 1));
        assert_eq!((account.refused, account.calls_during_freeze, account.budget_used), (2, 1, 0.5));
    }
}
