"""Memory that is found by its name, and nothing else in its place."""

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from transports.errors import PeerLost, RemoteProtocol
from transports.sealed import SealedMemory, found, mapped

HERE = os.getpid()


@pytest.fixture
def memory() -> Iterator[SealedMemory]:
    made = SealedMemory(10_000)
    yield made
    made.close()


def test_what_is_found_is_seen(memory: SealedMemory) -> None:
    memory.view[:5] = b"hello"
    fd = found(HERE, memory.fd, memory.name)
    assert fd is not None
    try:
        view = mapped(fd, 10_000)
        with pytest.raises(RemoteProtocol):
            mapped(fd, 9_999)
    finally:
        os.close(fd)
    memory.view[5:10] = b" you!"
    assert bytes(view[:10]) == b"hello you!" and view.readonly
    memory.close()
    assert bytes(view[:10]) == b"hello you!"


def test_a_process_that_can_take_no_more(memory: SealedMemory) -> None:
    """It isn't the peer who is to blame."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (memory.fd + 1, limits[1]))
    fillers = []
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(memory.fd))
        with pytest.raises(PeerLost, match="Too many open files"):
            mapped(memory.fd, 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for filler in fillers:
            os.close(filler)
    assert len(mapped(memory.fd, 10_000)) == 10_000


def test_what_is_something_else_is_not_found(memory: SealedMemory) -> None:
    other = SealedMemory(10_000)
    assert found(HERE, memory.fd, other.name) is None
    assert found(HERE, other.fd, memory.name) is None
    other.close()
    read_end, write_end = os.pipe()
    assert found(HERE, read_end, memory.name) is None
    assert found(HERE, 1 << 31, memory.name) is None
    assert found(0, memory.fd, memory.name) is None
    os.close(read_end)
    os.close(write_end)


def test_what_is_replaced_as_it_is_found(
    memory: SealedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is another file's by the time that it is opened: nothing is left open."""
    real = os.open
    opened: list[int] = []

    def late(path: str, flags: int) -> int:
        opened.append(real(os.devnull, flags))
        return opened[-1]

    monkeypatch.setattr(os, "open", late)
    assert found(HERE, memory.fd, memory.name) is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(opened[0])
