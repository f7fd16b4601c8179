//! The two other ways to pace the same workers, as they are usually written. Neither is
//! made worse than need be: both follow the vendor's announced rate and its Retry-After.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fleet::pace::{Pace, Turn, announced_rate};
use redis::Script;
use redis::aio::ConnectionManager;
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, sleep};

/// No limiter at all: call, and on a 429 sleep as long as it says and try again.
pub(crate) struct Retry;

impl Pace for Retry {
    async fn batch(&self, calls: usize) -> anyhow::Result<usize> {
        Ok(calls)
    }

    async fn turn(&self, deadline: Instant) -> anyhow::Result<Turn> {
        Ok(if Instant::now() < deadline { Turn::Now } else { Turn::Later(Duration::ZERO) })
    }

    async fn heard(&self, response: &Response) -> anyhow::Result<()> {
        sleep_as_told(response).await;
        Ok(())
    }
}

/// A token bucket as a script: level and time in a hash, refilled on each call. A worker
/// that gets no token tries again soon; one that gets a 429 sleeps, and the others do
/// not hear of it.
pub(crate) struct Lua {
    connection: ConnectionManager,
    script: Script,
    rate: Mutex<u32>,
    burst: u32,
}

/// Between two tries of a worker without a token, on average.
const TRY_AGAIN: Duration = Duration::from_millis(50);

impl Lua {
    pub(crate) async fn open(url: &str, rate: u32, burst: u32) -> anyhow::Result<Self> {
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        let script = Script::new(
            "local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
             local time = redis.call('TIME')
             local now = time[1] + time[2] / 1000000
             local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
             local tokens = tonumber(bucket[1]) or burst
             local at = tonumber(bucket[2]) or now
             tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
             local allowed = 0
             if tokens >= 1 then
               tokens = tokens - 1
               allowed = 1
             end
             redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', tostring(now))
             redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) * 2)
             return allowed",
        );
        Ok(Self { connection, script, rate: Mutex::new(rate), burst })
    }
}

impl Pace for Lua {
    /// The usual script gives one token at a time.
    async fn batch(&self, _: usize) -> anyhow::Result<usize> {
        Ok(0)
    }

    async fn turn(&self, deadline: Instant) -> anyhow::Result<Turn> {
        while Instant::now() < deadline {
            let rate = *self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            let mut call = self.script.key("limit:vendor");
            call.arg(rate).arg(self.burst);
            if call.invoke_async::<bool>(&mut self.connection.clone()).await? {
                return Ok(Turn::Now);
            }
            sleep(TRY_AGAIN.mul_f64(0.5 + fastrand::f64())).await;
        }
        Ok(Turn::Later(Duration::ZERO))
    }

    async fn heard(&self, response: &Response) -> anyhow::Result<()> {
        if let Some(rate) = announced_rate(response) {
            *self.rate.lock().unwrap_or_else(PoisonError::into_inner) = rate;
        }
        sleep_as_told(response).await;
        Ok(())
    }
}

/// What a worker does about a 429 where it is on its own.
async fn sleep_as_told(response: &Response) {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        sleep(Duration::from_secs(seconds.unwrap_or(1))).await;
    }
}
