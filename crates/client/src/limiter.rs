//! Waiting, calling and learning from the response, and what happens when Redis is
//! away.
//!
//! What to know before changing it: [`Inner::ask`] is the only place that decides
//! whether Redis is away, and a decision made without it always says so.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::headers::{Action, Preset, Reader, policy_key};
use crate::lease::Held;
use crate::local::{ASK_AGAIN, OfOne as _};
use crate::request::{Mode, When};
use crate::taken::{Taken, ToTheEnd};
use crate::thaws::Thaws;
use crate::{
    Consume, Decision, Error, JointDecision, Lease, Limit, Local, MultiConsume, Origin, Peek, Penalise, RateLimited, Reading,
    Refund, Request, Status, Sync, Tokens,
};

/// Where buckets are: in Redis or in this process. Implement it for a pool whose
/// connections are taken one by one.
///
/// ```
/// use tokenbucket_client::{Buckets, Error, Request, redis};
///
/// struct Pool(bb8::Pool<redis::Client>);
///
/// impl Buckets for Pool {
///     async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
///         let mut connection = self.0.get().await.map_err(|error| match error {
///             // What Redis said stays what it is: a wrong password does not mean that it is away.
///             bb8::RunError::User(error) => error,
///             bb8::RunError::TimedOut => (redis::ErrorKind::Io, "no connection in the pool").into(),
///         })?;
///         request.query_async(&mut *connection).await
///     }
/// }
/// ```
pub trait Buckets: Send + std::marker::Sync + 'static {
    /// Sends a request and gives back the typed reply, or the error that Redis or the
    /// connection gave: [`Error::is_redis_away`] is decided by that.
    fn ask<R: Request>(&self, request: &R) -> impl Future<Output = Result<R::Reply, Error>> + Send;
}

impl Buckets for Local {
    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.answer(request)
    }
}

/// Buckets behind a connection that can be cloned: multiplexed, managed or of a
/// cluster (with the feature `cluster`).
#[derive(Clone, Debug)]
pub struct Redis<C>(pub C);

impl<C: ConnectionLike + Clone + Send + std::marker::Sync + 'static> Buckets for Redis<C> {
    fn ask<R: Request>(&self, request: &R) -> impl Future<Output = Result<R::Reply, Error>> + Send {
        let (mut connection, request) = (self.0.clone(), request.clone());
        async move { request.query_async(&mut connection).await }
    }
}

/// What to do while Redis is away. There is no default: each of them is wrong for
/// somebody.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WhenAway {
    /// Make every call: the vendor's own 429 is the lesser evil.
    FailOpen,
    /// Make no call: a vendor that bans who goes over.
    FailClosed,
    /// Keep to a share of the limit in this process, one over the number of
    /// processes.
    ///
    /// The buckets of the fallback are full at the moment at which Redis goes away,
    /// whatever was spent before: the vendor may then see up to share x burst x processes
    /// calls at once, which is one more burst in all.
    Local {
        /// From 0.001 to 1; what is outside is cut to that.
        share: f64,
    },
}

