"""The region of all blocks: every byte is one layer's of a group, and a block is one span."""

import pytest
import torch

from kvdist.cache import BlockCopy
from kvdist.errors import ConfigError
from kvdist.ids import BlockId, GroupId
from kvdist.worker.model import Model
from kvdist.worker.pool import KVPool
from tests.worker.tiny import network

CPU = torch.device("cpu")


def a_pool(family: str, num_blocks: int = 6) -> KVPool:
    return KVPool(Model.of(network(family)).layout(4), num_blocks, CPU)


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite-hybrid"])
def test_layers_of_a_group_share_no_byte_and_leave_none_out(family: str) -> None:
    pool = a_pool(family)
    for group in pool.layout.kv_cache_groups:
        pool.region.zero_()
        page = pool.layout.page_size_bytes
        for name in group.layer_names:
            pool.states(name, torch.uint8, (page,)).add_(1)
        used = len(group.layer_names) * page
        assert (pool.region.sum(1) == used).all() and pool.region.max() == 1


def test_a_block_is_one_span_of_lines() -> None:
    pool, width, lines = a_pool("llama"), 2 * 16, 2
    elements = pool.elements("layers.1.attention", torch.float32)
    stride = pool.block_stride(torch.float32)
    elements.view(-1, 4 * width)[
        3 * (stride // (4 * width)) : 3 * (stride // (4 * width)) + lines
    ] = 1
    page = pool.layout.page_size_bytes
    ones = torch.zeros(pool.num_blocks, pool.layout.bytes_per_block // 4)
    ones[3, page // 4 : 2 * page // 4] = 1
    assert torch.equal(pool.region.view(torch.float32), ones)


def test_copies_in_order() -> None:
    pool = a_pool("llama")
    pool.region[1], pool.region[2] = 1, 2
    group = GroupId(0)
    pool.copy([BlockCopy(BlockId(1), BlockId(3), group), BlockCopy(BlockId(3), BlockId(4), group)])
    assert pool.region[:, 0].tolist() == [0, 1, 2, 1, 1, 0]


def test_cleared_blocks() -> None:
    pool = a_pool("llama")
    pool.region.fill_(7)
    pool.clear([BlockId(2), BlockId(5)])
    pool.clear([])
    assert pool.region.sum(1).eq(0).tolist() == [False, False, True, False, False, True]


def test_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match="use fewer blocks"):
        a_pool("llama", 1 << 45)
