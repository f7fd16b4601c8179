"""The recipes of docs/recipes.md that can be run here, each against the vendor."""

import os
import subprocess
from pathlib import Path

import pytest
import redis

from servers import mock_vendor, private_redis, running, wait_until

EXAMPLES = Path(__file__).parent.parent.parent
JOBS = 20


@pytest.fixture
def site(request):
    """A Redis, a vendor that refuses the first call and everybody for a second, and what
    recipes are told."""
    options = ["--rate", "50", "--burst", "50", "--freeze-first", "1", *getattr(request, "param", [])]
    with private_redis() as url, mock_vendor(*options) as vendor:
        client = redis.Redis.from_url(url)
        port = str(client.get_connection_kwargs()["port"])
        yield client, vendor, {**os.environ, "REDIS_PORT": port, "VENDOR": vendor.url, "JOBS": str(JOBS)}


def assert_done(vendor, most_refused):
    account = vendor.account()
    assert (account["accepted"], account["accepted_twice"]) == (JOBS, 0), account
    assert 1 <= account["refused"] <= most_refused, "a 429, and nobody who did not hear of it"


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "recipes/redis-cli.sh"],
        ["node", "node/node-redis.js"],
        ["php", "recipes/phpredis.php"],
    ],
    ids=lambda command: command[0],
)
def test_one_call_after_another_gets_one_429(site, command):
    _, vendor, environment = site
    subprocess.run(command, cwd=EXAMPLES, env=environment, check=True, timeout=60)
    assert_done(vendor, most_refused=1)


@pytest.mark.parametrize("site", [["--dates"]], indirect=True)
def test_the_shell_reads_a_date(site):
    _, vendor, environment = site
    subprocess.run(["bash", "recipes/redis-cli.sh"], cwd=EXAMPLES, env=environment, check=True, timeout=60)
    assert_done(vendor, most_refused=1)


def test_sidekiq_counts_no_retry_while_the_vendor_is_frozen(site):
    client, vendor, environment = site
    recipe = str(EXAMPLES / "recipes" / "sidekiq.rb")
    enqueue = ["ruby", "-r", recipe, "-e", f"{JOBS}.times {{ |job| CallVendor.perform_async(job) }}"]
    subprocess.run(enqueue, env=environment, check=True, timeout=60)
    workers = 4
    with running(["sidekiq", "-r", recipe, "-c", str(workers)], env=environment) as process:
        wait_until("the jobs", lambda: vendor.account()["accepted"] >= JOBS, seconds=60)
        process.terminate()
        process.wait(30)
    assert_done(vendor, most_refused=workers)
    assert client.zcard("retry") == 0
    assert int(client.get("stat:failed") or 0) == 0
