"""From settings to a node: the one file that knows every class of it.

Owns:   the settings of a node.
Knows nothing of: the command line, models.
Units:  tokens, blocks, bytes and seconds, by name.
"""

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvdist.cache import BlockHasher, KVCacheConfig, KVCacheManager
from kvdist.cache.traced import TracedKVCacheManager
from kvdist.errors import ConfigError
from kvdist.node.admissions import Admissions
from kvdist.node.defaults import SamplingDefaults
from kvdist.node.engine import Engine
from kvdist.node.exchange import Exchange
from kvdist.node.http import Api
from kvdist.node.metrics import Metrics
from kvdist.node.models import Models
from kvdist.node.roles import Worker
from kvdist.node.speech import Speech
from kvdist.node.tokenizer import Tokenizer
from kvdist.node.worker_wire import Capacity
from kvdist.sched.budget import SchedulerConfig
from kvdist.sched.scheduler import Scheduler
from kvdist.sched.tracing import began
from kvdist.trace.recorder import Recorder, Sink

if TYPE_CHECKING:
    from kvdist.node.transcriptions import Transcriptions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a node can be told, beside what its worker says."""

    #: What clients call the model; the first is what answers say.
    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    enable_chunked_prefill: bool = True
    #: A step is planned while the one before it runs.
    async_scheduling: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: float = 0.0
    #: Sequences that may wait; whoever comes then is sent elsewhere.
    max_queued: int = 1024
    max_body_bytes: int = 32 << 20
    api_key: str | None = None
    #: What is left then of a node that drains ends with an error.
    drain_s: float = 30.0
    #: Where a request says nothing.
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)


def build_config(settings: NodeSettings, capacity: Capacity) -> KVCacheConfig:
    """Of the node's block manager. Raises: ConfigError."""
    return capacity.config(
        enable_caching=settings.enable_prefix_caching, watermark=settings.watermark
    )


def build_engine(
    settings: NodeSettings,
    capacity: Capacity,
    worker: Worker,
    trace: Sink | None = None,
    exchange: Exchange | None = None,
) -> Engine:
    """An engine over `worker`, which has room for `capacity`; `trace` hears what happens.

    Raises: ConfigError.
    """
    config = build_config(settings, capacity)
    limits = SchedulerConfig(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        enable_chunked_prefill=settings.enable_chunked_prefill,
        max_steps_in_flight=2 if settings.async_scheduling else 1,
        policy=settings.scheduling_policy,
    )
    hasher = BlockHasher(config.hash_block_size, settings.prefix_caching_hash_algo)
    recorder = Recorder(trace) if trace is not None else None
    admissions = Admissions() if exchange is None else exchange.admissions
    metrics = Metrics(settings.names[0])
    scheduler = Scheduler(
        TracedKVCacheManager(config, recorder) if recorder else KVCacheManager(config),
        limits,
        admissions,
        hasher if config.enable_caching else None,
        recorder,
    )
    if recorder is not None:
        recorder.note(began(secrets.token_hex(4), config))
    metrics.watch(scheduler)
    return Engine(scheduler, admissions, worker, metrics, settings.max_queued, exchange)


def build_api(
    settings: NodeSettings, engine: Engine, tokenizer: Tokenizer, speech: Speech | None = None
) -> Api:
    """The HTTP face of `engine`. Raises: ConfigError if it can't read what `speech` is for."""
    models = Models(settings.names, engine.scheduler.manager.config.max_model_len)
    return Api(
        engine,
        tokenizer,
        models,
        _transcriptions(engine, tokenizer, models, speech) if speech is not None else None,
        defaults=settings.defaults,
        max_body_bytes=settings.max_body_bytes,
        api_key=settings.api_key,
    )


def _transcriptions(
    engine: Engine, tokenizer: Tokenizer, models: Models, speech: Speech
) -> "Transcriptions":
    try:
        from kvdist.node.transcriptions import Transcriptions  # its libraries are of an extra
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"audio can't be read here: {error}. Install kvdist with its extra 'serve'"
        ) from error
    return Transcriptions(engine, tokenizer, models, speech)
