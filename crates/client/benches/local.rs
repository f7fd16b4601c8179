//! `Local` beside the `governor` crate, which keeps buckets in a process too, on the
//! same work: one token of a key, by a thread or two, of one hot key or of 100,000.
//!
//! ```text
//! cargo bench -p tokenbucket-client
//! ```
//!
//! The two do not know the same (governor has no debt, no penalties, no vendor's word,
//! one limit for all keys), so the last lines, governor without keys, are what it costs
//! to know nothing at all. The two take turns in short slices, and each figure is the
//! best slice and the middle one: what else the machine does only ever adds. What is to
//! be judged by is the last column, how many times as long as governor's slice the slice
//! of `Local` beside it took: the middle one, and in brackets the quarter below and above.

use std::hint::{black_box, spin_loop};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use tokenbucket_client::{Limit, Local};

const CALLS: usize = 200_000;
const ROUNDS: usize = 61;

/// What one thread does to a key.
type Call<'c> = &'c (dyn Fn(&String) + Sync);

fn main() {
    println!("{:<28}{:>8}{:>14}{:>14}{:>20}", "ns a call, best (middle)", "threads", "governor", "Local", "Local : governor");
    for granted in [true, false] {
        // A billion a second is a token each nanosecond: granted as fast as it is asked.
        let most = if granted { NonZeroU32::new(1_000_000_000).unwrap_or(NonZeroU32::MIN) } else { NonZeroU32::MIN };
        let quota = if granted { Quota::per_second(most) } else { Quota::per_hour(most) };
        let period = Duration::from_secs(if granted { 1 } else { 3600 });
        let Ok(limit) = Limit::per(most.get(), period) else { return };
        for count in [1_usize, 100_000] {
            let keys: Vec<String> = (0..count).map(|key| format!("vendor:{key}")).collect();
            let governor = RateLimiter::keyed(quota);
            let local = Local::new();
            let of_governor = |key: &String| {
                let _ = black_box(governor.check_key(key));
            };
            let of_local = |key: &String| {
                let _ = black_box(local.check(key, &limit, 1));
            };
            for key in &keys {
                of_governor(key);
                of_local(key);
            }
            for threads in [1, 2] {
                let what = if granted { "granted" } else { "denied" };
                let [governor, local, ratio] = compare(threads, &keys, [&of_governor, &of_local]);
                println!("{:<28}{threads:>8}{governor:>14}{local:>14}{ratio:>20}", format!("{what}, {count} keys"));
            }
        }
    }
    let governor = RateLimiter::direct(Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap_or(NonZeroU32::MIN)));
    let check = |_: &String| {
        let _ = black_box(governor.check());
    };
    for threads in [1, 2] {
        let [governor, ..] = compare(threads, &[String::new()], [&check, &|_| {}]);
        println!("{:<28}{threads:>8}{governor:>14}", "granted, without keys");
    }
}

/// Nanoseconds of a call of each, where each thread makes as many, keys in random order;
/// and the second's in terms of the first's.
fn compare(threads: usize, keys: &[String], [first, second]: [Call<'_>; 2]) -> [String; 3] {
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Neither always comes to a cache that the other has left.
        let mut of_second = if round % 2 == 0 { slice(threads, keys, second) } else { 0.0 };
        let of_first = slice(threads, keys, first);
        if round % 2 == 1 {
            of_second = slice(threads, keys, second);
        }
        firsts.push(of_first);
        seconds.push(of_second);
        ratios.push(of_second / of_first);
    }
    let at = |sorted: &[f64], quarter: usize| sorted.get((ROUNDS - 1) * quarter / 4).copied().unwrap_or(f64::NAN);
    let [firsts, seconds, ratios] = [firsts, seconds, ratios].map(|mut slices| {
        slices.sort_by(f64::total_cmp);
        slices
    });
    let best = |slices: &[f64]| format!("{:.0} ({:.0})", at(slices, 0), at(slices, 2));
    let ratio = format!("{:.2} ({:.2}-{:.2})", at(&ratios, 2), at(&ratios, 1), at(&ratios, 3));
    [best(&firsts), best(&seconds), ratio]
}

fn slice(threads: usize, keys: &[String], call: Call<'_>) -> f64 {
    // They start together: each waits for the last to be there.
    let ready = AtomicUsize::new(0);
    let work = |thread: usize| {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            spin_loop();
        }
        let start = Instant::now();
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ (thread as u64 + 1);
        for _ in 0..CALLS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if let Some(key) = keys.get((random >> 33) as usize % keys.len()) {
                call(key);
            }
        }
        start.elapsed().as_nanos() as f64 / CALLS as f64
    };
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let mine = work(0);
        others.into_iter().filter_map(|other| other.join().ok()).fold(mine, f64::max)
    })
}
