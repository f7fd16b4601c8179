// One call after another, over node-redis.
import { setTimeout as sleep } from "node:timers/promises";
import { createClient } from "redis";

const client = await createClient({ socket: { port: Number(process.env.REDIS_PORT) } }).connect();
const send = (...words) => client.sendCommand(words.map(String)); // it takes text only

async function call(job) {
  for (;;) {
    const [allowed, , waitMs] = await send("TB.CONSUME", "limit:vendor", 8, 50);
    if (!allowed) {
      await sleep(waitMs);
      continue;
    }
    const headers = { "idempotency-key": job };
    const response = await fetch(`${process.env.VENDOR}/send`, { method: "POST", headers });
    if (response.status !== 429) return;
    // Seconds here; a date goes after UNTIL, as Unix time.
    await send("TB.PENALISE", "limit:vendor", response.headers.get("retry-after") ?? 10);
  }
}

for (let job = 1; job <= Number(process.env.JOBS); job += 1) await call(`${job}`);
client.destroy();
