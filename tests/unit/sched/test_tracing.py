"""What a plan says of each sequence, as an event."""

from kvdist.sched.budget import SchedulerConfig
from kvdist.trace.events import Began, Planned
from tests.make import full, window
from tests.rig import Rig


def planned(rig: Rig) -> list[Planned]:
    return [entry.event for entry in rig.entries if isinstance(entry.event, Planned)]


def rig() -> Rig:
    settings = SchedulerConfig(max_num_batched_tokens=8, max_steps_in_flight=1)
    return Rig(full(), window(5), settings=settings, num_blocks=31, traced=True)


def test_first_it_is_told_what_the_numbers_mean() -> None:
    assert rig().entries[0].event == Began(
        "run", 31, (4, 4), ("FullAttention", "SlidingWindow"), caching=True
    )


def test_whole_tables_first_then_what_was_added() -> None:
    node = rig()
    node.add([1] * 12, max_new_tokens=2)
    node.run_to_the_end()
    first, second, third = planned(node)
    assert (first.whole, first.start, first.scheduled, first.samples) == (True, 0, 8, False)
    assert first.new == first.owned == ((1, 2), (3, 4))
    assert (second.whole, second.start, second.scheduled, second.samples) == (False, 8, 4, True)
    assert second.new == ((5,), (6,))
    assert second.owned == ((1, 2, 5), (0, 4, 6))
    assert (third.scheduled, third.samples) == (1, True)


def test_a_hit_is_not_new_and_its_counts_are_told() -> None:
    node = rig()
    node.add([1] * 9, max_new_tokens=9)
    node.step()
    node.step()
    node.step()
    node.add([1] * 8 + [2, 3], max_new_tokens=1)
    node.run_to_the_end()
    (hit,) = [event for event in planned(node) if event.req == "client-2"]
    assert hit.hit_tokens == 8
    assert hit.ref_hit == (2, 2, 2)  # the window needs only the last one
    assert [len(new) for new in hit.new] == [1, 1]


def test_nobody_listens_by_default() -> None:
    node = Rig()
    node.add([1] * 9)
    node.run_to_the_end()
    assert node.entries == []
    assert node.scheduler.roster.recorder is None
