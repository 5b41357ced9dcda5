"""docker-compose.yml: what its schema allows, and that its commands make a pair that answers."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.node.running import perfect

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
#: Each container has an address of its own, and so has each service here.
ADDRESSES = {"0.0.0.0": "127.0.0.2", "router": "127.0.0.2"}
ADDRESSES |= {"prefill": "127.0.0.3", "decode": "127.0.0.4"}


def test_the_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, "docker-compose.yml"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["kvdist"]' in dockerfile
    assert {service["image"] for service in SERVICES.values()} == {"kvdist"}
    assert [name for name, service in SERVICES.items() if "build" in service] == ["router"]
    (volume,) = SERVICES["prefill"]["volumes"]
    cache = re.findall(r"XDG_CACHE_HOME=(.+)", dockerfile)
    assert volume == f"models:{cache[0]}/kvdist"


def command_of(service: str, port: int) -> list[str]:
    """What its container runs, here: without a model, at an address and a port of this machine."""

    def here(word: str) -> str:
        word = re.sub(r"(?<=--host=)(.+)|(?<=http://)(\w+)", lambda m: ADDRESSES[m[0]], word)
        return re.sub(r"(?<=--port=)8000|(?<=:)8000", str(port), word)

    flags: list[str] = SERVICES[service]["command"]
    assert flags[1] in ("SmolLM2-135M-Instruct", "--host=0.0.0.0")
    words = ["stub" if word == "SmolLM2-135M-Instruct" else here(word) for word in flags]
    return [sys.executable, "-m", "kvdist", *words]


def test_the_commands_make_a_pair() -> None:
    asyncio.run(_ask_the_pair())


async def _ask_the_pair() -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    secrets = dict.fromkeys(SERVICES["prefill"]["environment"], "a secret of this cluster")
    assert len(secrets) == 2
    processes = [
        await asyncio.create_subprocess_exec(
            *command_of(service, port),
            cwd=ROOT,
            env={**os.environ, **secrets},
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        for service in SERVICES
    ]
    try:
        async with asyncio.timeout(50), aiohttp.ClientSession() as http:
            await _until_both_are_there(http, f"http://127.0.0.2:{port}")
            body = {"prompt": "x" * 100, "max_tokens": 9}
            url = f"http://127.0.0.2:{port}/v1/completions"
            async with http.post(url, json=body) as response:
                answer = await response.json()
            assert answer["choices"][0]["text"] == perfect("x" * 100, 9)
            assert answer["usage"]["prompt_tokens_details"]["remote_tokens"] > 0
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [await process.wait() for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _until_both_are_there(http: aiohttp.ClientSession, url: str) -> None:
    headers = {"Authorization": "Bearer a secret of this cluster"}
    while True:
        try:
            async with http.get(f"{url}/registry/nodes", headers=headers) as response:
                nodes = (await response.json())["nodes"]
        except aiohttp.ClientConnectionError:
            nodes = []
        ready = [node["node_id"] for node in nodes if node["ready"] and node["knows_all"]]
        if sorted(ready) == ["decode", "prefill"]:
            return
        await asyncio.sleep(0.1)
