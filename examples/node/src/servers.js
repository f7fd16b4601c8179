// A private Redis with the module and the mock vendor, for trying things out. Both end
// with `stop`. TOKENBUCKET_MODULE and VENDOR_PROGRAM say where they are; ../../dev sets them.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Redis } from "ioredis";

function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; ./dev test and ./dev example node do it`);
  return value;
}

async function end(child) {
  if (child.exitCode === null && child.signalCode === null) {
    const gone = once(child, "exit");
    child.kill("SIGKILL");
    await gone;
  }
}

/** A Redis: `path` is its socket. */
export async function startRedis() {
  const dir = await mkdtemp(join(tmpdir(), "tb-node-"));
  const path = join(dir, "socket");
  const binary = process.env.REDIS_SERVER ?? "redis-server";
  const options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", dir];
  const log = ["--logfile", join(dir, "log"), "--loadmodule", needed("TOKENBUCKET_MODULE")];
  const child = spawn(binary, [...options, ...log], { stdio: "ignore" });
  const probe = new Redis({ path, lazyConnect: true, maxRetriesPerRequest: null, retryStrategy: () => 20 });
  probe.on("error", () => {}); // it is not there yet
  const ended = once(child, "exit").then(async () => {
    throw new Error(`${binary} ended:\n${await readFile(join(dir, "log"), "utf8")}`);
  });
  ended.catch(() => {});
  await Promise.race([probe.ping(), ended]);
  await probe.quit();
  const stop = async () => {
    await end(child);
    await rm(dir, { recursive: true, force: true });
  };
  return { path, stop };
}

/** A vendor: `url` is its address; `account` and `freeze` are its back doors. */
export async function startVendor(...options) {
  const child = spawn(needed("VENDOR_PROGRAM"), options, { stdio: ["ignore", "pipe", "inherit"] });
  const [url] = await once(createInterface({ input: child.stdout }), "line");
  const get = async (path) => await (await fetch(`${url}/${path}`)).json();
  return {
    url,
    account: () => get("account"),
    calls: () => get("calls"),
    freeze: (seconds) => fetch(`${url}/freeze?seconds=${seconds}`, { method: "POST" }),
    stop: () => end(child),
  };
}

/** Waits for what is bound to come. */
export async function waitUntil(what, condition, deadlineMs = 30_000) {
  const deadline = Date.now() + deadlineMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what}`);
    await sleep(20);
  }
}
