"""What a node and its worker process say to each other, as bytes: the delta protocol in msgpack.

Owns:   the frames, and the greatest size of each.
Knows nothing of: sockets' owners, what plans mean.
Format: u32 little-endian length, then one message: msgpack, its type told by a tag.
Source: rule S26. msgspec checks each type while it decodes.

Both are of one version and one user, so that there are no versions; but a worker may be broken, so
nothing that it says is believed before its size and types were checked.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.errors import FormatError
from kvdist.sched.audio import AudioWindow
from kvdist.sched.plan import StepPlan, StepResult

HEAD: Final = struct.Struct("<I")
#: A plan with tokens and tables of many long prompts; far above any real one.
MAX_MESSAGE_BYTES: Final = 256 << 20

#: Tokens a hash, where all blocks are multiples of it.
_HASHED: Final = 16
_SPECS: Final[dict[str, type[KVCacheSpec]]] = {
    spec.__name__: spec
    for spec in (
        FullAttentionSpec,
        SlidingWindowSpec,
        ChunkedLocalAttentionSpec,
        MambaSpec,
        CrossAttentionSpec,
    )
}


class Group(msgspec.Struct, frozen=True):
    """One KV cache group, by the name of its kind."""

    kind: str
    fields: dict[str, int | str]
    layer_names: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The worker has loaded its model: what it has room for."""

    num_blocks: int
    groups: tuple[Group, ...]
    max_model_len: int
    folder: str
    #: None: the model doesn't hear.
    window: AudioWindow | None = None
    #: Tokens are 0 .. vocab_size - 1; None: whatever a tokenizer knows.
    vocab_size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far it has come until then."""

    what: str
    #: 0 .. 1
    share: float


class Broken(msgspec.Struct, frozen=True, tag=True):
    """It can't begin, or go on: this is why."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """A step is over."""

    result: StepResult


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A step is over and did not do what it was to do."""

    step: int
    reason: str


FromWorker: TypeAlias = Ready | Loading | Broken | Done | Failed

_encoder: Final = msgspec.msgpack.Encoder()
_plans: Final = msgspec.msgpack.Decoder(StepPlan)
_answers: Final = msgspec.msgpack.Decoder(FromWorker)


def frame(message: FromWorker | StepPlan) -> bytes:
    """One message with its length."""
    body = _encoder.encode(message)
    return HEAD.pack(len(body)) + body


def read_head(head: bytes) -> int:
    """The length of what follows. Raises: FormatError."""
    (size,) = HEAD.unpack(head)
    if size > MAX_MESSAGE_BYTES:
        raise FormatError(f"a message of {size} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    return int(size)


def read_plan(body: bytes) -> StepPlan:
    """What a node said. Raises: FormatError."""
    try:
        return _plans.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"no step plan: {error}") from error


def read_answer(body: bytes) -> FromWorker:
    """What a worker said. Raises: FormatError."""
    try:
        return _answers.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"no answer of a worker: {error}") from error


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker has room for."""

    num_blocks: int
    groups: tuple[KVCacheGroupSpec, ...]
    max_model_len: int
    #: Of the model, where its tokenizer is too; empty without a model.
    folder: str = ""
    #: What the model hears at a time; None: nothing.
    window: AudioWindow | None = None
    #: Tokens are 0 .. vocab_size - 1; None: whatever a tokenizer knows.
    vocab_size: int | None = None

    @classmethod
    def of(cls, config: KVCacheConfig) -> "Capacity":
        """That of a worker which was set up with `config`."""
        return cls(config.num_blocks, config.kv_cache_groups, config.max_model_len)

    def config(self, *, enable_caching: bool = True, watermark: float = 0.0) -> KVCacheConfig:
        """Of a block manager for it, whose blocks are found by the same tokens as those of others
        with blocks of another size, if that can be. Raises: ConfigError.
        """
        sizes = (group.kv_cache_spec.block_size for group in self.groups)
        return KVCacheConfig(
            num_blocks=self.num_blocks,
            kv_cache_groups=self.groups,
            max_model_len=self.max_model_len,
            enable_caching=enable_caching and self.window is None,  # nobody hears the same
            hash_block_size=0 if any(size % _HASHED for size in sizes) else _HASHED,
            watermark=watermark,
        )

    def ready(self) -> Ready:
        """As a worker says it."""
        groups = tuple(map(_told, self.groups))
        return Ready(
            self.num_blocks,
            groups,
            self.max_model_len,
            self.folder,
            self.window,
            self.vocab_size,
        )

    @classmethod
    def read(cls, ready: Ready) -> "Capacity":
        """As a node understands it. Raises: FormatError, ConfigError."""
        groups = tuple(map(_understood, ready.groups))
        return cls(
            ready.num_blocks,
            groups,
            ready.max_model_len,
            ready.folder,
            ready.window,
            ready.vocab_size,
        )


def _told(group: KVCacheGroupSpec) -> Group:
    spec = group.kv_cache_spec
    return Group(type(spec).__name__, msgspec.to_builtins(spec), group.layer_names)


def _understood(group: Group) -> KVCacheGroupSpec:
    kind = _SPECS.get(group.kind)
    if kind is None:
        raise FormatError(f"a KV cache group of kind {group.kind!r}")
    try:
        return KVCacheGroupSpec(kind(**group.fields), group.layer_names)  # type: ignore[arg-type]
    except TypeError as error:
        raise FormatError(f"a KV cache group of kind {group.kind}: {error}") from error
