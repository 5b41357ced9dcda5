"""The GPU benchmark moves what it says between two processes; without a GPU, on the host."""

import asyncio
import importlib.util
import subprocess
import sys

import pytest

from benchmarks import gpu
from benchmarks.blocks import ROOT
from benchmarks.patterns import WrongBytesError
from tests.transports.linked import linked

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)


def _run(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False
    )


def _check(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every byte was as it should be" in done.stdout
    assert done.stdout.count("GB/s") == 2 * len(gpu.CUTS)


def _gpu_or_skip() -> None:
    try:
        gpu.arrays(on_host=False)
    except gpu.NoGpuError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.mark.gpu
def test_between_two_processes_on_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    _gpu_or_skip()
    done = _run()
    with capsys.disabled():
        sys.stdout.write("\n" + done.stdout)
    _check(done)


def test_between_two_processes_on_the_host() -> None:
    pytest.importorskip("numpy", reason="numpy isn't installed (the extra is `serve`)")
    _check(_run("--host", "--mib", "4", "--repeats", "1"))


def test_without_a_gpu_it_says_so() -> None:
    try:
        gpu.arrays(on_host=False)
    except gpu.NoGpuError:
        done = _run()
        assert done.returncode == 1
        assert "nothing to measure" in done.stderr
    else:
        pytest.skip("there is a GPU")


@pytest.mark.parametrize("kind", [gpu.Torch, gpu.Cupy])
@pytest.mark.parametrize("wrong", [False, True])
def test_what_arrived_is_checked(kind: type[gpu.Torch | gpu.Cupy], wrong: bool) -> None:
    needed = {gpu.Torch: "torch", gpu.Cupy: "numpy"}[kind]
    pytest.importorskip(needed, reason=f"{needed} isn't installed (the extra is `serve`)")
    ours, theirs, size = kind(on_host=True), kind(on_host=True), 1 << 20
    if wrong:
        theirs.filled = lambda num_bytes, seed: ours.filled(num_bytes, seed + 1)  # type: ignore[method-assign]

    async def main() -> None:
        async with linked("memory://gpu") as pair, asyncio.TaskGroup() as group:
            group.create_task(gpu.serve(pair.far, theirs, size))
            for parts in gpu.CUTS:
                fetching = gpu.fetch(pair.near, ours, ours.filled(size, 9), parts, 1)
                if wrong:
                    with pytest.raises(WrongBytesError):
                        await fetching
                else:
                    assert await fetching > 0
            await pair.near.send(gpu.BODY)

    asyncio.run(main())
