"""Bugs on purpose, and for each the tests that have to notice.

A catcher is a test file (or a test in one), or `oracle NAMES`: recorded traces, by the beginnings
of their names.
"""

from typing import NamedTuple

POOL = "kvdist/cache/block_pool.py"
MANAGER = "kvdist/cache/manager.py"
COORDINATOR = "kvdist/cache/coordinator.py"
STEPS = "kvdist/cache/steps.py"
KEYS = "kvdist/cache/extra_keys.py"
QUEUE = "kvdist/cache/free_queue.py"
INDEX = "kvdist/cache/hash_index.py"
BASE = "kvdist/cache/managers/base.py"
MAMBA = "kvdist/cache/managers/mamba.py"
SLIDING = "kvdist/cache/managers/sliding_window.py"
CHUNKED = "kvdist/cache/managers/chunked_local.py"
FULL = "kvdist/cache/managers/full_attention.py"
LIVE = "kvdist/cache/live_request.py"

POOL_TEST = "tests/property/test_block_pool.py"
QUEUE_TEST = "tests/property/test_free_queue.py"
ONE = "tests/property/test_one_group.py::"
MANY = "tests/property/test_many_groups.py::"


class Mutant(NamedTuple):
    label: str
    file: str
    old: str
    new: str
    catcher: str
    #: Tried in every run, not only when all are asked for.
    always: bool = False


