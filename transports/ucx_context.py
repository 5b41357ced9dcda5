"""The UCX context of one transport: settings, features, and what regions are registered with.

Owns:   the context, and older ones that workers or regions still use.
Knows nothing of: workers, links.
"""

from typing import Any

from transports import ucp
from transports.api import Capabilities
from transports.errors import Unsupported
from transports.ucx_settings import eager_bytes, settings


class Context:
    """See the module. Raises: Unsupported if UCX isn't there or can't start."""

    def __init__(self) -> None:
        self.library: Any = ucp.library()
        self._settings = settings(ucp.environment())
        self._contexts: list[Any] = []
        self.renew()
        #: What UCX makes of the settings.
        self.config: dict[str, str] = self._contexts[0].config
        #: Messages up to here don't stay in the sender's memory.
        self.eager_bytes = eager_bytes(self.config["RNDV_THRESH"])
        has_gpu = "cuda" in self._contexts[0].info
        self.capabilities = Capabilities(one_sided_reads=True, device_memory=has_gpu)

    def renew(self) -> None:
        """Look at the machine's devices again: with those that a context has found once, and that
        have gone since (the interface of a container, say), it can make no worker.
        """
        libucxx = ucp.ucxx()
        feature = libucxx.Feature
        features = (feature.TAG, feature.RMA, feature.WAKEUP)
        try:
            self._contexts.append(libucxx.UCXContext(self._settings, features))
        except Exception as error:  # noqa: BLE001 (ucxx has dozens of classes for statuses)
            raise Unsupported(f"UCX can't start: {error}") from None

    @property
    def handle(self) -> int:
        """For calls of libucp: what is current; older ones serve until `close`."""
        assert self._contexts, "workers and regions go before their context"
        handle: int = self._contexts[-1].handle
        return handle

    def close(self) -> None:
        """Let go of it now, whoever still refers to this object; with it go UCX's own thread and
        descriptors. Idempotent; all workers and regions have gone before.
        """
        self._contexts.clear()
