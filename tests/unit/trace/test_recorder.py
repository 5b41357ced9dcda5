"""What is passed on, and what would only repeat."""

from kvdist.trace.events import Ended, Event, GaveUp, Waits
from kvdist.trace.recorder import Recorder


def test_why_one_waits_is_told_once() -> None:
    heard: list[Event] = []
    recorder = Recorder(heard.append)
    for why in ("blocks", "fence", "blocks", "fence"):
        recorder.note(Waits("a", why))
    recorder.note(Waits("b", "blocks"))
    assert heard == [Waits("a", "blocks"), Waits("a", "fence"), Waits("b", "blocks")]


def test_and_once_more_after_something_has_happened() -> None:
    heard: list[Event] = []
    recorder = Recorder(heard.append)
    for event in (Waits("a", "blocks"), GaveUp("a", "preempt"), Waits("a", "blocks")):
        recorder.note(event)
    assert len(heard) == 3


def test_nothing_is_kept_of_who_has_ended() -> None:
    recorder = Recorder(lambda event: None)
    recorder.hit_tokens["a"] = 8
    recorder.note(Waits("a", "room"))
    recorder.note(Ended("a", "aborted", 0))
    assert not recorder.hit_tokens
    assert not recorder._waits
