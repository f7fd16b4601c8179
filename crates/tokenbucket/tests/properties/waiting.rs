//! Those who wait: never too many, never out of turn, and an honest wait for whoever
//! comes behind them.

use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::{Bucket, Consume, Decision, Effect, Limit, MAX_LATE_US, Mode, Queue, Status, Sync, Ticket, Tokens, Turn};

use crate::cases;
use crate::histories::{
    Amount, Deed, History, Order, Outcome, Player, Way, amount, history, limits, plain_limit, span, start_us, step,
};
use crate::oracle::{Exact, Oracle, Terms, exact};
use crate::promises::{Grant, stays_within};

// ---------------------------------------------------------------- the queue

/// What may happen to a queue; whom it concerns is counted among those who are there.
#[derive(Clone, Copy, Debug)]
enum Move {
    Comes(u64),
    Leaves(usize),
    FirstIsServed,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (0..50_u64).prop_map(Move::Comes),
        1 => any::<usize>().prop_map(Move::Leaves),
        1 => Just(Move::FirstIsServed),
    ];
    vec(one, 0..120)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_queue_is_a_list_that_is_quick_to_search(moves in moves(), above in 0..50_u64) {
        let tokens = |n: u64| Tokens::from_millionths(n).unwrap();
        let (mut queue, mut list) = (Queue::default(), Vec::<(Ticket, Tokens)>::new());
        for one in moves {
            match one {
                Move::Comes(n) => list.push((queue.push(tokens(n)), tokens(n))),
                Move::Leaves(which) if !list.is_empty() => {
                    let (ticket, _) = list.remove(which % list.len());
                    prop_assert!(queue.remove(ticket, 0));
                    prop_assert!(!queue.remove(ticket, 0), "it left twice");
                }
                Move::FirstIsServed if !list.is_empty() => prop_assert!(queue.remove(list.remove(0).0, 0)),
                Move::Leaves(_) | Move::FirstIsServed => {}
            }
            prop_assert_eq!(queue.first(), list.first().copied());
            prop_assert_eq!(queue.first_above(tokens(above)), list.iter().find(|(_, n)| *n > tokens(above)).copied());
            prop_assert_eq!((queue.len(), queue.is_empty()), (list.len(), list.is_empty()));
            prop_assert!(list.is_sorted(), "tickets do not follow the order of arrival");
        }
    }
}

// ------------------------------------------------------------ behind others

/// The wait behind others, by serving one after the other at the microsecond of its turn.
fn wait_one_by_one(mut bucket: Bucket, waiting: &[Tokens], call: &Consume, now_us: i64) -> u64 {
    let mut queue = Queue::default();
    for tokens in waiting {
        queue.push(*tokens);
    }
    queue.look_again_from(now_us);
    let mut at_us = now_us;
    for _ in 0..1000 {
        match bucket.serve(&mut queue, &call.limit, at_us).0 {
            Turn::Of(..) => {}
            Turn::In(us) => at_us = at_us.saturating_add_unsigned(us),
            Turn::Nobody => {
                let decision = bucket.consume(call, at_us).unwrap().0;
                if decision.allowed == 0 {
                    at_us = at_us.saturating_add_unsigned(decision.wait_us.unwrap());
                    assert!(bucket.consume(call, at_us).unwrap().0.allowed > 0, "a wait that was not honest");
                }
                return at_us.abs_diff(now_us);
            }
        }
    }
    panic!("no end to waiting");
}

