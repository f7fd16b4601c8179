//! What clients know of what they were granted, and how it is held against the limits.

use std::time::{Duration, Instant};

use crate::connection::Connection;

/// A bucket of a round, and the limit that every call brings.
pub(crate) struct Budget {
    pub(crate) name: &'static str,
    pub(crate) capacity: u32,
    /// Tokens a second.
    pub(crate) rate: f64,
}

const fn budget(name: &'static str, capacity: u32, rate: f64) -> Budget {
    Budget { name, capacity, rate }
}

/// The first [`COUNTED`] get no token back while a round lasts: all that is granted of
/// them is their capacity, to the token.
pub(crate) const BUDGETS: [Budget; 8] = [
    budget("a", 100_000, 4e-5),
    budget("b", 100_000, 4e-5),
    budget("c", 5_000, 2e-6),
    budget("{pair}:x", 100_000, 4e-5),
    budget("{pair}:y", 100_000, 4e-5),
    budget("fill", 50, 500.0),
    budget("frozen", 100_000, 4e-5),
    budget("thawing", 100, 100.0),
];
pub(crate) const COUNTED: usize = 5;
/// Two that are always taken from together.
pub(crate) const PAIR: [usize; 2] = [3, 4];
pub(crate) const FILL: usize = 5;
/// Penalised in each round for longer than that lasts ...
pub(crate) const FROZEN: usize = 6;
/// ... and for [`FREEZE`].
pub(crate) const THAWING: usize = 7;
pub(crate) const FREEZE: Duration = Duration::from_millis(600);

/// Clocks of clients and servers are read to the microsecond, and not all at once.
const JITTER: Duration = Duration::from_millis(1);

pub(crate) fn key(round: &str, budget: usize) -> String {
    format!("{round}:{}", BUDGETS[budget].name)
}

/// Tokens that a client has been granted, or may have been.
pub(crate) struct Spent {
    pub(crate) budget: usize,
    pub(crate) tokens: u32,
    pub(crate) sent: Instant,
    /// None where there was no answer.
    pub(crate) answered: Option<Instant>,
    /// A replica has confirmed that it knows.
    pub(crate) confirmed: bool,
}

/// A penalty that was answered.
pub(crate) struct Freeze {
    pub(crate) budget: usize,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
    pub(crate) confirmed: bool,
}

/// What the server that was killed is sure to have left behind.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    /// All that it had answered.
    All,
    /// All that it had answered before this; the rest of it is the tail.
    Before(Option<Instant>),
    /// All that a replica had confirmed, and all that had been answered before this.
    Confirmed(Option<Instant>),
}

/// A round, when all is spent.
pub(crate) struct Ledger {
    pub(crate) spent: Vec<Spent>,
    pub(crate) freezes: Vec<Freeze>,
    pub(crate) killed: Instant,
    /// What the server was seen to be at when it was killed.
    pub(crate) busy: Busy,
}

/// What a server is at beside its clients.
#[derive(Clone, Copy, Default)]
pub(crate) struct Busy {
    /// It writes its AOF anew, or a snapshot.
    pub(crate) writing: bool,
    /// It sends a replica all it has.
    pub(crate) sending: bool,
}

impl Busy {
    pub(crate) fn of(c: &mut Connection) -> Self {
        let files = c.info_fields("persistence");
        let is = |name: &str| files.get(name).is_some_and(|value| value == "1");
        let sends = |value: &String| value.contains("state=wait_bgsave") || value.contains("state=send_bulk");
        Self {
            writing: is("aof_rewrite_in_progress") || is("rdb_bgsave_in_progress"),
            sending: c.info_fields("replication").values().any(sends),
        }
    }
}

/// Sums over the rounds, for the report.
#[derive(Default)]
pub(crate) struct Sums {
    granted: u64,
    unanswered: u64,
    tail: u64,
    twice: u64,
    /// Freezes, those of them that were known to be kept, and those that stood.
    freezes: [u64; 3],
    writing: u64,
    sending: u64,
    /// Rounds in which all that was answered before the kill could be lost.
    open: u64,
}

impl Sums {
    pub(crate) fn report(&self, what: &str, rounds: usize) {
        let Self { granted, unanswered, tail, twice, freezes: [freezes, known, stood], writing, sending, open } = self;
        println!(
            "{what}: {rounds} kills ({writing} while it wrote a file, {sending} while it sent a replica all), \
             {granted} tokens granted, {unanswered} asked for without an answer, \
             {tail} in the tail that could be lost ({open} rounds in which that was all), {twice} granted twice, \
             {freezes} freezes, {known} known to be kept, {stood} stood"
        );
    }
}

impl Ledger {
    /// Takes what is left of the counted buckets.
    #[track_caller]
    pub(crate) fn drain(&mut self, c: &mut Connection, round: &str) {
        let [x, y] = PAIR.map(|budget| c.peek(&key(round, budget)).tokens().parse::<f64>().unwrap());
        assert!((x - y).abs() < 0.01, "{round}: {x} and {y} in two buckets that are always taken from together");
        for (budget, limit) in BUDGETS.iter().enumerate().take(COUNTED) {
            let Budget { capacity, rate, .. } = limit;
            let sent = Instant::now();
            let reply = c.consume(&format!("{} {capacity} {rate} {capacity} UPTO", key(round, budget)));
            let (tokens, answered) = (u32::try_from(reply.allowed).unwrap(), Some(Instant::now()));
            self.spent.push(Spent { budget, tokens, sent, answered, confirmed: true });
        }
    }

