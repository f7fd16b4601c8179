//! What tests of a limiter limit, and one that is never without its server.

use std::time::Duration;

use tokenbucket_client::{Buckets, Limit, RateLimiter, Redis, WhenAway};

use crate::server::Server;

/// Within a test nothing refills.
pub(crate) fn slow(burst: u32) -> Limit {
    Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(burst).unwrap()
}

pub(crate) fn fast() -> Limit {
    Limit::per(1, Duration::from_millis(500)).unwrap()
}

pub(crate) async fn in_redis(server: &Server) -> RateLimiter<impl Buckets> {
    RateLimiter::new(Redis(server.multiplexed().await), WhenAway::FailClosed, Duration::from_secs(5))
}