/// A limiter for outbound calls. Cheap to clone; all clones are one.
///
/// A future of its own that is dropped before its call is made, say by a time-out around
/// it, gives its tokens back in the background, in a tokio runtime.
///
/// # Panics
/// A time-out and a sleep need tokio's timer (`enable_time`, `enable_all`). Outside of a
/// runtime, or in one without timers, every method that asks panics where buckets may be
/// away ([`RateLimiter::new`]), and [`RateLimiter::acquire`] panics always. With
/// [`RateLimiter::in_process`] the others need no timer and no runtime.
///
/// ```no_run
/// use std::time::Duration;
/// use tokenbucket_client::{RateLimiter, Redis, WhenAway};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let connection = redis::Client::open("redis://127.0.0.1")?.get_connection_manager().await?;
/// let limiter = RateLimiter::new(Redis(connection), WhenAway::Local { share: 0.25 }, Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
///
/// From there on it is the same with buckets in Redis and in this process:
///
/// ```
/// use tokenbucket_client::{Limit, RateLimiter};
///
/// # async fn call_vendor() -> (u16, Vec<(&'static str, &'static [u8])>) { (429, vec![("retry-after", b"30")]) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_process();
/// let limit = Limit::per_second(10)?;
///
/// // There is a token, so the vendor is called; it says 429.
/// let (status, headers) = limiter.execute("vendor", &limit, call_vendor).await?;
/// limiter.observe("vendor", status, headers).await; // or do not await it
///
/// // So nobody calls it for the time being.
/// let error = limiter.execute("vendor", &limit, call_vendor).await.unwrap_err();
/// let limited = error.rate_limited().expect("no tokens, and nothing worse");
/// assert!(limited.need_not_count(), "not this job's fault: a queue need not count the attempt");
/// assert_eq!(limited.retry_after.map(|wait| wait.as_secs()), Some(30));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RateLimiter<B> {
    inner: Arc<Inner<B>>,
    reader: Reader,
    jitter: Jitter,
}

impl<B> Clone for RateLimiter<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), reader: self.reader.clone(), jitter: self.jitter }
    }
}

#[derive(Debug)]
pub(crate) struct Inner<B> {
    pub(crate) buckets: B,
    away: Option<Away>,
    known: Known,
    pub(crate) thaws: Thaws,
    leases: Mutex<Vec<Weak<Held>>>,
}

/// What the caller chose for when Redis is away.
#[derive(Debug)]
struct Away {
    mode: WhenAway,
    time_out: Duration,
    /// Where it is wanted.
    fallback: Option<Local>,
}

/// A slot that is at most this far away, jitter and all, is not asked for again.
const NEAR: Duration = Duration::from_millis(100);

/// The penalty for a 429 with nothing in it where nobody says more.
const DEFAULT_PENALTY: Duration = Duration::from_secs(1);

impl RateLimiter<Local> {
    /// With buckets in this process: for a program that runs alone, and for tests.
    pub fn in_process() -> Self {
        Self::over(Local::new(), None)
    }
}

impl<B: Buckets> RateLimiter<B> {
    /// With `buckets` that may be away; one that does not answer within `time_out` is.
    ///
    /// An answer that comes too late may have taken its token all the same: while a
    /// server is slow, calls are lost, never won.
    pub fn new(buckets: B, when_away: WhenAway, time_out: Duration) -> Self {
        let fallback = matches!(when_away, WhenAway::Local { .. }).then(Local::new);
        Self::over(buckets, Some(Away { mode: when_away, time_out, fallback }))
    }

    fn over(buckets: B, away: Option<Away>) -> Self {
        let inner = Inner { buckets, away, known: Known::default(), thaws: Thaws::default(), leases: Mutex::default() };
        // Without a default of its own: what the vendor's documentation asks for comes before ours.
        Self { inner: Arc::new(inner), reader: Reader::new(), jitter: Jitter::default() }
    }

    /// Reads responses as this vendor's documentation has it.
    #[must_use]
    pub fn with_preset(mut self, preset: Preset) -> Self {
        self.reader = self.reader.preset(preset);
        self
    }

    /// For how long a 429 with nothing in it penalises. If not set: what the documentation
    /// of the preset's vendor asks for, else a second.
    #[must_use]
    pub fn with_default_penalty(mut self, penalty: Duration) -> Self {
        self.reader = self.reader.default_penalty(penalty);
        self
    }

    /// The longest penalty, whatever the vendor says; a week if not set.
    #[must_use]
    pub fn with_penalty_cap(mut self, cap: Duration) -> Self {
        self.reader = self.reader.cap(cap);
        self
    }

    /// Makes every wait longer by up to so much, so that a fleet that was told the same
    /// moment does not come at the same moment: of a decision, of a refusal, of a lease made
    /// from now on, and the sleep of [`RateLimiter::acquire`]. Never shorter: that would be
    /// too early. What is granted now, or never, is told as it is.
    #[must_use]
    pub const fn with_jitter(mut self, most: Duration) -> Self {
        self.jitter = Jitter(most);
        self
    }

