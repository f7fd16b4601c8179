//! What earlier versions of the module wrote is read for ever. `fixtures/` has an RDB and
//! an AOF of each encoding version, written by the first module that wrote it (on Redis
//! 7.0.15, whose files all later servers read) and never again.
//!
//! When there is a version 2: `WRITE_FIXTURES=1 cargo test --test integration writes_`
//! with the names below changed, and what is expected here of version 1 stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::assert_left_since;
use crate::connection::{Connection, Peeked, error_text};
use crate::server::{Server, wait_until};
use crate::wallclock::WallClock;

/// When the fixtures were written, by the clock of their server: Unix time in seconds.
const WRITTEN: i64 = 1_800_000_000;
/// How long ago that is when they are loaded, in seconds: they were begun in that second.
const AGO: i64 = 100;
/// How much longer ago it may be: that second, one that clocks are cut to, and the writing.
const CUT: Duration = Duration::from_secs(4);

struct Bucket {
    setup: &'static [&'static str],
    /// Capacity, rate, period.
    limit: Option<(&'static str, &'static str, &'static str)>,
    /// When it was written, as all that follows; rates are so low that little is added.
    tokens: Option<f64>,
    frozen_ms: i64,
    vendor_limit: Option<i64>,
    /// What is left of the window, and for how long.
    window: Option<(i64, i64)>,
}

const PLAIN: Bucket = Bucket { setup: &[], limit: None, tokens: None, frozen_ms: 0, vendor_limit: None, window: None };
const SLOW: Option<(&str, &str, &str)> = Some(("10", "1", "100000000"));

/// One in each form there is in memory and on the wire.
const BUCKETS: &[Bucket] = &[
    Bucket { setup: &["TB.CONSUME k 10 1e-8 4"], limit: SLOW, tokens: Some(6.0), ..PLAIN },
    Bucket { setup: &["TB.CONSUME k 10 1e-8 13 FORCE"], limit: SLOW, tokens: Some(-3.0), ..PLAIN },
    Bucket {
        setup: &["TB.CONSUME k 20 1.1574074074074073e-05 4.5"],
        limit: Some(("20", "1157407407407", "100000000000000000")),
        tokens: Some(15.5),
        ..PLAIN
    },
    Bucket {
        setup: &["TB.CONSUME k 1e12 999999999989 5e11 PER 31622400"],
        limit: Some(("1000000000000", "999999999989", "31622400")),
        tokens: Some(5e11),
        ..PLAIN
    },
    Bucket {
        setup: &["TB.CONSUME k 10 1e-8 4", "TB.PENALISE k 1000"],
        limit: SLOW,
        tokens: Some(0.0),
        frozen_ms: 1_000_000,
        ..PLAIN
    },
    Bucket {
        setup: &["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 3 RESET 600"],
        limit: SLOW,
        tokens: Some(8.0),
        window: Some((3, 600_000)),
        ..PLAIN
    },
    Bucket {
        setup: &["TB.CONSUME k 10 1e-8 1", "TB.SYNC k 8 LIMIT 3"],
        limit: SLOW,
        tokens: Some(3.0),
        vendor_limit: Some(3),
        ..PLAIN
    },
    Bucket {
        setup: &["TB.CONSUME k 10 1e-8 2", "TB.SYNC k 3 LIMIT 4 RESET 700", "TB.PENALISE k 300"],
        limit: SLOW,
        tokens: Some(0.0),
        frozen_ms: 300_000,
        vendor_limit: Some(4),
        window: Some((3, 700_000)),
    },
    Bucket { setup: &["TB.PENALISE k 1000"], frozen_ms: 1_000_000, ..PLAIN },
    Bucket { setup: &["TB.SYNC k 4.25"], ..PLAIN },
    Bucket { setup: &["TB.SYNC k 3 RESET 600 LIMIT 5"], vendor_limit: Some(5), window: Some((3, 600_000)), ..PLAIN },
];

/// So many buckets have one limit in common that it is kept apart from them.
const SHARING: usize = 10;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A wall clock that says that the fixtures were written so long ago.
fn clock(ago: i64) -> WallClock {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    WallClock::shifted(WRITTEN + ago - i64::try_from(now.as_secs()).unwrap())
}

