"""The benchmark does the work it says and writes what it says; no time is tested."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.blocks import WorkerError, main, measure, plain_table, worker
from benchmarks.library_kvdist import KvdistEngine
from benchmarks.prompts import token
from benchmarks.rows import PROMPT, RATE, ROWS, Result, Row, Spread
from benchmarks.size import FULL, SMALL
from benchmarks.stopwatch import Stopwatch
from benchmarks.work import WORKS, Outcome, WrongNumberError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_full_size_has_the_numbers_of_the_definition() -> None:
    assert FULL.hit_tokens(FULL.batch) == 240 * 2_048
    assert FULL.prefilled_blocks(FULL.batch) == 34_816
    assert FULL.prefilled_blocks(FULL.batch) + FULL.batch * FULL.decoded_blocks == 35_840
    assert (FULL.churn_pool_blocks, FULL.evictions) == (8_193, 256 * 128)
    hybrid = FULL.hybrid_requests
    for misses, numbers in ((1, (245_760, 52_224, 43_264)), (2, (229_376, 55_296, 45_312))):
        blocks = 3 * FULL.prefilled_blocks(hybrid, misses), FULL.hybrid_decoded_blocks(misses)
        assert (FULL.hit_tokens(hybrid, misses), *blocks) == numbers


def test_tokens_are_those_of_the_definition() -> None:
    def defined(s: int, i: int) -> int:
        return ((s * 1000003 + i * 7919 + (i * i) % 8191) * 2654435761 % 2**32) >> 17

    points = [(0, 0), (0, 1), (3, 90), (10_511, 4_095), (20_255, 63)]
    assert [token(*point) for point in points] == [defined(*point) for point in points]


@pytest.mark.parametrize("work", [name for name in WORKS if name != "pool"])
def test_each_work_reaches_its_numbers_under_audit(work: str) -> None:
    outcome = WORKS[work](KvdistEngine(), SMALL, Stopwatch())
    assert set(outcome.figures) >= {row.figure for row in ROWS if row.work == work}
    assert all(figure >= 0 for figure in outcome.figures.values())


def test_another_number_is_an_error() -> None:
    with pytest.raises(WrongNumberError, match="hit tokens is 7, not 8"):
        Outcome().check("hit tokens", 7, 8)


def test_the_whole_benchmark_writes_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "blocks.json"
    main(json_file=file, repeats=2, small=True)
    written: dict[str, Any] = json.loads(file.read_text())
    assert written["about"]["ours"]["library"] == "kvdist"
    assert written["about"]["repeats"] == 2
    assert [(row["work"], row["figure"]) for row in written["rows"]] == [
        (row.work, row.figure) for row in ROWS
    ]
    for row in written["rows"]:
        assert row["ours"]["min"] <= row["ours"]["median"] <= row["ours"]["max"]
        assert (row["theirs"], row["ratio"], row["reached"]) == (None, None, None)
    assert written["numbers"]["W1"]["hit tokens"] == SMALL.hit_tokens(SMALL.batch)
    assert written["numbers"]["W3_sparse"]["blocks after free"] == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert lines[0].split() == [
        "work",
        "what",
        "unit",
        "ours",
        "theirs",
        "ratio",
        "goal",
        "reached",
    ]


def test_times_and_rates_compare_the_right_way_round() -> None:
    def spread(median: float) -> Spread:
        return Spread(median, median, median)

    time = Result(Row("W1", "lookup", "lookup", PROMPT, 3.0), spread(2.0), spread(7.0))
    rate = Result(Row("W2", "evictions", "churn", RATE, 2.0), spread(30.0), spread(20.0))
    assert (time.ratio, time.reached) == (3.5, True)
    assert (rate.ratio, rate.reached) == (1.5, False)
    assert time.as_cells()[-3:] == ["3.50", "3", "yes"]
    assert rate.as_cells()[-3:] == ["1.50", "2", "NO"]


def test_a_plain_table_is_aligned() -> None:
    assert plain_table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc  d"


def test_a_worker_that_fails_is_an_error(tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(WorkerError, match="no answer"), worker(str(silent), "vllm") as peer:
        peer.read()
    with pytest.raises(WorkerError, match="no answer"):
        measure(["W2"], vllm=str(silent), repeats=1, small=True)


def test_each_library_is_imported_by_its_own_files_alone() -> None:
    importers: dict[str, set[str]] = {"kvdist": set(), "vllm": set(), "torch": set()}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if (library := name.partition(".")[0]) in importers:
                    importers[library].add(path.name)
    assert importers == {
        "kvdist": {
            "library_kvdist.py",
            "engine_kvdist.py",
            "engine_worker.py",
            "engine.py",
            "pair_cluster.py",
            "pair_transfer.py",
            "pair_worker.py",
        },
        "vllm": {"library_vllm.py", "engine_vllm.py"},
        "torch": {"library_vllm.py", "engine_transformers.py"},
    }
