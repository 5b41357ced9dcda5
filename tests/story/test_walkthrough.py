"""The walk-through of the document, run as the example that people run, number by number.

Rules: S9, S12, S18, S19, S21, and "what one watches" of docs/semantics.md.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

Moments = dict[int, list[str]]


@pytest.fixture(scope="module")
def moments() -> Moments:
    """The lines that the example prints at each of the document's times."""
    command = [sys.executable, "-W", "error", "examples/01_walkthrough.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: Moments = {}
    for part in run.stdout.split("\ntime ")[1:]:
        head, *lines = part.splitlines()
        found[int(head.split(":")[0])] = [" ".join(line.split()) for line in lines if line]
    return found


def test_the_seven_times_are_told(moments: Moments) -> None:
    assert sorted(moments) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("time", "queue"),
    [
        (0, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
        (1, "[4, 5, 6, 7, 8, 9]"),
        (2, "[5, 6, 7, 8, 9]"),
        (3, "[4, 5, 6, 7, 8, 9, 3, 2, 1, 0]"),
        (4, "[5, 6, 7, 8, 9, 3]"),
        (5, "[5, 6, 7, 8, 9, 3]"),
        (6, "[]"),
    ],
)
def test_free_queue(moments: Moments, time: int, queue: str) -> None:
    assert f"free queue: {queue}" in moments[time]


@pytest.mark.parametrize(
    ("time", "keys"),
    [
        (0, "{}"),
        (1, "{A-D -> 0, A-H -> 1, A-L -> 2}"),
        (2, "{A-D -> 0, A-H -> 1, A-L -> 2, A-P -> 3}"),
        (3, "{A-D -> 0, A-H -> 1, A-L -> 2, A-P -> 3}"),
        # R1's own fourth block is full, so it can be found from now on.
        (4, "{A-D -> 0, A-H -> 1, A-L -> 2, A-P -> 3, A-L w-z -> 4}"),
    ],
)
def test_hash_map(moments: Moments, time: int, keys: str) -> None:
    assert f"hash map: {keys}" in moments[time]


@pytest.mark.parametrize(
    ("time", "tables"),
    [
        (0, "{}"),
        (1, "{R0: [0, 1, 2, 3]}"),
        (2, "{R0: [0, 1, 2, 3, 4]}"),
        (3, "{}"),
        (4, "{R1: [0, 1, 2, 4]}"),
        (5, "{R1: [0, 1, 2, 4]}"),
        (6, "{R1: [0, 1, 2, 4], R3: [5, 6, 7, 8, 9, 3]}"),
    ],
)
def test_block_tables(moments: Moments, time: int, tables: str) -> None:
    assert f"requests: {tables}" in moments[time]


@pytest.mark.parametrize(
    ("time", "counts"),
    [
        (0, "all 0"),
        (1, "0 -> 1, 1 -> 1, 2 -> 1, 3 -> 1"),
        (3, "all 0"),
        (4, "0 -> 1, 1 -> 1, 2 -> 1, 4 -> 1"),
    ],
)
def test_counts(moments: Moments, time: int, counts: str) -> None:
    assert f"ref_cnt: {counts}" in moments[time]


def test_a_refused_request_changes_nothing(moments: Moments) -> None:
    trace, *state = moments[5]
    assert trace == (
        "step=5 req=R2 hit_tokens=0 scheduled=0 owned=[[]] new=[[]] free=6 ref(hit)=[]"
    )
    assert state == moments[4][1:]


def test_pressure_takes_the_longest_prefix_and_leaves_the_shorter(moments: Moments) -> None:
    (keys,) = [line for line in moments[6] if line.startswith("hash map:")]
    assert "A-P" not in keys
    assert "A-D -> 0, A-H -> 1, A-L -> 2" in keys


@pytest.mark.parametrize(
    ("time", "line"),
    [
        (1, "step=1 req=R0 hit_tokens=0 scheduled=15 owned=[[0, 1, 2, 3]] new=[[0, 1, 2, 3]] "
            "free=6 ref(hit)=[]"),
        (2, "step=2 req=R0 hit_tokens=0 scheduled=1 owned=[[0, 1, 2, 3]] new=[[]] "
            "free=6 ref(hit)=[]"),
        (2, "step=3 req=R0 hit_tokens=0 scheduled=1 owned=[[0, 1, 2, 3, 4]] new=[[4]] "
            "free=5 ref(hit)=[]"),
        (4, "step=4 req=R1 hit_tokens=12 scheduled=4 owned=[[0, 1, 2, 4]] new=[[4]] "
            "free=6 ref(hit)=[1,1,1]"),
    ],
)  # fmt: skip
def test_trace_lines(moments: Moments, time: int, line: str) -> None:
    assert line in moments[time]
