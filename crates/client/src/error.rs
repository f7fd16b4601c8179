//! What can go wrong, told apart by what a caller does about it.

use std::fmt;
use std::time::Duration;

use redis::RedisError;

use crate::{Origin, Status};

/// Why there is no answer, or no call.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Error {
    /// There are no tokens: wait, then ask again.
    RateLimited(RateLimited),
    /// The server does not know the commands. An operator has to load the module.
    NotLoaded,
    /// The server or the connection failed; [`Error::is_redis_away`] tells how.
    Redis(RedisError),
}

/// A call that was not made because there were no tokens for it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimited {
    /// When the same call would be let through if nobody else came; `None`: never.
    pub retry_after: Option<Duration>,
    /// Why: [`Status::Empty`] is the fleet's own doing; see [`RateLimited::need_not_count`]
    /// for what is not.
    pub status: Status,
    /// Who refused it.
    pub origin: Origin,
}

impl RateLimited {
    /// Whether a queue need not count the attempt: the vendor stopped the fleet (its 429, or
    /// its own count), or Redis is away. Neither the job nor the fleet's own pace is why.
    pub const fn need_not_count(&self) -> bool {
        matches!(self.status, Status::Frozen | Status::Window | Status::Unavailable)
    }

    /// Whether the vendor said 429, and its time is not over.
    pub fn is_frozen(&self) -> bool {
        self.status == Status::Frozen
    }

    /// As [`Decision::made_without_redis`](crate::Decision::made_without_redis).
    pub const fn made_without_redis(&self) -> bool {
        self.origin.is_without_redis()
    }
}

impl Error {
    /// Whether Redis cannot answer for now, though nothing is wrong with the
    /// request: no connection, no answer in time, loading, busy, out of memory,
    /// read-only, failing over. What a [`RateLimiter`](crate::RateLimiter) was told
    /// to do then it does for exactly these.
    pub fn is_redis_away(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        let code = error.code().unwrap_or_default();
        let away =
            ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED"];
        error.is_io_error()
            || error.is_timeout()
            || away.contains(&code)
            || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
    }

    /// The refusal, where it is one.
    pub fn rate_limited(&self) -> Option<&RateLimited> {
        match self {
            Self::RateLimited(limited) => Some(limited),
            _ => None,
        }
    }

    pub(crate) fn invalid(what: &'static str) -> Self {
        Self::Redis(RedisError::from((redis::ErrorKind::Client, what)))
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        let unknown = |code: Option<&str>, text: Option<&str>| {
            let text = text.unwrap_or_default();
            code == Some("ERR") && text.starts_with("unknown command") && text.to_ascii_uppercase().contains("TB.")
        };
        let not_loaded = unknown(error.code(), error.detail())
            || error
                .clone()
                .into_server_errors()
                .is_some_and(|errors| errors.iter().any(|(_, error)| unknown(Some(error.code()), error.details())));
        if not_loaded { Self::NotLoaded } else { Self::Redis(error) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateLimited(limited) => limited.fmt(f),
            Self::NotLoaded => f.write_str("the server has not loaded redis-tokenbucket"),
            Self::Redis(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::RateLimited(limited) => Some(limited),
            Self::Redis(error) => Some(error),
            Self::NotLoaded => None,
        }
    }
}

impl From<RateLimited> for Error {
    fn from(limited: RateLimited) -> Self {
        Self::RateLimited(limited)
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after {
            Some(wait) => write!(f, "rate limited ({}), try again in {wait:?}", self.status),
            None => write!(f, "rate limited ({}), and waiting does not help", self.status),
        }
    }
}

impl std::error::Error for RateLimited {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_counts_where_the_fleet_or_the_job_is_why() {
        for (status, need_not) in [
            (Status::Frozen, true),
            (Status::Window, true),
            (Status::Unavailable, true),
            (Status::Empty, false),
            (Status::Never, false),
        ] {
            let limited = RateLimited { retry_after: None, status, origin: Origin::Redis };
            assert_eq!(limited.need_not_count(), need_not, "{status}");
        }
    }
}