fn fill(c: &mut Connection) {
    for (number, bucket) in BUCKETS.iter().enumerate() {
        for command in bucket.setup {
            let command = command.replace(" k", &format!(" bucket:{number}"));
            assert_eq!(error_text(&c.ask(&command)), None, "{command}");
        }
    }
    for number in 0..SHARING {
        c.take(&format!("sharing:{number} 7 1e-7 2"));
    }
}

#[test]
fn whoever_is_told_to_writes_the_fixtures() {
    if std::env::var_os("WRITE_FIXTURES").is_none() {
        return;
    }
    let server = Server::builder().append_only().wall_clock(&clock(0)).start();
    let mut c = server.connect();
    fill(&mut c);
    c.ok("SAVE");
    fs::copy(server.dir().join("dump.rdb"), fixture("version-1.rdb")).unwrap();
    c.ask("BGREWRITEAOF");
    wait_until("the AOF to be rewritten", || c.info("persistence", "aof_last_rewrite_time_sec") != "-1");
    fs::copy(server.dir().join("appendonlydir/appendonly.aof.2.base.aof"), fixture("version-1.aof")).unwrap();
}

/// Each bucket is what it was, and time has gone on since the clock was set.
#[track_caller]
fn assert_read(c: &mut Connection, set: Instant) {
    for (number, bucket) in BUCKETS.iter().enumerate() {
        let key = format!("bucket:{number}");
        let Peeked { capacity, rate, per, tokens, frozen_ms, vendor_limit, vendor_remaining, vendor_reset_ms, .. } = c.peek(&key);
        let limit =
            capacity.as_deref().zip(rate.as_deref()).zip(per.as_deref()).map(|((capacity, rate), per)| (capacity, rate, per));
        assert_eq!(limit, bucket.limit, "{key}");
        let tokens: Option<f64> = tokens.map(|tokens| tokens.parse().unwrap());
        assert_eq!(tokens.is_some(), bucket.tokens.is_some(), "{key}");
        if let Some((tokens, expected)) = tokens.zip(bucket.tokens) {
            let rate: f64 = rate.unwrap().parse::<f64>().unwrap() / per.unwrap().parse::<f64>().unwrap();
            #[allow(clippy::cast_precision_loss)] // a hundred
            let since = rate * (AGO as f64 + (CUT + set.elapsed()).as_secs_f64());
            let least = if bucket.frozen_ms > 0 { expected - since * 20.0 } else { expected };
            assert!((least - 1e-6..=expected + since).contains(&tokens), "{key}: {tokens} tokens, written with {expected}");
        }
        let left = |ms: i64| ms - AGO * 1_000;
        match bucket.frozen_ms {
            0 => assert_eq!(frozen_ms, 0, "{key}"),
            written => assert_left_since(set, CUT, left(written), frozen_ms),
        }
        assert_eq!(vendor_limit, bucket.vendor_limit, "{key}");
        assert_eq!(vendor_remaining, bucket.window.map(|(remaining, _)| remaining), "{key}");
        if let Some((_, written)) = bucket.window {
            assert_left_since(set, CUT, left(written), vendor_reset_ms.unwrap());
        }
        assert!(c.int(&format!("PTTL {key}")) > 0, "{key}");
    }
    for number in 0..SHARING {
        assert_eq!(c.consume(&format!("sharing:{number} 7 1e-7 6")).verdict(), (0, "empty", 5));
    }
    assert_eq!(c.info("tokenbucket", "tokenbucket_buckets"), (BUCKETS.len() + SHARING).to_string());
}

#[test]
fn an_rdb_of_version_1_is_read() {
    let (set, clock) = (Instant::now(), clock(AGO + 2));
    let mut server = Server::builder().wall_clock(&clock).start();
    server.kill();
    fs::copy(fixture("version-1.rdb"), server.dir().join("dump.rdb")).unwrap();
    server.start_again();
    assert_read(&mut server.connect(), set);
}

#[test]
fn an_append_only_file_of_version_1_is_read() {
    let (set, clock) = (Instant::now(), clock(AGO + 2));
    let mut server = Server::builder().append_only().wall_clock(&clock).start();
    server.kill();
    let folder = server.dir().join("appendonlydir");
    fs::copy(fixture("version-1.aof"), folder.join("appendonly.aof.1.base.aof")).unwrap();
    fs::write(folder.join("appendonly.aof.manifest"), "file appendonly.aof.1.base.aof seq 1 type b\n").unwrap();
    server.start_again();
    assert_read(&mut server.connect(), set);
}
