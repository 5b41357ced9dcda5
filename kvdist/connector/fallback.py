"""Requests whose K/V were promised and won't come: who computes them here, and who fails.

Owns:   what each of them lacks, and the tokens that are being computed here for that reason.
Knows nothing of: claims, pulls; why a promise was broken, but in words.
Units:  tokens.
Policy: `on_failure` and `max_recompute_tokens`. Each request is judged by itself, when its turn has
        come, by what it lacks then: whatever has become a local hit meanwhile is no recomputation.
        Of several that lack the same one computes, and the others wait for it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvdist.connector import rules
from kvdist.connector.geometry import Geometry
from kvdist.connector.groups import Groups
from kvdist.connector.host import NOTHING, KVRequest, Match
from kvdist.connector.settings import Settings
from kvdist.connector.waiting import Waiting
from kvdist.connector.wants import Content, Pull
from kvdist.ids import RequestId


@dataclass(frozen=True, slots=True)
class Lack:
    """What a request was promised and won't get."""

    request: KVRequest
    #: From the start.
    resume_tokens: int
    content: Content
    reason: str


@dataclass(frozen=True, slots=True)
class _Work:
    """What a request computes instead."""

    num_tokens: int
    #: Up to where.
    end: int


class Fallback:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        counts: Counter[str],
        waiting: Waiting,
        pulling: Mapping[Content, Pull],
        geometry: Geometry,
    ) -> None:
        self._settings, self._counts = settings, counts
        self._waiting, self._pulling = waiting, pulling
        self._resumes_anywhere = geometry.resumes_anywhere
        self._num_encoder_tokens = geometry.num_encoder_tokens
        self._lacks: dict[RequestId, Lack] = {}
        self._work: dict[RequestId, _Work] = {}
        #: Those that compute, by what; and how many tokens in all.
        self._computing: Groups[Content] = Groups()
        self.num_tokens = 0

    def lost(self, lack: Lack) -> None:
        """A request has to do without."""
        self._lacks[lack.request.request_id] = lack

    def match(self, request: KVRequest, num_local_tokens: int) -> Match:
        """It waits for who brings or computes the same, or computes, or ends with an error."""
        lack = self._lacks.get(request.request_id)
        if lack is None:
            return NOTHING
        num_tokens = self._num_lacking(lack, num_local_tokens)
        if not num_tokens:
            return NOTHING
        if (pull := self._pulling.get(lack.content)) is not None:
            return self._waiting.wait(request.request_id, pull)
        if self._computing.members(lack.content):
            return self._waiting.wait(request.request_id, lack.content)
        refusal = self._refusal(lack, num_tokens)
        return Match(refused=refusal, is_busy=bool(refusal) and self.is_busy)

    @property
    def is_busy(self) -> bool:
        """Who ends for want of K/V does so as too much is being recomputed: not on principle."""
        return self._settings.on_failure == "recompute"

    def goes_on(self, request_id: RequestId, num_tokens: int) -> bool:
        """Whether a request whose pull of so many tokens has failed isn't to end for that."""
        lack = self._lacks.get(request_id)
        if lack is None:
            return True  # there will be another round
        if self._refusal(lack, num_tokens):
            return False
        self._compute(lack, num_tokens)
        return True

    def admitted(self, request_id: RequestId, num_local_tokens: int) -> None:
        """It computes what it lacks beside its local tokens."""
        if (lack := self._lacks.get(request_id)) is not None:
            self._compute(lack, self._num_lacking(lack, num_local_tokens))

    def settled(self, request_id: RequestId, num_tokens: int) -> None:
        """So many of its tokens are written."""
        work = self._work.get(request_id)
        if work is not None and num_tokens >= work.end:
            self.over(request_id)

    def over(self, request_id: RequestId) -> None:
        """It lacks nothing more, and computes nothing for that reason."""
        self._lacks.pop(request_id, None)
        if (work := self._work.pop(request_id, None)) is not None:
            self.num_tokens -= work.num_tokens
            content = self._computing.drop(request_id)
            self._waiting.wake(content)

    def _compute(self, lack: Lack, num_tokens: int) -> None:
        name = lack.request.request_id
        del self._lacks[name]
        if num_tokens:
            self._work[name] = _Work(num_tokens, self._num_lacking(lack, 0))
            self._computing.put(name, lack.content)
            self.num_tokens += num_tokens

    def _refusal(self, lack: Lack, num_tokens: int) -> str:
        """Why so many tokens may not be computed for it; empty: they may."""
        if self._settings.on_failure == "fail":
            return lack.reason
        if self.num_tokens + num_tokens > self._settings.max_recompute_tokens:
            self._counts["recomputations over the limit"] += 1
            return f"{lack.reason}; too many tokens are being recomputed already"
        return ""

    def num_lacking(self, request: KVRequest, resume_tokens: int, num_local_tokens: int) -> int:
        """How many tokens of a lease it lacks beside its local ones; 0: nothing worth a pull."""
        count = rules.may_resume(
            resume_tokens, num_local_tokens, request.num_tokens, self._resumes_anywhere
        )
        if not count or count + self._num_encoder_tokens < self._settings.min_pull_tokens:
            return 0
        return count

    def _num_lacking(self, lack: Lack, num_local_tokens: int) -> int:
        return self.num_lacking(lack.request, lack.resume_tokens, num_local_tokens)
