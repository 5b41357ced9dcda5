"""How fast UCX moves GPU memory between two processes, beside a plain copy on the device.

    python -m benchmarks.gpu [--mib 256] [--repeats 5] [--host]

Arrays are torch's, or cupy's where torch sees no GPU. One process wants a body, the other has
computed it; both know what is in it, so that each transfer is checked. As one buffer, and as many:
that is how blocks travel. With `--host` the same goes on in this machine's memory, for where there
is no GPU: it shows that the script works, and nothing else.

Owns:   both processes, what they say to each other, and what is printed.
Knows nothing of: how the bytes go.
Units:  bytes and seconds; a GB is 10**9 bytes.
"""

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol

import typer

from benchmarks.blocks import ROOT
from benchmarks.patterns import WrongBytesError
from transports.api import Link
from transports.config import SessionConfig
from transports.registry import make_transport

_TOKEN: Final = b"only for this benchmark"
_ADDRESS: Final = "ucx://127.0.0.1:0"
_PATIENCE_S: Final = 50.0
#: Buffers of a body.
CUTS: Final = (1, 128)
#: Of messages: fill the array from this seed; send it in so many buffers; here it is.
FILL, WANT, BODY = 1, 2, 3
_FACTOR: Final = 0x61C88647


class NoGpuError(Exception):
    """There is nothing to measure."""


class Arrays(Protocol):
    """What is needed of a library of arrays; each has items of 4 bytes."""

    name: str

    def filled(self, num_bytes: int, seed: int) -> Any:
        """An array whose items all differ, the same for the same seed; computed when it returns."""

    def copy(self, source: Any, target: Any) -> None:
        """Returns when it is done."""

    def same(self, one: Any, other: Any) -> bool:
        """Whether all items are equal."""


