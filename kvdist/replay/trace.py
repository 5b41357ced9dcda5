"""Replay a recorded trace against our block manager, and stop at the first difference.

Owns:   the manager and the requests of one replay.
Knows nothing of: how traces are recorded, how differences are shown.
Source: the format is tests/data/oracle/README.md.

Every field that a trace line has is compared: `expect` and the whole `state` after it.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

from kvdist.cache import (
    BlockHasher,
    CacheHit,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    ExtraKeys,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    LoRAKey,
    MambaSpec,
    MultiModalItem,
    Request,
    SlidingWindowSpec,
)
from kvdist.errors import FormatError, IllegalAllocation, KvdistError
from kvdist.replay.json_lines import Json, read_json_lines

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")

#: A field in which we differ, what was recorded, ours.
Parted: TypeAlias = tuple[str, object, object]

FORMAT: Final = 1
#: Above any trace; what is larger is taken for a mistake, not for a reason to use all memory.
_MAX_SIZE: Final = 1 << 20
#: Pools above this size record checksums of their lists.
_MAX_LISTED_BLOCKS: Final = 64
#: Of all prompts of a file together; what is larger is taken for a mistake.
_MAX_PROMPT_TOKENS: Final = 1 << 24
_USAGE_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where we don't do what was recorded."""

    line: int
    operation: Json
    field: str
    recorded: object
    ours: object
    #: Our state after the operation.
    state: Json


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one file."""

    path: Path
    num_operations: int
    difference: Difference | None


def replay_file(path: Path) -> Outcome:
    """Replay one file. Raises: FormatError if it is not a trace."""
    lines = read_json_lines(path)
    try:
        _, header = next(lines)
    except StopIteration:
        raise FormatError(f"{path}: empty") from None
    replay = _reading(path, 1, TraceReplay, header)
    number, operation = 1, Json()
    parted = _reading(path, 1, replay.compare_start)
    while parted is None:
        try:
            number, operation = next(lines)
        except StopIteration:
            return Outcome(path, number - 1, None)
        parted = _reading(path, number, replay.apply, operation)
    field, recorded, ours = parted
    difference = Difference(number, operation, field, recorded, ours, replay.state())
    return Outcome(path, number - 1, difference)


class TraceReplay:
    """A manager with the settings of a trace's header, and the operations on it."""

    def __init__(self, header: Json) -> None:
        if header.get("format") != FORMAT:
            raise FormatError(f"format {header.get('format')!r}, we read {FORMAT}")
        self.header = header
        self.config = _config(header)
        self.manager = KVCacheManager(self.config)
        self.hasher = BlockHasher(self.config.hash_block_size)
        self.num_prompt_tokens = 0
        self.requests: dict[str, Request] = {}
        self.hits: dict[str, CacheHit] = {}
        self.running: set[str] = set()
        self._operations: dict[str, Callable[[Json], Json | None]] = {
            "new": self._new,
            "lookup": self._lookup,
            "alloc": self._alloc,
            "advance": self._advance,
            "append": self._append,
            "cache": self._cache,
            "free": self._free,
            "preempt": self._preempt,
            "trim": self._trim,
            "evict": self._evict,
            "reset": self._reset,
            "step": self._step,
            "take_copies": self._take_copies,
            "release_copies": self._release_copies,
        }

    def compare_start(self) -> Parted | None:
        """The first field in which we differ before the first operation."""
        return _compare("state", self.header["state"], self.state())

    def apply(self, operation: Json) -> Parted | None:
        """Carry out one operation; the first field that differs, as (name, recorded, ours)."""
        name = operation["op"]
        if name not in self._operations:
            raise FormatError(f"unknown operation {name!r}")
        result = self._operations[name](operation) or {}
        return _compare("expect", operation.get("expect", {}), result) or _compare(
            "state", operation["state"], self.state()
        )

    def state(self) -> Json:
        """What a trace line says of the whole manager."""
        pool = self.manager.block_pool
        queue = [int(block.block_id) for block in pool.free_block_queue]
        cached = [int(block.block_id) for block in pool.blocks if block.block_hash is not None]
        shared = [
            [int(b.block_id), b.ref_cnt]
            for b in pool.blocks
            if b.ref_cnt > 1 and b is not pool.null_block
        ]
        state: Json = {"free": pool.get_num_free_blocks(), "usage": self.manager.usage}
        if pool.num_blocks <= _MAX_LISTED_BLOCKS:
            return state | {"queue": queue, "cached": cached, "refs": shared}
        return state | {
            "queue_crc": _crc(queue),
            "cached_n": len(cached),
            "cached_crc": _crc(cached),
        }

    # -- operations ----------------------------------------------------------------------------

    def _new(self, op: Json) -> None:
        self.num_prompt_tokens += len(op["prompt"])
        if self.num_prompt_tokens > _MAX_PROMPT_TOKENS:
            raise FormatError(f"more than {_MAX_PROMPT_TOKENS} prompt tokens")
        lora = op.get("lora")
        keys = ExtraKeys(
            cache_salt=op.get("salt"),
            lora=LoRAKey(lora["name"], lora["path"]) if lora else None,
            mm_items=tuple(
                MultiModalItem(item["identifier"], item["offset"], item["length"])
                for item in op.get("mm", ())
            ),
        )
        self.requests[op["id"]] = Request(
            op["id"],
            op["prompt"],
            self.hasher if self.config.enable_caching else None,
            extra_keys=keys,
            skip_reading_prefix_cache=op.get("skip_read", False),
        )

    def _lookup(self, op: Json) -> Json:
        hit = self.hits[op["id"]] = self.manager.get_computed_blocks(self.requests[op["id"]])
        return {
            "hit_tokens": hit.num_tokens,
            "hit_blocks": list(hit.blocks.get_block_ids()),
            "junction": hit.junction,
        }

    def _alloc(self, op: Json) -> Json:
        for name in ("new", "external", "lookahead", "encoder", "reserved"):
            if type(op.get(name, 0)) is not int:
                raise FormatError(f"{name} is {op[name]!r}")
        request = self.requests[op["id"]]
        waiting = request.request_id not in self.running
        try:
            new_blocks = self.manager.allocate_slots(
                request,
                op["new"],
                self.hits[op["id"]] if "hit" in op else None,
                num_external_computed_tokens=op.get("external", 0),
                num_lookahead_tokens=op.get("lookahead", 0),
                delay_cache_blocks=op.get("delay", False),
                num_encoder_tokens=op.get("encoder", 0),
                full_sequence_must_fit=op.get("full_seq", False),
                reserved_blocks=op.get("reserved", 0),
                apply_watermark=waiting and op.get("has_running", True),
            )
        except IllegalAllocation:
            return {"error": True}
        tables = list(self.manager.get_block_ids(request.request_id))
        if new_blocks is None:
            return {"ok": False, "tables": tables}
        self.running.add(request.request_id)
        return {"ok": True, "tables": tables, "new_blocks": list(new_blocks.get_block_ids())}

    def _advance(self, op: Json) -> None:
        request = self.requests[op["id"]]
        request.num_computed_tokens = op["computed"]
        request.num_in_flight_tokens = op.get("in_flight", 0)

    def _append(self, op: Json) -> None:
        self.requests[op["id"]].append_output_token_ids(op["tokens"])

    def _cache(self, op: Json) -> None:
        self.manager.cache_blocks(self.requests[op["id"]], op["upto"])

    def _free(self, op: Json) -> None:
        self.manager.free(self.requests[op["id"]])

    def _preempt(self, op: Json) -> None:
        request = self.requests[op["id"]]
        self.manager.free(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        self.running.discard(request.request_id)

    def _trim(self, op: Json) -> Json:
        request = self.requests[op["id"]]
        self.manager.remove_skipped_blocks(request, op["computed"])
        return {"tables": list(self.manager.get_block_ids(request.request_id))}

    def _evict(self, op: Json) -> None:
        self.manager.evict_blocks(op["blocks"])

    def _reset(self, op: Json) -> Json:
        return {"ok": self.manager.reset_prefix_cache()}

    def _step(self, op: Json) -> None:
        self.manager.new_step_starts()

    def _take_copies(self, op: Json) -> Json:
        copies = self.manager.take_block_copies()
        return {"copies": [[copy.source, copy.target] for copy in copies]}

    def _release_copies(self, op: Json) -> None:
        self.manager.release_block_copies()


def _reading(path: Path, number: int, work: Callable[[*_Args], _Result], *args: *_Args) -> _Result:
    """Run `work`; what a line of another shape causes becomes a FormatError with its place.

    A bug of ours stays what it is: only what goes wrong here, in reading, is put on the file.
    """
    try:
        return work(*args)
    except KvdistError as error:
        if error.blame == "us":
            raise
        raise FormatError(f"{path}:{number}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        if not _came_up_here(error):
            raise
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{path}:{number}: {what}") from error


def _came_up_here(error: Exception) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__


def _config(header: Json) -> KVCacheConfig:
    if max(header["num_blocks"], header["max_model_len"]) > _MAX_SIZE:
        raise FormatError(f"num_blocks or max_model_len is above {_MAX_SIZE}")
    return KVCacheConfig(
        num_blocks=header["num_blocks"],
        kv_cache_groups=tuple(
            KVCacheGroupSpec(_spec(group), is_eagle_group=group.get("eagle", False))
            for group in header["groups"]
        ),
        max_model_len=header["max_model_len"],
        enable_caching=header["enable_caching"],
        hash_block_size=header["hash_block_size"],
        max_in_flight_tokens=header["max_in_flight_tokens"],
        use_eagle=header["use_eagle"],
        watermark=header["watermark"],
        retention_interval=header["retention_interval"],
        enable_partial_hits=True,
        as_vllm=True,
    )


def _spec(group: Json) -> KVCacheSpec:
    kind, size = group["kind"], group["block_size"]
    if kind == "full":
        return FullAttentionSpec(block_size=size)
    if kind == "sliding_window":
        return SlidingWindowSpec(block_size=size, sliding_window=group["window"])
    if kind == "chunked_local":
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=group["chunk"])
    if kind == "mamba":
        return MambaSpec(
            block_size=size,
            mamba_cache_mode=group["mode"],
            num_speculative_blocks=group["speculative_blocks"],
        )
    if kind == "cross_attention":
        return CrossAttentionSpec(block_size=size)
    raise FormatError(f"unknown kind of group {kind!r}")


def _compare(what: str, recorded: Json, ours: Json) -> Parted | None:
    field = _first_difference(recorded, ours)
    return (f"{what}.{field}", recorded.get(field), ours.get(field)) if field else None


def _first_difference(recorded: Json, ours: Json) -> str | None:
    """The first field, of either side, that isn't the same on both."""
    for field in [*recorded, *(name for name in ours if name not in recorded)]:
        if field not in recorded or field not in ours:
            return field
        if field == "usage":
            if abs(recorded[field] - ours[field]) > _USAGE_TOLERANCE:
                return field
        elif recorded[field] != ours[field]:
            return field
    return None


def _crc(ids: list[int]) -> int:
    return zlib.crc32(",".join(map(str, ids)).encode()) if ids else 0
