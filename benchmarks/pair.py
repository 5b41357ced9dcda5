"""How long a pull takes between two workers, beside the same bytes over the transport by itself.

    python -m benchmarks.pair [--only shm,tcp,ucx] [--repeats 5] [--urgent] [--json FILE]

What a pair costs its clients (first token, tokens between, goodput) isn't measured here yet.

Owns:   the sizes, and what is printed.
Knows nothing of: workers, links.
"""

import asyncio
import json
import os
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from benchmarks.blocks import plain_table
from benchmarks.meter import URGENT
from benchmarks.pair_transfer import VERBS, Transfer, measure
from benchmarks.patterns import Pattern

_BLOCK_BYTES: Final = 512 << 10
_BLOCKS: Final = (2, 32, 128, 256)
_HEADINGS: Final = ("over", "MiB", "pull, ms", "raw, ms", "ratio", "goal", "more, round trips")
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


def main(
    only: Annotated[str, typer.Option(help="transports, with commas")] = ",".join(VERBS),
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    urgent: Annotated[bool, typer.Option(help="while timed, go before others; needs root")] = False,
    small: Annotated[bool, typer.Option(help="so little that times mean nothing")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="file to write")] = None,
) -> None:
    """Pulls of several sizes over each transport."""
    if urgent:
        os.environ[URGENT] = "1"
    sizes = _BLOCKS[:1] if small else _BLOCKS
    patterns = [Pattern(f"{n} x 512 KiB", n, _BLOCK_BYTES) for n in sizes]
    load = os.getloadavg()[0]
    found = [t for name in only.split(",") for t in asyncio.run(measure(name, patterns, repeats))]
    print(f"best (median) of {repeats}; load of the machine at the beginning {load:.1f}")
    print(plain_table([_HEADINGS, *map(cells, found)]))
    if json_file is not None:
        told = {"load_average": load, "transfers": [transfer.as_json() for transfer in found]}
        json_file.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
