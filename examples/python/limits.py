"""What a worker needs of the token bucket, over redis-py."""

import logging
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from redis import RedisError

log = logging.getLogger(__name__)

#: The server takes no later moment and no longer time.
MOST = 1e11


class RateLimitExceeded(Exception):
    """There is no call to be had now. Not the job's fault: count no attempt."""

    def __init__(self, status, wait):
        super().__init__(f"{status}, again in {wait} s")
        #: "empty", "frozen" (a 429) or "window" (the vendor's own count).
        self.status = status
        #: Come back after so many seconds.
        self.wait = wait

    def __reduce__(self):  # Celery carries it from process to process
        return type(self), (self.status, self.wait)


@dataclass(frozen=True)
class Decision:
    """An answer of TB.CONSUME. `wait` is in seconds."""

    allowed: bool
    remaining: int
    wait: float
    status: str


class Bucket:
    """At most `capacity` calls at once, `rate` more every `per` seconds, for everybody who
    uses this key. The limit travels with every call, so there is nothing to set up."""

    def __init__(self, redis, key, capacity, rate, per=1):
        self.redis, self.key, self.limit = redis, key, (capacity, rate)
        self.per = per

    def take(self, tokens=1, max_wait=0):
        """Takes tokens if they are there now, or within `max_wait`: then they are yours
        after `wait`. If not allowed, `wait` says when to ask again. 0 tokens only ask."""
        reserve = ("MAXWAIT", max_wait) if max_wait else ()
        reply = self.redis.execute_command(
            "TB.CONSUME", self.key, *self.limit, tokens, "PER", self.per, *reserve
        )
        allowed, remaining, wait_ms, _, status = reply[:5]  # a later server may append
        if isinstance(status, bytes):
            status = status.decode()
        if status == "never":
            raise ValueError(f"{self.key}: {tokens} tokens are more than its capacity")
        return Decision(allowed == 1, remaining, wait_ms / 1000, status)

    def call(self, make, max_wait=1):
        """Makes a call, which gives a response of `requests`, when there is a token for
        it, and waits for one for at most `max_wait`. A 429 stops everybody."""
        while True:
            slot = self.take(max_wait=max_wait)
            if not slot.allowed:
                raise RateLimitExceeded(slot.status, slot.wait)
            if not slot.wait:
                break
            time.sleep(slot.wait)
            # A 429 that another worker got meanwhile has voided the slot.
            if self.take(tokens=0).status != "frozen":
                break
        response = make()
        if response.status_code == 429:
            raise RateLimitExceeded("frozen", self.penalise(response.headers))
        self.sync(response.headers, slot.remaining)
        return response

    def penalise(self, headers):
        """Nothing for anybody before Retry-After; says for how many seconds."""
        end = retry_after(headers.get("Retry-After", ""))
        return self.redis.execute_command("TB.PENALISE", self.key, *end) / 1000

    def sync(self, headers, remaining):
        """Lowers the bucket where the vendor has less left than the `remaining` we know of:
        others use the same account. Where it has not, nothing is sent. The call is made, so
        what fails here is logged."""
        left, reset = (number(headers.get(f"X-RateLimit-{name}", "")) for name in ("Remaining", "Reset"))
        if left is None:
            return
        # A Unix time is the end of a window, with some in milliseconds; what is small
        # means "full again" with most.
        if reset is not None and reset > MOST:
            reset /= 1000
        window = ("RESETAT", reset) if reset is not None and reset > 1e9 else ()
        if left < remaining or (left == 0 and window):
            try:
                self.redis.execute_command("TB.SYNC", self.key, left, *window)
            except RedisError as error:
                log.warning("%s: not lowered to %s: %s", self.key, left, error)


def number(text):
    """Of a header field; None where it is none. What `float` takes besides is no field's."""
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None


def retry_after(text):
    """The end of a freeze as TB.PENALISE takes it; in 10 seconds where it cannot be read."""
    seconds = number(text)
    if seconds is not None:
        return (min(seconds, MOST),)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return (10,)
    return ("UNTIL", min(moment, MOST)) if moment >= 0 else (10,)
