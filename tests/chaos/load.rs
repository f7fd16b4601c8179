//! Clients that spend as fast as they can, and go on wherever the server is.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::connection::{Connection, array, int, text};
use crate::ledger::{BUDGETS, Budget, FILL, FREEZE, FROZEN, Freeze, PAIR, Spent, THAWING, key};
use crate::random::Random;
use crate::server::Server;

/// How long a client waits for a replica to confirm, in milliseconds.
const CONFIRM_MS: &str = "50";

/// Where the clients find the server.
pub(crate) enum Place {
    Socket(Mutex<PathBuf>),
    /// Where these sentinels say, on these ports.
    Sentinels(Vec<u16>),
}

impl Place {
    pub(crate) fn of(server: &Server) -> Self {
        Self::Socket(Mutex::new(server.dir().join("socket")))
    }

    pub(crate) fn move_to(&self, server: &Server) {
        let Self::Socket(socket) = self else { panic!("the sentinels say where it is") };
        *socket.lock().unwrap() = server.dir().join("socket");
    }

    fn connect(&self, random: &mut Random) -> Option<Connection> {
        match self {
            Self::Socket(socket) => {
                let socket = socket.lock().unwrap().clone();
                Connection::unix(&socket).ok()
            }
            Self::Sentinels(ports) => {
                // Each question takes a port of the machine for a minute.
                thread::sleep(Duration::from_millis(10));
                let mut sentinel = Connection::tcp(ports[random.below(ports.len())]).ok()?;
                Connection::tcp(primary_port(&mut sentinel)).ok()
            }
        }
    }
}

/// Where a sentinel says that the primary is.
#[track_caller]
pub(crate) fn primary_port(sentinel: &mut Connection) -> u16 {
    text(&array(sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME limiter"))[1]).parse().unwrap()
}

/// Whether a client asks for a replica's confirmation of each of its calls.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Confirmation {
    Awaited,
    NotAskedFor,
}

/// Runs clients while `work` goes on; what they have spent.
pub(crate) fn spending(
    place: &Place,
    round: &str,
    clients: &[(&str, Confirmation)],
    seed: u64,
    work: impl FnOnce(),
) -> Vec<Vec<Spent>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let spend = |(number, (prefix, confirmation)): (usize, &(&str, Confirmation))| {
            let round = format!("{round}{prefix}");
            let random = Random::new(seed.wrapping_mul(31).wrapping_add(u64::try_from(number).unwrap()));
            let (stop, confirmation) = (&stop, *confirmation);
            scope.spawn(move || spend(place, &round, confirmation, random, stop))
        };
        let clients: Vec<_> = clients.iter().enumerate().map(spend).collect();
        // Whatever becomes of the work, the clients must end.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        let spent = clients.into_iter().map(|client| client.join().unwrap()).collect();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        spent
    })
}

fn spend(place: &Place, round: &str, confirmation: Confirmation, mut random: Random, stop: &AtomicBool) -> Vec<Spent> {
    let mut spent = Vec::new();
    while !stop.load(Relaxed) {
        let Some(mut c) = place.connect(&mut random) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        while !stop.load(Relaxed) {
            let call = any_call(round, &mut random);
            let sent = Instant::now();
            let reply = call.make(&mut c, confirmation);
            let answered = reply.as_ref().map(|_| Instant::now());
            let (taken, confirmed) = match &reply {
                None => (call.tokens, false), // unheard of
                Some((Value::Array(fields), confirmed)) => {
                    let allowed = u32::try_from(int(&fields[0])).unwrap();
                    (if call.up_to { allowed } else { allowed * call.tokens }, *confirmed)
                }
                // It is loading, or a replica again.
                Some(_) => (0, false),
            };
            let tokens = |budget: &usize| Spent { budget: *budget, tokens: taken, sent, answered, confirmed };
            if taken > 0 {
                spent.extend(call.budgets.iter().map(tokens));
            }
            if !matches!(reply, Some((Value::Array(_), _))) {
                thread::sleep(Duration::from_millis(1));
                break;
            }
        }
    }
    spent
}

struct Call {
    command: String,
    budgets: &'static [usize],
    tokens: u32,
    up_to: bool,
}

fn any_call(round: &str, random: &mut Random) -> Call {
    let tokens = u32::try_from(1 + random.below(7)).unwrap();
    let call = |budgets: &'static [usize], tokens: u32, up_to: bool| {
        let Budget { capacity, rate, .. } = BUDGETS[budgets[0]];
        let option = if up_to { " UPTO" } else { "" };
        let command = format!("TB.CONSUME {} {capacity} {rate} {tokens}{option}", key(round, budgets[0]));
        Call { command, budgets, tokens, up_to }
    };
    match random.below(10) {
        0..2 => call(&[0], tokens, false),
        2 => call(&[1], tokens, false),
        3 => call(&[1], tokens, true),
        4 => call(&[2], tokens, random.one_in(2)),
        5..7 => {
            let Budget { capacity, rate, .. } = BUDGETS[PAIR[0]];
            let limit = format!("{capacity} {rate} {tokens} 1");
            let [x, y] = PAIR.map(|budget| key(round, budget));
            Call { command: format!("TB.MCONSUME 2 {x} {y} {limit} {limit}"), budgets: &PAIR, tokens, up_to: false }
        }
        7 => call(&[FILL], 1, false),
        8 => call(&[FROZEN], 1, false),
        _ => call(&[THAWING], 1, false),
    }
}

impl Call {
    /// The reply and whether a replica has confirmed it; none where it stays out.
    fn make(&self, c: &mut Connection, confirmation: Confirmation) -> Option<(Value, bool)> {
        c.try_send(&self.command.split(' ').collect::<Vec<_>>()).ok()?;
        if confirmation == Confirmation::Awaited {
            c.try_send(&["WAIT", "1", CONFIRM_MS]).ok()?;
        }
        let reply = c.try_receive().ok()?;
        let confirmed =
            confirmation == Confirmation::Awaited && c.try_receive().is_ok_and(|reply| matches!(reply, Value::Int(1..)));
        Some((reply, confirmed))
    }
}

/// Penalises what is penalised in each round.
#[track_caller]
pub(crate) fn freeze(c: &mut Connection, round: &str) -> Vec<Freeze> {
    let penalise = |(budget, seconds): (usize, f64)| {
        let sent = Instant::now();
        c.send(&["TB.PENALISE", &key(round, budget), &seconds.to_string()]);
        c.send(&["WAIT", "1", CONFIRM_MS]);
        int(&c.receive());
        let answered = Instant::now();
        Freeze { budget, sent, answered, confirmed: int(&c.receive()) > 0 }
    };
    [(FROZEN, 1e5), (THAWING, FREEZE.as_secs_f64())].map(penalise).into()
}

/// Buckets that make a snapshot, a rewrite or a full resync take its time.
pub(crate) fn ballast(c: &mut Connection) {
    const BATCH: usize = 1_000;
    for batch in 0..30 {
        for number in 0..BATCH {
            c.send(&["TB.CONSUME", &format!("ballast:{}", batch * BATCH + number), "10", "1e-8"]);
        }
        for _ in 0..BATCH {
            assert_eq!(array(c.receive())[0], Value::Int(1));
        }
    }
}
