"""Large bodies on their way: what waits for the peer, one each way.

Knows nothing of: frames, wires, sessions.
"""

import asyncio
from collections.abc import Sequence

from transports.buffers import Cursor


class Offered:
    """A body of ours that waits for the peer's verdict."""

    def __init__(self, offer: int) -> None:
        self.offer = offer
        #: For a body that we offered: whether the peer wants it. For one that lands here: whether
        #: it did. False also when the link has ended; never an error, since that would hold the
        #: frames of those it was raised in, and so their buffers.
        self.result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(self, result: bool) -> None:
        """The first result counts."""
        if not self.result.done():
            self.result.set_result(result)


class Landing(Offered):
    """A body of the peer's that we asked for."""

    def __init__(self, offer: int, views: Sequence[memoryview]) -> None:
        super().__init__(offer)
        #: Where the rest of it goes.
        self.left = Cursor(views)
