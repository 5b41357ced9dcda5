"""What the two processes of the transports benchmark say to each other, over the link itself.

Owns:   nothing.
Knows nothing of: what is measured.
"""

import json
from enum import IntEnum
from typing import Any

from transports.api import Link
from transports.config import SessionConfig

_TOKEN = b"only for this benchmark"


class Kind(IntEnum):
    """Of messages."""

    CALL = 1  #: meta: {"call": name, ...}; answered by REPLY
    REPLY = 2  #: meta: whatever the call returns
    WANT = 3  #: the blocks, please; answered by BLOCKS
    BLOCKS = 4
    ECHO = 5  #: comes back as it went


def config(name: str) -> SessionConfig:
    """Settings as they come: the benchmark shows what users get."""
    return SessionConfig(node_id=name, token=_TOKEN)


async def call(link: Link, name: str, **arguments: object) -> dict[str, Any]:
    """Ask the other side for something and wait for the answer."""
    await link.send(Kind.CALL, json.dumps({"call": name} | arguments).encode())
    answer: dict[str, Any] = json.loads((await link.recv()).meta)
    return answer
