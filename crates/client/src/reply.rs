//! Replies as types. Whatever a later server appends to a reply is ignored.

use std::fmt;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

/// The answer to a [`Consume`](crate::Consume).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How many times it was granted: 0 or 1; of an [`up_to`](crate::Consume::up_to)
    /// request how many tokens are yours.
    pub allowed: u64,
    /// What a plain request could take now.
    pub remaining: u64,
    /// Granted: act after this. Denied: then the same request is granted if nobody
    /// else comes. `None`: never.
    pub wait: Option<Duration>,
    /// Until the bucket is full again.
    pub full: Duration,
    /// Why.
    pub status: Status,
    /// Who decided.
    pub origin: Origin,
}

impl Decision {
    /// Whether the tokens are yours, now or after [`Decision::wait`].
    pub const fn is_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// Whether Redis had no part in it: what the caller chose for a Redis that is
    /// away, or a limiter that lives in this process.
    pub const fn made_without_redis(&self) -> bool {
        self.origin.is_without_redis()
    }

    #[cfg(feature = "limiter")]
    pub(crate) const fn refusal(&self) -> crate::RateLimited {
        crate::RateLimited { retry_after: self.wait, status: self.status, origin: self.origin }
    }
}

/// The reason of a [`Decision`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The tokens are yours, now.
    Granted,
    /// The tokens are yours, after the wait.
    Reserved,
    /// More than the bucket can ever hold.
    Never,
    /// The vendor said 429, and its time is not over.
    Frozen,
    /// The vendor's own count does not cover it before its reset.
    Window,
    /// The tokens have not come in yet.
    Empty,
    /// This bucket of several has the tokens, but another has not, so none were taken.
    Ready,
    /// Redis is away and the caller chose to fail closed.
    Unavailable,
    /// A status of a later server.
    Other,
}

impl Status {
    fn from_wire(text: &[u8]) -> Self {
        match text {
            b"granted" => Self::Granted,
            b"reserved" => Self::Reserved,
            b"never" => Self::Never,
            b"frozen" => Self::Frozen,
            b"window" => Self::Window,
            b"empty" => Self::Empty,
            b"ready" => Self::Ready,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Granted => "granted",
            Self::Reserved => "reserved",
            Self::Never => "never",
            Self::Frozen => "frozen",
            Self::Window => "window",
            Self::Empty => "empty",
            Self::Ready => "ready",
            Self::Unavailable => "unavailable",
            Self::Other => "other",
        })
    }
}

/// Who made a [`Decision`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The bucket in Redis.
    Redis,
    /// A lease that took its tokens from the bucket in Redis before.
    Lease,
    /// A bucket in this process, or a penalty that Redis has not heard of yet.
    Local,
    /// Nobody: Redis is away, and the caller chose to go on.
    FailOpen,
    /// Nobody: Redis is away, and the caller chose to stop.
    FailClosed,
}

impl Origin {
    pub(crate) const fn is_without_redis(self) -> bool {
        matches!(self, Self::Local | Self::FailOpen | Self::FailClosed)
    }
}

/// The answer to a [`MultiConsume`](crate::MultiConsume).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointDecision {
    /// Of all buckets together: the least `remaining`, the longest `wait` and `full`, and
    /// the status of the bucket that decides.
    pub together: Decision,
    /// Of each bucket, in the order of the request. One that had its tokens while another
    /// had not is [`Status::Ready`].
    pub each: Vec<Decision>,
}

/// The answer to a [`Sync`](crate::Sync).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Whether it lowered anything.
    pub applied: bool,
    /// What a plain request could take now.
    pub remaining: u64,
}

/// The answer to a [`Penalise`](crate::Penalise): how long the bucket stays empty.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalised {
    /// Until it starts to fill again.
    pub empty: Duration,
}

/// The answer to a [`Peek`](crate::Peek): all that is known of a bucket.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The most it holds. This and the next three are unknown before the first
    /// request brought a limit.
    pub capacity: Option<f64>,
    /// Tokens added every `per` seconds.
    pub rate: Option<f64>,
    /// Seconds in which `rate` tokens are added.
    pub per: Option<f64>,
    /// The level, below 0 in debt.
    pub tokens: Option<f64>,
    /// Until one token can be had.
    pub wait: Option<Duration>,
    /// Until a penalty ends.
    pub frozen: Duration,
    /// Until it is full.
    pub full: Option<Duration>,
    /// The most the vendor says it holds.
    pub vendor_limit: Option<u64>,
    /// What is left of the vendor's window.
    pub vendor_remaining: Option<u64>,
    /// Until that window ends.
    pub vendor_reset: Option<Duration>,
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Some([allowed, remaining, wait, full, status]) = elements(&value) else {
            return Err(unexpected("TB.CONSUME", &value));
        };
        let Value::BulkString(status) = status else { return Err(unexpected("TB.CONSUME", &value)) };
        Ok(Self {
            allowed: count(allowed)?,
            remaining: count(remaining)?,
            wait: if matches!(wait, Value::Int(-1)) { None } else { Some(milliseconds(wait)?) },
            full: milliseconds(full)?,
            status: Status::from_wire(status),
            origin: Origin::Redis,
        })
    }
}

impl FromRedisValue for JointDecision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Some([.., Value::Array(each)]) = elements::<6>(&value) else { return Err(unexpected("TB.MCONSUME", &value)) };
        let each = each.iter().cloned().map(Decision::from_redis_value).collect::<Result<_, _>>()?;
        Ok(Self { each, together: Decision::from_redis_value(value)? })
    }
}

