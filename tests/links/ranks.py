"""Nodes of several ranks in this process, over real links: real bytes, and no model.

Each rank has a worker's links of its own, in a thread and a loop of its own, and memory for its
heads alone. What is in a block is a function of all tokens up to there, of the layer, the head and
the slot; the stub that stands in for a model looks at every byte that it reads.
"""

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, MutableSequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.connector.compat import fingerprint
from kvdist.connector.geometry import Geometry
from kvdist.connector.messages import Fingerprint
from kvdist.connector.settings import Settings
from kvdist.ids import NodeId
from kvdist.links.layout import GroupLayout, Layout
from kvdist.links.memory import HostPool, Memory as LinksMemory
from kvdist.links.worker_thread import WorkerThread
from kvdist.node.in_process import InProcessWorker
from kvdist.node.neighbours import ExchangeSettings, open_worker
from kvdist.node.worker_wire import Capacity
from kvdist.sim.contents import ModelContents
from kvdist.sim.memory import POISON, Memory
from kvdist.sim.stub_worker import StubWorker
from tests.links.pairs import Book, Node, a_process

NUM_LAYERS: Final = 3
_LAYERS: Final = range(NUM_LAYERS)
#: So many that every degree up to 4 shares them, and 8 keep copies.
NUM_HEADS: Final = 4
CELL: Final = 8
VOCABULARY: Final = 1000
MAX_MODEL_LEN: Final = 512


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of one node."""

    num_ranks: int = 1
    block_size: int = 16
    num_heads: int = NUM_HEADS
    #: Bytes of each page that nothing is in.
    padding: int = 0
    weights: str = "synthetic"

    def __str__(self) -> str:
        return f"{self.num_ranks}x{self.block_size}"

    @property
    def num_blocks(self) -> int:
        return 3 * MAX_MODEL_LEN // self.block_size + 10

    @property
    def config(self) -> KVCacheConfig:
        spec = FullAttentionSpec(block_size=self.block_size)
        made = KVCacheConfig.single(spec, num_blocks=self.num_blocks, max_model_len=MAX_MODEL_LEN)
        return Capacity.of(made).config()

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.config, self.num_heads, self.num_ranks)

    def layout(self, rank: int) -> Layout:
        heads = self.geometry.heads_of(rank)
        share = heads[1] - heads[0]
        page = self.block_size * share * CELL + self.padding
        group = GroupLayout(NUM_LAYERS, self.block_size, share, CELL)
        return Layout((group,), heads, page, NUM_LAYERS * page)

    def fingerprint(self, hash_algorithm: str) -> Fingerprint:
        return fingerprint(
            self.geometry,
            weights=self.weights,
            dtype="int64",
            element_bits=64,
            head_size=1,
            num_layers=(NUM_LAYERS,),
            hash_block_size=self.config.hash_block_size,
            layout="layer head token",
            hash_algorithm=hash_algorithm,
        )


def perfect(tokens: list[int], num_tokens: int, num_heads: int = NUM_HEADS) -> list[int]:
    """What the stub says that never reads a wrong byte."""
    model = ModelContents(Shape().config, num_heads, VOCABULARY)
    return model.perfect_tokens(tokens, num_tokens)


class RankMemory(Memory):
    """One rank's: each number that the stub keeps of a head and slot is there once a layer."""

    def __init__(self, shape: Shape, rank: int, data: memoryview) -> None:
        self._layout, self._data = shape.layout(rank), data.cast("B")
        self.heads = tuple(range(*self._layout.heads))
        self.num_slots = shape.block_size
        self._poison = b""
        self.poison([0])
        self._poison = bytes(self._block(0))
        self.poison(range(shape.num_blocks))

    def cells(self, block_id: int, head: int) -> MutableSequence[int]:
        line = self.num_slots * CELL
        block, at = self._block(block_id), self.heads.index(head) * line
        page = self._layout.page_bytes
        begins = (layer * page + at for layer in _LAYERS)
        return _Cells([block[begin : begin + line].cast("q") for begin in begins])

    def copy(self, source: int, target: int) -> None:
        self._block(target)[:] = self._block(source)

    def poison(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if self._poison:
                self._block(block_id)[:] = self._poison
                continue
            for head in self.heads:
                self.cells(block_id, head)[:] = [POISON] * self.num_slots

    def _block(self, block_id: int) -> memoryview:
        size = self._layout.block_bytes
        return self._data[block_id * size : (block_id + 1) * size]


class _Cells(MutableSequence[int]):
    """Of one head of a block; a number that isn't the same function of itself in every layer is
    poison.
    """

    def __init__(self, layers: list[memoryview]) -> None:
        self._layers = layers

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self[index : index + 1][0]
        of_layers = zip(*(cells[index].tolist() for cells in self._layers), strict=True)
        return [
            values[0] if values == tuple(values[0] ^ layer for layer in _LAYERS) else POISON
            for values in of_layers
        ]

    def __setitem__(self, index: Any, value: Any) -> None:
        for layer, cells in zip(_LAYERS, self._layers, strict=True):
            if isinstance(index, slice):
                cells[index] = array("q", [one ^ layer for one in value])
            else:
                cells[index] = value ^ layer

    def __delitem__(self, index: Any) -> None:
        raise TypeError("a block has the slots that it has")

    def insert(self, index: int, value: int) -> None:
        raise TypeError("a block has the slots that it has")

    def __len__(self) -> int:
        return len(self._layers[0])


@dataclass
class RankedNode(Node):
    """`kill`: the links of a rank end, as when its process dies."""

    kill: Callable[[int], None] = lambda _rank: None


@asynccontextmanager
async def a_ranked_node(
    name: NodeId, book: Book, transport: str, shape: Shape, *, faults: str = "", **settings: Any
) -> AsyncIterator[RankedNode]:
    """A node that others find in `book` while it runs."""
    asked = ExchangeSettings(
        node_id=name,
        transport=transport,  # type: ignore[arg-type]
        token=b"0123456789abcdef",
        connector=Settings(**settings),
        faults=faults,
    )
    capacity = Capacity.of(shape.config)
    async with AsyncExitStack() as stack:
        links, memories = [], []
        for rank in range(shape.num_ranks):
            link, theirs = await open_worker(asked, rank)
            links.append(link)
            thread = WorkerThread(theirs)
            thread.start()
            memories.append(_memory(shape, rank, thread))
        worker = InProcessWorker(StubWorker(shape.config, memories, vocabulary_size=VOCABULARY))
        stack.push_async_callback(worker.close)
        node = await stack.enter_async_context(a_process(asked, book, worker, capacity, *links))
        yield RankedNode(node.engine, node.exchange, lambda rank: links[rank].close())


def _memory(shape: Shape, rank: int, links: WorkerThread) -> RankMemory:
    layout = shape.layout(rank)
    size = shape.num_blocks * layout.block_bytes
    region = links.allocate(size)
    data = memoryview(bytearray(size)) if region is None else region.view
    memory = RankMemory(shape, rank, data)
    links.begin(
        LinksMemory(HostPool(data.cast("B")), layout, region), shape.geometry, shape.fingerprint
    )
    return memory
