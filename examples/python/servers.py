"""A private Redis with the module and the mock vendor, for trying things out.

TOKENBUCKET_MODULE and VENDOR_PROGRAM say where they are; ../../dev sets them.
"""

import contextlib
import os
import socket
import subprocess
import tempfile
import time

import redis
import requests


def needed(name):
    if name not in os.environ:
        raise SystemExit(f"{name} is not set; ./dev test and ./dev example python do it")
    return os.environ[name]


def wait_until(what, condition, seconds=30):
    """Waits for what is bound to come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def running(arguments, **options):
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def private_redis():
    """Gives its URL."""
    port, module = str(free_port()), needed("TOKENBUCKET_MODULE")
    binary = os.environ.get("REDIS_SERVER", "redis-server")
    with tempfile.TemporaryDirectory(prefix="tb-python-") as folder:
        arguments = [binary, "--port", port, "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        arguments += ["--loadmodule", module]
        with running(arguments, stdout=subprocess.DEVNULL) as process:
            client = redis.Redis(port=int(port))

            def answers():
                if process.poll() is not None:
                    raise RuntimeError(f"{binary} ended with {process.returncode}")
                with contextlib.suppress(redis.ConnectionError):
                    return client.ping()

            wait_until("the server", answers)
            yield f"redis://127.0.0.1:{port}/0"


class Vendor:
    """The mock vendor, through its back doors."""

    def __init__(self, url):
        self.url = url

    def account(self):
        return requests.get(f"{self.url}/account", timeout=10).json()

    def freeze(self, seconds):
        requests.post(f"{self.url}/freeze?seconds={seconds}", timeout=10).raise_for_status()


@contextlib.contextmanager
def mock_vendor(*options):
    program = needed("VENDOR_PROGRAM")
    with running([program, *options], stdout=subprocess.PIPE, text=True) as process:
        yield Vendor(process.stdout.readline().strip())
