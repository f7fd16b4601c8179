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

/// The usual token bucket as a script, which the benchmarks have as well. A worker that
/// gets no token sleeps as long as the script says and asks again; one that gets a 429
/// sleeps, and the others do not hear of it.
pub(crate) struct Lua {
    connection: ConnectionManager,
    script: Script,
    rate: Mutex<u32>,
    burst: u32,
}

impl Lua {
    pub(crate) async fn open(url: &str, rate: u32, burst: u32) -> anyhow::Result<Self> {
        let connection = redis::Client::open(url)?.get_connection_manager().await?;
        let script = Script::new(include_str!("../../../benches/token_bucket.lua"));
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
            call.arg(self.burst).arg(rate).arg(1);
            let (allowed, _, wait_ms, _): (bool, u64, u64, u64) = call.invoke_async(&mut self.connection.clone()).await?;
            if allowed {
                return Ok(Turn::Now);
            }
            sleep(Duration::from_millis(wait_ms)).await;
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
