"""What a client asks of the engine, and where the answer arrives.

Owns:   the news of one job that nobody has read yet.
Knows nothing of: HTTP, text, steps.
Units:  tokens; times are seconds of a monotonic clock.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence as Listing
from dataclasses import dataclass, field

from kvdist.cache import ExtraKeys
from kvdist.connector.messages import Ticket
from kvdist.errors import GenerationFailed, KvdistError, Unavailable
from kvdist.ids import RequestId
from kvdist.sched.audio import Audio
from kvdist.sched.output import Output
from kvdist.sched.sequence import SamplingParams, SequenceStatus


@dataclass(frozen=True, slots=True)
class News:
    """What one sequence of a job has to tell. `index` counts prompt by prompt, n for each."""

    index: int
    output: Output


@dataclass(slots=True, eq=False)
class Job:
    """`params.n` sequences for each prompt."""

    name: str
    prompts: Listing[Listing[int]]
    params: SamplingParams
    arrived_s: float
    priority: int = 0
    extra_keys: ExtraKeys = field(default_factory=ExtraKeys)
    #: One for each prompt, for a model that hears.
    audio: Listing[Audio] = ()
    #: What the connector is asked for, as the client said it.
    kv_transfer_params: Mapping[str, object] | None = None
    #: Nothing is generated: the K/V of the prompt are for another node.
    is_prefill: bool = False
    #: Another node reads along while the prompt is computed (T11).
    is_streamed: bool = False
    #: By index; empty before it is admitted.
    request_ids: list[RequestId] = field(default_factory=list)
    #: Tokens of each prompt that were found in the cache when it first ran.
    num_cached_tokens: list[int] = field(default_factory=list)
    #: And those whose K/V came from other nodes.
    num_remote_tokens: list[int] = field(default_factory=list)
    #: By index: when its latest token was told.
    last_token_s: dict[int, float] = field(default_factory=dict)
    #: Sequences that met a stop string, which the scheduler knows nothing of.
    stopped: set[int] = field(default_factory=set)
    #: True when nobody waits for it any more.
    given_up: bool = False
    _news: asyncio.Queue[News | KvdistError] = field(default_factory=asyncio.Queue)
    _tickets: asyncio.Queue[Ticket | KvdistError | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.num_cached_tokens = [0] * len(self.prompts)
        self.num_remote_tokens = [0] * len(self.prompts)

    @property
    def num_choices(self) -> int:
        """Sequences of all prompts."""
        return len(self.prompts) * self.params.n

    @property
    def reads_elsewhere(self) -> bool:
        """Another node may hold something for it."""
        return self.kv_transfer_params is not None and not self.is_prefill

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each once however many sequences it has."""
        return sum(map(len, self.prompts))

    def tell(self, news: News) -> None:
        """One more piece of news."""
        self._news.put_nowait(news)

    def fail(self, error: KvdistError) -> None:
        """It ends here, and this is why."""
        self._news.put_nowait(error)
        self._tickets.put_nowait(error)

    def give(self, ticket: Ticket | None) -> None:
        """A prefill's K/V can be had for this; None: there is nothing to fetch."""
        self._tickets.put_nowait(ticket)

    def untold(self) -> list[Ticket]:
        """Tickets that were given and not asked for; afterwards there are none."""
        found = []
        while not self._tickets.empty():
            if isinstance(ticket := self._tickets.get_nowait(), Ticket):
                found.append(ticket)
        return found

    async def ticket(self) -> Ticket | None:
        """Of a prefill that has ended, which gets one soon after. Raises: whatever ended it."""
        ticket = await self._tickets.get()
        if isinstance(ticket, KvdistError):
            raise ticket
        return ticket

    async def news(self) -> AsyncGenerator[News]:
        """All news until each sequence has ended.

        Raises: whatever ended it; GenerationFailed if a sequence ended with an error, Unavailable
        if that is only since too much is being recomputed for want of K/V.
        """
        left = self.num_choices
        while left:
            item = await self._news.get()
            if isinstance(item, KvdistError):
                raise item
            if item.output.status is SequenceStatus.FINISHED_ERROR:
                kind = Unavailable if item.output.is_busy else GenerationFailed
                raise kind(item.output.reason or "it failed")
            left -= item.output.status.finished
            yield item
