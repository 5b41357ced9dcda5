"""News are taken once."""

from kvdist.sched.output import Output, Outputs
from kvdist.sched.sequence import Sequence, SequenceStatus
from tests.make import Node


def test_in_order_and_once() -> None:
    sequence = Sequence(Node().request("r", [1, 2]), max_len=9, arrival=1)
    outputs = Outputs()
    sequence.request.append_output_token_ids([7, 8])
    outputs.add(sequence, (7, 8))
    sequence.status = SequenceStatus.FINISHED_ERROR
    outputs.add(sequence, reason="lost")
    assert outputs.take() == [
        Output("r", (7, 8), 2, SequenceStatus.WAITING),
        Output("r", (), 2, SequenceStatus.FINISHED_ERROR, "lost"),
    ]
    assert outputs.take() == []
