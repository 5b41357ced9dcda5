"""A script as a file: what once failed is played again for ever.

Owns:   the format: JSON with one action a line; what is as by default is left out.
Knows nothing of: what actions do.
"""

import json
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from kvdist.cache import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvdist.connector.settings import Settings
from kvdist.errors import FormatError
from kvdist.sched.budget import SchedulerConfig
from kvdist.sim.cluster import ClusterConfig
from kvdist.sim.faults import Faults
from kvdist.sim.script import (
    ChangeRole,
    Come,
    CutLink,
    Drain,
    KillNode,
    KillWorker,
    Partition,
    Pause,
    Script,
    StallLink,
    TakeBack,
)

#: What is told apart by a name in the file.
_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        ChangeRole, Come, KillNode, KillWorker, Drain, Pause, Partition, CutLink, StallLink,
        TakeBack,
        FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Saved:
    """A script, and what it once showed."""

    script: Script
    #: Which promise was broken.
    shows: str
    #: The bug that was planted then; empty: it was there by itself.
    planted: str = ""


def save(saved: Saved, path: Path) -> None:
    """Write it."""
    script = saved.script
    head = {
        "shows": saved.shows,
        "planted": saved.planted,
        "seed": script.seed,
        "config": _plain(script.config),
        "faults": _plain(script.faults),
        "ends_at": script.ends_at,
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    actions = ",\n".join(json.dumps(_plain(action)) for action in script.actions)
    path.write_text("{\n" + ",\n".join(lines) + f',\n"actions": [\n{actions}\n]\n}}\n')


def load(path: Path) -> Saved:
    """Read it. Raises: FormatError, or ConfigError for settings that contradict each other."""
    try:
        plain = msgspec.json.decode(path.read_bytes(), type=_File)
        actions = tuple(map(_of_kind, plain.actions))
        config = _config(plain.config)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: no script: {error}") from error
    return Saved(
        Script(plain.seed, config, plain.faults, actions, plain.ends_at), plain.shows, plain.planted
    )


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    shows: str
    planted: str
    seed: int
    config: dict[str, Any]
    faults: Faults
    ends_at: float = 0.0
    actions: list[dict[str, Any]]


def _plain(value: object) -> Any:
    """Without types, but for the names of kinds."""
    if isinstance(value, KVCacheGroupSpec):
        return _plain(value.kv_cache_spec)
    if is_dataclass(value):
        name = type(value).__name__
        kind = {"kind": name} if name in _KINDS else {}
        told = [field for field in fields(value) if field.init]
        return kind | {
            field.name: _plain(getattr(value, field.name))
            for field in told
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _default(field: "Field[Any]") -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _of_kind(plain: dict[str, Any]) -> Any:
    kind = _KINDS[plain["kind"]]
    return msgspec.convert({k: v for k, v in plain.items() if k != "kind"}, kind)


def _config(plain: dict[str, Any]) -> ClusterConfig:
    made = {
        "nodes": {name: _node(node) for name, node in plain["nodes"].items()},
        "settings": msgspec.convert(plain.get("settings", {}), Settings),
        "scheduler": msgspec.convert(plain.get("scheduler", {}), SchedulerConfig),
    }
    return ClusterConfig(**{**plain, **made})


def _node(plain: dict[str, Any]) -> KVCacheConfig:
    groups = tuple(KVCacheGroupSpec(_of_kind(spec)) for spec in plain["kv_cache_groups"])
    return KVCacheConfig(**{**plain, "kv_cache_groups": groups})
