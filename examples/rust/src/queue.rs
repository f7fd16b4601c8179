//! The queue: a Redis stream with a consumer group.
//!
//! What to know before changing it: a job is always in exactly one of three places, and
//! goes from one to another in one transaction or script, so that a worker that dies
//! at any moment loses none. They are the stream (`jobs`; with an entry of the group's
//! pending list while a worker has it), the set of those to come later (`delayed`), and
//! the stream of those given up (`dead`).
//!
//! A job whose worker has died comes back once nobody has acknowledged it for
//! [`RECLAIM_AFTER`]. So no worker may have one for longer: see [`crate::worker`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::streams::{StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands as _, IntoConnectionInfo as _, RedisResult, Script, Value};
use serde::{Deserialize, Serialize};

/// Failures of a job's own after which it is given up.
pub const MOST_FAILURES: u32 = 3;

/// After so long without a word from its worker a job is somebody else's.
pub const RECLAIM_AFTER: Duration = Duration::from_secs(30);

/// A Redis that takes longer is away. The job comes back, so patience costs little.
pub const TIME_OUT: Duration = Duration::from_secs(3);

/// So long a process waits for new jobs before it looks for those that come back.
const BLOCK: Duration = Duration::from_millis(250);

const GROUP: &str = "workers";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The vendor's `Idempotency-Key`.
    pub id: String,
    /// What to call at the vendor.
    pub path: String,
    /// How often it has failed by its own fault. Freezes and lost workers do not count.
    pub failures: u32,
}

/// A job that this worker has.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its place in the stream.
    entry: String,
    /// What is to be done.
    pub job: Job,
}

/// How full the queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Since when the oldest job that is not over waits.
    pub oldest: Option<Duration>,
    /// In the stream, with no worker yet.
    pub waiting: u64,
    /// To come later.
    pub delayed: u64,
    /// In the hands of workers.
    pub in_flight: u64,
    /// Given up.
    pub dead: u64,
}

/// The queue as one process sees it. Clones share its connections.
#[derive(Clone)]
pub struct Queue {
    connection: ConnectionManager,
    /// Waits for new jobs, so nothing else may go over it.
    waiting: ConnectionManager,
    consumer: String,
    jobs: String,
    delayed: String,
    dead: String,
    /// When each job that is not over was enqueued: what the oldest one's age is read from.
    open: String,
}

