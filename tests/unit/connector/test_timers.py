"""Deadlines against a dictionary that is searched."""

import pytest
from hypothesis import given, strategies as st

from kvdist.connector.timers import Timers

KEYS = st.integers(0, 4)
TIMES = st.integers(0, 20).map(float)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, TIMES),
        st.tuples(st.just("cancel"), KEYS, TIMES),
        st.tuples(st.just("due"), KEYS, TIMES),
    )
)


class Naive:
    """When each key is due, and who was told first."""

    def __init__(self) -> None:
        self.at: dict[int, tuple[float, int]] = {}
        self.count = 0

    def set(self, key: int, at: float) -> None:
        self.count += 1
        self.at[key] = (at, self.count)

    def due(self, now: float) -> list[int]:
        found = sorted(
            (key for key, at in self.at.items() if at[0] <= now), key=self.at.__getitem__
        )
        for key in found:
            del self.at[key]
        return found


@given(MOVES)
def test_as_a_dictionary(moves: list[tuple[str, int, float]]) -> None:
    timers, naive = Timers[int](), Naive()
    for move, key, at in moves:
        match move:
            case "set":
                timers.set(key, at)
                naive.set(key, at)
            case "cancel":
                timers.cancel(key)
                naive.at.pop(key, None)
            case _:
                assert list(timers.due(at)) == naive.due(at)
        assert len(timers) == len(naive.at)
        assert timers.next_at() == min((at for at, _ in naive.at.values()), default=None)
        assert timers.at(key) == naive.at.get(key, (None,))[0]


def test_what_is_set_meanwhile_comes_too() -> None:
    timers = Timers[str]()
    timers.set("first", 1.0)
    heard = []
    for key in timers.due(2.0):
        heard.append(key)
        if key == "first":
            timers.set("second", 2.0)
            timers.set("later", 3.0)
    assert heard == ["first", "second"]
    assert timers.next_at() == 3.0


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_moving_a_deadline_for_ever_costs_no_memory(step: float) -> None:
    timers = Timers[str]()
    for i in range(10_000):
        timers.set("renewed", 1.0 + i * step)
    assert len(timers._heap) < 200
    assert list(timers.due(1e9)) == ["renewed"]
