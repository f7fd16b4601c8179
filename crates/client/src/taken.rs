//! Tokens that were taken for a call, until it is clear that the call is made.
//!
//! What to know before changing it: a future may be dropped at any `await`, so between
//! the request that takes tokens and the call they are for there is always a
//! [`ToTheEnd`] or a [`Taken`], whose drop gives them back. What is unclear is lost:
//! a refund of tokens that were spent, or that a penalty has voided, would be one call
//! too many.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::limiter::{Buckets, Inner};
use crate::{Consume, Decision, Origin, Tokens};

/// After so long nothing is waited for in the background: a connection may never say that
/// it is dead.
const LATEST: Duration = Duration::from_secs(60);

/// A future that goes on in the background where nobody waits for it any more, so that
/// what it brings is not lost.
pub(crate) struct ToTheEnd<F>(Option<Pin<Box<F>>>)
where
    F: Future<Output: Send> + Send + 'static;

impl<F: Future<Output: Send> + Send + 'static> ToTheEnd<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for ToTheEnd<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending }; // it was ready before
        let poll = future.as_mut().poll(context);
        if poll.is_ready() {
            self.0 = None;
        }
        poll
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for ToTheEnd<F> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(tokio::time::timeout(LATEST, future).await) });
        }
    }
}

/// A decision whose tokens go back in the background when it is dropped: no call was
/// made. Without a runtime they are lost.
pub(crate) struct Taken<B: Buckets> {
    inner: Arc<Inner<B>>,
    key: Vec<u8>,
    tokens: Tokens,
    decision: Decision,
    /// Who decided in place of the buckets.
    instead: Option<Origin>,
    /// The moment they are for, rather too early than too late.
    slot: Instant,
}

impl<B: Buckets> Taken<B> {
    /// What was decided on a request that was sent not before `asked`.
    pub(crate) fn new(
        inner: Arc<Inner<B>>,
        request: Consume,
        decision: Decision,
        instead: Option<Origin>,
        asked: Instant,
    ) -> Self {
        let slot = decision.wait.and_then(|wait| asked.checked_add(wait)).unwrap_or(asked);
        let tokens = if decision.is_allowed() { request.tokens } else { Tokens::ZERO };
        Self { inner, key: request.key, tokens, decision, instead, slot }
    }

    pub(crate) const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The moment they are for, rather too early than too late.
    pub(crate) const fn moment(&self) -> Instant {
        self.slot
    }

    /// They are not to go back: the call is made, or they are void.
    pub(crate) fn keep(mut self) -> Decision {
        self.tokens = Tokens::ZERO;
        self.decision
    }
}

impl<B: Buckets> Drop for Taken<B> {
    fn drop(&mut self) {
        if self.tokens == Tokens::ZERO {
            return;
        }
        let (key, tokens) = (std::mem::take(&mut self.key), self.tokens);
        match (self.instead, Handle::try_current()) {
            (None, Ok(runtime)) => {
                let (inner, slot) = (Arc::clone(&self.inner), self.slot);
                runtime.spawn(async move { inner.give_back(&key, tokens, slot).await });
            }
            (Some(Origin::Local), _) => self.inner.give_back_instead(&key, tokens, self.slot),
            _ => {} // nobody gave them
        }
    }
}
