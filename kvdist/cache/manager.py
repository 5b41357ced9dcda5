"""The one object a scheduler sees (S1): look up, allocate, publish, free.

Owns:   the live requests' quiet bounds and the order of everything in an allocation.
Knows nothing of: scheduling, transfers, tensors.
Cost:   a decode step inside a request's quiet bounds is O(1) whatever the number of groups;
        everything else is O(blocks touched).
Source: the document's `KVCacheManager`; behaviour as vLLM 0.32 (vllm/v1/core/kv_cache_manager.py),
        shown by the recorded traces.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from kvdist import check
from kvdist.cache.audit import audit, audit_progress
from kvdist.cache.block import KVCacheBlock
from kvdist.cache.block_pool import BlockPool
from kvdist.cache.contract import check_numbers, check_processed, check_request, check_tokens
from kvdist.cache.coordinator import PerGroup, make_coordinator
from kvdist.cache.events import CacheEvent
from kvdist.cache.holds import HoldKind, Ledger
from kvdist.cache.live_request import LiveRequest
from kvdist.cache.request import Request
from kvdist.cache.results import BlockCopy, CacheHit, KVCacheBlocks
from kvdist.cache.spec import KVCacheConfig
from kvdist.cache.stats import PrefixCacheStats
from kvdist.cache.token_space import TokenSpace
from kvdist.errors import (
    ConfigError,
    IllegalAllocation,
    InvariantViolation,
    LocalMisuse,
    StaleHit,
    UnknownRequest,
)
from kvdist.ids import BlockId, RequestId


class KVCacheManager:
    """Block manager of one node.

    Tables, hits and new blocks are nested `[group][block]`. Every method that can refuse or raise
    does so before it changes anything, except that an allocation that is refused for want of
    blocks has given back what windows had left (S13).

    >>> from kvdist.cache import BlockHasher, FullAttentionSpec, KVCacheConfig, Request
    >>> config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=11)
    >>> manager, hasher = KVCacheManager(config), BlockHasher(config.hash_block_size)
    >>> first = Request("first", list(range(10)), hasher)
    >>> manager.allocate_slots(first, 10, manager.get_computed_blocks(first)).get_block_ids()
    ([1, 2, 3],)
    >>> second = Request("second", list(range(12)), hasher)
    >>> hit = manager.get_computed_blocks(second)
    >>> hit.num_tokens, hit.blocks.get_block_ids()
    (8, ([1, 2],))
    >>> manager.allocate_slots(second, 12 - hit.num_tokens, hit).get_block_ids()
    ([4],)
    >>> manager.get_block_ids("second"), manager.usage
    (([1, 2, 4],), 0.4)
    """

    def __init__(self, config: KVCacheConfig) -> None:
        if not isinstance(config, KVCacheConfig):
            raise ConfigError(f"a KVCacheConfig, not {type(config).__name__}")
        self.config = config
        self.block_pool = BlockPool(
            config.num_blocks,
            len(config.kv_cache_groups),
            config.hash_block_size,
            enable_caching=config.enable_caching,
            enable_events=config.enable_events,
        )
        self.coordinator = make_coordinator(config, self.block_pool)
        self.stats = PrefixCacheStats()
        self.live_requests: dict[RequestId, LiveRequest] = {}
        self._no_blocks = KVCacheBlocks(self.coordinator.no_blocks)
        self._has_quiet_bounds = all(m.has_quiet_bounds for m in self.coordinator.managers)
        self._copies_taken: list[BlockCopy] = []

    # -- lookup --------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> CacheHit:
        """The longest cached prefix of `request`, at most `num_tokens - 1` (S9).

        Changes nothing but the request's `shared_prefix_boundary`. Raises: IllegalAllocation if
        another live request has its name, or if it is hashed in blocks of another size.
        """
        self._live(request)
        blocks, num_tokens, junction = self.coordinator.no_blocks, 0, 0
        if self.config.enable_caching and not request.skip_reading_prefix_cache:
            blocks, num_tokens, junction = self.coordinator.find_longest_cache_hit(
                request.block_hashes, request.num_tokens - 1
            )
        request.shared_prefix_boundary = junction
        epoch = self.block_pool.epoch
        return CacheHit(
            request, self.block_pool, KVCacheBlocks(blocks), num_tokens, junction, epoch
        )

    # -- allocation ----------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: CacheHit | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        apply_watermark: bool = False,
    ) -> KVCacheBlocks | None:
        """Give `request` slots for all parts of its token space (S11), or None if they don't fit.

        Returns the table entries appended for new and lookahead tokens; hits and blocks for
        external tokens are not among them. With a hit that ends inside a block, the private copy
        that takes its place comes first.

        hit: result of the request's latest lookup, while it owns no blocks.
        num_external_computed_tokens: tokens after the hit whose K/V come from elsewhere.
        delay_cache_blocks: publish nothing now; `cache_blocks` does once the bytes are verified.
        full_sequence_must_fit: refuse unless all known tokens would fit.
        reserved_blocks: leave that many free for requests that are already admitted (S17).
        apply_watermark: keep the watermark free too: the request is waiting and others run.

        Raises: IllegalAllocation for nothing to do, a negative number, or a hit for a request that
        owns blocks; StaleHit if the cache has changed since the lookup. Nothing has changed then.
        """
        try:
            live = self.live_requests.get(request.request_id)
        except AttributeError:
            raise IllegalAllocation(f"a Request, not {type(request).__name__}") from None
        if live is not None and hit is None and type(num_new_tokens) is int:
            computed, in_flight = request.num_computed_tokens, request.num_in_flight_tokens
            if (
                num_new_tokens > 0 == num_external_computed_tokens == num_encoder_tokens
                and type(num_lookahead_tokens) is int
                and 0 <= num_lookahead_tokens <= live.num_slots - computed - num_new_tokens
                and computed + num_new_tokens < live.next_publication
                and computed - in_flight < live.next_skip
                and computed >= 0 <= in_flight
                and reserved_blocks == 0
                and not (full_sequence_must_fit or apply_watermark)
                and live.request is request
            ):
                live.step = self.block_pool.steps.current
                return self._no_blocks
        check_request(request, self.config, live)
        check_numbers(
            num_new_tokens,
            num_lookahead_tokens,
            num_external_computed_tokens,
            num_encoder_tokens,
            reserved_blocks,
            request.num_computed_tokens,
            request.num_in_flight_tokens,
        )
        hit_blocks, num_hit_tokens = self.coordinator.no_blocks, 0
        if hit is not None:
            hit_blocks, num_hit_tokens = self._check_hit(request, hit)
        adopts = any(hit_blocks) or num_external_computed_tokens > 0
        check_tokens(
            request,
            self.config,
            live,
            hit_tokens=num_hit_tokens,
            external_tokens=num_external_computed_tokens,
            new_tokens=num_new_tokens,
            adopts=adopts,
        )
        local = request.num_computed_tokens + num_hit_tokens
        total = min(local + num_external_computed_tokens, self.config.max_model_len)
        main = total + num_new_tokens
        slots = min(main + num_lookahead_tokens, self.config.max_model_len)
        space = TokenSpace(request.request_id, local, total, main, slots, num_encoder_tokens)
        watermark = self.config.watermark_blocks if apply_watermark else 0
        if full_sequence_must_fit and not self._would_fit(request, space, hit_blocks, watermark):
            return None
        new_blocks = self._take(request, live, space, hit_blocks, watermark + reserved_blocks)
        if new_blocks is not None:
            self._commit(request, space, hit, publish=not delay_cache_blocks)
        self._changed()
        return new_blocks

    def _take(
        self,
        request: Request,
        live: LiveRequest | None,
        space: TokenSpace,
        hit_blocks: PerGroup,
        kept_free: int,
    ) -> KVCacheBlocks | None:
        """Give back what windows left, predict, adopt the hits of all groups, take the rest."""
        last_step = live.step if live is not None else 0
        num_processed = max(0, space.total - request.num_in_flight_tokens)
        self.coordinator.remove_skipped_blocks(request.request_id, num_processed, last_step)
        if not self._fits(space, hit_blocks, kept_free):
            return None
        if any(hit_blocks) or space.total > space.local:
            self.coordinator.allocate_new_computed_blocks(space, hit_blocks)
        return KVCacheBlocks(self.coordinator.allocate_new_blocks(space))

    def _commit(
        self, request: Request, space: TokenSpace, hit: CacheHit | None, *, publish: bool
    ) -> None:
        """Note an allocation: who lives, what is expected or published, what is quiet."""
        live = self.live_requests.get(request.request_id)
        if live is None:
            live = self.live_requests[request.request_id] = LiveRequest(request)
            if hit is not None:
                self._count(request, hit.num_tokens)
        live.step = self.block_pool.steps.current
        if publish:
            num_known = min(space.main, request.num_tokens)
            if num_known >= live.next_publication:
                self._publish(request, live.verified(num_known))
        elif space.total > space.local:
            live.expect(space.local, space.total)
        if self._has_quiet_bounds:
            live.settle(
                self.coordinator.managers,
                max(0, space.total - request.num_in_flight_tokens),
                publishes=self.config.enable_caching,
            )

    def _fits(self, space: TokenSpace, hit_blocks: PerGroup, kept_free: int) -> bool:
        """Whether all blocks that are needed are there, `kept_free` left alone (S12)."""
        num_free = self.block_pool.get_num_free_blocks()
        needed = self.coordinator.get_num_blocks_to_allocate(space, hit_blocks)
        if needed + kept_free > num_free:
            return False
        # With external tokens vLLM's count can be too low: see ADR-0011.
        return (
            space.total == space.local
            or self.coordinator.get_num_blocks_taken(space, hit_blocks) <= num_free
        )

    def _publish(self, request: Request, num_tokens: int) -> None:
        if self.config.enable_caching and request.hash_block_size is not None:
            self.coordinator.cache_blocks(request, num_tokens)

    def _would_fit(
        self, request: Request, space: TokenSpace, hit_blocks: PerGroup, watermark: int
    ) -> bool:
        """The whole-sequence gate: all known tokens at once, windows at their largest (S17)."""
        whole = min(request.num_tokens, self.config.max_model_len)
        space = space._replace(main=whole, slots=whole)
        num_needed = self.coordinator.get_num_blocks_to_allocate(space, hit_blocks, True)
        return num_needed + watermark <= self.block_pool.get_num_free_blocks()

    def _check_hit(self, request: Request, hit: CacheHit) -> tuple[PerGroup, int]:
        """The blocks and tokens of a hit that still holds."""
        if not isinstance(hit, CacheHit) or hit.pool is not self.block_pool:
            raise IllegalAllocation("not a hit of this manager")
        if hit.request is not request:
            raise IllegalAllocation(f"a hit of {hit.request!r} for {request!r}")
        check_numbers(hit.num_tokens)
        if hit.num_tokens and request.num_computed_tokens:
            raise IllegalAllocation(f"request {request.request_id} has computed tokens already")
        if hit.epoch != self.block_pool.epoch and hit.num_tokens:
            again = self.coordinator.find_longest_cache_hit(
                request.block_hashes, request.num_tokens - 1
            )
            if again[:2] != (hit.blocks.blocks, hit.num_tokens):
                raise StaleHit(f"request {request.request_id}: look up again")
        return hit.blocks.blocks, hit.num_tokens

    def _changed(self) -> None:
        """After a change: audit, at check level 2."""
        if check.level >= 2:
            self._audit()

    def _count(self, request: Request, num_hit_tokens: int) -> None:
        if self.config.enable_caching and not request.skip_reading_prefix_cache:
            self.stats.record(
                request.num_tokens, num_hit_tokens, preempted=request.num_preemptions > 0
            )

    # -- publishing ----------------------------------------------------------------------------

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish the request's full blocks within its first `num_tokens` (S15).

        For external tokens whose bytes have arrived and were verified. Raises: UnknownRequest if it
        owns no blocks, IllegalAllocation if `num_tokens` is more than it knows or has slots for.
        """
        check_numbers(num_tokens)
        live = self._live(request)
        if live is None:
            raise UnknownRequest(f"request {request.request_id} owns no blocks")
        slots = min(m.num_slots(request.request_id) for m in self.coordinator.managers)
        if num_tokens > min(request.num_tokens, slots):
            raise IllegalAllocation(
                f"request {request.request_id}: {num_tokens} tokens to publish, "
                f"{request.num_tokens} are known, {slots} have slots"
            )
        live.expect(max(num_tokens, live.unverified_start), live.unverified_end)
        self._publish(request, num_tokens)
        live.disturb()
        self._changed()

    # -- giving back ---------------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """Give back all blocks of a request, tails first (S19); nothing if it owns none.

        While a step that names the blocks is open they stay held until it settles (S27). Raises:
        IllegalAllocation if another live request has its name.
        """
        live = self._live(request)
        if live is None:
            return
        del self.live_requests[request.request_id]
        for blocks in self.coordinator.pop_blocks_for_free(request.request_id):
            self.block_pool.release_after(live.step, blocks)
        self._changed()

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Give back blocks that no step after so many processed tokens reads (S13).

        Nothing if the request owns none. Raises: IllegalAllocation for a negative number.
        """
        check_numbers(num_processed_tokens)
        live = self._live(request)
        if live is None:
            return
        check_processed(request, num_processed_tokens)
        self.coordinator.remove_skipped_blocks(request.request_id, num_processed_tokens, live.step)
        self._changed()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Make these blocks unfindable, used or free (S23). Raises: ForeignBlock."""
        self.block_pool.evict_blocks(block_ids)
        if self.config.enable_partial_hits:  # an evicted tail is published again
            for live in self.live_requests.values():
                live.disturb()
        self._changed()

    def reset_prefix_cache(self) -> bool:
        """Make all blocks unfindable; False, and nothing has changed, while any is held (S23)."""
        done = self.block_pool.reset_prefix_cache()
        self._changed()
        return done

    # -- steps and copies ----------------------------------------------------------------------

    def new_step_starts(self, step: int | None = None) -> None:
        """The scheduler begins to plan a step.

        With a number the step stays open until `settle_step`: frees of blocks that it names wait
        for that, and what it publishes is unsettled and can be withdrawn. Without one a step counts
        as over when the next call is made. Raises: UnknownStep unless numbers rise.
        """
        if step is not None:
            self.block_pool.steps.open(step)
        for manager in self.coordinator.managers:
            manager.new_step_starts()

    def settle_step(self, step: int) -> None:
        """The oldest open step is over, its writes are done. Raises: UnknownStep otherwise."""
        for blocks in self.block_pool.steps.settle(step):
            self.block_pool.release(blocks)
        self._changed()

    def withdraw_step(self, step: int) -> list[BlockId]:
        """Make unfindable what an open step and all after it published (T1).

        For a step that failed. Returns the ids of those blocks: a request that adopted one in the
        meantime has it in its tables and has to be computed anew. The steps stay open until they
        settle. Raises: UnknownStep.
        """
        withdrawn = self.block_pool.withdraw(step)
        for publication in withdrawn:
            manager = self.coordinator.managers[publication.group_id]
            request = publication.request
            live = self.live_requests.get(request.request_id) if request else None
            if live is not None and live.request is request:
                manager.roll_back_publication(request.request_id, publication.first_block)
                live.disturb()
        self._changed()
        return sorted({block.block_id for record in withdrawn for block in record.blocks})

    def take_block_copies(self) -> list[BlockCopy]:
        """Block copies that became due since the last call, in the order to run them (S10)."""
        copies = [
            BlockCopy(source.block_id, target.block_id, manager.group_id)
            for manager in self.coordinator.managers
            for source, target in manager.take_pending_copies()
        ]
        self._copies_taken += copies
        return copies

    def release_block_copies(self, copies: Sequence[BlockCopy] | None = None) -> None:
        """These copies, or all taken so far, have run: their pins end.

        Raises: LocalMisuse for a copy that wasn't taken; nothing has changed then.
        """
        released = self._copies_taken if copies is None else list(copies)
        left = Counter(self._copies_taken)
        left.subtract(released)
        if min(left.values(), default=0) < 0:
            raise LocalMisuse("a block copy ended that was not taken, or ended before")
        self._copies_taken = list(left.elements())
        ends = [block_id for copy in released for block_id in (copy.source, copy.target)]
        self.block_pool.end_hold(self._blocks(ends), HoldKind.COPY)
        self._changed()

    # -- holds ---------------------------------------------------------------------------------

    def hold_blocks(self, block_ids: Iterable[int], kind: HoldKind) -> None:
        """Hold blocks for a lease, a pull or a quarantine, whatever becomes of their request.

        Raises: ForeignBlock, LocalMisuse for a kind that isn't the caller's to set.
        """
        self.block_pool.hold(self._blocks(block_ids), _for_callers(kind))
        self._changed()

    def end_hold(self, block_ids: Iterable[int], kind: HoldKind) -> None:
        """End such holds; blocks that nobody holds any more are free, the first to go first.

        Raises: ForeignBlock, DoubleFree, LocalMisuse; nothing has changed then.
        """
        self.block_pool.end_hold(self._blocks(block_ids), _for_callers(kind))
        self._changed()

    def change_hold(self, block_ids: Iterable[int], kind: HoldKind, new_kind: HoldKind) -> None:
        """Turn holds of one kind into another, for example a pull's into a quarantine.

        Raises: ForeignBlock, DoubleFree, LocalMisuse; nothing has changed then.
        """
        blocks = self._blocks(block_ids)
        self.block_pool.change_hold(blocks, _for_callers(kind), _for_callers(new_kind))
        self._changed()

    def ledger(self) -> Ledger:
        """Every non-null block once, under its strongest hold (I7)."""
        return self.block_pool.ledger()

    # -- what can be seen ----------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 .. 1. Free blocks with content count as free."""
        return self.block_pool.get_usage()

    def get_blocks(self, request_id: RequestId) -> KVCacheBlocks:
        """The request's block tables; empty if it owns none."""
        tables = [m.req_to_blocks.get(request_id, ()) for m in self.coordinator.managers]
        return KVCacheBlocks(tuple(tuple(table) for table in tables))

    def get_block_ids(self, request_id: RequestId) -> tuple[list[BlockId], ...]:
        """The ids of `get_blocks`."""
        return self.get_blocks(request_id).get_block_ids()

    def is_settled(self, block_id: int) -> bool:
        """True if a block's key names content whose writing step is over (T1).

        A block without a key is never settled: it can still be written. Raises: ForeignBlock.
        """
        (block,) = self._blocks([block_id])
        return self.block_pool.is_settled(block)

    def take_events(self) -> list[CacheEvent]:
        """Events since the last call, in order; none unless `KVCacheConfig.enable_events`."""
        return self.block_pool.events.take() if self.block_pool.events is not None else []

    def check(self) -> None:
        """Re-derive everything. Raises: InvariantViolation with every finding. O(pool).

        For a moment at which the scheduler's counts of computed tokens agree with its allocations.
        """
        self._audit()
        if findings := audit_progress(self.coordinator, self.live_requests):
            raise InvariantViolation("; ".join(findings))

    def _audit(self) -> None:
        if findings := audit(self.coordinator, self.live_requests, self._copies_taken):
            raise InvariantViolation("; ".join(findings))

    def _live(self, request: Request) -> LiveRequest | None:
        """The request as one that owns blocks, if it does. Raises: IllegalAllocation."""
        if not isinstance(request, Request):
            raise IllegalAllocation(f"a Request, not {type(request).__name__}")
        live = self.live_requests.get(request.request_id)
        check_request(request, self.config, live)
        return live

    def _blocks(self, block_ids: Iterable[int]) -> Sequence[KVCacheBlock]:
        return self.block_pool.get_blocks(block_ids)


def _for_callers(kind: HoldKind) -> HoldKind:
    if kind is HoldKind.COPY:
        raise LocalMisuse("COPY holds are the manager's own")
    return kind
