//! A connection that asks and gets whole replies, and the module's replies as
//! records. It sends what it is given and hides nothing: an error is a value,
//! and a push that arrives in between is kept aside in [`Connection::pushes`].

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use redis::{Parser, PushKind, Value};

/// A reply that takes longer has been lost.
const PATIENCE: Duration = Duration::from_secs(20);

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    parser: Parser,
    pushed: Vec<(PushKind, Vec<Value>)>,
}

/// TB.CONSUME's reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Consumed {
    pub(crate) allowed: i64,
    pub(crate) remaining: i64,
    pub(crate) wait_ms: i64,
    pub(crate) full_ms: i64,
    pub(crate) status: String,
}

impl Consumed {
    /// What does not depend on the moment: allowed, status, remaining.
    pub(crate) fn verdict(&self) -> (i64, &str, i64) {
        (self.allowed, &self.status, self.remaining)
    }
}

/// TB.PEEK's reply; the decimals as the text they came in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Peeked {
    pub(crate) capacity: Option<String>,
    pub(crate) rate: Option<String>,
    pub(crate) per: Option<String>,
    pub(crate) tokens: Option<String>,
    pub(crate) wait_ms: Option<i64>,
    pub(crate) frozen_ms: i64,
    pub(crate) full_ms: Option<i64>,
    pub(crate) vendor_limit: Option<i64>,
    pub(crate) vendor_remaining: Option<i64>,
    pub(crate) vendor_reset_ms: Option<i64>,
}

impl Peeked {
    /// The limit: capacity, rate, per. Panics on a bucket without one.
    #[track_caller]
    pub(crate) fn limit(&self) -> (&str, &str, &str) {
        let [capacity, rate, per] = [&self.capacity, &self.rate, &self.per].map(|field| field.as_deref().expect("a limit"));
        (capacity, rate, per)
    }

    /// The same, of a bucket that may have none.
    pub(crate) fn limited(&self) -> Option<&str> {
        self.capacity.as_deref()
    }

    #[track_caller]
    pub(crate) fn tokens(&self) -> &str {
        self.tokens.as_deref().expect("tokens")
    }
}

/// All that a write would change about a key, its server and whoever listens:
/// two that are equal have nothing written between them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Footprint {
    digest: String,
    expires_at_ms: i64,
    dirty: String,
    keys: i64,
}

