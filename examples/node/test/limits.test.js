// The module on its own: what it asks, and what it makes of the answers.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import { Redis } from "ioredis";

import { RateLimitExceededError, checkRateLimit, executeWithRateLimit } from "../src/limits.js";
import { startRedis } from "../src/servers.js";

const SLOW = { capacity: 2, rate: 1, per: 3600 }; // nothing refills while a test runs
let server, redis;

before(async () => {
  server = await startRedis();
  redis = new Redis({ path: server.path });
});
beforeEach(() => redis.flushall());
after(async () => {
  await redis?.quit();
  await server?.stop();
});

const answer = (status, headers = {}) => new Response(null, { status, headers });

test("a call is allowed while there are tokens, and then told when to come back", async () => {
  assert.deepEqual(await checkRateLimit(redis, "k", SLOW), { allowed: true, remaining: 1, delayMs: 0, status: "granted" });
  assert.equal((await checkRateLimit(redis, "k", SLOW)).allowed, true);
  const denied = await checkRateLimit(redis, "k", SLOW);
  assert.deepEqual([denied.allowed, denied.remaining, denied.status], [false, 0, "empty"]);
  assert.ok(denied.delayMs > 3_500_000 && denied.delayMs <= 3_600_000, `${denied.delayMs}`);
});

test("0 tokens only ask", async () => {
  assert.equal((await checkRateLimit(redis, "k", SLOW, { tokens: 0 })).status, "granted");
  assert.equal(await redis.exists("k"), 0);
});

test("more than the capacity is a mistake, not a wait", async () => {
  await assert.rejects(checkRateLimit(redis, "k", SLOW, { tokens: 3 }), RangeError);
});

test("without a token there is no call, and the error says how long", async () => {
  await checkRateLimit(redis, "k", SLOW, { tokens: 2 });
  let calls = 0;
  const execute = executeWithRateLimit(redis, "k", SLOW, async () => answer(200, { calls: ++calls }));
  await assert.rejects(execute, (error) => {
    assert.ok(error instanceof RateLimitExceededError);
    assert.equal(error.status, "empty");
    assert.ok(error.delayMs > 3_500_000, `${error.delayMs}`);
    return true;
  });
  assert.equal(calls, 0);
});

test("a token that is near is waited for", async () => {
  const limit = { capacity: 1, rate: 5 };
  await checkRateLimit(redis, "k", limit);
  const begun = performance.now();
  const response = await executeWithRateLimit(redis, "k", limit, async () => answer(200));
  assert.equal(response.status, 200);
  assert.ok(performance.now() - begun > 100, "it did not wait");
});

for (const [what, header, leastMs, mostMs] of [
  ["seconds", () => "30", 29_000, 30_000],
  ["a date", () => new Date(Date.now() + 30_000).toUTCString(), 28_000, 30_000],
  ["nothing", () => undefined, 9_000, 10_000],
  ...["soon", "", "nan", "inf", "-1", "1e400", "Foo 1", "Mon, 01 Jan 1900 00:00:00 GMT"].map((text) => [
    `"${text}"`, () => text, 9_000, 10_000,
  ]),
  ["too many digits", () => "9".repeat(400), 604_799_000, 604_800_000],
]) {
  test(`a 429 with ${what} in it stops everybody`, async () => {
    const after = header();
    const refuse = async () => answer(429, after === undefined ? {} : { "retry-after": after });
    await assert.rejects(executeWithRateLimit(redis, "k", SLOW, refuse), (error) => {
      assert.equal(error.status, "frozen");
      assert.ok(error.delayMs > leastMs && error.delayMs <= mostMs, `${error.delayMs}`);
      return true;
    });
    let calls = 0;
    const other = executeWithRateLimit(redis, "k", SLOW, async () => answer(200, { calls: ++calls }));
    await assert.rejects(other, { name: "RateLimitExceededError", status: "frozen" });
    assert.equal(calls, 0);
  });
}

test("a slot that a 429 voided meanwhile is not used", async () => {
  const limit = { capacity: 1, rate: 5 };
  await checkRateLimit(redis, "k", limit);
  let calls = 0;
  const waiting = executeWithRateLimit(redis, "k", limit, async () => answer(200, { calls: ++calls }));
  await redis.call("TB.PENALISE", "k", 60);
  await assert.rejects(waiting, { name: "RateLimitExceededError", status: "frozen" });
  assert.equal(calls, 0);
});

const LARGE = { capacity: 100, rate: 1, per: 3600 };
const execute = (headers) => executeWithRateLimit(redis, "k", LARGE, async () => answer(200, headers));
const syncs = async () => Number(/cmdstat_tb\.sync:calls=(\d+)/.exec(await redis.info("commandstats"))?.[1] ?? 0);

test("where the vendor has less left the bucket is lowered, where it has more nothing is sent", async () => {
  await execute({ "x-ratelimit-remaining": "40", "x-ratelimit-reset": "30" });
  assert.equal((await checkRateLimit(redis, "k", LARGE)).remaining, 39);
  const before = await syncs();
  await execute({ "x-ratelimit-remaining": "80" });
  await execute({ "x-ratelimit-remaining": "many" });
  await execute({});
  assert.equal(await syncs(), before);
  assert.equal((await checkRateLimit(redis, "k", LARGE, { tokens: 0 })).remaining, 36);
});

for (const [unit, times] of [["seconds", 1], ["milliseconds", 1000]]) {
  test(`a window that is used up holds until its reset in ${unit}`, async () => {
    const reset = `${(Math.ceil(Date.now() / 1000) + 20) * times}`;
    await execute({ "x-ratelimit-remaining": "0", "x-ratelimit-reset": reset });
    const denied = await checkRateLimit(redis, "k", LARGE);
    assert.equal(denied.status, "window");
    assert.ok(denied.delayMs > 15_000 && denied.delayMs <= 21_000, `${denied.delayMs}`);
  });
}

test("a sync that fails does not undo the call", async () => {
  const answered = async () => {
    await redis.set("k", "no bucket");
    return answer(200, { "x-ratelimit-remaining": "3" });
  };
  assert.equal((await executeWithRateLimit(redis, "k", LARGE, answered)).status, 200);
});

test("what the call throws is passed on, and any other answer is the caller's", async () => {
  await assert.rejects(executeWithRateLimit(redis, "k", SLOW, async () => { throw new TypeError("no network"); }), TypeError);
  assert.equal((await executeWithRateLimit(redis, "k", SLOW, async () => answer(503))).status, 503);
});
