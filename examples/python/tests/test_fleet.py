"""Celery, its broker, the bucket and the vendor together."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import requests
from celery.contrib.testing.worker import start_worker
from celery.signals import task_prerun, task_retry

from limits import RateLimitExceeded
from servers import free_port, mock_vendor, private_redis, wait_until


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


def test_while_redis_is_away_nothing_counts(tasks, worker, seen, monkeypatch):
    starts, reasons = seen
    with monkeypatch.context() as away:
        away.setattr(tasks.bucket, "redis", redis.Redis(port=free_port()))
        result = tasks.call_vendor.delay()
        wait_until("more tries than a job has", lambda: len(reasons) > tasks.call_vendor.max_retries + 1)
    assert result.get(timeout=30) == 0
    assert all(retries == 0 for _, retries in starts)


def test_what_a_dead_worker_has_fetched_is_done_by_another():
    with private_redis() as url, mock_vendor("--rate", "50", "--burst", "50") as vendor:
        environment = {**os.environ, "REDIS_URL": url, "VENDOR": vendor.url, "VISIBILITY_TIMEOUT": "4"}
        folder = Path(__file__).parent.parent
        celery = [sys.executable, "-m", "celery", "-A", "tasks"]
        client = redis.Redis.from_url(url)

        def start():
            arguments = [*celery, "worker", "--concurrency", "2", "--loglevel", "ERROR", "--without-mingle"]
            return subprocess.Popen(arguments, cwd=folder, env=environment, start_new_session=True)

        client.execute_command("TB.PENALISE", "limit:vendor", 8)
        first = start()
        try:
            send = "import tasks; [tasks.call_vendor.delay() for _ in range(20)]"
            subprocess.run([sys.executable, "-c", send], cwd=folder, env=environment, check=True)
            # All: a worker that dies as it takes a job, before it has noted that, loses it.
            wait_until("it to have all that wait", lambda: client.hlen("unacked") == 20 and client.llen("celery") == 0)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        second = start()
        try:
            wait_until("all jobs", lambda: vendor.account()["accepted"] >= 20, seconds=60)
        finally:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
