"""The physical blocks: who takes, touches and frees them, and under which keys they are found.

Owns:   every `KVCacheBlock`, the free queue, the hash maps of all groups, holds, and steps.
Knows nothing of: block tables, windows, tokens beyond what events show.
Cost:   O(blocks passed in). A Python step a block is the price to beat: work on many blocks goes
        through slices and C-level dict and list calls.
Source: the document's `BlockPool` (S5, S18-S23).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from kvdist.cache.block import NULL_REF_CNT, KVCacheBlock
from kvdist.cache.events import EventLog
from kvdist.cache.free_queue import FreeKVCacheBlockQueue
from kvdist.cache.hash_index import BlockHashToBlockMap
from kvdist.cache.holds import HoldKind, HoldTable, Ledger, check_kind
from kvdist.cache.numbers import check_number
from kvdist.cache.request import Request
from kvdist.cache.spec import MAX_BLOCKS
from kvdist.cache.steps import Publication, StepLog
from kvdist.errors import ConfigError, DoubleFree, ForeignBlock, LocalMisuse
from kvdist.ids import BlockHash, BlockId, GroupId


class BlockPool:
    """All blocks of one device, made once; `blocks[i].block_id == i` always.

    >>> pool = BlockPool(num_blocks=5, num_groups=1, hash_block_size=4)
    >>> taken = pool.get_new_blocks(2, GroupId(0))
    >>> [block.block_id for block in taken], pool.get_num_free_blocks()
    ([1, 2], 2)
    >>> pool.free_blocks(reversed(taken))
    >>> [block.block_id for block in pool.free_block_queue]
    [2, 1, 3, 4]
    """

    def __init__(
        self,
        num_blocks: int,
        num_groups: int,
        hash_block_size: int,
        *,
        enable_caching: bool = True,
        enable_events: bool = False,
    ) -> None:
        check_number(ConfigError, "num_blocks", num_blocks, 2, MAX_BLOCKS)
        check_number(ConfigError, "num_groups", num_groups, 1)
        check_number(ConfigError, "hash_block_size", hash_block_size, 1)
        self.num_blocks = num_blocks
        self.hash_block_size = hash_block_size
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(BlockId(i)) for i in range(num_blocks)]
        #: Stands for skipped positions; held for ever, never cached (S5).
        self.null_block = self.blocks[0]
        self.null_block.ref_cnt = NULL_REF_CNT
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        self.cached_block_hash_to_block = tuple(BlockHashToBlockMap() for _ in range(num_groups))
        self.holds = HoldTable()
        self.steps = StepLog()
        self.events = EventLog() if enable_events else None
        #: Counts up whenever a key or a free block goes: a lookup made before may be stale.
        self.epoch = 0
        self.num_evicted_blocks = 0
        #: Keys of a block beyond its `block_hash`; only blocks with partial entries have any.
        self.further_keys: dict[KVCacheBlock, list[BlockHash]] = {}
        #: Tokens that `block_hash` names, where it ends inside the block.
        self.tail_tokens: dict[KVCacheBlock, int] = {}

    # -- taking and giving back ----------------------------------------------------------------

    def get_num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Share of the non-null blocks that are held, 0 .. 1."""
        return 1.0 - self.get_num_free_blocks() / (self.num_blocks - 1)

    def get_new_blocks(self, num_blocks: int, group_id: GroupId) -> list[KVCacheBlock]:
        """Take blocks for new content, next to be reused first; their keys are gone (S21).

        Raises: LocalMisuse if fewer are free; nothing has changed then.
        """
        check_number(LocalMisuse, "num_blocks", num_blocks)
        blocks = self.free_block_queue.popleft_n(num_blocks)
        self.epoch += 1
        if self.enable_caching:
            cached = [block for block in blocks if block.block_hash is not None]
            if cached:
                self._forget(cached)
                self.num_evicted_blocks += len(cached)
        step = self.steps.current
        for block in blocks:
            block.ref_cnt = 1
            block.generation += 1
            block.group_id = group_id
            block.step = step
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add one reference to each block; those without any leave the free queue."""
        idle = [block for block in blocks if not block.ref_cnt]
        if idle:
            self.free_block_queue.remove_n(idle)
        for block in blocks:
            block.ref_cnt += 1
        self.null_block.ref_cnt = NULL_REF_CNT

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Give back one reference to each block, in order of reuse: the first goes first (S19).

        Raises: ForeignBlock, DoubleFree; nothing has changed then.
        """
        blocks = list(ordered_blocks)
        self.check_own(blocks)
        for block, ended in Counter(blocks).items():
            held = block.ref_cnt - self.holds.total(block)
            if ended > held:
                raise DoubleFree(f"block {block.block_id} freed {ended} times, {held} are held")
        self.release(blocks)

    def release(self, blocks: Iterable[KVCacheBlock]) -> None:
        """As `free_blocks`, for references that the caller is known to have."""
        first, last = [], []
        for block in blocks:
            if block.ref_cnt > 1:
                block.ref_cnt -= 1
                continue
            block.ref_cnt = 0
            if block.block_hash is None:
                first.append(block)
            else:
                last.append(block)
        self.null_block.ref_cnt = NULL_REF_CNT
        if first:
            self.free_block_queue.prepend_n(first)
        if last:
            self.free_block_queue.append_n(last)

    def release_after(self, step: int, blocks: list[KVCacheBlock]) -> None:
        """As `release`, but not before `step`, the latest that names the blocks, is over (S27)."""
        if not (self.steps and self.steps.defer_free(step, blocks)):
            self.release(blocks)

    # -- holds ---------------------------------------------------------------------------------

    def hold(self, blocks: Sequence[KVCacheBlock], kind: HoldKind) -> None:
        """Hold blocks for another reason than a request's table; null blocks are passed over.

        Raises: ForeignBlock, LocalMisuse for REQUEST; nothing has changed then.
        """
        self.check_own(blocks)
        check_kind(kind)
        blocks = [block for block in blocks if block is not self.null_block]
        for block in blocks:  # one by one: a block may be listed twice
            self.touch((block,))
        self.holds.add(blocks, kind)

    def end_hold(self, ordered_blocks: Sequence[KVCacheBlock], kind: HoldKind) -> None:
        """End one hold of `kind` on each block, in order of reuse.

        Raises: ForeignBlock, DoubleFree; nothing has changed then.
        """
        self.check_own(ordered_blocks)
        check_kind(kind)
        blocks = [block for block in ordered_blocks if block is not self.null_block]
        self.holds.remove(blocks, kind)
        self.release(blocks)

    def change_hold(
        self, blocks: Sequence[KVCacheBlock], kind: HoldKind, new_kind: HoldKind
    ) -> None:
        """Turn one hold of `kind` on each block into one of `new_kind`; no count changes.

        Raises: ForeignBlock, DoubleFree; nothing has changed then.
        """
        self.check_own(blocks)
        check_kind(kind)
        check_kind(new_kind)
        blocks = [block for block in blocks if block is not self.null_block]
        self.holds.remove(blocks, kind)
        self.holds.add(blocks, new_kind)

    def ledger(self) -> Ledger:
        """Every non-null block once, under its strongest hold (I7). O(blocks under such holds)."""
        strongest, free = self.holds.strongest, self.get_num_free_blocks()
        return Ledger(
            quarantine=strongest(HoldKind.QUARANTINE),
            copy=strongest(HoldKind.COPY),
            pull=strongest(HoldKind.PULL),
            lease=strongest(HoldKind.LEASE),
            request=self.num_blocks - 1 - free - len(self.holds),
            free=free,
        )

    # -- publishing ----------------------------------------------------------------------------

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        first_block: int,
        block_size: int,
        group_id: GroupId,
    ) -> None:
        """Make full blocks findable; `blocks[i]` is block `first_block + i` of the request.

        A block whose key ends inside it loses that key: the longer prefix takes its place.
        """
        hashes = self._hashes(request, first_block, first_block + len(blocks), block_size)
        if self.tail_tokens and (tails := [b for b in blocks if b.block_hash is not None]):
            self._forget(tails)
        step = self.steps.current
        for block, key in zip(blocks, hashes, strict=True):
            block.block_hash = key
            block.step = step
        index = self.cached_block_hash_to_block[group_id]
        if self.events is None:
            index.insert_n(hashes, blocks)
        else:
            new = [index.insert(key, block) for key, block in zip(hashes, blocks, strict=True)]
            self._announce(request, new, first_block, block_size, group_id)
        if self.steps:
            record = Publication(request, group_id, first_block, list(blocks))
            self.steps.published(record)

    def cache_partial_block(
        self,
        request: Request,
        block: KVCacheBlock,
        num_tokens: int,
        block_size: int,
        group_id: GroupId,
    ) -> BlockHash:
        """Make `block` findable under the prefix of `num_tokens`, which ends inside it (S10).

        A shorter key of the block goes, a longer one stays beside the new one. Returns the key.
        """
        key = request.block_hashes[num_tokens // self.hash_block_size - 1]
        index = self.cached_block_hash_to_block[group_id]
        if index.contains(key, block):
            return key
        first_block = (num_tokens - 1) // block_size
        if block.block_hash is not None and self.tail_tokens.get(block, num_tokens) < num_tokens:
            self._forget((block,))
        if block.block_hash is None:
            block.block_hash = key
            if num_tokens % block_size:
                self.tail_tokens[block] = num_tokens
        else:
            self.further_keys.setdefault(block, []).append(key)
        block.step = self.steps.current
        new = index.insert(key, block)
        if self.events is not None and new:
            self._announce_tail(request, key, num_tokens, block_size, group_id)
        self.steps.published(Publication(request, group_id, first_block, [block]))
        return key

    def move_block_hashes(self, source: KVCacheBlock, target: KVCacheBlock) -> None:
        """Give all keys of `source` to `target`, a private copy that has none.

        For a request that goes on writing into its own published block. No event: nothing went.
        """
        index = self.cached_block_hash_to_block[source.group_id]
        keys = self._keys(source)
        for key in keys:
            index.pop(key, source)
            index.insert(key, target)
        target.block_hash, source.block_hash = source.block_hash, None
        target.group_id = source.group_id
        target.step = self.steps.current
        for table in (self.further_keys, self.tail_tokens):
            if source in table:
                table[target] = table.pop(source)  # type: ignore[assignment]
        self.epoch += 1
        # Nothing of a request's own table is published by this: there is none to roll back.
        self.steps.published(Publication(None, target.group_id, 0, [target]))

    def withdraw(self, step: int) -> list[Publication]:
        """Take back what `step` and later steps published (T1); returns what that was."""
        withdrawn = self.steps.withdraw(step)
        for publication in withdrawn:
            self._forget(
                [b for b in publication.blocks if b.block_hash is not None and b.step >= step]
            )
        return withdrawn

    def is_settled(self, block: KVCacheBlock) -> bool:
        """True if the block has a key, and the step that writes what it names is over (T1)."""
        return block.block_hash is not None and (block.step <= self.steps.settled or not self.steps)

    # -- eviction ------------------------------------------------------------------------------

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop all keys of these blocks; blocks in use stay in use, free ones keep their place.

        Raises: ForeignBlock for an id out of range; nothing has changed then.
        """
        blocks = dict.fromkeys(self.get_blocks(block_ids))
        self._forget([block for block in blocks if block.block_hash is not None])

    def reset_prefix_cache(self) -> bool:
        """Drop all keys. False, and nothing has changed, while any block is held (S23)."""
        if self.get_num_free_blocks() != self.num_blocks - 1:
            return False
        for index in self.cached_block_hash_to_block:
            for _, block in index:
                block.block_hash = None
            index.clear()
        self.further_keys.clear()
        self.tail_tokens.clear()
        self.epoch += 1
        if self.events is not None:
            self.events.cleared()
        return True

    def cached_blocks(self) -> Iterable[tuple[GroupId, BlockHash, KVCacheBlock]]:
        """All keys that can be found now, with their blocks; for auditors and late listeners."""
        for i, index in enumerate(self.cached_block_hash_to_block):
            for key, block in index:
                yield GroupId(i), key, block

    def get_blocks(self, block_ids: Iterable[int]) -> list[KVCacheBlock]:
        """The blocks with these ids. Raises: ForeignBlock for an id out of range."""
        if not isinstance(block_ids, Iterable) or isinstance(block_ids, str | bytes):
            raise ForeignBlock(f"block ids are several numbers, not {block_ids!r}")
        ids = list(block_ids)
        for block_id in ids:
            if type(block_id) is not int or not 0 <= block_id < self.num_blocks:
                raise ForeignBlock(f"no block {block_id!r} in a pool of {self.num_blocks}")
        return [self.blocks[i] for i in ids]

    def check_own(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Raises: ForeignBlock if one of `blocks` is not of this pool."""
        for block in blocks:
            if (
                not isinstance(block, KVCacheBlock)
                or not 0 <= block.block_id < self.num_blocks
                or self.blocks[block.block_id] is not block
            ):
                raise ForeignBlock(f"{block!r} is not of this pool")

    def _keys(self, block: KVCacheBlock) -> list[BlockHash]:
        first = [block.block_hash] if block.block_hash is not None else []
        return first + self.further_keys.get(block, [])

    def _forget(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Drop all keys of blocks that have some (S21: first the maps, then the metadata)."""
        self.epoch += 1
        maps, plain = self.cached_block_hash_to_block, not self.further_keys
        for block in blocks:
            index = maps[block.group_id]
            if plain and self.events is None:
                index.pop(block.block_hash, block)  # type: ignore[arg-type]
            else:
                gone = [key for key in self._keys(block) if index.pop(key, block)]
                self.further_keys.pop(block, None)
                if gone and self.events is not None:
                    self.events.removed(block.group_id, gone)
            block.block_hash = None
        if self.tail_tokens:
            for block in blocks:
                self.tail_tokens.pop(block, None)

    def _hashes(
        self, request: Request, start: int, end: int, block_size: int
    ) -> Sequence[BlockHash]:
        """Keys of the blocks [start, end): a chain over small blocks serves their multiples."""
        scale = block_size // self.hash_block_size
        if scale == 1:
            return request.block_hashes[start:end]
        return request.block_hashes[(start + 1) * scale - 1 : end * scale : scale]

    def _announce_tail(
        self, request: Request, key: BlockHash, num_tokens: int, block_size: int, group_id: GroupId
    ) -> None:
        """Say that a prefix became findable which ends inside a block, or at a state's end."""
        assert self.events is not None
        start = (num_tokens - 1) // block_size * block_size
        keys = request.extra_keys
        own = (keys.of_request() if start == 0 else []) + keys.of_block(start, num_tokens)
        self.events.stored(
            group_id,
            [key],
            request.block_hashes[start // self.hash_block_size - 1] if start else None,
            request.all_token_ids[start:num_tokens],
            num_tokens - start,
            keys.lora.name if keys.lora else None,
            [tuple(own) or None],
        )

    def _announce(
        self,
        request: Request,
        new: Sequence[bool],
        first_block: int,
        block_size: int,
        group_id: GroupId,
    ) -> None:
        """Say which of consecutive blocks became findable, a run of them at a time."""
        assert self.events is not None
        index = 0
        while index < len(new):
            end = index
            while end < len(new) and new[end]:
                end += 1
            if end > index:
                start, stop = first_block + index, first_block + end
                parent = self._hashes(request, start - 1, start, block_size) if start else [None]
                keys = request.extra_keys
                own = [
                    keys.of_block(i * block_size, (i + 1) * block_size) for i in range(start, stop)
                ]
                if start == 0:
                    own[0] = keys.of_request() + own[0]
                self.events.stored(
                    group_id,
                    self._hashes(request, start, stop, block_size),
                    parent[0],
                    request.all_token_ids[start * block_size : stop * block_size],
                    block_size,
                    keys.lora.name if keys.lora else None,
                    [tuple(keys_of_block) or None for keys_of_block in own],
                )
            index = end + 1
