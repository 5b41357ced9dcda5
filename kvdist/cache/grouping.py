"""From a model's layers to groups with equal pages over shared buffers (S28).

Owns:   nothing; a plan is a frozen value.
Knows nothing of: tensors, devices, block tables.
Units:  a page is the bytes of one block in one layer.
Source: the document's chapter on groups and page sizes, as in vLLM's hybrid KV cache manager.

10 full layers and 20 with a sliding window, all pages equal: 3 groups of 10 layers over 10 buffers.
Block 7 of any group is page 7 of each of that group's buffers, so one pool of ids serves them all.

    buffer 0   full.0   window.0   window.1
    buffer 1   full.1   window.2   window.3
    ...
    group        0         1          2
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvdist.cache.numbers import check_number
from kvdist.cache.spec import KVCacheGroupSpec, KVCacheSpec, MambaSpec
from kvdist.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """How a model's layers share memory."""

    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    #: For each buffer the layers that share it, at most one a group.
    buffers: tuple[tuple[str, ...], ...]
    #: Bytes of one block in one buffer.
    page_size_bytes: int
    #: Bytes a block that pages smaller than the common one leave unused, over all layers.
    padding_bytes: int
    #: Pages a block id that no layer uses, because groups have unlike numbers of layers; over all
    #: groups, in bytes.
    unused_bytes: int

    @property
    def bytes_per_block(self) -> int:
        """What one more block id costs, over all buffers."""
        return self.page_size_bytes * len(self.buffers)

    def num_blocks(self, available_bytes: int) -> int:
        """Blocks that fit into so many bytes. Raises: ConfigError if fewer than two do."""
        check_number(ConfigError, "available_bytes", available_bytes, 0, 1 << 62)
        count = available_bytes // self.bytes_per_block
        if count < 2:
            raise ConfigError(
                f"{available_bytes} bytes hold {count} blocks of {self.bytes_per_block} bytes; "
                "at least the null block and one more are needed"
            )
        return count


def plan_groups(
    layers: Mapping[str, KVCacheSpec], eagle_layers: Collection[str] = ()
) -> KVCacheLayout:
    """Put layers with equal specs into groups of about equal size, in the order of `layers`.

    Where pages differ, attention blocks are made longer until the pages agree, and states are
    padded; both show in the result. Raises: ConfigError if there are no layers, a page size is
    missing, or attention pages are no multiples of each other.

    >>> from kvdist.cache.spec import FullAttentionSpec, SlidingWindowSpec
    >>> full = FullAttentionSpec(block_size=16, page_size_bytes=4096)
    >>> window = SlidingWindowSpec(block_size=16, page_size_bytes=4096, sliding_window=1024)
    >>> layers = {f"full.{i}": full for i in range(10)} | {f"window.{i}": window for i in range(20)}
    >>> layout = plan_groups(layers)
    >>> [len(group.layer_names) for group in layout.kv_cache_groups], len(layout.buffers)
    ([10, 10, 10], 10)
    """
    if not isinstance(layers, Mapping) or not layers:
        raise ConfigError("the model has no layers with a KV cache")
    page = _common_page(layers.values())
    names_of: dict[tuple[KVCacheSpec, bool], list[str]] = {}
    for name, spec in layers.items():
        names_of.setdefault((_with_page(spec, page), name in eagle_layers), []).append(name)
    size = _group_size([len(names) for names in names_of.values()])
    groups = tuple(
        KVCacheGroupSpec(spec, tuple(names[i::count]), is_eagle)
        for (spec, is_eagle), names in names_of.items()
        for count in (-(-len(names) // size),)
        for i in range(count)
    )
    num_buffers = max(len(group.layer_names) for group in groups)
    buffers = tuple(
        tuple(group.layer_names[i] for group in groups if i < len(group.layer_names))
        for i in range(num_buffers)
    )
    states = [spec for spec in layers.values() if isinstance(spec, MambaSpec)]
    return KVCacheLayout(
        kv_cache_groups=groups,
        buffers=buffers,
        page_size_bytes=page,
        padding_bytes=sum(page - spec.page_size_bytes for spec in states),
        unused_bytes=page * (num_buffers * len(groups) - len(layers)),
    )


def _common_page(specs: Iterable[KVCacheSpec]) -> int:
    """The page that holds every state and is a multiple of every attention page."""
    specs = list(specs)
    if any(spec.page_size_bytes < 1 for spec in specs):
        raise ConfigError("every layer needs a page size")
    attention = [s.page_size_bytes for s in specs if not isinstance(s, MambaSpec)]
    states = [s.page_size_bytes for s in specs if isinstance(s, MambaSpec)]
    if not attention:
        return max(states)
    page = max(attention)
    if any(page % other for other in attention):
        raise ConfigError(f"attention pages {sorted(set(attention))} don't divide each other")
    return page * -(-max(states, default=page) // page)


def _with_page(spec: KVCacheSpec, page: int) -> KVCacheSpec:
    """The same layer with pages of `page` bytes: longer attention blocks, padded states."""
    if isinstance(spec, MambaSpec):
        return replace(spec, page_size_bytes=page)
    scale = page // spec.page_size_bytes
    return replace(spec, page_size_bytes=page, block_size=spec.block_size * scale)


def _group_size(counts: Sequence[int]) -> int:
    """Layers a group: the smallest kind's number, or the largest's if close."""
    smallest, largest = min(counts), max(counts)
    return largest if 2 * largest < 3 * smallest else smallest
