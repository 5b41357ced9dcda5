"""`kvdist replay-trace`: what it prints of good, differing and unreadable files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvdist.cli import replay_trace as command
from kvdist.cli.main import app
from kvdist.errors import InvariantViolation
from kvdist.replay.trace import replay_file

ORACLE = Path(__file__).parent.parent / "data" / "oracle"
WALKTHROUGH = ORACLE / "a_walkthrough-bs4.jsonl.gz"

#: A trace: its header, then its operations.
Lines = list[dict[str, Any]]


def _run(*arguments: object) -> tuple[int, list[str], list[str]]:
    """Exit status, lines of standard output, lines of standard error."""
    result = CliRunner().invoke(app, ["replay-trace", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


@pytest.fixture
def lines() -> Lines:
    with gzip.open(WALKTHROUGH, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# -- which files ---------------------------------------------------------------------------------


def test_files_one_by_one() -> None:
    other = ORACLE / "a_edges-bs4.jsonl.gz"
    assert _run(WALKTHROUGH, other, WALKTHROUGH) == (
        0,
        [
            f"{WALKTHROUGH}       41  ok",
            f"{other}             51  ok",
            "2 files, 92 operations, 0 differences",
        ],
        [],
    )


def test_a_folder_stands_for_the_traces_in_it(tmp_path: Path, lines: Lines) -> None:
    (tmp_path / "below").mkdir()
    plain = _write(tmp_path / "below" / "plain.jsonl", lines)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(WALKTHROUGH.read_bytes())
    (tmp_path / "README.md").write_text("no trace")
    status, out, _ = _run(tmp_path)
    assert status == 0
    assert [line.split()[0] for line in out[:-1]] == [str(plain), str(packed)]


def test_a_pattern_that_no_shell_has_expanded() -> None:
    status, out, _ = _run(ORACLE / "a_walk*.gz")
    assert (status, out[-1]) == (0, "3 files, 122 operations, 0 differences")


@pytest.mark.parametrize("name", ["none.jsonl", "none*.jsonl", "", "."])
def test_what_stands_for_no_trace(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, errors = _run(name, WALKTHROUGH)
    assert status == 2
    assert out[-1] == "2 files, 41 operations, 0 differences, 1 unreadable"
    assert len(errors) == 1
    assert errors[0].startswith("kvdist: ")


# -- differences ---------------------------------------------------------------------------------


def test_a_difference_in_the_state(tmp_path: Path, lines: Lines) -> None:
    lines[11]["state"]["queue"][6:8] = [3, 4]
    path = _write(tmp_path / "planted.jsonl", lines)
    status, out, errors = _run(path, WALKTHROUGH)
    assert (status, errors) == (1, [])
    assert out[0].split() == [str(path), "11", "differs", "at", "line", "12"]
    told = {line.strip().split("  ")[0]: line.strip().split("  ")[-1].strip() for line in out[1:9]}
    assert told == {
        "operation": 'free {"id": "R0"}',
        "field": "state.queue[6]",
        "recorded": "[5, 6, 7, 8, 9, 10, 3, 4, 2, 1]",
        "ours": "[5, 6, 7, 8, 9, 10, 4, 3, 2, 1]",
        "our state": "our state",
        "free": "10",
        "usage": "0.0",
        "queue": "[5, 6, 7, 8, 9, 10, 4, 3, 2, 1]",
    }
    assert out[-1] == "2 files, 52 operations, 1 difference"


def test_a_difference_in_the_result(tmp_path: Path, lines: Lines) -> None:
    lines[9]["expect"]["tables"][0].append(6)
    status, out, _ = _run(_write(tmp_path / "planted.jsonl", lines))
    assert status == 1
    assert "differs at line 10" in out[0]
    assert out[2].split() == ["field", "expect.tables[0][5]"]


def test_a_difference_before_the_first_operation(tmp_path: Path, lines: Lines) -> None:
    lines[0]["state"]["free"] = 9
    status, out, _ = _run(_write(tmp_path / "planted.jsonl", lines))
    assert status == 1
    assert "differs at line 1" in out[0]
    assert out[1].split() == ["operation", "header"]
    assert out[2].split() == ["field", "state.free"]


def test_a_field_that_is_not_recorded(tmp_path: Path, lines: Lines) -> None:
    del lines[2]["expect"]["junction"]
    status, out, _ = _run(_write(tmp_path / "planted.jsonl", lines))
    assert status == 1
    assert out[2].split() == ["field", "expect.junction"]
    assert out[3].split() == ["recorded", "null"]


def test_only_the_first_difference_of_a_file(tmp_path: Path, lines: Lines) -> None:
    for line in lines[11:]:
        line["state"]["free"] = 0
    status, out, _ = _run(_write(tmp_path / "planted.jsonl", lines))
    assert (status, out[-1]) == (1, "1 file, 11 operations, 1 difference")


# -- files that are no traces ----------------------------------------------------------------------


def _unreadable(path: Path) -> str:
    """The complaint about `path`; the file after it is replayed all the same."""
    status, out, errors = _run(path, WALKTHROUGH)
    assert status == 2
    assert out[0].split() == [str(path), "unreadable"]
    assert out[-1] == "2 files, 41 operations, 0 differences, 1 unreadable"
    (complaint,) = errors
    assert complaint.startswith(f"kvdist: {path}")
    return complaint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.jsonl.gz", b'{"format": 1}\n'),
        ("truncated.jsonl.gz", WALKTHROUGH.read_bytes()[:-200]),
        ("no_end.jsonl.gz", WALKTHROUGH.read_bytes()[:-4]),
        ("packed.jsonl", WALKTHROUGH.read_bytes()),
        ("words.jsonl", b"not JSON\n"),
        ("list.jsonl", b"[1, 2]\n"),
        ("empty.jsonl", b""),
        ("empty.jsonl.gz", b""),
        ("empty_inside.jsonl.gz", gzip.compress(b"", mtime=0)),
        ("huge.jsonl", b'{"format": ' + b"9" * 5000 + b"}\n"),
        ("deep.jsonl", b"[" * 100_000),
        ("format.jsonl", b'{"format": 2}\n'),
        ("no_format.jsonl", b"{}\n"),
        ("only_format.jsonl", b'{"format": 1}\n'),
    ],
)
def test_files_of_another_kind(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    _unreadable(path)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (1, {"num_blocks": None}),
        (1, {"num_blocks": 0}),
        (1, {"num_blocks": 10**30}),
        (1, {"num_blocks": "11"}),
        (1, {"groups": []}),
        (1, {"groups": [{"kind": "unheard of", "block_size": 4}]}),
        (1, {"groups": [{"kind": "full", "block_size": 10**30}]}),
        (1, {"groups": [{"kind": "full"}]}),
        (1, {"max_model_len": -1}),
        (1, {"watermark": 2}),
        (1, {"num_blocks": 1 << 26}),
        (1, {"max_model_len": 1 << 30}),
        (1, {"state": None}),
        (1, {"state": 5}),
        (1, {"state": []}),
        (1, {"state": {"free": 10, "usage": "none"}}),
        (2, {"op": None}),
        (2, {"op": "unheard of"}),
        (2, {"op": ["new"]}),
        (2, {"id": None}),
        (2, {"id": 7}),
        (2, {"prompt": None}),
        (2, {"prompt": []}),
        (2, {"prompt": [10**30]}),
        (2, {"prompt": ["word"]}),
        (2, {"state": None}),
        (2, {"state": 5}),
        (3, {"id": "nobody"}),
        (3, {"id": ["R0"]}),
        (3, {"expect": 5}),
        (4, {"new": None}),
        (5, {"computed": None}),
        (6, {"tokens": [-1]}),
        (6, {"state": {"free": 6, "usage": float("nan")}}),
    ],
)
def test_lines_of_another_shape(
    tmp_path: Path, lines: Lines, line: int, changes: dict[str, Any]
) -> None:
    """None means that the key is missing."""
    lines[line - 1] |= changes
    lines[line - 1] = {key: value for key, value in lines[line - 1].items() if value is not None}
    _unreadable(_write(tmp_path / "shape.jsonl", lines))


def test_a_complaint_names_the_line(tmp_path: Path, lines: Lines) -> None:
    lines[1]["prompt"] = [-1]
    path = _write(tmp_path / "line.jsonl", lines)
    assert _unreadable(path).startswith(f"kvdist: {path}:2: not a token id")


def test_an_unreadable_file_weighs_more_than_a_difference(tmp_path: Path, lines: Lines) -> None:
    lines[11]["state"]["free"] = 3
    planted = _write(tmp_path / "planted.jsonl", lines)
    status, out, _ = _run(planted, tmp_path / "none.jsonl")
    assert (status, out[-1]) == (2, "2 files, 11 operations, 1 difference, 1 unreadable")


def test_a_broken_invariant_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> object:
        if path == WALKTHROUGH:
            raise InvariantViolation("I1: on\npurpose")
        return replay_file(path)

    monkeypatch.setattr(command, "replay_file", broken)
    status, out, errors = _run(WALKTHROUGH, ORACLE / "a_edges-bs4.jsonl.gz")
    assert status == 2
    assert out[0].split() == [str(WALKTHROUGH), "broken", "invariant"]
    assert errors == [f"kvdist: {WALKTHROUGH}: I1: on purpose"]


# -- on a terminal ---------------------------------------------------------------------------------


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich: this is a terminal
    monkeypatch.setenv("TERM", "xterm")
    status, out, _ = _run(WALKTHROUGH)
    assert status == 0
    shown = "\n".join(out)
    assert "replaying" in shown
    assert f"{WALKTHROUGH}       41  ok" in shown
