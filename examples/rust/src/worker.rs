//! One process of the fleet: takes jobs and calls the vendor, several at a time.
//!
//! What to know before changing it: a worker must be done with a job, one way or the
//! other, before [`RECLAIM_AFTER`], or somebody else does it too. It waits for its turn
//! for [`HOLD`] at most and for the vendor's answer for [`PATIENCE`].

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::pace::{Pace, Turn};
use crate::queue::{Queue, RECLAIM_AFTER, TIME_OUT, Taken};

/// A job that is to wait for longer goes back into the queue.
pub const HOLD: Duration = Duration::from_secs(8);

/// Within this time the vendor answers, or has failed.
pub const PATIENCE: Duration = Duration::from_secs(5);

// The batch, the slot, the look at it, what was heard and the job's end: five times Redis.
const _: () = assert!(HOLD.as_secs() + PATIENCE.as_secs() + 5 * TIME_OUT.as_secs() < RECLAIM_AFTER.as_secs());

/// What a process needs.
pub struct Worker<P> {
    /// Where jobs come from.
    pub queue: Queue,
    /// When to call.
    pub pace: P,
    /// Whom to call.
    pub vendor: String,
    /// The connections to it.
    pub client: Client,
}

impl<P: Pace> Worker<P> {
    /// Works with `workers` jobs at a time until `stop`, then ends what it has begun.
    ///
    /// # Errors
    /// None so far: what fails is said, and tried again.
    pub async fn run(self, workers: usize, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let worker = Arc::new(self);
        let idle = Arc::new(Semaphore::new(workers));
        let work = async {
            loop {
                if let Err(error) = worker.take(&idle).await {
                    // Nothing is lost: what was taken comes back.
                    eprintln!("fleet: {error:#}; going on in a second");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = stop => {}
        }
        let all = u32::try_from(workers)?;
        drop(tokio::time::timeout(RECLAIM_AFTER, idle.acquire_many(all)).await);
        Ok(())
    }

    /// Takes as many jobs as there are idle workers, and sets these to work.
    async fn take(self: &Arc<Self>, idle: &Arc<Semaphore>) -> anyhow::Result<()> {
        let mut permits = vec![Arc::clone(idle).acquire_owned().await?];
        while let Ok(permit) = Arc::clone(idle).try_acquire_owned() {
            permits.push(permit);
        }
        let batch = self.queue.fetch(permits.len()).await?;
        // For a batch, what is there now in one go. One job alone is cheaper to reserve for.
        let mut turns = if batch.len() > 1 { self.pace.batch(batch.len()).await? } else { 0 };
        for (taken, permit) in batch.into_iter().zip(permits) {
            let has_turn = turns > 0;
            turns = turns.saturating_sub(1);
            tokio::spawn(Arc::clone(self).work(taken, has_turn, permit));
        }
        Ok(())
    }

    async fn work(self: Arc<Self>, taken: Taken, has_turn: bool, permit: OwnedSemaphorePermit) {
        if let Err(error) = self.finish(&taken, has_turn).await {
            eprintln!("fleet: job {}: {error:#}; it comes back", taken.job.id);
        }
        drop(permit);
    }

    async fn finish(&self, taken: &Taken, mut has_turn: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + HOLD;
        loop {
            if !has_turn && let Turn::Later(wait) = self.pace.turn(deadline).await? {
                return Ok(self.queue.delay(taken, wait).await?);
            }
            has_turn = false;
            let url = format!("{}/{}", self.vendor, taken.job.path);
            let call = self.client.post(url).header("idempotency-key", &taken.job.id).timeout(PATIENCE);
            let Ok(response) = call.send().await else { return Ok(self.queue.fail(taken).await?) };
            self.pace.heard(&response).await?;
            match response.status() {
                // Not the job's fault: it waits for another turn, and nothing is counted.
                StatusCode::TOO_MANY_REQUESTS if Instant::now() < deadline => {}
                StatusCode::TOO_MANY_REQUESTS => return Ok(self.queue.delay(taken, Duration::ZERO).await?),
                status if status.is_success() => return Ok(self.queue.done(taken).await?),
                _ => return Ok(self.queue.fail(taken).await?),
            }
        }
    }
}
