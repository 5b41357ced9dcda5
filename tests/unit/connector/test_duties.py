"""What a node does for others by its role, and what it says of the rest."""

import pytest

from kvdist.connector.duties import Duties
from kvdist.connector.messages import (
    Borrow,
    Lent,
    NoTicket,
    Progress,
    Role,
    Stream,
    StreamState,
)
from kvdist.errors import Unavailable, WrongRole
from kvdist.ids import BlockHash, PullId
from tests.halves import RUN, Owner

PREFILL, DECODE, BOTH = Role.PREFILL, Role.DECODE, Role.BOTH


@pytest.mark.parametrize(
    ("role", "lends", "reads"),
    [(PREFILL, True, False), (DECODE, False, True), (BOTH, True, True)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_node_starts_with_its_role(role: Role, lends: bool, reads: bool) -> None:
    duties = Duties(role)
    assert (role.lends, role.reads) == (lends, reads)
    assert duties.is_over(PREFILL) is not lends and duties.is_over(DECODE) is not reads
    for duty, has in ((PREFILL, lends), (DECODE, reads)):
        if has:
            duties.check(duty)
        else:
            with pytest.raises(WrongRole, match=f"role is {role.name.lower()}"):
                duties.check(duty)


def test_a_refusal_says_where_to_go() -> None:
    with pytest.raises(WrongRole, match="ask one whose role is prefill or both") as caught:
        Duties(DECODE).check(PREFILL)
    assert caught.value.blame == "caller" and caught.value.retryable
    assert isinstance(caught.value, Unavailable), "a 503: no fault of the client's"
    with pytest.raises(WrongRole, match="ask one whose role is decode or both"):
        Duties(PREFILL).check(DECODE)


@pytest.mark.parametrize("after", Role)
@pytest.mark.parametrize("before", Role)
def test_every_change(before: Role, after: Role) -> None:
    duties = Duties(before)
    assert duties.change(after) is (before is not after)
    assert duties.lends is after.lends
    for duty, had, has in (
        (PREFILL, before.lends, after.lends),
        (DECODE, before.reads, after.reads),
    ):
        assert duties.is_ending(duty) is (had and not has)
        assert duties.idle(duty) is (had and not has)
        assert duties.is_over(duty) is not has
        assert not duties.idle(duty), "the host hears it once"


def test_a_duty_that_is_taken_on_again_before_it_has_ended() -> None:
    duties = Duties(BOTH)
    duties.change(DECODE)
    assert duties.change(BOTH) and duties.lends
    assert not duties.idle(PREFILL)


# -- the lender's answers --------------------------------------------------------------------------

BORROW = Borrow(PullId(3), RUN, (BlockHash(b"h" * 32),) * 4, 4)


@pytest.mark.parametrize("why", [NoTicket.ROLE, NoTicket.ENDING])
def test_who_lends_nothing_says_why(why: NoTicket) -> None:
    owner = Owner(cached=4)
    if why is NoTicket.ENDING:
        owner.lender.drain()
    else:
        owner.lender.lends = False
    owner.lender.on_borrow("d", BORROW)
    owner.lender.on_stream("d", Stream("t"))
    assert owner.said() == [
        ("d", Lent(PullId(3), RUN, None, why)),
        ("d", StreamState("t", Progress.GONE, None, why)),
    ]
    assert not owner.lender.transfers, "nobody waits for what won't come"


def test_who_lends_again() -> None:
    owner = Owner(cached=4)
    owner.lender.lends = False
    owner.lender.on_borrow("d", BORROW)
    owner.lender.lends = True
    owner.news()
    owner.lender.on_borrow("d", BORROW)
    owner.acknowledge()
    ((_, lent),) = owner.said()
    assert isinstance(lent, Lent) and lent.ticket is not None


def test_what_was_promised_is_granted_all_the_same() -> None:
    owner = Owner()
    owner.lender.lend_at_end("r", "t")
    owner.lender.lends = False
    owner.lender.on_stream("d", Stream("t"))
    assert owner.said() == [("d", StreamState("t", Progress.QUEUED, None))]
    assert owner.ticket("other"), "accepted before, or the half would have refused it"
