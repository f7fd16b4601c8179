"""The whole of it once: Redis, vendor, a Celery worker with four processes, 200 jobs, and a
429 for everybody on the way. `./dev example python` runs it."""

import os
import sys
from pathlib import Path

from servers import mock_vendor, private_redis, running, wait_until

JOBS = 200

with private_redis() as url, mock_vendor("--rate", "50", "--burst", "10") as vendor:
    os.environ.update(REDIS_URL=url, VENDOR=vendor.url)
    import tasks  # reads them

    worker = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "4", "-l", "WARNING"]
    with running(worker, cwd=Path(__file__).parent) as process:
        print(f"{JOBS} jobs")
        results = [tasks.call_vendor.delay() for _ in range(JOBS)]
        wait_until("the first jobs", lambda: vendor.account()["accepted"] > JOBS / 3)
        print("the vendor serves nobody for 2 seconds")
        vendor.freeze(2)
        retries = [result.get(timeout=120) for result in results]
        print(f"all done; retries counted: {sum(retries)}")
        for name, value in vendor.account().items():
            print(f"{name:20} {value}")
        process.terminate()
        process.wait(30)
