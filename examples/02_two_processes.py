"""Two processes of one host: prefill holds KV blocks, decode asks for some and gets them twice.

Once as the body of a message, straight into buffers that decode names; once by reading prefill's
memory, while prefill does nothing. `docs/transports.md` has the same within one process.
"""

import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
from multiprocessing.synchronize import Event

from transports.api import Span
from transports.config import SessionConfig
from transports.errors import PeerClosed
from transports.registry import make_transport

TOKEN = b"a secret of the cluster"
BLOCK_BYTES, NUM_BLOCKS = 1 << 16, 8
WANT, BLOCKS, SHARED = 1, 2, 3


async def prefill(address: str, ready: Event) -> None:
    """Share the blocks and send those that are asked for, until decode closes the link."""
    transport = make_transport(address, SessionConfig(node_id="prefill", token=TOKEN))
    async with transport.open():
        pool = transport.allocate(NUM_BLOCKS * BLOCK_BYTES)
        blocks = [pool.view[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(NUM_BLOCKS)]
        for number, block in enumerate(blocks):
            block[:] = bytes([number]) * BLOCK_BYTES
        listener = await transport.listen(address)
        ready.set()
        link = await listener.accept()
        await link.send(SHARED, b"%d" % await link.share(pool))
        with contextlib.suppress(PeerClosed):
            while True:
                wanted = await link.recv()
                await link.send(BLOCKS, wanted.meta, [blocks[number] for number in wanted.meta])
        pool.close()


async def decode(address: str) -> None:
    """Fetch blocks 5 and 2 in both ways."""
    transport = make_transport(address, SessionConfig(node_id="decode", token=TOKEN))
    async with transport.open():
        link = await transport.connect(address)
        region = int((await link.recv()).meta)

        sent = [bytearray(BLOCK_BYTES) for _ in range(2)]
        await link.send(WANT, bytes([5, 2]))
        await link.recv(lambda head: sent)

        read = [bytearray(BLOCK_BYTES) for _ in range(2)]
        spans = [Span(number * BLOCK_BYTES, BLOCK_BYTES) for number in (5, 2)]
        await link.read(region, spans, read).wait()

        said = [[block[0] for block in blocks] for blocks in (sent, read)]
        print(f"{link.peer.node_id} sent blocks {said[0]}, and we read {said[1]}")
        await link.close()


def run_prefill(address: str, ready: Event) -> None:
    """The other process."""
    asyncio.run(prefill(address, ready))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="kvdist") as folder:
        ready, address = spawn.Event(), f"shm://{folder}/prefill"
        process = spawn.Process(target=run_prefill, args=(address, ready))
        process.start()
        assert ready.wait(30), "prefill doesn't listen"
        asyncio.run(decode(address))
        process.join()
        sys.exit(process.exitcode)
