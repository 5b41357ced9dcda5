"""Which runner a model's name stands for; used in the worker's process, or in the node's own.

Owns:   the name of the stub, and its size.
Knows nothing of: sockets, HTTP.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from kvdist.cache import FullAttentionSpec, KVCacheConfig
from kvdist.connector.compat import fingerprint
from kvdist.connector.geometry import Geometry
from kvdist.connector.messages import Fingerprint
from kvdist.errors import ConfigError
from kvdist.links.layout import GroupLayout, Layout
from kvdist.links.memory import HostPool, Memory
from kvdist.links.worker_thread import WorkerThread
from kvdist.node.defaults import SamplingDefaults
from kvdist.node.roles import Runner
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.node.worker_host import Progress
from kvdist.node.worker_wire import Capacity
from kvdist.sim.byte_memory import CELL_BYTES, ByteMemory
from kvdist.sim.stub_runner import StubRunner
from kvdist.worker.settings import WorkerSettings, folder_of
from transports.api import Region
from transports.errors import TransportError

if TYPE_CHECKING:
    from kvdist.worker.build import Built

_log = structlog.get_logger(__name__)

#: In place of a folder: no model, but words all the same.
STUB: Final = "stub"
#: Printable ASCII, the first of `Tokenizer.of_bytes`.
_STUB_VOCABULARY: Final = 95


def check_model(model: str) -> None:
    """Before anything is begun. Raises: ConfigError for what can't be a model."""
    if model != STUB:
        folder_of(model)


class _Allocator:
    """Memory for K/V, which peers can be allowed to read where the links say so."""

    def __init__(self, links: WorkerThread | None) -> None:
        self._links = links
        self.region: Region | None = None

    def __call__(self, size: int) -> memoryview | None:
        """None: whoever needs it takes it where it likes. Raises: ConfigError."""
        if self._links is None:
            return None
        try:
            self.region = self._links.allocate(size)
        except TransportError as error:
            raise ConfigError(f"no memory to lend: {error}") from error
        return None if self.region is None else self.region.view


def build_runner(
    settings: WorkerSettings, progress: Progress, links: WorkerThread | None = None
) -> tuple[Runner, Capacity]:
    """The runner, loaded; `links` can lend and fill its memory. Raises: ConfigError."""
    allocate = _Allocator(links)
    if settings.model == STUB:
        return _stub(settings, allocate, links)
    return _model(settings, progress, allocate, links)


def tokenizer_of(capacity: Capacity) -> Tokenizer:
    """That of the model which the worker has loaded. Raises: ConfigError."""
    if not capacity.folder:
        return Tokenizer.of_bytes()
    tokenizer = Tokenizer.from_folder(Path(capacity.folder), capacity.vocab_size)
    if tokenizer.num_unknown:
        _log.warning(
            "the tokenizer knows more tokens than the model: prompts with them are refused",
            tokens=tokenizer.num_unknown,
            model_has=tokenizer.size,
        )
    return tokenizer


def defaults_of(capacity: Capacity) -> SamplingDefaults:
    """What the makers of the model suggest for sampling. Raises: ConfigError."""
    if not capacity.folder:
        return SamplingDefaults()
    return SamplingDefaults.from_folder(Path(capacity.folder))


def speech_of(capacity: Capacity) -> Speech | None:
    """How to ask a model that hears; None: it doesn't. Raises: ConfigError."""
    if capacity.window is None:
        return None
    return Speech.from_folder(Path(capacity.folder), capacity.window)


