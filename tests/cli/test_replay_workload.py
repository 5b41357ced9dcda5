"""`kvdist replay-workload`: its rows, its JSON, what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvdist import check
from kvdist.cli.main import app

CONVERSATION = Path(__file__).parent.parent / "data" / "workload" / "conversation_trace.jsonl.gz"

#: Three prompts of 2, 3 and 2 blocks of 4 tokens; the first two blocks are the same in all.
SMALL = """\
{"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 5, "input_length": 9, "output_length": 1, "hash_ids": [1, 2, 3]}
{"timestamp": 9, "input_length": 8, "output_length": 1, "hash_ids": [1, 2]}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text(SMALL)
    return path


def _run(*arguments: object) -> tuple[int, list[str], str]:
    """Exit status, lines of standard output, standard error."""
    result = CliRunner().invoke(app, ["replay-workload", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout.splitlines(), result.stderr


def _rows(out: list[str]) -> list[list[str]]:
    """The cells of all rows but the last one of each, which is a speed."""
    return [line.replace(" %", "%").split()[:-1] for line in out[3 : out.index("", 3)]]


def test_a_row_for_each_number_of_blocks(small: Path) -> None:
    status, out, errors = _run(
        small, "--block-size", 4, "--blocks", 2, "--blocks", 3, "--blocks", "unlimited"
    )
    assert (status, errors) == (0, "")
    assert out[0] == (
        "small.jsonl: 3 requests, 28 tokens, 7 full blocks of 4 tokens (lengths: hash-ids)"
    )
    assert _rows(out) == [
        ["2", "14.29%", "14.29%", "42.86%", "1", "1", "1"],
        ["3", "42.86%", "42.86%", "57.14%", "1", "1", "0"],
        ["unlimited", "42.86%", "42.86%", "57.14%", "1", "0", "0"],
    ]


def test_true_lengths(small: Path) -> None:
    status, out, _ = _run(small, "--block-size", 4, "--blocks", "unlimited", "--lengths", "true")
    assert status == 0
    assert out[0].endswith("3 requests, 25 tokens, 6 full blocks of 4 tokens (lengths: true)")
    assert _rows(out) == [["unlimited", "50.00%", "48.00%", "66.67%", "1", "0", "0"]]


def test_numbers_as_json(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "numbers.json"
    status, _, _ = _run(
        small, "--block-size", 4, "--blocks", 3, "--blocks", "unlimited", "--json", target
    )
    assert status == 0
    numbers = json.loads(target.read_text())
    first, last = numbers.pop("results")
    assert numbers == {
        "file": "small.jsonl",
        "lengths": "hash-ids",
        "block_size": 4,
        "requests": 3,
        "tokens": 28,
        "full_blocks": 7,
    }
    assert last.pop("requests_per_second") > 0
    assert last == {
        "usable_blocks": "unlimited",
        "refused_requests": 0,
        "hit_blocks": 3,
        "given_up_blocks": 1,
        "evicted_blocks": 0,
        "hit_tokens": 12,
        "hit_blocks_percent": pytest.approx(100 * 3 / 7),
        "hit_tokens_percent": pytest.approx(100 * 12 / 28),
        "belady_hit_blocks": 4,
        "belady_percent": pytest.approx(100 * 4 / 7),
    }
    assert first["usable_blocks"] == 3


def test_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "level", 0)  # level 2 looks at the whole pool after every call
    status, out, _ = _run(CONVERSATION, "--blocks", 1000)
    assert status == 0
    (row,) = _rows(out)
    assert row[:4] == ["1,000", "4.45%", "4.45%", "19.06%"]


@pytest.mark.parametrize("blocks", ["0", "-1", "many", "1.5", "", "nan"])
def test_no_number_of_blocks(small: Path, blocks: str) -> None:
    status, _, errors = _run(small, "--blocks", blocks)
    assert status == 2
    assert "neither a number from 1 on nor 'unlimited'" in errors


def test_more_blocks_than_memory_has(small: Path) -> None:
    status, _, _ = _run(small, "--block-size", 4, "--blocks", 10**30)
    assert status == 0


@pytest.mark.parametrize(
    "arguments",
    [[], ["--blocks", "3", "--block-size", "0"], ["--blocks", "3", "--lengths", "other"]],
)
def test_wrong_usage(small: Path, arguments: list[str]) -> None:
    assert _run(small, *arguments)[0] == 2


@pytest.mark.parametrize("content", ["", "words", "{}", "[]", '{"hash_ids": [1]}', SMALL[:-9]])
def test_files_of_another_kind(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    status, _, errors = _run(path, "--block-size", 4, "--blocks", 3)
    assert status == 2
    assert errors.startswith(f"kvdist: {path}:")
    assert errors.count("\n") == 1


def test_another_block_size(small: Path) -> None:
    status, _, errors = _run(small, "--blocks", 3)
    assert status == 2
    assert "not blocks of 512 tokens" in errors


def test_no_file(tmp_path: Path) -> None:
    status, _, errors = _run(tmp_path / "none.jsonl", "--blocks", 3)
    assert (status, errors) == (2, f"kvdist: {tmp_path}/none.jsonl: No such file or directory\n")


def test_numbers_that_can_not_be_written(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "numbers.json"
    status, _, errors = _run(small, "--block-size", 4, "--blocks", 3, "--json", target)
    assert status == 2
    assert "can't write" in errors
