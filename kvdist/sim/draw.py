"""Clusters by seed: kinds of layers, sizes of blocks and pools, ranks, settings.

Owns:   nothing.
Knows nothing of: what happens to them.

Most clusters have nodes that are alike. In others nodes differ as far as `compat` lets them: in
block sizes where every group keeps all tokens, and in ranks, up to more than there are heads. In
some a few speak the version before, or one can't work with the others at all.
"""

from dataclasses import replace
from random import Random
from typing import Final

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.connector.messages import OLDEST_VERSION, VERSION
from kvdist.connector.settings import Settings
from kvdist.ids import NodeId
from kvdist.sched.budget import SchedulerConfig
from kvdist.sim.cluster import ClusterConfig

#: The longest sequence, in tokens.
MAX_LEN: Final = 32
#: Kinds of layers; the first is what most models are.
_GROUPS: Final = (("full",), ("full",), ("full", "window"), ("full", "state"), ("window",))
#: Of how many clusters the nodes are unlike, or the layers of rarer kinds.
_UNLIKE: Final = 0.3
#: In how many some nodes speak the version before ours; in how many one has other weights.
_UPGRADES: Final = 0.3
_MISFITS: Final = 0.1


def make_config(chance: Random, num_nodes: int, *, calm: bool) -> ClusterConfig:
    """Some cluster; calm: nothing is scarce."""
    names = [f"n{i}" for i in range(num_nodes)]
    if chance.random() < _UNLIKE:
        nodes = _unlike_nodes(chance, names, calm=calm)
        heads = chance.choice((1, 2))
        ranks = {name: chance.choice((1, 2, 4)) for name in names}
    else:
        specs = _specs(chance.choice(_GROUPS), chance.choice((2, 4)))
        nodes = {name: _node(chance, specs, calm=calm) for name in names}
        heads = chance.choice((1, 2, 2, 2))
        ranks = {name: chance.choice((1, heads)) for name in names}
    if _has_states(nodes[names[0]]):  # can't be cut
        ranks = dict.fromkeys(names, ranks[names[0]])
    scheduler = SchedulerConfig(
        max_num_batched_tokens=chance.choice((4, 8, 16, 64)),
        max_num_seqs=chance.choice((1, 4) if calm else (2, 4, 8)),
        max_steps_in_flight=chance.choice((1, 2)),
    )
    return ClusterConfig(
        nodes=nodes, ranks=ranks, versions={} if calm else _versions(chance, names),
        weights={} if calm or chance.random() > _MISFITS else {names[-1]: "others"},
        num_heads=heads, one_sided=chance.random() < 0.5,
        latency_s=0.004 if calm else chance.choice((0.004, 0.05, 0.3)),
        settings=_calm_settings(chance) if calm else _settings(chance),
        scheduler=scheduler,
        local_s=1e-3 if calm else chance.choice((1e-3, 1e-3, 0.05)),
        slowness=1.0 if calm else chance.choice((1.0, 1.0, 20.0)),
        step_slowness=1.0 if calm else chance.choice((1.0, 20.0)),
        piecemeal=not calm and chance.random() < 0.2,
    )  # fmt: skip


def _has_states(config: KVCacheConfig) -> bool:
    return any(isinstance(g.kv_cache_spec, MambaSpec) for g in config.kv_cache_groups)


def _versions(chance: Random, names: list[NodeId]) -> dict[NodeId, int]:
    """All speak our version, or some the one before: a cluster in the midst of an upgrade."""
    if chance.random() > _UPGRADES:
        return {}
    return {name: chance.choice((OLDEST_VERSION, VERSION)) for name in names}


def _unlike_nodes(chance: Random, names: list[str], *, calm: bool) -> dict[str, KVCacheConfig]:
    """Blocks of other sizes on each node, hits that end inside a block, or chunks."""
    match chance.choice(("block sizes", "partial hits", "chunks", "ranks")):
        case "block sizes":
            sizes = {name: chance.choice((2, 4, 8)) for name in names}
            groups = chance.choice((("full",), ("full",), ("full", "full")))
            return {
                name: _node(chance, _specs(groups, size), calm=calm, hash_block_size=2)
                for name, size in sizes.items()
            }
        case "partial hits":
            specs = _specs(chance.choice((("full",), ("full", "window"))), 4)
            more = {"hash_block_size": 2, "enable_partial_hits": True}
        case "chunks":
            specs, more = _specs(("full", "chunk"), chance.choice((2, 4))), {}
        case _:
            specs, more = _specs(chance.choice(_GROUPS), chance.choice((2, 4))), {}
    return {name: _node(chance, specs, calm=calm, **more) for name in names}


def _node(
    chance: Random, specs: tuple[KVCacheSpec, ...], *, calm: bool, **more: int
) -> KVCacheConfig:
    """With room for a few longest sequences; calm: for many."""
    longest = sum(-(-MAX_LEN // spec.block_size) for spec in specs)
    times = 12 if calm else chance.choice((1, 2, 2, 3))
    return KVCacheConfig(
        num_blocks=1 + longest * times + chance.randrange(4),
        kv_cache_groups=tuple(map(KVCacheGroupSpec, specs)),
        max_model_len=MAX_LEN,
        watermark=chance.choice((0.0, 0.0, 0.05)),
        **more,  # type: ignore[arg-type]
    )


def _specs(kinds: tuple[str, ...], block_size: int) -> tuple[KVCacheSpec, ...]:
    return tuple(_spec(kind, block_size) for kind in kinds)


def _spec(kind: str, block_size: int) -> KVCacheSpec:
    match kind:
        case "full":
            return FullAttentionSpec(block_size=block_size)
        case "window":
            return SlidingWindowSpec(block_size=block_size, sliding_window=2 * block_size + 1)
        case "chunk":
            return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=8)
        case _:
            return MambaSpec(block_size=block_size)


def _calm_settings(chance: Random) -> Settings:
    """The defaults, or leases so short that only renewals keep them."""
    if chance.random() < 0.5:
        return Settings()
    return Settings(lease_s=0.35, renewal_s=0.05)


def _settings(chance: Random) -> Settings:
    """The defaults, or shorter times, so that leases run out while they are in use."""
    lease_s = chance.choice((30.0, 30.0, 2.0, 0.3))
    is_hasty = chance.random() >= 0.5
    settings = Settings(
        lease_s=lease_s,
        renewal_s=lease_s / 6,
        life_s=chance.choice((300.0, 3 * lease_s, lease_s)),
        max_rounds=chance.choice((1, 2, 3)),
        on_failure=chance.choice(("recompute", "recompute", "fail")),
        max_recompute_tokens=chance.choice((1 << 20, 40)),
        min_pull_tokens=chance.choice((1, 1, 4)),
        max_parked=chance.choice((256, 2)),
        soft_share=chance.choice((0.25, 1.0)),
        burst_tokens=chance.choice((4096, 4096, 8)),
        max_verdicts_per_peer=chance.choice((1 << 14, 1 << 14, 1 << 14, 12, 4)),
        max_parked_per_peer=chance.choice((64, 64, 1)),
    )
    return _in_haste(settings) if is_hasty else settings


def _in_haste(settings: Settings) -> Settings:
    """With times so short that what they end is still under way."""
    return replace(
        settings, stall_s=1.0, progress_s=0.2, answer_s=0.2, verdict_s=4.0, parked_s=1.0,
        escalation_s=(0.3, 0.9, 2.0, 4.0),
    )  # fmt: skip
