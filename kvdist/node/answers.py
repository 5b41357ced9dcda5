"""OpenAI's shapes of what a node answers: whole answers, chunks of streams.

Owns:   the names of their fields.
Knows nothing of: engines, sockets.
Source: OpenAI's API; `stop_reason` is vLLM's.
"""

from collections.abc import Iterable, Sequence as Listing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from kvdist.node.choice import Piece
from kvdist.node.tokenizer import Tokenizer
from kvdist.sched.sampling import TokenLogprobs

Json: TypeAlias = dict[str, Any]


def usage(
    num_prompt_tokens: int, num_cached_tokens: int, num_remote_tokens: int, num_output_tokens: int
) -> Json:
    """Tokens, each once; of the prompt's some were cached here, and some came from other nodes."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": num_cached_tokens,
            "remote_tokens": num_remote_tokens,
        },
    }


@dataclass(slots=True)
class Gathered:
    """All pieces of one choice."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, piece: Piece) -> None:
        """One more."""
        self.text.append(piece.text)
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


class Shape:
    """How one kind of completion looks. Made for each answer."""

    kind: str
    chunk_kind: str

    def __init__(self, name: str, model: str, created: int, tokenizer: Tokenizer) -> None:
        self._head = {"id": name, "created": created, "model": model}
        self._tokenizer = tokenizer
        #: By choice: characters of the tokens whose logprobs were told.
        self._ends: dict[int, int] = {}

    def whole(self, choices: Iterable[Gathered], usage: Json) -> Json:
        """An answer in one."""
        shown = [
            self._choice(
                i,
                self._body("".join(all_.text)),
                self._logprobs(i, all_.token_ids, all_.logprobs),
                all_.finish_reason,
                all_.stop_reason,
            )
            for i, all_ in enumerate(choices)
        ]
        return {**self._head, "object": self.kind, "choices": shown, "usage": usage}

    def chunk(self, piece: Piece, usage: Json | None) -> Json:
        """A piece of a stream."""
        choice = self._choice(
            piece.index,
            self._delta(piece.text),
            self._logprobs(piece.index, piece.token_ids, piece.logprobs),
            piece.finish_reason,
            piece.stop_reason,
        )
        return self._chunk([choice], usage)

    def first_chunks(self, num_choices: int) -> list[Json]:
        """What a stream begins with."""
        return []

    def last_chunk(self, usage: Json) -> Json:
        """What a stream ends with, if its usage is wanted."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[Json], usage: Json | None) -> Json:
        more = {} if usage is None else {"usage": usage}
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def _choice(
        self, index: int, body: Json, logprobs: Json | None, reason: str | None, stop: object
    ) -> Json:
        return {
            "index": index,
            **body,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": stop,
        }

    def _body(self, text: str) -> Json:
        raise NotImplementedError

    def _delta(self, text: str) -> Json:
        raise NotImplementedError

    def _logprobs(
        self, index: int, token_ids: Listing[int], logprobs: Listing[TokenLogprobs]
    ) -> Json | None:
        raise NotImplementedError


class TextShape(Shape):
    """`/v1/completions`."""

    kind = chunk_kind = "text_completion"

    def _body(self, text: str) -> Json:
        return {"text": text}

    _delta = _body

    def _logprobs(
        self, index: int, token_ids: Listing[int], logprobs: Listing[TokenLogprobs]
    ) -> Json | None:
        if not logprobs:
            return None
        tokens = [self._tokenizer.token(token_id) for token_id in token_ids]
        *offsets, self._ends[index] = accumulate(map(len, tokens), initial=self._ends.get(index, 0))
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": [
                {self._tokenizer.token(token_id): value for token_id, value in one.top}
                for one in logprobs
            ],
            "text_offset": offsets,
        }


class ChatShape(Shape):
    """`/v1/chat/completions`."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def _body(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def first_chunks(self, num_choices: int) -> list[Json]:
        """Each choice says who speaks."""
        body = {"delta": {"role": "assistant", "content": ""}}
        return [
            self._chunk([self._choice(i, body, None, None, None)], None) for i in range(num_choices)
        ]

    def _logprobs(
        self, index: int, token_ids: Listing[int], logprobs: Listing[TokenLogprobs]
    ) -> Json | None:
        if not logprobs:
            return None
        return {
            "content": [
                self._one(token_id, one.logprob)
                | {"top_logprobs": [self._one(*likely) for likely in one.top]}
                for token_id, one in zip(token_ids, logprobs, strict=True)
            ]
        }

    def _one(self, token_id: int, logprob: float) -> Json:
        token = self._tokenizer.token(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