impl Queue {
    /// The queue `name` at a Redis, for a consumer of this name.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub async fn open(url: &str, name: &str, consumer: &str) -> RedisResult<Self> {
        let client = client(url)?;
        // A connection may die without a word; without an end one would wait for ever.
        let patient = ConnectionManagerConfig::new().set_response_timeout(Some(BLOCK + TIME_OUT));
        let usual = ConnectionManagerConfig::new().set_response_timeout(Some(TIME_OUT));
        let queue = Self {
            connection: client.get_connection_manager_with_config(usual).await?,
            waiting: client.get_connection_manager_with_config(patient).await?,
            consumer: consumer.to_owned(),
            // In a cluster all of them in one slot.
            jobs: format!("{{{name}}}:jobs"),
            delayed: format!("{{{name}}}:delayed"),
            dead: format!("{{{name}}}:dead"),
            open: format!("{{{name}}}:open"),
        };
        queue.create_group().await?;
        Ok(queue)
    }

    async fn create_group(&self) -> RedisResult<()> {
        let created: RedisResult<()> = self.connection.clone().xgroup_create_mkstream(&self.jobs, GROUP, "0").await;
        match created {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds jobs.
    ///
    /// # Errors
    /// Where Redis fails; then some may have been added.
    pub async fn enqueue(&self, jobs: &[Job]) -> RedisResult<()> {
        let now = unix_ms();
        for part in jobs.chunks(500) {
            let mut pipe = redis::pipe();
            pipe.atomic();
            for job in part {
                pipe.xadd(&self.jobs, "*", &[("job", encode(job)?)]).ignore().zadd(&self.open, &job.id, now).ignore();
            }
            pipe.query_async::<()>(&mut self.connection.clone()).await?;
        }
        Ok(())
    }

    /// Takes up to `most` jobs: those whose time has come, those that a worker left
    /// behind, and new ones, for which it waits a little.
    ///
    /// # Errors
    /// Where Redis fails.
    pub async fn fetch(&self, most: usize) -> RedisResult<Vec<Taken>> {
        match self.entries(most).await {
            // Somebody has emptied this Redis.
            Err(error) if error.code() == Some("NOGROUP") => {
                self.create_group().await?;
                Ok(Vec::new())
            }
            entries => self.readable(entries?).await,
        }
    }

    async fn entries(&self, most: usize) -> RedisResult<Vec<StreamId>> {
        self.promote().await?;
        let mut connection = self.connection.clone();
        let reclaim_ms = ms(RECLAIM_AFTER);
        let options = StreamAutoClaimOptions::default().count(most);
        let left: StreamAutoClaimReply =
            connection.xautoclaim_options(&self.jobs, GROUP, &self.consumer, reclaim_ms, "0", options).await?;
        if !left.claimed.is_empty() {
            return Ok(left.claimed);
        }
        let options = StreamReadOptions::default().group(GROUP, &self.consumer).count(most).block(ms(BLOCK));
        let read: Option<StreamReadReply> = self.waiting.clone().xread_options(&[&self.jobs], &[">"], &options).await?;
        Ok(read.into_iter().flat_map(|read| read.keys).flat_map(|stream| stream.ids).collect())
    }

    /// The jobs among these entries. What is none goes to those given up, as it is: it would
    /// come back for ever, and hold up those that it was read with.
    async fn readable(&self, entries: Vec<StreamId>) -> RedisResult<Vec<Taken>> {
        let mut jobs = Vec::new();
        for entry in entries {
            match taken(&entry) {
                Ok(taken) => jobs.push(taken),
                Err(error) => {
                    eprintln!("fleet: entry {}: {error}; given up", entry.id);
                    let fields: Vec<(String, Vec<u8>)> = entry
                        .map
                        .into_iter()
                        .map(|(name, value)| Ok((name, redis::from_redis_value(value)?)))
                        .collect::<RedisResult<_>>()?;
                    let mut pipe = redis::pipe();
                    pipe.atomic().xadd(&self.dead, "*", &fields).ignore();
                    pipe.xack(&self.jobs, GROUP, &[&entry.id]).ignore().xdel(&self.jobs, &[&entry.id]).ignore();
                    pipe.query_async::<()>(&mut self.connection.clone()).await?;
                }
            }
        }
        Ok(jobs)
    }

    /// The job is done.
    ///
    /// # Errors
    /// Where Redis fails; then it comes back.
    pub async fn done(&self, taken: &Taken) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        pipe.atomic().xack(&self.jobs, GROUP, &[&taken.entry]).ignore().xdel(&self.jobs, &[&taken.entry]).ignore();
        pipe.zrem(&self.open, &taken.job.id).ignore().query_async(&mut self.connection.clone()).await
    }

    /// The job comes again after `wait`; nothing is counted.
    ///
    /// # Errors
    /// Where Redis fails; then it comes back later than that.
    pub async fn delay(&self, taken: &Taken, wait: Duration) -> RedisResult<()> {
        // By the server's clock, like all that is compared with it.
        let script = Script::new(
            "local time = redis.call('TIME')
             redis.call('ZADD', KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[4])
             redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
             redis.call('XDEL', KEYS[1], ARGV[2])",
        );
        let mut call = script.key(&self.jobs);
        call.key(&self.delayed).arg(GROUP).arg(&taken.entry).arg(ms(wait)).arg(encode(&taken.job)?);
        call.invoke_async(&mut self.connection.clone()).await
    }

    /// The job failed by its own fault: it comes again soon, or is given up.
    ///
    /// # Errors
    /// Where Redis fails; then it comes back as it was.
    pub async fn fail(&self, taken: &Taken) -> RedisResult<()> {
        let job = Job { failures: taken.job.failures + 1, ..taken.job.clone() };
        if job.failures < MOST_FAILURES {
            let backoff = Duration::from_secs(1) * job.failures;
            return self.delay(&Taken { job, ..taken.clone() }, backoff).await;
        }
        let mut pipe = redis::pipe();
        pipe.atomic().xadd(&self.dead, "*", &[("job", encode(&job)?)]).ignore();
        pipe.xack(&self.jobs, GROUP, &[&taken.entry]).ignore().xdel(&self.jobs, &[&taken.entry]).ignore();
        pipe.zrem(&self.open, &job.id).ignore().query_async(&mut self.connection.clone()).await
    }

    /// Puts every job that was given up back into the queue, as a new one; says how many.
    /// What is no job stays.
    ///
    /// # Errors
    /// Where Redis fails; the rest is still there.
    pub async fn redrive(&self) -> RedisResult<usize> {
        // Of two who redrive at once only one finds the entry.
        let script = Script::new(
            "if redis.call('XDEL', KEYS[2], ARGV[1]) == 0 then return 0 end
             redis.call('XADD', KEYS[1], '*', 'job', ARGV[2])
             redis.call('ZADD', KEYS[3], ARGV[3], ARGV[4])
             return 1",
        );
        let mut connection = self.connection.clone();
        let dead: redis::streams::StreamRangeReply = connection.xrange_all(&self.dead).await?;
        let mut moved = 0;
        for Taken { entry, job } in dead.ids.iter().filter_map(|entry| taken(entry).ok()) {
            let job = Job { failures: 0, ..job };
            let mut call = script.key(&self.jobs);
            call.key(&self.dead).key(&self.open).arg(entry).arg(encode(&job)?).arg(unix_ms()).arg(&job.id);
            moved += call.invoke_async::<usize>(&mut connection).await?;
        }
        Ok(moved)
    }

    /// How full it is.
    ///
    /// # Errors
    /// Where Redis fails.
    pub async fn fill(&self) -> RedisResult<Fill> {
        let mut pipe = redis::pipe();
        pipe.atomic()
            .zrange_withscores(&self.open, 0, 0)
            .xlen(&self.jobs)
            .zcard(&self.delayed)
            .xpending(&self.jobs, GROUP)
            .xlen(&self.dead);
        type Raw = (Vec<(String, u64)>, u64, u64, redis::streams::StreamPendingReply, u64);
        let (oldest, jobs, delayed, pending, dead): Raw = pipe.query_async(&mut self.connection.clone()).await?;
        let in_flight = u64::try_from(pending.count()).unwrap_or(u64::MAX);
        let oldest = oldest.first().map(|(_, since)| Duration::from_millis(unix_ms().saturating_sub(*since)));
        Ok(Fill { oldest, waiting: jobs.saturating_sub(in_flight), delayed, in_flight, dead })
    }

    /// Moves those whose time has come back into the stream.
    async fn promote(&self) -> RedisResult<()> {
        let script = Script::new(
            "local time = redis.call('TIME')
             local now = time[1] * 1000 + math.floor(time[2] / 1000)
             for _, job in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)) do
               redis.call('ZREM', KEYS[2], job)
               redis.call('XADD', KEYS[1], '*', 'job', job)
             end",
        );
        script.key(&self.jobs).key(&self.delayed).invoke_async(&mut self.connection.clone()).await
    }
}