impl FromRedisValue for Synced {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Some([applied, remaining]) = elements(&value) else { return Err(unexpected("TB.SYNC", &value)) };
        Ok(Self { applied: count(applied)? != 0, remaining: count(remaining)? })
    }
}

impl FromRedisValue for Penalised {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        Ok(Self { empty: milliseconds(&value)? })
    }
}

impl FromRedisValue for Reading {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Some(fields) = value.as_map_iter() else { return Err(unexpected("TB.PEEK", &value)) };
        let mut reading = Self::default();
        for (name, value) in fields {
            let Value::BulkString(name) = name else { continue };
            if matches!(value, Value::Nil) {
                continue;
            }
            match name.as_slice() {
                b"capacity" => reading.capacity = Some(number(value)?),
                b"rate" => reading.rate = Some(number(value)?),
                b"per" => reading.per = Some(number(value)?),
                b"tokens" => reading.tokens = Some(number(value)?),
                b"wait-ms" => reading.wait = Some(milliseconds(value)?),
                b"frozen-ms" => reading.frozen = milliseconds(value)?,
                b"full-ms" => reading.full = Some(milliseconds(value)?),
                b"vendor-limit" => reading.vendor_limit = Some(count(value)?),
                b"vendor-remaining" => reading.vendor_remaining = Some(count(value)?),
                b"vendor-reset-ms" => reading.vendor_reset = Some(milliseconds(value)?),
                _ => {} // a later server knows more
            }
        }
        Ok(reading)
    }
}

/// The first `N` elements of an array that has at least as many.
fn elements<const N: usize>(value: &Value) -> Option<&[Value; N]> {
    match value {
        Value::Array(items) => items.first_chunk(),
        _ => None,
    }
}

/// A number from 0 on. (As a `u64` the library would take -1 for 2^64 - 1.)
fn count(value: &Value) -> Result<u64, ParsingError> {
    let number = i64::from_redis_value_ref(value)?;
    u64::try_from(number).map_err(|_| ParsingError::from(format!("not a count: {number}")))
}

fn milliseconds(value: &Value) -> Result<Duration, ParsingError> {
    count(value).map(Duration::from_millis)
}

fn number(value: &Value) -> Result<f64, ParsingError> {
    f64::from_redis_value_ref(value)
}

fn unexpected(command: &str, value: &Value) -> ParsingError {
    ParsingError::from(format!("not a reply of {command}: {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(items: &[i64], status: &str) -> Value {
        let items = items.iter().map(|number| Value::Int(*number));
        Value::Array(items.chain([Value::BulkString(status.as_bytes().to_vec())]).collect())
    }

    #[test]
    fn a_decision_is_read_field_by_field() {
        let decision = Decision::from_redis_value(array(&[0, 0, 1500, 2500], "empty")).unwrap();
        assert!(!decision.is_allowed() && !decision.made_without_redis());
        assert_eq!(decision.wait, Some(Duration::from_millis(1500)));
        assert_eq!(decision.full, Duration::from_millis(2500));
        assert_eq!(decision.status, Status::Empty);
        let never = Decision::from_redis_value(array(&[0, 3, -1, 0], "never")).unwrap();
        assert_eq!((never.wait, never.status, never.remaining), (None, Status::Never, 3));
    }

    #[test]
    fn what_a_later_server_appends_is_ignored() {
        let Value::Array(mut items) = array(&[1, 9, 0, 100], "granted") else { unreachable!() };
        items.push(Value::Int(7));
        assert!(Decision::from_redis_value(Value::Array(items)).unwrap().is_allowed());
        let odd = Decision::from_redis_value(array(&[0, 0, 1, 1], "paused")).unwrap();
        assert_eq!(odd.status, Status::Other);
        let synced = Value::Array(vec![Value::Int(1), Value::Int(5), Value::Nil]);
        assert_eq!(Synced::from_redis_value(synced).unwrap(), Synced { applied: true, remaining: 5 });
    }

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        for value in
            [Value::Nil, Value::Int(1), Value::Array(vec![]), array(&[1, 2, 3], "granted"), array(&[-1, 0, 0, 0], "empty")]
        {
            assert!(Decision::from_redis_value(value.clone()).is_err(), "{value:?}");
        }
        let numbers = Value::Array((0..5).map(Value::Int).collect());
        assert!(Decision::from_redis_value(numbers).is_err());
        assert!(Penalised::from_redis_value(Value::Int(-1)).is_err());
        assert!(Reading::from_redis_value(Value::Int(1)).is_err());
    }

    #[test]
    fn a_reading_comes_as_a_map_or_as_a_flat_array() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = vec![
            (text("capacity"), text("10")),
            (text("tokens"), text("-2.5")),
            (text("frozen-ms"), Value::Int(0)),
            (text("wait-ms"), Value::Nil),
            (text("vendor-reset-ms"), Value::Int(1500)),
            (text("of-tomorrow"), text("x")),
        ];
        let flat = Value::Array(fields.iter().cloned().flat_map(|(name, value)| [name, value]).collect());
        for value in [Value::Map(fields), flat] {
            let reading = Reading::from_redis_value(value).unwrap();
            assert_eq!((reading.capacity, reading.tokens, reading.wait), (Some(10.0), Some(-2.5), None));
            assert_eq!(reading.vendor_reset, Some(Duration::from_millis(1500)));
        }
    }
}
