//! Requests as values. Each becomes a [`redis::Cmd`], so it goes over any
//! connection that the `redis` crate has.

use std::time::{Duration, SystemTime};

use redis::{Cmd, FromRedisValue};

use crate::limit::Seconds;
use crate::{Decision, Error, JointDecision, Limit, Penalised, Reading, Synced, Tokens};

/// What all requests have in common. Sealed: implemented by the requests of this crate alone.
///
/// ```no_run
/// use tokenbucket_client::{Consume, Limit, Request};
///
/// let mut connection = redis::Client::open("redis://127.0.0.1")?.get_connection()?;
/// let limit = Limit::per_second(10)?;
/// let decision = Consume::new("vendor", limit).query(&mut connection)?;
/// if !decision.is_allowed() {
///     println!("again in {:?}", decision.wait);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a pipeline the commands are added one by one, and the replies are typed:
///
/// ```no_run
/// # use tokenbucket_client::{Consume, Decision, Limit, Request};
/// # let mut connection = redis::Client::open("redis://127.0.0.1")?.get_connection()?;
/// # let limit = Limit::per_second(10)?;
/// let mut pipe = redis::pipe();
/// pipe.add_command(Consume::new("a", limit).command()).add_command(Consume::new("b", limit).command());
/// let (a, b): (Decision, Decision) = pipe.query(&mut connection)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Request: crate::local::Answer<Self::Reply> + Clone + Send + std::marker::Sync {
    /// What the server answers.
    type Reply: FromRedisValue + Send;

    /// The command as the `redis` crate sends it.
    fn command(&self) -> Cmd;

    /// Whose slot it belongs to, where that is not the command's first argument.
    #[doc(hidden)]
    fn routed_by(&self) -> Option<&[u8]> {
        None
    }

    /// Asks over a blocking connection, also one out of a pool or to a cluster.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`].
    fn query(&self, connection: &mut dyn redis::ConnectionLike) -> Result<Self::Reply, Error> {
        Ok(self.command().query(connection)?)
    }

    /// Asks over an asynchronous connection, also one out of a pool or to a cluster: with the
    /// feature `cluster` a [`MultiConsume`] goes to the node that has its buckets at once.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`].
    #[cfg(feature = "aio")]
    fn query_async<C>(&self, connection: &mut C) -> impl Future<Output = Result<Self::Reply, Error>> + Send
    where
        C: redis::aio::ConnectionLike + Send + 'static,
    {
        let command = self.command();
        #[cfg(feature = "cluster")]
        let route = self.routed_by().map(route);
        async move {
            #[cfg(feature = "cluster")]
            if let Some(route) = route
                && let Some(cluster) =
                    (connection as &mut dyn std::any::Any).downcast_mut::<redis::cluster_async::ClusterConnection>()
            {
                return Ok(
                    redis::from_redis_value(cluster.route_command(command, route).await?).map_err(redis::RedisError::from)?
                );
            }
            Ok(command.query_async(connection).await?)
        }
    }
}

/// To the primary that has the key. (The library takes the first argument for the key.)
#[cfg(feature = "cluster")]
fn route(key: &[u8]) -> redis::cluster_routing::RoutingInfo {
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)))
}

/// `TB.CONSUME`: takes tokens, or says when they can be had.
#[derive(Clone, Debug)]
pub struct Consume {
    pub(crate) key: Vec<u8>,
    pub(crate) limit: Limit,
    pub(crate) tokens: Tokens,
    pub(crate) mode: Mode,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Exactly,
    UpTo,
    Force,
    Reserve(Duration),
}

impl Consume {
    /// One token of the bucket at `key`, which keeps to `limit`.
    pub fn new(key: impl Into<Vec<u8>>, limit: Limit) -> Self {
        Self { key: key.into(), limit, tokens: Tokens::ONE, mode: Mode::Exactly }
    }

    /// Asks for so many tokens instead of one; [`Tokens::ZERO`] asks without taking.
    #[must_use]
    pub fn tokens(mut self, tokens: impl Into<Tokens>) -> Self {
        self.tokens = tokens.into();
        self
    }

