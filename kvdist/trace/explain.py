"""The document's seven breakpoints, in its order, with the numbers of one request.

Owns:   what is to be seen at each.
Knows nothing of: files, nodes.
Source: the document's last part, "the order in which to set breakpoints".

The first five are the block manager's own counts. The last two are what the worker was told: its
tables are another process's, and compared with these by checksum at check level 2 (I5).
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from kvdist.ids import RequestId
from kvdist.trace.events import (
    Allocated,
    Arrived,
    Began,
    Entry,
    Freed,
    GaveUp,
    Planned,
    Published,
    Waits,
)
from kvdist.trace.words import blocks, count, span, why_no_more

#: Of several moments of one kind, as many are told.
_MOST: Final = 4

#: Groups whose blocks hold a slot for each token.
_NO_SLOTS: Final = ("Mamba", "CrossAttention")


def explain(entries: Iterable[Entry], request_id: RequestId) -> list[str]:
    """The seven, each with what one should see there and what was there."""
    seen = _Seen(request_id)
    for entry in entries:
        seen.hear(entry)
    return list(seen.lines())


class _Seen:
    """What is needed of a trace."""

    def __init__(self, request_id: RequestId) -> None:
        self._req = request_id
        self._began = Began("", 0, (), ())
        self._arrived: Arrived | None = None
        self._allocated: list[Allocated] = []
        self._refused: list[Waits] = []
        self._planned: list[Planned] = []
        self._freed: list[Freed] = []
        self._num_given_up = 0
        self._owner: dict[int, RequestId] = {}
        #: Whose content the blocks of an allocation held.
        self._owners: list[dict[int, RequestId]] = []

    def hear(self, entry: Entry) -> None:
        match entry.event:
            case Began() as event:
                self._began = event
            case Published() as event:
                self._owner |= dict.fromkeys(event.blocks, event.req)
            case Allocated(req) as event if req == self._req:
                self._allocated.append(event)
                concerned = {b for group in event.hit for b in group}
                concerned |= {lost.block for lost in event.evicted}
                self._owners.append({b: self._owner.get(b, "somebody") for b in concerned})
            case Arrived(req) as event if req == self._req:
                self._arrived = event
            case Waits(req, "blocks") as event if req == self._req:
                self._refused.append(event)
            case Planned(req=req) as event if req == self._req:
                self._planned.append(event)
            case Freed(req) as event if req == self._req:
                self._freed.append(event)
            case GaveUp(req) if req == self._req:
                self._num_given_up += 1
            case _:
                pass

    def lines(self) -> Iterator[str]:
        yield self._title()
        chapters = (
            ("1 KVCacheManager.get_computed_blocks", self._lookups()),
            ("2 get_num_blocks_to_allocate", self._counts()),
            ("3 BlockPool.touch", self._touched()),
            ("4 BlockPool.get_new_blocks", self._taken()),
            ("5 SingleTypeKVCacheManager.free", self._given_back()),
            ("6 the worker's state of the request", self._told()),
            ("7 commit_block_table and compute_slot_mapping", self._slots()),
        )
        for title, lines in chapters:
            yield title
            yield from (f"    {line}" for line in _some(list(lines)) or ["nothing in this trace"])

    def _title(self) -> str:
        sizes = ", ".join(
            f"{kind} in blocks of {size}"
            for kind, size in zip(self._began.kinds, self._began.block_sizes, strict=True)
        )
        prompt = f"{count(self._arrived.prompt_tokens, 'token')}, " if self._arrived else ""
        again = f", computed anew {count(self._num_given_up, 'time')}" if self._num_given_up else ""
        return f"{self._req}: {prompt}{sizes}, {self._began.num_blocks - 1} blocks{again}"

    # -- the block manager ---------------------------------------------------------------------

    def _lookups(self) -> Iterator[str]:
        for event, owners in zip(self._allocated, self._owners, strict=True):
            if not event.first:
                continue
            limit = f"of at most {event.hit_limit} = num_tokens - 1"
            if not event.looked_up:
                yield f"step {event.step}: no lookup"
                continue
            hit = [b for group in event.hit for b in group]
            whose = ", ".join(dict.fromkeys(owners[b] for b in hit))
            where = f": {blocks(event.hit)}, published by {whose}" if hit else ""
            why = why_no_more(event, self._began.block_sizes)
            yield (
                f"step {event.step}: {event.local_tokens} tokens hit, {limit}{where}; "
                f"it ends before token {event.local_tokens}, since {why}"
            )

    def _counts(self) -> Iterator[str]:
        for wait in self._refused:
            yield (
                f"{wait.needed} needed + {wait.kept} kept > {wait.free} free: None, "
                "and nothing has changed"
            )
        for event in self._allocated:
            groups = "; ".join(
                (f"group {i}: " if len(event.counts) > 1 else "")
                + f"target {one.target}, owned {one.owned}, hit {one.hits}, "
                f"evictable hits {one.idle_hits}"
                for i, one in enumerate(event.counts)
            )
            yield (
                f"step {event.step}: {groups}; lookahead {event.lookahead}: "
                f"{event.needed} needed + {event.kept} kept <= {event.free_before} free"
            )

    def _touched(self) -> Iterator[str]:
        for event in self._allocated:
            if not any(event.hit):
                continue
            idle = sum(one.idle_hits for one in event.counts)
            refs = _refs(event.hit, event.hit_refs, 1)
            yield (
                f"step {event.step}: {refs}; {idle} left the free queue: "
                f"{event.free_before} -> {event.free_before - idle} free"
            )

    def _taken(self) -> Iterator[str]:
        for event, owners in zip(self._allocated, self._owners, strict=True):
            taken = [
                (*external, *new) for external, new in zip(event.external, event.new, strict=True)
            ]
            if not any(taken):
                continue
            held = "; ".join(
                f"block {lost.block} was {owners[lost.block]}'s under {lost.key}, "
                + ("whose key went first" if lost.gone else "WHICH STILL FINDS IT")
                for lost in event.evicted
            )
            yield (
                f"step {event.step}: {blocks(taken)}, "
                f"{held or 'none of them had a key'}; {event.free_after} free"
            )

    def _given_back(self) -> Iterator[str]:
        for event in self._freed:
            why = " (behind the window)" if event.why == "window" else ""
            when = f", when step {event.after_step} is over" if event.after_step else ""
            found = set(event.found)
            free = [
                block
                for ids, refs in zip(event.blocks, event.refs, strict=True)
                for block, ref in zip(ids, refs, strict=True)
                if ref == 1
            ]
            ends = [
                f"{blocks([ids])} to the {end}"
                for end, ids in (
                    ("front, unhashed", [block for block in free if block not in found]),
                    ("end, hashed", [block for block in free if block in found]),
                )
                if ids
            ]
            refs = _refs(event.blocks, event.refs, -1)
            into = "; ".join(ends) or "none, others hold them"
            yield f"in this order{why}{when}: {refs}; free queue: {into}"

    # -- the worker ----------------------------------------------------------------------------

    def _told(self) -> Iterator[str]:
        quiet = 0
        for event in self._planned:
            if event.whole:
                yield f"step {event.step}: new, with its whole table {_table(event.owned)}"
            elif any(event.new):
                yield f"step {event.step}: only what was appended, {_table(event.new)}"
            else:
                quiet += 1
        if quiet:
            yield f"{count(quiet, 'step')} without a change of its table"

    def _slots(self) -> Iterator[str]:
        for event in self._planned:
            told = [
                self._slots_of(i, table, event)
                for i, table in enumerate(event.owned)
                if self._began.kinds[i] not in _NO_SLOTS
            ]
            where = span(event.start, event.scheduled)
            yield f"step {event.step}: row {_table(event.owned)}, {where} -> " + "; ".join(told)

    def _slots_of(self, group: int, table: tuple[int, ...], event: Planned) -> str:
        size = self._began.block_sizes[group]
        slots = [
            table[position // size] * size + position % size
            for position in range(event.start, event.start + event.scheduled)
        ]
        runs: list[list[int]] = []
        for slot in slots:
            if runs and slot == runs[-1][1] + 1:
                runs[-1][1] = slot
            else:
                runs.append([slot, slot])
        return f"slot{'s' * (len(slots) > 1)} " + ", ".join(
            f"{first}-{last}" if last > first else str(first) for first, last in runs
        )


def _some(lines: list[str]) -> list[str]:
    """The first ones and the last one of many."""
    if len(lines) <= _MOST + 2:
        return lines
    return [*lines[:_MOST], f"... {len(lines) - _MOST - 1} more like these", lines[-1]]


def _refs(tables: Iterable[Iterable[int]], refs: Iterable[Iterable[int]], change: int) -> str:
    pairs = [
        (block, ref)
        for ids, counts in zip(tables, refs, strict=True)
        for block, ref in zip(ids, counts, strict=True)
    ]
    runs = [(ref, [b for b, _ in run]) for ref, run in groupby(pairs, key=lambda pair: pair[1])]
    return ", ".join(f"{blocks([ids])} ref_cnt {ref} -> {ref + change}" for ref, ids in runs)


def _table(tables: Iterable[Iterable[int]]) -> str:
    return "[" + ", ".join(str(list(table)) for table in tables) + "]"
