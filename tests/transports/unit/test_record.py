"""Recordings tell what passed; files that were tampered with are told apart."""

import asyncio
import io
import itertools
import time
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.transports.linked import config
from transports.errors import BadRecording, BodyRefused, PeerLost, Unreachable
from transports.frame import Type, decode
from transports.link import WireLink
from transports.memory import MemoryTransport
from transports.record import MAGIC, RecordingTransport, read_recording, replay
from transports.testing.setup import until

LARGE = 100_000


def record(*, keep_bodies: bool = True, dialler: bool = True) -> bytes:
    """A conversation of all kinds of frames, recorded at one side."""
    file, ticks = io.BytesIO(), itertools.count()

    async def talk() -> None:
        left = MemoryTransport(config("left", part_bytes=40_000, checksum_bodies=True))
        right = MemoryTransport(config("right", part_bytes=40_000))
        recording = RecordingTransport(
            left if dialler else right, file, lambda: next(ticks) / 1000, keep_bodies=keep_bodies
        )
        one, two = (recording, right) if dialler else (left, recording)
        async with one.open(), two.open():
            listener = await two.listen("memory://recorded")
            a = await one.connect("memory://recorded")
            b = await listener.accept()
            for source, target in ((a, b), (b, a)):
                await source.send(1, b"small", [b"small body"])
                await target.recv(lambda head: [bytearray(head.body_bytes)])
                sending = asyncio.create_task(source.send(2, b"large", [b"L" * LARGE]))
                await target.recv(lambda head: [bytearray(head.body_bytes)])
                await sending
                sending = asyncio.create_task(source.send(3, b"refused", [b"R" * LARGE]))
                with pytest.raises(BodyRefused):
                    await target.recv()
                with pytest.raises(BodyRefused):
                    await sending
                sending = asyncio.create_task(source.send(4, b"withdrawn", [b"W" * LARGE]))
                await asyncio.sleep(0.01)
                sending.cancel()
                await asyncio.wait([sending])
                region = (one if source is a else two).allocate(10)
                await source.share(region)
                region.close()
                for _ in range(3000):
                    await source.send(5)
                    await target.recv()
            await a.close()

    asyncio.run(talk())
    return file.getvalue()


@pytest.mark.parametrize("dialler", [True, False])
@pytest.mark.parametrize("keep_bodies", [True, False])
def test_a_recording_tells_the_conversation(dialler: bool, keep_bodies: bool) -> None:
    data = record(keep_bodies=keep_bodies, dialler=dialler)
    entries = list(read_recording(io.BytesIO(data)))
    bodies = [entry for entry in entries if entry.is_body]
    assert {entry.size for entry in bodies} == {10, 40_000, 20_000}
    assert all((entry.data is not None) == keep_bodies for entry in bodies)
    assert [entry.time_s for entry in entries] == sorted(entry.time_s for entry in entries)
    steps = list(replay(entries))
    assert len(steps) == len(entries)
    told = [(step.sent, step.meaning) for step in steps]
    assert told[0] == (dialler, "HELLO from 'left', incarnation '0'")
    assert told[1] == (not dialler, "HELLO from 'right', incarnation '0'")
    for sent in (True, False):
        said = "\n".join(meaning for side, meaning in told if side is sent)
        for part in (
            "MESSAGE of kind 1, meta 5, body 10",
            "OFFER of kind 2, meta 5, body 100000",
            "OFFER of kind 3",
            "ACCEPT 1",
            "REFUSE 2",
            "WITHDRAW 3",
            "BODY of offer 1, 40000 bytes",
            "REGION 1",
            "CREDIT",
            "BYE",
        ):
            assert part in said, (sent, part)
    assert not any("breaks" in meaning for _, meaning in told)
    assert list(replay(entries, wire=1)) == []