    /// Takes as many whole tokens as there are, if they are not all there.
    #[must_use]
    pub const fn up_to(mut self) -> Self {
        self.mode = Mode::UpTo;
        self
    }

    /// Takes them whatever holds: for a cost that is known only afterwards.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.mode = Mode::Force;
        self
    }

    /// Takes them now for later, if they will be there within `wait` (at most 366 days): act
    /// after [`Decision::wait`].
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.mode = Mode::Reserve(wait.min(MAX_WAIT));
        self
    }
}

/// 366 days, the longest the server reserves ahead.
const MAX_WAIT: Duration = Duration::from_secs(31_622_400);

/// The longest duration the server reads; it cuts far below.
const MAX_SECONDS: Duration = Duration::from_secs(100_000_000_000);

impl Request for Consume {
    type Reply = Decision;

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.CONSUME");
        command.arg(&self.key).arg(self.limit.capacity().to_string()).arg(self.limit.tokens().to_string());
        if self.tokens != Tokens::ONE {
            command.arg(self.tokens.to_string());
        }
        if self.limit.period() != Duration::from_secs(1) {
            command.arg("PER").arg(Seconds(self.limit.period()).to_string());
        }
        match self.mode {
            Mode::Exactly => &mut command,
            Mode::UpTo => command.arg("UPTO"),
            Mode::Force => command.arg("FORCE"),
            Mode::Reserve(wait) => command.arg("MAXWAIT").arg(Seconds(wait).to_string()),
        };
        command
    }
}

/// `TB.MCONSUME`: takes tokens from several buckets, from all or from none. For a
/// vendor with several limits, say per second and per day.
///
/// To a cluster it goes by [`Request::query_async`] or a
/// [`RateLimiter`](crate::RateLimiter) with the feature `cluster`, and over a blocking
/// connection by `query_cluster`. In any other way the library takes the number of keys for
/// the key: the answer is the same, but by way of a node that sends it on with `MOVED`.
///
/// ```no_run
/// use std::time::Duration;
/// use tokenbucket_client::{Limit, MultiConsume, Request};
///
/// let mut connection = redis::Client::open("redis://127.0.0.1")?.get_connection()?;
/// let day = Limit::per(250_000, Duration::from_secs(86_400))?;
/// let decision = MultiConsume::new()
///     .and("{acme}:second", Limit::per_second(10)?, 1)
///     .and("{acme}:day", day, 1)
///     .query(&mut connection)?;
/// if !decision.together.is_allowed() {
///     println!("again in {:?}", decision.together.wait);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MultiConsume {
    pub(crate) buckets: Vec<(Vec<u8>, Limit, Tokens)>,
    pub(crate) max_wait: Option<Duration>,
}

impl MultiConsume {
    /// Asks for no bucket yet; the server takes from 1 to 64.
    pub const fn new() -> Self {
        Self { buckets: Vec::new(), max_wait: None }
    }

    /// And so many tokens of the bucket at `key`, which keeps to `limit`. In a cluster
    /// all keys share a hash tag; the same key twice is an error of the server's.
    #[must_use]
    pub fn and(mut self, key: impl Into<Vec<u8>>, limit: Limit, tokens: impl Into<Tokens>) -> Self {
        self.buckets.push((key.into(), limit, tokens.into()));
        self
    }

    /// Takes them now for later, if all will be there within `wait` (at most 366 days): act after
    /// the wait of [`JointDecision::together`].
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait.min(MAX_WAIT));
        self
    }

    /// Asks the node of a cluster that has the buckets, over a blocking connection.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`].
    #[cfg(feature = "cluster")]
    pub fn query_cluster(&self, connection: &mut redis::cluster::ClusterConnection) -> Result<JointDecision, Error> {
        let Some(key) = self.routed_by() else { return self.query(connection) };
        let value = connection.route_command(&self.command(), route(key))?;
        Ok(redis::from_redis_value(value).map_err(redis::RedisError::from)?)
    }

    /// What is asked of each bucket.
    pub(crate) fn each(&self) -> impl Iterator<Item = Consume> {
        self.buckets.iter().map(|(key, limit, tokens)| {
            let request = Consume::new(key.as_slice(), *limit).tokens(*tokens);
            if let Some(wait) = self.max_wait { request.max_wait(wait) } else { request }
        })
    }
}

