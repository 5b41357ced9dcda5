"""What routers name: it is given back by its name, whatever has become of it, and but once."""

import pytest

from kvdist.connector.effects import SendToNode, TicketReady
from kvdist.connector.host import BlocksReturned
from kvdist.connector.messages import Progress, Stream, StreamState, Withdrawn
from kvdist.errors import InvalidRequest
from tests.halves import Owner, tables


def owner_of(*, reads_along: bool) -> Owner:
    owner = Owner()
    owner.lender.lend_at_end("r", "t", reads_along=reads_along)
    return owner


def returned(owner: Owner) -> list[list[int]]:
    return [list(e.block_ids) for e in owner.news() if isinstance(e, BlocksReturned)]


@pytest.mark.parametrize("reads_along", [True, False])
def test_given_back_when_its_answer_was_lost(reads_along: bool) -> None:
    """A17."""
    owner = owner_of(reads_along=reads_along)
    owner.lender.admitted("r", tables(16), 16)
    assert bool(owner.lender.leases) is reads_along
    owner.acknowledge()
    owner.lender.finished("r", tables(16), 16, is_usable=True)
    owner.acknowledge()
    (ready,) = (effect for effect in owner.news() if isinstance(effect, TicketReady))
    assert ready.ticket is not None
    assert owner.lender.give_back_transfer("t") is None
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]
    assert not owner.lender.leases and not len(owner.lender.transfers)


def test_given_back_before_its_ticket_is_there() -> None:
    owner = owner_of(reads_along=False)
    owner.lender.finished("r", tables(16), 16, is_usable=True)
    assert owner.lender.give_back_transfer("t") is None
    assert owner.news() == [TicketReady("r", None)]
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]


@pytest.mark.parametrize("reads_along", [True, False])
def test_given_back_while_it_is_computed(reads_along: bool) -> None:
    """Its request is to be aborted; whatever ends it, nothing is lent."""
    owner = owner_of(reads_along=reads_along)
    owner.lender.on_stream("d", Stream("t"))
    owner.lender.admitted("r", tables(16), 16)
    owner.acknowledge()
    owner.news()
    assert owner.lender.give_back_transfer("t") == "r"
    assert owner.lender.give_back_transfer("t") == "r", "a repeat changes nothing"
    kept = owner.lender.finished("r", tables(16), 16, is_usable=True)
    assert bool(kept) is reads_along
    effects = owner.news()
    assert TicketReady("r", None) in effects
    told = [effect.message for effect in effects if isinstance(effect, SendToNode)]
    assert isinstance(told[0], Withdrawn if reads_along else StreamState)
    owner.acknowledge()
    assert not owner.lender.leases and not len(owner.lender.transfers)


def test_given_back_before_it_comes() -> None:
    """Two connections have no order: the request is refused when it comes, and so is its reader."""
    owner = Owner()
    owner.lender.on_stream("d", Stream("t"))
    assert owner.lender.give_back_transfer("t") is None
    ((_, told),) = owner.said()
    assert isinstance(told, StreamState) and told.progress is Progress.GONE
    with pytest.raises(InvalidRequest, match="given back"):
        owner.lender.lend_at_end("r", "t")
    assert owner.lender.finished("r", tables(16), 16, is_usable=True) == []
    assert owner.news() == []


def test_a_release_that_comes_again_frees_nothing_else() -> None:
    owner = owner_of(reads_along=False)
    owner.lender.lend_at_end("other", "u", reads_along=False)
    for name in ("r", "other"):
        owner.lender.finished(name, tables(16), 16, is_usable=True)
    owner.acknowledge()
    owner.lender.give_back_transfer("t")
    owner.acknowledge()
    assert returned(owner) == [[1, 2, 3, 4]]
    for _ in range(3):
        assert owner.lender.give_back_transfer("t") is None
    with pytest.raises(InvalidRequest, match="given back"):
        owner.lender.lend_at_end("later", "t")
    (lease,) = owner.lender.leases.values()
    assert lease.request_id == "other"


def test_random_names_take_no_room() -> None:
    """A16."""
    owner = Owner(max_parked=4, max_parked_per_peer=2)
    for number in range(1000):
        owner.lender.give_back_transfer(f"t{number}")
    assert len(owner.lender.transfers.over) == 4