    /// Takes tokens if they are there now; 0 of them asks without taking.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`] for what waiting does not mend. A
    /// denial is a [`Decision`], and so is what was chosen for a Redis that is away.
    pub async fn check(&self, key: impl AsRef<[u8]>, limit: &Limit, tokens: impl Into<Tokens>) -> Result<Decision, Error> {
        let mut decision = self.inner.take(&Consume::new(key.as_ref(), *limit).tokens(tokens)).await?.keep();
        decision.wait = self.jitter.added_to(decision.wait);
        Ok(decision)
    }

    /// Takes tokens of several buckets, of all or of none: a vendor's limit per second and
    /// the one per day.
    ///
    /// # Errors
    /// As [`RateLimiter::check`].
    pub async fn check_all(&self, request: &MultiConsume) -> Result<JointDecision, Error> {
        let (mut decision, taken) = self.inner.take_all(request).await?;
        for taken in taken {
            taken.keep();
        }
        decision.together.wait = self.jitter.added_to(decision.together.wait);
        Ok(decision)
    }

    /// Takes tokens now for a moment within `max_wait`, and sleeps until then, and the
    /// jitter. The [`Decision::wait`] it gives back is 0: it has been slept.
    ///
    /// Where that is more than 100 ms in all, it asks again when the slot has come: a
    /// penalty meanwhile has voided it, and a new one is reserved. Where the jitter alone is
    /// more than 100 ms, it asks once more after that. A slot whose caller goes away before
    /// it has come is given back, unless a penalty has voided it; in the jitter after it it
    /// is lost. Slots behind it keep their moments, so at one of those as much more may be
    /// called as was given back.
    ///
    /// # Errors
    /// [`Error::RateLimited`] where no slot lies within `max_wait`, and where nobody could be
    /// asked whether it is good and [`WhenAway::FailClosed`] was chosen; else as
    /// [`RateLimiter::check`].
    ///
    /// # Panics
    /// Without tokio's timer.
    pub async fn acquire(
        &self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        tokens: impl Into<Tokens>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let (key, tokens) = (key.as_ref(), tokens.into());
        let deadline = tokio::time::Instant::now().checked_add(max_wait);
        loop {
            // The first time it is as long as it was asked to be, however long asking takes.
            let left = deadline.map_or(max_wait, |deadline| deadline.saturating_duration_since(tokio::time::Instant::now()));
            // Redis would give a slot that lies within a penalty that it has not heard of.
            if let Some(frozen) = self.inner.thaws.untold(key) {
                if frozen > left {
                    return Err(self.refusal(&still_frozen(frozen)));
                }
                tokio::time::sleep(frozen).await;
                continue;
            }
            let slot = self.inner.take(&Consume::new(key, *limit).tokens(tokens).max_wait(left)).await?;
            let decision = slot.decision();
            let Some(wait) = decision.wait.filter(|_| decision.is_allowed()) else { return Err(self.refusal(decision)) };
            if wait.is_zero() {
                return Ok(slot.keep());
            }
            let jitter = self.jitter.draw();
            tokio::time::sleep(wait).await;
            // When the slot has come, not after the jitter: the penalty may be over by then.
            let mut origin = decision.origin;
            if wait.saturating_add(jitter) > NEAR && !self.is_good(&slot, key, limit, &mut origin).await? {
                slot.keep(); // void, so there is nothing to give back
                continue;
            }
            let decision = Decision { wait: Some(Duration::ZERO), origin, ..slot.keep() };
            tokio::time::sleep(jitter).await;
            if jitter > NEAR {
                let now = self.inner.decide(&Consume::new(key, *limit).tokens(Tokens::ZERO)).await?;
                match now.reply.status {
                    Status::Frozen => continue,
                    Status::Unavailable => return Err(self.refusal(&now.reply)),
                    _ => return Ok(Decision { origin: now.instead.unwrap_or(decision.origin), ..decision }),
                }
            }
            return Ok(decision);
        }
    }

