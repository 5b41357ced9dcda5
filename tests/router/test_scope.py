"""A block that somebody else can end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvdist.router.scope import Scope


class _Cut(Exception):
    pass


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await main()

    asyncio.run(bounded())


def test_a_cut_ends_the_block_with_its_error() -> None:
    async def main() -> None:
        async def block() -> None:
            async with Scope() as scope:
                asyncio.get_running_loop().call_soon(scope.cut, _Cut("first"))
                asyncio.get_running_loop().call_soon(scope.cut, _Cut("second"))
                await asyncio.sleep(9)

        with pytest.raises(_Cut, match="first"):
            await block()
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    run(main)


def test_a_cut_that_comes_too_late_changes_nothing() -> None:
    async def main() -> None:
        async with Scope() as scope:
            scope.disarm()
            scope.cut(_Cut())
            await asyncio.sleep(0.01)
        scope.cut(_Cut())
        async with Scope() as scope:
            scope.cut(_Cut())  # and there is no await after it
        await asyncio.sleep(0.01)

    run(main)


def test_of_two_scopes_the_right_one_ends() -> None:
    async def inner_block() -> None:
        async with Scope() as inner:
            inner.cut(_Cut("inner"))
            await asyncio.sleep(9)

    async def outer_block() -> None:
        async with Scope() as outer:
            with pytest.raises(_Cut, match="inner"):
                await inner_block()
            async with Scope():
                outer.cut(_Cut("outer"))
                await asyncio.sleep(9)

    async def main() -> None:
        with pytest.raises(_Cut, match="outer"):
            await outer_block()

    run(main)


def test_cancelling_is_no_cut_and_a_timeout_is_none_either() -> None:
    async def main() -> None:
        scopes: list[Scope] = []

        async def wait() -> None:
            async with Scope() as scope:
                scopes.append(scope)
                await asyncio.sleep(9)

        async def late() -> None:
            async with Scope():
                raise TimeoutError

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        scopes[0].cut(_Cut())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await late()

    run(main)
