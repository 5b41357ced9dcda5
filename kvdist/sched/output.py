"""What a client hears of its sequence: tokens, each once and in order, and how it ended.

Owns:   what has not been taken yet.
Knows nothing of: steps, blocks, clients.
"""

from dataclasses import dataclass

from kvdist.ids import RequestId
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sched.sequence import Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class Output:
    """News of one sequence."""

    request_id: RequestId
    #: New tokens.
    token_ids: tuple[int, ...]
    #: How many there are of it, these included.
    num_output_tokens: int
    #: Finished: nothing comes after this.
    status: SequenceStatus
    #: Why it ended with an error, or was aborted.
    reason: str = ""
    #: One for each token, or none.
    logprobs: tuple[TokenLogprobs, ...] = ()
    #: The error is for now: elsewhere, or later, there may be room.
    is_busy: bool = False


class Outputs:
    """In the order in which things happened."""

    __slots__ = ("_outputs",)

    def __init__(self) -> None:
        self._outputs: list[Output] = []

    def add(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        reason: str = "",
        *,
        is_busy: bool = False,
    ) -> None:
        """Note new tokens, which the sequence has already, or its end."""
        request = sequence.request
        num_output_tokens = request.num_tokens - request.num_prompt_tokens
        ended = (sequence.status, reason, logprobs, is_busy)
        self._outputs.append(Output(request.request_id, token_ids, num_output_tokens, *ended))

    def take(self) -> list[Output]:
        """All since the last call."""
        taken, self._outputs = self._outputs, []
        return taken
