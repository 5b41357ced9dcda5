"""Two transports with a link between them, in one process: what most tests of links begin with."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from transports.api import Link, Transport
from transports.config import SessionConfig
from transports.registry import make_transport

#: Short deadlines, for tests that wait for them.
SHORT: dict[str, Any] = {"keepalive_s": 0.2, "lost_after_s": 1.0, "close_s": 1.0}


def config(node_id: str = "node", **settings: Any) -> SessionConfig:
    """A session's settings; those that aren't given are the usual ones."""
    return dataclasses.replace(SessionConfig(node_id=node_id), **settings)


def an_address(scheme: str, folder: Path) -> str:
    """Where a test may listen; `folder` is its own."""
    ours = {scheme: f"{scheme}://127.0.0.1:0" for scheme in ("tcp", "ucx")}
    return {**ours, "shm": f"shm://{folder}/s"}.get(scheme, "memory://here")


@dataclasses.dataclass
class Linked:
    """Both sides of one link."""

    near: Link
    far: Link
    near_transport: Transport
    far_transport: Transport
    address: str


@contextlib.asynccontextmanager
async def linked(
    address: str,
    near: SessionConfig | None = None,
    far: SessionConfig | None = None,
    **settings: Any,
) -> AsyncIterator[Linked]:
    """`near` has dialled `far`. Both transports are closed at the end."""
    near = near or config("near", **settings)
    far = far or config("far", **settings)
    async with (
        make_transport(address, near).open() as near_transport,
        make_transport(address, far).open() as far_transport,
    ):
        listener = await far_transport.listen(address)
        link = await near_transport.connect(listener.address)
        accepted = await listener.accept()
        yield Linked(link, accepted, near_transport, far_transport, listener.address)


def scattered(memory: bytearray, sizes: list[int]) -> list[memoryview]:
    """Views of these sizes, from the end of `memory` to its start, with a gap between them."""
    views, end = [], len(memory)
    for size in sizes:
        views.append(memoryview(memory)[end - size : end])
        end -= size + 1
    return views
