"""The socket between a node and its worker's links, and how it ends."""

import asyncio
import socket

import pytest

from kvdist.connector.local import Revoke
from kvdist.ids import LeaseId
from kvdist.links import local_wire


@pytest.mark.parametrize("was_read", [True, False])
def test_whoever_dies_has_ended_whatever_it_had_read(was_read: bool) -> None:
    """With bytes that it hasn't read the other end gets a reset instead of an end."""

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(local_wire.frame(Revoke(LeaseId(b"x"))))
        if was_read:
            theirs.recv(1 << 16)
        theirs.close()
        with pytest.raises(EOFError):
            await local_wire.read(reader)
        writer.close()

    asyncio.run(main())
