//! Tokens taken ahead and spent in this process.
//!
//! What to know before changing it: tokens leave the bucket before they are spent, so
//! whatever goes wrong here loses tokens and never makes any. Only what the bucket
//! gave is given back to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::limiter::{Buckets, Inner, Jitter};
use crate::taken::ToTheEnd;
use crate::{Consume, Decision, Error, Limit, Origin, Status, Tokens};

/// Tokens of one bucket, taken `batch` at a time and spent in this process: for a key
/// that is asked for more often than one server should answer. From
/// [`RateLimiter::lease`](crate::RateLimiter::lease); share it in an `Arc`.
///
/// # What it costs
/// - **Too many, never in all.** A token is taken from the bucket before it is spent,
///   at most [`Lease::keep`] before (a second if not set). Over any stretch Δt no more
///   calls are made than capacity + rate · Δt + `batch` for each lease: what was taken
///   before the stretch and is spent within it.
/// - **Too few, for a while.** At most `batch` tokens a lease lie idle, at most
///   [`Lease::keep`] long; then, or when the lease is dropped, they go back. A process
///   that is killed, or drops its lease outside of a tokio runtime, loses what it held or
///   was being sent: at most `batch`, once, until the bucket has filled again. A batch that
///   comes late, after the limiter's time-out or when the call to [`Lease::take`] was
///   cancelled, is held for the next call; what is then more than `batch` goes back.
/// - **A penalty** that this process observes voids what it holds at once. One that
///   another process observed is heard of with the next batch: until then at most
///   `batch` calls are made, for at most [`Lease::keep`].
/// - **Denials** are kept as well, for the wait the server told, at most
///   [`Lease::keep`]: a bucket that is empty is not asked again by every caller.
///
/// ```
/// use tokenbucket_client::{Limit, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::in_process(); // with Redis it is worth something
/// let lease = limiter.lease("hot", &Limit::per_second(10_000)?, 100);
/// assert!(lease.take(1).await?.is_allowed());
/// assert_eq!(lease.held(), 99);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lease<B: Buckets> {
    inner: Arc<Inner<B>>,
    held: Arc<Held>,
    limit: Limit,
    batch: u32,
    keep: Duration,
    jitter: Jitter,
    /// One batch at a time is under way.
    fetching: tokio::sync::Mutex<()>,
}

/// What a lease holds.
#[derive(Debug)]
pub(crate) struct Held {
    key: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: u64,
    /// Counts batches, so that a timer knows its own.
    batch: u64,
    /// The last batch whose time has come.
    expired: u64,
    /// Counts penalties, so that a batch that was under way is void as well.
    voided: u64,
    denied: Option<(Decision, Instant)>,
    /// Whether the bucket is in this process.
    is_local: bool,
}

