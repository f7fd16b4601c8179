// What a worker needs of the token bucket, over ioredis (or node-redis, by `call`).
//
// A limit is { capacity, rate, per }: at most `capacity` calls at once, `rate` more every
// `per` seconds. It travels with every call, so there is nothing to set up.

import { setTimeout as sleep } from "node:timers/promises";

/** There is no call to be had now. Not the job's fault: delay it, and count no attempt. */
export class RateLimitExceededError extends Error {
  /** Why: "empty", "frozen" (a 429) or "window" (the vendor's own count). */
  status;
  /** Come back after so many milliseconds. */
  delayMs;

  constructor(key, status, delayMs) {
    super(`${key} is ${status}, again in ${delayMs} ms`);
    this.name = "RateLimitExceededError";
    this.status = status;
    this.delayMs = delayMs;
  }
}

/**
 * Takes tokens if they are there now, or within `maxWaitMs`: then they are yours after
 * `delayMs`. If not allowed, `delayMs` says when to ask again. 0 tokens only ask.
 */
export async function checkRateLimit(redis, key, { capacity, rate, per = 1 }, { tokens = 1, maxWaitMs = 0 } = {}) {
  const reserve = maxWaitMs > 0 ? ["MAXWAIT", maxWaitMs / 1000] : [];
  const reply = await redis.call("TB.CONSUME", key, capacity, rate, tokens, "PER", per, ...reserve);
  // A later server may append more.
  const [allowed, remaining, delayMs, , status] = reply;
  if (status === "never") throw new RangeError(`${key}: ${tokens} tokens are more than its capacity of ${capacity}`);
  return { allowed: allowed === 1, remaining, delayMs, status };
}

/**
 * Makes `call`, which gives a fetch Response, when there is a token for it, and waits for
 * one for at most `maxWaitMs`. A 429 stops everybody who uses this key.
 */
export async function executeWithRateLimit(redis, key, limit, call, { maxWaitMs = 1000 } = {}) {
  let slot;
  for (;;) {
    slot = await checkRateLimit(redis, key, limit, { maxWaitMs });
    if (!slot.allowed) throw new RateLimitExceededError(key, slot.status, slot.delayMs);
    if (slot.delayMs === 0) break;
    await sleep(slot.delayMs);
    // A 429 that another worker got meanwhile has voided the slot.
    const now = await checkRateLimit(redis, key, limit, { tokens: 0 });
    if (now.status !== "frozen") break;
  }
  const response = await call();
  if (response.status === 429) {
    throw new RateLimitExceededError(key, "frozen", await penalise(redis, key, response));
  }
  // The call is made: what fails now undoes nothing.
  await sync(redis, key, response, slot.remaining).catch((error) => console.warn(`${key} was not lowered: ${error.message}`));
  return response;
}

// The server takes no later moment and no longer time.
const MOST = 1e11;
// Number() and Date.parse() read far more than a vendor means: "-1" is a day in 2001.
const NUMBER = /^\d+(\.\d+)?$/;
const DATE = /^[A-Z][a-z]+, .+ \d\d:\d\d:\d\d GMT$/;

/** Nothing for anybody before the response's Retry-After; says for how many milliseconds. */
export async function penalise(redis, key, response) {
  const after = response.headers.get("retry-after") ?? "";
  if (NUMBER.test(after)) return await redis.call("TB.PENALISE", key, Math.min(Number(after), MOST));
  const moment = DATE.test(after) ? Date.parse(after) / 1000 : NaN;
  if (moment >= 0) return await redis.call("TB.PENALISE", key, "UNTIL", Math.min(moment, MOST));
  return await redis.call("TB.PENALISE", key, 10); // it did not say, or nothing that can be read
}

/**
 * Lowers the bucket where the vendor has less left than the `remaining` we know of: others
 * use the same account. Where it has not, nothing is sent.
 */
export async function sync(redis, key, response, remaining) {
  const left = response.headers.get("x-ratelimit-remaining") ?? "";
  if (!/^\d+$/.test(left)) return;
  // A Unix time is the end of a window, with some in milliseconds; what is small means
  // "full again" with most.
  const field = response.headers.get("x-ratelimit-reset") ?? "";
  const number = NUMBER.test(field) ? Number(field) : 0;
  const reset = number > MOST ? number / 1000 : number;
  const window = reset > 1e9 ? ["RESETAT", reset] : [];
  const isUsedUp = Number(left) === 0 && window.length > 0;
  if (Number(left) < remaining || isUsedUp) await redis.call("TB.SYNC", key, left, ...window);
}