def _stub(
    settings: WorkerSettings, allocate: _Allocator, links: WorkerThread | None
) -> tuple[Runner, Capacity]:
    single = KVCacheConfig.single(
        FullAttentionSpec(block_size=settings.block_size or 16),
        num_blocks=settings.num_blocks or 513,
        max_model_len=settings.max_model_len or 2048,
    )
    capacity = Capacity.of(single)
    config = capacity.config()
    if links is None:
        return StubRunner(config, _STUB_VOCABULARY), capacity
    block_size = config.kv_cache_groups[0].kv_cache_spec.block_size
    block_bytes = block_size * CELL_BYTES
    size = config.num_blocks * block_bytes
    data = allocate(size) or memoryview(bytearray(size))
    memory = ByteMemory(config.num_blocks, block_size, data)
    layout = Layout((GroupLayout(1, block_size, 1, CELL_BYTES),), (0, 1), block_bytes, block_bytes)
    geometry = Geometry.of(config)
    links.begin(
        Memory(HostPool(data.cast("B")), layout, allocate.region),
        geometry,
        partial(_stub_fingerprint, geometry, config.hash_block_size),
    )
    return StubRunner(config, _STUB_VOCABULARY, memory), capacity


def _model(
    settings: WorkerSettings,
    progress: Progress,
    allocate: _Allocator,
    links: WorkerThread | None,
) -> tuple[Runner, Capacity]:
    progress("starting PyTorch", 0.0)
    # Threads that spin while they wait keep others from the work that they wait for: on a busy
    # machine a step takes a hundred times as long. Read when PyTorch is loaded, never again.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from kvdist.worker import build  # takes seconds, and is an extra
    except ImportError as error:
        raise ConfigError(
            f"no model can run here: {error}. Install kvdist with its extra 'serve'"
        ) from error
    built = build.build(settings, progress, allocate)
    capacity = Capacity(
        built.num_blocks,
        built.groups,
        built.max_model_len,
        str(built.folder),
        built.window,
        built.vocab_size,
    )
    if links is not None:
        config = capacity.config()
        geometry = Geometry.of(config)
        links.begin(
            _memory(built, allocate.region),
            geometry,
            partial(_fingerprint, built, geometry, config.hash_block_size),
        )
    progress("ready", 1.0)
    return built.runner, capacity


def _memory(built: "Built", region: Region | None) -> Memory:
    """As links see it."""
    pool = built.runner.pool
    heads = {layer.name: layer.num_kv_heads for layer in built.runner.model.attention_layers}
    page, groups = pool.layout.page_size_bytes, []
    for group in built.groups:
        size, num_heads = group.kv_cache_spec.block_size, heads.get(group.layer_names[0], 0)
        num_layers = len(group.layer_names)
        if num_heads:
            item = page // (size * num_heads)
            groups.append(GroupLayout(num_layers, size, num_heads, item))
        else:
            groups.append(GroupLayout(num_layers, 0, 1, page))
    layout = Layout(tuple(groups), (0, 1), page, pool.layout.bytes_per_block)
    return Memory(HostPool(pool.memory.cast("B")), layout, region)


def _stub_fingerprint(geometry: Geometry, hash_block_size: int, hash_algorithm: str) -> Fingerprint:
    return fingerprint(
        geometry,
        weights=STUB,
        dtype="int64",
        element_bits=8 * CELL_BYTES,
        head_size=1,
        num_layers=(1,),
        hash_block_size=hash_block_size,
        layout="token",
        hash_algorithm=hash_algorithm,
    )


def _fingerprint(
    built: "Built", geometry: Geometry, hash_block_size: int, hash_algorithm: str
) -> Fingerprint:
    """What has to be equal where K/V come from and where they go."""
    model = built.runner.model
    heads = {(layer.num_kv_heads, layer.head_dim) for layer in model.attention_layers}
    return fingerprint(
        geometry,
        weights=built.weights,
        dtype=str(model.dtype).removeprefix("torch."),
        element_bits=8 * model.dtype.itemsize,
        head_size=max((size for _, size in heads), default=0),
        num_layers=tuple(len(group.layer_names) for group in built.groups),
        hash_block_size=hash_block_size,
        layout=f"layer head token k|v {sorted(heads)}",
        hash_algorithm=hash_algorithm,
        state_layout=str(model.state_layers[0]) if model.state_layers else "",
    )
