"""S20: whatever stands behind the free queue, it behaves like a plain list."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvdist.cache import FreeKVCacheBlockQueue, KVCacheBlock
from kvdist.errors import LocalMisuse
from kvdist.ids import BlockId
from tests.property.effort import effort

#: Enough blocks for the queue to clear away what is dead in its arrays, several times a run.
MANY = 1_500

#: Shares of what there is, in percent: so that large and small moves are equally likely.
shares = st.one_of(st.integers(0, 5), st.integers(0, 100))


class QueueMachine(RuleBasedStateMachine):
    """`inside` is the queue as a list; `outside` are the blocks that are in use."""

    @initialize(size=st.sampled_from([0, 1, 2, 7, 300, MANY]))
    def start(self, size: int) -> None:
        self.inside = [KVCacheBlock(BlockId(i)) for i in range(size)]
        self.outside: list[KVCacheBlock] = []
        self.queue = FreeKVCacheBlockQueue(self.inside)

    def _some_outside(self, share: int, reverse: bool) -> list[KVCacheBlock]:
        count = (len(self.outside) * share + 99) // 100
        blocks, self.outside = self.outside[:count], self.outside[count:]
        return blocks[::-1] if reverse else blocks

    @rule(share=shares)
    def popleft_n(self, share: int) -> None:
        count = len(self.inside) * share // 100
        assert self.queue.popleft_n(count) == self.inside[:count]
        self.outside += self.inside[:count]
        del self.inside[:count]

    @rule()
    @precondition(lambda self: self.inside)
    def popleft(self) -> None:
        block = self.inside.pop(0)
        assert self.queue.popleft() is block
        self.outside.append(block)

    @rule(excess=st.integers(1, 3))
    def too_many(self, excess: int) -> None:
        with pytest.raises(LocalMisuse):
            self.queue.popleft_n(len(self.inside) + excess)
        with pytest.raises(LocalMisuse):
            self.queue.popleft_n(-excess)

    @rule(at=st.integers(0, 1 << 16))
    @precondition(lambda self: self.inside)
    def remove(self, at: int) -> None:
        block = self.inside.pop(at % len(self.inside))
        self.queue.remove(block)
        self.outside.append(block)

    @rule(at=st.integers(0, 1 << 16), share=shares, stride=st.integers(1, 5))
    @precondition(lambda self: self.inside)
    def remove_many(self, at: int, share: int, stride: int) -> None:
        """As a prefix hit does: a run, or every n-th block, from somewhere on."""
        count = len(self.inside) * share // 100
        start = at % len(self.inside)
        gone = self.inside[start::stride][:count]
        if stride % 2:
            self.queue.remove_n(gone)
        else:
            for block in gone:
                self.queue.remove(block)
        leaving = set(gone)
        self.inside = [block for block in self.inside if block not in leaving]
        self.outside += gone

    @rule(at=st.integers(0, 1 << 16))
    @precondition(lambda self: self.outside)
    def remove_what_is_not_there(self, at: int) -> None:
        with pytest.raises(LocalMisuse):
            self.queue.remove(self.outside[at % len(self.outside)])
        with pytest.raises(LocalMisuse):
            self.queue.remove(KVCacheBlock(BlockId(at)))

    @rule(share=shares, reverse=st.booleans())
    def append_n(self, share: int, reverse: bool) -> None:
        blocks = self._some_outside(share, reverse)
        self.queue.append_n(blocks)
        self.inside += blocks

    @rule(share=shares, reverse=st.booleans())
    def prepend_n(self, share: int, reverse: bool) -> None:
        blocks = self._some_outside(share, reverse)
        self.queue.prepend_n(blocks)
        self.inside[:0] = blocks

    @rule()
    @precondition(lambda self: self.outside)
    def append(self) -> None:
        self.inside.append(self.outside.pop())
        self.queue.append(self.inside[-1])

    @invariant()
    def same_as_the_list(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert list(self.queue) == self.inside
        assert self.queue.get_all_free_blocks() == self.inside
        assert len(self.queue) == self.queue.num_free_blocks == len(self.inside)
        assert all(block in self.queue for block in self.inside)
        assert not any(block in self.queue for block in self.outside)


TestQueue = QueueMachine.TestCase
TestQueue.settings = effort(examples=150, steps=60)