impl Held {
    pub(crate) fn new(key: &[u8]) -> Self {
        Self { key: key.to_vec(), state: Mutex::default() }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Drops what is held. It is not given back: the bucket is frozen, and there would
    /// take nothing.
    pub(crate) fn void(&self) {
        let mut state = self.state();
        state.tokens = 0;
        state.voided += 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what came of a batch, unless a penalty came while it was under way. What is
    /// more than `most` in all is given back as too many.
    fn add(&self, decision: &Decision, voided: u64, most: u64) -> Added {
        let mut state = self.state();
        if state.voided != voided {
            return Added { batch: state.batch, too_many: 0 };
        }
        let added = decision.allowed.min(most.saturating_sub(state.tokens));
        state.tokens += added;
        state.batch += 1;
        state.denied = None;
        state.is_local = decision.origin == Origin::Local;
        Added { batch: state.batch, too_many: decision.allowed - added }
    }

    /// Takes what is held, if that is of batch `batch`.
    fn take_all(&self, batch: Option<u64>) -> u64 {
        let mut state = self.state();
        if let Some(batch) = batch {
            if batch != state.batch {
                return 0;
            }
            state.expired = batch;
        }
        std::mem::take(&mut state.tokens)
    }
}

struct Added {
    batch: u64,
    too_many: u64,
}

/// How long tokens are kept if not told.
const KEEP: Duration = Duration::from_secs(1);

impl<B: Buckets> Lease<B> {
    pub(crate) fn new(inner: Arc<Inner<B>>, held: Arc<Held>, limit: Limit, batch: u32, jitter: Jitter) -> Self {
        Self { inner, held, limit, batch: batch.max(1), keep: KEEP, jitter, fetching: tokio::sync::Mutex::default() }
    }

    /// Gives tokens back that were not spent for so long.
    #[must_use]
    pub const fn keep(mut self, duration: Duration) -> Self {
        self.keep = duration;
        self
    }

    /// How many tokens it holds now.
    pub fn held(&self) -> u64 {
        self.held.state().tokens
    }

    /// Takes whole tokens, of those held or of the next batch; 0 of them asks the bucket.
    /// Of those held, [`Decision::remaining`] is what is held then.
    ///
    /// # Errors
    /// As [`RateLimiter::check`](crate::RateLimiter::check).
    pub async fn take(&self, tokens: u32) -> Result<Decision, Error> {
        let decision = if tokens == 0 { self.question().await? } else { self.take_some(u64::from(tokens)).await? };
        Ok(Decision { wait: self.jitter.added_to(decision.wait), ..decision })
    }

    /// What is held says nothing of whether the vendor has stopped everybody.
    async fn question(&self) -> Result<Decision, Error> {
        let decision = self.inner.decide(&self.request(0)).await?.reply;
        self.heard(&decision);
        Ok(decision)
    }

    async fn take_some(&self, tokens: u64) -> Result<Decision, Error> {
        if let Some(decision) = self.spend(tokens) {
            return Ok(decision);
        }
        let _alone = self.fetching.lock().await;
        // Another caller may have brought a batch meanwhile.
        if let Some(decision) = self.spend(tokens) {
            return Ok(decision);
        }
        if tokens > u64::from(self.batch) || self.inner.thaws.untold(self.held.key()).is_some() {
            return self.take_with_held(tokens).await;
        }
        let answer = self.inner.in_time(ToTheEnd::new(self.fetch())).await;
        let decision = match answer {
            Ok(decision) => decision,
            // The call alone is asked for: what did not come from the buckets must not go back to them.
            Err(error) => return self.inner.instead(&self.request(tokens), error).map(|answered| answered.reply),
        };
        if !decision.is_allowed() {
            self.heard(&decision);
            let until = Instant::now().checked_add(decision.wait.unwrap_or(self.keep).min(self.keep));
            self.held.state().denied = until.map(|until| (decision, until));
            return Ok(Decision { origin: leased(decision.origin), ..decision });
        }
        match self.spend(tokens) {
            Some(decision) => Ok(decision),
            // Some came, but not enough.
            None => self.take_with_held(tokens).await,
        }
    }

    /// Asks for a batch and holds it, whoever waits for that.
    fn fetch(&self) -> impl Future<Output = Result<Decision, Error>> + Send + 'static + use<B> {
        let (most, keep) = (u64::from(self.batch), self.keep);
        let (held, voided) = {
            let state = self.held.state();
            (state.tokens, state.voided)
        };
        // No more than makes a batch of what is held: that is the bound on what can be lost.
        let request = self.request(most.saturating_sub(held).max(1)).up_to();
        let (inner, holder) = (Arc::clone(&self.inner), Arc::downgrade(&self.held));
        async move {
            let asked = Instant::now();
            let decision = inner.buckets.ask(&request).await?;
            inner.heard(&request, &decision);
            if !decision.is_allowed() {
                return Ok(decision);
            }
            let Some(held) = holder.upgrade() else {
                give_back(&inner, &request.key, decision.allowed, asked).await;
                return Ok(decision);
            };
            let Added { batch, too_many } = held.add(&decision, voided, most);
            give_back(&inner, &request.key, too_many, asked).await;
            // Without a runtime there is no timer: they go back with the lease.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move {
                    tokio::time::sleep(keep).await;
                    if let Some(held) = holder.upgrade() {
                        give_back(&inner, &held.key, held.take_all(Some(batch)), Instant::now()).await;
                    }
                });
            }
            Ok(decision)
        }
    }

    /// Gives back what is held, and waits until that is done.
    pub async fn give_back(&self) {
        give_back(&self.inner, self.held.key(), self.held.take_all(None), Instant::now()).await;
    }

    fn request(&self, tokens: u64) -> Consume {
        let tokens = Tokens::try_from(tokens).unwrap_or(Tokens::MAX);
        Consume::new(self.held.key(), self.limit).tokens(tokens)
    }

    /// Takes `tokens`: those held, and what is missing from the bucket.
    async fn take_with_held(&self, tokens: u64) -> Result<Decision, Error> {
        // They are set aside meanwhile, or another caller would spend them as well.
        let aside = Aside::take(self, tokens);
        let missing = tokens.saturating_sub(aside.tokens);
        let decision = self.inner.take(&self.request(missing)).await?.keep();
        self.heard(&decision);
        if decision.is_allowed() {
            aside.spend();
        }
        Ok(decision)
    }

    /// A penalty that another process observed voids what is held as well.
    fn heard(&self, decision: &Decision) {
        if decision.status == Status::Frozen {
            self.held.void();
        }
    }

    /// Spends what is held, or denies while the server said that there is nothing.
    fn spend(&self, tokens: u64) -> Option<Decision> {
        let mut state = self.held.state();
        if let Some(left) = state.tokens.checked_sub(tokens) {
            state.tokens = left;
            return Some(Decision {
                allowed: 1,
                remaining: left,
                wait: Some(Duration::ZERO),
                full: Duration::ZERO,
                status: Status::Granted,
                origin: if state.is_local { Origin::Local } else { Origin::Lease },
            });
        }
        let (decision, until) = state.denied?;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        let Some(left) = left else {
            state.denied = None;
            return None;
        };
        // At most what the server told: it may be asked again sooner than that.
        let wait = decision.wait.map(|wait| if wait > self.keep { wait } else { left });
        Some(Decision { wait, origin: leased(decision.origin), ..decision })
    }
}