    /// Whether a slot that has come is still its holder's. Where nobody knows and nothing is
    /// to be called then, that is an error, and the slot goes back.
    async fn is_good(&self, slot: &Taken<B>, key: &[u8], limit: &Limit, origin: &mut Origin) -> Result<bool, Error> {
        let Answered { reply: now, instead } = self.inner.decide(&Consume::new(key, *limit).tokens(Tokens::ZERO)).await?;
        *origin = instead.unwrap_or(*origin);
        if now.status == Status::Unavailable {
            return Err(self.refusal(&now));
        }
        Ok(now.status != Status::Frozen && !self.inner.thaws.voids(key, slot.moment()))
    }

    /// Calls if there is a token for it, and gives back what the call gave. The call is
    /// not made without a token.
    ///
    /// Who let it through is not told, since the value is the call's own: where that matters
    /// (a call that was made without Redis), [`RateLimiter::check`] or
    /// [`RateLimiter::acquire`] and then call. A refusal tells it, by [`RateLimited::origin`].
    ///
    /// # Errors
    /// [`Error::RateLimited`] where there is no token; else as [`RateLimiter::check`].
    pub async fn execute<F, T>(&self, key: impl AsRef<[u8]>, limit: &Limit, call: impl FnOnce() -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        self.check_or_refuse(key, limit).await?;
        Ok(call().await)
    }

    /// One token, or the refusal.
    pub(crate) async fn check_or_refuse(&self, key: impl AsRef<[u8]>, limit: &Limit) -> Result<Decision, Error> {
        let decision = self.inner.take(&Consume::new(key.as_ref(), *limit)).await?.keep();
        if decision.is_allowed() { Ok(decision) } else { Err(self.refusal(&decision)) }
    }

    /// Gives back tokens of a call that was not made, or the unused part of an estimate.
    /// The reply is that of [`Refund`].
    ///
    /// # Errors
    /// As [`RateLimiter::check`], and [`Error::Redis`] where Redis is away: then they are
    /// lost. What did not come from Redis must not go to it: see [`Decision::origin`].
    pub async fn refund(&self, key: impl AsRef<[u8]>, tokens: impl Into<Tokens>) -> Result<Option<u64>, Error> {
        self.inner.refund(&Refund::new(key.as_ref(), tokens)).await
    }

    /// How long until one token can be had, without taking it, under the limit that the
    /// bucket remembers; `None`: never. A bucket that nobody has used is full.
    ///
    /// Where Redis is away this is what was chosen for that, and is not marked:
    /// [`RateLimiter::check`] of 0 tokens asks the same and says who answered.
    ///
    /// # Errors
    /// As [`RateLimiter::check`].
    pub async fn wait_for_one(&self, key: impl AsRef<[u8]>) -> Result<Option<Duration>, Error> {
        let key = key.as_ref();
        if let Some(frozen) = self.inner.thaws.untold(key) {
            return Ok(self.jitter.added_to(Some(frozen)));
        }
        let answer = self.inner.ask(&Peek::new(key)).await?;
        let wait = match (answer.instead, answer.reply) {
            (Some(Origin::FailClosed), _) => Some(ASK_AGAIN),
            (Some(Origin::FailOpen), _) | (_, None) => Some(Duration::ZERO),
            (_, Some(reading)) if reading.capacity.is_some() => reading.wait,
            // No limit yet: what the vendor said is all there is.
            (_, Some(reading)) => {
                let window = reading.vendor_reset.filter(|_| reading.vendor_remaining == Some(0)).unwrap_or_default();
                Some(reading.frozen.max(window))
            }
        };
        Ok(self.jitter.added_to(wait))
    }