impl Fill {
    /// Whether nothing is left to do.
    pub const fn is_over(&self) -> bool {
        self.waiting + self.delayed + self.in_flight == 0
    }
}

impl std::fmt::Display for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { oldest, waiting, delayed, in_flight, dead } = self;
        let oldest = oldest.unwrap_or_default().as_secs_f64();
        write!(f, "oldest {oldest:.1} s, waiting {waiting}, delayed {delayed}, in flight {in_flight}, dead letters {dead}")
    }
}

/// A client whose connections end when the other side has gone without a word. A time-out
/// alone does not make the manager connect again.
pub(crate) fn client(url: &str) -> RedisResult<redis::Client> {
    let mut info = url.into_connection_info()?;
    let probes = TcpKeepalive::new().with_time(2 * TIME_OUT).with_interval(TIME_OUT);
    let settings = info.tcp_settings().clone().set_keepalive(probes);
    #[cfg(target_os = "linux")] // elsewhere what was sent and not received is repeated for minutes
    let settings = settings.set_user_timeout(3 * TIME_OUT);
    info = info.set_tcp_settings(settings);
    redis::Client::open(info)
}

fn encode(job: &Job) -> RedisResult<String> {
    serde_json::to_string(job).map_err(|error| broken(&error))
}

fn taken(entry: &StreamId) -> RedisResult<Taken> {
    let text = match entry.map.get("job") {
        Some(Value::BulkString(text)) => text.as_slice(),
        _ => &[],
    };
    let job = serde_json::from_slice(text).map_err(|error| broken(&error))?;
    Ok(Taken { entry: entry.id.clone(), job })
}

fn broken(error: &serde_json::Error) -> redis::RedisError {
    (redis::ErrorKind::UnexpectedReturnType, "not a job of this fleet", error.to_string()).into()
}

fn ms(duration: Duration) -> usize {
    usize::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(usize::MAX)
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
