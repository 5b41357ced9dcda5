"""The UCX context of one transport: settings, features, and what regions are registered with.

Owns:   the context; it goes when nothing refers to it any more.
Knows nothing of: workers, links.
"""

import os
from typing import Any

from transports import ucp
from transports.errors import Unsupported
from transports.ucx_settings import settings


class Context:
    """See the module. Raises: Unsupported if UCX isn't there or can't start."""

    def __init__(self) -> None:
        asked = settings(os.environ)  # before ucxx is imported: it sets some variables itself
        self.library: Any = ucp.library()
        from ucxx._lib import libucxx

        feature = libucxx.Feature
        features = (feature.TAG, feature.RMA, feature.WAKEUP)
        try:
            self._context: Any = libucxx.UCXContext(asked, features)
        except Exception as error:  # noqa: BLE001 ucxx has dozens of classes for statuses
            raise Unsupported(f"UCX can't start: {error}") from None
        #: UCX found a GPU to move bytes from and to.
        self.has_cuda = "cuda" in self._context.info

    @property
    def handle(self) -> int:
        """For calls of libucp."""
        assert self._context is not None, "workers and regions go before their context"
        handle: int = self._context.handle
        return handle

    def close(self) -> None:
        """Let go of it now, whoever still refers to this object; with it go UCX's own thread and
        descriptors. Idempotent; all workers and regions have gone before.
        """
        self._context = None
