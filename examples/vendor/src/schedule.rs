//! What happens at the vendor by itself: surprises, and other clients of the same
//! account. Drawn from a seed, so that every caller meets the same.

use std::time::Duration;

use serde::Serialize;

use crate::limiter::{Limiter, Settings};

/// Something that no caller was told before. Moments count from the first call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Surprise {
    /// When.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What a surprise does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum What {
    /// Nobody is served for so long: an incident, a hand that pulled a plug.
    Freeze(Duration),
    /// The limit is this fraction of what it was at the start.
    Rate {
        /// Above the line.
        times: u32,
        /// Below it.
        over: u32,
    },
}

/// A halved limit for some seconds and, once that is over, a freeze. Their moments and
/// lengths follow from the seed; all of it lies in the first `span`, or little longer.
pub fn surprises(seed: u64, span: Duration) -> Vec<Surprise> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut part = |from: f64, to: f64| span.mul_f64(from + random.f64() * (to - from));
    let halved = part(0.15, 0.25);
    let restored = halved + part(0.2, 0.25);
    let frozen = restored + part(0.1, 0.2);
    // Whole seconds, as Retry-After has them: the vendor means what it says.
    let length = Duration::from_secs_f64(part(0.1, 0.15).as_secs_f64().round().max(1.0));
    vec![
        Surprise { at: halved, what: What::Rate { times: 1, over: 2 } },
        Surprise { at: restored, what: What::Rate { times: 1, over: 1 } },
        Surprise { at: frozen, what: What::Freeze(length) },
    ]
}

/// The surprises and the others' calls that are still to come, in their order.
#[derive(Clone, Debug)]
pub struct Schedule {
    start: Settings,
    surprises: Vec<Surprise>,
    others: Option<Others>,
}

#[derive(Clone, Debug)]
struct Others {
    random: fastrand::Rng,
    rate: f64,
    next: Duration,
}

impl Schedule {
    /// With `others_rate` calls a second of others, at moments drawn from the seed.
    pub fn new(start: Settings, mut surprises: Vec<Surprise>, others_rate: f64, seed: u64) -> Self {
        surprises.sort_by_key(|surprise| surprise.at);
        let others = (others_rate > 0.0).then(|| {
            let mut others =
                Others { random: fastrand::Rng::with_seed(seed ^ 0x6f74_6865_7273), rate: others_rate, next: Duration::ZERO };
            others.draw();
            others
        });
        Self { start, surprises, others }
    }

    /// Lets happen what is due at `since_first`, each at its own moment, which is
    /// `first` later on the limiter's clock.
    pub fn advance(&mut self, limiter: &mut Limiter, first: Duration, since_first: Duration) {
        loop {
            let surprise = self.surprises.first().map(|surprise| surprise.at).filter(|at| *at <= since_first);
            let other = self.others.as_ref().map(|others| others.next).filter(|at| *at <= since_first);
            match (surprise, other) {
                (None, None) => return,
                (Some(at), other) if other.is_none_or(|other| at <= other) => {
                    let Surprise { at, what } = self.surprises.remove(0);
                    match what {
                        What::Freeze(length) => limiter.freeze(first + at, length),
                        What::Rate { times, over } => {
                            let rate = (self.start.rate * times / over.max(1)).max(1);
                            limiter.change(first + at, Settings { rate, ..limiter.settings() });
                        }
                    }
                }
                _ => {
                    if let Some(others) = &mut self.others {
                        limiter.call_of_another(first + others.next);
                        others.draw();
                    }
                }
            }
        }
    }
}

impl Others {
    /// The next call: they come independently of each other.
    fn draw(&mut self) {
        let wait = -(1.0 - self.random.f64()).ln() / self.rate;
        self.next += Duration::from_secs_f64(wait.clamp(1e-6, 3600.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Verdict;

    const START: Settings = Settings { rate: 100, burst: 20, window: None };

    #[test]
    fn a_seed_is_always_the_same_schedule() {
        let span = Duration::from_secs(20);
        assert_eq!(surprises(7, span), surprises(7, span));
        assert_ne!(surprises(7, span), surprises(8, span));
    }

    #[test]
    fn each_surprise_comes_at_its_moment_though_nobody_looks() {
        let second = Duration::from_secs;
        let list = vec![
            Surprise { at: second(1), what: What::Rate { times: 1, over: 2 } },
            Surprise { at: second(2), what: What::Freeze(second(3)) },
        ];
        let mut schedule = Schedule::new(START, list, 0.0, 1);
        let mut limiter = Limiter::new(START);
        let first = second(10);
        limiter.call(first);
        schedule.advance(&mut limiter, first, second(6));
        limiter.settle(second(16));
        assert_eq!(limiter.settings().rate, 50);
        assert_eq!(limiter.allowance(), 20.0 + 100.0 + 50.0 + 50.0, "a second at 100, one at 50, three frozen, one at 50");
        assert_eq!(limiter.call(second(16)), Verdict::Accepted);
    }

    #[test]
    fn others_take_about_their_rate() {
        let mut schedule = Schedule::new(START, Vec::new(), 30.0, 3);
        let mut limiter = Limiter::new(START);
        limiter.call(Duration::ZERO);
        schedule.advance(&mut limiter, Duration::ZERO, Duration::from_secs(20));
        limiter.settle(Duration::from_secs(20));
        let taken = 20.0 + 2_000.0 - limiter.allowance();
        assert!((500.0..700.0).contains(&taken), "{taken}");
    }
}