impl Request for MultiConsume {
    type Reply = JointDecision;

    fn routed_by(&self) -> Option<&[u8]> {
        self.buckets.first().map(|(key, ..)| key.as_slice())
    }

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.MCONSUME");
        command.arg(self.buckets.len());
        for (key, ..) in &self.buckets {
            command.arg(key);
        }
        for (_, limit, tokens) in &self.buckets {
            command.arg(limit.capacity().to_string()).arg(limit.tokens().to_string());
            command.arg(tokens.to_string()).arg(Seconds(limit.period()).to_string());
        }
        if let Some(wait) = self.max_wait {
            command.arg("MAXWAIT").arg(Seconds(wait).to_string());
        }
        command
    }
}

/// `TB.BCONSUME`: takes tokens, and waits on the server until it has them. First come,
/// first served over all clients.
///
/// It keeps its connection busy for as long as it waits, so it is no [`Request`]: over a
/// connection that others share it would hold them all up. Asynchronously it opens a
/// connection of its own, for this one wait.
///
/// ```no_run
/// use std::time::Duration;
/// use tokenbucket_client::{BlockingConsume, Limit};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = redis::Client::open("redis://127.0.0.1")?;
/// let request = BlockingConsume::new("vendor", Limit::per_second(10)?).time_out(Duration::from_secs(30));
/// if request.query_async(&client).await?.is_allowed() {
///     // Its turn has come: call, now.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BlockingConsume {
    key: Vec<u8>,
    limit: Limit,
    tokens: Tokens,
    time_out: Option<Duration>,
}

impl BlockingConsume {
    /// One token of the bucket at `key`, which keeps to `limit`, as long as it takes.
    pub fn new(key: impl Into<Vec<u8>>, limit: Limit) -> Self {
        Self { key: key.into(), limit, tokens: Tokens::ONE, time_out: None }
    }

    /// Waits for so many tokens instead of one.
    #[must_use]
    pub fn tokens(mut self, tokens: impl Into<Tokens>) -> Self {
        self.tokens = tokens.into();
        self
    }

    /// Waits no longer than that (at most 366 days). Then it is denied, and
    /// [`Decision::wait`] says when it would have had its turn.
    #[must_use]
    pub fn time_out(mut self, duration: Duration) -> Self {
        // Of 0 the server waits as long as it takes.
        self.time_out = Some(duration.clamp(Duration::from_micros(1), MAX_WAIT));
        self
    }

    /// The command as the `redis` crate sends it, for a connection that nobody shares
    /// and that has no time-out of its own.
    pub fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.BCONSUME");
        command.arg(&self.key).arg(self.limit.capacity().to_string()).arg(self.limit.tokens().to_string());
        command.arg(self.tokens.to_string()).arg(Seconds(self.time_out.unwrap_or_default()).to_string());
        if self.limit.period() != Duration::from_secs(1) {
            command.arg("PER").arg(Seconds(self.limit.period()).to_string());
        }
        command
    }

    /// Waits over a blocking connection, also to a cluster or out of a pool. A server that
    /// hangs is noticed by the connection's own time-out for reading alone: if it has one,
    /// make it longer than [`BlockingConsume::time_out`]; if it has none, this waits for ever.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`]; `UNBLOCKED` where the server has become
    /// a replica meanwhile.
    pub fn query(&self, connection: &mut dyn redis::ConnectionLike) -> Result<Decision, Error> {
        Ok(self.command().query(connection)?)
    }

    /// Waits over a connection that is opened for it. A future that is dropped closes it,
    /// which gives up the place among those who wait, and takes nothing; but for a grant
    /// that is on its way just then, whose tokens are lost.
    ///
    /// A server that does not say within a second of the time-out that it is over is away
    /// ([`Error::is_redis_away`]). Where there is no time-out, a machine that is gone is noticed
    /// by TCP within about a minute (`client`'s own settings for that stay as they are); a
    /// server process that hangs is not.
    ///
    /// In a cluster `client` may be one of any node: it is followed once to the node that has
    /// the key. Each wait holds a connection, so a fleet needs as many as wait at the same
    /// moment: see the server's `maxclients`.
    ///
    /// # Errors
    /// As [`BlockingConsume::query`].
    #[cfg(feature = "aio")]
    pub async fn query_async(&self, client: &redis::Client) -> Result<Decision, Error> {
        let info = client.get_connection_info().clone();
        let answer = async {
            match self.wait_at(info.clone()).await {
                Err(Error::Redis(error)) => match moved(&info, &error) {
                    Some(info) => self.wait_at(info).await,
                    None => Err(Error::Redis(error)),
                },
                answer => answer,
            }
        };
        let Some(time_out) = self.time_out else { return answer.await };
        match tokio::time::timeout(time_out.saturating_add(SLACK), answer).await {
            Ok(answer) => answer,
            Err(_) => Err(redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)).into()),
        }
    }

    #[cfg(feature = "aio")]
    async fn wait_at(&self, info: redis::ConnectionInfo) -> Result<Decision, Error> {
        let client = redis::Client::open(kept_alive(info))?;
        // Its driver ends with the last handle, which is this one.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(self.command().query_async(&mut connection).await?)
    }
}

