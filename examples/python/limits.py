"""What a worker needs of the token bucket, over redis-py."""

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime


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
        after = headers.get("Retry-After", "10")  # if it does not say
        try:
            end = (float(after),)
        except ValueError:
            end = ("UNTIL", parsedate_to_datetime(after).timestamp())
        return self.redis.execute_command("TB.PENALISE", self.key, *end) / 1000

    def sync(self, headers, remaining):
        """Lowers the bucket where the vendor has less left than the `remaining` we know of:
        others use the same account. Where it has not, nothing is sent."""
        left, reset = headers.get("X-RateLimit-Remaining", ""), headers.get("X-RateLimit-Reset", "")
        if not left.isdecimal():
            return
        # A Unix time is the end of a window; what is small means "full again" with most.
        window = ("RESETAT", reset) if reset.isdecimal() and int(reset) > 1e9 else ()
        if int(left) < remaining or (int(left) == 0 and window):
            self.redis.execute_command("TB.SYNC", self.key, left, *window)