    /// Learns from a response: penalises or syncs the bucket as it says.
    ///
    /// It is sent in the background: the result need not be awaited, and there is no
    /// error that could reach the caller. A SYNC is sent only where the response has
    /// less left than this process last heard of the bucket; one with a reset where it has
    /// less left than is known of the vendor's window, or no window is known. Of several
    /// policies each goes to its own bucket ([`policy_key`]), as does one that the preset
    /// names, and the tightest to `key` as well.
    ///
    /// A penalty stops `key` and the bucket of each policy that the response or the preset
    /// names. This process obeys it at once; where Redis cannot be told it goes on to obey it
    /// and to tell it, until the penalty is over.
    ///
    /// Outside of a tokio runtime nothing is sent before the result is awaited, and nothing is
    /// tried twice.
    pub fn observe<'h>(
        &self,
        key: impl AsRef<[u8]>,
        status: u16,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) -> Observed {
        let key = key.as_ref();
        let advice = self.reader.read(status, headers, SystemTime::now());
        let mut syncs = Vec::new();
        let mut penalised = Vec::new();
        match advice.action {
            Action::Penalise(duration) => {
                let duration = duration.unwrap_or(DEFAULT_PENALTY.min(self.reader.cap));
                penalised.push(key.to_vec());
                penalised.extend(self.reader.policies(&advice).into_iter().map(|policy| policy_key(key, policy)));
                for key in &penalised {
                    self.inner.thaws.add(key, duration);
                    self.inner.void_leases(key);
                }
            }
            Action::Sync => syncs.extend(advice.sync(key).zip(advice.quota.as_ref())),
            Action::None => {}
        }
        for quota in &advice.policies {
            let key = quota.policy.as_ref().map(|policy| policy_key(key, policy));
            syncs.extend(key.and_then(|key| Some((quota.sync(key)?, quota))));
        }
        let syncs = syncs.into_iter().filter(|(sync, _)| self.inner.known.is_news(sync));
        let syncs: Vec<_> = syncs.map(|(sync, quota)| (sync, quota.reset.unwrap_or(KNOWN_FOR))).collect();
        if penalised.is_empty() && syncs.is_empty() {
            return Observed(Work::Done);
        }
        let inner = Arc::clone(&self.inner);
        let work = async move {
            for key in penalised {
                Arc::clone(&inner).tell_thaw(key).await;
            }
            for (sync, holds) in syncs {
                // What fails is lost: the next response says the same again.
                if let Ok(Answered { reply, instead: None }) = inner.tell(&sync).await {
                    inner.known.told(&sync, reply.remaining, holds);
                }
            }
        };
        match Handle::try_current() {
            Ok(runtime) => Observed(Work::Spawned(runtime.spawn(work))),
            Err(_) => Observed(Work::Waiting(Box::pin(work))),
        }
    }

    /// Tokens of a bucket to be spent in this process, `batch` at a time (at least 1): see
    /// [`Lease`].
    pub fn lease(&self, key: impl AsRef<[u8]>, limit: &Limit, batch: u32) -> Lease<B> {
        let held = Arc::new(Held::new(key.as_ref()));
        let mut leases = self.inner.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|lease| lease.strong_count() > 0);
        leases.push(Arc::downgrade(&held));
        Lease::new(Arc::clone(&self.inner), held, *limit, batch, self.jitter)
    }

    fn refusal(&self, decision: &Decision) -> Error {
        let refusal = decision.refusal();
        Error::RateLimited(RateLimited { retry_after: self.jitter.added_to(refusal.retry_after), ..refusal })
    }
}

/// The most by which a wait is made longer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jitter(Duration);

