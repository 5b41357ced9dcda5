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
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence as Listing
from contextlib import contextmanager
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

#: By node.
Ledgers: TypeAlias = dict[str, dict[str, Any]]


class Cluster:
    """See `run`. `say` hears every line of every process."""

    def __init__(self, plan: Plan, say: Callable[[str, Line], None]) -> None:
        self._plan, self._say = plan, say
        self._env = plan.environment()
        self._children: dict[str, Child] = {}
        #: Where each node serves, once all are ready.
        self._apis: dict[str, str] = {}
        self._asked, self._asked_again = asyncio.Event(), asyncio.Event()
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(
        self, is_ready: Callable[[str, str], None], *, wants_ledgers: bool = False
    ) -> Ledgers:
        """Until SIGTERM or SIGINT; all processes are gone then. The nodes' ledgers, if wanted.

        `is_ready` is told the URL and the model. Raises: ProcessEnded.
        """
        lifeline = Lifeline()
        ledgers: Ledgers = {}
        try:
            with self._signals():
                if await self._begin(lifeline, is_ready):
                    await self._unless_one_ends(asyncio.Event().wait())
                await self._end([ROUTER])
                if wants_ledgers:
                    ledgers = await self._ledgers()
                await self._end(self._children)
        finally:
            for child in self._children.values():
                child.kill()
            for child in self._children.values():
                await child.ended()
            lifeline.close()
        return ledgers

    # -- the beginning -------------------------------------------------------------------------

    async def _begin(self, lifeline: Lifeline, is_ready: Callable[[str, str], None]) -> bool:
        """False: asked to end before all are ready."""
        await self._start(ROUTER, self._plan.router(lifeline.theirs), lifeline)
        if not await self._unless_one_ends(asyncio.shield(self._url)):
            return False
        for name in self._plan.nodes:
            command = self._plan.node(name, self._url.result(), lifeline.theirs)
            await self._start(name, command, lifeline)
        if not await self._unless_one_ends(self._all_ready()):
            return False
        members = await self._members()
        self._apis = {name: members[name]["api"] for name in self._plan.nodes}
        is_ready(self._url.result(), members[next(iter(self._apis))]["model"])
        return True

    async def _start(self, name: str, command: Listing[str], lifeline: Lifeline) -> None:
        self._children[name] = await Child.start(name, command, self._env, lifeline, self._hear)

    def _hear(self, name: str, text: str) -> None:
        line = Line.read(text)
        self._say(name, line)
        if name == ROUTER and line.event == "listening" and not self._url.done():
            self._url.set_result(str(line.values["url"]))

    async def _all_ready(self) -> None:
        while True:
            members = await self._members()
            if all(name in members and members[name]["ready"] for name in self._plan.nodes):
                return
            await asyncio.sleep(_LOOK_S)

    async def _members(self) -> dict[str, dict[str, Any]]:
        """What the registry says, by name of the node."""
        token = {"Authorization": f"Bearer {self._env['KVDIST_REGISTRY_TOKEN']}"}
        told = await _get(f"{self._url.result()}/registry/nodes", token)
        return {node["node_id"]: node for node in told["nodes"]}

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

    async def _ledgers(self) -> Ledgers:
        """By node; instead of one that can't be had, why."""
        key = os.environ.get("KVDIST_API_KEY")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        found: Ledgers = {}
        for name, url in self._apis.items():
            try:
                found[name] = await _get(f"{url}/debug/ledger", headers)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                found[name] = {"balanced": False, "reason": str(error) or type(error).__name__}
        return found


def _ask_to_end(children: Iterable[Child]) -> None:
    for child in children:
        child.ask_to_end()


async def _all_ended(children: Iterable[Child]) -> None:
    for child in children:
        await child.ended()


async def _get(url: str, headers: dict[str, str]) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session,
        session.get(url, headers=headers, raise_for_status=True) as response,
    ):
        told = await response.json()
        if not isinstance(told, dict):
            raise ValueError("an answer that is not an object")
        return told
