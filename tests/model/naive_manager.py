"""The block manager as the rules tell it (S9-S19, S29), O(everything) and without a single hash.

Owns:   tables of block numbers, and a `NaivePool`.
Knows nothing of: hits that end inside a block (S10); those are checked by content alone.
"""

from dataclasses import dataclass, field

from kvdist.cache import KVCacheConfig, Request
from tests.model.content import Content, content
from tests.model.naive_groups import Group, ceil
from tests.model.naive_pool import NaivePool

NULL = 0
Table = list[int]


@dataclass
class Hit:
    tokens: int = 0
    blocks: list[Table] = field(default_factory=list)


@dataclass
class Need:
    """Arguments of one allocation."""

    new: int
    hit: Hit
    lookahead: int = 0
    external: int = 0
    delay: bool = False
    encoder: int = 0
    full_sequence: bool = False
    reserved: int = 0
    watermark: bool = False


class NaiveManager:
    def __init__(self, config: KVCacheConfig) -> None:
        self.config = config
        self.pool = NaivePool(config.num_blocks, config.enable_caching)
        self.groups = [Group(config, i) for i in range(len(config.kv_cache_groups))]
        self.tables: dict[str, list[Table]] = {}
        #: Blocks of each table that have been published or passed over.
        self.published: dict[str, list[int]] = {}
        #: The latest step that names a request's blocks.
        self.step_of: dict[str, int] = {}
        #: (step, blocks): freed when the step is over.
        self.deferred: list[tuple[int, list[int]]] = []
        #: States that the step being planned computes.
        self.fresh: list[tuple[int, Content]] = []
        #: (step, request, group, first block) of publications of open steps.
        self.publications: list[tuple[int, str, int, int]] = []

    # -- lookup --------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Hit:
        """The longest prefix at whose end every group can resume (S9, S29)."""
        if self.config.enable_caching and not request.skip_reading_prefix_cache:
            for tokens in range(request.num_tokens - 1, 0, -1):
                if self.can_resume(request, tokens):
                    return self.hit_at(request, tokens)
        return Hit(0, [[] for _ in self.groups])

    def can_resume(self, request: Request, tokens: int) -> bool:
        return tokens % self.config.scheduler_block_size == 0 and all(
            self._can_resume(group, request, tokens) for group in self.groups
        )

    def hit_at(self, request: Request, tokens: int) -> Hit:
        return Hit(tokens, [self._blocks(group, request, tokens) for group in self.groups])

    def _can_resume(self, group: Group, request: Request, tokens: int) -> bool:
        last = request.num_tokens - (1 if len(self.groups) == 1 else 0)
        return all(
            (i + 1) * group.size <= last and self._find(group, request, i) is not None
            for i in group.needed_for(tokens)
        )

    def _find(self, group: Group, request: Request, block: int) -> int | None:
        return self.pool.lookup(group.index, content(request, (block + 1) * group.size))

    def _blocks(self, group: Group, request: Request, tokens: int) -> Table:
        needed = group.needed_for(tokens)
        return [
            (self._find(group, request, i) or NULL) if i in needed else NULL
            for i in range(tokens // group.size)
        ]

    # -- allocation ----------------------------------------------------------------------------

    def allocate(self, request: Request, need: Need) -> list[Table] | None:
        """The table entries appended for new and lookahead tokens, or None."""
        name = request.request_id
        longest = self.config.max_model_len
        total = min(request.num_computed_tokens + need.hit.tokens + need.external, longest)
        main = total + need.new
        slots = min(main + need.lookahead, longest)
        watermark = int(self.config.watermark * self.config.num_blocks) if need.watermark else 0
        if need.full_sequence and not self._fits_whole(request, need, total, watermark):
            return None
        self.trim(request, max(0, total - request.num_in_flight_tokens))
        plan = [self._to_take(g, name, need, total, main, slots) for g in self.groups]
        counted = sum(self._counted(g, name, need, total, main, slots) for g in self.groups)
        taken = sum(external + new for external, new in plan) + sum(
            self._idle(self._kept(group, need, total)) for group in self.groups
        )
        if counted + watermark > len(self.pool.queue) - need.reserved:
            return None
        if taken > len(self.pool.queue) or self._hits_fresh_state(request, need):
            return None
        running = name in self.tables
        tables = self.tables.setdefault(name, [[] for _ in self.groups])
        if need.hit.tokens or need.external:
            for group, table in zip(self.groups, tables, strict=True):
                kept = self._kept(group, need, total)
                self.pool.touch(kept)
                table += [NULL] * self._dead(group, total) + kept
            self.published[name] = [len(table) for table in tables]
            for (external, _), table in zip(plan, tables, strict=True):
                table += self.pool.take(external)
        before = [len(table) for table in tables]
        for group, (_, new), table in zip(self.groups, plan, tables, strict=True):
            if group.is_aligned_state:
                self._move_state_on(group, table, main, new, running)
            else:
                table += self.pool.take(new)
        self.step_of[name] = self.pool.step
        if not need.delay:
            self.publish(request, min(main, request.num_tokens))
        return [table[n:] for table, n in zip(tables, before, strict=True)]

    def _dead(self, group: Group, total: int) -> int:
        return 0 if group.is_cross else group.dead_blocks(total)

    def _kept(self, group: Group, need: Need, total: int) -> Table:
        return need.hit.blocks[group.index][self._dead(group, total) :]

    def _idle(self, blocks: Table) -> int:
        return sum(1 for block in blocks if block != NULL and not self.pool.refs[block])

    def _counted(
        self, group: Group, name: str, need: Need, total: int, main: int, slots: int
    ) -> int:
        """Blocks that an allocation is said to need; for states with external tokens as vLLM says.

        It leaves out the block of the state that is loaded, and counts a hit that is not kept.
        """
        if not group.is_aligned_state:
            return sum(self._to_take(group, name, need, total, main, slots)) + self._idle(
                self._kept(group, need, total)
            )
        hit, table = need.hit.blocks[group.index], self.tables.get(name)
        have = len(hit) + (len(table[group.index]) if table else 0)
        most = 1 + (0 if table else group.scratch)
        want = ceil(main, group.size) + group.scratch
        return min(max(0, want - have), most) + self._idle(hit)

    def _to_take(
        self, group: Group, name: str, need: Need, total: int, main: int, slots: int
    ) -> tuple[int, int]:
        """How many blocks external, and how many new and lookahead tokens take."""
        if name in self.tables:
            have = len(self.tables[name][group.index])
        else:
            have = max(self._dead(group, total), len(need.hit.blocks[group.index]))
        if group.is_cross:
            return 0, max(0, ceil(need.encoder, group.size) - have)
        external = 0
        if need.external and group.first_read(total) < total:
            external = max(0, ceil(total, group.size) - have)
        if group.is_aligned_state:
            want = ceil(main, group.size) + group.scratch
            running = name in self.tables
            most = 1 + (0 if running else group.scratch)
            return external, min(max(0, want - have - external), most)
        want = ceil(slots + group.scratch * group.size, group.size)
        return external, max(0, want - have - external)

    def _move_state_on(
        self, group: Group, table: Table, main: int, new: int, running: bool
    ) -> None:
        """5.9: null where no state is kept; scratch blocks left of the new state move up."""
        state = ceil(main, group.size) - 1
        if state + 1 + group.scratch <= len(table):
            return
        scratch = range(len(table) - group.scratch, len(table)) if running else range(0)
        moving = [i for i in scratch if table[i] != NULL and i < state]
        table += [NULL] * (state - len(table))
        for i in moving:
            table.append(table[i])
            table[i] = NULL
        table += self.pool.take(new)

    def _hits_fresh_state(self, request: Request, need: Need) -> bool:
        """A state that this very step computes can't be resumed from yet."""
        return need.hit.tokens > 0 and any(
            group.is_state and (group.index, content(request, need.hit.tokens)) in self.fresh
            for group in self.groups
        )

    def _fits_whole(self, request: Request, need: Need, total: int, watermark: int) -> bool:
        """Would all known tokens fit? Windows and chunks recycle what they have left."""
        whole, wanted = min(request.num_tokens, self.config.max_model_len), watermark
        for group in self.groups:
            taken = self._counted(group, request.request_id, need, total, whole, whole)
            most = self._most_at_a_time(group)
            if most is not None:
                new = taken - self._idle(self._kept(group, need, total))
                taken -= new - max(0, new - max(0, ceil(whole, group.size) - most))
            wanted += taken
        return wanted <= len(self.pool.queue)

    def _most_at_a_time(self, group: Group) -> int | None:
        flight, longest = self.config.max_in_flight_tokens, self.config.max_model_len
        window = getattr(group.spec, "sliding_window", None)
        chunk = getattr(group.spec, "attention_chunk_size", None)
        if window is not None:
            return ceil(min(window - 1 + flight, longest), group.size) + 1
        return ceil(min(chunk + flight, longest), group.size) if chunk is not None else None

    # -- publishing ----------------------------------------------------------------------------

    def publish(self, request: Request, num_tokens: int) -> None:
        """5.5: whole blocks, up to where all groups have a boundary, if a lookup can use them."""
        if not self.config.enable_caching:
            return
        name = request.request_id
        counts = self.published.setdefault(name, [0] * len(self.groups))
        for group, table in zip(self.groups, self.tables[name], strict=True):
            usable = num_tokens
            if len(self.groups) > 1:
                usable -= num_tokens % self.config.scheduler_block_size
                marked = any(self.groups[i].spec == group.spec for i in self.config.eagle_group_ids)
                if marked and usable:
                    usable = min(num_tokens, usable + group.size)
            for i in range(counts[group.index], usable // group.size):
                if table[i] != NULL and group.is_useful(i, self._boundaries(request)):
                    self._publish_block(request, group, i, table[i])
            counts[group.index] = max(counts[group.index], usable // group.size)
            if group.is_state:
                self._publish_prompt_state(request, group, usable, table)

    def _publish_block(self, request: Request, group: Group, index: int, block: int) -> None:
        key = content(request, (index + 1) * group.size)
        self.pool.publish(group.index, key, block)
        if group.is_state:
            self.fresh.append((group.index, key))
        if self.pool.open_steps:
            name = request.request_id
            self.publications.append((self.pool.step, name, group.index, index))

    def _publish_prompt_state(
        self, request: Request, group: Group, usable: int, table: Table
    ) -> None:
        """5.10: the prompt's reusable end counts as published whenever it is reached."""
        unit = self.config.hash_block_size
        end = (request.num_prompt_tokens - 1) // unit * unit
        if self.config.use_eagle:
            end = request.num_prompt_tokens // unit * unit - unit
        if usable != end or end <= 0 or end % group.size or table[end // group.size - 1] == NULL:
            return
        block, key = table[end // group.size - 1], content(request, end)
        if (group.index, key, block) not in self.pool.entries:
            self._publish_block(request, group, end // group.size - 1, block)
        self.fresh.append((group.index, key))

    def _boundaries(self, request: Request) -> list[int]:
        """Where a resend of the prompt resumes, and where an earlier lookup found a junction."""
        unit, prompt = self.config.scheduler_block_size, request.num_prompt_tokens
        ends = [prompt - 1]
        if self.config.eagle_group_ids:
            ends = [max(0, n // unit * unit - unit) for n in (prompt - 1, prompt)]
        return ends + [request.shared_prefix_boundary] * (request.shared_prefix_boundary > 0)

    # -- giving back ---------------------------------------------------------------------------

    def trim(self, request: Request, processed: int) -> None:
        """S13: what no step after so many processed tokens reads, last block first.

        While the latest step that names the request is open, they stay held (S27).
        """
        for group, table in zip(self.groups, self.tables.get(request.request_id, []), strict=False):
            freed = []
            for i in reversed(range(min(self._dead(group, processed), len(table)))):
                freed.append(table[i])
                table[i] = NULL
            self._give_back(request, freed)

    def _give_back(self, request: Request, blocks: Table) -> None:
        step = self.step_of[request.request_id]
        if step in self.pool.open_steps:
            self.deferred.append((step, blocks))
        else:
            self.pool.free(blocks)

    def free(self, request: Request) -> None:
        """S19, S27: tails first, once the last step that names them is over."""
        name = request.request_id
        for table in self.tables.pop(name, []):
            self._give_back(request, table[::-1])
        self.published.pop(name, None)

    # -- steps ---------------------------------------------------------------------------------

    def start_step(self, step: int | None) -> None:
        self.fresh = []
        if step is not None:
            self.pool.open(step)

    def settle(self) -> None:
        step = self.pool.open_steps[0]
        self.pool.settle()
        for waits_for, blocks in self.deferred:
            if waits_for == step:
                self.pool.free(blocks)
        self.deferred = [entry for entry in self.deferred if entry[0] != step]
        self.publications = [entry for entry in self.publications if entry[0] != step]

    def withdraw(self, step: int) -> None:
        self.pool.withdraw(step)
        for published_in, name, group, block in self.publications:
            if published_in >= step and name in self.published:
                counts = self.published[name]
                counts[group] = min(counts[group], block)
        self.publications = [entry for entry in self.publications if entry[0] < step]
