"""Holds that nobody would end, found by Spin (docs/protocol.md, "The model")."""

from kvdist.connector.messages import Close, Denied, Open, Why, WorkerMessage
from tests.halves import RUN, Fetching, Serving, a_part


def test_a_repeat_that_is_granted_after_the_denial() -> None:
    """`d` asks twice. The first is denied, as a round before it is still open on a link that was
    cut; then the owner hears of the cut, and grants the second.
    """
    owner, reader = Serving(sends=False), Fetching(answer_s=1.0)

    def carry(message: WorkerMessage) -> list[WorkerMessage]:
        match message:
            case Open():
                owner.server.on_open("link", "d", RUN, message)
            case Close():
                owner.server.on_close("d", RUN, message)
            case Denied():
                reader.fetcher.on_denied("p", message)
            case _:
                raise AssertionError(message)
        return owner.said()

    owner.open(a_part(9), link="an older link")
    (first,) = reader.said()
    reader.later(1.0)
    (second,) = reader.said()
    (denied,) = carry(first)
    assert denied == Denied(reader.part, Why.TAKEN)
    owner.server.link_lost("an older link")
    carry(second)  # the answer comes too late to be looked at
    assert owner.server.num_open == 1
    carry(denied)
    for message in reader.said():
        carry(message)
    assert owner.server.num_open == reader.fetcher.num_open == 0
