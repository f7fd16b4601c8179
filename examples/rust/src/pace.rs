//! When a worker may call: the part with the token bucket.
//!
//! [`Budget`] is what a fleet wants. The trait is there so that the demonstration can
//! put other ways of pacing under the same workers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use reqwest::Response;
use tokenbucket_client::{Consume, Limit, Peek, RateLimiter, Redis, Request as _, Status, WhenAway};
use tokio::time::{Instant, sleep};

use crate::queue::{TIME_OUT, client};

/// A slot is taken no later than so long after its moment.
const LATE: Duration = Duration::from_millis(50);

/// The answer to a worker that wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Call.
    Now,
    /// Put the job away for so long.
    Later(Duration),
}

/// How workers are paced.
pub trait Pace: Send + Sync + 'static {
    /// How many of so many calls may be made now, all at once.
    fn batch(&self, calls: usize) -> impl Future<Output = anyhow::Result<usize>> + Send;

    /// Waits for the turn of one call, but not beyond `deadline`.
    fn turn(&self, deadline: Instant) -> impl Future<Output = anyhow::Result<Turn>> + Send;

    /// Learns from the vendor's answer.
    fn heard(&self, response: &Response) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// One budget for all workers on all machines: a bucket in Redis.
pub struct Budget {
    key: String,
    connection: ConnectionManager,
    limiter: RateLimiter<Redis<ConnectionManager>>,
    burst: u32,
    /// The rate follows what the vendor announces. Each process learns it from the answers
    /// to its own calls; until then its calls carry, and set, the old one.
    limit: Mutex<Limit>,
}

impl Budget {
    /// The bucket `key`, which at first allows `rate` calls a second and `burst` at once.
    ///
    /// # Errors
    /// Where the limit is none or Redis cannot be reached.
    pub async fn open(url: &str, key: &str, rate: u32, burst: u32) -> anyhow::Result<Self> {
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(TIME_OUT));
        let connection = client(url)?.get_connection_manager_with_config(config).await?;
        let limiter = RateLimiter::new(Redis(connection.clone()), WhenAway::FailClosed, TIME_OUT);
        let limit = Mutex::new(Limit::per_second(rate)?.with_burst(burst)?);
        Ok(Self { key: key.to_owned(), connection, limiter, burst, limit })
    }

    fn limit(&self) -> Limit {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace for Budget {
    async fn batch(&self, calls: usize) -> anyhow::Result<usize> {
        let calls = u32::try_from(calls)?;
        let request = Consume::new(&*self.key, self.limit()).tokens(calls).up_to();
        Ok(usize::try_from(request.query_async(&mut self.connection.clone()).await?.allowed)?)
    }

    /// Asks once: the slot is reserved, so nobody polls. Only where a 429 has voided it
    /// meanwhile, whoever had that, is another one asked for.
    async fn turn(&self, deadline: Instant) -> anyhow::Result<Turn> {
        let mut connection = self.connection.clone();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let slot = Consume::new(&*self.key, self.limit()).max_wait(left).query_async(&mut connection).await?;
            let wait = match (slot.is_allowed(), slot.wait) {
                (true, Some(wait)) => wait,
                (false, Some(wait)) => return Ok(Turn::Later(wait)),
                _ if slot.status == Status::Never => bail!("{}: a call takes more than the bucket holds", self.key),
                _ => bail!("{}: {}, and no wait", self.key, slot.status),
            };
            if wait.is_zero() {
                return Ok(Turn::Now);
            }
            let moment = Instant::now() + wait;
            sleep(wait).await;
            // All that a machine lets wake up late would call at once: those ask again.
            if moment.elapsed() > LATE {
                continue;
            }
            // Reading is enough, and costs the server nothing.
            let reading = Peek::new(&*self.key).query_async(&mut connection).await?;
            if reading.is_none_or(|reading| reading.frozen.is_zero()) {
                return Ok(Turn::Now);
            }
        }
    }

    /// A 429 freezes the bucket for everybody; other answers lower it where the vendor
    /// has less left than we think.
    async fn heard(&self, response: &Response) -> anyhow::Result<()> {
        let headers = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        self.limiter.observe(&self.key, response.status().as_u16(), headers).await;
        if let Some(rate) = announced_rate(response) {
            let limit = Limit::per_second(rate)?.with_burst(self.burst)?;
            *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
        }
        Ok(())
    }
}

/// What this vendor's documentation says of the field: calls a second, unless the reset
/// is a Unix time. Then it is the calls of a window, which `observe` deals with.
pub fn announced_rate(response: &Response) -> Option<u32> {
    let number = |name| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    if number("x-ratelimit-reset").is_some_and(|reset| reset > 1_000_000_000) {
        return None;
    }
    let rate = number("x-ratelimit-limit")?.try_into().ok()?;
    (rate > 0).then_some(rate)
}
