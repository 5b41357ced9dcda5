"""`kvdist simulate`: what it prints when all is well, and when a promise is broken."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvdist.cli.main import app
from kvdist.connector import rules
from kvdist.sim.saved import load


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_all_well() -> None:
    result = run("--check", "1", "simulate", "--walks", "2", "--steps", "400", "--nodes", "2")
    assert result.exit_code == 0, result.output
    assert "sequences right" in result.output
    assert "all as promised" in result.output


def test_same_seed_same_run() -> None:
    outputs = [run("simulate", "--seed", "7", "--steps", "500").output for _ in range(2)]
    counts = [[line for line in output.splitlines() if "  " in line] for output in outputs]
    assert counts[0]
    assert counts[0] == counts[1]


def test_a_broken_promise_is_shrunk_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "may_return", lambda *_: True)
    result = run("simulate", "--seed", "0", "--walks", "20", "--steps", "600")
    assert result.exit_code == 1
    assert "the shortest script that fails so" in result.output
    assert "the story of job" in result.output


def test_a_script_that_failed_is_saved_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = str(tmp_path / "script.json")
    with monkeypatch.context() as patch:
        patch.setattr(rules, "may_return", lambda *_: True)
        failed = run("simulate", "--walks", "20", "--steps", "600", "--save", script)
        assert failed.exit_code == 1
        again = run("simulate", "--script", script)
        assert again.exit_code == 1
    assert load(Path(script)).shows in failed.output
    assert "the story of job" in again.output
    mended = run("simulate", "--script", script)
    assert mended.exit_code == 0, mended.output
    assert "once it showed: " in mended.output
    assert "all as promised" in mended.output


def test_what_is_no_script(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text("{}")
    result = run("simulate", "--script", str(path))
    assert result.exit_code == 2
    assert "no script" in result.output


def test_unknown_fault() -> None:
    result = run("simulate", "--faults", "meteorites")
    assert result.exit_code == 2
    assert "no kind of fault: meteorites" in result.output
