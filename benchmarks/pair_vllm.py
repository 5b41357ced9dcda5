"""vLLM's own pair on CPUs: two of its servers, and the connector that it has for that.

Owns:   the processes, for as long as a block lasts.
Knows nothing of: loads, figures.
Source: vLLM 0.32, vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py, as it comes.

K/V go through files. NIXL's connector was tried by hand and took 0.45 to 32 s a request on two
cores; Mooncake's raises without a GPU; the others weren't tried. The client asks the servers
itself, prefill first, so that no proxy costs anything.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.blocks import WorkerError
from benchmarks.pair_cluster import Cores, pin
from benchmarks.pair_load import Server, client

#: Without these two servers spin on the same cores.
_CALM: Final = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_NAME: Final = "model"
_STARTS_S: Final = 400.0
_ENDS_S: Final = 15.0
#: Of the log of a server that ended, in characters.
_WORDS: Final = 2_000
_METRIC: Final = "vllm:external_prefix_cache_hits_total"


@dataclass(frozen=True, slots=True)
class _Process:
    """One server, and what it says."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path


@asynccontextmanager
async def vllm_pair(python: str, folder: Path, cores: Cores) -> AsyncIterator[Server]:
    """Ready, a core each. Raises: WorkerError if a server doesn't begin, or pulled nothing."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as ends:
        started = []
        for role, core in zip(("kv_producer", "kv_consumer"), cores, strict=True):
            # One after the other: both at once take much longer.
            server = _start(python, folder, role, Path(scratch))
            ends.callback(_end, server.process)
            await _ready(server)
            pin(server.process.pid, [core])
            started.append(server)
        prefill, decode = started
        yield Server(decode.url, _NAME, prefill.url)
        if not await _pulled_tokens(decode.url):
            raise WorkerError("vLLM's decode computed all prompts itself")


def _start(python: str, folder: Path, role: str, scratch: Path) -> _Process:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    transfer: dict[str, Any] = {
        "kv_connector": "ExampleConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": str(scratch / "blocks")},
    }
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--served-model-name", _NAME, "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "4096", "--max-num-seqs", "128", "--enforce-eager"),
        *("--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(transfer)),
    ]
    log = scratch / f"{role}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env=os.environ | _CALM,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Process(process, f"http://127.0.0.1:{port}", log)


async def _ready(server: _Process) -> None:
    async with asyncio.timeout(_STARTS_S), client() as session:
        while server.process.poll() is None:
            try:
                async with session.get(f"{server.url}/health", raise_for_status=True):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.3)
    raise WorkerError(f"vLLM ended: {server.log.read_text()[-_WORDS:]}")


async def _pulled_tokens(url: str) -> float:
    async with client() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(_METRIC))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all its children."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
