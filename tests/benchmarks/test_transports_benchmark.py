"""The benchmark moves what it says and sees wrong bytes; no time is tested."""

import importlib.util
import itertools
import json
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from benchmarks import limits, patterns
from benchmarks.blocks import WorkerError
from benchmarks.meter import MainThread
from benchmarks.patterns import PATTERNS, SMALL_PATTERNS, WrongBytesError
from benchmarks.transport_rows import Move, Trips, mark_best, p99
from benchmarks.transports import TRANSPORTS, TRIP_SIZES, Plan, main, measure, process, show

SMALL = next(iter(SMALL_PATTERNS.values()))


def test_patterns_are_those_of_the_definition() -> None:
    assert [(p.blocks, p.block_bytes) for p in PATTERNS.values()] == [
        (128, 2 << 20),
        (4096, 64 << 10),
        (4096, 16 << 10),
    ]
    for pattern in PATTERNS.values():
        assert pattern.pool_bytes == 2 * pattern.num_bytes
        for numbers in (pattern.sources(), pattern.targets()):
            assert len(set(numbers)) == pattern.blocks
            assert max(numbers) < pattern.slots
            together = sum(b == a + 1 for a, b in itertools.pairwise(numbers))
            assert together < 5


def _moved() -> list[memoryview]:
    """A pool of the receiver's in which everything has arrived."""
    source, target = (patterns.cut(patterns.memory(SMALL.pool_bytes), SMALL) for _ in range(2))
    patterns.fill(source, SMALL)
    for number, place in zip(SMALL.sources(), SMALL.targets(), strict=True):
        target[place][:] = source[number]
    return target


def test_what_arrived_is_checked() -> None:
    patterns.check(_moved(), SMALL)


@pytest.mark.parametrize("at", [0, 9, SMALL.block_bytes // 8 - 1, SMALL.block_bytes - 2])
def test_a_wrong_byte_is_an_error(at: int) -> None:
    target = _moved()
    target[SMALL.targets()[-1]][at] ^= 1
    with pytest.raises(WrongBytesError):
        patterns.check(target, SMALL)


def test_blocks_that_changed_places_are_an_error() -> None:
    target = _moved()
    first, second, *_ = SMALL.targets()
    target[first][:], target[second][:] = bytes(target[second]), bytes(target[first])
    with pytest.raises(WrongBytesError, match="lies"):
        patterns.check(target, SMALL)


def _moves(written: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(move["transport"], move["pattern"], move["verb"]) for move in written["moves"]]


def test_the_whole_benchmark_writes_tables_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "transports.json"
    main(json_file=file, repeats=1, only="shm,tcp", small=True)
    written: dict[str, Any] = json.loads(file.read_text())
    verbs = {"shm": ["message", "read"], "tcp": ["message"]}
    assert _moves(written) == [
        (name, pattern, verb)
        for name in verbs
        for pattern in SMALL_PATTERNS
        for verb in verbs[name]
    ]
    for move in written["moves"]:
        assert len(move["GB/s"]) == len(move["copy GB/s"]) == 1
        assert move["share"] > 0
        assert (move["tools GB/s"], move["goal"], move["reached"]) == ({}, None, None)
        for figures in (move["cpu s/GB"], move["loop late s"], move["computing GB/s"]):
            assert {side: len(found) for side, found in figures.items()} == {
                "receiver": 1,
                "sender": 1,
            }
    assert [(trips["transport"], trips["bytes"]) for trips in written["round trips"]] == [
        (name, size) for name in verbs for size in TRIP_SIZES
    ]
    assert written["missing"] == {}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GB/s, best (median)"
    assert sum(line.startswith("shm ") for line in lines) == 2 * 4 + 2


@pytest.mark.skipif(importlib.util.find_spec("ucxx") is None, reason="ucxx isn't there")
def test_ucx_over_its_tcp_alone() -> None:
    report = measure(Plan(["ucx-tcp"], [SMALL], repeats=1, with_tools=False, trips=5))
    assert [move.verb for move in report.moves] == ["message"]  # such lanes don't read
    assert all(lane.startswith("tcp/") for lane in report.about["ucx-tcp"]["lanes"])
    assert "UCX_RNDV_SCHEME" in report.about["ucx-tcp"]["settings"]


def test_a_transport_that_is_missing_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ucxx.py").write_text("raise ImportError('not today')")
    monkeypatch.setitem(TRANSPORTS, "ucx", ("ucx://127.0.0.1:0", {"PYTHONPATH": str(tmp_path)}))
    show(measure(Plan(["ucx"], [SMALL], repeats=1)))
    last = capsys.readouterr().out.splitlines()[-2]
    assert last.startswith("ucx   ucx:// needs the package ucxx")
    assert "not today" in last


def test_tools_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(limits.ToolError, match="no iperf3"):
        limits.iperf3(1 << 16)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(limits.ToolError, match="no ucx_perftest"):
        limits.perftest("tag_bw", 1 << 16, {})


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_sockets_echo(family: socket.AddressFamily) -> None:
    assert len(limits.socket_trips(family, 64, 3)) == 3


def test_a_process_that_fails_is_an_error() -> None:
    with (
        pytest.raises(WorkerError, match="no answer"),
        process([sys.executable, "-c", ""], {}) as worker,
    ):
        worker.read()


def _move(verb: str, speed: float, **figures: Any) -> Move:
    pattern = next(iter(PATTERNS))
    return Move("shm", pattern, verb, 1, speeds=[speed / 2, speed], **figures)


def test_only_the_best_verb_has_a_goal_and_the_smaller_limit_counts() -> None:
    message = _move("message", 2.0, copies=[10.0], nixl=[3.0])
    read = _move("read", 4.0, copies=[10.0], nixl=[3.0], tools={"a": [4.0], "b": [5.0, 1.0]})
    mark_best([message, read])
    assert (message.share(), message.goal, message.reached, message.beats_nixl) == (
        0.2,
        None,
        None,
        None,
    )
    assert (read.share(), read.goal, read.reached, read.beats_nixl) == (0.8, 0.8, True, True)
    assert read.share(of_medians=True) == 1.0


def test_blocked_is_what_is_beyond_an_idle_loop() -> None:
    move = _move(
        "read", 1.0, late={"sender": [0.003, 0.001, 0.002]}, idle_late={"sender": [0.0005]}
    )
    assert move.blocked("sender") == 0.0015
    assert move.blocked("receiver") == 0.0


def test_round_trips_show_median_and_p99() -> None:
    ours = [float(n) for n in range(1, 101)]
    trips = Trips("ucx", 64, ours, [0.5], "ucx tag_lat")
    assert p99(ours) == 99.0
    assert trips.as_cells() == [
        "ucx",
        "64",
        "50500000",
        "99000000",
        "ucx tag_lat",
        "500000.0",
        "",
    ]


@pytest.mark.parametrize("there", ["torch", "numpy", "python"])
def test_what_is_computed_is_the_best_that_is_here(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library(ModuleType):
        """Has whatever one asks for."""

        def __getattr__(self, name: str) -> Any:
            return mock.MagicMock()

    for name in ("torch", "numpy"):
        monkeypatch.setitem(sys.modules, name, Library(name) if name == there else None)
    assert MainThread().kind == there


def test_the_main_thread_ends_when_told() -> None:
    main_thread = MainThread()
    main_thread.compute(True)
    main_thread.compute(False)
    main_thread.end()
    main_thread.run()
