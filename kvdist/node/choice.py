"""One choice of an answer: from a sequence's news to pieces of text.

Owns:   what has been said of it, and why it ended.
Knows nothing of: OpenAI's shapes, HTTP.
"""

from dataclasses import dataclass

from kvdist.node.text import Detokenizer, StopStrings
from kvdist.node.tokenizer import Tokenizer
from kvdist.sched.output import Output
from kvdist.sched.sampling import TokenLogprobs
from kvdist.sched.sequence import SequenceStatus


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    #: None while it goes on; else `stop` or `length`.
    finish_reason: str | None = None
    #: The stop string or token that ended it.
    stop_reason: str | int | None = None


class Choice:
    """`feed` it with all news of its sequence; once `ended`, with no more."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stops: list[str],
        *,
        include_stop: bool,
        skip_special_tokens: bool,
    ) -> None:
        self.index = index
        self.ended = False
        self.num_tokens = 0
        self._eos_token_ids = tokenizer.eos_token_ids
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stops = StopStrings(stops, include=include_stop)
        self._include_stop = include_stop

    def feed(self, output: Output) -> Piece:
        """What there is to say now."""
        tokens, status = output.token_ids, output.status
        self.num_tokens += len(tokens)
        stopped = status is SequenceStatus.FINISHED_STOPPED
        said = tokens[:-1] if stopped and not self._include_stop else tokens
        text = self._stops.feed(self._detokenizer.feed(said))
        reason: str | None = None
        stop: str | int | None = None
        if status.finished and self._stops.met is None:
            text += self._stops.feed(self._detokenizer.end())
        if self._stops.met is not None:
            reason, stop = "stop", self._stops.met
        elif status.finished:
            text += self._stops.end()
            reason = "stop" if stopped else "length"
            if stopped and tokens[-1] not in self._eos_token_ids:
                stop = tokens[-1]
        self.ended = reason is not None
        return Piece(self.index, text, tokens, output.logprobs, reason, stop)
