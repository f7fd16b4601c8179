// Route, queue, workers and vendor together.

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";

import { Queue } from "bullmq";
import { Redis } from "ioredis";

import { createApp } from "../src/app.js";
import { startRedis, startVendor, waitUntil } from "../src/servers.js";
import { startWorker } from "../src/worker.js";

const queueName = "vendor";
let server, vendor, queue, redis, site, url;
const workers = [];
const starts = []; // of every time that a job is taken up: its id and the attempts so far

before(async () => {
  server = await startRedis();
  // Its burst is large enough for a machine that stands still for a moment.
  vendor = await startVendor("--rate", "50", "--burst", "50");
  const connection = { path: server.path };
  queue = new Queue(queueName, { connection });
  redis = new Redis({ path: server.path });
  // Two workers with a connection each to the bucket, as on two machines.
  for (let n = 0; n < 2; n += 1) {
    const own = redis.duplicate();
    const limit = { capacity: 8, rate: 50 };
    const worker = startWorker({ queueName, connection, redis: own, key: "limit:vendor", limit, vendor: vendor.url });
    worker.on("active", (job) => starts.push({ id: job.id, attempts: job.attemptsMade }));
    worker.on("closed", () => own.disconnect());
    workers.push(worker);
  }
  site = createApp(queue).listen(0, "127.0.0.1");
  await once(site, "listening");
  url = `http://127.0.0.1:${site.address().port}/jobs`;
});

after(async () => {
  await Promise.all(workers.map((worker) => worker.close()));
  await queue?.close();
  await redis?.quit();
  site?.close();
  site?.closeAllConnections();
  await vendor?.stop();
  await server?.stop();
});

async function enqueue(path) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ path }) });
  return { response, body: await response.json() };
}

const look = async (id) => await (await fetch(`${url}/${id}`)).json();

test("the route accepts a job and says where to look", async () => {
  const { response, body } = await enqueue("send");
  assert.equal(response.status, 202);
  assert.equal(response.headers.get("location"), `/jobs/${body.id}`);
  await waitUntil("the job", async () => (await look(body.id)).state === "completed");
  assert.equal((await fetch(`${url}/none`)).status, 404);
  assert.equal((await enqueue("../account")).response.status, 400);
});

test("no attempt is counted through a 429 and the freeze that it brings", async () => {
  const before = await vendor.account();
  starts.length = 0;
  const enqueueMany = (count) => Promise.all(Array.from({ length: count }, async () => (await enqueue("send")).body.id));
  const ids = await enqueueMany(60);
  await waitUntil("the first jobs", async () => (await vendor.account()).accepted > before.accepted + 20);
  await vendor.freeze(2);
  // The 429 has reached the bucket: from here on jobs are denied before they call.
  await waitUntil("the freeze", async () => (await redis.call("TB.CONSUME", "limit:vendor", 8, 50, 0))[4] === "frozen");
  ids.push(...(await enqueueMany(20)));
  await waitUntil("delayed jobs", async () => (await queue.getDelayedCount()) > 0);
  await waitUntil("all jobs", async () => (await look(ids.at(-1))).state === "completed" && (await queue.getCompletedCount()) >= 81);

  const account = await vendor.account();
  assert.ok(account.refused >= 1, "there was no 429");
  assert.ok(account.refused <= 8, `${account.refused} calls were refused; only those in flight may be`);
  assert.equal(account.accepted - before.accepted, 80);
  assert.equal(account.accepted_twice, 0);
  const again = starts.filter(({ id }, place) => starts.findIndex((start) => start.id === id) < place);
  assert.ok(again.length > account.refused, "no job was denied by the freeze and taken up again");
  assert.deepEqual(starts.filter(({ attempts }) => attempts !== 0), []);
  for (const id of ids) assert.equal((await look(id)).attempts, 1, "the one that was done");
});

test("a real failure is an attempt", async () => {
  const { body } = await enqueue("broken");
  await waitUntil("it to be given up", async () => (await look(body.id)).state === "failed");
  const { attempts, reason } = await look(body.id);
  assert.deepEqual([attempts, reason], [3, "the vendor answered 500"]);
});