impl Jitter {
    /// How much it is this time.
    fn draw(self) -> Duration {
        if self.0.is_zero() {
            return Duration::ZERO;
        }
        // Random enough to spread a fleet, and no dependency.
        let random = RandomState::new().build_hasher().finish();
        let nanos = self.0.as_nanos().saturating_mul(u128::from(random)) >> 64; // below the most
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A wait, if it is one, and some jitter.
    pub(crate) fn added_to(self, wait: Option<Duration>) -> Option<Duration> {
        wait.map(|wait| if wait.is_zero() { wait } else { wait.saturating_add(self.draw()) })
    }
}

/// What is told while a penalty holds that Redis has not heard of.
fn still_frozen(frozen: Duration) -> Decision {
    Decision { allowed: 0, remaining: 0, wait: Some(frozen), full: frozen, status: Status::Frozen, origin: Origin::Local }
}

/// A reply and who gave it.
pub(crate) struct Answered<T> {
    pub(crate) reply: T,
    /// Who decided in place of the buckets, which are away.
    pub(crate) instead: Option<Origin>,
}

impl<B: Buckets> Inner<B> {
    /// Takes tokens for a call; they go back where it is not made.
    pub(crate) async fn take(self: &Arc<Self>, request: &Consume) -> Result<Taken<B>, Error> {
        let (inner, request, asked) = (Arc::clone(self), request.clone(), Instant::now());
        ToTheEnd::new(async move {
            let Answered { reply, instead } = inner.decide(&request).await?;
            Ok(Taken::new(inner, request, reply, instead, asked))
        })
        .await
    }

    /// The same of several buckets.
    async fn take_all(self: &Arc<Self>, request: &MultiConsume) -> Result<(JointDecision, Vec<Taken<B>>), Error> {
        let (inner, request, asked) = (Arc::clone(self), request.clone(), Instant::now());
        ToTheEnd::new(async move {
            if let Some(frozen) = request.each().filter_map(|request| inner.thaws.untold(request.key())).max() {
                let together = still_frozen(frozen);
                let each = request.each().map(|request| inner.thaws.untold(request.key()));
                let each = each.map(|frozen| frozen.map_or(Decision { status: Status::Ready, ..together }, still_frozen));
                return Ok((JointDecision { together, each: each.collect() }, Vec::new()));
            }
            let Answered { reply, instead } = inner.ask(&request).await?;
            let each = request.each().zip(&reply.each);
            let taken = each.map(|(request, decision)| {
                if instead.is_none() {
                    inner.heard(&request, decision);
                }
                Taken::new(Arc::clone(&inner), request, *decision, instead, asked)
            });
            let taken = taken.collect();
            Ok((reply, taken))
        })
        .await
    }

    pub(crate) async fn decide(&self, request: &Consume) -> Result<Answered<Decision>, Error> {
        if let Some(frozen) = self.thaws.untold(request.key()) {
            return Ok(Answered { reply: still_frozen(frozen), instead: Some(Origin::Local) });
        }
        let answered = self.ask(request).await?;
        if answered.instead.is_none() {
            self.heard(request, &answered.reply);
        }
        Ok(answered)
    }

    /// What the buckets decided on a request.
    pub(crate) fn heard(&self, request: &Consume, decision: &Decision) {
        let taken = match request.mode {
            Mode::UpTo => Tokens::try_from(decision.allowed).unwrap_or(Tokens::MAX),
            _ if decision.is_allowed() => request.tokens,
            _ => Tokens::ZERO,
        };
        self.known.heard(request.key(), decision.remaining, taken);
    }

    async fn refund(&self, request: &Refund) -> Result<Option<u64>, Error> {
        let remaining = self.ask_buckets(request).await?;
        // Of a bucket that is full, and so is none, any figure is lower.
        self.known.refunded(request.key(), remaining.unwrap_or(u64::MAX));
        Ok(remaining)
    }

    /// Asks the buckets alone, with no say of what was chosen for when they are away.
    pub(crate) async fn ask_buckets<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.in_time(self.buckets.ask(request)).await
    }

