"""Random work on one node: every sequence ends, with perfect tokens, and all blocks are free."""

from typing import Any

from hypothesis import strategies as st

from kvdist.cache import KVCacheSpec
from tests.make import chunked, cross, full, mamba, window
from tests.property.effort import effort
from tests.property.scheduling import SchedulingMachine


def pools(
    groups: list[list[KVCacheSpec]], least: int, most: int, **more: Any
) -> st.SearchStrategy[tuple[list[KVCacheSpec], int, dict[str, Any]]]:
    return st.tuples(
        st.sampled_from(groups),
        st.integers(least, most),
        st.fixed_dictionaries({name: st.sampled_from(values) for name, values in more.items()}),
    )


class OneGroup(SchedulingMachine):
    pools = pools([[full()]], 6, 18, enable_caching=[True, True, False], watermark=[0.0, 0.1])


class Drafts(SchedulingMachine):
    pools = pools([[full()], [full(), mamba(scratch=2)], [full(), window(6)]], 10, 24)
    num_lookahead = st.integers(1, 3)


class ManyGroups(SchedulingMachine):
    pools = pools(
        [
            [full(), window(5)],
            [full(), mamba()],
            [full(), chunked(8)],
            [full(), chunked(6), window(5)],
            [full(), mamba(), window(6), chunked(8)],
            [window(7)],
            [mamba()],
        ],
        9,
        30,
    )


class UnlikeBlocks(SchedulingMachine):
    pools = pools(
        [[full(4), mamba(8)], [full(4), window(5, 8)], [full(8), window(5, 4), mamba(8)]],
        12,
        30,
        enable_partial_hits=[False, True],
    )


class Uncached(SchedulingMachine):
    pools = pools(
        [
            [full(), cross()],
            [window(5), cross(), mamba()],
            [full(), mamba(40, mode="none")],
            [full(), mamba(4, mode="none")],
        ],
        10,
        24,
        enable_caching=[False],
    )


TestOneGroup = OneGroup.TestCase
TestOneGroup.settings = effort(100, 50)
TestDrafts = Drafts.TestCase
TestDrafts.settings = effort(100, 50)
TestManyGroups = ManyGroups.TestCase
TestManyGroups.settings = effort(100, 50)
TestUnlikeBlocks = UnlikeBlocks.TestCase
TestUnlikeBlocks.settings = effort(100, 50)
TestUncached = Uncached.TestCase
TestUncached.settings = effort(60, 40)