/// A queue of what the amounts are for the bucket of a player.
fn queue_of(player: &Player<'_>, amounts: &[Amount]) -> (Queue, Vec<Tokens>) {
    let tokens = |amount: &Amount| match player.deed(Order::Consume { limit: 0, amount: *amount, way: Way::Exactly }) {
        Deed::Consume(call) => call.tokens,
        _ => unreachable!(),
    };
    let list: Vec<Tokens> = amounts.iter().map(tokens).collect();
    let mut queue = Queue::default();
    for tokens in &list {
        queue.push(*tokens);
    }
    (queue, list)
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_wait_behind_others_is_that_of_serving_them_one_by_one(
        history in history(8),
        amounts in vec(amount(), 1..12),
        (limit, wanted) in (0..3_usize, amount()),
        way in prop_oneof![3 => Just(Way::Exactly), 1 => Just(Way::UpTo), 1 => span().prop_map(Way::Reserve)],
    ) {
        let mut player = history.play();
        player.by_ref().for_each(drop);
        let (queue, list) = queue_of(&player, &amounts);
        let Deed::Consume(mut call) = player.deed(Order::Consume { limit, amount: wanted, way }) else { unreachable!() };
        call.tokens = call.tokens.max(Tokens::MIN); // to ask is another matter
        // Not so far ahead that there is no such moment.
        let total: u128 = list.iter().map(|tokens| u128::from(tokens.millionths())).sum();
        let longest_us = total.saturating_mul(call.limit.rate().per()) / call.limit.rate().tokens();
        if longest_us > 1 << 61 {
            return Ok(());
        }

        let mut bucket = player.bucket;
        let (decision, effect) = bucket.consume_behind(&call, &queue, player.now_us).unwrap();
        let mut alone = player.bucket;
        let (alone_decision, _) = alone.consume(&call, player.now_us).unwrap();
        prop_assert_eq!((decision.allowed, decision.remaining), (0, 0));
        if alone_decision.status == Status::Never {
            prop_assert_eq!((decision.status, decision.wait_us, effect), (Status::Never, None, Effect::Unchanged));
            return Ok(());
        }
        let expected = wait_one_by_one(bucket, &list, &call, player.now_us).max(1);
        prop_assert_eq!(decision.wait_us, Some(expected), "{:#?} behind {:?} of {:#?}", call, list, player.bucket);
        // Of the bucket it changes no more than a call that is denied for now does.
        let mut denied = player.bucket;
        if player.bucket == Bucket::UNKNOWN {
            prop_assert_eq!((bucket, effect), (player.bucket, Effect::Unchanged));
        } else if denied.change_limit(&call, player.now_us) == Effect::Changed {
            prop_assert_eq!((bucket, effect), (denied, Effect::Changed));
        } else {
            prop_assert_eq!((bucket, effect), (player.bucket, Effect::Unchanged));
        }
        let status = if alone_decision.allowed > 0 { Status::Empty } else { alone_decision.status };
        prop_assert_eq!(decision.status, status);
    }

    #[test]
    fn where_nobody_waits_a_call_behind_them_is_a_plain_one(history in history(8), wanted in amount()) {
        let mut player = history.play();
        player.by_ref().for_each(drop);
        let deed = player.deed(Order::Consume { limit: 1, amount: wanted, way: Way::Exactly });
        let Deed::Consume(call) = deed else { unreachable!() };
        let (mut one, mut other) = (player.bucket, player.bucket);
        prop_assert_eq!(
            one.consume_behind(&call, &Queue::default(), player.now_us),
            other.consume(&call, player.now_us)
        );
        prop_assert_eq!(one, other);
    }

    #[test]
    fn force_and_an_ask_are_answered_as_if_nobody_waited(history in history(8), amounts in vec(amount(), 1..4)) {
        let mut player = history.play();
        player.by_ref().for_each(drop);
        let (queue, _) = queue_of(&player, &amounts);
        for (tokens, mode) in [(Tokens::ONE, Mode::Force), (Tokens::ZERO, Mode::Exactly)] {
            let call = Consume { limit: history.limit(0), tokens, mode };
            let (mut one, mut other) = (player.bucket, player.bucket);
            let behind = one.consume_behind(&call, &queue, player.now_us);
            let plain = other.consume(&call, player.now_us);
            prop_assert_eq!(one, other);
            prop_assert_eq!(behind.is_ok(), plain.is_ok());
            if let (Ok((behind, effect)), Ok((plain, plain_effect))) = (behind, plain) {
                prop_assert_eq!((behind.allowed, behind.status, behind.wait_us), (plain.allowed, plain.status, plain.wait_us));
                prop_assert_eq!((behind.remaining, effect), (0, plain_effect));
            }
        }
    }
}

