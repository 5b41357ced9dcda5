"""A client's request, and what nodes are sent instead; what of their answers clients see.

Owns:   the names of the fields that are added and taken away; all others are passed on.
Knows nothing of: HTTP, which nodes there are.
Source: how a prefill node is asked is what vLLM's routers do; `stream_options` is OpenAI's.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from kvdist.connector.params import ByTransfer, Lend, write_params
from kvdist.errors import InvalidRequest
from kvdist.ids import NodeId, TransferId

Json: TypeAlias = dict[str, Any]

#: Between router and nodes.
PARAMS: Final = "kv_transfer_params"
#: What a prompt's own computation doesn't depend on, or may not be asked of one token.
_ABOUT_OUTPUT: Final = (
    *("n", "best_of", "logprobs", "top_logprobs", "min_tokens", "stream_options"),
    *("max_tokens", "max_completion_tokens", "stream"),
)
_CHARS_A_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Form:
    """Fields, and a file."""

    fields: Json
    file_name: str
    file: bytes


#: What nodes are sent.
Body: TypeAlias = Json | Form


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion. `params`, if it is allowed, is how the client wants it done."""

    body: Json
    params: Json | None

    @classmethod
    def read(cls, data: bytes, *, allow_params: bool) -> Self:
        """From what a client sent. Raises: InvalidRequest."""
        try:
            body = json.loads(data.decode())  # as nodes read it: in UTF-8 alone
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise InvalidRequest("the body is not an object")
        params = body.pop(PARAMS, None)
        return cls(body, params if allow_params and isinstance(params, dict) else None)

    @property
    def model(self) -> object:
        """As the client calls it."""
        return self.body.get("model")

    @property
    def wants_usage(self) -> bool:
        """A stream is to end with its usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def num_prompts(self) -> int:
        """A conversation is one."""
        prompt = self.body.get("prompt")
        return len(prompt) if isinstance(prompt, list) and not _is_tokens(prompt) else 1

    @property
    def num_chars(self) -> int:
        """About how long the prompt is."""
        messages = self.body.get("messages")
        if isinstance(messages, list):
            return sum(_chars_of_message(message) for message in messages)
        return _chars_of(self.body.get("prompt"))

    @property
    def can_overlap(self) -> bool:
        """Decode may begin while the prompt is computed."""
        return True

    @property
    def wants_json(self) -> bool:
        """A whole answer is JSON."""
        return True

    # -- what nodes are sent -------------------------------------------------------------------

    def alone(self) -> Body:
        """To a node that does all of it."""
        body = self._counted()
        return body if self.params is None else body | {PARAMS: self.params}

    def for_prefill(
        self, transfer: TransferId, hint: NodeId | None = None, *, reads_along: bool
    ) -> Body:
        """To the node that computes the prompt, under a name by which it can be given back.
        `hint` names a node that has what the prompt begins with.
        """
        body = {name: value for name, value in self.body.items() if name not in _ABOUT_OUTPUT}
        short = {"max_tokens": 1, "stream": False}
        if "max_completion_tokens" in self.body:
            short["max_completion_tokens"] = 1
        return body | short | {PARAMS: write_params(Lend(transfer, reads_along, hint))}

    def for_decode(self, ticket: Json) -> Body:
        """To the node that goes on from what the other one has computed."""
        return self._counted() | {PARAMS: ticket}

    def _counted(self) -> Json:
        """Streams tell their usage, whether or not the client wants to see it."""
        options = self.body.get("stream_options")
        if self.body.get("stream") is not True or not isinstance(options, dict | None):
            return self.body
        return self.body | {"stream_options": {**(options or {}), "include_usage": True}}


def read_along(prefill: NodeId, transfer: TransferId) -> Json:
    """What decode is told while `prefill` computes; and `prefill`, if nobody will come."""
    return write_params(ByTransfer(prefill, transfer))


def _is_tokens(prompt: list[Any]) -> bool:
    return bool(prompt) and type(prompt[0]) is int


def _chars_of(prompt: object) -> int:
    if not isinstance(prompt, list) or _is_tokens(prompt):
        return _chars_of_one(prompt)
    return sum(map(_chars_of_one, prompt))


def _chars_of_one(prompt: object) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return _CHARS_A_TOKEN * len(prompt) if isinstance(prompt, list) else 0


def _chars_of_message(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content if _is_text(part))
    return len(content) if isinstance(content, str) else 0


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
