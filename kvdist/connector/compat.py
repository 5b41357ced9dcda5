"""Can two nodes exchange blocks? If not, every field in which they differ is named.

Owns:   the rules of what may differ.
Knows nothing of: how nodes meet; who compares decides what becomes of the link.
Units:  tokens, heads, bits.
Source: a fingerprint that is compared first is the idea of vLLM's NIXL connector
        (vllm/distributed/kv_transfer/kv_connector/v1/nixl, 0.32); which fields, and that a refusal
        names them, is ours.

What may differ: the number of ranks, unless states are kept, since heads are cut and states aren't;
block sizes, where every group keeps all tokens and both can name them (`Opened.block_sizes`);
versions, as long as one is spoken by both. There is no way to switch the comparison off.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kvdist.connector.geometry import Geometry, can_share
from kvdist.connector.messages import (
    OLDEST_VERSION,
    VERSION,
    Fingerprint,
    GroupPrint,
    Refusal,
)
from kvdist.errors import ConfigError, Incompatible
from kvdist.ids import Rank

#: Between nodes: with a faster one, who may choose prompts could read the K/V of others (S7).
HASHES_BETWEEN_NODES: Final = frozenset({"sha256"})

#: The first version whose owners name their block sizes.
_NAMES_SIZES: Final = 2

#: Fields that have to be equal.
_EQUAL: Final = (
    "weights", "dtype", "element_bits", "scales", "num_heads", "head_size", "hash_algorithm",
    "hash_block_size", "drafter", "layout", "state_layout",
)  # fmt: skip


class Difference(NamedTuple):
    """One field in which two nodes differ, and mustn't."""

    field: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.field}: ours {self.ours!r}, theirs {self.theirs!r}"


def fingerprint(
    geometry: Geometry,
    *,
    weights: str,
    dtype: str,
    element_bits: int,
    head_size: int,
    num_layers: tuple[int, ...],
    hash_block_size: int,
    layout: str,
    latest_version: int = VERSION,
    hash_algorithm: str = "sha256",
    scales: str = "",
    drafter: str = "",
    state_layout: str = "",
) -> Fingerprint:
    """Of a node. Raises: ConfigError for one that no other node could work with."""
    if len(num_layers) != len(geometry.groups):
        raise ConfigError(f"{len(geometry.groups)} groups, and layers of {len(num_layers)}")
    if any(group.kind == "state" for group in geometry.groups) and not state_layout:
        raise ConfigError("states are exchanged in a state_layout, and none is set")
    if hash_algorithm not in HASHES_BETWEEN_NODES:
        raise ConfigError(f"hash_algorithm {hash_algorithm!r} is for single nodes only")
    groups = tuple(
        GroupPrint(group.kind, layers, group.block_size, group.window, group.chunk)
        for group, layers in zip(geometry.groups, num_layers, strict=True)
    )
    return Fingerprint(
        weights, dtype, element_bits, scales, geometry.num_heads, head_size, groups,
        hash_algorithm, hash_block_size, drafter, layout, state_layout, Rank(geometry.num_ranks),
        OLDEST_VERSION, latest_version,
    )  # fmt: skip


def differences(ours: Fingerprint, theirs: Fingerprint) -> list[Difference]:
    """All fields that differ and mustn't; none: the two can exchange blocks."""
    return [*_of_fields(ours, theirs), *_of_groups(ours, theirs), *_of_nodes(ours, theirs)]


def refusals(ours: Fingerprint, theirs: Fingerprint) -> tuple[Refusal, ...]:
    """The same, as a peer is told."""
    return tuple(
        Refusal(found.field[:256], str(found.ours)[:512], str(found.theirs)[:512])
        for found in differences(ours, theirs)
    )


def common_version(ours: Fingerprint, theirs: Fingerprint) -> int:
    """The version that two nodes speak with each other.

    Raises: Incompatible, naming every field that differs.
    """
    if found := differences(ours, theirs):
        raise Incompatible("; ".join(map(str, found)))
    return min(ours.latest_version, theirs.latest_version)


def _of_fields(ours: Fingerprint, theirs: Fingerprint) -> Iterator[Difference]:
    for name in _EQUAL:
        one, other = getattr(ours, name), getattr(theirs, name)
        if one != other:
            yield Difference(name, one, other)
    if ours.hash_algorithm == theirs.hash_algorithm not in HASHES_BETWEEN_NODES:
        yield Difference(
            "hash_algorithm (for single nodes only)", ours.hash_algorithm, theirs.hash_algorithm
        )


def _of_groups(ours: Fingerprint, theirs: Fingerprint) -> Iterator[Difference]:
    if len(ours.groups) != len(theirs.groups):
        yield Difference("number of groups", len(ours.groups), len(theirs.groups))
        return
    names_sizes = min(ours.latest_version, theirs.latest_version) >= _NAMES_SIZES
    sizes_may_differ = names_sizes and _keeps_all(ours) and _keeps_all(theirs)
    for index, (one, other) in enumerate(zip(ours.groups, theirs.groups, strict=True)):
        for name in ("kind", "num_layers", "block_size", "window", "chunk"):
            mine, its = getattr(one, name), getattr(other, name)
            if mine != its and not (name == "block_size" and sizes_may_differ):
                yield Difference(f"{name} of group {index}", mine, its)
        hash_block_size = theirs.hash_block_size or 1
        if other.block_size < 1 or other.block_size % hash_block_size:
            yield Difference(
                f"block_size of group {index} (a multiple of hash_block_size)",
                one.block_size, other.block_size,
            )  # fmt: skip


def _keeps_all(of: Fingerprint) -> bool:
    return all(
        group.kind == "tokens" and not group.window and not group.chunk for group in of.groups
    )


def _of_nodes(ours: Fingerprint, theirs: Fingerprint) -> Iterator[Difference]:
    has_states = any(group.kind == "state" for group in ours.groups + theirs.groups)
    if ours.num_ranks != theirs.num_ranks and has_states:
        yield Difference("num_ranks (states can't be cut)", ours.num_ranks, theirs.num_ranks)
    elif not all(can_share(node.num_heads, node.num_ranks) for node in (ours, theirs)):
        yield Difference("num_ranks (they can't share heads)", ours.num_ranks, theirs.num_ranks)
    spoken = (ours.oldest_version, ours.latest_version)
    understood = (theirs.oldest_version, theirs.latest_version)
    if max(spoken[0], understood[0]) > min(spoken[1], understood[1]):
        yield Difference("versions", spoken, understood)
