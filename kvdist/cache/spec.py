"""What a group of layers has to keep, and the settings of one block manager (S4, S28).

Owns:   nothing; all values are frozen and checked when made.
Knows nothing of: blocks, requests, tensors.
Units:  tokens and blocks; `page_size_bytes` is bytes of one block in one layer.
Source: vLLM's specs (vllm/v1/kv_cache_interface.py, 0.32) give the names.
"""

from dataclasses import dataclass, field
from math import lcm
from typing import Final, Literal

from kvdist.cache.numbers import MAX_TOKENS, check_number
from kvdist.errors import ConfigError

#: Far above any real pool; what is larger is taken for a mistake.
MAX_BLOCKS: Final = 1 << 26
MAX_GROUPS: Final = 1024


def _check(what: str, value: object, low: int, high: int = MAX_TOKENS) -> None:
    check_number(ConfigError, what, value, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What all kinds of layers have. Raises: ConfigError for a size out of range."""

    #: Tokens in one block.
    block_size: int
    #: Bytes of one block in one layer; 0 where only block ids matter.
    page_size_bytes: int = 0

    def __post_init__(self) -> None:
        _check("block_size", self.block_size, 1)
        _check("page_size_bytes", self.page_size_bytes, 0, 1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Every earlier token is read: blocks stay until the request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(KVCacheSpec):
    """A token reads itself and the `sliding_window - 1` before it."""

    sliding_window: int

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _check("sliding_window", self.sliding_window, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocalAttentionSpec(KVCacheSpec):
    """A token reads the tokens before it in its own chunk."""

    attention_chunk_size: int

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _check("attention_chunk_size", self.attention_chunk_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """A block holds one recurrent state, not per-token K/V.

    Mode `align` keeps a state at block boundaries, which can be cached; mode `none` keeps the
    running state alone (no prefix caching, `block_size` = the longest sequence).

    In mode `align` a step leaves one state, that after its last token. So chunks of a prefill have
    to end on block boundaries (and one at the prompt's last hash boundary, if a resend is to hit
    there): a boundary that a chunk runs over has no state, and would be published all the same.
    """

    mamba_cache_mode: Literal["align", "none"] = "align"
    #: Scratch states for draft tokens, in blocks a request.
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _check("num_speculative_blocks", self.num_speculative_blocks, 0, 1 << 16)
        if self.mamba_cache_mode not in ("align", "none"):
            raise ConfigError(f"mamba_cache_mode {self.mamba_cache_mode!r} is not align or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec(KVCacheSpec):
    """Reads the encoder's tokens: taken once, by the encoder's length, and never shared."""

    #: Tokens of the encoder, where it makes as many of any input; 0: that differs.
    num_encoder_tokens: int = 0

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _check("num_encoder_tokens", self.num_encoder_tokens, 0)


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers with equal specs, which share one block table."""

    kv_cache_spec: KVCacheSpec
    layer_names: tuple[str, ...] = ()
    #: Layers of a draft model that needs the last matched block recomputed.
    is_eagle_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """Settings of one `KVCacheManager`. Raises: ConfigError if they contradict each other.

    >>> config = KVCacheConfig.single(FullAttentionSpec(block_size=16), num_blocks=1025)
    >>> config.hash_block_size, config.scheduler_block_size
    (16, 16)
    """

    #: Blocks of the pool, the null block included.
    num_blocks: int
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    #: Longest sequence, in tokens.
    max_model_len: int = MAX_TOKENS
    enable_caching: bool = True
    #: Tokens a hash; divides every block size. 0: the smallest block size.
    hash_block_size: int = 0
    #: Most tokens planned but not yet settled, over all requests; bounds what a window recycles
    #: for the whole-sequence gate. 0: `max_model_len`.
    max_in_flight_tokens: int = 0
    #: A draft model needs the last matched block recomputed (in the groups marked so, or in all).
    use_eagle: bool = False
    #: Share of the pool kept free when a waiting request is admitted.
    watermark: float = 0.0
    #: None: every full block is published. Else windows and states only at useful positions, and,
    #: if positive, at its multiples (tokens).
    retention_interval: int | None = None
    #: Hits may end inside a block of a group that can copy it (S10).
    enable_partial_hits: bool = False
    #: Record stored/removed/cleared events for `take_events`.
    enable_events: bool = False
    #: Where vLLM 0.32 hits what it must not (ADR-0011), hit it too: to replay its traces only.
    as_vllm: bool = False
    #: Least common multiple of the block sizes: where all groups have a block boundary.
    scheduler_block_size: int = field(init=False, default=0)
    #: Groups whose last matched block is recomputed.
    eagle_group_ids: frozenset[int] = field(init=False, default=frozenset())

    @classmethod
    def single(cls, spec: KVCacheSpec, *, num_blocks: int, **settings: object) -> "KVCacheConfig":
        """Settings for a model whose layers are all alike."""
        return cls(num_blocks=num_blocks, kv_cache_groups=(KVCacheGroupSpec(spec),), **settings)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        _check("num_blocks", self.num_blocks, 2, MAX_BLOCKS)
        _check("max_model_len", self.max_model_len, 1)
        _check("max_in_flight_tokens", self.max_in_flight_tokens, 0)
        if self.retention_interval is not None:
            _check("retention_interval", self.retention_interval, 0)
        self._check_groups()
        if not isinstance(self.watermark, float | int) or not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark is {self.watermark!r}, not within 0 .. 1")
        _check("hash_block_size", self.hash_block_size, 0)
        self._derive()
        if self.enable_caching:
            self._check_caching([group.kv_cache_spec.block_size for group in self.kv_cache_groups])

    def _check_groups(self) -> None:
        groups = self.kv_cache_groups
        if not isinstance(groups, tuple) or not 1 <= len(groups) <= MAX_GROUPS:
            raise ConfigError(f"KV cache groups are a tuple of 1 .. {MAX_GROUPS} groups")
        for group in groups:
            if not isinstance(group, KVCacheGroupSpec) or not isinstance(
                group.kv_cache_spec, KVCacheSpec
            ):
                raise ConfigError(f"{group!r} is not a KV cache group with a spec")

    def _check_caching(self, sizes: list[int]) -> None:
        if any(size % self.hash_block_size for size in sizes):
            raise ConfigError(f"hash block size {self.hash_block_size} must divide {sizes}")
        specs = [group.kv_cache_spec for group in self.kv_cache_groups]
        if any(isinstance(spec, CrossAttentionSpec) for spec in specs):
            raise ConfigError("cross attention is never shared: switch prefix caching off")
        if any(isinstance(s, MambaSpec) and s.mamba_cache_mode != "align" for s in specs):
            raise ConfigError("prefix caching needs mamba_cache_mode align")
        chunked = any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs)
        if chunked and len(set(sizes)) > 1:
            raise ConfigError("chunked local attention needs equal block sizes in all groups")
        if chunked and self.eagle_group_ids:
            raise ConfigError("chunked local attention does not go with a draft model's KV")
        if self.retention_interval and self.retention_interval % self.scheduler_block_size:
            raise ConfigError(
                f"retention interval {self.retention_interval} is no multiple of "
                f"{self.scheduler_block_size}"
            )

    def _derive(self) -> None:
        """What follows from the groups, found once."""
        sizes = [group.kv_cache_spec.block_size for group in self.kv_cache_groups]
        marked = {i for i, group in enumerate(self.kv_cache_groups) if group.is_eagle_group}
        if self.use_eagle and not marked:
            marked = set(range(len(self.kv_cache_groups)))
        object.__setattr__(self, "hash_block_size", self.hash_block_size or min(sizes))
        object.__setattr__(self, "scheduler_block_size", lcm(*sizes))
        object.__setattr__(self, "eagle_group_ids", frozenset(marked))
        if not self.max_in_flight_tokens:
            object.__setattr__(self, "max_in_flight_tokens", self.max_model_len)

    @property
    def watermark_blocks(self) -> int:
        """Blocks kept free when a waiting request is admitted."""
        return int(self.watermark * self.num_blocks)
