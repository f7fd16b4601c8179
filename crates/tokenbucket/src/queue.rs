//! Those who wait for one bucket, first come, first served.
//!
//! Whoever is refused while others wait wants to know when all of them will be
//! served. For that nobody walks the queue: as long as the vendor's word holds up
//! none of a run of requests, the last of the run has its tokens when the sum of all
//! of them has come in. So the queue is kept as a tree of sums over it, in which a
//! request comes, goes, and is found by what is before it, in O(log n) each.

use crate::limit::Tokens;

/// How late a turn may be served and still count from when it came, in microseconds:
/// more than a timer is late, and less than makes a burst that a vendor would notice.
pub const MAX_LATE_US: i64 = 25_000;

/// Requests in the order they came, each for some tokens.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Whose ticket is at each leaf, in ascending order. Those who have left stay until the tree
    /// is full, with nothing at their leaf.
    tickets: Vec<Ticket>,
    /// A binary tree in one row: the root at 1, the children of n at 2n and 2n + 1,
    /// the leaves in its second half. (Nothing is at 0.)
    sums: Vec<Sum>,
    came: u64,
    /// The first moment at which it may be the first one's turn: its bucket was seen, or
    /// is another one, since then.
    since_us: i64,
}

/// Which request it is: later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What is known of neighbours in the queue together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: usize,
    /// The tokens of all, in millionths. 10^18 at most for each, so never too many.
    pub(crate) millionths: u128,
    /// The tokens of the largest.
    pub(crate) largest: Tokens,
}

/// A stretch of the queue, and the one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) sum: Sum,
    /// Its leaf and its tokens; `None` at the end of the queue.
    pub(crate) stopped_at: Option<(usize, Tokens)>,
}

impl Queue {
    /// One more, at the end.
    pub fn push(&mut self, tokens: Tokens) -> Ticket {
        if self.tickets.len() == self.leaves() {
            self.make_room();
        }
        let ticket = Ticket(self.came);
        self.came += 1;
        self.tickets.push(ticket);
        self.set(self.tickets.len() - 1, Sum::of(tokens));
        ticket
    }

    /// Whoever has the ticket leaves. Returns whether it had not before. Where it was the
    /// first, the turn of the next begins to be looked for: it could not come before.
    pub fn remove(&mut self, ticket: Ticket, now_us: i64) -> bool {
        let Ok(leaf) = self.tickets.binary_search(&ticket) else { return false };
        let stood = self.sum(self.leaves() + leaf).requests > 0;
        if self.first().is_some_and(|(first, _)| first == ticket) {
            self.look_again_from(now_us);
        }
        self.set(leaf, Sum::default());
        stood
    }

    /// Whose turn it is, and for how many tokens.
    pub fn first(&self) -> Option<(Ticket, Tokens)> {
        self.ticket_at(self.run(0, |sum| sum.requests > 0).stopped_at)
    }

    /// The first that wants more than `tokens`.
    pub fn first_above(&self, tokens: Tokens) -> Option<(Ticket, Tokens)> {
        self.ticket_at(self.run(0, |sum| sum.largest > tokens).stopped_at)
    }

    /// Turns may come from here on, not before: nobody waited yet, or the bucket is
    /// another one. To be told by whoever changes either.
    pub const fn look_again_from(&mut self, now_us: i64) {
        self.since_us = now_us;
    }

    pub(crate) const fn unserved_since_us(&self) -> i64 {
        self.since_us
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sum(1).requests
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The longest run from a leaf on of whose sum `ends` is not true. It may not
    /// become untrue again as the run grows.
    pub(crate) fn run(&self, from: usize, ends: impl Fn(Sum) -> bool) -> Run {
        let leaves = self.leaves();
        let mut sum = Sum::default();
        if from >= leaves {
            return Run { sum, stopped_at: None };
        }
        // To the right and up, over whole subtrees that do not end it ...
        let mut node = leaves + from;
        loop {
            let with = sum.and(self.sum(node));
            if ends(with) {
                break;
            }
            sum = with;
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return Run { sum, stopped_at: None };
            }
            node += 1;
        }
        // ... and down to the leaf that does.
        while node < leaves {
            node *= 2;
            let with = sum.and(self.sum(node));
            if !ends(with) {
                sum = with;
                node += 1;
            }
        }
        Run { sum, stopped_at: Some((node - leaves, self.sum(node).largest)) }
    }

    fn ticket_at(&self, found: Option<(usize, Tokens)>) -> Option<(Ticket, Tokens)> {
        let (leaf, tokens) = found?;
        self.tickets.get(leaf).map(|ticket| (*ticket, tokens))
    }

    fn leaves(&self) -> usize {
        self.sums.len() / 2
    }

    fn sum(&self, node: usize) -> Sum {
        self.sums.get(node).copied().unwrap_or_default()
    }

    fn set(&mut self, leaf: usize, sum: Sum) {
        let mut node = self.leaves() + leaf;
        let mut sum = sum;
        while let Some(known) = self.sums.get_mut(node) {
            *known = sum;
            if node <= 1 {
                return;
            }
            node /= 2;
            sum = self.sum(2 * node).and(self.sum(2 * node + 1));
        }
    }

    /// Lets go of those who have left; grows where they were fewer than half.
    fn make_room(&mut self) {
        let leaves = self.leaves();
        let old = std::mem::take(&mut self.tickets).into_iter().enumerate();
        let staying: Vec<(Ticket, Sum)> =
            old.map(|(leaf, ticket)| (ticket, self.sum(leaves + leaf))).filter(|(_, sum)| sum.requests > 0).collect();
        let leaves = (2 * staying.len()).next_power_of_two().max(4);
        self.sums.clear();
        self.sums.resize(2 * leaves, Sum::default());
        self.sums.shrink_to_fit();
        for (ticket, sum) in staying {
            self.tickets.push(ticket);
            self.set(self.tickets.len() - 1, sum);
        }
    }
}

impl Sum {
    const fn of(tokens: Tokens) -> Self {
        Self { requests: 1, millionths: tokens.millionths() as u128, largest: tokens }
    }

    fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            millionths: self.millionths + other.millionths,
            largest: self.largest.max(other.largest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_have_left_are_let_go_of_once_for_as_many_as_stay() {
        // Just as many as leave hardly any room in a tree of 64.
        const STAYING: usize = 62;
        let mut queue = Queue::default();
        for _ in 0..STAYING {
            queue.push(Tokens::ONE);
        }
        let (mut walks, mut known) = (0, queue.tickets.len());
        for _ in 0..10 * STAYING {
            let ticket = queue.push(Tokens::ONE);
            queue.remove(ticket, 0);
            walks += usize::from(queue.tickets.len() <= known);
            known = queue.tickets.len();
        }
        assert!((1..=10).contains(&walks), "{walks}");
    }
}
