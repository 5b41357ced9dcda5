"""Everything that can be seen of a block manager, to say that a call has changed none of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvdist.cache import BlockPool, HoldKind, KVCacheManager, Request

Facts = dict[str, object]


def of_pool(pool: BlockPool) -> Facts:
    """Blocks, queue, keys, holds, steps, events."""
    return {
        "queue": [block.block_id for block in pool.free_block_queue],
        "free": pool.get_num_free_blocks(),
        "usage": pool.get_usage(),
        "blocks": [
            (b.block_id, b.ref_cnt, b.block_hash, b.group_id, b.generation, b.step)
            for b in pool.blocks
        ],
        "places": [block in pool.free_block_queue for block in pool.blocks],
        "keys": [(group, key, b.block_id) for group, key, b in pool.cached_blocks()],
        "further keys": {b.block_id: list(keys) for b, keys in pool.further_keys.items()},
        "tails": {b.block_id: tokens for b, tokens in pool.tail_tokens.items()},
        "holds": [[pool.holds.count(b, kind) for kind in HoldKind] for b in pool.blocks],
        "ledger": pool.ledger(),
        "steps": (pool.steps.current, pool.steps.settled, bool(pool.steps)),
        "waiting": [block.block_id for block in pool.steps.waiting_blocks()],
        "events": pool.events.next_seq if pool.events is not None else None,
        "evicted": pool.num_evicted_blocks,
    }


def of_manager(manager: KVCacheManager) -> Facts:
    """The pool, and what is known of each request in each group."""
    facts = of_pool(manager.block_pool)
    facts["live"] = list(manager.live_requests)
    facts["stats"] = repr(manager.stats)
    for m in manager.coordinator.managers:
        facts[f"group {m.group_id}"] = (
            {name: [b.block_id for b in table] for name, table in m.req_to_blocks.items()},
            dict(m.num_cached_block),
            {name: (index, b.block_id) for name, (index, b) in m.partial_hits.items()},
            [(source.block_id, target.block_id) for source, target in m.pending_copies],
        )
    return facts


def of_request(request: Request) -> Facts:
    """Tokens, hashes and counts."""
    return {
        "tokens": list(request.all_token_ids),
        "hashes": list(request.block_hashes),
        "prompt": request.num_prompt_tokens,
        "counts": (
            request.num_computed_tokens,
            request.num_in_flight_tokens,
            request.num_preemptions,
            request.shared_prefix_boundary,
        ),
    }


@contextmanager
def unchanged(*things: KVCacheManager | BlockPool | Request) -> Iterator[None]:
    """Fails if what happens inside changes any of `things`, or breaks an invariant."""
    before = [_of(thing) for thing in things]
    yield
    for thing, facts in zip(things, before, strict=True):
        after = _of(thing)
        assert {k: after[k] for k in after if after[k] != facts[k]} == {}, type(thing).__name__
        if isinstance(thing, KVCacheManager):
            thing.check()


def _of(thing: KVCacheManager | BlockPool | Request) -> Facts:
    if isinstance(thing, KVCacheManager):
        return of_manager(thing)
    return of_pool(thing) if isinstance(thing, BlockPool) else of_request(thing)
