"""The block pool as the rules tell it (S5, S18-S23, T1, I7), with nothing but lists of numbers.

Owns:   everything; slow on purpose, and written from the rules, not from the code.
Knows nothing of: what a key is. Any value that can be compared will do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Key: TypeAlias = object

#: Strongest first.
KINDS = ("quarantine", "copy", "pull", "lease")


@dataclass
class NaivePool:
    """Block 0 is the null block and appears in none of the lists."""

    num_blocks: int
    enable_caching: bool = True
    #: The free queue, next out first.
    queue: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    #: How often each block was taken.
    taken: list[int] = field(default_factory=list)
    #: Which step each block belongs to: the latest one that took it or published it.
    step_of: list[int] = field(default_factory=list)
    #: (group, key, block) in the order of publication.
    entries: list[tuple[int, Key, int]] = field(default_factory=list)
    #: (block, kind) for each hold that is not a table's.
    holds: list[tuple[int, str]] = field(default_factory=list)
    #: (step, group, block) for each publication of a step that is open.
    published: list[tuple[int, int, int]] = field(default_factory=list)
    open_steps: list[int] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        self.queue = list(range(1, self.num_blocks))
        self.refs, self.taken = [0] * self.num_blocks, [0] * self.num_blocks
        self.step_of = [0] * self.num_blocks

    # -- what can be seen ----------------------------------------------------------------------

    def lookup(self, group: int, key: Key) -> int | None:
        """The block published longest (S22)."""
        return next((b for g, k, b in self.entries if (g, k) == (group, key)), None)

    def is_cached(self, block: int) -> bool:
        return any(b == block for _, _, b in self.entries)

    def ledger(self) -> dict[str, int]:
        """Each block once, under its strongest hold (I7)."""
        counts = dict.fromkeys((*KINDS, "request", "free"), 0)
        for block in range(1, self.num_blocks):
            kinds = [kind for kind in KINDS if (block, kind) in self.holds]
            idle = "request" if self.refs[block] else "free"
            counts[kinds[0] if kinds else idle] += 1
        return counts

    # -- changes -------------------------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        blocks = [self.queue.pop(0) for _ in range(count)]
        for block in blocks:
            self.forget(block)
            self.refs[block] = 1
            self.taken[block] += 1
            self.step_of[block] = self.step
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == 0:
                continue
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """S19: never cached to the front, cached to the back, each in the order given."""
        first: list[int] = []
        last: list[int] = []
        for block in blocks:
            if block == 0:
                continue
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (last if self.is_cached(block) else first).append(block)
        self.queue = first + self.queue + last

    def publish(self, group: int, key: Key, block: int) -> None:
        self.entries.append((group, key, block))
        self.step_of[block] = self.step
        self.note_publication(group, block)

    def note_publication(self, group: int, block: int) -> None:
        if self.open_steps:
            self.published.append((self.step, group, block))

    def forget(self, block: int) -> None:
        self.entries = [entry for entry in self.entries if entry[2] != block]

    def reset(self) -> bool:
        if len(self.queue) < self.num_blocks - 1:
            return False
        self.entries = []
        return True

    def hold(self, blocks: Iterable[int], kind: str) -> None:
        blocks = [block for block in blocks if block]
        self.touch(blocks)
        self.holds += [(block, kind) for block in blocks]

    def end_hold(self, blocks: Iterable[int], kind: str) -> None:
        blocks = [block for block in blocks if block]
        for block in blocks:
            self.holds.remove((block, kind))
        self.free(blocks)

    # -- steps ---------------------------------------------------------------------------------

    def open(self, step: int) -> None:
        self.open_steps.append(step)
        self.step = step

    def settle(self) -> None:
        """The oldest open step ends: what it published stays."""
        step = self.open_steps.pop(0)
        self.published = [entry for entry in self.published if entry[0] != step]

    def withdraw(self, step: int) -> None:
        """What `step` and later ones published can't be found any more (T1)."""
        for published_in, _, block in self.published:
            if published_in >= step and self.step_of[block] >= step:
                self.forget(block)
        self.published = [entry for entry in self.published if entry[0] < step]

    def is_settled(self, block: int) -> bool:
        over = not any(step <= self.step_of[block] for step in self.open_steps)
        return over and self.is_cached(block)