// ------------------------------------------------------- a life with waiters

/// What happens beside what any history has.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Comes(Amount),
    GoesAway(usize),
    Nobody,
}

fn waiter() -> BoxedStrategy<Waiter> {
    prop_oneof![
        4 => amount().prop_map(Waiter::Comes),
        1 => any::<usize>().prop_map(Waiter::GoesAway),
        1 => Just(Waiter::Nobody),
    ]
    .boxed()
}

/// A server that serves whoever waits at the very microsecond of his turn.
struct Service<'h> {
    player: Player<'h>,
    queue: Queue,
    waiting: Vec<(Ticket, Tokens)>,
    limit: Limit,
    grants: Vec<Grant>,
    /// The last moment at which something has changed.
    seen_us: i64,
}

impl<'h> Service<'h> {
    fn new(history: &'h History) -> Self {
        let (queue, waiting, grants, limit) = (Queue::default(), Vec::new(), Vec::new(), history.limit(0));
        let mut service = Self { player: history.play(), queue, waiting, limit, grants, seen_us: 0 };
        service.changed();
        service
    }

    /// Serves all whose turn it is; returns in how many microseconds the next is.
    fn serve(&mut self) -> Option<u64> {
        loop {
            if let Some(limit) = self.player.bucket.limit() {
                self.limit = *limit;
            }
            let before = self.player.bucket;
            let (turn, effect) = self.player.bucket.serve(&mut self.queue, &self.limit, self.player.now_us);
            assert_eq!(effect == Effect::Changed, before != self.player.bucket);
            match turn {
                Turn::Nobody => {
                    assert!(self.waiting.is_empty(), "somebody was forgotten");
                    return None;
                }
                Turn::In(us) => {
                    assert!(us > 0 && !self.waiting.is_empty(), "a wait for nothing");
                    return Some(us);
                }
                Turn::Of(ticket, decision) => {
                    let index = self.waiting.iter().position(|(waiting, _)| *waiting == ticket).expect("one who waits");
                    let (_, tokens) = self.waiting.remove(index);
                    if decision.allowed > 0 {
                        assert_eq!(index, 0, "served out of turn");
                        assert!(tokens <= self.limit.capacity(), "more than it can hold");
                        let at = self.turn_of(before, tokens);
                        self.grants.push(Grant { at, millionths: tokens.millionths().into() });
                    } else {
                        assert_eq!((decision.status, decision.wait_us), (Status::Never, None));
                        assert!(tokens > self.limit.capacity(), "turned away for nothing");
                    }
                    assert!(self.waiting.is_empty() || decision.remaining == 0, "something is left while others wait");
                }
            }
        }
    }

    /// When the turn for `tokens` came that was served just now: to the part of a
    /// microsecond, where it is the refill that it came by.
    fn turn_of(&self, mut before: Bucket, tokens: Tokens) -> Exact {
        let now_us = self.player.now_us;
        let since_us = self.seen_us.max(now_us - 1);
        let mode = Mode::Reserve { max_wait_us: now_us.abs_diff(since_us) };
        match before.consume(&Consume { limit: self.limit, tokens, mode }, since_us) {
            Ok((Decision { allowed: 1.., .. }, _)) => Oracle::from(&before).zero.unwrap().max(exact(since_us)),
            _ => exact(now_us),
        }
    }

    /// Serves after something has changed.
    fn changed(&mut self) {
        self.queue.look_again_from(self.player.now_us);
        self.seen_us = self.player.now_us;
        self.serve();
    }