impl Connection {
    pub(crate) fn unix(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    #[allow(dead_code)]
    pub(crate) fn tcp(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), parser: Parser::new(), pushed: Vec::new() }
    }

    /// Switches to RESP3.
    pub(crate) fn resp3(mut self) -> Self {
        let hello = self.ask("HELLO 3");
        assert!(matches!(hello, Value::Map(_)), "HELLO 3: {hello:?}");
        self
    }

    // ---- any command

    /// Sends a command of words without spaces in them and returns its reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> Value {
        self.ask_bytes(&command.split_whitespace().collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn ask_bytes(&mut self, arguments: &[impl AsRef<[u8]>]) -> Value {
        self.send(arguments);
        self.receive()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, arguments: &[impl AsRef<[u8]>]) {
        self.try_send(arguments).expect("to send a command");
    }

    /// Where the server may end the connection.
    pub(crate) fn try_send(&mut self, arguments: &[impl AsRef<[u8]>]) -> std::io::Result<()> {
        self.stream.write_all(&pack(arguments))
    }

    /// The next reply that is not a push.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        loop {
            match self.try_receive().expect("a reply") {
                Value::Push { kind, data } => self.pushed.push((kind, data)),
                reply => return reply,
            }
        }
    }

    /// As it comes: where the server may end the connection.
    pub(crate) fn try_receive(&mut self) -> redis::RedisResult<Value> {
        self.parser.parse_value(&mut *self.stream)
    }

    /// The bytes of the reply, as they come over the wire.
    #[track_caller]
    pub(crate) fn wire(&mut self, command: &str) -> String {
        self.wire_bytes(&command.split_whitespace().collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn wire_bytes(&mut self, arguments: &[impl AsRef<[u8]>]) -> String {
        const END: &[u8] = b"$18\r\nthat was the reply\r\n";
        self.send(arguments);
        self.send(&["ECHO", "that was the reply"]);
        let mut bytes = Vec::new();
        while !bytes.ends_with(END) {
            let mut chunk = [0; 4096];
            let read = self.stream.read(&mut chunk).expect("a reply");
            assert_ne!(read, 0, "the server ended the connection");
            bytes.extend(&chunk[..read]);
        }
        bytes.truncate(bytes.len() - END.len());
        String::from_utf8(bytes).expect("text on the wire")
    }

    /// The replies of a transaction, between whose commands no key expires.
    #[track_caller]
    pub(crate) fn transaction(&mut self, commands: &[&str]) -> Vec<Value> {
        self.ok("MULTI");
        for command in commands {
            assert_eq!(self.ask(command), Value::SimpleString("QUEUED".to_owned()), "{command}");
        }
        array(self.ask("EXEC"))
    }

    /// The next lines of the wire as they are, for replies that may not be text.
    #[track_caller]
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        let mut bytes = Vec::new();
        while bytes.windows(2).filter(|end| end == b"\r\n").count() < count {
            let mut chunk = [0; 4096];
            let read = self.stream.read(&mut chunk).expect("a reply");
            assert_ne!(read, 0, "the server ended the connection");
            bytes.extend(&chunk[..read]);
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    /// The text of the error that the command must give.
    #[track_caller]
    pub(crate) fn error(&mut self, command: &str) -> String {
        let reply = self.ask(command);
        error_text(&reply).unwrap_or_else(|| panic!("{command}: no error but {reply:?}"))
    }

    #[track_caller]
    pub(crate) fn error_bytes(&mut self, arguments: &[impl AsRef<[u8]>]) -> String {
        let reply = self.ask_bytes(arguments);
        error_text(&reply).unwrap_or_else(|| panic!("no error but {reply:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, command: &str) {
        assert_eq!(self.ask(command), Value::Okay, "{command}");
    }

    #[track_caller]
    pub(crate) fn int(&mut self, command: &str) -> i64 {
        int(&self.ask(command))
    }

    #[track_caller]
    pub(crate) fn text(&mut self, command: &str) -> String {
        text(&self.ask(command))
    }

    /// The field of INFO, from whatever section.
    #[track_caller]
    pub(crate) fn info(&mut self, section: &str, field: &str) -> String {
        self.info_fields(section).remove(field).unwrap_or_else(|| panic!("no field {field} in INFO {section}"))
    }

    #[track_caller]
    pub(crate) fn info_fields(&mut self, section: &str) -> BTreeMap<String, String> {
        self.text(&format!("INFO {section}"))
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect()
    }

    #[track_caller]
    pub(crate) fn config_set(&mut self, name: &str, value: &str) {
        let reply = self.ask_bytes(&["CONFIG", "SET", name, value]);
        assert_eq!(reply, Value::Okay, "CONFIG SET {name} {value}");
    }

    #[track_caller]
    pub(crate) fn config(&mut self, name: &str) -> String {
        let pairs = pairs(self.ask_bytes(&["CONFIG", "GET", name]));
        assert_eq!(pairs.len(), 1, "CONFIG GET {name}: {pairs:?}");
        text(&pairs[0].1)
    }

    /// The server's wall clock, in microseconds since 1970.
    #[track_caller]
    pub(crate) fn time_us(&mut self) -> i64 {
        time_us(&self.ask("TIME"))
    }

    /// Subscribes; only a RESP3 connection can go on asking.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, channel: &str) {
        self.send(&["SUBSCRIBE", channel]);
        let confirmed = self.pushes();
        assert!(matches!(confirmed.as_slice(), [(PushKind::Subscribe, _)]), "{confirmed:?}");
    }

    /// The pushes since the last call. A push that a command of any client gave
    /// rise to is here once that client has its reply.
    #[track_caller]
    pub(crate) fn pushes(&mut self) -> Vec<(PushKind, Vec<Value>)> {
        let pong = self.ask("PING");
        assert_eq!(pong, Value::SimpleString("PONG".to_owned()));
        std::mem::take(&mut self.pushed)
    }

    // ---- the module's commands, with the rest of the line after the name

    #[track_caller]
    pub(crate) fn consume(&mut self, arguments: &str) -> Consumed {
        consumed(&self.ask(&format!("TB.CONSUME {arguments}")))
    }

    /// As [`Self::consume`], for a call that must be granted at once.
    #[track_caller]
    pub(crate) fn take(&mut self, arguments: &str) -> Consumed {
        let reply = self.consume(arguments);
        assert!(reply.allowed > 0, "TB.CONSUME {arguments}: {reply:?}");
        assert_eq!((reply.wait_ms, reply.status.as_str()), (0, "granted"), "TB.CONSUME {arguments}: {reply:?}");
        reply
    }

    /// Until the level is 0, in milliseconds.
    #[track_caller]
    pub(crate) fn penalise(&mut self, arguments: &str) -> i64 {
        self.int(&format!("TB.PENALISE {arguments}"))
    }

    /// Applied and remaining.
    #[track_caller]
    pub(crate) fn sync(&mut self, arguments: &str) -> (i64, i64) {
        let reply = array(self.ask(&format!("TB.SYNC {arguments}")));
        assert_eq!(reply.len(), 2, "{reply:?}");
        (int(&reply[0]), int(&reply[1]))
    }

    /// Remaining; none where there is no bucket.
    #[track_caller]
    pub(crate) fn refund(&mut self, arguments: &str) -> Option<i64> {
        match self.ask(&format!("TB.REFUND {arguments}")) {
            Value::Nil => None,
            reply => Some(int(&reply)),
        }
    }

    /// A bucket that must be there.
    #[track_caller]
    pub(crate) fn peek(&mut self, key: &str) -> Peeked {
        peeked(self.ask(&format!("TB.PEEK {key}"))).expect("a bucket")
    }

    /// Makes a bucket stay that is full at once and would soon be gone, by a
    /// vendor's limit too high to matter.
    #[track_caller]
    pub(crate) fn keep(&mut self, key: &str) {
        self.sync(&format!("{key} 1e12 LIMIT 1e12"));
    }

    #[track_caller]
    pub(crate) fn footprint(&mut self, key: &str) -> Footprint {
        Footprint {
            digest: text(&array(self.ask(&format!("DEBUG DIGEST-VALUE {key}")))[0]),
            expires_at_ms: self.int(&format!("PEXPIRETIME {key}")),
            dirty: self.info("persistence", "rdb_changes_since_last_save"),
            keys: self.int("DBSIZE"),
        }
    }

    /// Sends what brings a denial about and the call together, then asks again
    /// and again until it is granted, and holds the wait that it was told
    /// against that: nothing is granted earlier, and nothing denied later,
    /// whatever the machine is busy with.
    #[track_caller]
    pub(crate) fn assert_wait_is_honest(&mut self, setup: &[&str], call: &str) {
        let words = |line: &str| pack(&line.split_whitespace().collect::<Vec<_>>());
        let mut batch: Vec<u8> = setup.iter().flat_map(|line| words(line)).collect();
        batch.extend(words(&format!("TB.CONSUME {call}")));
        let before = Instant::now();
        self.stream.write_all(&batch).expect("to send commands");
        for command in setup {
            let reply = self.receive();
            assert_eq!(error_text(&reply), None, "{command}");
        }
        let denied = consumed(&self.receive());
        let after = Instant::now();
        assert_eq!(denied.allowed, 0, "{call}: {denied:?}");
        assert!((1..=2_000).contains(&denied.wait_ms), "{call}: {denied:?}");
        let told = Duration::from_millis(denied.wait_ms.unsigned_abs());
        let within = Duration::from_millis(1); // what is told is rounded up
        loop {
            let asked = Instant::now();
            let reply = self.consume(call);
            let answered = Instant::now();
            if reply.allowed > 0 {
                assert!(
                    answered >= before + told - within,
                    "{call}: granted after {:?}, earlier than told: {denied:?}",
                    answered - before
                );
                return;
            }
            assert!(asked < after + told, "{call}: denied after {:?}, later than told: {denied:?}", asked - after);
            std::thread::sleep(within);
        }
    }
}

fn pack(arguments: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let owned: Vec<Vec<u8>> = arguments.iter().map(|a| a.as_ref().to_vec()).collect();
    redis::pack_command(&owned)
}

// ---- reading values

pub(crate) fn error_text(reply: &Value) -> Option<String> {
    match reply {
        Value::ServerError(error) => Some(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        }),
        _ => None,
    }
}

#[track_caller]
pub(crate) fn int(reply: &Value) -> i64 {
    match reply {
        Value::Int(number) => *number,
        other => panic!("no integer but {other:?}"),
    }
}

/// TIME's reply, in microseconds since 1970.
#[track_caller]
pub(crate) fn time_us(reply: &Value) -> i64 {
    let parts = array(reply.clone());
    let [seconds, micros] = [&parts[0], &parts[1]].map(|part| text(part).parse::<i64>().unwrap());
    seconds * 1_000_000 + micros
}

#[track_caller]
pub(crate) fn text(reply: &Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).expect("text"),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        other => panic!("no text but {other:?}"),
    }
}

