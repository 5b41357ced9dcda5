"""The flags of `kvdist serve` in groups, named as vLLM's are, and the settings that each makes.

Owns:   names, limits and help of the flags.
Knows nothing of: how nodes work.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from kvdist.connector.settings import Settings
from kvdist.errors import ConfigError
from kvdist.links.members import StaticMembers, read_peers
from kvdist.node.neighbours import ExchangeSettings
from kvdist.node.registration import Registration
from kvdist.node.tracing import TraceFile
from kvdist.worker.settings import WorkerSettings

_DEFAULTS = Settings()
#: Addresses that mean all of a machine's.
_ANYWHERE: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The model, and the memory for its K/V."""

    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence, in tokens.")
    ] = None
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens in one block.")] = None
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(min=2, help="Blocks of the pool.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(min=1, help="Memory for K/V, unless blocks are given.")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="Of weights and K/V; auto: as the model says."),
    ] = "auto"
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "vllm"],
        typer.Option(help="Sampling where a request is silent: the model's way, or OpenAI's."),
    ] = "auto"

    def settings(self, model: str) -> WorkerSettings:
        """Of the worker."""
        return WorkerSettings(
            model=model,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_gpu_blocks_override,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningFlags:
    """Where clients come, and what they may."""

    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model; may be repeated.")
    ] = None
    max_queued_requests: Annotated[
        int, typer.Option(min=1, help="Sequences that may wait; more are sent away with 503.")
    ] = 1024
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="Largest body of a request; larger ones get 413.")
    ] = 32 << 20
    api_key: Annotated[
        str | None, typer.Option(envvar="KVDIST_API_KEY", help="What clients have to show.")
    ] = None
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to answer what is open, after SIGTERM.")
    ] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingFlags:
    """Who runs when, and what is found of what was computed before."""

    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at a time.")] = 128
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 2048
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Find prefixes that were computed before.")
    ] = True
    prefix_caching_hash_algo: Annotated[
        Literal["sha256", "xxh3_128"], typer.Option(help="What names the content of a block.")
    ] = "sha256"
    enable_chunked_prefill: Annotated[
        bool, typer.Option(help="Compute long prompts in several steps.")
    ] = True
    async_scheduling: Annotated[
        bool, typer.Option(help="Plan a step while the one before it runs.")
    ] = True
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], typer.Option(help="By arrival, or by priority first.")
    ] = "fcfs"
    watermark: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of the pool kept free at admissions.")
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFlags:
    """Other nodes."""

    role: Annotated[
        Literal["prefill", "decode", "both"] | None,
        typer.Option(help="Exchange K/V with other nodes, as this; not given: none."),
    ] = None
    node_id: Annotated[
        str | None, typer.Option(help="Name among the nodes, the same after a restart.")
    ] = None
    transport: Annotated[Literal["tcp", "shm", "ucx"], typer.Option(help="What K/V travel by.")] = (
        "tcp"
    )
    kv_host: Annotated[
        str | None, typer.Option(help="Where other nodes reach this one; like --host if not given.")
    ] = None
    kv_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where other nodes reach this one; 0: any.")
    ] = 0
    registry: Annotated[
        str | None, typer.Option(help="http://HOST:PORT of a router, which knows all nodes.")
    ] = None
    registry_token: Annotated[
        str | None, typer.Option(envvar="KVDIST_REGISTRY_TOKEN", help="What it wants to be shown.")
    ] = None
    peer: Annotated[
        list[str] | None,
        typer.Option(help="NAME=tcp://HOST:PORT of another node; without a registry."),
    ] = None
    cluster_token: Annotated[
        str | None,
        typer.Option(envvar="KVDIST_CLUSTER_TOKEN", help="What nodes prove to each other."),
    ] = None
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"], typer.Option(help="When K/V don't come from another node.")
    ] = "recompute"
    kv_max_recompute_tokens: Annotated[
        int,
        typer.Option(min=0, help="Tokens recomputed at a time for such K/V; beyond it, a 503."),
    ] = _DEFAULTS.max_recompute_tokens
    kv_lease_seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="How long K/V wait for their reader.")
    ] = _DEFAULTS.lease_s
    min_pull_tokens: Annotated[
        int, typer.Option(min=1, help="Fewer tokens are computed here rather than pulled.")
    ] = 16
    kv_checksum: Annotated[
        bool, typer.Option(help="Check K/V that come against a checksum of their owner's.")
    ] = False
    kv_faults: Annotated[
        str, typer.Option(help="SEED:KIND=RATE,... or SEED:kill@MARK=N: go wrong on purpose.")
    ] = ""

    def settings(self, host: str, hash_algorithm: str) -> ExchangeSettings | None:
        """None: it is a node by itself."""
        if self.role is None:
            return None
        where = self.kv_host or host
        if self.registry is not None and where in _ANYWHERE:
            raise ConfigError(f"{where} is no address to come to: say it with --kv-host")
        return ExchangeSettings(
            node_id=self.name,
            role=self.role,
            transport=self.transport,
            host=where,
            control_port=self.kv_port,
            token=None if self.cluster_token is None else self.cluster_token.encode(),
            hash_algorithm=hash_algorithm,
            is_checked=self.kv_checksum,
            faults=self.kv_faults,
            connector=Settings(
                on_failure=self.kv_load_failure_policy,
                lease_s=self.kv_lease_seconds,
                renewal_s=min(_DEFAULTS.renewal_s, self.kv_lease_seconds / 6),
                life_s=max(_DEFAULTS.life_s, self.kv_lease_seconds),
                min_pull_tokens=self.min_pull_tokens,
                max_recompute_tokens=self.kv_max_recompute_tokens,
            ),
        )

    @property
    def name(self) -> str:
        """Of this node, among others."""
        return self.node_id or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def members(self) -> Registration | StaticMembers:
        """Who knows the other nodes. Raises: ConfigError."""
        if self.role is None and (self.registry is not None or self.peer):
            raise ConfigError("--registry and --peer are for a node that has a --role")
        if self.registry is not None:
            if self.peer:
                raise ConfigError("--peer is for a node without a --registry, which knows all")
            return Registration(self.registry, self.registry_token)
        return StaticMembers(read_peers(self.peer or []))


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingFlags:
    """What is written down of what happens."""

    trace_file: Annotated[
        Path | None,
        typer.Option(
            "--trace-file",
            "--trace",
            envvar="KVDIST_TRACE_FILE",
            help="All that happens to requests and blocks goes there; %n: the node's name. See "
            "kvdist trace.",
        ),
    ] = None
    trace_max_bytes: Annotated[
        int, typer.Option(min=1 << 12, help="At that size the file becomes FILE.1.")
    ] = 64 << 20
    log_format: Annotated[
        Literal["auto", "console", "json"], typer.Option(help="auto: console on a terminal.")
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least to be logged.")
    ] = "info"

    def open_trace(self, name: str) -> TraceFile | None:
        """Of the node of that name; None: nobody wants one. Raises: OSError, ConfigError."""
        if self.trace_file is None:
            return None
        path = Path(str(self.trace_file).replace("%n", name.replace("/", "-")))
        return TraceFile(path, self.trace_max_bytes)