/// What a server may be late in saying that the time is over; and a connection takes a while.
#[cfg(feature = "aio")]
const SLACK: Duration = Duration::from_secs(1);

/// Asks after 30 s of silence whether the other machine is still there, and gives up 30 s
/// later; unless the caller has settings of his own.
#[cfg(feature = "aio")]
fn kept_alive(info: redis::ConnectionInfo) -> redis::ConnectionInfo {
    let settings = info.tcp_settings().clone();
    if settings.keepalive().is_some() {
        return info;
    }
    let (silence, pause) = (Duration::from_secs(30), Duration::from_secs(10));
    let keepalive = socket2::TcpKeepalive::new().with_time(silence).with_interval(pause).with_retries(3);
    info.set_tcp_settings(settings.set_keepalive(keepalive))
}

/// The node that a cluster says has the key, reached as the one that said so.
#[cfg(feature = "aio")]
fn moved(info: &redis::ConnectionInfo, error: &redis::RedisError) -> Option<redis::ConnectionInfo> {
    use redis::ConnectionAddr::{Tcp, TcpTls};
    if error.kind() != redis::ErrorKind::Server(redis::ServerErrorKind::Moved) {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let mut addr = info.addr().clone();
    match &mut addr {
        Tcp(known, known_port) | TcpTls { host: known, port: known_port, .. } => {
            // A node that does not know its own name means the one that was asked.
            if !host.is_empty() && host != "?" {
                host.clone_into(known);
            }
            *known_port = port;
        }
        _ => return None,
    }
    Some(info.clone().set_addr(addr))
}

/// A moment, as a caller has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    In(Duration),
    At(SystemTime),
}

impl When {
    /// Moments before 1970 count as 1970: they are past.
    fn write(self, command: &mut Cmd, within: Option<&str>, at: &str) {
        let (name, seconds) = match self {
            Self::In(duration) => (within, duration),
            Self::At(moment) => (Some(at), moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
        };
        if let Some(name) = name {
            command.arg(name);
        }
        command.arg(Seconds(seconds.min(MAX_SECONDS)).to_string());
    }
}

/// `TB.PENALISE`: the vendor said 429. Nothing is granted until the end, and no
/// burst after.
#[derive(Clone, Debug)]
pub struct Penalise {
    pub(crate) key: Vec<u8>,
    pub(crate) end: When,
}

impl Penalise {
    /// Freezes the bucket at `key` for so long from now; 0 only empties it.
    pub fn new(key: impl Into<Vec<u8>>, duration: Duration) -> Self {
        Self { key: key.into(), end: When::In(duration) }
    }

    /// Freezes the bucket at `key` until a moment, which the server compares with its own clock.
    pub fn until(key: impl Into<Vec<u8>>, end: SystemTime) -> Self {
        Self { key: key.into(), end: When::At(end) }
    }
}

impl Request for Penalise {
    type Reply = Penalised;

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.PENALISE");
        command.arg(&self.key);
        self.end.write(&mut command, None, "UNTIL");
        command
    }
}

