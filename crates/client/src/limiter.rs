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
use crate::request::When;
use crate::taken::{Taken, ToTheEnd};
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
///         let unavailable = |_| redis::RedisError::from((redis::ErrorKind::Io, "no connection in the pool"));
///         let mut connection = self.0.get().await.map_err(unavailable)?;
///         request.query_async(&mut *connection).await
///     }
/// }
/// ```
pub trait Buckets: Send + std::marker::Sync + 'static {
    /// Asks.
    fn ask<R: Request>(&self, request: &R) -> impl Future<Output = Result<R::Reply, Error>> + Send;
}

impl Buckets for Local {
    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        self.answer(request)
    }
}

/// Buckets behind a connection that can be cloned: multiplexed, managed or of a
/// cluster.
#[derive(Clone, Debug)]
pub struct Redis<C>(pub C);

impl<C: ConnectionLike + Clone + Send + std::marker::Sync + 'static> Buckets for Redis<C> {
    fn ask<R: Request>(&self, request: &R) -> impl Future<Output = Result<R::Reply, Error>> + Send {
        let (mut connection, command) = (self.0.clone(), request.command());
        async move { Ok(command.query_async(&mut connection).await?) }
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
/// assert!(limited.is_frozen(), "not this job's fault: a queue need not count the attempt");
/// assert_eq!(limited.retry_after.map(|wait| wait.as_secs()), Some(30));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RateLimiter<B> {
    inner: Arc<Inner<B>>,
    reader: Reader,
    jitter: Duration,
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
        let inner = Inner { buckets, away, known: Known::default(), leases: Mutex::default() };
        // Without a default of its own: what the vendor's documentation asks for comes before ours.
        Self { inner: Arc::new(inner), reader: Reader::new(), jitter: Duration::ZERO }
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
    /// moment does not come at the same moment. Never shorter: that would be too early.
    #[must_use]
    pub const fn with_jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Takes tokens if they are there now; 0 of them asks without taking.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] and [`Error::Redis`] for what waiting does not mend. A
    /// denial is a [`Decision`], and so is what was chosen for a Redis that is away.
    pub async fn check(&self, key: impl AsRef<[u8]>, limit: &Limit, tokens: impl Into<Tokens>) -> Result<Decision, Error> {
        let mut decision = self.inner.take(&Consume::new(key.as_ref(), *limit).tokens(tokens)).await?.keep();
        if decision.wait.is_some_and(|wait| !wait.is_zero()) {
            decision.wait = self.jittered(decision.wait);
        }
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
        if decision.together.wait.is_some_and(|wait| !wait.is_zero()) {
            decision.together.wait = self.jittered(decision.together.wait);
        }
        Ok(decision)
    }

    /// Takes tokens now for a moment within `max_wait`, and sleeps until then.
    ///
    /// A slot that was more than 100 ms away (with the jitter) is asked for again when it has come: a
    /// penalty meanwhile has voided it, and a new one is reserved. A slot whose caller
    /// goes away while it sleeps is given back, unless a penalty has voided it. Slots behind
    /// it keep their moments, so at one of those as much more may be called as was given back.
    ///
    /// # Errors
    /// [`Error::RateLimited`] where no slot lies within `max_wait`; else as
    /// [`RateLimiter::check`].
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
            let slot = self.inner.take(&Consume::new(key, *limit).tokens(tokens).max_wait(left)).await?;
            let decision = slot.decision();
            let Some(wait) = decision.wait.filter(|_| decision.is_allowed()) else { return Err(self.refusal(decision)) };
            if wait.is_zero() {
                return Ok(slot.keep());
            }
            let sleep = self.jittered(Some(wait)).unwrap_or(wait);
            tokio::time::sleep(sleep).await;
            if sleep <= NEAR {
                return Ok(slot.keep());
            }
            let now = self.inner.consume(&Consume::new(key, *limit).tokens(Tokens::ZERO)).await?;
            // Void or not, from here on it is nobody's to give back.
            let decision = slot.keep();
            if now.status != Status::Frozen {
                return Ok(decision);
            }
        }
    }

    /// Calls if there is a token for it, and gives back what the call gave. The call is
    /// not made without a token.
    ///
    /// # Errors
    /// [`Error::RateLimited`] where there is no token; else as [`RateLimiter::check`].
    pub async fn execute<F, T>(&self, key: impl AsRef<[u8]>, limit: &Limit, call: impl FnOnce() -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let decision = self.inner.take(&Consume::new(key.as_ref(), *limit)).await?.keep();
        if decision.is_allowed() { Ok(call().await) } else { Err(self.refusal(&decision)) }
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
    /// # Errors
    /// As [`RateLimiter::check`].
    pub async fn wait_for_one(&self, key: impl AsRef<[u8]>) -> Result<Option<Duration>, Error> {
        let answer = self.inner.ask(&Peek::new(key.as_ref())).await?;
        match answer.instead {
            Some(Origin::FailOpen) => return Ok(Some(Duration::ZERO)),
            Some(Origin::FailClosed) => return Ok(Some(ASK_AGAIN)),
            _ => {}
        }
        let Some(reading) = answer.reply else { return Ok(Some(Duration::ZERO)) };
        if reading.capacity.is_some() {
            return Ok(reading.wait);
        }
        // No limit yet: what the vendor said is all there is.
        let window = reading.vendor_reset.filter(|_| reading.vendor_remaining == Some(0)).unwrap_or_default();
        Ok(Some(reading.frozen.max(window)))
    }

    /// Learns from a response: penalises or syncs the bucket as it says.
    ///
    /// It is sent in the background: the result need not be awaited, and there is no
    /// error that could reach the caller. A SYNC is sent only where the response has
    /// less left than this process last heard of the bucket. Of several policies each
    /// goes to its own bucket ([`policy_key`]), and the tightest to `key` as well.
    ///
    /// Outside of a tokio runtime nothing is sent before the result is awaited.
    pub fn observe<'h>(
        &self,
        key: impl AsRef<[u8]>,
        status: u16,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) -> Observed {
        let key = key.as_ref();
        let advice = self.reader.read(status, headers, SystemTime::now());
        let mut syncs = Vec::new();
        let mut penalty = None;
        match advice.action {
            Action::Penalise(duration) => {
                let duration = duration.unwrap_or(DEFAULT_PENALTY.min(self.reader.cap));
                penalty = Some(Penalise::new(key, duration));
            }
            Action::Sync => syncs.extend(advice.quota.as_ref().map(|quota| (quota, key.to_vec()))),
            Action::None => {}
        }
        for quota in &advice.policies {
            syncs.extend(quota.policy.as_ref().map(|policy| (quota, policy_key(key, policy))));
        }
        let syncs = syncs.into_iter().filter_map(|(quota, key)| {
            let sync = quota.sync(key).filter(|sync| self.inner.known.is_news(sync))?;
            Some((sync, quota.reset.unwrap_or(KNOWN_FOR)))
        });
        let syncs: Vec<_> = syncs.collect();
        if penalty.is_some() {
            self.inner.void_leases(key);
        }
        if penalty.is_none() && syncs.is_empty() {
            return Observed(Work::Done);
        }
        let inner = Arc::clone(&self.inner);
        let work = async move {
            // What fails is lost: the next response says the same again.
            if let Some(penalty) = penalty {
                let _ = inner.tell(&penalty).await;
            }
            for (sync, holds) in syncs {
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

    /// Tokens of a bucket to be spent in this process, `batch` at a time: see [`Lease`].
    pub fn lease(&self, key: impl AsRef<[u8]>, limit: &Limit, batch: u32) -> Lease<B> {
        let held = Arc::new(Held::new(key.as_ref()));
        let mut leases = self.inner.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|lease| lease.strong_count() > 0);
        leases.push(Arc::downgrade(&held));
        Lease::new(Arc::clone(&self.inner), held, *limit, batch)
    }

    fn refusal(&self, decision: &Decision) -> Error {
        let refusal = decision.refusal();
        Error::RateLimited(RateLimited { retry_after: self.jittered(refusal.retry_after), ..refusal })
    }

    /// A wait, and up to the jitter more.
    fn jittered(&self, wait: Option<Duration>) -> Option<Duration> {
        if self.jitter.is_zero() {
            return wait;
        }
        // Random enough to spread a fleet, and no dependency.
        let random = RandomState::new().build_hasher().finish();
        let more = self.jitter.as_nanos().saturating_mul(u128::from(random)) >> 64; // below the jitter
        wait.map(|wait| wait.saturating_add(Duration::from_nanos(u64::try_from(more).unwrap_or(u64::MAX))))
    }
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
            let Answered { reply, instead } = inner.ask(&request).await?;
            let each = request.each().zip(&reply.each);
            let taken = each.map(|(request, decision)| {
                if instead.is_none() {
                    inner.heard(request.key(), decision);
                }
                Taken::new(Arc::clone(&inner), request, *decision, instead, asked)
            });
            let taken = taken.collect();
            Ok((reply, taken))
        })
        .await
    }

    /// Asks for a decision that takes no tokens.
    async fn consume(&self, request: &Consume) -> Result<Decision, Error> {
        Ok(self.decide(request).await?.reply)
    }

    async fn decide(&self, request: &Consume) -> Result<Answered<Decision>, Error> {
        let answered = self.ask(request).await?;
        if answered.instead.is_none() {
            self.heard(request.key(), &answered.reply);
        }
        Ok(answered)
    }

    pub(crate) fn heard(&self, key: &[u8], decision: &Decision) {
        self.known.heard(key, decision.remaining, KNOWN_FOR);
    }

    async fn refund(&self, request: &Refund) -> Result<Option<u64>, Error> {
        let remaining = self.ask_buckets(request).await?;
        // Of a bucket that is full, and so is none, any figure is lower.
        self.known.heard(request.key(), remaining.unwrap_or(u64::MAX), KNOWN_FOR);
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
        if !is_void(slot, reading.as_ref()) {
            let _ = self.refund(&Refund::new(key, tokens)).await;
        }
    }

    /// The same for what the fallback gave.
    pub(crate) fn give_back_instead(&self, key: &[u8], tokens: Tokens, slot: Instant) {
        let Some(fallback) = self.away.as_ref().and_then(|away| away.fallback.as_ref()) else { return };
        if let Ok(reading) = fallback.answer(&Peek::new(key))
            && !is_void(slot, reading.as_ref())
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

    /// What leases hold of a bucket that the vendor has stopped is not to be spent.
    fn void_leases(&self, key: &[u8]) {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        for held in leases.iter().filter_map(Weak::upgrade).filter(|held| held.key() == key) {
            held.void();
        }
    }
}

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
    /// Until when the vendor's window is known to be used up. A level of 0 does not say
    /// so: it refills.
    used_up_until: Option<Instant>,
}

