//! Bad input is an error, not damage: forged payloads, blobs and files, random
//! commands, and clients and operators that do everything at once. A panic that the
//! module's border stops is a fault too: it is in the log, which every server here
//! is asked for when it ends.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use redis::Value;

use crate::connection::{Connection, Consumed, array, consumed, error_text, field, int, pairs, peeked, text};
use crate::forgery::{Blob, SEAL, marks, payload_of, sealed, type_mark};
use crate::persistence::commands_appended;
use crate::random::Random;
use crate::scenarios::{self, Witness};
use crate::server::{Server, wait_until};

type Command = Vec<Vec<u8>>;

/// A number from the environment: how much is tried, more where there is time, and
/// from where the random numbers start.
fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Random numbers of a test's own; others in each run of `./dev hostile`.
fn random(test: u64) -> Random {
    Random::new(u64::try_from(setting("TOKENBUCKET_SEED", 0)).unwrap().wrapping_mul(1_000).wrapping_add(test))
}

fn words(command: &str) -> Command {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn command(parts: &[&[u8]]) -> Command {
    parts.iter().map(|part| part.to_vec()).collect()
}

/// Sends all, and then reads what there is to each.
#[track_caller]
fn ask_all(c: &mut Connection, commands: &[Command]) -> Vec<Value> {
    for command in commands {
        c.send(command);
    }
    commands.iter().map(|_| c.receive()).collect()
}

// ---- what an answer can be

/// Holds an answer that is no error to what the command promises whatever it finds.
#[track_caller]
fn assert_sane(command: &[Vec<u8>], reply: &Value) {
    let what = || format!("{:?}: {reply:?}", command.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>());
    match command[0].to_ascii_uppercase().as_slice() {
        b"TB.MCONSUME" => {
            let mut fields = array(reply.clone());
            let buckets = array(fields.split_off(5).remove(0));
            let all = consumed(&Value::Array(fields));
            let each: Vec<Consumed> = buckets.iter().map(consumed).collect();
            assert_eq!(each.len().to_string().as_bytes(), command[1], "{}", what());
            assert!(each.iter().all(|bucket| bucket.remaining >= all.remaining), "{}", what());
            // One that is `ready` holds nothing up, though with MAXWAIT it may have a wait.
            let decides = each.iter().filter(|bucket| all.allowed == 1 || bucket.status != "ready");
            let last = decides.map(|bucket| bucket.wait_ms).max();
            assert!(all.wait_ms == -1 || Some(all.wait_ms) == last, "{}", what());
            assert!((all.allowed == 1) == each.iter().all(|bucket| bucket.allowed == 1), "{}", what());
        }
        b"TB.CONSUME" | b"TB.BCONSUME" => {
            let reply = consumed(reply);
            let granted = ["granted", "reserved"].contains(&reply.status.as_str());
            let denied = ["never", "frozen", "window", "empty"].contains(&reply.status.as_str());
            assert!(granted != denied && granted == (reply.allowed > 0), "{}", what());
            assert!((0..=1_000_000_000_000).contains(&reply.remaining), "{}", what());
            assert!((reply.status == "never") == (reply.wait_ms == -1) && reply.wait_ms >= -1, "{}", what());
            assert!(denied == (reply.wait_ms != 0) || reply.status == "reserved", "{}", what());
            assert!(reply.full_ms >= 0, "{}", what());
        }
        b"TB.PENALISE" => assert!(int(reply) >= 0, "{}", what()),
        b"TB.SYNC" => {
            let reply = array(reply.clone());
            assert!([0, 1].contains(&int(&reply[0])) && int(&reply[1]) >= 0 && reply.len() == 2, "{}", what());
        }
        b"TB.REFUND" => assert!(*reply == Value::Nil || int(reply) >= 0, "{}", what()),
        b"TB.PEEK" => {
            if let Some(bucket) = peeked(reply.clone()) {
                let least = |value: Option<i64>, least| value.is_none_or(|value| value >= least);
                assert!(bucket.frozen_ms >= 0 && least(bucket.full_ms, 0) && least(bucket.wait_ms, -1), "{}", what());
                assert!(least(bucket.vendor_limit, 1) && least(bucket.vendor_remaining, 0), "{}", what());
                assert!(least(bucket.vendor_reset_ms, 1), "{}", what());
                let level: f64 = bucket.tokens.map_or(0.0, |tokens| tokens.parse().unwrap());
                let capacity: f64 = bucket.capacity.map_or(1e12, |capacity| capacity.parse().unwrap());
                assert!(level <= capacity && capacity <= 1e12, "{}", what());
            }
        }
        _ => {}
    }
}

/// Uses the bucket at `key`, whoever made it, in every way there is, and deletes it.
#[track_caller]
fn assert_usable(c: &mut Connection, key: &str, origin: &str) {
    let on = |command: &str| words(&command.replace(" k", &format!(" {key}")));
    let calls = [
        "TB.PEEK k",
        "TB.CONSUME k 10 0.5 0",
        "TB.CONSUME k 10 0.5 0 MAXWAIT 9",
        "TB.CONSUME k 10 0.5",
        "TB.CONSUME k 10 0.5 3 UPTO",
        "TB.CONSUME k 10 0.5 2 MAXWAIT 100",
        "TB.CONSUME k 10 0.5 1 FORCE",
        "TB.PEEK k",
        "TB.SYNC k 3 RESET 50 LIMIT 4",
        "TB.SYNC k 2",
        "TB.REFUND k 2",
        "TB.PENALISE k 1",
        "TB.PEEK k",
        "PTTL k",
        "MEMORY USAGE k",
        "DUMP k",
    ];
    let commands = calls.map(on);
    let replies = ask_all(c, &commands);
    for (command, reply) in commands.iter().zip(&replies) {
        match error_text(reply) {
            // A moment that lies a thousand years ahead is no reason to wait longer.
            Some(error) if error.starts_with("ERR tokens must be few enough") => {}
            Some(error) => panic!("{origin}: {error}"),
            None => assert_sane(command, reply),
        }
    }
    // The calls have brought their limit and left a TTL.
    let (bucket, ttl) = (peeked(replies[12].clone()).expect(origin), int(&replies[13]));
    assert_eq!(bucket.limit(), ("10", "1", "2"), "{origin}");
    assert!(ttl > 0, "{origin}: a TTL of {ttl}");
    let Value::BulkString(payload) = &replies[15] else { panic!("{origin}: {replies:?}") };
    let restore = command(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"]);
    let again = ask_all(c, &[restore, on("DUMP k"), on("DEL k")]);
    assert_eq!(again, [Value::Okay, replies[15].clone(), Value::Int(1)], "{origin}");
}

// ---- forged payloads of RESTORE

/// A server whose payloads have a bucket's bytes as they are.
fn uncompressed() -> Server {
    Server::builder().conf("rdbcompression no").start()
}

/// Payloads of DUMP of a bucket in every state.
fn genuine_payloads(c: &mut Connection) -> Vec<Vec<u8>> {
    Witness::of(c);
    let dump = |key| match c.ask(&format!("DUMP {key}")) {
        Value::BulkString(payload) => payload,
        other => panic!("no payload but {other:?}"),
    };
    scenarios::keys().map(dump).collect()
}

/// Where the module's part of a payload begins: after the value's type, the mark of
/// the module's, the kind of what follows and its length.
const STATE: usize = 12;

/// Restores forged payloads: each is refused, or gives a bucket that can be used.
/// Returns how many there were of each.
#[track_caller]
fn restore_all(c: &mut Connection, payloads: &[Vec<u8>]) -> (usize, usize) {
    let (mut refused, mut usable) = (0, 0);
    for chunk in payloads.chunks(500) {
        let restore = |(i, payload): (usize, &Vec<u8>)| command(&[b"RESTORE", format!("f{i}").as_bytes(), b"0", payload]);
        let commands: Vec<Command> = chunk.iter().enumerate().map(restore).collect();
        let replies = ask_all(c, &commands);
        for (i, (payload, reply)) in chunk.iter().zip(replies).enumerate() {
            let (key, origin) = (format!("f{i}"), payload.escape_ascii().to_string());
            if let Some(error) = error_text(&reply) {
                let expected = ["ERR Bad data format", "ERR DUMP payload version or checksum are wrong"];
                assert!(expected.contains(&error.as_str()), "{origin}: {error}");
                refused += 1;
                continue;
            }
            assert_eq!(reply, Value::Okay, "{origin}");
            if c.text(&format!("TYPE {key}")) == "tokbucket" {
                let Value::BulkString(dump) = c.ask(&format!("DUMP {key}")) else { panic!("{origin}: no DUMP") };
                // There is one way to write a bucket, and what is read was written so.
                // (Its length can be written in one byte or in two.)
                let (state, envelope) = (&dump[STATE..dump.len() - SEAL - 1], &dump[..STATE - 1]);
                let same = payload[STATE..].starts_with(state) || payload[STATE + 1..].starts_with(state);
                assert!(same || !payload.starts_with(envelope), "{origin}: as {}", dump.escape_ascii());
                assert_usable(c, &key, &origin);
                usable += 1;
            } else {
                c.int(&format!("DEL {key}")); // another type's number, by chance
            }
        }
    }
    (refused, usable)
}

/// One of the genuine payloads for each set of parts that a bucket can have.
fn one_of_each_kind(payloads: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    payloads
        .into_iter()
        .map(|payload| ((payload[STATE], payload.len()), payload))
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .collect()
}

#[track_caller]
fn assert_unharmed(server: &Server, c: &mut Connection) {
    c.ok("FLUSHALL SYNC");
    wait_until("no bucket to be left that nobody has", || c.info("tokenbucket", "tokenbucket_buckets") == "0");
    assert_eq!(c.take("k 5 1e-8 3").remaining, 2);
    assert_eq!(c.consume("k 5 1e-8 3").verdict(), (0, "empty", 2));
    assert!(!server.log().contains("a fault in the module"));
}

#[test]
fn a_payload_with_any_bit_flipped_is_refused_or_a_bucket_that_can_be_used() {
    let server = uncompressed();
    let mut c = server.connect();
    let genuine = one_of_each_kind(genuine_payloads(&mut c));
    assert!(genuine.len() >= 12, "{} kinds", genuine.len());
    for payload in genuine {
        let body = &payload[..payload.len() - 8]; // all but the checksum
        let flipped = (0..body.len() * 8).map(|bit| {
            let mut forged = body.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            sealed(&forged)
        });
        let (refused, usable) = restore_all(&mut c, &flipped.collect::<Vec<_>>());
        assert!(refused > 0 && usable > 0, "{refused} refused, {usable} usable");
        // Without another checksum each of them is refused.
        let mut damaged = payload.clone();
        damaged[STATE] ^= 1;
        assert_eq!(restore_all(&mut c, &[damaged]), (1, 0));
    }
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_payload_with_any_byte_replaced_is_refused_or_a_bucket_that_can_be_used() {
    let server = uncompressed();
    let mut c = server.connect();
    let mut random = random(11);
    for payload in one_of_each_kind(genuine_payloads(&mut c)) {
        let body = &payload[..payload.len() - 8];
        let replaced =
            (STATE - 1..body.len()).flat_map(|at| [0, 0xff, 0x7f, 0x80, random.next().to_le_bytes()[0]].map(|byte| (at, byte)));
        let forged = replaced.map(|(at, byte)| {
            let mut forged = body.to_vec();
            forged[at] = byte;
            sealed(&forged)
        });
        restore_all(&mut c, &forged.collect::<Vec<_>>());
    }
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_payload_cut_short_or_too_long_is_refused() {
    let server = uncompressed();
    let mut c = server.connect();
    for payload in one_of_each_kind(genuine_payloads(&mut c)) {
        let (body, version) = payload[..payload.len() - 8].split_at(payload.len() - SEAL);
        let state = &body[STATE..body.len() - 1];
        // The server reads on into what follows. That may be the very byte that is
        // missing: so this can give a bucket, though hardly ever.
        let cut: Vec<_> = (0..body.len()).map(|len| sealed(&[&body[..len], version].concat())).collect();
        assert!(restore_all(&mut c, &cut).0 >= cut.len() - 3, "{}", payload.escape_ascii());
        let forged = (0..state.len())
            .map(|len| payload_of(&payload, &state[..len]))
            .chain([&[0][..], &[1], &[0; 300], state].map(|more| payload_of(&payload, &[state, more].concat())))
            .chain([payload_of(&payload, &[]), payload_of(&payload, &[0; 16_000])]);
        let forged: Vec<_> = forged.collect();
        assert_eq!(restore_all(&mut c, &forged), (forged.len(), 0), "{}", payload.escape_ascii());
        assert_eq!(restore_all(&mut c, &[payload_of(&payload, state)]), (0, 1), "what is forged here is no payload at all");
    }
    assert_unharmed(&server, &mut c);
}

/// A genuine payload with a few bytes changed, left out or put in, and the checksum
/// that it then calls for.
fn damaged(random: &mut Random, genuine: &[Vec<u8>]) -> Vec<u8> {
    let payload = &genuine[random.below(genuine.len())];
    let (state, rdb_version) = payload[..payload.len() - 8].split_at(payload.len() - SEAL);
    let mut state = state.to_vec();
    for _ in 0..=random.below(4) {
        let at = STATE - 1 + random.below(state.len() - STATE + 1);
        let byte = random.next().to_le_bytes()[0];
        match random.below(3) {
            0 => drop(state.remove(at)),
            1 => state.insert(at, byte),
            _ => state[at] = byte,
        }
    }
    sealed(&[&state, rdb_version].concat())
}

/// Bytes made as a bucket's are, of numbers that none has.
fn absurd_state(random: &mut Random, blob: Blob) -> Blob {
    const NUMBERS: [u128; 22] = [
        0,
        1,
        2,
        1_000_000,
        999_999,
        10_u128.pow(12),
        10_u128.pow(18),
        10_u128.pow(18) + 1,
        10_u128.pow(13),
        10_u128.pow(15),
        10_u128.pow(28),
        10_u128.pow(28) + 1,
        10_u128.pow(29),
        3_155_760_000,
        3_155_760_000_000_000,
        1 << 55,
        1 << 56,
        (1 << 56) + 1,
        1 << 63,
        u64::MAX as u128,
        1 << 64,
        u128::MAX,
    ];
    let mut number = |blob: Blob| match random.below(4) {
        0 => blob.number(NUMBERS[random.below(NUMBERS.len())] ^ u128::from(random.one_in(4))),
        1 => blob.number(NUMBERS[random.below(6)]),
        2 => blob.signed((random.next() >> random.below(60)).cast_signed() >> 8),
        _ => blob.number(u128::from(random.next() >> random.below(64))),
    };
    let head = blob.bytes().len();
    let blob = number(blob);
    let kind = blob.bytes()[head..].iter().fold(0_u8, |kind, byte| kind.wrapping_mul(31).wrapping_add(*byte)) & 0x1f;
    let numbers = [5, 0, 1, 2][usize::from(kind & 3)]
        + usize::from(kind >> 2 & 1)
        + 3 * usize::from(kind >> 3 & 1)
        + 2 * usize::from(kind >> 4);
    let mut blob = Blob::from(blob.bytes()[..head].to_vec()).byte(kind);
    for _ in 0..numbers {
        blob = number(blob);
    }
    blob
}

#[test]
fn a_payload_of_random_bytes_or_absurd_numbers_is_refused_or_a_bucket_that_can_be_used() {
    let server = uncompressed();
    let mut c = server.connect();
    let genuine = genuine_payloads(&mut c).remove(0);
    let mut random = random(13);
    let kinds = one_of_each_kind(genuine_payloads(&mut c));
    let (mut refused, mut usable, mut left) = (0, 0, setting("TOKENBUCKET_PAYLOADS", 50_000));
    while left > 0 {
        let batch = left.min(1_000);
        let forged = (0..batch).map(|_| match random.below(10) {
            0 => payload_of(&genuine, &random.bytes(60)),
            1..4 => damaged(&mut random, &kinds),
            _ => payload_of(&genuine, absurd_state(&mut random, Blob::from(Vec::new())).bytes()),
        });
        let (no, yes) = restore_all(&mut c, &forged.collect::<Vec<_>>());
        (refused, usable, left) = (refused + no, usable + yes, left - batch);
    }
    println!("{refused} payloads were refused, {usable} gave a bucket that served every call");
    assert!(refused * 20 > usable && usable * 20 > refused, "{refused} refused, {usable} usable");
    assert_unharmed(&server, &mut c);
}

// ---- forged blobs of TB.STATE

const NOT_A_STATE: &str = "ERR blob must be a bucket as this module writes it";

/// The blobs that a primary sends for buckets in every state.
fn genuine_blobs(key_of: &str) -> Vec<Vec<u8>> {
    let server = Server::builder().append_only().conf("appendfsync no").start();
    Witness::of(&mut server.connect());
    let mut blobs = BTreeMap::new();
    for mut command in commands_appended(&server) {
        if command[0] == b"TB.STATE" && String::from_utf8_lossy(&command[1]).ends_with(key_of) {
            blobs.insert(command.remove(1), command.remove(1)); // the last of each key
        }
    }
    blobs.into_values().collect()
}

/// Sends forged blobs: each is refused, or gives a bucket that can be used.
#[track_caller]
fn receive_all(c: &mut Connection, blobs: &[Vec<u8>]) -> (usize, usize) {
    let (mut refused, mut usable) = (0, 0);
    for (number, blob) in blobs.iter().enumerate() {
        let (key, origin) = (format!("f{number}"), blob.escape_ascii().to_string());
        let reply = c.ask_bytes(&[&b"TB.STATE"[..], key.as_bytes(), blob]);
        if let Some(error) = error_text(&reply) {
            let later =
                |version| format!("ERR blob must be of version 1, this one is of version {version}: upgrade this server first");
            let expected =
                if blob.first().is_some_and(|version| *version != 1) { later(blob[0]) } else { NOT_A_STATE.to_owned() };
            assert_eq!(error, expected, "{origin}");
            assert_eq!(c.int(&format!("EXISTS {key}")), 0, "{origin}");
            refused += 1;
            continue;
        }
        assert_eq!(reply, Value::Okay, "{origin}");
        // It may say that it has expired.
        if c.int(&format!("EXISTS {key}")) == 1 {
            assert_eq!(c.text(&format!("TYPE {key}")), "tokbucket");
            c.int(&format!("PERSIST {key}"));
            assert_usable(c, &key, &origin);
        }
        usable += 1;
    }
    (refused, usable)
}

#[test]
fn a_blob_with_any_bit_flipped_is_refused_or_a_bucket_that_can_be_used() {
    let server = Server::start();
    let mut c = server.connect();
    let mut seen = HashSet::new();
    let blobs = genuine_blobs(":second");
    for blob in blobs.iter().filter(|blob| seen.insert(blob.len())) {
        assert_eq!(receive_all(&mut c, std::slice::from_ref(blob)), (0, 1));
        let flipped = (0..blob.len() * 8).map(|bit| {
            let mut forged = blob.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            forged
        });
        receive_all(&mut c, &flipped.collect::<Vec<_>>());
        let cut: Vec<_> = (0..blob.len()).map(|len| blob[..len].to_vec()).collect();
        assert_eq!(receive_all(&mut c, &cut), (cut.len(), 0));
        assert_eq!(receive_all(&mut c, &[[&blob[..], &[0]].concat()]), (1, 0));
    }
    assert!(seen.len() >= 12, "{} lengths", seen.len());
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_blob_of_random_bytes_or_absurd_numbers_is_refused_or_a_bucket_that_can_be_used() {
    let server = Server::start();
    let mut c = server.connect();
    let mut random = random(17);
    let mut blobs = Vec::new();
    for _ in 0..1_000 {
        blobs.push([&[1][..], &random.bytes(60)].concat());
    }
    for _ in 0..6_000 {
        let clock_us = match random.below(6) {
            0 => (random.next() >> random.below(64)).cast_signed(),
            1 => 1 << 54,
            2 => (1 << 54) + 1,
            3 => 0,
            _ => c.time_us() + (random.next() >> 24).cast_signed() - (1 << 39),
        };
        let ttl_ms = match random.below(4) {
            0 => (random.next() >> random.below(64)).cast_signed(),
            1 => [i64::MAX, i64::MIN, -1, 0][random.below(4)],
            _ => 1_000_000,
        };
        blobs.push(absurd_state(&mut random, Blob::new(clock_us, ttl_ms)).bytes().to_vec());
    }
    let (refused, usable) = receive_all(&mut c, &blobs);
    assert!(refused > 500 && usable > 500, "{refused} refused, {usable} usable");
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_blob_with_values_that_no_bucket_has_is_refused() {
    const LIMITED: u8 = 0;
    const BARE: u8 = 1;
    const BARE_EMPTY: u8 = 2;
    const BARE_SYNCED: u8 = 3;
    const THAW: u8 = 4;
    const WINDOW: u8 = 8;
    const VENDOR_LIMIT: u8 = 16;
    const TOKEN: u128 = 1_000_000;
    const HUNDRED_YEARS: u128 = 3_155_760_000;
    let server = Server::start();
    let mut c = server.connect();
    let now_us = c.time_us();
    let kind = |kind: u8| Blob::new(now_us, 1_000_000).byte(kind);
    let limit = |capacity, tokens, per| kind(LIMITED).number(capacity).number(tokens).number(per).signed(0);
    let limited = |parts| kind(LIMITED | parts).number(TOKEN).number(3).number(7).signed(500).number(2);
    let at_the_last_moment = |part| kind(LIMITED).number(TOKEN).number(3).number(7).signed((1 << 55) - now_us).number(part);
    let window = |left, applied| limited(WINDOW).number(left).number(applied).signed(1_000_000);
    for (sound, unsound) in [
        (limit(1, 1, 1).number(0), limit(0, 1, 1).number(0)),
        (limit(TOKEN * TOKEN * TOKEN, 1_000_000, 1).number(0), limit(TOKEN * TOKEN * TOKEN + 1, 1_000_000, 1).number(0)),
        (limit(TOKEN, 1, 2).number(0), limit(TOKEN, 2, 4).number(0)),
        (limit(TOKEN, 1, 2).number(0), limit(TOKEN, 0, 1).number(0)),
        (limit(TOKEN, 1, 2).number(0), limit(TOKEN, 1, 0).number(0)),
        (limit(TOKEN, 1, HUNDRED_YEARS).number(0), limit(TOKEN, 1, HUNDRED_YEARS + 1).number(0)),
        (limit(TOKEN, 3, 7).number(2), limit(TOKEN, 3, 7).number(3)),
        (at_the_last_moment(0), at_the_last_moment(1)),
        (limited(THAW).signed(500), limited(THAW).signed(501)),
        (window(TOKEN, TOKEN), window(TOKEN + 1, TOKEN)),
        (limited(VENDOR_LIMIT).number(TOKEN).signed(1), limited(VENDOR_LIMIT).number(TOKEN - 1).signed(1)),
        (kind(BARE_EMPTY | THAW).signed(5).signed(5), kind(BARE_EMPTY | THAW).signed(5).signed(6)),
        (kind(BARE_SYNCED).number(5).signed(5), kind(BARE_SYNCED | THAW).number(5).signed(5).signed(5)),
        (kind(BARE | VENDOR_LIMIT).number(TOKEN).signed(9), kind(BARE)),
        (kind(BARE | WINDOW).number(0).number(0).signed(9), kind(BARE | THAW).signed(9)),
        (kind(BARE_EMPTY).signed(0), kind(BARE_EMPTY).signed(1 << 55)),
        (kind(BARE_EMPTY).signed(0), kind(BARE_EMPTY | 32).signed(0)),
    ] {
        assert_eq!(receive_all(&mut c, &[sound.bytes().to_vec()]), (0, 1), "{}", sound.bytes().escape_ascii());
        assert_eq!(receive_all(&mut c, &[unsound.bytes().to_vec()]), (1, 0), "{}", unsound.bytes().escape_ascii());
    }
}

#[test]
fn a_refused_blob_leaves_the_bucket_and_the_clock_alone() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    let before = c.footprint("k");
    let ahead = Blob::new(c.time_us() + 3_600_000_000, 1_000_000);
    let no_capacity = ahead.clone().byte(0).number(0).number(1).number(1).number(0).number(0);
    let too_long = ahead.clone().bucket(10, 1, 100, 0).byte(0);
    for blob in [no_capacity, too_long, ahead.clone().byte(0x20), ahead] {
        assert_eq!(c.error_bytes(&[&b"TB.STATE"[..], b"k", blob.bytes()]), NOT_A_STATE);
    }
    assert_eq!(c.footprint("k"), before);
    c.take("new 10 0.01 10");
    assert!(c.int("PTTL new") < 1_200_000, "the clock has moved");
}

#[test]
fn a_state_is_refused_where_something_else_is_and_where_there_is_no_memory() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("other 10 0.01 10");
    // From a clock that is ahead: the refusal comes before it is followed.
    let blob = Blob::new(c.time_us() + 20 * 3_600_000_000, 1_000_000).bucket(10, 1, 100, 0);
    let state = |c: &mut Connection, key: &str| c.ask_bytes(&[&b"TB.STATE"[..], key.as_bytes(), blob.bytes()]);
    c.ok("SET text x");
    let refused = error_text(&state(&mut c, "text")).unwrap();
    assert_eq!(refused, "WRONGTYPE Operation against a key holding the wrong kind of value");
    assert_eq!(c.text("GET text"), "x");
    c.take("k 5 1");
    c.config_set("maxmemory", "1");
    let refused = error_text(&state(&mut c, "new")).unwrap();
    assert_eq!(refused, "OOM command not allowed when used memory > 'maxmemory'.");
    assert_eq!(c.int("EXISTS new"), 0);
    assert_eq!(c.consume("other 10 0.01").status, "empty");
    assert_eq!(state(&mut c, "k"), Value::Okay);
    assert_eq!(c.consume("other 10 0.01").status, "granted");
    assert_eq!(c.peek("k").limit(), ("10", "1", "100"));
}

// ---- later versions

#[test]
fn a_state_of_a_later_version_is_refused_with_both_versions_named() {
    let mut server = Server::builder().append_only().start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    let mut later = commands_appended(&server).pop().unwrap().pop().unwrap();
    later[0] = 2;
    let expected = "ERR blob must be of version 1, this one is of version 2: upgrade this server first";
    assert_eq!(c.error_bytes(&[&b"TB.STATE"[..], b"k", &later]), expected);
    assert_eq!(c.peek("k").tokens(), "6");
    // In an AOF it cannot be refused any louder than in the log.
    server.kill();
    let file = server.dir().join("appendonlydir/appendonly.aof.1.incr.aof");
    let mut aof = fs::read(&file).unwrap();
    aof.extend(redis::pack_command(&[b"TB.STATE".to_vec(), b"later".to_vec(), later]));
    fs::write(&file, aof).unwrap();
    server.start_again();
    let log = server.log();
    assert!(log.contains("CRITICAL") && log.contains("this one is of version 2"), "{log}");
    let mut c = server.connect();
    assert_eq!(c.int("EXISTS later"), 0);
    assert_eq!(c.peek("k").tokens(), "6");
}

#[test]
fn a_payload_of_a_later_version_is_refused_with_a_line_in_the_log() {
    let server = uncompressed();
    let mut c = server.connect();
    for (number, payload) in genuine_payloads(&mut c).into_iter().enumerate().step_by(20) {
        for version in [0, 2, 1023] {
            let mut later = payload[..payload.len() - 8].to_vec();
            later[1..10].copy_from_slice(&type_mark(version));
            assert_eq!(restore_all(&mut c, &[sealed(&later)]), (1, 0));
            let line = format!("a bucket of encoding version {version} cannot be loaded: this module knows version 1");
            assert_eq!(server.log().matches(&line).count(), number / 20 + 1, "{line}");
        }
    }
    assert_unharmed(&server, &mut c);
}

#[test]
fn an_rdb_of_a_later_version_is_refused_with_a_line_in_the_log() {
    let mut server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    c.ok("SAVE");
    server.kill();
    let file = server.dir().join("dump.rdb");
    let genuine = fs::read(&file).unwrap();
    let places = marks(&genuine);
    assert_eq!(places.len(), 2, "the clock and the bucket");
    for (place, what) in places.into_iter().zip(["an RDB", "a bucket"]) {
        let mut later = genuine.clone();
        later[place..place + 9].copy_from_slice(&type_mark(2));
        let end = later.len() - 8;
        later[end..].fill(0); // whose checksum is not looked at
        fs::write(&file, later).unwrap();
        let log = server.try_start_again().expect_err("to be refused");
        let line = format!("{what} of encoding version 2 cannot be loaded: this module knows version 1");
        assert!(log.contains(&line), "{log}");
        assert!(!log.contains("REDIS BUG REPORT"), "{log}");
    }
    fs::write(&file, genuine).unwrap();
    server.start_again();
    assert_eq!(server.connect().peek("k").tokens(), "6");
}

// ---- the module itself

#[test]
fn loading_the_module_twice_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("k 10 1e-8 4");
    c.config_set("tokenbucket.max-penalty", "77");
    let module = array(c.ask("MODULE LIST")).remove(0);
    let path = text(&field(&module, "path"));
    for load in [
        format!("MODULE LOAD {path}"),
        format!("MODULE LOAD {path} max-penalty 5"),
        format!("MODULE LOADEX {path} ARGS max-window 5"),
    ] {
        assert!(c.error(&load).starts_with("ERR"), "{load}");
    }
    assert!(c.error("MODULE UNLOAD tokenbucket").starts_with("ERR"));
    assert_eq!(c.take("k 10 1e-8").remaining, 5);
    assert_eq!(c.config("tokenbucket.max-penalty"), "77");
    assert_eq!(pairs(c.ask("CONFIG GET tokenbucket.*")).len(), 5);
    c.ok("DEBUG RELOAD");
    assert_eq!(c.peek("k").tokens(), "5");
}

// ---- random commands

/// A word of a command, which may be right or wrong where it comes to stand.
fn any_word(random: &mut Random) -> Vec<u8> {
    const NUMBERS: [&str; 40] = [
        "0",
        "1",
        "2",
        "5",
        "10",
        "0.5",
        "1e-8",
        "0.000001",
        "1000",
        "1e12",
        "1000000000000",
        "1e-7",
        "1.1574074074074073e-05",
        "60",
        "86400",
        "31622400",
        "100000000000",
        "0.001",
        "3.5",
        "1E+2",
        "-1",
        "-0",
        "+5",
        ".5",
        "5.",
        "nan",
        "inf",
        "-inf",
        "0x10",
        "",
        " 1",
        "1 ",
        "1_000",
        "1e999",
        "1e-999",
        "99999999999999999999999999",
        "1e12.5",
        "1,5",
        "00000000000000000000001",
        "1e",
    ];
    const OPTIONS: [&str; 20] = [
        "PER",
        "per",
        "UPTO",
        "FORCE",
        "MAXWAIT",
        "maxwait",
        "LIMIT",
        "RESET",
        "RESETAT",
        "TOLERANCE",
        "UNTIL",
        "until",
        "Per",
        "KEYS",
        "%n%s",
        "*",
        "\r\n",
        "\0",
        "\u{1f600}",
        "PERS",
    ];
    match random.below(20) {
        0..12 => random.pick(&NUMBERS).as_bytes().to_vec(),
        12..18 => random.pick(&OPTIONS).as_bytes().to_vec(),
        18 => random.bytes(90),
        _ => format!("{}", random.next() >> random.below(64)).into_bytes(),
    }
}

/// A command that makes sense now and then.
fn any_command(random: &mut Random) -> Command {
    let key = match random.below(12) {
        0 => b"text".to_vec(),
        1 => b"list".to_vec(),
        2 => Vec::new(),
        3 => b"\0\xff\r\n".to_vec(),
        number => format!("k{number}").into_bytes(),
    };
    let mut name = random
        .pick(&[
            "TB.CONSUME",
            "TB.CONSUME",
            "TB.CONSUME",
            "tb.consume",
            "TB.PENALISE",
            "TB.SYNC",
            "TB.SYNC",
            "TB.REFUND",
            "TB.PEEK",
            "TB.STATE",
            "TB.MCONSUME",
            "TB.BCONSUME",
        ])
        .to_owned();
    if random.one_in(15) {
        name = random.pick(&["DEL", "PERSIST", "EXISTS", "TOUCH", "DUMP", "TYPE", "UNLINK", "PTTL"]).to_owned();
    }
    let other = ["DEL", "UNLINK"].contains(&name.as_str()) && !key.starts_with(b"k");
    let mut command = vec![name.into_bytes(), if other { b"k4".to_vec() } else { key }];
    let sensible = !random.one_in(3);
    match (command[0].as_slice(), sensible) {
        (b"TB.CONSUME" | b"tb.consume", true) => {
            let limit = random.pick(&["10 0.01", "5 1000", "1e12 1e6", "0.5 1e-6", "1000 7"]);
            command.extend(words(limit));
            (0..random.below(4)).for_each(|_| command.push(any_word(random)));
        }
        (b"TB.MCONSUME", true) => {
            let count = 1 + random.below(3);
            command[1] = count.to_string().into_bytes();
            (0..count).for_each(|_| command.push(format!("k{}", 4 + random.below(8)).into_bytes()));
            for _ in 0..count {
                let limit = random.pick(&["10 0.01 1 1", "5 1000 2 1", "1e12 1e6 1 60", "0.5 1e-6 0 1", "1000 7 2000 3"]);
                command.extend(words(limit));
            }
            (0..random.below(3)).for_each(|_| command.push(any_word(random)));
        }
        // All of them: one that is not told when to give up would not, in a queue of one.
        (b"TB.BCONSUME", _) => {
            command.extend(words(random.pick(&["10 0.01", "5 1000", "1e12 1e6", "0.5 1e-6", "0 1", "x 7"])));
            command.extend(words(random.pick(&["0", "1", "5", "0.25", "1000", "-1"])));
            command.extend(words(random.pick(&["0.001", "0.002", "1e-9", "0x1"])));
            (0..random.below(3)).for_each(|_| command.push(any_word(random)));
        }
        (b"TB.PENALISE" | b"TB.REFUND", true) => {
            command.push(random.pick(&["0", "0.01", "1", "7.5", "1000"]).as_bytes().to_vec())
        }
        (b"TB.SYNC", true) => {
            command.push(random.pick(&["0", "1", "5.5", "1000"]).as_bytes().to_vec());
            (0..random.below(3)).for_each(|_| {
                let option = random.pick(&["LIMIT 3", "RESET 5", "RESET 0.01", "TOLERANCE 1", "RESETAT 99999999999"]);
                command.extend(words(option));
            });
        }
        (b"TB.PEEK" | b"DEL" | b"PERSIST" | b"EXISTS" | b"TOUCH" | b"DUMP" | b"TYPE" | b"UNLINK" | b"PTTL", true) => {}
        _ => {
            command.truncate(1 + random.below(2));
            (0..random.below(7)).for_each(|_| command.push(any_word(random)));
        }
    }
    command
}

/// How often each command was answered, and how often with an error.
#[derive(Default, Debug)]
struct Tally {
    answers: BTreeMap<String, usize>,
    errors: BTreeMap<String, usize>,
}

/// Sends so many random commands, each of which is answered as it may be: sanely, or
/// with an error that begins in one of these ways.
#[track_caller]
fn barrage(c: &mut Connection, random: &mut Random, count: usize, errors: &[&str]) -> Tally {
    const BATCH: usize = 500;
    let mut tally = Tally::default();
    for batch in 0..count.div_ceil(BATCH) {
        // Every third batch is a transaction.
        let commands: Vec<Command> = (0..BATCH).map(|_| any_command(random)).collect();
        let replies = if batch % 3 == 2 {
            c.ok("MULTI");
            let queued = ask_all(c, &commands);
            let known = queued.iter().zip(&commands).filter(|(reply, _)| error_text(reply).is_none());
            let known: Vec<Command> = known.map(|(_, command)| command.clone()).collect();
            let refused = known.len() < commands.len();
            let executed = c.ask("EXEC");
            if refused {
                assert!(error_text(&executed).unwrap().starts_with("EXECABORT"), "{executed:?}");
                c.ok("MULTI");
                ask_all(c, &known);
                known.into_iter().zip(array(c.ask("EXEC"))).collect()
            } else {
                known.into_iter().zip(array(executed)).collect::<Vec<_>>()
            }
        } else {
            let replies = ask_all(c, &commands);
            commands.into_iter().zip(replies).collect()
        };
        assert_eq!(c.text("ECHO in-step"), "in-step");
        for (command, reply) in replies {
            let name = String::from_utf8(command[0].to_ascii_uppercase()).unwrap();
            match error_text(&reply) {
                None => {
                    assert_sane(&command, &reply);
                    *tally.answers.entry(name).or_default() += 1;
                }
                Some(error) => {
                    assert!(errors.iter().any(|begin| error.starts_with(begin)), "{error}");
                    assert!(!error.contains("internal") && error.len() < 300, "{error}");
                    *tally.errors.entry(name).or_default() += 1;
                }
            }
        }
    }
    tally
}

#[test]
fn random_commands_are_answered_each_with_an_error_or_a_sane_reply() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET text something");
    c.ask("RPUSH list a b c");
    let commands = setting("TOKENBUCKET_COMMANDS", 200_000);
    let tally = barrage(&mut c, &mut random(19), commands, &["ERR ", "WRONGTYPE "]);
    println!("{tally:?}");
    for name in ["TB.CONSUME", "TB.MCONSUME", "TB.BCONSUME", "TB.PENALISE", "TB.SYNC", "TB.REFUND", "TB.PEEK"] {
        let enough = commands / 4_000;
        assert!(tally.answers[name] >= enough && tally.errors[name] >= enough, "{name}: {tally:?}");
    }
    assert_eq!(c.text("GET text"), "something");
    assert_eq!(c.int("LLEN list"), 3);
    // What has come of it all can be saved and loaded.
    c.ok("DEBUG RELOAD");
    assert_unharmed(&server, &mut c);
}

#[test]
fn under_valgrind_random_commands_and_forged_payloads_touch_no_memory_that_is_not_theirs() {
    // The server's allocator is one that valgrind has to be told of.
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=99", "--exit-on-first-error=yes", "--leak-check=no"];
    // An optimised module decides on what a variant of an enum leaves unused, and then takes
    // no notice of it; valgrind cannot know that. Reading what is not ours it sees as well.
    let undefined = if cfg!(debug_assertions) { "--undef-value-errors=yes" } else { "--undef-value-errors=no" };
    let valgrind = [&valgrind[..], &["--soname-synonyms=somalloc=*jemalloc*", undefined]].concat();
    let mut server = Server::builder().conf("rdbcompression no").under(&valgrind).start();
    let mut c = server.connect();
    let mut random = random(23);
    barrage(&mut c, &mut random, setting("TOKENBUCKET_VALGRIND", 3_000), &["ERR ", "WRONGTYPE "]);
    let kinds = one_of_each_kind(genuine_payloads(&mut c));
    let forged: Vec<_> = (0..setting("TOKENBUCKET_VALGRIND", 3_000) / 3)
        .map(|number| match number % 2 {
            0 => damaged(&mut random, &kinds),
            _ => payload_of(&kinds[0], absurd_state(&mut random, Blob::from(Vec::new())).bytes()),
        })
        .collect();
    restore_all(&mut c, &forged);
    c.ok("DEBUG RELOAD");
    c.ok("FLUSHALL ASYNC");
    assert_unharmed(&server, &mut c);
    server.shut_down("NOSAVE"); // and ends as one that has found nothing
}

#[test]
fn memory_that_runs_out_at_any_step_is_an_error_and_damages_nothing() {
    let mut random = random(29);
    for policy in ["noeviction", "allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu", "volatile-random"] {
        let server = Server::builder().conf(format!("maxmemory-policy {policy}")).start();
        let mut c = server.connect();
        let old: Vec<String> = (0..20).map(|number| format!("old{number}")).collect();
        old.iter().for_each(|key| drop(c.take(&format!("{key} 1e6 1e-3"))));
        let mut refused = false;
        for _ in 0..40 {
            // A little more than is used, or a little less.
            let used = c.info("memory", "used_memory").parse::<usize>().unwrap();
            let most = used + random.below(60_000) - 30_000;
            c.config_set("maxmemory", &most.to_string());
            barrage(&mut c, &mut random, 500, &["ERR ", "WRONGTYPE ", "OOM "]);
            refused |= error_text(&c.ask(&format!("TB.CONSUME new{} 10 1e-2", random.below(1_000)))).is_some();
            if policy == "noeviction" {
                for key in &old {
                    assert_eq!(c.take(&format!("{key} 1e6 1e-3")).status, "granted");
                }
            }
        }
        c.config_set("maxmemory", "0");
        if policy == "noeviction" {
            assert!(refused, "memory never ran out");
            old.iter().for_each(|key| assert_eq!(c.peek(key).tokens().split('.').next(), Some("999959"), "{key}"));
        }
        c.ok("DEBUG RELOAD");
        assert_unharmed(&server, &mut c);
    }
}

#[test]
fn keys_and_arguments_of_any_size_are_taken_or_refused() {
    const LARGE: usize = 16 << 20;
    let server = Server::start();
    let mut c = server.connect();
    for key in [Vec::new(), vec![0], vec![0xff; 65_536], vec![b'%'; LARGE]] {
        for call in [
            "TB.CONSUME k 10 1e-8 4",
            "TB.MCONSUME 1 k 10 1e-8 1 1",
            "TB.SYNC k 3",
            "TB.REFUND k 1",
            "TB.PENALISE k 9",
            "TB.PEEK k",
        ] {
            let mut command = words(call);
            let place = command.iter().position(|word| word == b"k").unwrap();
            command[place].clone_from(&key);
            assert_eq!(error_text(&c.ask_bytes(&command)), None, "{call}, a key of {} bytes", key.len());
        }
        assert_eq!(c.ask_bytes(&[&b"DEL"[..], &key]), Value::Int(1));
    }
    for call in CALLS {
        for word in [vec![b'1'; LARGE], vec![b'x'; LARGE], vec![0; LARGE]] {
            for place in (1..words(call).len()).filter(|place| words(call)[*place] != b"k") {
                let mut command = words(call);
                command[place].clone_from(&word);
                let error = c.error_bytes(&command);
                assert!(error.len() < 300, "{call}: {error}");
            }
        }
        let many = words(call).into_iter().chain(std::iter::repeat_n(b"PER".to_vec(), 100_000));
        assert!(c.error_bytes(&many.collect::<Vec<_>>()).starts_with("ERR"), "{call}");
    }
    assert_eq!(c.int("DBSIZE"), 0);
    assert_unharmed(&server, &mut c);
}

/// A call of each command with all that it takes.
const CALLS: [&str; 6] = [
    "TB.CONSUME k 10 1 1 PER 1 MAXWAIT 5",
    "TB.BCONSUME k 10 1 1 0.001 PER 1",
    "TB.MCONSUME 1 k 10 1 1 1 MAXWAIT 5",
    "TB.PENALISE k UNTIL 5",
    "TB.SYNC k 5 LIMIT 3 RESET 5 TOLERANCE 2",
    "TB.REFUND k 5",
];

// ---- clients and operators

/// Clients that consume, penalise, sync and delete as fast as they can, and connect
/// again whenever they are cut off, while `work` goes on.
fn under_load(socket: &Path, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..4 {
            let stop = &stop;
            scope.spawn(move || load(socket, client, stop));
        }
        // Whatever becomes of the work, the clients must end.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

fn load(socket: &Path, client: u64, stop: &AtomicBool) {
    let mut random = Random::new(client);
    while !stop.load(Relaxed) {
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut alive = true;
        while alive && !stop.load(Relaxed) {
            let key = random.below(200);
            let command = match random.below(10) {
                0 => format!("TB.PENALISE k{key} 0.01\r\n"),
                1 => format!("TB.SYNC k{key} 5 RESET 1 LIMIT 9\r\n"),
                2 => format!("UNLINK k{key}\r\n"),
                3 => format!("TB.CONSUME k{key} 10 {}\r\n", 1 + key),
                _ => format!("TB.CONSUME k{key} 100 1000 5\r\n"),
            };
            alive = stream.write_all(command.as_bytes()).is_ok();
            match stream.read(&mut [0; 4096]) {
                Ok(0) => alive = false,
                Ok(_) => {}
                // A server that is paused does not answer.
                Err(error) => alive = error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// How many calls of TB.CONSUME and TB.PENALISE have been answered.
fn answered(c: &mut Connection) -> i64 {
    let fields = c.info_fields("tokenbucket");
    let count = |name: &str| fields[&format!("tokenbucket_{name}")].parse::<i64>().unwrap();
    ["granted", "denied_empty", "denied_frozen", "denied_window", "penalties"].into_iter().map(count).sum()
}

#[track_caller]
fn assert_goes_on(c: &mut Connection) {
    let before = answered(c);
    wait_until("calls to be answered", || answered(c) > before + 100);
}

#[test]
fn a_pause_of_writes_holds_calls_up_and_loses_none() {
    let server = Server::start();
    let mut c = server.connect();
    c.take("seen 10 1e-8 4");
    under_load(&server.dir().join("socket"), || {
        for _ in 0..5 {
            assert_goes_on(&mut c);
            c.ok("CLIENT PAUSE 20000 WRITE");
            let before = answered(&mut c);
            for _ in 0..20 {
                assert_eq!(c.peek("seen").tokens(), "6");
                assert_eq!(answered(&mut c), before, "a call was answered in the pause");
            }
            c.ok("CLIENT UNPAUSE");
        }
        assert_goes_on(&mut c);
    });
    assert_unharmed(&server, &mut c);
}

#[test]
fn clients_that_are_cut_off_leave_nothing_behind() {
    let server = Server::start();
    let mut c = server.connect();
    under_load(&server.dir().join("socket"), || {
        for _ in 0..20 {
            assert_goes_on(&mut c);
            c.ask("CLIENT KILL TYPE normal SKIPME yes");
        }
        assert_goes_on(&mut c);
    });
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_database_emptied_under_load_is_empty() {
    let server = Server::builder().conf("lazyfree-lazy-user-del yes").conf("lazyfree-lazy-user-flush yes").start();
    let mut c = server.connect();
    under_load(&server.dir().join("socket"), || {
        for round in 0..20 {
            assert_goes_on(&mut c);
            match round % 3 {
                0 => c.ok("FLUSHALL ASYNC"),
                1 => c.ok("SWAPDB 0 1"),
                _ => c.ok("DEBUG RELOAD"),
            }
        }
    });
    wait_until("all to be freed", || {
        c.ok("FLUSHALL ASYNC");
        c.info("tokenbucket", "tokenbucket_buckets") == "0"
    });
    assert_unharmed(&server, &mut c);
}

#[test]
fn a_server_shut_down_under_load_ends_well_and_starts_again() {
    for how in ["NOSAVE", "SAVE"] {
        let mut server = Server::builder().append_only().conf("appendfsync everysec").start();
        let mut c = server.connect();
        under_load(&server.dir().join("socket"), || {
            assert_goes_on(&mut c);
            server.shut_down(how);
            server.start_again();
            assert_goes_on(&mut server.connect());
        });
        let log = server.log();
        assert!(!log.contains("REDIS BUG REPORT"), "{log}");
        assert_unharmed(&server, &mut server.connect());
    }
}