@pytest.mark.parametrize("end", ["withdraw", "bye"])
def test_a_verdict_that_came_too_late(end: str) -> None:
    """It waited to be written, behind a body, while the peer took its offer back."""
    file = io.BytesIO()

    async def talk() -> None:
        near = RecordingTransport(MemoryTransport(config("near")), file, lambda: 0.0)
        async with near.open(), MemoryTransport(config("far")).open() as far:
            listener = await far.listen("memory://late")
            link = await near.connect("memory://late")
            peer = await listener.accept()
            assert isinstance(link, WireLink)
            offering = asyncio.create_task(peer.send(1, b"", [bytes(LARGE)]))
            await until(lambda: bool(link._inbox))
            async with link._writing:
                receiving = asyncio.create_task(link.recv(lambda _: [bytearray(LARGE)]))
                await until(lambda: link._landing is not None)
                if end == "withdraw":
                    offering.cancel()
                    await asyncio.wait([offering])
                    await until(lambda: link._landing is None)
                else:
                    await peer._write(Type.BYE)  # type: ignore[attr-defined]
                    await until(lambda: link._session.peer_said_bye)
            if end == "withdraw":
                await peer.send(2)
            await asyncio.wait([receiving, offering])
            receiving.exception()
            offering.cancelled() or offering.exception()

    asyncio.run(talk())
    file.seek(0)
    steps = list(replay(read_recording(file)))
    said = [step.meaning.partition(" ")[2] for step in steps]
    ended = {"withdraw": "WITHDRAW 1", "bye": "BYE"}[end]
    assert said.index(ended) < said.index("ACCEPT 1")
    assert not any("breaks" in step.meaning for step in steps)


def test_verdicts_that_no_link_gives() -> None:
    """Twice, or of what was never offered."""
    entries = list(read_recording(io.BytesIO(record())))
    steps = list(replay(entries))
    (at,) = [at for at, step in enumerate(steps) if step.sent and "ACCEPT" in step.meaning]
    for argument in (0, 4):
        changed = entries.copy()
        frame = replace(decode(entries[at].data or b""), argument=argument)
        changed[at] = replace(entries[at], data=frame.encode())
        with pytest.raises(BadRecording, match=f"offer {argument} can't have been decided on"):
            list(replay(changed))


def test_a_peer_s_offence_ends_a_replay() -> None:
    entries = list(read_recording(io.BytesIO(record())))
    heads = [at for at, entry in enumerate(entries) if not entry.sent and not entry.is_body]
    del entries[heads[20]]
    steps = list(replay(entries))
    assert steps[-1].meaning.startswith("breaks the protocol: frame 21 where 20 is due")
    assert not any("breaks" in step.meaning for step in steps[:-1])


def test_what_no_link_sends() -> None:
    entries = list(read_recording(io.BytesIO(record())))
    heads = [at for at, entry in enumerate(entries) if entry.sent and not entry.is_body]
    del entries[heads[20]]
    with pytest.raises(BadRecording):
        list(replay(entries))


@pytest.mark.parametrize("keep_bodies", [True, False])
def test_a_body_that_changed_on_its_way(keep_bodies: bool) -> None:
    """Its checksum is recorded whether it is kept or not; only `left` announces one."""
    data = record(keep_bodies=keep_bodies, dialler=False)
    entries = list(read_recording(io.BytesIO(data)))
    for at, entry in enumerate(entries):
        if entry.is_body and not entry.sent:
            entries[at] = replace(entry, crc=entry.crc ^ 1)
    *before, last = replay(entries)
    assert last.meaning == "breaks the protocol: a body is corrupt"
    assert not any("breaks" in step.meaning for step in before)


def test_a_body_that_was_sent_with_a_wrong_checksum() -> None:
    entries = list(read_recording(io.BytesIO(record(keep_bodies=False))))
    for at, entry in enumerate(entries):
        if entry.is_body and entry.sent:
            entries[at] = replace(entry, crc=entry.crc ^ 1)
    with pytest.raises(BadRecording, match="a body is corrupt"):
        list(replay(entries))


def test_checksums_of_bodies_that_were_not_kept() -> None:
    kept, not_kept = (
        [entry for entry in read_recording(io.BytesIO(record(keep_bodies=keep))) if entry.is_body]
        for keep in (True, False)
    )
    assert [entry.data for entry in not_kept] == [None] * len(kept)
    assert [zlib.crc32(entry.data or b"") for entry in kept] == [entry.crc for entry in not_kept]


