"""Which processes a cluster is made of, and how each is started.

Owns:   their names and commands.
Knows nothing of: processes that run.
"""

import os
import secrets
import sys
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import Final

from kvdist.web.membership import Role

ROUTER: Final = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `kvdist up` was told."""

    model: str
    num_prefill: int = 1
    num_decode: int = 1
    transport: str = "tcp"
    host: str = "127.0.0.1"
    port: int = 8000
    #: Flags of `kvdist serve`, for every node.
    node_flags: tuple[str, ...] = ()
    #: Flags of `kvdist router`.
    router_flags: tuple[str, ...] = ()
    program: tuple[str, ...] = (sys.executable, "-m", "kvdist")

    @property
    def nodes(self) -> dict[str, Role]:
        """By name."""
        named: dict[str, Role] = {f"p{i}": "prefill" for i in range(self.num_prefill)}
        return named | {f"d{i}": "decode" for i in range(self.num_decode)}

    def router(self, lifeline: int) -> Listing[str]:
        """The router's command."""
        return [
            *self._kvdist(lifeline),
            *("router", f"--host={self.host}", f"--port={self.port}", "--log-format=json"),
            *self.router_flags,
        ]

    def node(self, name: str, registry: str, lifeline: int) -> Listing[str]:
        """A node's command."""
        return [
            *self._kvdist(lifeline),
            *("serve", self.model, f"--node-id={name}", f"--role={self.nodes[name]}"),
            *(f"--transport={self.transport}", f"--registry={registry}"),
            *("--host=127.0.0.1", "--port=0", "--log-format=json"),
            *self.node_flags,
        ]

    def environment(self) -> dict[str, str]:
        """Of all of them: secrets that nobody else knows, a share of the processors for each."""
        env = dict(os.environ)
        env["KVDIST_REGISTRY_TOKEN"] = secrets.token_hex(16)
        env["KVDIST_CLUSTER_TOKEN"] = secrets.token_hex(16)
        share = (os.cpu_count() or 1) // (self.num_prefill + self.num_decode)
        env.setdefault("OMP_NUM_THREADS", str(max(1, share)))
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def _kvdist(self, lifeline: int) -> Listing[str]:
        return [*self.program, f"--lifeline={lifeline}"]
