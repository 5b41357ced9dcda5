"""Random work on one node that is heard: every sequence that ends has a whole story."""

from typing import Any

from hypothesis import strategies as st

from kvdist.cache import KVCacheSpec
from kvdist.trace.events import (
    Allocated,
    Arrived,
    Ended,
    Event,
    Freed,
    GaveUp,
    LoadFailed,
    Planned,
    Published,
)
from kvdist.trace.explain import explain
from kvdist.trace.reading import request_of
from kvdist.trace.story import story
from tests.make import chunked, full, mamba, window
from tests.property.effort import effort
from tests.property.scheduling import SchedulingMachine


def _pools(*groups: list[KVCacheSpec]) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(groups), st.integers(8, 24), st.just({"traced": True}))


class _Heard(SchedulingMachine):
    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "rig"):
            return
        for name, status in self.rig.ended.items():
            own = [e.event for e in self.rig.entries if request_of(e.event) == name]
            _check_life(own, status.name.removeprefix("FINISHED_").lower())
            first, *rest = story(self.rig.entries, name)
            assert " arrives: " in first
            assert [" ends: " in line for line in rest].count(True) == 1
            assert not any(" arrives: " in line for line in rest)
            assert len(explain(self.rig.entries, name)) > 14
        assert not self.rig.recorder or not self.rig.recorder.hit_tokens


def _check_life(events: list[Event], status: str) -> None:
    """It arrives first and ends once; what it takes it gives back, and computes what is its own."""
    first, *_ = events
    assert isinstance(first, Arrived)
    assert sum(isinstance(event, Arrived) for event in events) == 1
    (ended,) = [event for event in events if isinstance(event, Ended)]
    assert ended.status == status
    held = False
    for event in events[: events.index(ended)]:
        match event:
            case Allocated():
                assert event.first is not held, "it begins with nothing, and goes on with something"
                held = True
                assert all(lost.gone for lost in event.evicted), "S21: the key goes first"
                assert event.needed + event.kept <= event.free_before, "S12"
            case Published() | Planned() | GaveUp() | LoadFailed():
                assert held or isinstance(event, GaveUp | LoadFailed)
            case Freed(why="all"):
                assert held, "nothing is given back twice"
                held = False
            case _:
                pass
    after = events[events.index(ended) + 1 :]
    given_back = [event for event in after if isinstance(event, Freed)]
    assert len(given_back) == held, "at its end it gives back what it has, once"


class OneGroup(_Heard):
    pools = _pools([full()], [window(7)])


class ManyGroups(_Heard):
    pools = _pools([full(), window(5)], [full(), mamba()], [full(), chunked(6), window(5)])


TestOneGroup = OneGroup.TestCase
TestManyGroups = ManyGroups.TestCase
TestOneGroup.settings = effort(40)
TestManyGroups.settings = effort(40)
