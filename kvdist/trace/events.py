"""What the core tells of requests and blocks, as plain values.

Owns:   the events, and the form of a line of a trace file.
Knows nothing of: who tells, who listens; clocks, since whoever writes an entry stamps it.
Units:  tokens and blocks, by name; block ids are nested `[group][block]`, 0 where a group skips.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

Tables: TypeAlias = tuple[tuple[int, ...], ...]


class _Event(Struct, frozen=True, tag_field="event", tag=str.lower, omit_defaults=True):
    """Its name is in each line, in lower case."""


class Began(_Event, frozen=True):
    """A node began, or a file of its trace: what the numbers of the other events mean."""

    #: Tells one run of a node from another.
    run: str
    num_blocks: int
    #: For each group.
    block_sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    caching: bool = True


class Arrived(_Event, frozen=True):
    """A request waits."""

    req: str
    prompt_tokens: int
    #: Prompt and output together, at most.
    max_tokens: int
    priority: int = 0
    #: How many others run and wait.
    running: int = 0
    waiting: int = 0


#: blocks: too few are free; room: too few beside what others were promised; fence: they come back
#: when a step is over; reader: a peer reads those that it would get; remote: a remote cache has no
#: answer yet.
Why: TypeAlias = Literal["blocks", "room", "fence", "reader", "remote"]


class Waits(_Event, frozen=True):
    """A request could not go on. Told once, however often it is tried."""

    req: str
    why: Why
    needed: int = 0
    free: int = 0
    #: Of the free ones, kept for others.
    kept: int = 0


class Evicted(Struct, frozen=True, array_like=True):
    """A block that was taken for new content while it could be found under a key."""

    block: int
    #: The first digits of the key.
    key: str
    #: It can't be found under it any more.
    gone: bool


class Count(Struct, frozen=True, array_like=True):
    """What one group needs of an allocation (S12)."""

    #: Blocks that all tokens and the lookahead need.
    target: int
    owned: int
    hits: int
    #: Hits that nobody held: touching them takes them out of the free queue.
    idle_hits: int


class Allocated(_Event, frozen=True):
    """A request got slots, in all groups."""

    req: str
    #: The step that is planned.
    step: int
    #: It owned nothing before: this is its admission.
    first: bool
    #: Tokens of the hit, of what comes from elsewhere, of what is computed; slots behind those.
    local_tokens: int
    external_tokens: int
    new_tokens: int
    lookahead: int
    #: The most that a hit could have.
    hit_limit: int
    #: The key that the first block behind the hit would have, its first digits; "": it isn't full.
    next_key: str
    #: No lookup was made, or it was not allowed to find anything.
    looked_up: bool
    counts: tuple[Count, ...]
    #: Blocks that leave the free queue; those that were in it before; those kept for others.
    needed: int
    free_before: int
    kept: int
    free_after: int
    hit: Tables
    #: Reference counts of the hit blocks before they were touched.
    hit_refs: Tables
    #: Taken for bytes that have to come from elsewhere.
    external: Tables
    new: Tables
    evicted: tuple[Evicted, ...] = ()


class Published(_Event, frozen=True):
    """Blocks of a request can be found by others from now on."""

    req: str
    group: int
    #: Index of the first of them in its table.
    first_block: int
    #: Those that can be found; a group may leave some out.
    blocks: tuple[int, ...]


class Planned(_Event, frozen=True):
    """What a step computes of a request: the document's line, and what the worker is told (S26)."""

    step: int
    req: str
    hit_tokens: int
    #: First position, and how many, drafts among them.
    start: int
    scheduled: int
    #: The token after the last is sampled.
    samples: bool
    #: The worker gets the whole tables; else what is in `new` is appended to those it has.
    whole: bool
    owned: Tables
    new: Tables
    free: int
    ref_hit: tuple[int, ...]


class Told(_Event, frozen=True):
    """The first token came out of a request."""

    req: str


class Loaded(_Event, frozen=True):
    """K/V from elsewhere are there and verified."""

    req: str
    #: That are there now, local ones among them.
    tokens: int


class LoadFailed(_Event, frozen=True):
    """K/V from elsewhere did not come; without `again` that is the request's end."""

    req: str
    reason: str
    again: bool


class GaveUp(_Event, frozen=True):
    """A request lost all that it had, and is computed anew."""

    req: str
    how: Literal["preempt", "recompute"]
    #: Who got its blocks, of those that preempt.
    by: str = ""
    reason: str = ""


class Freed(_Event, frozen=True):
    """A request gave blocks back, in order of reuse: the first goes first (S19)."""

    req: str
    #: all: its whole tables; window: what no later step reads (S13).
    why: Literal["all", "window"]
    blocks: Tables
    #: Reference counts before, the request's own included.
    refs: Tables
    #: Those that can still be found.
    found: tuple[int, ...] = ()
    #: The step that still names them: they are free when it is over (S27). 0: at once.
    after_step: int = 0


class Forgotten(_Event, frozen=True):
    """Blocks can't be found any more, for another reason than that they were taken."""

    blocks: tuple[int, ...]
    why: Literal["withdrawn", "evicted", "reset"]


class Ended(_Event, frozen=True):
    """A request has ended; nothing but its blocks is left."""

    req: str
    status: str
    output_tokens: int
    reason: str = ""


Event: TypeAlias = (
    Began
    | Arrived
    | Waits
    | Allocated
    | Published
    | Planned
    | Told
    | Loaded
    | LoadFailed
    | GaveUp
    | Freed
    | Forgotten
    | Ended
)


class Entry(Struct, frozen=True):
    """A line of a trace file."""

    #: Seconds since 1970, by the clock of whoever wrote it.
    t: float
    event: Event