    /// Holds what was granted against the limits.
    #[track_caller]
    pub(crate) fn assert_kept(mut self, kept: Kept, round: &str, sums: &mut Sums) {
        self.spent.sort_by_key(|spent| spent.answered);
        sums.writing += u64::from(self.busy.writing);
        sums.sending += u64::from(self.busy.sending);
        let mut before = self.spent.iter().filter(|spent| spent.answered.is_some() && spent.sent <= self.killed);
        sums.open += u64::from(before.all(|spent| self.may_be_lost(spent, kept)));
        for budget in 0..BUDGETS.len() {
            self.assert_budget(budget, kept, round, sums);
        }
        for freeze in &self.freezes {
            self.assert_freeze(freeze, kept, round, sums);
        }
    }

    fn assert_budget(&self, budget: usize, kept: Kept, round: &str, sums: &mut Sums) {
        let Budget { name, capacity, rate } = BUDGETS[budget];
        let here = || self.spent.iter().filter(move |spent| spent.budget == budget);
        let sum = |spent: &mut dyn Iterator<Item = &Spent>| spent.map(|spent| u64::from(spent.tokens)).sum::<u64>();
        let granted = sum(&mut here().filter(|spent| spent.answered.is_some()));
        let unanswered = sum(&mut here().filter(|spent| spent.answered.is_none()));
        let tail = sum(&mut here().filter(|spent| self.may_be_lost(spent, kept)));
        sums.granted += granted;
        sums.unanswered += unanswered;
        sums.tail += tail;
        if budget < COUNTED {
            let capacity = u64::from(capacity);
            let (all, most) = (granted + unanswered, capacity + tail);
            assert!(granted <= most, "{round}: {granted} tokens of {name} were granted, of {capacity} and {tail} in the tail");
            assert!(all >= capacity, "{round}: {granted} and {unanswered} unheard of, of {name}'s {capacity} tokens");
            sums.twice += granted.saturating_sub(capacity);
        }
        // From the first call, and from when the load went on.
        let answered = || here().filter(|spent| spent.answered.is_some());
        for (begin, tail) in [(None, tail), (Some(self.killed), 0)] {
            let stretch = || answered().filter(|spent| begin.is_none_or(|begin| spent.sent > begin));
            let Some(first) = stretch().map(|spent| spent.sent).min() else { continue };
            let mut tokens = 0.0;
            for spent in stretch() {
                tokens += f64::from(spent.tokens);
                let passed = spent.answered.unwrap_or(first) - first + JITTER;
                #[allow(clippy::cast_precision_loss)] // some thousands
                let most = f64::from(capacity) + rate * passed.as_secs_f64() + tail as f64;
                assert!(tokens <= most, "{round}: {tokens} tokens of {name} within {passed:?}, {most} at most");
            }
        }
    }

    /// Whether it was granted before the kill, and the files or the replica may not
    /// know of it.
    fn may_be_lost(&self, spent: &Spent, kept: Kept) -> bool {
        // The answer may have lain there for a while before the client got to read it.
        let answered = spent.answered.filter(|_| spent.sent <= self.killed);
        answered.is_some_and(|answered| !kept.covers(answered, spent.confirmed))
    }

    fn assert_freeze(&self, freeze: &Freeze, kept: Kept, round: &str, sums: &mut Sums) {
        let known = kept.covers(freeze.answered, freeze.confirmed);
        let broken = self.broken(freeze, kept);
        if known && let Some(broken) = &broken {
            panic!("{round}: {broken}");
        }
        for (sum, more) in sums.freezes.iter_mut().zip([true, known, broken.is_none()]) {
            *sum += u64::from(more);
        }
    }

    /// What was granted in spite of a freeze.
    fn broken(&self, freeze: &Freeze, kept: Kept) -> Option<String> {
        let Budget { name, rate, .. } = BUDGETS[freeze.budget];
        let after = self.spent.iter().filter(|spent| spent.budget == freeze.budget && spent.sent > freeze.answered);
        let mut tokens = 0.0;
        for spent in after.filter(|spent| spent.answered.is_some()) {
            let passed = spent.answered.unwrap_or(freeze.sent) - freeze.sent + JITTER;
            if !self.may_be_lost(spent, kept) {
                tokens += f64::from(spent.tokens);
            }
            if freeze.budget == FROZEN {
                return Some(format!("{name} was granted {passed:?} after it was penalised"));
            }
            // What refilled since the thaw, and no burst.
            let most = rate * passed.saturating_sub(FREEZE).as_secs_f64();
            let killed = self.killed.saturating_duration_since(freeze.sent);
            if tokens > most {
                return Some(format!(
                    "{tokens} tokens of {name} {passed:?} after it was frozen for {FREEZE:?}, killed after {killed:?}"
                ));
            }
        }
        None
    }
}

impl Kept {
    fn covers(self, answered: Instant, confirmed: bool) -> bool {
        match self {
            Self::All => true,
            Self::Before(moment) => moment.is_some_and(|moment| answered < moment),
            Self::Confirmed(moment) => confirmed || Self::Before(moment).covers(answered, false),
        }
    }
}
