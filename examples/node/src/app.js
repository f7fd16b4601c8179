// The route that enqueues. It does not wait for the vendor: 202, and where to look.

import express from "express";

/** An Express application over a BullMQ queue. */
export function createApp(queue) {
  const app = express();
  app.use(express.json());

  app.post("/jobs", async (request, response) => {
    const { path = "send" } = request.body ?? {};
    if (typeof path !== "string" || !/^[a-z]+$/.test(path)) {
      response.status(400).json({ error: "path must be lower case letters" });
      return;
    }
    // Three attempts for real failures. Waiting for the vendor is none.
    const job = await queue.add("call", { path }, { attempts: 3, backoff: { type: "exponential", delay: 200 } });
    response.status(202).location(`/jobs/${job.id}`).json({ id: job.id });
  });

  app.get("/jobs/:id", async (request, response) => {
    const job = await queue.getJob(request.params.id);
    if (!job) {
      response.status(404).json({ error: "no such job" });
      return;
    }
    response.json({ id: job.id, state: await job.getState(), attempts: job.attemptsMade, reason: job.failedReason });
  });

  return app;
}
