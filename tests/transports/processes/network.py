"""A network of two: this process here, another in a network namespace, and a cable between them."""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

_numbers = itertools.count()


class Network:
    """`prefix` runs a command at the other end; `there` is its address, `here` ours."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        #: Of 198.18.0.0/15, which is for tests of networks.
        base = f"198.18.{os.getpid() % 250}"
        self.here, self.there = f"{base}.{4 * number + 1}", f"{base}.{4 * number + 2}"
        self.prefix = ["ip", "netns", "exec", name]

    def set_cable(self, state: str) -> None:
        """Unplug it at the other end ("down"), or plug it in ("up")."""
        run("ip", "-n", self.name, "link", "set", "there", state)

    def slow_down(self, rate: str) -> None:
        """What the other end sends goes no faster than `rate`; one queue of 50 ms is before it."""
        run(
            *("tc", "-n", self.name, "qdisc", "add", "dev", "there", "root"),
            *("tbf", "rate", rate, "burst", "32kb", "latency", "50ms"),
        )


def run(*command: str) -> None:
    """A command that must work."""
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Such a network; where it can't be made, the test is skipped."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("iproute2 is not installed")
    number = next(_numbers)
    net = Network(f"kv{os.getpid()}-{number}", number)
    ours = f"kv{os.getpid() % 100_000}.{number}"
    try:
        run("ip", "netns", "add", net.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr.decode().strip()}")
    try:
        run(
            *("ip", "link", "add", ours, "type", "veth"),
            *("peer", "name", "there", "netns", net.name),
        )
        run("ip", "addr", "add", f"{net.here}/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        run("ip", "-n", net.name, "addr", "add", f"{net.there}/30", "dev", "there")
        run("ip", "-n", net.name, "link", "set", "there", "up")
        run("ip", "-n", net.name, "link", "set", "lo", "up")
        yield net
    finally:
        run("ip", "netns", "del", net.name)  # the cable goes with it
