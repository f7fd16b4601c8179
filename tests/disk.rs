//! A disk that is full: a server that may write no file beyond a size it has reached. What
//! it could not have written is not granted but for the usual tail, whoever asks is told
//! so, reading goes on, and with room again so does all else.
//!
//! Before changing it: as on a full disk a write fails with an error, and does not end the
//! process, only where the signal that comes with it is ignored.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use redis::Value;

use crate::connection::{Connection, consumed, error_text};
use crate::server::{Builder, Server, wait_until};

/// A call of each command that writes.
const WRITES: [&str; 7] = [
    "TB.CONSUME k 1000000 1e-3",
    "TB.CONSUME k 1000000 1e-3 0",
    "TB.MCONSUME 2 k other 1000000 1e-3 1 1 1000000 1e-3 1 1",
    // More than is left, so it would wait.
    "TB.BCONSUME k 1000000 1e-3 1000000 1",
    "TB.PENALISE k 100",
    "TB.SYNC k 1 RESET 100",
    "TB.REFUND k 1",
];

/// The log stays smaller than this, so it is always written.
const LARGE: usize = 1 << 20;

trait Disk {
    fn on_a_disk_that_fills(self) -> Self;
}

impl Disk for Builder {
    fn on_a_disk_that_fills(self) -> Self {
        self.under(&["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"])
    }
}

impl Server {
    /// No file can grow beyond this many bytes; without a number, any can again.
    #[track_caller]
    fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let pid = self.pid().to_string();
        // The soft limit alone, which anybody may lift again.
        let status = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}:")]).status().unwrap();
        assert!(status.success(), "prlimit: {status}");
    }
}

/// The file that commands are appended to.
#[track_caller]
fn append_only_file(server: &Server) -> PathBuf {
    let files = fs::read_dir(server.dir().join("appendonlydir")).unwrap().map(|file| file.unwrap().path());
    files.into_iter().find(|path| path.to_str().unwrap().ends_with(".incr.aof")).unwrap()
}

/// Fills the disk with what is in the append-only file now.
#[track_caller]
fn fill(server: &Server, c: &mut Connection) {
    wait_until("the file to be written", || c.info("persistence", "aof_buffer_length") == "0");
    server.limit_files(Some(fs::metadata(append_only_file(server)).unwrap().len()));
}

/// A file larger than the log will be.
#[track_caller]
fn set_something_large(c: &mut Connection) {
    let reply = c.ask_bytes(&[b"SET".as_slice(), b"large", &vec![b'x'; LARGE]]);
    assert_eq!(reply, Value::Okay);
}

/// Every command that writes is refused, and none of them changes anything; reading goes on.
#[track_caller]
fn assert_only_reads(c: &mut Connection) {
    let whole_tokens = |c: &mut Connection| c.peek("k").tokens().split('.').next().map(str::to_owned);
    let (bucket, frozen, before) = (whole_tokens(c), c.peek("frozen").frozen_ms, c.footprint("k"));
    assert!(frozen > 0);
    for command in WRITES.into_iter().chain(["SET other 1"]) {
        let error = c.error(command);
        assert!(error.starts_with("MISCONF"), "{command}: {error}");
    }
    let script = c.ask_bytes(&["EVAL", "return redis.call('TB.CONSUME', 'k', '1000000', '1e-3')", "1", "k"]);
    assert!(error_text(&script).is_some_and(|error| error.contains("MISCONF")), "{script:?}");
    assert_eq!(whole_tokens(c), bucket);
    assert_eq!(c.ask("TB.PEEK other"), Value::Nil);
    assert_eq!(c.footprint("k"), before);
    assert_eq!(c.info("tokenbucket", "tokenbucket_clients_waiting"), "0");
}

/// Of the million tokens of the bucket, which gets one back in a quarter of an hour.
#[track_caller]
fn left(c: &mut Connection) -> i64 {
    c.consume("k 1000000 1e-3 0").remaining
}