    /// A late answer is none, though it may have taken its tokens.
    pub(crate) async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Some(away) = &self.away else { return answer.await };
        match tokio::time::timeout(away.time_out, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)).into()),
        }
    }

    /// Asks, and does what was chosen where there is no answer.
    async fn ask<R: Request>(&self, request: &R) -> Result<Answered<R::Reply>, Error> {
        match self.ask_buckets(request).await {
            Ok(reply) => Ok(Answered { reply, instead: None }),
            Err(error) => self.instead(request, error),
        }
    }

    /// What was chosen for an `error` that says that the buckets are away.
    pub(crate) fn instead<R: Request>(&self, request: &R, error: Error) -> Result<Answered<R::Reply>, Error> {
        let Some(away) = self.away.as_ref().filter(|_| error.is_redis_away()) else { return Err(error) };
        let (reply, instead) = match (away.mode, &away.fallback) {
            (WhenAway::FailOpen, _) => (request.without_redis(true), Origin::FailOpen),
            (WhenAway::Local { share }, Some(fallback)) => (fallback.answer(&request.share(share))?, Origin::Local),
            _ => (request.without_redis(false), Origin::FailClosed),
        };
        Ok(Answered { reply, instead: Some(instead) })
    }

    /// Gives back tokens that were taken for a moment and not used. What fails is lost.
    pub(crate) async fn give_back(&self, key: &[u8], tokens: Tokens, slot: Instant) {
        let Ok(reading) = self.ask_buckets(&Peek::new(key)).await else { return };
        if !is_void(slot, reading.as_ref()) && !self.thaws.voids(key, slot) {
            let _ = self.refund(&Refund::new(key, tokens)).await;
        }
    }

    /// The same for what the fallback gave.
    pub(crate) fn give_back_instead(&self, key: &[u8], tokens: Tokens, slot: Instant) {
        let Some(fallback) = self.away.as_ref().and_then(|away| away.fallback.as_ref()) else { return };
        if let Ok(reading) = fallback.answer(&Peek::new(key))
            && !is_void(slot, reading.as_ref())
            && !self.thaws.voids(key, slot)
        {
            let _ = fallback.answer(&Refund::new(key, tokens));
        }
    }

    /// Passes on what the vendor said; the fallback is to know it before Redis is away.
    async fn tell<R: Request>(&self, request: &R) -> Result<Answered<R::Reply>, Error> {
        if let Some(Away { mode: WhenAway::Local { share }, fallback: Some(fallback), .. }) = &self.away {
            let _ = fallback.answer(&request.share(*share)); // asked again where Redis is away: it changes nothing
        }
        self.ask(request).await
    }

    /// Tells the buckets of a penalty; where they are away, again and again in the background
    /// until it is over.
    async fn tell_thaw(self: Arc<Self>, key: Vec<u8>) {
        if self.try_thaw(&key).await {
            return;
        }
        // One who tries is enough, however many responses say the same.
        if let Ok(runtime) = Handle::try_current()
            && self.thaws.begin_trying(&key)
        {
            runtime.spawn(async move {
                let mut pause = FIRST_PAUSE;
                loop {
                    tokio::time::sleep(pause).await;
                    if self.try_thaw(&key).await {
                        break;
                    }
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                self.thaws.end_trying(&key);
            });
        }
    }

    /// Whether there is nothing more to tell.
    async fn try_thaw(&self, key: &[u8]) -> bool {
        let Some((thaw, left)) = self.thaws.to_tell(key) else { return true };
        match self.tell(&Penalise::new(key, left)).await {
            Ok(Answered { reply, instead: None }) => {
                self.thaws.told(key, thaw, reply.empty);
                true
            }
            Ok(_) => false,
            Err(error) => !error.is_redis_away(), // the same would be said again
        }
    }

    /// What leases hold of a bucket that the vendor has stopped is not to be spent.
    fn void_leases(&self, key: &[u8]) {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        for held in leases.iter().filter_map(Weak::upgrade).filter(|held| held.key() == key) {
            held.void();
        }
    }
}

