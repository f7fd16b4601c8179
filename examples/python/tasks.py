"""The Celery application: one task, which calls the vendor.

    REDIS_URL=redis://127.0.0.1:6379/0 VENDOR=http://127.0.0.1:8429 celery -A tasks worker
"""

import os

import redis
import requests
from celery import Celery
from celery.exceptions import Retry
from celery.utils.log import get_task_logger

from limits import Bucket, RateLimitExceeded

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
VENDOR = os.environ.get("VENDOR", "http://127.0.0.1:8429")

#: A task that its worker has not acknowledged for so long, in seconds, is given to another:
#: the worker has died. Longer than any worker has one, so LONGEST_WAIT and the call itself.
VISIBILITY_TIMEOUT = float(os.environ.get("VISIBILITY_TIMEOUT", 60))
#: A task that is to wait for longer asks again in between.
LONGEST_WAIT = VISIBILITY_TIMEOUT / 2

log = get_task_logger(__name__)
app = Celery("fleet", broker=REDIS_URL, backend=REDIS_URL)
app.conf.update(
    broker_transport_options={
        "visibility_timeout": VISIBILITY_TIMEOUT,
        # Workers look for such tasks so often; unless set, every 100 seconds or so.
        "unacked_restore_interval": VISIBILITY_TIMEOUT / 4,
        "unacked_restore_throttle": 1,
    },
    worker_eta_task_limit=100,  # one worker is not to fetch all that wait
    # To send a task again is not given up while Redis is away.
    task_publish_retry_policy={"max_retries": None, "interval_max": 1},
    task_acks_late=True,  # a worker that dies loses no job
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)

bucket = Bucket(redis.Redis.from_url(REDIS_URL), "limit:vendor", capacity=8, rate=50)


def later(task, limited):
    """Sends the task again, in `limited.wait` seconds or LONGEST_WAIT; to be raised.

    `task.retry()` counts: a freeze of some minutes would use up all the retries, and
    `max_retries=None` would never give up on a job that fails by itself. So this sends
    what `retry` sends, the same task under the same id, with the count as it is.
    """
    wait = min(limited.wait, LONGEST_WAIT)
    again = task.signature_from_request(countdown=wait, retries=task.request.retries)
    again.apply_async()
    return Retry(exc=limited, when=wait, sig=again)


@app.task(bind=True, max_retries=2)
def call_vendor(self, path="send"):
    """Calls the vendor; says how often it was tried before. Fails after three failures."""

    def call():
        key = {"Idempotency-Key": self.request.id}
        return requests.post(f"{VENDOR}/{path}", headers=key, timeout=10)

    try:
        response = bucket.call(call)
        response.raise_for_status()
    except RateLimitExceeded as limited:
        raise later(self, limited)
    except redis.RedisError as error:
        # There was no call, or one that ended in a 429.
        log.warning("no word from the bucket: %s", error)
        raise later(self, RateLimitExceeded("away", 1))
    except requests.RequestException as error:
        raise self.retry(exc=error, countdown=0.2 * 2**self.request.retries)
    return self.request.retries