    /// Lets the time pass up to `until_us`, and each have his turn on the way.
    fn pass(&mut self, until_us: i64) {
        for _ in 0..1000 {
            match self.serve() {
                Some(us) if self.player.now_us.saturating_add_unsigned(us) <= until_us => {
                    self.player.now_us = self.player.now_us.saturating_add_unsigned(us);
                }
                _ => break,
            }
        }
        self.player.now_us = until_us.max(self.player.now_us);
        self.serve();
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_interleaving_grants_too_many_or_out_of_turn(
        (limits, start_us) in (limits(), start_us()),
        events in vec((step(), waiter()), 1..40),
    ) {
        let history = History { limits, start_us, steps: Vec::new() };
        let mut service = Service::new(&history);
        for (step, waiter) in events {
            let mut later = history.play();
            (later.bucket, later.now_us) = (service.player.bucket, service.player.now_us);
            later.wait(step.pause);
            service.pass(later.now_us);
            match waiter {
                Waiter::Nobody => {}
                Waiter::GoesAway(which) if !service.waiting.is_empty() => {
                    let index = which % service.waiting.len();
                    let (ticket, _) = service.waiting.remove(index);
                    assert!(service.queue.remove(ticket, service.player.now_us));
                    if index == 0 {
                        service.seen_us = service.player.now_us;
                    }
                }
                Waiter::GoesAway(_) => {}
                Waiter::Comes(amount) => {
                    let order = Order::Consume { limit: 0, amount, way: Way::Exactly };
                    let Deed::Consume(call) = service.player.deed(order) else { unreachable!() };
                    // Its limit counts on arrival; it has to be one that could be granted.
                    if call.tokens > Tokens::ZERO && call.tokens <= call.limit.capacity() {
                        service.player.bucket.change_limit(&call, service.player.now_us);
                        service.waiting.push((service.queue.push(call.tokens), call.tokens));
                        service.changed();
                    }
                }
            }
            service.serve();
            let before = service.player.bucket;
            let now_us = service.player.now_us;
            let deed = service.player.deed(step.order);
            // A refund, a forced call and what the vendor takes are others' business.
            match deed {
                Deed::Refund(_) | Deed::Consume(Consume { mode: Mode::Force, .. }) => continue,
                Deed::Consume(call) => {
                    let awaited = !service.queue.is_empty();
                    let (decision, effect) = service.player.bucket.consume_behind(&call, &service.queue, now_us).unwrap();
                    assert!(!awaited || call.tokens == Tokens::ZERO || decision.allowed == 0, "it overtook those who wait");
                    let outcome = Outcome::Consumed(Ok((decision, effect)));
                    let event = crate::histories::Event { before, now_us, deed, outcome, after: service.player.bucket };
                    service.grants.extend(Grant::of(&event));
                }
                Deed::Penalise { end_us } => {
                    service.player.act(deed);
                    // It voids the reservations whose moment falls before its end.
                    let (now, end) = (exact(now_us), exact(end_us));
                    service.grants.retain(|grant| grant.at <= now || grant.at >= end);
                }
                Deed::Sync(_) => {
                    service.player.act(deed);
                }
            }
            service.changed();
        }
        stays_within(&history.limits, service.grants);
    }
}

// -------------------------------------------------------------- served late

proptest! {
    #![proptest_config(cases(256))]

    /// A timer that is never on time: each turn is served up to as late as still counts. (What
    /// is told is a turn rounded up to a microsecond, and so late by less than one already.)
    #[test]
    fn a_queue_that_is_served_late_moves_at_the_full_rate(
        limit in plain_limit(),
        sixteenths in vec(1..=16_u64, 1..40),
        late in vec(0..MAX_LATE_US, 1..8),
    ) {
        let (mut bucket, mut queue) = (Bucket::UNKNOWN, Queue::default());
        let all = Consume { limit, tokens: limit.capacity(), mode: Mode::Exactly };
        prop_assert!(bucket.consume(&all, 0).unwrap().0.allowed > 0);
        let part = |sixteenths: u64| (limit.capacity().millionths() * sixteenths / 16).max(1);
        for sixteenths in &sixteenths {
            queue.push(Tokens::from_millionths(part(*sixteenths)).unwrap());
        }
        queue.look_again_from(0);
        let terms = Terms::from(&limit);
        let (mut now_us, mut ticks, mut sum, mut told) = (0_i64, 0, exact(0), Vec::new());
        for sixteenths in &sixteenths {
            let turn = loop {
                match bucket.serve(&mut queue, &limit, now_us).0 {
                    Turn::In(us) => {
                        now_us += i64::try_from(us).unwrap() + late[ticks % late.len()];
                        ticks += 1;
                    }
                    turn => break turn,
                }
            };
            prop_assert!(matches!(turn, Turn::Of(_, decision) if decision.allowed == 1));
            sum += exact(part(*sixteenths));
            let due = &sum / &terms.rate;
            prop_assert!(exact(now_us) >= due, "before its turn");
            prop_assert!(exact(now_us) < due + exact(MAX_LATE_US + 1), "later than the timer is");
            told.push((now_us, part(*sixteenths)));
        }
        // By when they were told, it is no more than a late turn brings together.
        for (first, (since_us, _)) in told.iter().enumerate() {
            let mut sum = exact(0);
            for (until_us, millionths) in &told[first..] {
                sum += exact(*millionths);
                let most = &terms.capacity + &terms.rate * exact(until_us - since_us + MAX_LATE_US);
                prop_assert!(sum <= most, "{sum} of {most}");
            }
        }
    }
}

// ------------------------------------------------------------------- by hand

fn limit(capacity: u64, tokens: u128, per: u128) -> Limit {
    Limit::new(Tokens::from_whole(capacity).unwrap(), tokenbucket::Rate::new(tokens, per).unwrap()).unwrap()
}

#[test]
fn a_hundred_and_fifty_at_a_hundred_a_second_take_a_second_and_a_half_less_the_burst() {
    let limit = limit(20, 100, 1);
    let history = History { limits: vec![limit], start_us: 0, steps: Vec::new() };
    let mut service = Service::new(&history);
    for _ in 0..150 {
        service.waiting.push((service.queue.push(Tokens::ONE), Tokens::ONE));
    }
    service.pass(10_000_000);
    assert_eq!(service.grants.len(), 150);
    assert_eq!(service.grants.last().unwrap().at, exact(1_300_000));
    assert_eq!(service.grants[19].at, exact(0));
    assert_eq!(service.grants[20].at, exact(10_000));
}

#[test]
fn many_who_come_and_go_behind_one_who_stays_leave_nothing_behind() {
    let mut queue = Queue::default();
    let stays = queue.push(Tokens::ONE);
    let size = |queue: &Queue| format!("{queue:?}").len();
    for _ in 0..100 {
        let ticket = queue.push(Tokens::ONE);
        queue.remove(ticket, 0);
    }
    let small = size(&queue);
    for _ in 0..100_000 {
        let ticket = queue.push(Tokens::ONE);
        queue.remove(ticket, 0);
    }
    assert!(size(&queue) < 2 * small, "the queue grows with those who have left");
    assert_eq!(queue.first(), Some((stays, Tokens::ONE)));
}

#[test]
fn behind_a_window_the_wait_is_to_its_reset_and_what_had_come_in_counts() {
    let limit = limit(10, 1, 1);
    let mut bucket = Bucket::UNKNOWN;
    let ask = |tokens| Consume { limit, tokens: Tokens::from_whole(tokens).unwrap(), mode: Mode::Exactly };
    bucket.consume(&ask(10), 0).unwrap();
    bucket.sync(&Sync { remaining: Tokens::ONE, reset_us: Some(60_000_000), limit: None, tolerance: Tokens::ZERO }, 0);
    let mut queue = Queue::default();
    for tokens in [1, 2, 3] {
        queue.push(Tokens::from_whole(tokens).unwrap());
    }
    // One is served after a second, two and three at the reset from a full bucket, and
    // five are left of it.
    assert_eq!(bucket.consume_behind(&ask(5), &queue, 0).unwrap().0.wait_us, Some(60_000_000));
    assert_eq!(bucket.consume_behind(&ask(6), &queue, 0).unwrap().0.wait_us, Some(61_000_000));
}

#[test]
fn a_window_that_is_used_up_before_keeps_none_who_acts_after_its_reset() {
    let limit = limit(10, 1, 1);
    let mut bucket = Bucket::UNKNOWN;
    let ask = |tokens, mode| Consume { limit, tokens: Tokens::from_whole(tokens).unwrap(), mode };
    bucket.consume(&ask(10, Mode::Exactly), 0).unwrap();
    let two = Tokens::from_whole(2).unwrap();
    bucket.sync(&Sync { remaining: two, reset_us: Some(5_000_000), limit: None, tolerance: Tokens::ZERO }, 0);
    let mut queue = Queue::default();
    queue.push(two);
    // The two come after two seconds; from then on ten seconds are within the wait.
    let call = ask(8, Mode::Reserve { max_wait_us: 9_000_000 });
    assert_eq!(bucket.consume_behind(&call, &queue, 0).unwrap().0.wait_us, Some(2_000_000));
}

#[test]
fn behind_one_who_is_about_to_be_sent_away_a_debt_is_waited_for_once() {
    let limit = limit(10, 1, 1);
    let mut bucket = Bucket::UNKNOWN;
    let ask = |tokens, mode| Consume { limit, tokens: Tokens::from_whole(tokens).unwrap(), mode };
    bucket.consume(&ask(15, Mode::Force), 0).unwrap();
    let mut queue = Queue::default();
    queue.push(Tokens::from_whole(20).unwrap());
    let call = ask(1, Mode::Reserve { max_wait_us: 60_000_000 });
    assert_eq!(bucket.consume_behind(&call, &queue, 0).unwrap().0.wait_us, Some(1));
}

#[test]
fn a_bucket_without_a_limit_gets_that_of_the_first_who_waits() {
    let limit = limit(10, 1, 1);
    let mut bucket = Bucket::UNKNOWN;
    bucket.penalise(1_000_000, 0);
    let mut queue = Queue::default();
    queue.push(Tokens::ONE);
    queue.look_again_from(0);
    assert_eq!(bucket.serve(&mut queue, &limit, 0), (Turn::In(2_000_000), Effect::Changed));
    assert_eq!(bucket.limit(), Some(&limit));
    assert_eq!(bucket.serve(&mut queue, &limit, 0), (Turn::In(2_000_000), Effect::Unchanged));
}

#[test]
fn where_the_first_leaves_the_next_has_what_the_bucket_holds_and_no_more() {
    let limit = limit(100, 1000, 1);
    let mut bucket = Bucket::UNKNOWN;
    bucket.change_limit(&Consume { limit, tokens: Tokens::ONE, mode: Mode::Exactly }, 0);
    let five = Tokens::from_whole(5).unwrap();
    let said = Sync { remaining: five, reset_us: None, limit: Some((five, 600_000_000)), tolerance: Tokens::ZERO };
    bucket.sync(&said, 0);
    let mut queue = Queue::default();
    let first = queue.push(Tokens::from_whole(8).unwrap());
    for _ in 0..60 {
        queue.push(Tokens::ONE);
    }
    queue.look_again_from(0);
    assert!(matches!(bucket.serve(&mut queue, &limit, 1_000_000).0, Turn::In(_)));
    queue.remove(first, 1_000_000);
    let mut served = 0;
    while let (Turn::Of(..), _) = bucket.serve(&mut queue, &limit, 1_000_000) {
        served += 1;
    }
    assert_eq!(served, 5);
}