#[track_caller]
pub(crate) fn array(reply: Value) -> Vec<Value> {
    match reply {
        Value::Array(items) | Value::Set(items) => items,
        other => panic!("no array but {other:?}"),
    }
}

/// A map, or the flat array that it is in RESP2.
#[track_caller]
pub(crate) fn pairs(reply: Value) -> Vec<(Value, Value)> {
    match reply {
        Value::Map(pairs) => pairs,
        Value::Array(items) => {
            assert_eq!(items.len() % 2, 0, "{items:?}");
            let pair = |pair: &[Value]| (pair[0].clone(), pair[1].clone());
            items.chunks(2).map(pair).collect()
        }
        other => panic!("no map but {other:?}"),
    }
}

/// The value of a name in a map.
#[track_caller]
pub(crate) fn field(reply: &Value, name: &str) -> Value {
    pairs(reply.clone()).into_iter().find(|(key, _)| text(key) == name).unwrap_or_else(|| panic!("no {name} in {reply:?}")).1
}

#[track_caller]
pub(crate) fn consumed(reply: &Value) -> Consumed {
    let Value::Array(fields) = reply else { panic!("no array but {reply:?}") };
    let [allowed, remaining, wait_ms, full_ms, status] = fields.as_slice() else { panic!("not five elements but {reply:?}") };
    assert!(matches!(status, Value::BulkString(_)), "{reply:?}");
    Consumed {
        allowed: int(allowed),
        remaining: int(remaining),
        wait_ms: int(wait_ms),
        full_ms: int(full_ms),
        status: text(status),
    }
}

/// None for a null.
#[track_caller]
pub(crate) fn peeked(reply: Value) -> Option<Peeked> {
    if reply == Value::Nil {
        return None;
    }
    let known = |name| Some(field(&reply, name)).filter(|value| *value != Value::Nil);
    let text_of = |name| known(name).map(|value| text(&value));
    let int_of = |name| known(name).map(|value| int(&value));
    Some(Peeked {
        capacity: text_of("capacity"),
        rate: text_of("rate"),
        per: text_of("per"),
        tokens: text_of("tokens"),
        wait_ms: int_of("wait-ms"),
        frozen_ms: int_of("frozen-ms").expect("frozen-ms is never null"),
        full_ms: int_of("full-ms"),
        vendor_limit: int_of("vendor-limit"),
        vendor_remaining: int_of("vendor-remaining"),
        vendor_reset_ms: int_of("vendor-reset-ms"),
    })
}
