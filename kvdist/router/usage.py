"""Where a prompt's tokens came from, each counted once, out of what two nodes say of it.

Owns:   the names of the counts.
Knows nothing of: HTTP.

    prompt_tokens = cached_tokens           the decode node had them
                  + remote_cached_tokens    the prefill node had them
                  + remote_computed_tokens  the prefill node computed them
                  + what the decode node computed
"""

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Of one node's prompt: what it had, what it got from another."""

    num_tokens: int
    cached: int
    remote: int

    @classmethod
    def read(cls, usage: object) -> Self:
        """From a node's `usage`; what isn't told, or is nonsense, is none."""
        told = usage if isinstance(usage, dict) else {}
        details = told.get("prompt_tokens_details")
        details = details if isinstance(details, dict) else {}
        num_tokens = _number(told, "prompt_tokens")
        cached = min(_number(details, "cached_tokens"), num_tokens)
        return cls(num_tokens, cached, min(_number(details, "remote_tokens"), num_tokens - cached))


@dataclass(frozen=True, slots=True)
class Sources:
    """Of a prompt that two nodes have worked on."""

    cached: int
    remote_cached: int
    remote_computed: int
    computed: int

    @classmethod
    def of(cls, decode: Found, prefill: Found | None) -> Self:
        """What the prefill node had, it had of the front; what was pulled, lies behind a hit.

        >>> Sources.of(Found(100, 16, 64), Found(100, 32, 0))
        Sources(cached=16, remote_cached=16, remote_computed=48, computed=20)
        """
        had = 0 if prefill is None else prefill.cached + prefill.remote
        remote_cached = max(0, min(had - decode.cached, decode.remote))
        return cls(
            decode.cached,
            remote_cached,
            decode.remote - remote_cached,
            decode.num_tokens - decode.cached - decode.remote,
        )


def with_sources(usage: Json, sources: Sources) -> Json:
    """A node's `usage`, and beside what it says what the other one had and computed; one that
    counts no tokens is as it is.
    """
    if "prompt_tokens" not in usage:
        return usage
    details = usage.get("prompt_tokens_details")
    more = {
        "remote_cached_tokens": sources.remote_cached,
        "remote_computed_tokens": sources.remote_computed,
    }
    return usage | {"prompt_tokens_details": (details if isinstance(details, dict) else {}) | more}


def _number(values: Json, name: str) -> int:
    value = values.get(name)
    return value if type(value) is int and value > 0 else 0
