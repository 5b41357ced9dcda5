"""Ten gigabytes through a link, and memory stays flat."""

import asyncio
from pathlib import Path

import pytest

from transports.config import SessionConfig
from transports.errors import Unsupported
from transports.registry import TRANSPORTS, make_transport
from transports.testing.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", TRANSPORTS)
def test_ten_gigabytes(scheme: str, tmp_path: Path) -> None:
    ours = {"memory": "memory://soak", "shm": f"shm://{tmp_path}/s"}
    address = ours.get(scheme, f"{scheme}://127.0.0.1:0")
    try:
        make_transport(address, SessionConfig(node_id="probe"))
    except Unsupported as error:
        pytest.skip(f"{scheme}: {error}")
    soaked = asyncio.run(soak(address, 10_000_000_000))
    assert soaked.num_bytes >= 9_900_000_000
    assert soaked.late_bytes < soaked.early_bytes + (32 << 20), str(soaked)
