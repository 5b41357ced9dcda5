"""The trace file of a node: stamped, bounded, each file with its header, and never in the way."""

import asyncio
from pathlib import Path

import pytest

from kvdist.errors import ConfigError
from kvdist.node.tracing import TraceFile
from kvdist.trace.events import (
    Arrived,
    Began,
    Ended,
    Entry,
    Event,
    Freed,
    Told,
)
from kvdist.trace.reading import TraceFiles
from tests.node.running import running, until

BEGAN = Began("run", 11, (4,), ("FullAttention",))


def test_each_line_is_stamped(tmp_path: Path) -> None:
    times = iter([1.5, 2.5])
    file = TraceFile(tmp_path / "trace", 1 << 20, lambda: next(times))
    file.note(BEGAN)
    file.note(Told("a-1"))
    file.close()
    assert list(TraceFiles(tmp_path / "trace")) == [Entry(1.5, BEGAN), Entry(2.5, Told("a-1"))]


def test_two_files_bound_it_and_both_have_a_header(tmp_path: Path) -> None:
    path, most = tmp_path / "trace", 4096
    file = TraceFile(path, most)
    file.note(BEGAN)
    for number in range(500):
        file.note(Arrived(f"a-{number}", 3, 9))
    file.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace", "trace.1"]
    for one in tmp_path.iterdir():
        assert one.stat().st_size <= most
        assert b'"began"' in one.read_bytes().splitlines()[0]
    last = [entry.event for entry in TraceFiles(path)][-1]
    assert last == Arrived("a-499", 3, 9)


def test_a_node_that_comes_back_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for run in ("one", "two"):
        file = TraceFile(tmp_path / "trace", 1 << 20)
        file.note(Began(run, 11, (4,), ("FullAttention",)))
        file.note(Arrived("a-1", 3, 9))
        file.close()
    assert len(list(TraceFiles(tmp_path / "trace"))) == 4
    assert len(list(TraceFiles(tmp_path / "trace").run_of("a-1"))) == 2


def test_two_nodes_do_not_write_one_file(tmp_path: Path) -> None:
    one = TraceFile(tmp_path / "trace", 4096)
    with pytest.raises(ConfigError, match="%n"):
        TraceFile(tmp_path / "trace", 4096)
    for number in range(200):
        one.note(Arrived(f"a-{number}", 3, 9))
    with pytest.raises(ConfigError, match="%n"):  # nor the one that it goes on in
        TraceFile(tmp_path / "trace", 4096)
    one.close()
    TraceFile(tmp_path / "trace", 4096).close()


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        TraceFile(tmp_path / "nothing" / "trace", 1 << 20)


def test_a_full_disk_costs_lines_and_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    file = TraceFile(Path("/dev/full"), 0)
    file.note(Told("a-1"))
    file.close()
    assert "No space left" in capsys.readouterr().err


def test_a_client_that_leaves_and_a_stop_string_are_told_apart() -> None:
    heard: list[Event] = []

    async def talk() -> None:
        async with running(trace=heard.append) as node:
            stream = await node.openai.completions.create(
                model="tiny", prompt="some words", max_tokens=200, stream=True
            )
            async for _ in stream:
                break
            await stream.close()
            await until(lambda: any(isinstance(event, Freed) for event in heard))
            _, answer = await node.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
            text = answer["choices"][0]["text"]
            await node.post("/v1/completions", {"prompt": "x", "max_tokens": 50, "stop": text[0]})

    asyncio.run(talk())
    assert isinstance(heard[0], Began)
    ends = [(event.status, event.reason) for event in heard if isinstance(event, Ended)]
    assert ends == [
        ("aborted", "the client is gone"),
        ("length", ""),
        ("aborted", "a stop string"),
    ]
