"""The auditor: re-derives every counter and map from the tables and says what doesn't agree.

Owns:   nothing; it changes nothing.
Knows nothing of: what should have happened. It looks only at what is.
Cost:   O(pool + tables), and it ends on any broken structure: all walks are bounded.
Invariants: I1-I4, I6, I7 of docs/semantics.md, and S5, S10, S12, S22, T1; each finding begins
        with its label.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from kvdist.cache.block import NULL_REF_CNT, KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.coordinator import KVCacheCoordinator
from kvdist.cache.holds import HoldKind
from kvdist.cache.live_request import LiveRequest
from kvdist.cache.managers.base import SingleTypeKVCacheManager
from kvdist.cache.request import Request
from kvdist.cache.results import BlockCopy
from kvdist.ids import RequestId


def audit(
    coordinator: KVCacheCoordinator,
    requests: Mapping[RequestId, LiveRequest],
    copies: Collection[BlockCopy] = (),
) -> list[str]:
    """All findings; empty if everything agrees.

    `requests` are those that own blocks, `copies` those that were taken and have not run yet.
    """
    pool = coordinator.pool
    return [
        *_collect("S5", _check_blocks(pool)),
        *_collect("I1", _check_queue(pool)),
        *_collect("I1", _check_references(coordinator)),
        *_collect("I2", _check_keys(pool)),
        *_collect("I4", _check_copies(coordinator, copies)),
        *_collect("I7", _check_ledger(pool)),
        *_collect("T1", _check_steps(pool, requests)),
        *_collect("I6", _check_all_tables(coordinator, requests)),
        *_collect("S12", _check_quiet_bounds(coordinator, requests)),
    ]


def _collect(label: str, check: Iterator[str]) -> list[str]:
    """The findings of one check; one that breaks on what it looks at is a finding too."""
    findings: list[str] = []
    try:
        findings.extend(check)
    except Exception as error:  # noqa: BLE001 - anything can happen on a broken structure
        findings.append(f"{label}: the structure is broken: {type(error).__name__}: {error}")
    return findings


def audit_progress(
    coordinator: KVCacheCoordinator, requests: Mapping[RequestId, LiveRequest]
) -> list[str]:
    """Findings of I3: requests that claim more computed tokens than a group can resume at.

    Apart from `audit`, because the claim is the scheduler's, and between two of its own moves
    (blocks taken, count not yet moved on) there is nothing to compare.
    """
    return _collect("I3", _check_progress(coordinator, requests))


def _check_progress(
    coordinator: KVCacheCoordinator, requests: Mapping[RequestId, LiveRequest]
) -> Iterator[str]:
    for name, live in requests.items():
        computed, in_flight = live.request.num_computed_tokens, live.request.num_in_flight_tokens
        if not 0 <= in_flight <= computed:
            yield f"I3: request {name}: {in_flight} tokens in flight of {computed} computed"
        for manager in coordinator.managers:
            table = manager.req_to_blocks.get(name, [])
            for i in manager.resumable_blocks(computed) if computed > 0 else ():
                if i >= len(table) or table[i] is manager.pool.null_block:
                    group = manager.group_id
                    yield (
                        f"I3: request {name}: {computed} tokens computed, but group {group} has "
                        f"no block at index {i}"
                    )
                    break  # one is enough, and there may be no end of them


def _check_blocks(pool: BlockPool) -> Iterator[str]:
    for i, block in enumerate(pool.blocks):
        if block.block_id != i:
            yield f"S5: blocks[{i}] has id {block.block_id}"
    null = pool.null_block
    if null is not pool.blocks[0] or null.block_hash is not None or null.ref_cnt != NULL_REF_CNT:
        yield f"S5: the null block is {null!r}"


def _check_queue(pool: BlockPool) -> Iterator[str]:
    """A non-null block is in the free queue exactly when nobody holds it."""
    yield from (f"I1: {finding}" for finding in pool.free_block_queue.findings())
    queue = list(islice(pool.free_block_queue, pool.num_blocks + 1))
    times = Counter(queue)
    for block in pool.blocks[1:]:
        if times[block] != (block.ref_cnt == 0):
            yield f"I1: {block!r} is {times[block]} times in the free queue"
    for block in times.keys() - set(pool.blocks[1:]):
        yield f"I1: {block!r} is in the free queue"


def _check_references(coordinator: KVCacheCoordinator) -> Iterator[str]:
    """Every reference is a table entry, a hold, or a free that waits for a step."""
    pool = coordinator.pool
    references: Counter[KVCacheBlock] = Counter(pool.steps.waiting_blocks())
    for manager in coordinator.managers:
        for table in manager.req_to_blocks.values():
            references.update(table)
    for block in pool.blocks[1:]:
        expected = references[block] + pool.holds.total(block)
        if block.ref_cnt != expected:
            yield f"I1: {block!r} has {expected} references"


def _check_keys(pool: BlockPool) -> Iterator[str]:
    """Every key leads to a block that carries it, in the group whose content it holds."""
    entries: Counter[KVCacheBlock] = Counter()
    for group_id, key, block in pool.cached_blocks():
        entries[block] += 1
        if block.block_hash != key and key not in pool.further_keys.get(block, ()):
            yield f"I2: key {key.hex()[:8]} leads to {block!r}, which doesn't carry it"
        if block.group_id != group_id:
            yield f"I2: group {group_id} finds {block!r}, whose content is of {block.group_id}"
        if block is pool.null_block:
            yield "I2: the null block is cached"
        if not block.generation:
            yield f"I2: {block!r} is cached and was never taken"
    for block in pool.blocks:
        carried = (block.block_hash is not None) + len(pool.further_keys.get(block, ()))
        if entries[block] != carried:
            yield f"I2: {block!r} carries {carried} keys, {entries[block]} lead to it"
        if block in pool.tail_tokens and block.block_hash is None:
            yield f"I2: {block!r} has a tail but no key"
    for index in pool.cached_block_hash_to_block:
        for key, copies in index.copies.items():
            blocks = [index.oldest.get(key), *copies]
            if not copies or None in blocks or len(set(blocks)) < len(blocks):
                yield f"S22: the copies of key {key.hex()[:8]} are {blocks}"


def _check_copies(coordinator: KVCacheCoordinator, copies: Collection[BlockCopy]) -> Iterator[str]:
    """Source and target of every copy that has not run are pinned, once for each."""
    pool = coordinator.pool
    pins = Counter(pool.blocks[i] for copy in copies for i in (copy.source, copy.target))
    for manager in coordinator.managers:
        pins.update(block for pair in manager.pending_copies for block in pair)
        for request_id in manager.partial_hits.keys() - manager.req_to_blocks.keys():
            yield f"S10: request {request_id} has a partial hit but no table"
    for block in pins.keys() | set(pool.holds):
        if pool.holds.count(block, HoldKind.COPY) != pins[block]:
            yield f"I4: {block!r} is not pinned as often as copies of it are due, {pins[block]}"


def _check_steps(pool: BlockPool, requests: Mapping[RequestId, LiveRequest]) -> Iterator[str]:
    """No step is known to a block or a request before it was opened."""
    current, settled = pool.steps.current, pool.steps.settled
    if settled > current:
        yield f"T1: step {settled} has settled, {current} is the latest"
    yield from (
        f"T1: {block!r} is of step {block.step}, {current} is the latest"
        for block in pool.blocks
        if block.step > current
    )
    for name, live in requests.items():
        if live.step > current:
            yield f"T1: request {name} is of step {live.step}, {current} is the latest"


def _check_quiet_bounds(
    coordinator: KVCacheCoordinator, requests: Mapping[RequestId, LiveRequest]
) -> Iterator[str]:
    """No quiet bound is above what the groups say now (ADR-0008)."""
    managers = coordinator.managers
    for name, live in requests.items():
        bounds = LiveRequest(live.request)
        bounds.settle(managers, live.num_slots, publishes=coordinator.config.enable_caching)
        for bound in ("num_slots", "next_publication", "next_skip"):
            if getattr(live, bound) > getattr(bounds, bound):
                yield f"S12: request {name}: {bound} is {getattr(live, bound)}, too high"


def _check_ledger(pool: BlockPool) -> Iterator[str]:
    """Counted block by block, the ledger comes out the same and adds up."""
    ledger = pool.ledger()
    if ledger.total != pool.num_blocks - 1:
        yield f"I7: {ledger} adds up to {ledger.total}, not {pool.num_blocks - 1}"
    strongest: Counter[str] = Counter()
    for block in pool.blocks[1:]:
        kinds = [kind for kind in HoldKind if pool.holds.count(block, kind)]
        idle = "request" if block.ref_cnt else "free"
        strongest[max(kinds).name.lower() if kinds else idle] += 1
    for part in ("quarantine", "copy", "pull", "lease", "request", "free"):
        if getattr(ledger, part) != strongest[part]:
            yield f"I7: {ledger}, but {strongest[part]} blocks are under {part}"


def _check_all_tables(
    coordinator: KVCacheCoordinator, requests: Mapping[RequestId, LiveRequest]
) -> Iterator[str]:
    for manager in coordinator.managers:
        for request_id in manager.num_cached_block.keys() - manager.req_to_blocks.keys():
            yield f"I6: request {request_id} has published blocks but no table"
        for request_id, table in manager.req_to_blocks.items():
            where = f"request {request_id}, group {manager.group_id}"
            if request_id in requests:
                found = _check_table(manager, requests[request_id].request, table)
                yield from (f"{finding} ({where})" for finding in found)
            elif table:
                yield f"I1: {len(table)} blocks, but the request is not live ({where})"


def _check_table(
    manager: SingleTypeKVCacheManager, request: Request, table: Sequence[KVCacheBlock]
) -> Iterator[str]:
    null = manager.pool.null_block
    strangers = [entry for entry in table if not isinstance(entry, KVCacheBlock)]
    if strangers:
        yield f"S4: {strangers[:3]} in a table"
        return
    real = [block for block in table if block is not null]
    if len(set(real)) < len(real):
        yield "S4: a block stands twice in one table"
    published = manager.num_cached_block.get(request.request_id, 0) * manager.block_size
    if published > request.num_tokens and any(block.block_hash for block in real):
        yield f"I6: {published} tokens published, {request.num_tokens} are known"
    scale = manager.block_size // manager.hash_block_size if request.block_hashes else 1
    for i, block in enumerate(table):
        if block.block_hash is None:
            continue
        named = request.block_hashes[i * scale : (i + 1) * scale]
        for key in (block.block_hash, *manager.pool.further_keys.get(block, ())):
            if key not in named:
                yield f"I2: {block!r} at index {i} carries a key of other content"
