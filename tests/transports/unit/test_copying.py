"""Reads that are copies: right whatever the pieces, and the loop gets its turns."""

import asyncio

import pytest

from transports.api import Span
from transports.copying import STEP_BYTES, Copies
from transports.errors import PeerLost
from transports.pieces import matched

SOURCE = bytes(range(256)) * 40_000


def _views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


@pytest.mark.parametrize("sizes", [(300,), (1, 298, 1), (100, 100, 100), (299, 1)])
def test_targets_are_cut_in_any_way(sizes: tuple[int, ...]) -> None:
    spans = [Span(7, 100), Span(1000, 0), Span(500, 150), Span(0, 50)]
    expected = SOURCE[7:107] + SOURCE[500:650] + SOURCE[:50]

    async def test() -> None:
        into = _views(*sizes)
        read = Copies().begin(lambda: memoryview(SOURCE), matched(spans, into, len(SOURCE)))
        await read.wait()
        await read.quiet()
        assert b"".join(into) == expected

    asyncio.run(test())


@pytest.mark.parametrize("size", [16, 1 << 14, len(SOURCE) // 2])
def test_the_loop_gets_its_turns(size: int) -> None:
    """Many bytes, or many small pieces: others run in between."""
    spans = [Span(at, size) for at in range(0, len(SOURCE) - size + 1, size)][: 1 << 14]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test() -> None:
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        pieces = matched(spans, _views(*[size] * len(spans)), len(SOURCE))
        read = Copies().begin(lambda: memoryview(SOURCE), pieces)
        await read.wait()
        counting.cancel()

    asyncio.run(test())
    assert turns >= 4


def test_many_reads_at_once_leave_the_loop_its_turns() -> None:
    """Each pass of the loop has a step of one of them, and all get on."""
    source, num, spans = memoryview(SOURCE), 3, [Span(1, STEP_BYTES)] * 2
    firsts, seconds = (_views(*[STEP_BYTES] * num) for _ in range(2))

    async def test() -> list[int]:
        copies, seen = Copies(), []
        for into in zip(firsts, seconds, strict=True):
            copies.begin(lambda: source, matched(spans, list(into), len(source)))
        for _ in range(2 * num):
            await asyncio.sleep(0)
            seen.append([view[0] for view in (*firsts, *seconds)].count(1))
        return seen

    assert asyncio.run(test()) == [1, 2, 3, 4, 5, 6]
    assert all(view == source[1 : 1 + STEP_BYTES] for view in (*firsts, *seconds))


def test_a_source_that_has_gone() -> None:
    def gone() -> memoryview:
        raise PeerLost("the owner has closed the region")

    async def test() -> None:
        read = Copies().begin(gone, matched([Span(0, 4)], _views(4), 4))
        with pytest.raises(PeerLost, match="closed the region"):
            await read.wait()
        await read.quiet()

    asyncio.run(test())
