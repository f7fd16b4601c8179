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
use redis::streams::{StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands as _, RedisResult, Script, Value};
use serde::{Deserialize, Serialize};

/// Failures of a job's own after which it is given up.
pub const MOST_FAILURES: u32 = 3;

/// After so long without a word from its worker a job is somebody else's.
pub const RECLAIM_AFTER: Duration = Duration::from_secs(20);

/// A Redis that takes longer is away. The job comes back, so patience costs little.
pub const TIME_OUT: Duration = Duration::from_secs(3);

const GROUP: &str = "workers";
const JOBS: &str = "{fleet}:jobs";
const DELAYED: &str = "{fleet}:delayed";
const DEAD: &str = "{fleet}:dead";
/// When each job that is not over was enqueued: what the oldest one's age is read from.
const OPEN: &str = "{fleet}:open";

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
}

impl Queue {
    /// The queue at a Redis, for a consumer of this name.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub async fn open(url: &str, consumer: &str) -> RedisResult<Self> {
        let client = redis::Client::open(url)?;
        let patient = ConnectionManagerConfig::new().set_response_timeout(None);
        let usual = ConnectionManagerConfig::new().set_response_timeout(Some(TIME_OUT));
        let queue = Self {
            connection: client.get_connection_manager_with_config(usual).await?,
            waiting: client.get_connection_manager_with_config(patient).await?,
            consumer: consumer.to_owned(),
        };
        let created: RedisResult<()> = queue.connection.clone().xgroup_create_mkstream(JOBS, GROUP, "0").await;
        match created {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error),
            _ => Ok(queue),
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
                pipe.xadd(JOBS, "*", &[("job", encode(job)?)]).ignore().zadd(OPEN, &job.id, now).ignore();
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
        self.promote().await?;
        let mut connection = self.connection.clone();
        let reclaim_ms = ms(RECLAIM_AFTER);
        let options = StreamAutoClaimOptions::default().count(most);
        let left: StreamAutoClaimReply =
            connection.xautoclaim_options(JOBS, GROUP, &self.consumer, reclaim_ms, "0", options).await?;
        if !left.claimed.is_empty() {
            return left.claimed.iter().map(taken).collect();
        }
        let options = StreamReadOptions::default().group(GROUP, &self.consumer).count(most).block(250);
        let read: Option<StreamReadReply> = self.waiting.clone().xread_options(&[JOBS], &[">"], &options).await?;
        read.iter().flat_map(|read| &read.keys).flat_map(|stream| &stream.ids).map(taken).collect()
    }

    /// The job is done.
    ///
    /// # Errors
    /// Where Redis fails; then it comes back.
    pub async fn done(&self, taken: &Taken) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        pipe.atomic().xack(JOBS, GROUP, &[&taken.entry]).ignore().xdel(JOBS, &[&taken.entry]).ignore();
        pipe.zrem(OPEN, &taken.job.id).ignore().query_async(&mut self.connection.clone()).await
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
        let mut call = script.key(JOBS);
        call.key(DELAYED).arg(GROUP).arg(&taken.entry).arg(ms(wait)).arg(encode(&taken.job)?);
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
        pipe.atomic().xadd(DEAD, "*", &[("job", encode(&job)?)]).ignore();
        pipe.xack(JOBS, GROUP, &[&taken.entry]).ignore().xdel(JOBS, &[&taken.entry]).ignore();
        pipe.zrem(OPEN, &job.id).ignore().query_async(&mut self.connection.clone()).await
    }

    /// Puts every job that was given up back into the queue, as a new one; says how many.
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
        let dead: redis::streams::StreamRangeReply = connection.xrange_all(DEAD).await?;
        let mut moved = 0;
        for taken in dead.ids.iter().map(taken) {
            let Taken { entry, job } = taken?;
            let job = Job { failures: 0, ..job };
            let mut call = script.key(JOBS);
            call.key(DEAD).key(OPEN).arg(entry).arg(encode(&job)?).arg(unix_ms()).arg(&job.id);
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
        pipe.atomic().zrange_withscores(OPEN, 0, 0).xlen(JOBS).zcard(DELAYED).xpending(JOBS, GROUP).xlen(DEAD);
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
        script.key(JOBS).key(DELAYED).invoke_async(&mut self.connection.clone()).await
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
