"""One scene, from begin to end: processes, clients, deeds, and then whether all is as promised.

Owns:   the processes.
Knows nothing of: what clients ask, what befalls whom.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from kvdist.launch.child import Lifeline
from tests.chaos import remains
from tests.chaos.at_marks import AtMarks
from tests.chaos.clients import Clients
from tests.chaos.deeds import QUIET_S, Deeds
from tests.chaos.process import NotThere, Process, free_port
from tests.chaos.report import Report
from tests.chaos.scene import Scene
from tests.chaos.truth import StubTruth, TinyTruth, Truth

_ROLES: Final = {"p0": "prefill", "d0": "decode"}
#: More than a lease and what has to run out after it.
_REST_S: Final = 75
_MAX_GROWN_MIB: Final = 24.0
_LOOK_S: Final = 0.5
_MAX_MORE_FILES: Final = 12


async def play(scene: Scene, folder: Path) -> Report:
    """`folder`: empty; logs and the model are kept in it. Never fails: it reports."""
    truth: Truth = StubTruth() if scene.model == "stub" else TinyTruth(folder / "model")
    report = Report(scene.title)
    shared = remains.shared_memory()
    (folder / "tmp").mkdir()
    try:
        async with _processes(scene, truth, folder) as processes:
            await asyncio.gather(*(process.ready() for process in processes.values()))
            await _run(scene, truth, processes, report)
            await _rest(processes, report)
            for process in processes.values():
                await _end(process, report)
    except NotThere as error:
        report.find(str(error))
    for left in remains.orphaned(remains.shared_memory() - shared):
        report.find(f"left in /dev/shm: {left}")
    _look_into(folder, report)
    return report


def _look_into(folder: Path, report: Report) -> None:
    for log in folder.glob("*.log"):
        if "Traceback" in log.read_text():
            report.find(f"a traceback in {log}")
    for left in (folder / "tmp").iterdir():
        report.find(f"left in TMPDIR: {left.name}")


async def _run(scene: Scene, truth: Truth, processes: dict[str, Process], report: Report) -> None:
    urls = {name: process.url for name, process in processes.items()}
    began = {process.pid: process for process in processes.values()}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        clients = Clients(scene, truth, urls, http, report)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + scene.seconds
        if scene.marks:
            deeds = asyncio.create_task(AtMarks(scene, processes, report).run(until_s - QUIET_S))
        else:
            told = Deeds(scene, processes, report, clients.storm)
            deeds = asyncio.create_task(told.run(until_s - QUIET_S))
        watching = asyncio.create_task(_watch(scene, began, report))
        await clients.run(lambda: loop.time() >= until_s and deeds.done())
        await deeds
        await watching


async def _watch(scene: Scene, processes: dict[int, Process], report: Report) -> None:
    """Who lives from begin to end is never as large in the middle as it always is in the end."""
    third = scene.seconds / 3
    await asyncio.sleep(third)
    before = await _seen(processes, third, max)
    after = await _seen(processes, third, min)
    for pid, process in processes.items():
        if process.pid != pid or process.has_ended or pid not in before or pid not in after:
            continue
        (size_0, files_0), (size_1, files_1) = before[pid], after[pid]
        told = {"MiB": [round(size_0, 1), round(size_1, 1)], "files": [files_0, files_1]}
        report.figures[f"{process.name}, which lived all the time"] = told
        if size_1 - size_0 > _MAX_GROWN_MIB or files_1 - files_0 > _MAX_MORE_FILES:
            report.find(f"{process.name} grows: {told}")


async def _seen(
    processes: Iterable[int], seconds: float, choose: Callable[[float, float], float]
) -> dict[int, tuple[float, float]]:
    """Memory in MiB and open files, the most or the least in that time."""
    loop, found = asyncio.get_running_loop(), dict[int, tuple[float, float]]()
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        for pid in processes:
            if not (size := remains.resident_mib(pid)):
                continue  # it is gone
            files = remains.open_files(pid)
            size_0, files_0 = found.get(pid, (size, files))
            found[pid] = choose(size_0, size), choose(files_0, files)
        await asyncio.sleep(_LOOK_S)
    return found


async def _rest(processes: dict[str, Process], report: Report) -> None:
    """Nobody asks any more: after a while nothing is held."""
    async with aiohttp.ClientSession() as http:
        for name in _ROLES:
            url = f"{processes[name].url}/debug/ledger?wait_s={_REST_S}"
            began_s = asyncio.get_running_loop().time()
            try:
                async with http.get(url) as response:
                    told: dict[str, Any] = await response.json()
            except (aiohttp.ClientError, OSError) as error:
                report.find(f"no ledger of {name}: {error!r}")
                continue
            rested_s = asyncio.get_running_loop().time() - began_s
            report.figures[f"ledger of {name}"] = told | {"after_s": round(rested_s, 1)}
            if told["balanced"] is not True:
                report.find(f"ledger of {name} isn't balanced: {told}")


async def _end(process: Process, report: Report) -> None:
    process.child.ask_to_end()
    try:
        await process.ended()
    except NotThere as error:
        report.find(str(error))
    if process.child.process.returncode:
        report.find(process.child.last_words)


@asynccontextmanager
async def _processes(scene: Scene, truth: Truth, folder: Path) -> AsyncIterator[dict[str, Process]]:
    lifeline = Lifeline()
    secrets = {"KVDIST_CLUSTER_TOKEN": "c" * 16, "KVDIST_REGISTRY_TOKEN": "r" * 16}
    env = {**os.environ, **secrets, "TMPDIR": str(folder / "tmp"), "KVDIST_CHECK": "1"}
    env.setdefault("OMP_NUM_THREADS", "1")
    control = {name: free_port() for name in _ROLES}
    processes: dict[str, Process] = {}

    def add(name: str, *words: str) -> Process:
        process = Process(name, words, env, folder / f"{name}.log", lifeline)
        processes[name] = process
        return process

    try:
        if scene.through_router:
            await add("router", "router").start()
        for name, role in _ROLES.items():
            (other,) = _ROLES.keys() - {name}
            known = (
                f"--registry={processes['router'].url}"
                if scene.through_router
                else f"--peer={other}=tcp://127.0.0.1:{control[other]}"
            )
            await add(
                name, "serve", truth.model, f"--node-id={name}", f"--role={role}", known,
                f"--transport={scene.transport}", f"--kv-port={control[name]}",
                f"--num-gpu-blocks-override={scene.num_blocks}", "--max-model-len=1024",
                "--block-size=16", "--dtype=auto", f"--kv-lease-seconds={scene.lease_s}",
                f"--max-num-batched-tokens={scene.chunk_tokens}",
                f"--kv-faults={scene.seed}:{scene.faults}" if scene.faults else "--kv-faults=",
            ).start()  # fmt: skip
        yield processes
    finally:
        for process in processes.values():
            process.child.kill()
            await process.child.ended()
        lifeline.close()
