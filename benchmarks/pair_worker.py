"""A worker's process without a model: memory, and the links that lend and fill it.

Owns:   the memory.
Knows nothing of: what is measured.

    python -m benchmarks.pair_worker FD BLOCKS BLOCK_BYTES     FD: the socket to who is the node
    <- ["fill", "64 MiB", 128, 524288]     or clear, check: the blocks of a pattern
    -> {}

Block 0 stands for none; a pattern's blocks are those behind it.
"""

import json
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks import patterns
from benchmarks.meter import hurry
from benchmarks.patterns import Pattern
from kvdist.connector.compat import fingerprint
from kvdist.connector.geometry import Geometry, Group
from kvdist.connector.messages import Fingerprint
from kvdist.links.layout import GroupLayout, Layout
from kvdist.links.memory import HostPool, Memory
from kvdist.links.worker_thread import WorkerThread

BLOCK_TOKENS: Final = 16
_GEOMETRY: Final = Geometry((Group("tokens", BLOCK_TOKENS),))
_JOBS: Final[dict[str, Callable[[Sequence[memoryview], Pattern], None]]] = {
    "fill": patterns.fill,
    "clear": patterns.clear,
    "check": patterns.check,
}


def main(descriptor: int, num_blocks: int, block_bytes: int) -> None:
    """Until the end of stdin. Raises: WrongBytesError."""
    hurry(True)  # the thread is as its maker
    thread = WorkerThread(socket.socket(fileno=descriptor))
    thread.start()
    size = num_blocks * block_bytes
    region = thread.allocate(size)
    view = patterns.memory(size) if region is None else region.view
    group = GroupLayout(1, BLOCK_TOKENS, 1, block_bytes // BLOCK_TOKENS)
    layout = Layout((group,), (0, 1), block_bytes, block_bytes)
    thread.begin(Memory(HostPool(view), layout, region), _GEOMETRY, _fingerprint)
    for line in sys.stdin:
        job, *fields = json.loads(line)
        pattern = Pattern(*fields)
        pool = view[block_bytes : block_bytes + pattern.pool_bytes]
        _JOBS[job](patterns.cut(pool, pattern), pattern)
        print("{}", flush=True)


def _fingerprint(hash_algorithm: str) -> Fingerprint:
    return fingerprint(
        _GEOMETRY,
        weights="none",
        dtype="uint8",
        element_bits=8,
        head_size=1,
        num_layers=(1,),
        hash_block_size=BLOCK_TOKENS,
        layout="token",
        hash_algorithm=hash_algorithm,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
