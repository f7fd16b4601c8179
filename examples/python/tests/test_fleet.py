"""Celery, its broker, the bucket and the vendor together."""

import pytest
import requests
from celery.contrib.testing.worker import start_worker
from celery.signals import task_prerun, task_retry

from limits import RateLimitExceeded
from servers import wait_until


@pytest.fixture
def worker(tasks):
    """One with four threads, so that its signals come here."""
    with start_worker(tasks.app, pool="threads", concurrency=4, perform_ping_check=False):
        yield


@pytest.fixture
def seen():
    """Every start of a task with the retries so far, and why it was sent again."""
    starts, reasons = [], []

    def started(task, **_):
        starts.append((task.request.id, task.request.retries))

    def sent_again(reason, **_):
        reasons.append(reason.exc)

    task_prerun.connect(started)
    task_retry.connect(sent_again)
    yield starts, reasons
    task_prerun.disconnect(started)
    task_retry.disconnect(sent_again)


def test_no_attempt_is_counted_through_a_429_and_the_freeze_that_it_brings(tasks, vendor, worker, seen):
    starts, reasons = seen
    before = vendor.account()["accepted"]
    results = [tasks.call_vendor.delay() for _ in range(80)]
    wait_until("the first jobs", lambda: vendor.account()["accepted"] > before + 20)
    vendor.freeze(2)
    assert [result.get(timeout=60) for result in results] == [0] * 80

    account = vendor.account()
    assert account["accepted"] - before == 80 and account["accepted_twice"] == 0
    assert 1 <= account["refused"] <= 4, "the 429s of calls in flight, and no more"
    frozen = [reason for reason in reasons if reason.status == "frozen"]
    assert len(frozen) > account["refused"], "no job was denied by the freeze itself"
    assert len(starts) == 80 + len(reasons), "each was taken up again"
    assert all(retries == 0 for _, retries in starts)
    assert {id for id, _ in starts} == {result.id for result in results}, "under its own id"


def test_a_real_failure_is_an_attempt(tasks, vendor, worker, seen):
    starts, reasons = seen
    result = tasks.call_vendor.delay("broken")
    with pytest.raises(requests.HTTPError):
        result.get(timeout=30)
    real = [reason for reason in reasons if not isinstance(reason, RateLimitExceeded)]
    assert len(real) == 2
    assert sorted({retries for _, retries in starts}) == [0, 1, 2]
