"""One line a step and request that tells what the block manager did: ids and counts only.

Owns:   the format of that line, and of the lines of stories.
Knows nothing of: the block manager, clocks, files; it is given plain numbers and returns text.
Units:  tokens and blocks, by name.
Source: the document's debugging line ("what one watches" in docs/semantics.md).
"""

from collections.abc import Iterable, Sequence


def step_line(
    step: int,
    request_id: str,
    hit_tokens: int,
    scheduled: int,
    owned: Sequence[Sequence[int]],
    new: Sequence[Sequence[int]],
    free: int,
    ref_hit: Sequence[int],
) -> str:
    """What one step did for one request, on one line; lists are whole, however long.

    owned, new: block ids as `[group][block]`: the whole tables, and what this step appended.
    free: blocks in the free queue after the step.
    ref_hit: reference counts of the hit blocks after the step.

    >>> step_line(7, "R1", 128, 1, [[4, 9, 2], [0, 5]], [[2], []], 213, [1, 2])
    'step=7 req=R1 hit_tokens=128 scheduled=1 owned=[[4, 9, 2], [0, 5]] new=[[2], []] \
free=213 ref(hit)=[1,2]'
    """
    return (
        f"step={step} req={request_id} hit_tokens={hit_tokens} scheduled={scheduled} "
        f"owned={_nested(owned)} new={_nested(new)} free={free} ref(hit)={_flat(ref_hit, ',')}"
    )


def story_line(time: float, text: str) -> str:
    """One line of a story, of a node or of a simulation: seconds, then what happened.

    >>> story_line(1.5, "arrives")
    '   1.5000  arrives'
    """
    return f"{time:9.4f}  {text}"


def _nested(groups: Iterable[Iterable[int]]) -> str:
    return "[" + ", ".join(_flat(group, ", ") for group in groups) + "]"


def _flat(numbers: Iterable[int], separator: str) -> str:
    return "[" + separator.join(map(str, numbers)) + "]"
