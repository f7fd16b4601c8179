// A worker: as many processes of it as you like, on as many machines, spend one budget.

import { DelayedError, Worker } from "bullmq";

import { RateLimitExceededError, executeWithRateLimit } from "./limits.js";

/**
 * Starts one. `connection` is BullMQ's, `redis` the ioredis client with the bucket `key`,
 * `vendor` the address to call.
 */
export function startWorker({ queueName, connection, redis, key, limit, vendor, concurrency = 4 }) {
  const work = async (job, token) => {
    const call = () =>
      fetch(`${vendor}/${job.data.path}`, {
        method: "POST",
        headers: { "idempotency-key": job.id },
        signal: AbortSignal.timeout(10_000),
      });
    try {
      const response = await executeWithRateLimit(redis, key, limit, call);
      if (!response.ok) throw new Error(`the vendor answered ${response.status}`); // counts as an attempt
      return response.status;
    } catch (error) {
      if (!(error instanceof RateLimitExceededError)) throw error;
      // With the token the job is ours to move; DelayedError tells BullMQ that it was. It
      // is no attempt then, where throwing anything else would be.
      await job.moveToDelayed(Date.now() + error.delayMs, token);
      throw new DelayedError(error.message);
    }
  };
  // A worker that dies is not the job's failure: with the usual 1 its second death is.
  return new Worker(queueName, work, { connection, concurrency, maxStalledCount: 10 });
}
