"""A request as vLLM has it, and how the connector's halves see it.

Owns:   nothing.
Source: the names of vLLM's `Request` (vllm/v1/request.py, 0.32).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from typing import Any

from kvdist.ids import BlockHash


class RequestStatus(Enum):
    WAITING = auto()
    WAITING_FOR_REMOTE_KVS = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_ERROR = auto()

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


@dataclass(eq=False)
class Request:
    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    kv_transfer_params: Mapping[str, Any] | None = None
    cache_salt: str = ""
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)


@dataclass(frozen=True)
class Seen:
    """What `KVRequest` asks, of such a request: what a plugin would write."""

    request: Request
    hash_block_size: int | None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def all_token_ids(self) -> list[int]:
        return self.request.all_token_ids

    @property
    def num_tokens(self) -> int:
        return self.request.num_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def block_hashes(self) -> list[BlockHash]:
        size = self.hash_block_size
        return block_hashes(self.request, size) if size else []

    def key_bytes(self, start: int, end: int) -> bytes:
        return b"" if start else self.request.cache_salt.encode()


def block_hashes(request: Request, size: int) -> list[BlockHash]:
    """One for each whole block; each covers all tokens before its end, and the salt."""
    found, before = [], request.cache_salt.encode()
    tokens = request.all_token_ids
    for end in range(size, len(tokens) + 1, size):
        before = sha256(before + repr(tokens[end - size : end]).encode()).digest()
        found.append(BlockHash(before))
    return found