/// The pauses between attempts to tell of a penalty.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// Whether a penalty that ends after the slot has voided it. What its tokens were worth is
/// gone then, and a refund would pay for what others have reserved behind the penalty.
fn is_void(slot: Instant, reading: Option<&Reading>) -> bool {
    let frozen = reading.map(|reading| reading.frozen).filter(|frozen| !frozen.is_zero());
    frozen.is_some_and(|frozen| Instant::now().checked_add(frozen).is_none_or(|thaw| slot <= thaw))
}

/// What this process heard last of each bucket.
#[derive(Debug, Default)]
struct Known(Mutex<HashMap<Vec<u8>, Heard>>);

#[derive(Debug)]
struct Heard {
    /// The last `remaining`, and until when that is worth anything.
    remaining: u64,
    until: Instant,
    window: Option<Window>,
}

/// The vendor's window as the server was told of it. A bucket's level does not say what is
/// left of that: it refills.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// What was left, less what this process has taken since.
    left: Tokens,
    ends: Instant,
    until: Instant,
}

/// More keys than this are forgotten all at once: then a SYNC or two too many is sent.
const MOST_KNOWN: usize = 100_000;

/// What was heard is forgotten after so long, or at the reset it came with: a bucket
/// that others use, or that jumped back, has another level by then.
const KNOWN_FOR: Duration = Duration::from_secs(60);

impl Known {
    fn heard(&self, key: &[u8], remaining: u64, taken: Tokens) {
        self.note(key, remaining, KNOWN_FOR, |window| {
            let left = |window: Window| window.left.millionths().saturating_sub(taken.millionths());
            window.and_then(|window| Some(Window { left: Tokens::from_millionths(left(window)).ok()?, ..window }))
        });
    }

    /// What is given back counts back into the window.
    fn refunded(&self, key: &[u8], remaining: u64) {
        self.note(key, remaining, KNOWN_FOR, |_| None);
    }

    /// The server was told, and knows more than a level.
    fn told(&self, sync: &Sync, remaining: u64, holds: Duration) {
        let now = Instant::now();
        let told = end(sync).map(|ends| Window { left: sync.remaining, ends, until: now + holds.min(KNOWN_FOR) });
        self.note(sync.key(), remaining, holds, |window| told.or(window));
    }

    fn note(&self, key: &[u8], remaining: u64, holds: Duration, window: impl FnOnce(Option<Window>) -> Option<Window>) {
        let until = Instant::now() + holds.min(KNOWN_FOR);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heard) = known.get_mut(key) {
            *heard = Heard { remaining, until, window: window(heard.window) };
            return;
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key.to_vec(), Heard { remaining, until, window: window(None) });
    }

    fn is_news(&self, sync: &Sync) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(heard), now) = (known.get(sync.key()), Instant::now()) else { return true };
        let Some(ends) = end(sync) else {
            // A part of a token is not in `remaining`: 4.5 is not less than 4.
            return heard.until <= now || sync.remaining.whole() < heard.remaining;
        };
        let Some(window) = heard.window.filter(|window| window.until > now) else { return true };
        // A window that is used up holds until its end, which many tell in whole seconds.
        let lasts = sync.remaining == Tokens::ZERO && ends > window.ends + Duration::from_secs(2);
        sync.remaining < window.left || lasts
    }
}

/// The end of the window that it tells of.
fn end(sync: &Sync) -> Option<Instant> {
    match sync.reset {
        Some(When::In(reset)) => Instant::now().checked_add(reset),
        _ => None,
    }
}

/// What [`RateLimiter::observe`] does in the background. Await it to know that it is
/// done; drop it to not care.
#[derive(Debug)]
pub struct Observed(Work);

enum Work {
    Done,
    Spawned(JoinHandle<()>),
    Waiting(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done => "Done",
            Self::Spawned(_) => "Spawned",
            Self::Waiting(_) => "Waiting",
        })
    }
}

impl Future for Observed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Work::Done => {}
            Work::Spawned(task) => drop(ready!(Pin::new(task).poll(context))),
            Work::Waiting(work) => ready!(work.as_mut().poll(context)),
        }
        self.0 = Work::Done;
        Poll::Ready(())
    }
}
