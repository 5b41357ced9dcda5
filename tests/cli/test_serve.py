"""`kvdist serve`: what each flag does, seen through the API; how the process ends."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvdist.cli import serve as command, worker as worker_command
from kvdist.cli.main import app
from kvdist.node.worker_wire import Capacity
from kvdist.sched.plan import StepPlan, StepResult
from kvdist.sim.stub_runner import StubRunner
from kvdist.worker.settings import WorkerSettings
from tests.node.running import TOKENIZER, Running
from tests.node.small import CONFIG, PRINTABLE

Talk = Callable[[Running], Awaitable[None]]
TEXT = "/v1/completions"


async def cached(node: Running, prompt: str) -> int:
    """Tokens of the prompt that were found when it came the second time."""
    for _ in range(2):
        status, answer = await node.post(TEXT, {"prompt": prompt, "max_tokens": 1})
        assert status == 200, answer
    found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(found, int)
    return found


def refused(status: int, body: dict[str, Any], word: str = "") -> Talk:
    async def talk(node: Running) -> None:
        found, answer = await node.post(TEXT, body)
        assert found == status, answer
        assert word in answer["error"]["message"]

    return talk


def cached_is(expected: int) -> Talk:
    async def talk(node: Running) -> None:
        assert await cached(node, "x" * 60) == expected

    return talk


@pytest.mark.parametrize(
    ("flags", "talk"),
    [
        ("--block-size 8", cached_is(56)),
        ("--block-size 32", cached_is(32)),
        ("--no-enable-prefix-caching", cached_is(0)),
        ("--prefix-caching-hash-algo xxh3_128", cached_is(48)),
        ("--max-model-len 32", refused(400, {"prompt": "x" * 40}, "32 tokens")),
        ("--num-gpu-blocks-override 4", refused(400, {"prompt": "x" * 60}, "fit the pool")),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 32",
            refused(400, {"prompt": "x" * 60}, "a step without chunks"),
        ),
        ("--max-queued-requests 1", refused(503, {"prompt": "x", "n": 2}, "at most 1")),
    ],
)
def test_a_flag_does_something(serve: Callable[..., Result], flags: str, talk: Talk) -> None:
    serve(talk, *flags.split())


def test_names(serve: Callable[..., Result]) -> None:
    async def talk(node: Running) -> None:
        assert [model.id async for model in node.openai.models.list()] == ["one", "two"]
        status, answer = await node.post(TEXT, {"model": "two", "prompt": "x", "max_tokens": 1})
        assert (status, answer["model"]) == (200, "two")
        assert (await node.post(TEXT, {"model": "stub", "prompt": "x"}))[0] == 404

    serve(talk, "--served-model-name", "one", "--served-model-name", "two")


def test_a_body_that_is_too_large(serve: Callable[..., Result]) -> None:
    serve(refused(413, {"prompt": "x" * 200}), "--max-body-bytes", "100")


def test_a_key(serve: Callable[..., Result]) -> None:
    serve(refused(401, {"prompt": "x"}), "--api-key", "secret")


def test_trace_lines_of_two_requests_that_share_a_prefix(
    serve: Callable[..., Result], tmp_path: Path
) -> None:
    answers = []

    async def talk(node: Running) -> None:
        ask = {"prompt": "x" * 20, "max_tokens": 2}
        answers.extend([await node.post(TEXT, ask), await node.post(TEXT, ask)])

    path = tmp_path / "trace"
    flags = ["--trace-file", str(path), "--block-size", "4", "--max-num-batched-tokens", "16"]
    serve(talk, *flags, "--no-async-scheduling")
    result = CliRunner().invoke(app, ["trace", "lines", str(path)], catch_exceptions=False)
    lines = [re.sub(r"req=\w+-", "req=", line) for line in result.output.splitlines()]
    assert lines == [
        "step=1 req=1 hit_tokens=0 scheduled=16 owned=[[1, 2, 3, 4]] new=[[1, 2, 3, 4]] "
        "free=508 ref(hit)=[]",
        "step=2 req=1 hit_tokens=0 scheduled=4 owned=[[1, 2, 3, 4, 5]] new=[[5]] "
        "free=507 ref(hit)=[]",
        "step=3 req=1 hit_tokens=0 scheduled=1 owned=[[1, 2, 3, 4, 5, 6]] new=[[6]] "
        "free=506 ref(hit)=[]",
        "step=4 req=2 hit_tokens=16 scheduled=4 owned=[[1, 2, 3, 4, 6]] new=[[6]] "
        "free=507 ref(hit)=[1,1,1,1]",
        "step=5 req=2 hit_tokens=16 scheduled=1 owned=[[1, 2, 3, 4, 6, 7]] new=[[7]] "
        "free=506 ref(hit)=[1,1,1,1]",
    ]
    told = ["trace", "story", answers[1][1]["id"], "--file", str(path)]
    result = CliRunner().invoke(app, told, catch_exceptions=False)
    assert "a hit of 16 tokens here: blocks 1-4 of" in result.output


def test_a_trace_file_with_the_name_of_its_node(
    serve: Callable[..., Result], tmp_path: Path
) -> None:
    async def talk(node: Running) -> None:
        await node.post(TEXT, {"prompt": "x" * 20, "max_tokens": 2})

    flags = ["--trace-file", str(tmp_path / "%n.trace"), "--node-id", "rack/p0"]
    serve(talk, *flags)
    assert [file.name for file in tmp_path.iterdir()] == ["rack-p0.trace"]


def test_a_worker_process_is_told_all_that_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorkerSettings(
        model="somewhere",
        dtype="float32",
        device="cuda:3",
        max_model_len=77,
        block_size=8,
        num_blocks=99,
        kv_cache_memory_bytes=1 << 20,
    )
    told: list[WorkerSettings] = []
    monkeypatch.setattr(worker_command, "build_runner", lambda found, *_: told.append(found))
    monkeypatch.setattr(worker_command, "serve", lambda link, build: (link.close(), build(None)))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as mine:
        arguments = [*worker_command.command(settings)[3:], str(os.dup(mine.fileno()))]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert told == [settings]


@pytest.mark.parametrize(("flag", "expected"), [("auto", 0.25), ("vllm", 1.0)])
def test_sampling_as_the_model_suggests(
    serve: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flag: str,
    expected: float,
) -> None:
    TOKENIZER._vocabulary.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25}')
    asked: list[float] = []

    class Listening(StubRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            asked.extend(new.sampling.temperature for new in plan.new_sequences)
            return super().execute(plan)

    capacity = replace(Capacity.of(CONFIG), folder=str(tmp_path))
    runner = Listening(CONFIG, PRINTABLE)
    monkeypatch.setattr(command, "build_runner", lambda *_: (runner, capacity))

    async def talk(node: Running) -> None:
        assert (await node.post(TEXT, {"prompt": "x"}))[0] == 200

    serve(talk, "--generation-config", flag)
    assert asked == [expected]


# -- as a process ------------------------------------------------------------------------------


@contextmanager
def process(*flags: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "kvdist", "serve", "stub", "--port", "0", *flags]
    found = subprocess.Popen(
        arguments,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    try:
        yield found
    finally:
        found.kill()
        found.communicate()


def events(found: subprocess.Popen[str], until: str) -> list[dict[str, Any]]:
    """Log lines up to the event of that name."""
    assert found.stderr is not None
    lines: list[dict[str, Any]] = []
    for line in found.stderr:
        lines.append(json.loads(line))
        if lines[-1]["event"] == until:
            break
    return lines


def ask(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent."""
    link = socket.create_connection(("127.0.0.1", port), timeout=20)
    data = json.dumps(body).encode()
    link.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return link


