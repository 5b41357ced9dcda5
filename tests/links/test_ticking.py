"""Whoever has deadlines is asked in time, however they move."""

import asyncio
import time
from typing import Any

from kvdist.links.ticking import Ticking


def test_a_deadline_that_comes_nearer_or_moves_on_is_seen() -> None:
    async def play() -> tuple[int, float]:
        deadlines = [time.monotonic() + 3_600]
        looks, seen = [], asyncio.Event()

        def tick() -> None:
            looks.append(time.monotonic())
            if looks[-1] >= deadlines[0]:
                deadlines.clear()
                seen.set()
            ticking.set()

        ticking = Ticking(lambda: deadlines[0] if deadlines else None, tick)
        ticking.set()
        deadlines[0] = time.monotonic() + 0.01
        ticking.set()
        deadlines[0] = last = deadlines[0] + 0.03
        ticking.set()
        await asyncio.wait_for(seen.wait(), 30)
        return len(looks), looks[-1] - last

    num_looks, after_s = asyncio.run(play())
    assert num_looks <= 2
    assert after_s >= 0


def test_deadlines_that_move_on_cost_no_new_call_of_the_loop() -> None:
    async def play() -> int:
        loop = asyncio.get_running_loop()
        calls: list[object] = []
        call_later = loop.call_later

        def noted(*told: Any) -> asyncio.TimerHandle:
            calls.append(told)
            return call_later(*told)

        loop.call_later = noted  # type: ignore[method-assign, assignment]
        at = time.monotonic() + 3_600
        ticking = Ticking(lambda: at, lambda: None)
        for _ in range(5):
            ticking.set()
            at += 1
        ticking.stop()
        return len(calls)

    assert asyncio.run(play()) == 1
