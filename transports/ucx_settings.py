"""UCX settings that this transport asks for, and why. The user's own UCX_* come before them.

Knows nothing of: contexts, workers. Measured: docs of the benchmarks; UCX 1.21.
"""

from collections.abc import Mapping
from typing import Final

DEFAULTS: Final = {
    # With error handling on, UCX drops shared memory and cross-memory attach unless their own error
    # handling is asked for, and one host then talks over tcp: 0.8 GB/s in place of 6. The third
    # advertises for cma what the other two do for shared memory; without it reads are emulated.
    "POSIX_ERROR_HANDLING": "y",
    "SYSV_ERROR_HANDLING": "y",
    "CMA_MEMORY_INVALIDATE": "y",
    # How soon a dead peer is noticed over shared memory; by default only after 20 s.
    "KEEPALIVE_INTERVAL": "500ms",
    # Larger messages wait at the sender until a place for them is named.
    "RNDV_THRESH": "8192",
    # The receiver fetches. In put schemes the peer writes into our memory, and goes on to do so
    # when our side of the link has ended: no buffer would ever be quiet.
    "RNDV_SCHEME": "get_zcopy",
    # By default 8K / 64K: a third of the speed.
    "TCP_TX_SEG_SIZE": "256K",
    "TCP_RX_SEG_SIZE": "512K",
}


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The defaults that `environment` doesn't decide otherwise.

    >>> "RNDV_THRESH" in settings({"UCX_RNDV_THRESH": "64K"})
    False
    """
    return {name: value for name, value in DEFAULTS.items() if f"UCX_{name}" not in environment}
