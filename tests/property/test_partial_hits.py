"""Hits that end inside a block (S10): never a wrong token, never a block too few or too many."""

from kvdist.cache import Request
from tests.model.naive_groups import ceil
from tests.model.naive_manager import Need
from tests.property.effort import effort
from tests.property.machine import ManagerMachine
from tests.property.test_many_groups import full, several, state, window


class PartialHits(ManagerMachine):
    """Which blocks are used is left to the recorded traces; here content and capacity count."""

    exact = False
    configs = several(
        [
            [full(2), state(4)],
            [full(8), state(8, 1)],
            [full(4), state(8), state(8)],
            [full(8), window(5, 2), state(4, 1)],
            [full(4), full(2), state(4)],
        ],
        eagle=True,
        retention=True,
        enable_partial_hits=True,
        hash_block_size=2,
        most_blocks=20,
    )

    def check_capacity(self, request: Request, need: Need, free: int, fitted: bool) -> None:
        """5.6, 5.9: new blocks, idle hits, one copy for each group whose hit ends inside a block.

        A running state that has published the prompt's tail takes one more, which isn't to be seen
        from outside: there the need is known to within that block.
        """
        if need.external:
            return
        begin = request.num_computed_tokens + need.hit.tokens
        main, slots = begin + need.new, min(begin + need.new + need.lookahead, 40)
        least = most = int(self.config.watermark * self.config.num_blocks) * need.watermark
        running = bool(request.num_computed_tokens)
        tables = self.tables(request) if running else [[] for _ in self.groups]
        for group, table in zip(self.groups, self.tables_before or tables, strict=True):
            hit = need.hit.blocks[group.index]
            dead = 0 if group.is_state else group.dead_blocks(begin)
            idle = sum(1 for block in hit[dead:] if block and block in self.idle_before)
            copies = int(bool(hit) and need.hit.tokens % group.size > 0)
            have = max(len(table), len(hit), 0 if running else dead)
            if group.is_state:
                want = max(0, ceil(main, group.size) + group.scratch - have) + copies
                want = min(want, 1 + copies + (0 if running else group.scratch))
                most += int(running)
            else:
                want = max(0, ceil(slots, group.size) - have) + copies
            least += want + idle
            most += want + idle
        if fitted:
            used = free - self.pool.get_num_free_blocks()
            assert least <= used + self.kept_free(need) <= most, (least, used, most)
            assert used + need.reserved + self.kept_free(need) <= free
        elif not need.full_sequence and not self.refused_for_a_fresh_state(need):
            assert most > free - need.reserved

    def kept_free(self, need: Need) -> int:
        return int(self.config.watermark * self.config.num_blocks) * need.watermark

    def refused_for_a_fresh_state(self, need: Need) -> bool:
        """A state may be published in this very step: then the hit is refused (5.10)."""
        return need.hit.tokens > 0


TestPartialHits = PartialHits.TestCase
TestPartialHits.settings = effort(examples=200, steps=60)
