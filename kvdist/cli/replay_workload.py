"""`kvdist replay-workload`: how much of a real workload the block manager finds again.

Owns:   how the counts are shown, the clock.
Knows nothing of: how prompts are served.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvdist import check
from kvdist.cli.screen import Screen
from kvdist.replay.belady import most_hits
from kvdist.replay.workload import Counts, Lengths, Workload, WorkloadReplay, read_workload

UNLIMITED: Final = "unlimited"

_HEADINGS: Final = (
    "usable blocks",
    "hit blocks",
    "hit tokens",
    "Belady",
    "given up",
    "evicted",
    "refused",
    "requests/s",
)
_LEGEND: Final = """
hit        share of the full blocks, and of the prompts' tokens, that was found
Belady     share of the full blocks that the best order of eviction would find, known afterwards
given up   blocks found but computed anew: a prompt's last token is, for its logits
evicted    blocks whose content went because another request took them
refused    requests that need more blocks than there are; they count as not found"""


@dataclass(frozen=True, slots=True)
class _Row:
    """One size of the pool."""

    #: None: unlimited.
    num_blocks: int | None
    counts: Counts
    belady_hits: int
    seconds: float


def replay_workload(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A workload, *.jsonl or *.jsonl.gz.")
    ],
    blocks: Annotated[
        list[str],
        typer.Option(help=f"Usable blocks, or '{UNLIMITED}'; several times for several rows."),
    ],
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens that one hash id of the file stands for.")
    ] = 512,
    lengths: Annotated[
        Lengths,
        typer.Option(
            help="hash-ids: every hash id is a full block; true: prompts have their own length, "
            "and a last block that is partly filled is never found."
        ),
    ] = Lengths.HASH_IDS,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers there.")
    ] = None,
) -> None:
    """Serve the prompts of real requests, one after the other, and count what is found again."""
    sizes = [_size(text) for text in blocks]
    workload = read_workload(file, block_size, lengths)
    screen, references = Screen(), workload.references()
    screen.line(_describe(file, workload))
    screen.line(_columns(_HEADINGS))
    rows = []
    for size in sizes:
        rows.append(_replay(workload, references, size, screen))
        screen.line(_columns(_cells(rows[-1], workload)))
    screen.line(_LEGEND)
    if json_file is not None:
        _write(json_file, _as_json(file, workload, rows))


def _size(text: str) -> int | None:
    if text == UNLIMITED:
        return None
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        message = f"{text!r} is neither a number from 1 on nor '{UNLIMITED}'."
        raise typer.BadParameter(message, param_hint="'--blocks'")
    return size


def _replay(workload: Workload, references: list[int], size: int | None, screen: Screen) -> _Row:
    replay = WorkloadReplay(workload, size)
    start = time.perf_counter()
    with screen.progress(workload.prompts, _name(size)) as prompts:
        for prompt in prompts:
            replay.serve(prompt)
    seconds = time.perf_counter() - start
    if check.level >= 1:
        replay.manager.check()
    return _Row(size, replay.counts, most_hits(references, size), seconds)


def _name(size: int | None) -> str:
    return UNLIMITED if size is None else f"{size:,}"


def _share(part: int, whole: int) -> float:
    """Per cent."""
    return 100 * part / whole if whole else 0.0


def _describe(file: Path, workload: Workload) -> str:
    return (
        f"{file.name}: {len(workload.prompts):,} requests, {workload.num_tokens:,} tokens, "
        f"{workload.num_full_blocks:,} full blocks of {workload.block_size:,} tokens "
        f"(lengths: {workload.lengths})\n"
    )


def _columns(cells: Sequence[str]) -> str:
    return "  ".join(
        cell.rjust(max(8, len(heading))) for cell, heading in zip(cells, _HEADINGS, strict=True)
    )


def _cells(row: _Row, workload: Workload) -> list[str]:
    num_blocks, counts = workload.num_full_blocks, row.counts
    hit_tokens = counts.hit_blocks * workload.block_size
    return [
        _name(row.num_blocks),
        f"{_share(counts.hit_blocks, num_blocks):.2f} %",
        f"{_share(hit_tokens, workload.num_tokens):.2f} %",
        f"{_share(row.belady_hits, num_blocks):.2f} %",
        f"{counts.given_up_blocks:,}",
        f"{counts.evicted_blocks:,}",
        f"{counts.refused_requests:,}",
        f"{len(workload.prompts) / row.seconds:,.0f}",
    ]


def _as_json(file: Path, workload: Workload, rows: list[_Row]) -> dict[str, object]:
    return {
        "file": file.name,
        "lengths": workload.lengths,
        "block_size": workload.block_size,
        "requests": len(workload.prompts),
        "tokens": workload.num_tokens,
        "full_blocks": workload.num_full_blocks,
        "results": [
            {
                "usable_blocks": UNLIMITED if row.num_blocks is None else row.num_blocks,
                **asdict(row.counts),
                "hit_tokens": row.counts.hit_blocks * workload.block_size,
                "hit_blocks_percent": _share(row.counts.hit_blocks, workload.num_full_blocks),
                "hit_tokens_percent": _share(
                    row.counts.hit_blocks * workload.block_size, workload.num_tokens
                ),
                "belady_hit_blocks": row.belady_hits,
                "belady_percent": _share(row.belady_hits, workload.num_full_blocks),
                "requests_per_second": len(workload.prompts) / row.seconds,
            }
            for row in rows
        ],
    }


def _write(path: Path, content: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"can't write {path}: {error.strerror}."
        raise typer.BadParameter(message, param_hint="'--json'") from error