/// Who decided, where a lease did for the buckets.
fn leased(origin: Origin) -> Origin {
    if origin == Origin::Local { origin } else { Origin::Lease }
}

/// Tokens of a lease that are set aside for a call. What is not spent goes back to the
/// lease, also where nobody waits for the call any more.
struct Aside<'l, B: Buckets> {
    lease: &'l Lease<B>,
    tokens: u64,
    voided: u64,
}

impl<'l, B: Buckets> Aside<'l, B> {
    fn take(lease: &'l Lease<B>, most: u64) -> Self {
        let mut state = lease.held.state();
        let tokens = state.tokens.min(most);
        state.tokens -= tokens;
        Self { lease, tokens, voided: state.voided }
    }

    fn spend(mut self) {
        self.tokens = 0;
    }
}

impl<B: Buckets> Drop for Aside<'_, B> {
    fn drop(&mut self) {
        let mut state = self.lease.held.state();
        if self.tokens == 0 || state.voided != self.voided {
            return;
        }
        state.tokens += self.tokens;
        // Their time came while they were set aside.
        if state.expired == state.batch {
            let tokens = std::mem::take(&mut state.tokens);
            give_back_later(&self.lease.inner, self.lease.held.key(), tokens);
        }
    }
}

impl<B: Buckets> Drop for Lease<B> {
    fn drop(&mut self) {
        give_back_later(&self.inner, self.held.key(), self.held.take_all(None));
    }
}

/// Gives back tokens that were not spent since `since`. What fails is lost.
async fn give_back<B: Buckets>(inner: &Inner<B>, key: &[u8], tokens: u64, since: Instant) {
    if tokens > 0 {
        inner.give_back(key, Tokens::try_from(tokens).unwrap_or(Tokens::MAX), since).await;
    }
}

/// The same in the background, where there is a runtime.
fn give_back_later<B: Buckets>(inner: &Arc<Inner<B>>, key: &[u8], tokens: u64) {
    if let Ok(runtime) = Handle::try_current()
        && tokens > 0
    {
        let (inner, key) = (Arc::clone(inner), key.to_vec());
        runtime.spawn(async move { give_back(&inner, &key, tokens, Instant::now()).await });
    }
}
