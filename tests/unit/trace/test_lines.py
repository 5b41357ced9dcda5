"""The document's line, out of an event."""

from kvdist.trace.events import Arrived, Entry, Planned
from kvdist.trace.lines import step_lines

#: What the document shows.
LINE = (
    "step=7 req=R1 hit_tokens=128 scheduled=1 owned=[[4, 9, 2, 15, 7, 8, 11, 3, 6]] "
    "new=[[6]] free=213 ref(hit)=[1,1,1,1,1,1,1,1]"
)


def test_the_document_s_own_line() -> None:
    event = Planned(
        step=7,
        req="R1",
        hit_tokens=128,
        start=128,
        scheduled=1,
        samples=True,
        whole=False,
        owned=((4, 9, 2, 15, 7, 8, 11, 3, 6),),
        new=((6,),),
        free=213,
        ref_hit=(1,) * 8,
    )
    entries = [Entry(0.0, Arrived("R1", 129, 200)), Entry(0.1, event)]
    assert list(step_lines(entries)) == [LINE]
