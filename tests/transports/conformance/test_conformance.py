"""Every transport keeps every promise: plainly, with late frames, in debug mode, and on uvloop."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transports.api import Transport
from transports.config import SessionConfig
from transports.errors import Unsupported
from transports.faults import ALWAYS, Fault, Kind, Plan
from transports.registry import TRANSPORTS, make_transport
from transports.testing import CHECKS, Check, Setup, run
from transports.testing.conformance import (
    CANCELLING,
    ENDING,
    FLOW,
    MESSAGES,
    PLAIN,
    READS,
)
from transports.testing.flow import check_cancelled_messages_return_their_credit

#: UCX takes long to connect: its variants are left to a run that has time.
QUICK = [scheme for scheme in TRANSPORTS if scheme != "ucx"]
#: Each frame lets others go first; now and then one is late by a time that can be felt.
LATE = Plan(
    tuple(
        Fault(kind=Kind.DELAY, direction=direction, at=0, times=ALWAYS)
        for direction in ("out", "in")
    )
    + tuple(Fault(kind=Kind.STALL, at=at, seconds=0.02) for at in (3, 17))
)
#: Those that cancel at a moment when, without delays, nothing is being written, are left out.
ALSO_LATE = [
    check
    for check in [*MESSAGES, *FLOW, *ENDING, *CANCELLING]
    if check is not check_cancelled_messages_return_their_credit
]
_numbers = itertools.count()


def _addresses(scheme: str, folder: Path) -> Callable[[], str]:
    match scheme:
        case "memory":
            return lambda: f"memory://conformance-{next(_numbers)}"
        case "shm":
            return lambda: f"shm://{folder}/{next(_numbers)}"
        case _:
            return lambda: f"{scheme}://127.0.0.1:0"


@pytest.fixture
def setup(scheme: str) -> Iterator[Setup]:
    with tempfile.TemporaryDirectory(prefix="kx") as folder:
        address = _addresses(scheme, Path(folder))
        try:
            make_transport(address(), SessionConfig(node_id="probe"))
        except Unsupported as error:
            pytest.skip(f"{scheme}: {error}")

        def make(config: SessionConfig) -> Transport:
            return make_transport(address(), config)

        yield Setup(make=make, address=address, other_loops=scheme != "memory")


def _name(check: Any) -> str:
    return str(check.__name__).removeprefix("check_")


@pytest.mark.parametrize("check", CHECKS, ids=_name)
@pytest.mark.parametrize("scheme", TRANSPORTS)
def test_promise(setup: Setup, check: Check) -> None:
    asyncio.run(run(check, setup))


@pytest.mark.parametrize("check", ALSO_LATE, ids=_name)
@pytest.mark.parametrize("scheme", QUICK)
def test_promise_with_late_frames(setup: Setup, check: Check) -> None:
    asyncio.run(run(check, setup.faulty(LATE, LATE)))


@pytest.mark.parametrize("check", READS, ids=_name)
@pytest.mark.parametrize("scheme", ["ucx"])
def test_promise_of_reads_between_hosts(
    setup: Setup, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a peer doesn't see the owner's memory."""
    monkeypatch.setattr("transports.ucx_region.found", lambda *_: None)
    asyncio.run(run(check, setup))


@pytest.mark.parametrize("scheme", QUICK)
def test_promises_in_debug_mode(setup: Setup) -> None:
    async def all_of_them() -> None:
        for check in [*MESSAGES, *ENDING]:
            await run(check, setup)

    asyncio.run(all_of_them(), debug=True)


@pytest.fixture(scope="module")
def new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    uvloop = pytest.importorskip("uvloop", reason="uvloop isn't installed")
    uvloop.new_event_loop().close()  # the first opens a pipe that stays for all
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


@pytest.mark.parametrize("scheme", TRANSPORTS)
def test_promises_on_uvloop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], setup: Setup, scheme: str
) -> None:
    async def all_of_them() -> None:
        for check in PLAIN if scheme == "tcp" else MESSAGES:
            await run(check, setup)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(all_of_them())