def port_of(found: subprocess.Popen[str]) -> int:
    return int(events(found, "listening")[-1]["address"].rsplit(", ", 1)[1].rstrip(")"))


def rest(link: socket.socket) -> bytes:
    with link, link.makefile("rb") as file:
        return file.read()


def test_sigterm_answers_what_is_open_and_then_ends() -> None:
    with process() as found:
        link = ask(port_of(found), {"prompt": "x", "max_tokens": 400, "stream": True})
        link.recv(10)
        os.killpg(found.pid, signal.SIGTERM)  # its worker's process as well
        answer = rest(link)
        assert answer.rstrip().endswith(b"data: [DONE]")
        assert events(found, "drained")[-1]["event"] == "drained"
        assert found.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_while_it_loads_it_leaves_nothing(number: int, tmp_path: Path) -> None:
    """A worker that is still loading hears nothing, and is ended by its node."""
    with process("--role", "both", "--transport", "shm", TMPDIR=str(tmp_path)) as found:
        while not list(tmp_path.glob("kvdist-worker-*/owner")):
            assert found.poll() is None
            time.sleep(0.01)
        children = Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()
        os.killpg(found.pid, number)
        assert found.wait(20) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in children)
        assert not list(tmp_path.iterdir())


def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    with process("--shutdown-timeout", "0.1") as found:
        link = ask(port_of(found), {"prompt": "x", "max_tokens": 2000, "stream": True})
        link.recv(10)
        found.send_signal(signal.SIGTERM)
        answer = rest(link)
        assert b'"error"' in answer and b"[DONE]" not in answer
        assert events(found, "requests were cut off")
        assert found.wait(20) == 0