/// More keys than this are forgotten all at once: then a SYNC or two too many is sent.
const MOST_KNOWN: usize = 100_000;

/// What was heard is forgotten after so long, or at the reset it came with: a bucket
/// that others use, or that jumped back, has another level by then.
const KNOWN_FOR: Duration = Duration::from_secs(60);

impl Known {
    fn heard(&self, key: &[u8], remaining: u64, holds: Duration) {
        self.note(key, remaining, holds, None);
    }

    /// The server was told, and knows more than a level.
    fn told(&self, sync: &Sync, remaining: u64, holds: Duration) {
        self.note(sync.key(), remaining, holds, used_up_until(sync));
    }

    fn note(&self, key: &[u8], remaining: u64, holds: Duration, used_up_until: Option<Instant>) {
        let until = Instant::now() + holds.min(KNOWN_FOR);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heard) = known.get_mut(key) {
            let used_up_until = used_up_until.or(heard.used_up_until);
            *heard = Heard { remaining, until, used_up_until };
            return;
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key.to_vec(), Heard { remaining, until, used_up_until });
    }

    fn is_news(&self, sync: &Sync) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heard) = known.get(sync.key()) else { return true };
        // A part of a token is not in `remaining`: 4.5 is not less than 4.
        let is_lower = heard.until <= Instant::now() || sync.remaining.whole() < heard.remaining;
        // That a window is used up is news to a bucket that is merely empty, once. Its end
        // is told in whole seconds by many.
        let is_used_up = used_up_until(sync)
            .is_some_and(|until| heard.used_up_until.is_none_or(|known| until > known + Duration::from_secs(2)));
        is_lower || is_used_up
    }
}

/// The end of a window of which nothing is left.
fn used_up_until(sync: &Sync) -> Option<Instant> {
    match sync.reset {
        Some(When::In(reset)) if sync.remaining == Tokens::ZERO => Instant::now().checked_add(reset),
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
