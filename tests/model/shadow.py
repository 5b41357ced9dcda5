"""What lies in every block, written down beside the manager: never a wrong token.

Owns:   the content of every slot of every block.
Knows nothing of: counts, queues, hashes; it only believes tables and keys, and looks whether what
        they lead to is there.

Writes are noted when a step is planned. Steps run in the order in which they are planned, so what a
later one reads is what earlier ones will have written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvdist.cache import Request
from tests.model.content import Content, content
from tests.model.naive_groups import Group, ceil


@dataclass
class Shadow:
    groups: list[Group]
    #: By block and slot. A state has one slot.
    slots: dict[tuple[int, int], Content] = field(default_factory=dict)
    #: (step, block, slot) of what open steps write.
    log: list[tuple[int, int, int]] = field(default_factory=list)

    # -- writing -------------------------------------------------------------------------------

    def write(
        self,
        request: Request,
        tables: Sequence[Sequence[int]],
        start: int,
        end: int,
        drafts: tuple[int, ...] = (),
        step: int | None = None,
        *,
        unverified: int = 0,
    ) -> None:
        """Tokens [start, end) are computed, or their K/V arrive. Null positions keep nothing.

        The last `unverified` of them may be rejected: no state goes past those before them.
        """
        for group, table in zip(self.groups, tables, strict=True):
            if group.is_state:
                self._write_states(group, request, table, start, end - unverified, drafts, step)
            elif not group.is_cross:
                for p in range(start, end):
                    if block := table[p // group.size]:
                        self._put(block, p % group.size, content(request, p + 1, drafts), step)

    def _write_states(
        self,
        group: Group,
        request: Request,
        table: Sequence[int],
        start: int,
        end: int,
        drafts: tuple[int, ...] = (),
        step: int | None = None,
    ) -> None:
        """The running state, and those at block ends that have a place."""
        for length in (*range(group.size, end, group.size), end):
            if length > start and (block := table[(length - 1) // group.size]):
                self._put(block, 0, content(request, length, drafts), step)

    def accept(
        self, request: Request, tables: Sequence[Sequence[int]], start: int, end: int
    ) -> None:
        """Of a step's drafts those before `end` were right: its states move on to there."""
        for group, table in zip(self.groups, tables, strict=True):
            if group.is_state:
                self._write_states(group, request, table, start, end)

    def write_garbage(
        self, tables: Sequence[Sequence[int]], start: int, end: int, step: int | None
    ) -> None:
        """Lookahead slots [start, end): drafts nobody has verified."""
        for group, table in zip(self.groups, tables, strict=True):
            for p in range(start, end if not (group.is_state or group.is_cross) else start):
                assert table[p // group.size], "a lookahead token has no slot"
                garbage = Content("draft", None, (), ())
                self._put(table[p // group.size], p % group.size, garbage, step)

    def copy(self, source: int, target: int, step: int | None) -> None:
        for (block, slot), what in list(self.slots.items()):
            if block == source:
                self._put(target, slot, what, step)

    def _put(self, block: int, slot: int, what: Content, step: int | None) -> None:
        if self.slots.get((block, slot)) == what:
            return  # the same bytes once more can't spoil anything
        self.slots[block, slot] = what
        if step is not None:
            self.log.append((step, block, slot))

    def settle(self, step: int) -> None:
        self.log = [entry for entry in self.log if entry[0] != step]

    def spoil(self, step: int) -> None:
        """`step` and all later ones failed: what they wrote is worth nothing."""
        for written_in, block, slot in self.log:
            if written_in >= step:
                self.slots[block, slot] = Content("spoilt", None, (), ())
        self.log = [entry for entry in self.log if entry[0] < step]

    # -- reading -------------------------------------------------------------------------------

    def blocks_of_step(self, tables: Sequence[Sequence[int]], start: int, end: int) -> set[int]:
        """Blocks that computing [start, end) reads or writes."""
        blocks: set[int] = set()
        for group, table in zip(self.groups, tables, strict=True):
            if group.is_cross:
                blocks.update(table)
            elif group.is_state:
                blocks.update(table[max(0, start - 1) // group.size :])
            else:
                first, last = group.first_read(start) // group.size, ceil(end, group.size)
                blocks.update(table[first:last])
        return blocks - {0}

    def check_readable(
        self,
        request: Request,
        tables: Sequence[Sequence[int]],
        position: int,
        drafts: tuple[int, ...] = (),
    ) -> None:
        """All that the token at `position` reads before itself is in the tables."""
        for group, table in zip(self.groups, tables, strict=True):
            if position == 0 or group.is_cross:
                continue
            if group.is_state:
                block = table[(position - 1) // group.size]
                wanted = content(request, position, drafts)
                assert self.slots.get((block, 0)) == wanted, (group.index, position, block)
                continue
            for p in range(group.first_read(position), position):
                block = table[p // group.size]
                wanted = content(request, p + 1, drafts)
                assert block and self.slots.get((block, p % group.size)) == wanted, (
                    f"{request.request_id}, group {group.index}, token {p}: block {block} has "
                    f"{self.slots.get((block, p % group.size))}, wanted {wanted}"
                )

    def check_key(self, group: Group, block: int, what: Content) -> None:
        """A block that is found by a key holds what the key names, up to its end."""
        end = len(what.tokens)
        if group.is_state:
            assert self.slots.get((block, 0)) == what, (group.index, block)
            return
        for p in range((end - 1) // group.size * group.size, end):
            items = tuple(item for item in what.items if item[1] <= p)
            wanted = what._replace(tokens=what.tokens[: p + 1], items=items)
            found = self.slots.get((block, p % group.size))
            assert found == wanted, (group.index, block, p, found, wanted)
