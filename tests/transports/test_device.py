"""Bodies on the GPU: cut, checked and moved; without one, memory that only looks like it."""

import asyncio
from typing import Any

import pytest

from tests.transports.linked import Linked, config, linked
from transports.api import Capabilities, Span
from transports.device import DeviceView, body_views, device_view
from transports.errors import LocalMisuse
from transports.ucx_memory import address_of, runs

HERE = "ucx://127.0.0.1:0"


class Lookalike:
    """Memory of ours that describes itself as a GPU's."""

    def __init__(self, memory: bytearray, **told: Any) -> None:
        address = address_of(memoryview(memory)) if memory else 0
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            **told,
        }


def _viewed(buffer: object) -> DeviceView:
    view = device_view(buffer)
    assert view is not None
    return view


@pytest.mark.parametrize("body", [None, 7, b"one buffer", iter([])])
def test_what_is_no_body(body: Any) -> None:
    with pytest.raises(LocalMisuse):
        body_views(body, Capabilities(device_memory=True), config(), writable=True)


def test_views() -> None:
    memory = bytearray(100)
    start = address_of(memoryview(memory))
    view = _viewed(Lookalike(memory, shape=(5, 10), typestr="<f2"))
    assert len(view) == 100 and view.address == start
    part = view[10:30][5:]
    assert (len(part), part.address) == (15, start + 15)
    assert runs([view[:10], view[10:20], view[50:]]) == [start, 20, start + 50, 50]  # type: ignore[list-item]
    assert device_view(memory) is None


@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ({"shape": (10, 10), "strides": (10, 1)}, True),
        ({"shape": (10, 10), "strides": (1, 10)}, False),
        ({"shape": (10, 5), "strides": (10, 1)}, False),
        ({"shape": ()}, True),
        ({"typestr": "?"}, False),
        ({"data": None}, False),
    ],
)
def test_descriptions(told: dict[str, Any], fits: bool) -> None:
    if fits:
        _viewed(Lookalike(bytearray(100), **told))
    else:
        with pytest.raises(LocalMisuse):
            device_view(Lookalike(bytearray(100), **told))


def _as_if_there_were_a_gpu(pair: Linked) -> None:
    pair.near.capabilities = pair.far.capabilities = Capabilities(True, True)


def test_bodies_and_reads() -> None:
    pytest.importorskip("ucxx", reason="ucxx isn't installed (the extra is `ucx`)")

    async def main() -> None:
        async with linked(HERE) as pair:
            _as_if_there_were_a_gpu(pair)
            for size in (1, 100, 5_000_000):
                source, target = bytearray(b"x" * size), bytearray(size)
                parts = [Lookalike(target, shape=(size // 2,)), Lookalike(bytearray(size))]
                parts[1].__cuda_array_interface__["shape"] = (size - size // 2,)
                async with asyncio.TaskGroup() as group:
                    group.create_task(pair.near.send(1, b"", [Lookalike(source)]))
                    await pair.far.recv(lambda _, parts=parts: parts)  # type: ignore[misc]
                assert target[: size // 2] == source[: size // 2]
                assert parts[1].memory[: size - size // 2] == source[size // 2 :]
            region = pair.far_transport.allocate(1000)
            region.view[:] = b"r" * 1000
            number = await pair.far.share(region)
            await pair.far.send(1)
            await pair.near.recv()
            target = bytearray(1000)
            await pair.near.read(number, [Span(0, 1000)], [Lookalike(target)]).wait()
            assert target == b"r" * 1000

    asyncio.run(main())


def test_from_here_to_there_in_one_small_part() -> None:
    """As small as a message, but none, since it lands where only the wire can write."""
    pytest.importorskip("ucxx", reason="ucxx isn't installed (the extra is `ucx`)")

    async def main() -> None:
        async with linked(HERE, eager_bytes=1000) as pair:
            _as_if_there_were_a_gpu(pair)
            source, target = bytes(range(200)) * 10, Lookalike(bytearray(2000))
            async with asyncio.TaskGroup() as group:
                group.create_task(pair.near.send(1, b"", [source]))
                await pair.far.recv(lambda _: [target])
            assert target.memory[:2000] == source

    asyncio.run(main())


def test_what_cant_be() -> None:
    async def main() -> None:
        async with linked("memory://here") as pair:
            with pytest.raises(LocalMisuse):  # no such capability
                await pair.near.send(1, b"", [Lookalike(bytearray(10))])
            _as_if_there_were_a_gpu(pair)
            with pytest.raises(LocalMisuse):
                await pair.near.send(1, b"", [Lookalike(bytearray(10)), b"half"])
            await pair.near.send(1, b"", [b"small"])
            with pytest.raises(LocalMisuse):
                await pair.far.recv(lambda _: [Lookalike(bytearray(5))])
            constant = Lookalike(bytearray(100_000))
            constant.__cuda_array_interface__["data"] = (1, True)
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(pair.near.send(1, b"", [bytes(100_000)]))
                with pytest.raises(LocalMisuse):
                    await pair.far.recv(lambda _: [constant])
                sending.cancel()
        async with linked("memory://here", checksum_bodies=True) as pair:
            _as_if_there_were_a_gpu(pair)
            with pytest.raises(LocalMisuse):
                await pair.near.send(1, b"", [Lookalike(bytearray(10))])

    asyncio.run(main())


@pytest.mark.gpu
def test_from_one_gpu_buffer_to_another() -> None:
    cupy = pytest.importorskip("cupy")

    async def main() -> None:
        async with linked(HERE) as pair:
            assert pair.near.capabilities.device_memory
            source = cupy.arange(10_000_000, dtype=cupy.uint32)
            target = cupy.zeros_like(source)
            async with asyncio.TaskGroup() as group:
                group.create_task(pair.near.send(1, b"", [source]))
                await pair.far.recv(lambda _: [target])
            assert bool((source == target).all())

    asyncio.run(main())