/// `TB.SYNC`: lowers the bucket to what the vendor's headers say is left.
#[derive(Clone, Debug)]
pub struct Sync {
    pub(crate) key: Vec<u8>,
    pub(crate) remaining: Tokens,
    pub(crate) limit: Option<Tokens>,
    pub(crate) reset: Option<When>,
    pub(crate) tolerance: Tokens,
}

impl Sync {
    /// Says that so many tokens are left of the bucket at `key`.
    pub fn new(key: impl Into<Vec<u8>>, remaining: impl Into<Tokens>) -> Self {
        Self { key: key.into(), remaining: remaining.into(), limit: None, reset: None, tolerance: Tokens::ZERO }
    }

    /// The most the vendor holds, at least 1.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<Tokens>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// After so long the vendor's count jumps back.
    #[must_use]
    pub const fn reset(mut self, duration: Duration) -> Self {
        self.reset = Some(When::In(duration));
        self
    }

    /// At a moment the vendor's count jumps back.
    #[must_use]
    pub const fn reset_at(mut self, moment: SystemTime) -> Self {
        self.reset = Some(When::At(moment));
        self
    }

    /// By how much the bucket's own figure may be above `remaining`: for calls that
    /// are under way while the vendor counts.
    #[must_use]
    pub fn tolerance(mut self, tokens: impl Into<Tokens>) -> Self {
        self.tolerance = tokens.into();
        self
    }
}

impl Request for Sync {
    type Reply = Synced;

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.SYNC");
        command.arg(&self.key).arg(self.remaining.to_string());
        if let Some(limit) = self.limit {
            command.arg("LIMIT").arg(limit.to_string());
        }
        if let Some(reset) = self.reset {
            reset.write(&mut command, Some("RESET"), "RESETAT");
        }
        if self.tolerance != Tokens::ZERO {
            command.arg("TOLERANCE").arg(self.tolerance.to_string());
        }
        command
    }
}

/// `TB.REFUND`: gives back the tokens of a call that was not made. The reply is
/// what a plain request could take now; `None` where the bucket is full and so
/// does not exist.
#[derive(Clone, Debug)]
pub struct Refund {
    pub(crate) key: Vec<u8>,
    pub(crate) tokens: Tokens,
}

impl Refund {
    /// Gives so many tokens back to the bucket at `key`.
    pub fn new(key: impl Into<Vec<u8>>, tokens: impl Into<Tokens>) -> Self {
        Self { key: key.into(), tokens: tokens.into() }
    }
}

impl Request for Refund {
    type Reply = Option<u64>;

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.REFUND");
        command.arg(&self.key).arg(self.tokens.to_string());
        command
    }
}

/// `TB.PEEK`: reads and writes nothing. `None` where there is no bucket, which is
/// a full one.
#[derive(Clone, Debug)]
pub struct Peek {
    pub(crate) key: Vec<u8>,
}

impl Peek {
    /// Reads the bucket at `key`.
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into() }
    }
}

impl Request for Peek {
    type Reply = Option<Reading>;