class Torch:
    """Its tensors."""

    def __init__(self, on_host: bool) -> None:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when torch is loaded
        self._torch: Any = importlib.import_module("torch")
        if not on_host and not self._torch.cuda.is_available():
            raise NoGpuError("torch sees no GPU")
        self._device = "cpu" if on_host else "cuda"
        self.name = "torch, " + ("host" if on_host else self._torch.cuda.get_device_name())

    def filled(self, num_bytes: int, seed: int) -> Any:
        """See `Arrays.filled`."""
        items = self._torch.arange(num_bytes // 4, dtype=self._torch.int32, device=self._device)
        return self._done(items.mul_(_FACTOR).add_(seed))

    def copy(self, source: Any, target: Any) -> None:
        """See `Arrays.copy`."""
        self._done(target.copy_(source))

    def same(self, one: Any, other: Any) -> bool:
        """See `Arrays.same`."""
        return bool(self._torch.equal(one, other))

    def _done(self, result: Any) -> Any:
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        return result


class Cupy:
    """Cupy's arrays, or numpy's on the host."""

    def __init__(self, on_host: bool) -> None:
        self._module: Any = importlib.import_module("numpy" if on_host else "cupy")
        self._on_host = on_host
        if not on_host and not self._module.cuda.is_available():
            raise NoGpuError("cupy sees no GPU")
        self.name = "numpy, host" if on_host else "cupy"

    def filled(self, num_bytes: int, seed: int) -> Any:
        """See `Arrays.filled`."""
        numbers = self._module
        items = numbers.arange(num_bytes // 4, dtype=numbers.uint32)
        return self._done(items * numbers.uint32(_FACTOR) + numbers.uint32(seed))

    def copy(self, source: Any, target: Any) -> None:
        """See `Arrays.copy`."""
        target[:] = source
        self._done(target)

    def same(self, one: Any, other: Any) -> bool:
        """See `Arrays.same`."""
        return bool((one == other).all())

    def _done(self, result: Any) -> Any:
        if not self._on_host:
            self._module.cuda.Device().synchronize()
        return result


def arrays(on_host: bool) -> Arrays:
    """The first library that can. Raises: NoGpuError."""
    reasons = []
    for kind in (Torch, Cupy):
        try:
            return kind(on_host)
        except (ImportError, NoGpuError) as error:
            reasons.append(str(error))
    raise NoGpuError("; ".join(reasons))


def cut(array: Any, number: int) -> list[Any]:
    """The array in so many parts."""
    step = len(array) // number
    return [array[at : at + step] for at in range(0, len(array), step)]


async def serve(link: Link, ours: Arrays, num_bytes: int) -> None:
    """Fill and send, until there is nothing more to do."""
    source = ours.filled(num_bytes, 0)
    while (head := await link.recv()).kind != BODY:
        number = int(head.meta)
        if head.kind == FILL:
            source = ours.filled(num_bytes, number)
            await link.send(FILL)
        else:
            await link.send(BODY, b"", cut(source, number))


async def fetch(link: Link, ours: Arrays, target: Any, parts: int, seed: int) -> float:
    """Seconds that a body took. Raises: WrongBytesError."""
    wanted = ours.filled(4 * len(target), seed)
    ours.copy(ours.filled(4 * len(target), ~seed & 0xFF), target)
    await link.send(FILL, b"%d" % seed)
    await link.recv()
    places = cut(target, parts)
    began = time.perf_counter()
    await link.send(WANT, b"%d" % parts)
    await link.recv(lambda _: places)
    took = time.perf_counter() - began
    if not ours.same(target, wanted):
        raise WrongBytesError(f"a body in {parts} parts")
    return took


def copied(ours: Arrays, source: Any, target: Any) -> float:
    """Seconds that a copy within this process takes."""
    began = time.perf_counter()
    ours.copy(source, target)
    return time.perf_counter() - began


async def measure(
    link: Link, ours: Arrays, num_bytes: int, repeats: int
) -> dict[int, tuple[list[float], list[float]]]:
    """Seconds of transfers and of copies, taken in turns, by the number of buffers; the first of
    each isn't counted.
    """
    source, target = ours.filled(num_bytes, 1), ours.filled(num_bytes, 2)
    took: dict[int, tuple[list[float], list[float]]] = {}
    for parts in CUTS:
        moves, copies = took[parts] = [], []
        for seed in range(repeats + 1):
            moves.append(await fetch(link, ours, target, parts, seed))
            copies.append(copied(ours, source, target))
        del moves[0], copies[0]
    await link.send(BODY)
    return took


async def want(num_bytes: int, repeats: int, on_host: bool) -> None:
    """Start the other process, measure, print."""
    ours = arrays(on_host)
    transport = make_transport(_ADDRESS, _config("wants"))
    async with transport.open():
        listener = await transport.listen(_ADDRESS)
        options = ["--peer", listener.address, "--mib", str(num_bytes >> 20)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.gpu", *options, *["--host"] * on_host, cwd=ROOT
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                link = await listener.accept()
                if not on_host and not link.capabilities.device_memory:
                    raise NoGpuError("UCX can't move this GPU's memory")
                took = await measure(link, ours, num_bytes, repeats)
                await link.close()
                await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    lanes = getattr(getattr(link, "_wire", None), "lanes", [])
    print(f"{ours.name}; {num_bytes >> 20} MiB between two processes over {', '.join(lanes)}")
    print("every byte was as it should be")
    for parts, (moves, copies) in took.items():
        told = f"{_gb_s(num_bytes, moves)}, plain copy {_gb_s(num_bytes, copies)}"
        print(f"  {parts:3} buffers: {told}")


def _gb_s(num_bytes: int, seconds: Sequence[float]) -> str:
    """The median."""
    return f"{num_bytes / sorted(seconds)[len(seconds) // 2] / 1e9:.1f} GB/s"


async def own(address: str, num_bytes: int, on_host: bool) -> None:
    """The other process."""
    transport = make_transport(address, _config("has"))
    async with transport.open():
        link = await transport.connect(address)
        await serve(link, arrays(on_host), num_bytes)
        await link.close()


def _config(name: str) -> SessionConfig:
    return SessionConfig(node_id=name, token=_TOKEN)


def main(
    mib: Annotated[int, typer.Option(min=1, help="Size of a body.")] = 256,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    host: Annotated[bool, typer.Option("--host", help="In this machine's memory.")] = False,
    peer: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """GPU to GPU over UCX between two processes, beside a plain copy."""
    try:
        asyncio.run(own(peer, mib << 20, host) if peer else want(mib << 20, repeats, host))
    except NoGpuError as error:
        raise SystemExit(f"nothing to measure: {error}") from None


if __name__ == "__main__":
    typer.run(main)
