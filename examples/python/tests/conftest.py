"""Every test has the module's folder in its path, and servers that are its own session's."""

import gc
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from servers import mock_vendor, private_redis  # noqa: E402


@pytest.fixture(scope="session")
def redis_url():
    with private_redis() as url:
        yield url


@pytest.fixture(scope="session")
def vendor():
    # Its burst is large enough for a machine that stands still for a moment.
    with mock_vendor("--rate", "50", "--burst", "50") as vendor:
        yield vendor


@pytest.fixture(scope="session")
def tasks(redis_url, vendor):
    os.environ.update(REDIS_URL=redis_url, VENDOR=vendor.url)
    import tasks

    yield tasks
    # Results say goodbye to the server when they are collected: while it is there.
    gc.collect()
    tasks.app.close()
