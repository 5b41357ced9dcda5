"""What a file may hold, and that reading it gives objects or a FormatError with the place."""

import gzip
from pathlib import Path

import pytest

from kvdist.errors import FormatError
from kvdist.replay import json_lines
from kvdist.replay.json_lines import read_json_lines

GOOD = b'{"a": 1}\n{"b": [2]}\n'


@pytest.mark.parametrize("name", ["good.jsonl", "good.jsonl.gz"])
def test_objects_and_their_line_numbers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD) if name.endswith(".gz") else GOOD)
    assert list(read_json_lines(path)) == [(1, {"a": 1}), (2, {"b": [2]})]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"a": 1}\n{"b"', ":2: not JSON"),
        ("a.jsonl", b"\n", ":1: not JSON"),
        ("a.jsonl", b"[1]\n", ":1: not a JSON object"),
        ("a.jsonl", b'{"a": NaN}\n', ":1: not JSON: NaN is no JSON number"),
        ("a.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", ":1: not JSON"),
        ("a.jsonl", b'{"a": ' + b"[" * 100_000, ":1: not JSON"),
        ("a.jsonl", b'{"a": "\xff"}\n', "not UTF-8"),
        ("a.jsonl.gz", GOOD, "[Nn]ot a gzip"),
        ("a.jsonl.gz", gzip.compress(GOOD, mtime=0)[:-12], "broken gzip"),
        ("a.jsonl.gz", gzip.compress(GOOD, mtime=0)[:-1], "broken gzip"),
        ("a.jsonl.gz", gzip.compress(GOOD, mtime=0)[:10] + b"\xff" * 30, "broken gzip"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FormatError, match=told) as caught:
        list(read_json_lines(path))
    assert str(path) in str(caught.value)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_CHARACTERS", 20)
    path = tmp_path / "long.jsonl"
    path.write_bytes(GOOD + b" " * 20)
    with pytest.raises(FormatError, match=":3: longer than"):
        list(read_json_lines(path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        list(read_json_lines(tmp_path / "none.jsonl"))
    with pytest.raises(FormatError, match="Is a directory"):
        list(read_json_lines(tmp_path))