MUTANTS = [
    Mutant(
        "S20: clearing away turns the front round",
        QUEUE,
        "self.prepend_n(front[::-1])",
        "self.prepend_n(front)",
        "tests/unit/test_found_by_others.py",
    ),
    Mutant(
        "T1: keys that move to a copy stay settled",
        POOL,
        "        target.step = self.steps.current\n",
        "",
        "tests/unit/test_found_by_others.py",
    ),
    Mutant(
        "S15: what is expected is published by later steps",
        LIVE,
        "return min(num_tokens, self.unverified_start) if self.unverified_end else num_tokens",
        "return num_tokens",
        "tests/unit/test_found_by_others.py",
    ),
    Mutant(
        "S27: what windows leave is free at once",
        BASE,
        "self.pool.release_after(last_step, freed)",
        "self.pool.release(freed)",
        "tests/unit/test_found_by_others.py",
    ),
    # -- the free queue and freeing ------------------------------------------------------------
    Mutant(
        "S19: unhashed blocks go to the back",
        POOL,
        "self.free_block_queue.prepend_n(first)",
        "self.free_block_queue.append_n(first)",
        "oracle a_walkthrough",
        always=True,
    ),
    Mutant(
        "S19: hashed blocks go to the front",
        POOL,
        "self.free_block_queue.append_n(last)",
        "self.free_block_queue.prepend_n(last)",
        POOL_TEST,
    ),
    Mutant(
        "S19: a request's head is given back first",
        BASE,
        "        blocks.reverse()\n",
        "",
        "oracle a_walkthrough",
    ),
    Mutant(
        "S20: what is put in front comes out in reverse",
        QUEUE,
        "        self._front += reversed(blocks)\n",
        "        self._front += blocks\n",
        QUEUE_TEST,
    ),
    Mutant(
        "S20: the dead are never cleared away when the head moves on",
        QUEUE,
        "            del self._back[: self._head]\n            self._head = 0\n",
        "            del self._back[: self._head - 1]\n            self._head = 0\n",
        QUEUE_TEST,
    ),
    Mutant(
        "S21: the key of a block that is taken stays in the map",
        INDEX,
        "            del self.oldest[key]\n            return True",
        "            return True",
        "oracle b_full-1",
        always=True,
    ),
    Mutant(
        "S21: a block that is taken keeps its keys",
        POOL,
        "                self._forget(cached)\n",
        "",
        POOL_TEST,
    ),
    Mutant(
        "S22: the newest copy is found, not the oldest",
        INDEX,
        "self.oldest[key], _ = copies.popitem(last=False)",
        "self.oldest[key], _ = copies.popitem(last=True)",
        "tests/mutation/checks.py::test_the_oldest_copy_is_found_and_then_the_next",
        always=True,
    ),
    Mutant(
        "S23: reset although blocks are in use",
        POOL,
        "if self.get_num_free_blocks() != self.num_blocks - 1:",
        "if self.get_num_free_blocks() < 1:",
        "oracle m_evict",
    ),
    Mutant(
        "generations are not counted",
        POOL,
        "            block.generation += 1\n",
        "            block.generation = 1\n",
        POOL_TEST,
    ),
    Mutant(
        "a double free goes unnoticed",
        POOL,
        "            if ended > held:",
        "            if ended > held + 1:",
        POOL_TEST,
    ),
    Mutant(
        "a table's references may be freed while a lease is all there is",
        POOL,
        "held = block.ref_cnt - self.holds.total(block)",
        "held = block.ref_cnt",
        POOL_TEST,
    ),
    Mutant(
        "I7: a lease counts more than a pull",
        "kvdist/cache/holds.py",
        "sum(max(kinds) is kind",
        "sum(min(kinds) is kind",
        POOL_TEST,
        always=True,
    ),
    # -- hashes --------------------------------------------------------------------------------
    Mutant(
        "S6: the salt is not part of the key",
        KEYS,
        'keys.append(("cache_salt", self.cache_salt))',
        "pass",
        "oracle l_keys",
    ),
    Mutant(
        "S6: the adapter's path is not part of the key",
        KEYS,
        '("lora", self.lora.name, self.lora.path)',
        '("lora", self.lora.name)',
        "oracle l_lora",
    ),
    Mutant(
        "S6: where one part of a key ends and the next begins is not in it",
        KEYS,
        '            yield struct.pack("<I", len(text)) + text\n',
        "            yield text\n",
        "tests/mutation/checks.py::test_parts_of_a_key_keep_their_bounds",
    ),
    Mutant(
        "S6: where an item sits is not part of the key",
        KEYS,
        '("mm", item.identifier, item.offset - start)',
        '("mm", item.identifier)',
        "oracle l_keys",
        always=True,
    ),
    Mutant(
        "S6: one map for all groups",
        POOL,
        "tuple(BlockHashToBlockMap() for _ in range(num_groups))",
        "(BlockHashToBlockMap(),) * num_groups",
        "oracle f_hybrid-1",
    ),
    # -- lookup --------------------------------------------------------------------------------
    Mutant(
        "S9: the last token is hit too",
        MANAGER,
        "            blocks, num_tokens, junction = self.coordinator.find_longest_cache_hit(\n"
        "                request.block_hashes, request.num_tokens - 1\n",
        "            blocks, num_tokens, junction = self.coordinator.find_longest_cache_hit(\n"
        "                request.block_hashes, request.num_tokens\n",
        "oracle d_full_hits",
        always=True,
    ),
    Mutant(
        "S29: groups of one spec needn't all have the block",
        COORDINATOR,
        "indexes = [manager.index for manager in self.managers]",
        "indexes = [self.managers[0].index for manager in self.managers]",
        MANY + "TestFullAndSliding",
    ),
    Mutant(
        "5.4: an eagle group keeps the last matched block",
        FULL,
        "if drop_eagle_block and length:",
        "if False:",
        "oracle k_eagle-2",
        always=True,
    ),
    Mutant(
        "5.4: a window does not match one more for the drop",
        SLIDING,
        "return cdiv(self.sliding_window - 1, self.block_size) + use_eagle",
        "return cdiv(self.sliding_window - 1, self.block_size)",
        ONE + "TestSliding",
    ),
    Mutant(
        "a window is hit one token short",
        SLIDING,
        "return cdiv(self.sliding_window - 1, self.block_size) + use_eagle",
        "return cdiv(self.sliding_window - 2, self.block_size) + use_eagle",
        ONE + "TestSliding",
    ),
    Mutant(
        "a stale hit is taken",
        MANAGER,
        "            if again[:2] != (hit.blocks.blocks, hit.num_tokens):",
        "            if again[:2] == (hit.blocks.blocks, -1):",
        ONE + "TestFull",
    ),
    # -- windows, chunks, states ---------------------------------------------------------------
    Mutant(
        "a window gives back one token too many",
        SLIDING,
        "return max(0, num_computed_tokens - self.sliding_window + 1)",
        "return max(0, num_computed_tokens - self.sliding_window + 2)",
        "oracle e_sliding-3",
        always=True,
    ),
    Mutant(
        "a chunk begins one token early",
        CHUNKED,
        "return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size",
        "return (num_computed_tokens + 1) // self.attention_chunk_size * self.attention_chunk_size",
        ONE + "TestChunked",
    ),
    Mutant(
        "scratch states move up in reverse",
        MAMBA,
        "            for i in range(num_before - self.num_speculative_blocks, "
        "min(num_before, new_state)):\n",
        "            for i in reversed(range(num_before - self.num_speculative_blocks, "
        "min(num_before, new_state))):\n",
        "oracle g_mamba-",
    ),
    Mutant(
        "5.10: a state of this very step is hit",
        MAMBA,
        "        if hit_blocks and hit_blocks[-1].block_hash in self.cached_this_step:",
        "        if False:",
        MANY + "TestFullAndMamba",
    ),
    Mutant(
        "an old state is kept",
        MAMBA,
        "            self._give_back(table, range(end - 1, first - 1, -1), last_step)\n",
        "            self._give_back(table, range(end - 2, first - 1, -1), last_step)\n",
        ONE + "TestMambaAlign",
    ),
    # -- allocation ----------------------------------------------------------------------------
    Mutant(
        "S12: idle hits cost nothing",
        BASE,
        "        return num_new + sum(not block.ref_cnt for block in kept)",
        "        return num_new",
        "oracle c_evictable",
        always=True,
    ),
    Mutant(
        "S13: steps in flight are not counted",
        MANAGER,
        "num_processed = max(0, space.total - request.num_in_flight_tokens)",
        "num_processed = max(0, space.total)",
        ONE + "TestSliding",
    ),
    Mutant(
        "S14: a group takes before the next one touches",
        COORDINATOR,
        "            manager.add_local_computed_blocks(space, blocks)\n"
        "        if space.total > space.local:\n"
        "            for manager in self.managers:\n"
        "                manager.allocate_external_computed_blocks(space)\n",
        "            manager.add_local_computed_blocks(space, blocks)\n"
        "            if space.total > space.local:\n"
        "                manager.allocate_external_computed_blocks(space)\n",
        "oracle j_two_phase",
        always=True,
    ),
    Mutant(
        "S15: external blocks are published before their bytes arrive",
        MANAGER,
        "publish=not delay_cache_blocks",
        "publish=True",
        "oracle j_external_script",
    ),
    Mutant(
        "S16: drafts are published",
        MANAGER,
        "num_known = min(space.main, request.num_tokens)",
        "num_known = space.main",
        ONE + "TestFull",
    ),
    Mutant(
        "S16: lookahead slots are published",
        MANAGER,
        "num_known = min(space.main, request.num_tokens)",
        "num_known = min(space.slots, request.num_tokens)",
        "oracle k_eagle",
    ),
    Mutant(
        "S17: the watermark is ignored",
        MANAGER,
        "watermark = self.config.watermark_blocks if apply_watermark else 0",
        "watermark = 0",
        "oracle p_admission-1",
    ),
    Mutant(
        "S17: the reserve is ignored",
        MANAGER,
        "space, hit_blocks, watermark + reserved_blocks)",
        "space, hit_blocks, watermark)",
        "oracle p_admission-1",
    ),
    Mutant(
        "S17: the whole-sequence gate is one block too wide",
        MANAGER,
        "return num_needed + watermark <= self.block_pool.get_num_free_blocks()",
        "return num_needed + watermark <= self.block_pool.get_num_free_blocks() + 1",
        "oracle p_admission",
    ),
    # -- publishing ----------------------------------------------------------------------------
    Mutant(
        "5.5: an unaligned end is published",
        COORDINATOR,
        "        aligned = num_tokens - num_tokens % self.config.scheduler_block_size\n",
        "        aligned = num_tokens\n",
        MANY + "TestBlockSizes",
    ),
    Mutant(
        "5.5: the retained run lies one block too far right",
        SLIDING,
        "(i - shift) % segment >= segment - need",
        "(i - shift) % segment > segment - need",
        "oracle q_retention-2",
    ),
    Mutant(
        "5.5: the replay boundary is one token off",
        COORDINATOR,
        "            return (num_prompt - 1,)\n",
        "            return (num_prompt,)\n",
        "oracle q_retention",
    ),
    # -- quiet bounds --------------------------------------------------------------------------
    Mutant(
        "quiet: one slot too many",
        LIVE,
        "self.num_slots = min([m.num_slots(request.request_id) for m in managers])",
        "self.num_slots = min([m.num_slots(request.request_id) for m in managers]) + 1",
        "oracle b_full-2",
    ),
    Mutant(
        "quiet: the next publication is missed by a token",
        BASE,
        "return (self.num_cached_block.get(request.request_id, 0) + 1) * self.block_size",
        "return (self.num_cached_block.get(request.request_id, 0) + 1) * self.block_size + 1",
        ONE + "TestFull",
    ),
    Mutant(
        "quiet: the next block to give back is missed by a token",
        SLIDING,
        "return (num_skipped + 1) * self.block_size + self.sliding_window - 1",
        "return (num_skipped + 1) * self.block_size + self.sliding_window",
        ONE + "TestSliding",
    ),
    # -- steps ---------------------------------------------------------------------------------
    Mutant(
        "T1: a withdrawn step leaves its keys",
        STEPS,
        "            if open_step.number >= step:\n",
        "            if open_step.number > step:\n",
        ONE + "TestFull",
        always=True,
    ),
    Mutant(
        "S27: what a window leaves is free although an open step reads it",
        BASE,
        "            self.pool.release_after(last_step, freed)\n",
        "            self.pool.release(freed)\n",
        ONE + "TestSliding",
    ),
    Mutant(
        "S15: what is expected from elsewhere is published with what was computed",
        LIVE,
        "return min(num_tokens, self.unverified_start) if self.unverified_end else num_tokens",
        "return num_tokens",
        "tests/mutation/checks.py::test_what_is_expected_is_not_published",
    ),
    Mutant(
        "T1: what was withdrawn is never published again",
        MANAGER,
        "                manager.roll_back_publication("
        "request.request_id, publication.first_block)\n",
        "                pass\n",
        ONE + "TestFull",
    ),
    Mutant(
        "S27: blocks that an open step names are freed at once",
        STEPS,
        "                open_step.freed.append(blocks)\n                return True",
        "                return False",
        ONE + "TestFull",
        always=True,
    ),
    Mutant(
        "S27: a deferred free waits for one step too few",
        MANAGER,
        "        live.step = self.block_pool.steps.current\n        if publish:",
        "        live.step = live.step or self.block_pool.steps.current\n        if publish:",
        ONE + "TestFull",
    ),
    # -- hits inside a block -------------------------------------------------------------------
    Mutant(
        "S10: the target of a copy is not pinned",
        BASE,
        "        self.pool.hold((copy,), HoldKind.COPY)\n",
        "        self.pool.holds.add((copy,), HoldKind.COPY)\n",
        "oracle o_partial_script",
    ),
    Mutant(
        "S10: the private copy is not counted",
        BASE,
        "            num_new += 1  # the private copy\n",
        "            pass\n",
        "tests/mutation/checks.py::test_a_hit_inside_a_block_needs_a_copy_for_each_group",
    ),
    # -- events --------------------------------------------------------------------------------
    Mutant(
        "events: removed is said of the first copy that goes",
        POOL,
        "gone = [key for key in self._keys(block) if index.pop(key, block)]",
        "gone = [key for key in self._keys(block) if index.pop(key, block) or True]",
        POOL_TEST,
    ),
    Mutant(
        "events: stored is said of every copy",
        POOL,
        "            self._announce(request, new, first_block, block_size, group_id)",
        "            self._announce(request, [True] * len(new), first_block, block_size, group_id)",
        POOL_TEST,
    ),
    Mutant(
        "events: a number is skipped",
        "kvdist/cache/events.py",
        "        self.next_seq += 1\n        return self.next_seq - 1",
        "        self.next_seq += 1 + (self.next_seq == 7)\n        return self.next_seq - 1",
        POOL_TEST,
    ),
]
