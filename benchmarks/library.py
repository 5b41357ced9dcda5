"""What the work asks of a library, in calls that cost as little as possible themselves.

Owns:   nothing.
Knows nothing of: any library.

What is timed call by call is one call here. What is short is one call for many requests, so that
the loop around it runs inside the engine, as it would in a scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from benchmarks.prompts import Prompt

#: A library's request, and its result of a lookup.
R = TypeVar("R")
H = TypeVar("H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool and its groups: one of full attention, then one for each window."""

    num_blocks: int
    windows: tuple[int, ...] = ()
    #: None: every full block is published; 0: windows only where a resend can use them.
    retention_interval: int | None = None


class OutOfBlocksError(Exception):
    """An allocation was refused: the work never asks for more than there is."""


class Engine(Protocol[R, H]):
    """One block manager at a time, and the requests made for it."""

    #: Block hashes by name, `sha256` among them.
    algorithms: tuple[str, ...]

    def describe(self) -> dict[str, str]:
        """The library's name and version."""
        ...

    def make(self, pool: Pool) -> None:
        """A new, empty manager takes the place of the last one; caching is on."""

    def create(self, prompts: Sequence[Prompt], algorithm: str | None) -> list[R]:
        """One request for each prompt, with its block hashes (None: without any)."""
        ...

    def lookup(self, request: R) -> H:
        """The longest cached prefix."""
        ...

    def accept(self, request: R, hit: H) -> int:
        """What a scheduler notes of a hit, if anything; returns its tokens."""
        ...

    def allocate(self, request: R, hit: H) -> None:
        """Slots for the whole prompt, the hit adopted. Raises: OutOfBlocksError."""

    def computed(self, request: R) -> None:
        """The whole prompt counts as computed."""

    def append(self, requests: Sequence[R], tokens: Sequence[int]) -> None:
        """One output token to each request."""

    def step(self, requests: Sequence[R]) -> None:
        """A slot for one more token, computed at once, for each. Raises: OutOfBlocksError."""

    def free(self, request: R) -> None:
        """Give back all that the request has."""

    def used(self) -> int:
        """Blocks held, without the null block."""
        ...

    def cached(self) -> int:
        """Blocks with a key."""
        ...