    fn command(&self) -> Cmd {
        let mut command = redis::cmd("TB.PEEK");
        command.arg(&self.key);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(request: &impl Request) -> String {
        text(&request.command())
    }

    fn text(command: &Cmd) -> String {
        let words = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => unreachable!(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[cfg(feature = "aio")]
    #[test]
    fn a_wait_asks_whether_the_other_machine_is_there_as_its_caller_wants_it() {
        use redis::IntoConnectionInfo as _;

        let plain = || "redis://127.0.0.1:7000".into_connection_info().unwrap();
        let told = |info: &redis::ConnectionInfo| format!("{:?}", info.tcp_settings().keepalive());
        let kept = told(&kept_alive(plain()));
        assert!(kept.contains("30s") && kept.contains("10s"), "{kept}");
        let own = socket2::TcpKeepalive::new().with_time(Duration::from_secs(5));
        let info = plain().set_tcp_settings(redis::io::tcp::TcpSettings::default().set_keepalive(own));
        assert_eq!(told(&kept_alive(info.clone())), told(&info));
    }

    #[cfg(feature = "aio")]
    #[test]
    fn a_node_that_is_not_asked_twice_is_not_followed() {
        use redis::IntoConnectionInfo as _;

        let info = "redis://10.0.0.1:7000".into_connection_info().unwrap();
        let to = |text: &str| {
            let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            let error = reply.extract_error().unwrap_err();
            moved(&info, &error).map(|info| info.addr().to_string())
        };
        assert_eq!(to("MOVED 3999 10.0.0.2:7001").as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(to("MOVED 3999 :7001").as_deref(), Some("10.0.0.1:7001"));
        for other in ["ASK 3999 10.0.0.2:7001", "MOVED 3999 nowhere", "ERR no"] {
            assert_eq!(to(other), None, "{other}");
        }
    }

    #[test]
    fn requests_are_written_as_the_contract_has_them() {
        let limit = Limit::per_second(10).unwrap();
        let slow = Limit::per(Tokens::try_from(7_u64).unwrap(), Duration::from_millis(1500)).unwrap().with_burst(2).unwrap();
        let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_508_247_250);
        let half: Tokens = "0.5".parse().unwrap();
        for (written, expected) in [
            (words(&Consume::new("k", limit)), "TB.CONSUME k 10 10"),
            (words(&Consume::new("k", limit).tokens(0)), "TB.CONSUME k 10 10 0"),
            (words(&Consume::new("k", slow).tokens(half).up_to()), "TB.CONSUME k 2 7 0.5 PER 1.5 UPTO"),
            (words(&Consume::new("k", limit).force()), "TB.CONSUME k 10 10 FORCE"),
            (words(&Consume::new("k", limit).max_wait(Duration::from_millis(250))), "TB.CONSUME k 10 10 MAXWAIT 0.25"),
            (words(&Consume::new("k", limit).max_wait(Duration::MAX)), "TB.CONSUME k 10 10 MAXWAIT 31622400"),
            (words(&Penalise::new("k", Duration::from_secs(5))), "TB.PENALISE k 5"),
            (words(&Penalise::new("k", Duration::MAX)), "TB.PENALISE k 100000000000"),
            (words(&Penalise::until("k", moment)), "TB.PENALISE k UNTIL 1764508247.25"),
            (words(&Penalise::until("k", SystemTime::UNIX_EPOCH - Duration::from_secs(1))), "TB.PENALISE k UNTIL 0"),
            (words(&Sync::new("k", 3)), "TB.SYNC k 3"),
            (
                words(&Sync::new("k", half).limit(40).reset(Duration::from_secs(9)).tolerance(2)),
                "TB.SYNC k 0.5 LIMIT 40 RESET 9 TOLERANCE 2",
            ),
            (words(&Sync::new("k", 3).reset_at(moment)), "TB.SYNC k 3 RESETAT 1764508247.25"),
            (words(&Refund::new("k", 3)), "TB.REFUND k 3"),
            (words(&Peek::new(b"\x01k".to_vec())), "TB.PEEK \u{1}k"),
            (words(&MultiConsume::new().and("a", limit, 1).and("b", slow, half)), "TB.MCONSUME 2 a b 10 10 1 1 2 7 0.5 1.5"),
            (
                words(&MultiConsume::new().and("a", limit, 3).max_wait(Duration::from_secs(2))),
                "TB.MCONSUME 1 a 10 10 3 1 MAXWAIT 2",
            ),
            (text(&BlockingConsume::new("k", limit).command()), "TB.BCONSUME k 10 10 1 0"),
            (
                text(&BlockingConsume::new("k", slow).tokens(half).time_out(Duration::from_millis(250)).command()),
                "TB.BCONSUME k 2 7 0.5 0.25 PER 1.5",
            ),
            // 0 would be for ever.
            (text(&BlockingConsume::new("k", limit).time_out(Duration::ZERO).command()), "TB.BCONSUME k 10 10 1 0.000001"),
            (text(&BlockingConsume::new("k", limit).time_out(Duration::MAX).command()), "TB.BCONSUME k 10 10 1 31622400"),
        ] {
            assert_eq!(written, expected);
        }
    }
}