def test_a_second_signal_is_impatient() -> None:
    with process() as found:
        link = ask(port_of(found), {"prompt": "x", "max_tokens": 2000, "stream": True})
        link.recv(10)
        found.send_signal(signal.SIGTERM)
        events(found, "asked to end")
        found.send_signal(signal.SIGINT)
        assert b"[DONE]" not in rest(link)
        assert found.wait(20) == 0


def test_a_worker_that_is_killed_ends_its_node() -> None:
    with process() as found:
        port = port_of(found)
        children = Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()
        link = ask(port, {"prompt": "x", "max_tokens": 2000})
        os.kill(int(children[0]), signal.SIGKILL)
        assert b"503 Service Unavailable" in rest(link)
        assert found.wait(20) == 2
        assert found.stderr is not None
        assert "ended by signal 9" in found.stderr.read()


def test_a_node_that_is_killed_leaves_no_worker() -> None:
    with process() as found:
        port_of(found)
        children = Path(f"/proc/{found.pid}/task/{found.pid}/children").read_text().split()
        found.kill()
        found.wait(20)
        assert len(children) == 1
        while Path(f"/proc/{children[0]}").exists():
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["./nowhere"], "no folder"),
        (["stub", "--num-gpu-blocks-override", "1"], "num-gpu-blocks-override"),
        (["stub", "--port", "70000"], "port"),
        (["stub", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["stub", "--prefix-caching-hash-algo", "md5"], "md5"),
        (["stub", "--registry", "http://127.0.0.1:1"], "--role"),
        (["stub", "--role", "both", "--registry", "nonsense"], "'nonsense'"),
        (["stub", "--role", "both", "--registry", "http://h:99999"], "99999"),
        (["stub", "--role", "both", "--registry", "http://h:1", "--peer", "p=tcp://h:1"], "--peer"),
        (["stub", "--role", "both", "--registry", "http://h:1", "--host", "::"], "--kv-host"),
        (["stub", "--role", "both", "--node-id", "a/b"], "'a/b'"),
        (["stub", "--role", "both", "--node-id", ".."], "'..'"),
        (["stub", "--role", "both", "--node-id", "p0\n"], "p0"),
    ],
)
def test_it_can_not_begin(arguments: list[str], word: str) -> None:
    backend = ["--distributed-executor-backend", "uni", "--log-level", "error"]
    result = CliRunner().invoke(app, ["serve", *arguments, *backend])
    assert result.exit_code == 2
    assert word in " ".join(result.stderr.split()).lower()


@pytest.mark.parametrize("flag", ["--port", "--kv-port"])
def test_an_address_that_is_taken_is_noticed_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr(command, "build_runner", lambda *_: pytest.fail("it is loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--port", "0", flag, port, "--role", "both"]
        backend = ["--distributed-executor-backend", "uni", "--log-level", "error"]
        result = CliRunner().invoke(app, ["serve", "stub", *flags, *backend])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert said == f"kvdist: can't listen at 127.0.0.1:{port} ({flag}): Address already in use"


@pytest.mark.parametrize("command_name", ["serve", "up"])
def test_a_model_that_is_nowhere_is_noticed_before_anything_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command_name: str
) -> None:
    monkeypatch.setattr(asyncio, "run", lambda *_: pytest.fail("it has begun"))
    for name, why in (("/nosuch", "no folder"), (str(tmp_path), "no config.json")):
        result = CliRunner().invoke(app, [command_name, name])
        said = " ".join(result.stderr.split())
        assert result.exit_code == 2 and name in said and why in said
