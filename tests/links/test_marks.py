"""Marks: which are passed, and what happens there."""

import asyncio
from pathlib import Path

import pytest

from kvdist.connector.local import Granted
from kvdist.connector.params import ByHash, ByTransfer, write_params
from kvdist.errors import ConfigError
from kvdist.ids import LeaseId
from kvdist.links.faults import read_faults
from kvdist.links.marks import MARKS, AtMark, Deed, Marks
from tests.links.pairs import Node, a_pair, perfect

PROMPT = "A prompt that is read by one and computed by another, as most are that are long. "
#: What goes wrong, or takes long: not on the way of a transfer that goes well.
WRONG = {
    f"{name}-{end}"
    for name in ("refused", "denied", "withdrawn", "still-reading", "cancel", "close")
    for end in ("said", "heard")
} | {"load-failed", "load-quiet"}
#: Whether more is computed while somebody reads along is a matter of time.
SOON = {"settled-said", "settled-heard"}
#: Where the owner sends, and where the reader reads.
SENT = {"sending", "sent", "landing"}
READ = {"reading"}


async def _each_way(prefill: Node, decode: Node) -> None:
    params = await prefill.prefill(PROMPT)
    assert await decode.ask(PROMPT, 4, params) == [perfect(PROMPT, 4)]
    along = write_params(ByTransfer("p0", "t1"))
    prompt = "Along: " + PROMPT * 8
    _, texts = await asyncio.gather(prefill.prefill(prompt, "t1"), decode.ask(prompt, 4, along))
    assert texts == [perfect(prompt, 4)]
    turn = "By hash: " + PROMPT * 2
    await prefill.ask(turn, 1)
    assert await decode.ask(turn, 4, write_params(ByHash("p0"))) == [perfect(turn, 4)]
    await prefill.rest()
    await decode.rest()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_every_step_of_a_transfer_is_a_mark(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: set[str] = set()
    monkeypatch.setattr(Marks, "passed", lambda _, mark: passed.add(mark))

    async def main() -> None:
        async with a_pair(transport, burst_tokens=64) as (prefill, decode):
            await _each_way(prefill, decode)

    asyncio.run(main())
    assert passed <= MARKS.keys()
    missing = MARKS.keys() - passed - WRONG - SOON
    assert missing <= (READ if transport == "tcp" else SENT), missing


def test_what_happens_at_a_mark_happens_once() -> None:
    done: list[Deed] = []
    marks = Marks([AtMark("stop", "granted-heard", 2), AtMark("kill", "landed")], done.append)
    granted = Granted(LeaseId(b"x"))
    marks.heard(granted)
    marks.said(granted)
    assert not done
    marks.heard(granted)
    assert done == ["stop"]
    marks.heard(granted)
    marks.passed("landed")
    assert done == ["stop", "kill"]


def test_marks_stand_beside_rates() -> None:
    told = read_faults("7:never=0.5,kill@landed,stop@confirm-said=3")
    assert len(told.rates) == 1
    assert told.at_marks == (AtMark("kill", "landed"), AtMark("stop", "confirm-said", 3))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0:kill@nowhere", "no mark 'nowhere'; marks: .*landed"),
        ("0:hang@landed", "kill@MARK=N or stop@MARK=N"),
        ("0:kill@landed=0", "kill@MARK=N"),
        ("0:kill@landed=x", "kill@MARK=N"),
        ("kill@landed", "SEED:"),
    ],
)
def test_what_is_no_deed_at_a_mark(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_faults(text)


def test_the_page_has_each_mark() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    table = page[page.index("## Marks") :]
    assert [mark for mark in MARKS if f"`{mark}`" not in table] == []
