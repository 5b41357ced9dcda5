"""C. Abort and cancel. C1 is the scheduler's (test_scheduler.py)."""

from kvdist.connector.host import BlocksReturned, Loaded, LoadFailed, LoadQuiet
from kvdist.connector.local import Granted, PartEnded, PartQuiet, Revoked
from kvdist.ids import BlockId, Rank
from tests.halves import NOBODYS, a_part
from tests.town import Town


def test_c2() -> None:
    """An abort of a prefill that has ended, and whose blocks are held, is none."""
    town = Town()
    name = town.come(answer_delay=0.5)
    town.until(town.leases)
    prefill = town.sequence_of(name, -1)
    assert prefill is not None
    heard: list[bool] = []
    town.p.do(lambda: heard.append(town.p.scheduler.abort(prefill)))
    town.finish(name)
    assert heard == [False]
    assert town.num_external() == 16, "it was read"
    town.rest()


def test_c3() -> None:
    """Reports twice, for nobody, or of both at once: counted, and the node lives."""
    town = Town()
    name = town.come()
    town.until(lambda: town.d.scheduler.roster.loads)
    request = town.sequence_of(name)
    assert request is not None

    def nonsense() -> None:
        for event in (
            Loaded("nobody"), LoadFailed("nobody", "", again=True), LoadQuiet("r", [BlockId(1)]),
            BlocksReturned(None, [BlockId(3)]), LoadQuiet("r", [BlockId(99_999)]),
        ):  # fmt: skip
            town.d.scheduler.moved(event)
        for message in (
            Granted(NOBODYS), Revoked(NOBODYS), PartEnded(a_part(99), ""), PartQuiet(a_part(99)),
        ):  # fmt: skip
            town.d.half.from_worker(Rank(0), message)

    town.d.do(nonsense)
    assert town.d.scheduler.stats.num_unknown_messages == 5
    assert town.d.half.counts.total() == 3
    town.finish(name)

    def again() -> None:
        town.d.scheduler.moved(Loaded(request))
        town.d.scheduler.moved(LoadFailed(request, "", again=True))

    town.d.do(again)
    assert town.d.scheduler.stats.num_unknown_messages == 7
    town.rest()