@pytest.fixture(scope="module")
def a_file() -> bytes:
    return record()[:30_000]


def test_a_file_that_breaks_off(a_file: bytes) -> None:
    entries = read_recording(io.BytesIO(a_file))
    for _ in range(9):
        next(entries)
    with pytest.raises(BadRecording, match="breaks off"):
        list(entries)


@given(at=st.integers(0, 29_999), mask=st.integers(1, 255))
def test_a_changed_byte(a_file: bytes, at: int, mask: int) -> None:
    damaged = bytearray(a_file)
    damaged[at] ^= mask
    with pytest.raises(BadRecording):
        list(read_recording(io.BytesIO(damaged)))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for file in (data, MAGIC + data):
        try:
            assert list(read_recording(io.BytesIO(file))) == []
        except BadRecording:
            continue
        assert file == MAGIC


def _entry(what: int, flags: int, length: int, size: int, data: bytes = b"") -> bytes:
    fixed = bytes([what, flags, 0, 0, 0, 0]) + length.to_bytes(4, "little") + bytes(8)
    fixed += size.to_bytes(8, "little") + zlib.crc32(data).to_bytes(4, "little")
    return MAGIC + fixed + zlib.crc32(fixed).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    "file",
    [
        _entry(4, 0, 0, 0),
        _entry(0, 1, 1, 1, b"x"),
        _entry(1, 2, 1, 1, b"x"),
        _entry(0, 0, 1, 2, b"x"),
        _entry(0, 0, 100_000, 100_000, bytes(100_000)),
        _entry(1, 1, 0xFFFFFFFF, 0xFFFFFFFF),
        _entry(1, 0, 5, 5, b"xxxxx"),
        _entry(1, 1, 5, 5, b"xxx"),
    ],
    ids=range(8),
)
def test_hostile_entries(file: bytes) -> None:
    with pytest.raises(BadRecording):
        list(read_recording(io.BytesIO(file)))


class _FullDisk(io.BytesIO):
    """Takes so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_link_that_cant_be_recorded_ends(caplog: pytest.LogCaptureFixture) -> None:
    """In an error that callers know; `close` raises none, and nothing is written after a gap."""
    file = _FullDisk(10_000)

    async def main() -> None:
        left, right = MemoryTransport(config("left")), MemoryTransport(config("right"))
        recording = RecordingTransport(left, file, time.monotonic)
        async with recording.open(), right.open():
            listener = await right.listen("memory://recorded")
            a = await recording.connect("memory://recorded")
            b = await listener.accept()
            await a.send(1, b"there is room")
            assert (await b.recv()).meta == b"there is room"
            file.room = 0
            with pytest.raises(PeerLost, match="recorded"):
                await a.send(1, b"there is none")
            await a.close()
            with pytest.raises(PeerLost):
                await b.recv()
            file.room = 10_000
            with pytest.raises(Unreachable, match="recorded"):
                await recording.connect("memory://recorded")

    asyncio.run(main())
    assert len(list(read_recording(io.BytesIO(file.getvalue())))) >= 5
    assert not caplog.records


def test_close_with_a_recording_that_was_closed() -> None:
    file = io.BytesIO()

    async def main() -> None:
        left, right = MemoryTransport(config("left")), MemoryTransport(config("right"))
        recording = RecordingTransport(left, file, time.monotonic)
        async with recording.open(), right.open():
            listener = await right.listen("memory://recorded")
            a = await recording.connect("memory://recorded")
            await listener.accept()
            file.close()
            await a.close()

    asyncio.run(main())


def test_wires_are_told_apart_beyond_65_536_of_them() -> None:
    file = io.BytesIO()
    transport = RecordingTransport(MemoryTransport(config("left")), file, lambda: 0.0)
    for wire in (1, 1 + (1 << 16)):
        transport.write(0, wire, [memoryview(b"head")])
    file.seek(0)
    assert [entry.wire for entry in read_recording(file)] == [1, 1 + (1 << 16)]
