"""Numbers in sentences.

Owns:   how blocks, tokens and ranges are said.
Knows nothing of: requests' lives.
"""

from collections.abc import Iterable, Sequence
from math import lcm

from kvdist.trace.events import Allocated


def count(number: int, thing: str) -> str:
    """A number of things.

    >>> count(1, "block"), count(0, "token")
    ('1 block', '0 tokens')
    """
    return f"{number} {thing}" + "s" * (number != 1)


def span(start: int, num: int) -> str:
    """Token positions.

    >>> span(4, 1), span(4, 3)
    ('token 4', 'tokens 4-6')
    """
    return f"token {start}" if num == 1 else f"tokens {start}-{start + num - 1}"


def blocks(tables: Sequence[Iterable[int]]) -> str:
    """Block ids, group by group where there are several; runs in short.

    >>> blocks([[1, 2, 3, 7]]), blocks([[5]]), blocks([[], [4]])
    ('blocks 1-3, 7', 'block 5', 'block 4 of group 1')
    >>> blocks([[3, 2, 1]]), blocks([[]])
    ('blocks 3, 2, 1', 'no blocks')
    """
    groups = [(i, list(ids)) for i, ids in enumerate(tables)]
    told = [(i, ids) for i, ids in groups if ids]
    if not told:
        return "no blocks"
    return " and ".join(
        f"block{'s' * (len(ids) > 1)} {_runs(ids)}" + (f" of group {i}" if len(groups) > 1 else "")
        for i, ids in told
    )


def why_no_more(event: Allocated, block_sizes: Sequence[int]) -> str:
    """Why a hit is no longer than it is."""
    if not event.next_key:
        return "what follows fills no block"
    if event.local_tokens + lcm(*block_sizes) > event.hit_limit:
        return f"a hit has at most {event.hit_limit} tokens, the last is computed for its logits"
    return f"nothing is found under the next block's key, {event.next_key}"


def _runs(ids: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for block_id in ids:
        if runs and block_id == runs[-1][-1] + 1:
            runs[-1].append(block_id)
        else:
            runs.append([block_id])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
