"""Every transport keeps every promise: plainly, late, in debug mode, and on uvloop."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from transports.api import Transport
from transports.config import SessionConfig
from transports.errors import Unsupported
from transports.registry import TRANSPORTS, make_transport
from transports.testing import CHECKS, Check, Setup, run

_numbers = itertools.count()


def _addresses(scheme: str, folder: Path) -> Callable[[], str]:
    match scheme:
        case "memory":
            return lambda: f"memory://conformance-{next(_numbers)}"
        case "shm":
            return lambda: f"shm://{folder}/{next(_numbers)}"
        case _:
            return lambda: f"{scheme}://127.0.0.1:0"


@pytest.fixture(scope="module", params=list(TRANSPORTS))
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    scheme = request.param
    with tempfile.TemporaryDirectory(prefix="kx") as folder:
        address = _addresses(scheme, Path(folder))
        try:
            make_transport(address(), SessionConfig(node_id="probe"))
        except Unsupported as error:
            pytest.skip(f"{scheme}: {error}")

        def make(config: SessionConfig) -> Transport:
            return make_transport(address(), config)

        yield Setup(make=make, address=address, other_loops=scheme != "memory")


def _name(check: Check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize("check", CHECKS, ids=_name)
def test_promise(setup: Setup, check: Check) -> None:
    asyncio.run(run(check, setup))
