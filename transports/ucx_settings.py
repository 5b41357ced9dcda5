"""UCX settings that this transport asks for, and why. The user's own UCX_* come before them.

Knows nothing of: contexts, workers. Measured: docs of the benchmarks; UCX 1.21.
"""

import re
from collections.abc import Mapping
from typing import Final

DEFAULTS: Final = {
    # One kind of shared memory is enough: a second doubles what each link costs.
    "TLS": "^sysv",
    # With error handling on, UCX drops shared memory and cross-memory attach unless their own error
    # handling is asked for, and one host then talks over tcp: 0.8 GB/s in place of 6. The second
    # advertises for cma what the first does for shared memory; without it reads are emulated.
    "POSIX_ERROR_HANDLING": "y",
    "CMA_MEMORY_INVALIDATE": "y",
    # A peer's socket and the link's own pings tell sooner of its death, and on all lanes; this
    # costs a timer for each side of a link.
    "KEEPALIVE_INTERVAL": "inf",
    # Messages this large stay at the sender until the receiver fetches them, which takes a round
    # trip more. The largest small body of a usual session, with its head, is smaller.
    "RNDV_THRESH": "72K",
    # The receiver fetches. In put schemes the peer writes into our memory, and goes on to do so
    # when our side of the link has ended: no buffer would ever be quiet.
    "RNDV_SCHEME": "get_zcopy",
    # Over tcp the kernel takes messages from here on out of their place, where UCX would copy them
    # first: it knows nothing of bodies that no cache holds.
    "ZCOPY_THRESH": "16K",
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


#: Copying more to the end of its head would cost what it saves.
MOST_EAGER: Final = (72 << 10) - 1
_SIZE = re.compile(r"(\d+)([KM]?)")


def eager_bytes(threshold: str) -> int:
    """Messages up to here certainly don't stay with their sender; `threshold` as UCX prints it.

    >>> eager_bytes("intra:8K,inter:64K"), eager_bytes("2M"), eager_bytes("0")
    (8191, 73727, 0)
    >>> eager_bytes("auto")  # it depends
    0
    """
    least = MOST_EAGER + 1
    for part in threshold.split(","):
        if (size := _SIZE.fullmatch(part.rpartition(":")[2])) is None:
            return 0
        least = min(least, int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]])
    return max(0, least - 1)
