// The whole of it in one process, once: Redis, vendor, route, two workers, 200 jobs, and a
// 429 for everybody on the way. `./dev example node` runs it.

import { once } from "node:events";

import { Queue } from "bullmq";
import { Redis } from "ioredis";

import { createApp } from "./app.js";
import { startRedis, startVendor, waitUntil } from "./servers.js";
import { startWorker } from "./worker.js";

const JOBS = 200;
const queueName = "vendor";

const server = await startRedis();
const vendor = await startVendor("--rate", "50", "--burst", "10");
const connection = { path: server.path };
const queue = new Queue(queueName, { connection });
const redis = new Redis({ path: server.path });
const budget = { redis, key: "limit:vendor", limit: { capacity: 8, rate: 50 }, vendor: vendor.url };
const workers = [1, 2].map(() => startWorker({ queueName, connection, ...budget }));

const site = createApp(queue).listen(0, "127.0.0.1");
await once(site, "listening");
const url = `http://127.0.0.1:${site.address().port}/jobs`;
console.log(`POST ${url}, ${JOBS} times`);
for (let n = 0; n < JOBS; n += 1) {
  const response = await fetch(url, { method: "POST" });
  if (response.status !== 202) throw new Error(`not accepted: ${response.status}`);
}

await waitUntil("the first jobs", async () => (await queue.getCompletedCount()) > JOBS / 3);
console.log("the vendor serves nobody for 2 seconds");
await vendor.freeze(2);
await waitUntil("all jobs", async () => (await queue.getCompletedCount()) === JOBS, 120_000);

const { accepted, accepted_twice, refused, calls_during_freeze, seconds, budget_used } = await vendor.account();
console.table({ accepted, accepted_twice, refused, calls_during_freeze, seconds, budget_used });

await Promise.all(workers.map((worker) => worker.close()));
await queue.close();
await redis.quit();
site.close();
await vendor.stop();
await server.stop();
