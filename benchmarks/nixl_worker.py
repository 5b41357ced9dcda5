"""The same scattered blocks through NIXL; runs under an interpreter that has nixl-cu12.

Owns:   two processes and their pools, one pair a job.
Knows nothing of: our transports.
Source: NIXL 1.5, nixl_cu12/_api.py: a READ of a list of descriptors over its UCX backend. The time
        includes making that list, as a pull of other blocks each time must.

    <- {"pattern": ["4 x 64 KiB", 4, 65536], "repeats": 5}
    -> {"seconds": [...]}
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from ctypes import addressof, c_char
from multiprocessing.connection import Connection
from typing import Any, Final

from nixl_cu12._api import nixl_agent  # type: ignore[import-not-found, unused-ignore]

from benchmarks import patterns
from benchmarks.meter import first_in_line, hurry
from benchmarks.patterns import Pattern

#: Between two looks of the owner, which has nothing else to do.
_LOOK_S: Final = 0.0005
_MEMORY: Final = "DRAM"


def _registered(agent: Any, pool: memoryview) -> int:
    """The pool's address, once NIXL knows it."""
    address = addressof(c_char.from_buffer(pool))
    agent.register_memory([(address, len(pool), 0, "")], _MEMORY)
    return address


def own(pipe: Connection, fields: Sequence[Any]) -> None:
    """The process that has the blocks."""
    pattern = Pattern(*fields)
    pool = patterns.memory(pattern.pool_bytes)
    patterns.fill(patterns.cut(pool, pattern), pattern)
    agent = nixl_agent("owner")
    address = _registered(agent, pool)
    pipe.send((agent.get_agent_metadata(), address))
    hurry(True)
    while not pipe.poll(_LOOK_S):
        agent.get_new_notifs()
    os._exit(0)


def read(fields: Sequence[Any], repeats: int) -> list[float]:
    """Seconds of each repeat, after one that doesn't count."""
    pattern = Pattern(*fields)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    owner = context.Process(target=own, args=(there, fields), daemon=True)
    owner.start()
    pool = patterns.memory(pattern.pool_bytes)
    blocks = patterns.cut(pool, pattern)
    metadata, remote = here.recv()
    agent = nixl_agent("reader")
    local = _registered(agent, pool)
    name = agent.add_remote_agent(metadata)
    size = pattern.block_bytes
    into = [(local + number * size, size, 0) for number in pattern.targets()]
    of = [(remote + number * size, size, 0) for number in pattern.sources()]
    seconds = []
    for _ in range(repeats + 1):
        patterns.clear(blocks, pattern)
        with first_in_line():
            start = time.perf_counter()
            handle = agent.initialize_xfer(
                "READ",
                agent.get_xfer_descs(into, _MEMORY),
                agent.get_xfer_descs(of, _MEMORY),
                name,
                b"done",
            )
            agent.transfer(handle)
            while (state := agent.check_xfer_state(handle)) == "PROC":
                pass
            seconds.append(time.perf_counter() - start)
        assert state == "DONE", state
        agent.release_xfer_handle(handle)
        patterns.check(blocks, pattern)
    here.send("stop")
    owner.join()
    return seconds[1:]


def serve() -> None:
    """Answer jobs until there are no more."""
    # What NIXL prints must not become an answer: its stdout is our stderr from here on.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with answers:
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                break
            job = json.loads(line)
            print(json.dumps({"seconds": read(job["pattern"], job["repeats"])}), file=answers)
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    serve()