/// Spends until that is refused: how many tokens it took.
#[track_caller]
fn spend_until_refused(c: &mut Connection) -> i64 {
    let mut spent = 0;
    wait_until("the disk to be noticed", || {
        let reply = c.ask("TB.CONSUME k 1000000 1e-3");
        if let Some(error) = error_text(&reply) {
            assert!(error.starts_with("MISCONF"), "{error}");
            return true;
        }
        spent += consumed(&reply).allowed;
        false
    });
    spent
}

#[test]
fn a_full_disk_stops_what_an_append_only_file_cannot_have_and_room_lets_it_go_on() {
    let builder = Server::builder().on_a_disk_that_fills().conf("appendonly yes").conf("appendfsync everysec");
    let mut server = builder.start();
    let mut c = server.connect();
    set_something_large(&mut c);
    c.take("k 1000000 1e-3 100");
    c.penalise("frozen 1000");
    fill(&server, &mut c);
    let tail = spend_until_refused(&mut c);
    // A flush behind the scenes can put the write that fails off for seconds.
    assert!((1..999_900).contains(&tail), "{tail} granted on a full disk");
    assert_only_reads(&mut c);

    // With room again nothing is lost.
    server.limit_files(None);
    wait_until("writing to go on", || error_text(&c.ask("SET other 1")).is_none());
    assert_eq!(left(&mut c), 999_900 - tail);
    c.take("k 1000000 1e-3 100");
    fill(&server, &mut c);

    // Nor more than the tail where it ends before that.
    let lost = spend_until_refused(&mut c);
    server.kill();
    server.start_again();
    let mut c = server.connect();
    let kept = 999_800 - tail;
    let left = left(&mut c);
    assert!((kept - lost..=kept).contains(&left), "{left} left; {kept} were there, and {lost} of them spent on a full disk");
    assert_eq!(c.consume("frozen 10 1").status, "frozen");
    c.take("k 1000000 1e-3");
}

#[test]
fn a_full_disk_ends_a_server_that_writes_all_before_it_answers_and_nothing_answered_is_lost() {
    let mut server = Server::builder().on_a_disk_that_fills().append_only().start();
    let mut c = server.connect();
    set_something_large(&mut c);
    for _ in 0..7 {
        c.take("k 1000000 1e-3");
    }
    c.penalise("frozen 1000");
    fill(&server, &mut c);
    c.send(&["TB.CONSUME", "k", "1000000", "1e-3"]);
    let reply = c.try_receive();
    assert!(reply.is_err(), "{reply:?} to what could not be written");
    let status = server.wait_for_end();
    assert_eq!(status.code(), Some(1), "{status}");
    assert!(server.log().contains("Can't recover from AOF write error"), "{}", server.log());

    server.start_again();
    let mut c = server.connect();
    assert_eq!(left(&mut c), 999_993);
    assert_eq!(c.consume("frozen 10 1").status, "frozen");
    c.take("k 1000000 1e-3");
}

#[test]
fn a_snapshot_that_fails_stops_writes_and_one_that_succeeds_lets_them_go_on() {
    let builder = Server::builder().on_a_disk_that_fills().conf("save 3600 1000000").conf("rdbcompression no");
    let mut server = builder.start();
    let mut c = server.connect();
    let save = |c: &mut Connection| {
        c.ask("BGSAVE");
        wait_until("the snapshot to end", || c.info("persistence", "rdb_bgsave_in_progress") == "0");
        c.info("persistence", "rdb_last_bgsave_status")
    };
    set_something_large(&mut c);
    c.take("k 1000000 1e-3 100");
    c.penalise("frozen 1000");
    assert_eq!(save(&mut c), "ok");
    server.limit_files(Some(u64::try_from(LARGE / 2).unwrap()));
    c.take("k 1000000 1e-3 100");
    assert_eq!(save(&mut c), "err");
    assert_only_reads(&mut c);
    server.limit_files(None);
    assert_eq!(save(&mut c), "ok");
    assert_eq!(left(&mut c), 999_800);
    c.take("k 1000000 1e-3 100");
    server.kill();
    server.start_again();
    let mut c = server.connect();
    assert_eq!(left(&mut c), 999_800); // as of the last snapshot
    assert_eq!(c.consume("frozen 10 1").status, "frozen");
}
