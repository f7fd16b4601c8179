"""The bucket on its own: what it asks, and what it makes of the answers."""

import pickle
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest
import redis

from limits import Bucket, Decision, RateLimitExceeded


@pytest.fixture
def client(redis_url):
    client = redis.Redis.from_url(redis_url)
    client.delete("k")
    return client


@pytest.fixture
def slow(client):
    """Nothing refills while a test runs."""
    return Bucket(client, "k", capacity=2, rate=1, per=3600)


def answer(status_code=200, **headers):
    return SimpleNamespace(status_code=status_code, headers=headers)


def test_a_call_is_allowed_while_there_are_tokens_and_then_told_when(slow):
    assert slow.take() == Decision(True, 1, 0, "granted")
    assert slow.take().allowed
    denied = slow.take()
    assert (denied.allowed, denied.remaining, denied.status) == (False, 0, "empty")
    assert 3500 < denied.wait <= 3600


def test_statuses_are_text_whatever_the_client_decodes(redis_url, slow):
    decoding = redis.Redis.from_url(redis_url, decode_responses=True)
    assert Bucket(decoding, "k", 2, 1, 3600).take(tokens=0).status == "granted"


def test_zero_tokens_only_ask(client, slow):
    assert slow.take(tokens=0) == Decision(True, 2, 0, "granted")
    assert client.exists("k") == 0


def test_more_than_the_capacity_is_a_mistake(slow):
    with pytest.raises(ValueError):
        slow.take(tokens=3)


def test_without_a_token_there_is_no_call(slow):
    slow.take(tokens=2)
    calls = []
    with pytest.raises(RateLimitExceeded) as raised:
        slow.call(lambda: calls.append(1))
    assert raised.value.status == "empty" and 3500 < raised.value.wait <= 3600
    assert calls == []


def test_a_token_that_is_near_is_waited_for(client):
    bucket = Bucket(client, "k", capacity=1, rate=5)
    bucket.take()
    begun = time.monotonic()
    assert bucket.call(answer).status_code == 200
    assert time.monotonic() - begun > 0.1


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        (lambda: {"Retry-After": "30"}, 29, 30),
        (lambda: {"Retry-After": formatdate(time.time() + 30, usegmt=True)}, 28, 30),
        (lambda: {}, 9, 10),
        *[
            (lambda text=text: {"Retry-After": text}, 9, 10)
            for text in ("soon", "", "nan", "inf", "-1", "1e400", "٣", "Mon, 01 Jan 1900 00:00:00 GMT")
        ],
        (lambda: {"Retry-After": "9" * 400}, 604_799, 604_800),
    ],
)
def test_a_429_stops_everybody(slow, headers, least, most):
    with pytest.raises(RateLimitExceeded) as raised:
        slow.call(lambda: answer(429, **headers()))
    assert raised.value.status == "frozen" and least < raised.value.wait <= most
    calls = []
    with pytest.raises(RateLimitExceeded) as raised:
        slow.call(lambda: calls.append(1))
    assert (raised.value.status, calls) == ("frozen", [])


def test_a_slot_that_a_429_voided_meanwhile_is_not_used(client):
    bucket = Bucket(client, "k", capacity=1, rate=2)
    bucket.take()
    calls = []
    other = threading.Timer(0.1, lambda: client.execute_command("TB.PENALISE", "k", 60))
    other.start()
    with pytest.raises(RateLimitExceeded) as raised:
        bucket.call(lambda: calls.append(1))
    other.join()
    assert (raised.value.status, calls) == ("frozen", [])


@pytest.fixture
def large(client):
    return Bucket(client, "k", capacity=100, rate=1, per=3600)


def test_where_the_vendor_has_less_left_the_bucket_is_lowered(client, large):
    def syncs():
        return client.info("commandstats").get("cmdstat_tb.sync", {}).get("calls", 0)

    large.call(lambda: answer(**{"X-RateLimit-Remaining": "40", "X-RateLimit-Reset": "30"}))
    assert large.take().remaining == 39
    before = syncs()
    for headers in ({"X-RateLimit-Remaining": "80"}, {"X-RateLimit-Remaining": "many"}, {}):
        large.call(lambda: answer(**headers))
    assert syncs() == before, "where it has more nothing is sent"
    assert large.take(tokens=0).remaining == 36


@pytest.mark.parametrize("times", [1, 1000], ids=["seconds", "milliseconds"])
def test_a_window_that_is_used_up_holds_until_its_reset(large, times):
    reset = str((int(time.time()) + 20) * times)
    large.call(lambda: answer(**{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}))
    denied = large.take()
    assert denied.status == "window" and 15 < denied.wait <= 20


def test_a_sync_that_fails_does_not_undo_the_call(client, large):
    def make():
        client.set("k", "no bucket")
        return answer(**{"X-RateLimit-Remaining": "3"})

    assert large.call(make).status_code == 200


def test_the_error_goes_from_process_to_process():
    copy = pickle.loads(pickle.dumps(RateLimitExceeded("frozen", 2.5)))
    assert (copy.status, copy.wait) == ("frozen", 2.5)
