"""How much one step may do, and where a chunk of it may end.

Owns:   the scheduler's settings, and what is left of a step's tokens.
Knows nothing of: blocks that are free; that is `admission`'s.
Units:  tokens.
Source: vLLM's `SchedulerConfig` gives the names; the cut at state boundaries is its
        `_mamba_block_aligned_split` (vllm/v1/core/sched/scheduler.py, 0.32).
"""

from dataclasses import dataclass
from math import lcm
from typing import Literal

from kvdist.cache import KVCacheConfig, MambaSpec, Request
from kvdist.errors import ConfigError

#: A number that no draft reaches.
_MANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of one scheduler. Raises: ConfigError for a number out of range."""

    #: Tokens of one step, over all sequences.
    max_num_batched_tokens: int = 2048
    #: Sequences that run; as many more may own blocks while they load or wait.
    max_num_seqs: int = 128
    #: False: a prompt is computed in one step, but for cuts that states need.
    enable_chunked_prefill: bool = True
    #: 2: a step is planned while the one before it runs.
    max_steps_in_flight: int = 2
    #: Slots behind the last token that a drafter may write, and most drafts a step; 0: no drafts.
    num_lookahead_tokens: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    #: A sequence with which more steps than that fail, one after the other, ends with an error.
    max_failed_steps: int = 3

    def __post_init__(self) -> None:
        lowest = {
            "max_num_batched_tokens": 1,
            "max_num_seqs": 1,
            "max_steps_in_flight": 1,
            "num_lookahead_tokens": 0,
            "max_failed_steps": 0,
        }
        for name, low in lowest.items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ConfigError(f"{name} is {value!r}, not a whole number from {low}")
        if self.max_steps_in_flight > 2:
            raise ConfigError("at most one step is planned while another runs")
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"policy {self.policy!r} is not fcfs or priority")


class Chunks:
    """Where the next chunk of a sequence ends."""

    def __init__(self, config: KVCacheConfig, settings: SchedulerConfig) -> None:
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        states = [spec for spec in specs if isinstance(spec, MambaSpec)]
        aligned = [spec.block_size for spec in states if spec.mamba_cache_mode == "align"]
        #: Where all states are at a block's end; 0 without such groups.
        self._unit = lcm(*aligned) if aligned else 0
        self._sizes = aligned
        self._cuts_at_tail = bool(aligned) and config.enable_partial_hits
        self._hash_block_size = config.hash_block_size
        self._tail_margin = config.use_eagle
        self._whole = not settings.enable_chunked_prefill
        #: Most drafts that states can follow: one scratch state each, none past the next block.
        self.max_drafts = min(
            [min(spec.num_speculative_blocks, spec.block_size - 1) for spec in states],
            default=_MANY,
        )

    def end(self, request: Request, begin: int, target: int, num_tokens: int) -> int:
        """The end of the chunk from `begin` of at most `num_tokens`; `begin` if nothing fits.

        A step leaves one state, that after its last token. So a chunk that begins inside a block
        ends with it at the latest, since the state at the block's end will be published; others
        end at block ends where they can, the last but one at the last of them.
        """
        end = min(target, begin + num_tokens)
        if self._whole and end < target:
            return begin
        if not self._unit or end - begin <= 1:
            return end
        unit = self._unit
        if (aligned := end // unit * unit) > begin:
            end = aligned
        for size in self._sizes:
            if begin % size:
                end = min(end, -(-begin // size) * size)
        tail = self._prompt_tail(request)
        return tail if begin < tail < end else end

    def _prompt_tail(self, request: Request) -> int:
        """The last position of the prompt at which a resend can resume, if inside a block."""
        if not self._cuts_at_tail:
            return 0
        unit = self._hash_block_size
        if self._tail_margin:
            return request.num_prompt_tokens // unit * unit - unit
        return (request.num_prompt_tokens - 1) // unit * unit
