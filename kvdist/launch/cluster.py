"""A cluster's life: the router, then the nodes; ready; until it is asked to end or a process dies.

Owns:   the processes.
Knows nothing of: terminals.

    begin     router, which says where it listens; nodes, which register there
    end       the router answers what is open; ledgers, if they are wanted; then the nodes
    a death   of any process ends all
"""

import asyncio
import os
import signal
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Sequence as Listing,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeAlias

import aiohttp

from kvdist.errors import ProcessEnded
from kvdist.launch.child import Child, Lifeline
from kvdist.launch.lines import Line
from kvdist.launch.plan import ROUTER, Plan

#: More than a process takes to answer what is open.
_PATIENCE_S: Final = 40.0
_IMPATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.1
_ANSWER_S: Final = 10.0
#: More than a lease lasts that nobody comes for.
_LEASES_S: Final = 35.0

#: By node.
Ledgers: TypeAlias = dict[str, dict[str, Any]]


class Cluster:
    """See `run`, and `launched`. `say` hears every line of every process."""

    def __init__(self, plan: Plan, say: Callable[[str, Line], None]) -> None:
        self._plan, self._say = plan, say
        self._env = plan.environment()
        self._lifeline = Lifeline()
        self._children: dict[str, Child] = {}
        #: What nodes say of themselves, by name, once all are ready.
        self._members: dict[str, dict[str, Any]] = {}
        self._asked, self._asked_again = asyncio.Event(), asyncio.Event()
        self._listens: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self, is_ready: Callable[[], None], *, wants_ledgers: bool = False) -> Ledgers:
        """Until SIGTERM or SIGINT; all processes are gone then. The nodes' ledgers, if wanted.

        Raises: ProcessEnded.
        """
        try:
            with self._signals():
                if await self.begin():
                    is_ready()
                    await self._unless_one_ends(asyncio.Event().wait())
                return await self.end(wants_ledgers=wants_ledgers)
        finally:
            await self.close()

    # -- what there is, once it has begun ------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the router listens."""
        return self._listens.result()

    @property
    def model(self) -> str:
        """What clients call it."""
        return str(next(iter(self._members.values()))["model"])

    def url_of(self, name: str) -> str:
        """Where that node listens."""
        return str(self._members[name]["api"])

    def process_id(self, name: str) -> int:
        """Of a node, or of the router."""
        return self._children[name].process.pid

    async def ledgers(self, wait_s: float = 0.0) -> Ledgers:
        """Of all nodes, as soon as there is nothing to do, if that comes within `wait_s`.

        Instead of one that can't be had, why.
        """
        names = list(self._members)
        found = await asyncio.gather(*(self._ledger(name, wait_s) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ledger(self, name: str, wait_s: float) -> dict[str, Any]:
        key = os.environ.get("KVDIST_API_KEY")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"{self.url_of(name)}/debug/ledger?wait_s={wait_s}"
        try:
            return await _get(url, headers, wait_s)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return {"balanced": False, "reason": str(error) or type(error).__name__}

    # -- the beginning -------------------------------------------------------------------------

    async def begin(self) -> bool:
        """Until all nodes are ready; False: asked to end before that. Raises: ProcessEnded."""
        descriptor = self._lifeline.theirs
        await self._start(ROUTER, self._plan.router(descriptor))
        if not await self._unless_one_ends(asyncio.shield(self._listens)):
            return False
        for name in self._plan.nodes:
            await self._start(name, self._plan.node(name, self.url, descriptor))
        return await self._unless_one_ends(self._all_ready())

    async def _start(self, name: str, command: Listing[str]) -> None:
        child = await Child.start(name, command, self._env, self._lifeline, self._hear)
        self._children[name] = child

    def _hear(self, name: str, text: str) -> None:
        line = Line.read(text)
        self._say(name, line)
        if name == ROUTER and line.event == "listening" and not self._listens.done():
            self._listens.set_result(str(line.values["url"]))

    async def _all_ready(self) -> None:
        token = {"Authorization": f"Bearer {self._env['KVDIST_REGISTRY_TOKEN']}"}
        while True:
            with suppress(aiohttp.ClientError, OSError):  # of a router that is ending
                told = (await _get(f"{self.url}/registry/nodes", token))["nodes"]
                ready = {one["node_id"]: one for one in told if one["ready"] and one["knows_all"]}
                if ready.keys() >= self._plan.nodes.keys():
                    self._members = {name: ready[name] for name in self._plan.nodes}
                    return
            await asyncio.sleep(_LOOK_S)

    async def _unless_one_ends(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> bool:
        """Wait for `work`; False: asked to end before that. Raises: ProcessEnded."""
        doing = asyncio.ensure_future(work)
        asked = asyncio.create_task(self._asked.wait())
        deaths = [asyncio.create_task(child.process.wait()) for child in self._children.values()]
        waiting = [doing, asked, *deaths]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for child in self._children.values():
                if child.has_ended and not asked.done():
                    await child.ended()
                    raise ProcessEnded(child.last_words)
            if doing.done():
                doing.result()
            return doing.done() and not asked.done()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    # -- the end -------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def ask() -> None:
            (self._asked_again if self._asked.is_set() else self._asked).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def end(self, *, wants_ledgers: bool = False) -> Ledgers:
        """First the router, which answers what is open; the ledgers, if wanted; then the nodes."""
        await self._end([ROUTER])
        # Asked again, nobody wants to wait for what leases are still left.
        wait_s = 0.0 if self._asked_again.is_set() else _LEASES_S
        ledgers = await self.ledgers(wait_s) if wants_ledgers else {}
        await self._end(self._children)
        return ledgers

    async def close(self) -> None:
        """Whatever is left is killed."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            await child.ended()
        self._lifeline.close()

    async def _end(self, names: Collection[str]) -> None:
        """They may finish what they do; asked again, or after a while, they may not."""
        children = [child for name, child in self._children.items() if name in names]
        ending = asyncio.create_task(_all_ended(children))
        again = asyncio.create_task(self._asked_again.wait())
        try:
            _ask_to_end(children)
            await asyncio.wait(
                [ending, again], timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not ending.done():
                _ask_to_end(children)
                await asyncio.wait([ending], timeout=_IMPATIENCE_S)
            for child in children:
                child.kill()
            await ending
        finally:
            ending.cancel()
            again.cancel()


@asynccontextmanager
async def launched(
    plan: Plan, say: Callable[[str, Line], None] = lambda name, line: None
) -> AsyncIterator[Cluster]:
    """The block has a cluster that is ready; afterwards all of it is gone. Raises: ProcessEnded."""
    cluster = Cluster(plan, say)
    try:
        await cluster.begin()
        yield cluster
        await cluster.end()
    finally:
        await cluster.close()


def _ask_to_end(children: Iterable[Child]) -> None:
    for child in children:
        child.ask_to_end()


async def _all_ended(children: Iterable[Child]) -> None:
    for child in children:
        await child.ended()


async def _get(url: str, headers: dict[str, str], wait_s: float = 0.0) -> dict[str, Any]:
    patience = aiohttp.ClientTimeout(total=wait_s + _ANSWER_S)
    async with (
        aiohttp.ClientSession(timeout=patience) as session,
        session.get(url, headers=headers, raise_for_status=True) as response,
    ):
        told = await response.json()
        if not isinstance(told, dict):
            raise ValueError("an answer that is not an object")
        return told
